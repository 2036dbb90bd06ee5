"""The health check of a replay looks at its targets, and names value, limit and setting of each problem."""

from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import BrokerRefusedError, SourceMissingError
from redrive.replay.health import find_problems
from redrive.replay.options import ReplayOptions
from redrive.settings import ReplaySettings
from redrive.stores.changes import Resolve, Retry, Settlement
from redrive.testing import a_failure, letters
from redrive.transports.base import TargetState
from redrive.transports.redriving import SendOptions
from tests.unit.recover.cycle import World

FINE = TargetState(depth=0, consumers=1)


class Targets:
    """Says what a test wants it to say of each target."""

    def __init__(self, **states: TargetState | Exception) -> None:
        self.states = states
        self.asked: list[tuple[str, str]] = []

    async def target_state(self, source: str, group: str = "") -> TargetState:
        self.asked.append((source, group))
        state = self.states.get(source, FINE)
        if isinstance(state, Exception):
            raise state
        return state


async def problems(
    world: World, targets: Targets, options: ReplayOptions | None = None, **limits: Any
) -> list[str]:
    return await find_problems(
        world.store,
        targets,  # type: ignore[arg-type]  # all that is asked of a transport
        await world.heads(),
        options or ReplayOptions(),
        ReplaySettings(**limits),
        now=world.clock.now(),
    )


async def a_world(count: int = 12, **fields: Any) -> World:
    world = World()
    await world.open()
    await world.store.add(letters(count, transport="memory", **fields))
    return world


async def test_health_check_finds_nothing_wrong_with_a_target_that_is_consumed() -> None:
    world, targets = await a_world(), Targets()
    assert await problems(world, targets) == []
    assert targets.asked == [("orders", "")], "each target once"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (
            TargetState(depth=12_000, consumers=1),
            "orders: 12,000 messages waiting, limit 10,000, replay.max_depth",
        ),
        (TargetState(depth=0, consumers=0), "orders: 0 consumers, at least 1, replay.min_consumers"),
        (TargetState(depth=0, alarm="low on memory"), "the broker blocks publishers: low on memory"),
    ],
)
async def test_health_check_names_value_limit_and_setting(state: TargetState, says: str) -> None:
    assert await problems(await a_world(), Targets(orders=state)) == [says]


@pytest.mark.parametrize(
    "state", [TargetState(depth=10_000, consumers=1), TargetState(), BrokerRefusedError("no permission")]
)
async def test_health_check_takes_what_it_cannot_see_for_healthy(state: TargetState | Exception) -> None:
    assert await problems(await a_world(), Targets(orders=state)) == []


async def test_health_check_has_limits_that_can_be_changed() -> None:
    targets = Targets(orders=TargetState(depth=12_000, consumers=0))
    assert await problems(await a_world(), targets, max_depth=20_000, min_consumers=0) == []


async def test_health_check_of_a_missing_target_is_an_error() -> None:
    with pytest.raises(SourceMissingError):
        await problems(await a_world(), Targets(orders=SourceMissingError("no queue 'orders'")))


@pytest.mark.parametrize("sending", [SendOptions(target="fixed"), SendOptions(redirects={"orders": "fixed"})])
async def test_health_check_looks_at_the_target_that_was_chosen(sending: SendOptions) -> None:
    world, targets = await a_world(), Targets(fixed=TargetState(depth=0, consumers=0))
    assert await problems(world, targets, ReplayOptions(sending=sending)) == [
        "fixed: 0 consumers, at least 1, replay.min_consumers"
    ]
    assert targets.asked == [("fixed", "")]


async def redriven(world: World, died: int, resolved: int) -> None:
    heads = (await world.heads())[: died + resolved]
    held = await world.store.take([head.id for head in heads], "worker-1")
    failure = a_failure("boom", at=world.clock.now())
    again = Retry(at=world.clock.now(), failure=failure)
    await world.store.settle([Settlement(head.claim_token, again) for head in held[:died]])
    await world.store.settle([Settlement(head.claim_token, Resolve()) for head in held[died:]])


@pytest.mark.parametrize(
    ("died", "resolved", "is_refused"), [(4, 0, False), (5, 0, True), (6, 4, False), (7, 4, True)]
)
async def test_health_check_fails_if_most_recent_redrives_died_again(
    died: int, resolved: int, *, is_refused: bool
) -> None:
    world = await a_world(12)
    await redriven(world, died, resolved)
    says = (
        f"orders: {died} of {died + resolved} redrives failed again in the last 15m, limit 60 %, "
        "replay.max_failure_rate; --canary 5 tries a few first"
    )
    assert await problems(world, Targets()) == ([says] if is_refused else [])
    assert await problems(world, Targets(), ReplayOptions(canary=5)) == []
    world.clock.advance(timedelta(minutes=16))
    assert await problems(world, Targets()) == []
