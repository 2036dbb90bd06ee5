"""Error text leaves the process without its secrets and with everything else."""

import ast
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from redrive.errors import SettingsError
from redrive.letters import redact
from redrive.letters.redact import MAX_TEXT_CHARS, TRUNCATED, WHOLE, Found, Redactor
from redrive.letters.sensitive import KINDS, RULES, Rule

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MARKER = re.compile(r"\[REDACTED:([a-z0-9_\-]+)\]")
INVISIBLE = {"{zw}": "\u200b", "{zwj}": "\u200d", "{shy}": "\u00ad"}


def fill(text: str) -> str:
    """Made-up tokens are put together here, so that no file holds anything that looks like a live one."""
    text = re.sub(r"\{x(\d+)\}", lambda m: ("Example0Fake1" * 20)[: int(m[1])], text)
    text = re.sub(r"\{h(\d+)\}", lambda m: ("0a1b2c3d4e5f6789" * 20)[: int(m[1])], text)
    for name, char in INVISIBLE.items():
        text = text.replace(name, char)
    return text.replace("⏎", "\n")


def lines(name: str) -> list[str]:
    text = (HERE / "corpus" / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("# ")]


SECRETS = [tuple(line.split(" :: ", 1)) for line in lines("secrets.txt")]
DASHES = lines("harmless.txt").index("---")
HARMLESS, HARMLESS_IN_PARTS = (
    [fill(line) for line in part]
    for part in (lines("harmless.txt")[:DASHES], lines("harmless.txt")[DASHES + 1 :])
)


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor()


@pytest.fixture(scope="module")
def whole() -> Redactor:
    return Redactor(mode="text")


@pytest.mark.parametrize(("kind", "marked"), SECRETS, ids=[text for _, text in SECRETS])
def test_a_planted_secret_goes_and_everything_around_it_stays(
    redactor: Redactor, kind: str, marked: str
) -> None:
    outside = re.split(r"⟦.*?⟧", fill(marked), flags=re.DOTALL)
    text = re.sub(r"[⟦⟧]", "", fill(marked))

    cleaned = redactor.clean(text)

    assert MARKER.split(cleaned)[::2] == outside
    assert kind in MARKER.findall(cleaned)


@pytest.mark.parametrize("marked", [text for _, text in SECRETS])
def test_a_planted_secret_blanks_the_whole_text_in_the_words_of_the_seed(
    whole: Redactor, marked: str
) -> None:
    text = re.sub(r"[⟦⟧]", "", fill(marked))
    assert whole.clean_error("ConnectionError", text) == (
        "ConnectionError: [REDACTED - potentially sensitive data]"
    )


@pytest.mark.parametrize("text", HARMLESS + HARMLESS_IN_PARTS)
def test_harmless_text_stays_as_it_is(redactor: Redactor, text: str) -> None:
    assert redactor.find(text) == []
    assert redactor.clean_error("ValueError", text) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays_as_it_is_in_whole_mode(whole: Redactor, text: str) -> None:
    assert whole.clean_error("ValueError", text) == text


def test_the_corpus_is_large_and_names_every_kind(redactor: Redactor) -> None:
    caught = sum(bool(redactor.find(re.sub(r"[⟦⟧]", "", fill(text)))) for _, text in SECRETS)
    spared = sum(redactor.clean(text) == text for text in HARMLESS + HARMLESS_IN_PARTS)
    harmless = len(HARMLESS) + len(HARMLESS_IN_PARTS)
    print(f"\nsecrets caught: {caught}/{len(SECRETS)}, harmless lines untouched: {spared}/{harmless}")  # noqa: T201
    assert len(SECRETS) >= 200
    assert harmless >= 200
    assert {kind for kind, _ in SECRETS} == set(KINDS)


def test_a_secret_is_found_with_its_kind_and_place(redactor: Redactor) -> None:
    text = "password=hunter2 for bob@example.com"
    assert redactor.find(text) == [Found("password", 9, 16), Found("email", 21, 36)]
    assert redactor.clean(text) == "password=[REDACTED:password] for [REDACTED:email]"


def test_text_without_any_secret_is_returned_as_the_same_object(redactor: Redactor) -> None:
    text = "Database connection timeout after 30s"
    assert redactor.clean(text) is text


