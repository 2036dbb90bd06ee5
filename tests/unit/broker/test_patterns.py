"""Patterns of clients are matched as RabbitMQ matches them, and never for long."""

import asyncio
import logging
import time
from itertools import count

import pytest

from redrive.broker.patterns import BUDGET, NameFilter, NamePattern, PatternError
from redrive.broker.pcre import MAX_LENGTH

EVIL = "^(a|aa)+$"  # tries more ways than there are atoms, on a name such as the next
HARD = "a" * 100 + "!"


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        (r"^(?!amq\.).*", "orders", True),
        (r"^(?!amq\.).*", "amq.direct", False),
        ("orders$", "my.orders", True),
        ("[[:alpha:]]+$", "orders1", False),
        (r"^\Qa.b\E$", "a.b", True),
        (r"^\Qa.b\E$", "axb", False),
        ("^a(?i)B$", "ab", True),
        ("^a(?i)B$", "Ab", False),
        ("^(a(?i)b|c)$", "C", True),
        ("^a{e}$", "a{e}", True),
        ("^..$", "é", True),  # octets, not characters
        (r"^\w+$", "é", False),
        ("é", "café", True),
        (r"^\x{61}$", "a", True),
        ("", "anything", True),
    ],
)
def test_pattern_means_what_it_means_to_rabbitmq(pattern: str, name: str, *, is_match: bool) -> None:
    assert NamePattern(pattern).search(name) is is_match


@pytest.mark.parametrize(
    ("pattern", "text", "position"),
    [
        ("(a", "missing closing parenthesis", 2),
        ("äb)", "unmatched closing parenthesis", 4),
        ("a{2,1}", "numbers out of order in {} quantifier", 5),
        ("^*", "quantifier does not follow a repeatable item", 2),
        (r"(?R)", "(?R is not supported by this broker", 3),
        (r"\p{Lu}", r"\p is not supported by this broker", 2),
        ("(*UTF)a", "(*UTF) is not supported by this broker", 6),
    ],
)
def test_wrong_pattern_is_refused_with_text_and_offset(pattern: str, text: str, position: int) -> None:
    with pytest.raises(PatternError) as refused:
        NamePattern(pattern)
    assert (refused.value.text, refused.value.position) == (text, position)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (MAX_LENGTH + 1),
        "(((a{1000}){1000}){1000})",
        "(?:" * 20 + "a" + ")+" * 20,
        "(" * 60 + ")" * 60,
        r"\W" * 1000,
    ],
)
def test_pattern_that_takes_long_to_compile_is_refused(pattern: str) -> None:
    began = time.process_time()
    with pytest.raises(PatternError, match=r"too large|too deeply nested"):
        NamePattern(pattern)
    assert time.process_time() - began < 2


def test_match_beyond_the_time_limit_is_no_match_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pattern = NamePattern(EVIL)
    assert pattern.search("aaa")
    with caplog.at_level(logging.WARNING):
        assert not pattern.search(HARD)
        assert not pattern.search(HARD)  # the result is kept
    assert [EVIL in line for line in caplog.messages] == [True]
    assert "pattern reached its time limit per match" in caplog.text


def test_pattern_that_reaches_its_limit_again_and_again_matches_nothing_any_more() -> None:
    pattern = NamePattern(EVIL)
    names = [
        "a" * length + "!" for length in range(100, 10_100)
    ]  # 20 ms each would be more than three minutes
    began = time.process_time()
    assert not any(pattern.search(name) for name in names)
    assert time.process_time() - began < 10
    assert pattern.is_exhausted
    assert not pattern.search("aaa")


def test_filter_ends_when_the_budget_of_the_request_is_used_up(caplog: pytest.LogCaptureFixture) -> None:
    ticks = count()

    def clock() -> float:
        return next(ticks) * BUDGET.total_seconds() / 10

    assert (
        NamePattern("^q").filter([f"q{number}" for number in range(20)], clock) == [True] * 9 + [False] * 11
    )
    assert "limit_ms=200 unmatched_names=11" in caplog.text


async def test_name_filter_leaves_the_event_loop_free_and_ends_with_the_broker() -> None:
    names = NameFilter()
    assert await names.filter("^Q", ["q1", "x"]) == [True, False]
    with pytest.raises(PatternError):
        await names.filter("(", ["q"])
    waiting = [asyncio.ensure_future(names.filter(f"^(a|aa|{number})+$", [HARD])) for number in range(200)]
    await asyncio.sleep(0)
    names.close()  # those that wait are not worked on any more: 200 times 20 ms would be four seconds
    began = time.process_time()
    assert await asyncio.gather(*waiting) == [[False]] * 200
    assert time.process_time() - began < 2
    assert await names.filter("q", ["q"]) == [False]
