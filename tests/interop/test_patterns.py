"""Does a regular expression mean the same to the embedded broker as to RabbitMQ 4.3?"""

import json
import os
import urllib.parse
from collections.abc import Iterator

import pytest

from redrive.broker.patterns import NamePattern
from redrive.broker.policies import Policy, PolicyError
from redrive.errors import ServiceError
from tests.services import RABBITMQS, RabbitMQ, Run

NAMES = (
    "orders", "Orders", "orders.dead", "orders-1", "orders_2", "amq-gen-1", "aab", "abab", "aaa", "A", "b", "42",
    "a b",
    "a{2}", "a{e}", "a.b", "tab\t", "end", "é", "à", "ÅÄ", "ключ", "[x]", "x|y", "back\\slash", "a#b", "-", "]",
    "^", "x\x0by", "x\x85y", "·", "²", "µ", "ª", "a b c", "QE", "\x07", "foofoo", "foobar",
)  # fmt: skip
PATTERNS = (
    # anchors and look-around
    r"^(?!amq\.).*", "^(?!amq)", "(?<!a)b",
    r"^(?=.*\d)(?=.*o)", "(?<=a|ab)b", r"\borders\b", r"\B-", r"\Ga", "(?=a)*b", "(?:^)*b",
    # classes
    r"^\w+$", r"^\W", r"\s", r"^\S+$", r"^\d+$", r"\D", r"\h", r"\v", r"^\N+$", r"a\Rb", "[[:alpha:]]",
    "^[[:^alpha:]]+$", "[[:punct:]]",
    "[[:space:]]", "[[:upper:]]{2}", "[[:word:]]", "[[:cntrl:]]", "[[:blank:]]", "[[:graph:]]", "[[:print:]]",
    "[[:xdigit:]]", "[]]", "[^]a]",
    "[a-]", "[-a]", r"[\]\[]", r"[\w-]", r"[\d.]", r"[^\W\d_]", r"[\x41-\x43]", r"[\b]", r"[\Q]^\E]", r"[\101]",
    "[a^]", "[[]",
    "[é]", "^.$", "^..$", "^[^a]{2}$", "é",
    # quantifiers
    "a{2}", "^a{2,}", "^(ab){2}$", "^a{1,2}b", "a{,2}b", "^a{e}$", "a{", "a{2", "^a*?b", "^a++b", "^(?>a+)b",
    "a??b", "^(a|b)*$",
    # escapes
    r"a\.b", r"\x61\x{62}", r"\141", r"\t", r"\a", r"\cI", r"\\", r"\Qa.b\E", r"\Q[x]", r"\x", r"\#", r"\|",
    r"a\Eb", r"\0",
    # groups and options
    "(a)b\\1b", "(foo)\\1", "(?<n>foo)\\k<n>", "(?P<n>foo)(?P=n)", "(?'n'foo)\\k{n}", r"(foo)\g1", r"(foo)\g{-1}",
    "(?:foo){2}", "a(?i)B",
    "(a(?i)b|C)", "(?-i)orders", "(?i:O)rders", "(?s)a.b", "a.b", "(?x) a b # comment", "(?x:a b)",
    "(?#comment)^a", "(a)?(?(1)b|c)", "x\\|y",
    "(*FAIL)", "a|^$", "|", "()", r"\Kb",
    # in one case only
    "(?-i)^Orders$", "(?-i)^orders", "(?-i:^A)", "(?-i)^[[:lower:]]+$", "(?-i)^[[:upper:]]+$", "(?-i:a(?i)b|c)",
    "(?-i)(a(?i)B|C)",
)  # fmt: skip
WRONG = (
    "(", "a)", "[a", "*", "a**", "a{3,2}", "a\\", "[z-a]", "(?#", r"\y", "[[:foo:]]", r"[\d-z]", "(?<=a+)b",
    r"(a)\2", "a{65536}", "[:alpha:]",
    r"\x{100}", "(?z)", "(?<n>a)(?<n>b)", r"[a-\d]", "(?", r"\k<n>", "^*a", "$+", r"\b*a", r"\A?a", "(?i)*", "a|*",
    "(*", "(?:*)",
)  # fmt: skip


@pytest.fixture(params=[pytest.param("4.3", marks=pytest.mark.service(RABBITMQS["4.3"].name))])
def rabbitmq(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQ]:
    with service_run.address(RABBITMQS[request.param], os.environ).fresh() as vhost:
        for name in NAMES:
            vhost.api("PUT", f"/queues/{vhost.vhost}/{urllib.parse.quote(name, safe='')}", {"durable": True})
        yield vhost


def named(rabbitmq: RabbitMQ, pattern: str) -> set[str]:
    query = urllib.parse.urlencode(
        {"page": 1, "page_size": 500, "name": pattern, "use_regex": "true", "columns": "name"}
    )
    found = rabbitmq.api("GET", f"/queues/{rabbitmq.vhost}?{query}")
    return {item["name"] for item in found["items"]}


def ours(pattern: str, *, caseless: bool) -> set[str]:
    compiled = NamePattern(pattern, caseless=caseless)
    return {name for name in NAMES if compiled.search(name)}


def test_pattern_of_a_list_selects_the_names_that_rabbitmq_selects(rabbitmq: RabbitMQ) -> None:
    differing = {
        pattern: (theirs - found, found - theirs)
        for pattern in PATTERNS
        if (theirs := named(rabbitmq, pattern)) != (found := ours(pattern, caseless=True))
    }
    assert differing == {}


def test_wrong_pattern_is_refused_with_the_text_of_rabbitmq(rabbitmq: RabbitMQ) -> None:
    for pattern in WRONG:
        row = {"pattern": pattern, "definition": {"max-length": 9}}
        with pytest.raises(PolicyError) as ours:
            Policy.from_json(row, rabbitmq.vhost, "p")
        with pytest.raises(ServiceError, match="was refused with 400") as theirs:
            rabbitmq.api("PUT", f"/policies/{rabbitmq.vhost}/p", row)
        reason = json.loads(str(theirs.value).partition("400: ")[2])["reason"]
        assert "".join(ours.value.reason.split()) == "".join(reason.split()), pattern