# --- whole mode ---


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgres://db-1/orders",
        "cannot reach mongodb://db-1/orders",
        "cannot reach mysql://db-1/orders",
        "cannot reach redis://cache-1/0",
        "bad certificate -----BEGIN CERTIFICATE-----",
        "private_key could not be read",
        "password: swordfish",
        "secret=swordfish",
        "the token abc123 was refused",
        "api_key=EXAMPLE",
        "bearer abc123 was refused",
        "credential=EXAMPLE",
    ],
)
def test_whole_mode_knows_the_patterns_of_the_seed(whole: Redactor, text: str) -> None:
    assert whole.clean_error("OSError", text) == "OSError: [REDACTED - potentially sensitive data]"
    assert whole.clean(text) == WHOLE
    assert whole.clean_error("OSError", WHOLE) == WHOLE


# --- options ---


def test_an_extra_pattern_hides_its_match_or_its_group_named_secret() -> None:
    redactor = Redactor(patterns={"ward": r"ward \d+", "chart": r"chart=(?P<secret>\w+)"})
    assert redactor.clean("ward 3, chart=X9") == "[REDACTED:ward], chart=[REDACTED:chart]"


def test_terms_are_whole_words_in_any_case() -> None:
    redactor = Redactor(terms=["Project Zebra", "Müller"])
    assert (
        redactor.clean("project zebra of MÜLLER, Müllerin") == "[REDACTED:term] of [REDACTED:term], Müllerin"
    )


def test_what_is_to_be_kept_is_kept() -> None:
    redactor = Redactor(allow=["support@example.com", "guest"])
    text = "mail support@example.com or bob@example.com, amqp://guest:guest@mq-1, password=guest12"
    assert redactor.clean(text) == (
        "mail support@example.com or [REDACTED:email], amqp://guest:guest@mq-1, password=[REDACTED:password]"
    )
    assert Redactor(mode="text", allow=["guest"]).clean("password=guest") == "password=guest"


def test_a_kind_can_be_switched_off() -> None:
    redactor = Redactor(disabled=["email", "phone"])
    text = "sms to +442079460958, mail to bob@example.com"
    assert redactor.clean(text) == text


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Redactor(patterns={"ward": "("}), "'ward' is not a regular expression"),
        (lambda: Redactor(patterns={"ward": r"\d*"}), "'ward' matches the empty text"),
        (lambda: Redactor(patterns={"ward": r"\b"}), "'ward' matches the empty text"),
        (lambda: Redactor(patterns={"Ward 3": r"\d"}), "kind 'Ward 3' must be lower-case"),
        (lambda: Redactor(terms=["a", " "]), "terms must be a list of words"),
        (lambda: Redactor(terms="word"), "terms must be a list of words"),
        (lambda: Redactor(allow=[""]), "allow must be a list of words"),
        (lambda: Redactor(disabled=["emial"]), "kind 'emial' is unknown; use one of"),
        (lambda: Redactor(mode="some"), "mode 'some' is unknown"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_option_is_refused_in_one_line(build: Callable[[], Redactor], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_extra_pattern_that_can_match_nothing_in_some_places_does_no_harm() -> None:
    assert Redactor(patterns={"x": "(?=q)"}).clean("a q qq") == "a q qq"


def test_a_redactor_is_a_frozen_value(redactor: Redactor) -> None:
    assert redactor == Redactor()
    assert hash(redactor) == hash(Redactor())
    with pytest.raises(AttributeError):
        redactor.mode = "text"  # type: ignore[misc]


# --- it never raises, never changes its mind and never takes long ---

PIECES = [re.sub(r"[⟦⟧]", "", fill(text)) for _, text in SECRETS] + HARMLESS + HARMLESS_IN_PARTS
scraps = st.sampled_from(PIECES).flatmap(lambda t: st.slices(len(t)).map(lambda cut: t[cut.start : cut.stop]))
texts = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=()), max_size=20),
        st.sampled_from(PIECES),
        scraps,
        st.sampled_from(["[REDACTED:email]", "[REDACTED:", "]", WHOLE, "\x00", "\ud800"]),
        st.sampled_from(['"', "\\", "=", ": ", "@", "://", "-", "'"]),
    ),
    max_size=6,
).map("".join)


