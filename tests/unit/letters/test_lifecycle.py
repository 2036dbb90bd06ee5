"""The state machine is the seed's, no more and no less, and the documentation draws it (E1)."""

import re
from itertools import product
from pathlib import Path

import pytest

from redrive.errors import LifecycleError
from redrive.letters.lifecycle import TABLE, LetterState, Step, after, diagram, states_with

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "lifecycle.md"

# Written down from the diagram of seed 004, apart from the code: its arrows, with our word for each.
SEED = """
    [*]            --> dlq_pending     add       Max Retries Exceeded
    dlq_pending    --> dlq_processing  claim     Worker Picks Up
    dlq_pending    --> dlq_pending     schedule  Replay Scheduled
    dlq_processing --> dlq_resolved    resolve   Retry Success
    dlq_processing --> dlq_pending     retry     Retry Failed (Count < 5)
    dlq_processing --> dlq_failed      exhaust   Retry Failed (Count >= 5)
    dlq_processing --> dlq_manual      park      Requires Human Review
    dlq_manual     --> dlq_processing  replay    Manual Replay
    dlq_manual     --> dlq_archived    discard   Manual Discard
    dlq_failed     --> dlq_archived    archive   Auto-Archive (90 days)
    dlq_resolved   --> [*]             delete    Retention Policy (30 days)
    dlq_archived   --> [*]             delete    Permanent Archive
"""


def state(name: str) -> LetterState | None:
    return None if name == "[*]" else LetterState(name)


ARROWS = {
    (state(source), Step(word)): state(target)
    for source, target, word in re.findall(r"^\s*(\S+)\s+--> (\S+)\s+(\w+)", SEED, re.MULTILINE)
}
EVERY_PAIR = list(product([None, *LetterState], Step))


def test_the_independent_table_was_read_whole() -> None:
    assert len(ARROWS) == len(SEED.strip().splitlines()) == 12


@pytest.mark.parametrize(("before", "step"), EVERY_PAIR)
def test_each_state_takes_the_steps_of_the_seed_and_no_other(before: LetterState | None, step: Step) -> None:
    if (before, step) in ARROWS:
        assert after(before, step) is ARROWS[before, step]
        return
    with pytest.raises(LifecycleError) as refused:
        after(before, step)
    message = str(refused.value)
    possible = {legal.value for known, legal in ARROWS if known is before}
    assert "\n" not in message
    assert f"cannot {step}" in message
    assert set(message.split("; it can ")[1].split(" or ")) == possible
    assert (before or "does not exist") in message


def test_the_table_is_the_seeds() -> None:
    assert dict(TABLE) == ARROWS


def test_the_states_are_spelled_as_the_seed_spells_them() -> None:
    assert set(LetterState) == {
        "dlq_pending", "dlq_processing", "dlq_manual", "dlq_resolved", "dlq_failed", "dlq_archived",
    }  # fmt: skip


def test_every_state_can_be_reached_and_left() -> None:
    reached: set[LetterState | None] = {None}
    for _ in ARROWS:
        reached |= {TABLE[before, step] for before, step in TABLE if before in reached}
    assert reached == {None, *LetterState}
    assert {before for before, _ in TABLE} == {None, *LetterState}


@pytest.mark.parametrize("step", Step)
def test_the_states_with_a_step_are_those_that_take_it(step: Step) -> None:
    assert set(states_with(step)) == {
        before for before, legal in ARROWS if legal is step and before is not None
    }


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TABLE[LetterState.RESOLVED, Step.CLAIM] = LetterState.PENDING  # type: ignore[index]


def test_the_diagram_draws_each_arrow_once() -> None:
    head, *lines = diagram().splitlines()
    assert head == "stateDiagram-v2"
    drawn = [
        (state(found[1]), Step(found[3]), state(found[2]))
        for line in lines
        if (found := re.fullmatch(r"    (\S+) --> (\S+): (\w+) \([^()]+\)", line))
    ]
    assert len(drawn) == len(lines) == len(ARROWS)
    assert {(before, step): target for before, step, target in drawn} == ARROWS


def test_the_diagram_in_the_documentation_is_not_stale() -> None:
    assert PAGE.exists(), f"{PAGE} is missing: write it, with the diagram in a fenced mermaid block"
    blocks = re.findall(r"^```mermaid\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    states = [block.strip() for block in blocks if block.startswith("stateDiagram")]
    assert states == [diagram()], f"put the text of redrive.letters.lifecycle.diagram() into {PAGE}"
