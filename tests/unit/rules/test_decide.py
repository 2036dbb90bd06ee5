"""The decision matrix, cell by cell (A1, A8)."""

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.letters.failure import FailureKind
from redrive.rules import (
    Classification,
    Complete,
    DeadLetterIt,
    Decision,
    Failed,
    GiveBack,
    ManualDeadLetter,
    ManualGiveBack,
    NotRun,
    Outcome,
    RunHandler,
    Succeeded,
    decide,
)

RETRYABLE = Failed(Classification(FailureKind.NETWORK, True, "r", timedelta(seconds=9)), "refused")
FINAL = Failed(Classification(FailureKind.MALFORMED, False, "r"), "not JSON")
MANUAL = ManualDeadLetter("CustomBusinessRule", "policy XYZ")
LATER = ManualGiveBack(timedelta(minutes=10))

# Written out by hand from the requirement, one letter for each delivery count from 0 to limit + 2:
# r run, c complete, g give back, p poison, n non-retryable, x maximum exceeded, m manual dead letter.
TABLE: dict[tuple[str, int], str] = {
    ("not run", 1): "rrpp",
    ("not run", 3): "rrrrpp",
    ("not run", 5): "rrrrrrpp",
    ("succeeded", 1): "cccc",
    ("succeeded", 3): "cccccc",
    ("succeeded", 5): "cccccccc",
    ("retryable", 1): "gxxx",
    ("retryable", 3): "gggxxx",
    ("retryable", 5): "gggggxxx",
    ("final", 1): "nnnn",
    ("final", 3): "nnnnnn",
    ("final", 5): "nnnnnnnn",
    ("manual", 1): "mmmm",
    ("manual", 3): "mmmmmm",
    ("manual", 5): "mmmmmmmm",
    ("later", 1): "llll",
    ("later", 3): "llllll",
    ("later", 5): "llllllll",
}
OUTCOMES: dict[str, Outcome] = {
    "not run": NotRun(),
    "succeeded": Succeeded(),
    "retryable": RETRYABLE,
    "final": FINAL,
    "manual": MANUAL,
    "later": LATER,
}


def meant(letter: str, limit: int) -> Decision:
    decisions: dict[str, Decision] = {
        "r": RunHandler(),
        "c": Complete(),
        "g": GiveBack(timedelta(seconds=9)),
        "l": GiveBack(timedelta(minutes=10)),
        "p": DeadLetterIt("PoisonMessage", f"Message exceeded maximum delivery count of {limit}"),
        "n": DeadLetterIt("NonRetryableError", "not JSON"),
        "x": DeadLetterIt("MaxDeliveryCountExceeded", "refused"),
        "m": DeadLetterIt("CustomBusinessRule", "policy XYZ"),
    }
    return decisions[letter]


@pytest.mark.parametrize(
    ("name", "limit", "count"),
    [(name, limit, count) for name, limit in product(OUTCOMES, (1, 3, 5)) for count in range(limit + 3)],
)
def test_every_outcome_has_the_decision_of_the_table(name: str, limit: int, count: int) -> None:
    assert decide(OUTCOMES[name], count, limit) == meant(TABLE[name, limit][count], limit)


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_broker_that_does_not_count_the_first_delivery_means_one(name: str) -> None:
    for limit in (1, 3):
        assert decide(OUTCOMES[name], None, limit) == decide(OUTCOMES[name], 1, limit)


def test_the_limit_is_three_unless_said_otherwise() -> None:
    assert decide(NotRun(), 3) == RunHandler()
    assert decide(NotRun(), 4) != RunHandler()


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "3", None])
def test_a_limit_that_is_no_count_is_refused(limit: Any) -> None:
    with pytest.raises(SettingsError, match="delivery limit"):
        decide(Succeeded(), 1, limit)


def test_a_failure_without_text_is_described_by_its_rule() -> None:
    found = decide(Failed(Classification(FailureKind.TIMEOUT, False, "type:timeout")), 1)
    assert found == DeadLetterIt("NonRetryableError", "timeout failure (rule type:timeout)")


def test_a_manual_dead_letter_without_a_reason_gets_the_usual_one() -> None:
    assert decide(ManualDeadLetter(" ", "x"), 1) == DeadLetterIt("CustomBusinessRule", "x")


def test_giving_back_into_the_past_is_giving_back_now() -> None:
    assert decide(ManualGiveBack(timedelta(seconds=-5)), 1) == GiveBack(timedelta(0))
    assert decide(ManualGiveBack(), 1) == GiveBack(None)