REDACTORS = (
    Redactor(),
    Redactor(mode="text"),
    Redactor(terms=["data", "redacted"], patterns={"x": "[a-c]=?"}),
)


@given(texts)
@settings(max_examples=250, deadline=None)
def test_cleaning_twice_is_the_same_as_cleaning_once(text: str) -> None:
    for redactor in REDACTORS:
        cleaned = redactor.clean(text)
        assert redactor.clean(cleaned) == cleaned


@given(texts)
@settings(max_examples=150, deadline=None)
def test_findings_are_in_order_apart_and_not_empty(text: str) -> None:
    at = 0
    for kind, start, end in REDACTORS[0].find(text):
        assert kind in KINDS
        assert at <= start < end <= len(text)
        at = end


def test_text_that_never_settles_is_given_up_as_a_whole() -> None:
    """Each pass bares the next letter: `a` is hidden only at the start or behind a marker."""
    redactor = Redactor(patterns={"a": r"(?<![a-z])a"})
    assert redactor.clean_error("ValueError", "a" * 50) == f"ValueError: {WHOLE}"
    assert redactor.clean("aaa") == "[REDACTED:a]" * 3


ADVERSARIES = {
    "one letter": "a",
    "digits": "4",
    "digits and blanks": "4 ",
    "at signs": "a@",
    "dotted address": "a@b.c",
    "dots behind one address": ".b1",
    "urls": "a://:a",
    "url users": "://a:",
    "colons": ":",
    "open quotes": 'password="',
    "quotes and backslashes": '\\"',
    "password keys": "password",
    "password assignments": "password=a,",
    "commas": "password=,,,,,",
    "nested names": "pass_word-",
    "token dots": "eyJaaaaaa.",
    "half keys": "-----BEGIN PRIVATE KEY",
    "dashes": "-",
    "blanks": "password ",
    "blank runs": " ",
    "brackets": "<password ",
    "markers": "[REDACTED:email]",
    "half markers": "[REDACTED:",
    "flags": "--a-a-a-a-password ",
    "names": "patient Ab Ab Ab ",
    "capital words": "Ab ",
    "plus digits": "+1 ",
    "ibans": "DE89 3704 ",
    "codes": "diagnosis E11.9, ",
    "basic": "basic aaaa",
    "cookies": "cookie: a=",
    "headers": "authorization: digest ",
}
PRIMER = " pass pwd secret token key auth credential :// @ -- cookie bearer basic eyJ patient nhs icd "
PRIMER += "1234567890 bob@example.com "


@pytest.mark.timeout(8)
@pytest.mark.parametrize("unit", ADVERSARIES.values(), ids=ADVERSARIES)
def test_a_text_made_to_be_slow_is_not(redactor: Redactor, unit: str) -> None:
    """A fifth of a second here; one pattern with quadratic work takes a quarter of a minute."""
    text = PRIMER + unit * (60_000 // len(unit)) + PRIMER
    assert redactor.find(text)


def adversarial_texts(rule: Rule) -> Iterator[str]:
    """Texts that a pattern might read again and again: its stems with what may surround them."""
    for stem in rule.stems[:2] or ("4", "+1 ", "DE89 3704 "):
        for before, after in SURROUNDINGS:
            unit = f"{before}{stem}{after}"
            yield unit * (12_000 // len(unit))
            yield unit + after * (12_000 // len(after or unit))


SURROUNDINGS = (
    ("", ""),
    ("", " "),
    ("", " a"),
    ("", "='"),
    ("'", "', '"),
    ('"', '":"'),
    ("://", ":a"),
    ("<", ">"),
    ('name="', '"\n\n'),
    ("A1+/" * 5 + "\n", "\n" + "A1+/" * 5),
    ("", "%22%3A%22"),
    ("", " -p"),
    ("", " 1"),
    ("", ": Ab Ab "),
    ("(", "("),
    ("", "$a"),
    ("", "a.b-c_"),
    ("x", "\\"),
)


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.kind}-{at}" for at, rule in enumerate(RULES)])
def test_a_pattern_reads_each_text_in_linear_time(rule: Rule) -> None:
    """Quadratic work on 12,000 characters is about a second of CPU time; a linear pattern needs a few milliseconds."""
    pattern = re.compile(rule.pattern, re.IGNORECASE)
    for text in adversarial_texts(rule):
        began = time.thread_time()
        for match in pattern.finditer(text):
            if match["s"] and rule.check:
                rule.check(match)
        assert time.thread_time() - began < 0.5, text[:80]


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES if rule.reach is not None],
    ids=[f"{rule.kind}-{at}" for at, rule in enumerate(RULES) if rule.reach is not None],
)
def test_a_pattern_matches_within_its_reach_of_a_stem_only(rule: Rule) -> None:
    ready = redact._ready(rule)
    for text in [*PIECES, *(text[:2000] for text in adversarial_texts(rule))]:
        lower = redact.zeroed(text).lower()
        if len(lower) == len(text):
            near = redact._near_stems(ready, rule.reach or 0, text, lower, (0, len(text)))
            everywhere = ready.pattern.finditer(text) if any(stem in lower for stem in ready.stems) else ()
            assert [match.span("s") for match in near] == [match.span("s") for match in everywhere], text


# --- long texts ---


@pytest.mark.parametrize("unit", ["a", "a@b.c", 'password="', "a://:a", "\x00\ud800", "pwd=a ", "\u200b"])
def test_a_long_text_is_cut_and_cleaned_once(redactor: Redactor, unit: str) -> None:
    cleaned = redactor.clean(unit * (1_000_000 // len(unit)))
    assert cleaned.endswith(TRUNCATED)
    assert len(cleaned) <= MAX_TEXT_CHARS
    assert redactor.clean(cleaned) == cleaned


def test_a_text_of_the_limit_stays_and_one_character_more_is_cut(redactor: Redactor) -> None:
    text = ("word " * MAX_TEXT_CHARS)[:MAX_TEXT_CHARS]
    assert redactor.clean(text) is text
    cut = redactor.clean(text + "w")
    assert cut.endswith(TRUNCATED)
    assert text.startswith(cut.removesuffix(TRUNCATED))
    assert len(cut) > MAX_TEXT_CHARS - 2000


UNTERMINATED = {
    "quoted": ('password="', "hunter2"),
    "JSON": ('{"user":"bob","password":"', "hunter2"),
    "bare": ("password=", "hunter2"),
    "URL": ("cannot reach amqp://bob:", "hunter2"),
    "XML": ("<login><password>", "hunter2"),
    "Oracle": ("jdbc:oracle:thin:bob/", "hunter2"),
    "private key": ("-----BEGIN PRIVATE KEY-----\n", "hunter2/ABCDEFGHIJ\n"),
    "token": ("bearer ", "hunter2"),
    "encoded": ("%22password%22%3A%22", "hunter2"),
}


@pytest.mark.parametrize(("start", "unit"), UNTERMINATED.values(), ids=UNTERMINATED)
def test_a_secret_whose_end_was_cut_off_is_hidden_to_the_end(
    redactor: Redactor, start: str, unit: str
) -> None:
    text = "x " * 10_000 + start + unit * 20_000 + '"@</password>'
    cleaned = redactor.clean(text)
    assert "hunter2" not in cleaned
    assert "[REDACTED:" in cleaned
    assert cleaned.endswith(TRUNCATED)


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("", "4111 1111 1111 1111"),
        ("", "jane.doe@mail.example.com"),
        ("password=", "hunter2"),
        ("", "+1 555 010 0199"),
    ],
)
def test_a_secret_across_the_cut_leaves_nothing_behind(redactor: Redactor, key: str, secret: str) -> None:
    pieces = {key + secret[:size] for size in range(1 if key else 6, len(secret) + 1)}
    for start in range(MAX_TEXT_CHARS - 1040, MAX_TEXT_CHARS - 1020, 3):
        text = ("word " * MAX_TEXT_CHARS)[: start - 1] + " " + key + secret + " word" * 1000
        kept = redactor.clean(text).removesuffix(TRUNCATED)
        assert not any(kept.endswith(piece) for piece in pieces)


def test_a_text_of_a_megabyte_costs_no_more_than_one_of_64_kilobytes(redactor: Redactor) -> None:
    unit = "password=hunter2 for bob@example.com at https://a:b@example.com/ 4111 1111 1111 1111\n"
    began = time.thread_time()
    redactor.clean(unit * (65_000 // len(unit)))
    short = time.thread_time() - began
    began = time.thread_time()
    redactor.clean(unit * (1_000_000 // len(unit)))
    assert time.thread_time() - began < 5 * short + 0.1


def test_any_bytes_read_as_text_are_cleaned(redactor: Redactor) -> None:
    noise = random.Random(7).randbytes(100_000)
    for text in (noise.decode("latin-1"), noise.decode("utf-8", "surrogateescape"), "", "\x00"):
        assert isinstance(redactor.clean(text), str)


# --- this project's own messages ---


def own_messages() -> list[str]:
    """Every text that redrive raises with, the values replaced by harmless ones."""
    found = []
    for path in sorted((ROOT / "src" / "redrive").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message = node.exc.args[0]
                if isinstance(message, ast.Constant) and isinstance(message.value, str):
                    found.append(message.value)
                elif isinstance(message, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "order-17" for p in message.values)
                    found.append("".join(map(str, parts)))
    return found


@pytest.mark.parametrize("mode", ["secret", "text"])
def test_no_message_of_this_project_is_touched(mode: str) -> None:
    redactor = Redactor(mode=mode)  # type: ignore[arg-type]
    # What tells how to write a broker's URL is for whoever starts a program; it never becomes a dead letter's text.
    messages = [text for text in own_messages() if "://" not in text]
    assert messages
    assert [text for text in messages if redactor.clean(text) != text] == []


def test_the_reference_page_names_every_kind_and_option() -> None:
    page = (ROOT / "docs" / "reference" / "redaction.md").read_text(encoding="utf-8")
    for name in (*KINDS, "secret", "text", "patterns", "terms", "allow", "disabled", WHOLE):
        assert f"`{name}`" in page, name


def test_a_stem_is_lower_case_or_means_its_case() -> None:
    exact = {stem for rule in RULES for stem in rule.stems if stem != stem.lower()}
    assert exact == {"AC", "SK"}
    assert all(rule.needs for rule in RULES if not exact.isdisjoint(rule.stems))


@given(
    lines=st.lists(
        st.sampled_from(
            [
                "Traceback (most recent call last):",
                "order 4111 1111 1111 1111 was refused",
                "call 212-555-0142 or 078-05-1120",
                "password=hunter2hunter2",
                "AC0123456789abcdef0123456789abcdef",
                "GB82 WEST 1234 5698 7654 32",
                "password:",
                "hunter2",
                "[REDACTED:token] 4111-1111-1111-1111",
                "",
            ]
        ),
        max_size=8,
    )
)
def test_what_is_remembered_of_lines_changes_no_finding(lines: list[str]) -> None:
    text = "\n".join(lines)
    remembers = Redactor()
    for line in lines:
        remembers.clean(line)
    assert remembers.find(text) == Redactor().find(text)


def test_only_harmless_lines_are_remembered_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_LINES", 3)
    redactor = Redactor()
    for text in ("password=hunter2", "one", "two", "three", "x" * 500):
        redactor.clean(text)
    assert redactor._harmless == {"one", "two", "three"}
    redactor.clean("four")
    assert redactor._harmless == {"four"}


def test_terms_and_patterns_are_found_in_lines_that_were_remembered() -> None:
    redactor = Redactor(terms=["blue"], patterns={"order": r"order-\d+"})
    for text in ("blue order-17", "blue order-17", "blue order-18"):
        assert redactor.clean(text) == "[REDACTED:term] [REDACTED:order]"


def test_redactors_that_hide_the_same_have_the_same_name_and_others_have_not() -> None:
    different = [
        Redactor(),
        Redactor(mode="text"),
        Redactor(patterns={"order": r"order-\d+"}),
        Redactor(terms=["shop"]),
        Redactor(allow=["shop"]),
        Redactor(disabled=["card"]),
    ]
    assert len({redactor.name for redactor in different}) == len(different)
    assert Redactor(terms=["shop"]).name == Redactor(terms=["shop"]).name
