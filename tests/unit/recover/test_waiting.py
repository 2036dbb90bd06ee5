"""Letters that wait for a condition cost nothing while they wait, and none is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from redrive.errors import PublishError
from redrive.letters import FailureKind, LetterHead, LetterState, Origin
from redrive.recover.admission import Admission
from redrive.recover.rates import RateLimits
from redrive.rules import Health
from redrive.stores.base import Store
from redrive.stores.gates import Gate, check_gates, gate_name
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock
from redrive.testing.factories import a_failure, a_letter
from redrive.transports.base import Capabilities
from redrive.transports.memory import MemoryTransport
from tests.unit.recover.cycle import World

MINUTE = timedelta(minutes=1)
LETTERS = 2000


class CountingWorld(World):
    """A world on a SQLite file, with letters of a database error that are due."""

    async def add(self, count: int, kind: FailureKind = FailureKind.DATABASE, **fields: Any) -> None:
        fields.setdefault("source", "orders")
        fields.setdefault("strategy", str(self.strategy.strategy_for(kind)))
        await self.store.add(
            [
                a_letter(
                    f"{fields['source']}/{number}",
                    transport="memory",
                    failure=a_failure(kind=kind),
                    **fields,
                )
                for number in range(count)
            ]
        )

    async def hour(self, worker: Any = None) -> None:
        """An hour in which the worker looks every 30 seconds."""
        for _ in range(120):
            await (worker or self.worker).turn()
            self.clock.advance(timedelta(seconds=30))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[CountingWorld]:
    clock = ManualClock()
    store = await SqliteStore.open(tmp_path / "redrive.db", clock=clock)
    world = CountingWorld(store, clock=clock)
    await world.open()
    yield world
    await store.close()


def written(path: Path) -> bytes:
    """What the files of the store contain."""
    return b"".join(file.read_bytes() for file in sorted(path.glob("redrive.db*")) if "shm" not in file.name)


async def test_letters_that_wait_for_an_hour_write_nothing(world: CountingWorld, tmp_path: Path) -> None:
    await world.add(LETTERS)
    world.health = Health(cpu=0.95)
    await world.worker.turn()
    before = written(tmp_path)
    await world.hour()
    assert written(tmp_path) == before
    assert await world.store.journal() == []
    assert await world.store.tally("waits_for") == {"cpu": LETTERS}
    assert world.worker.counts.claimed == 0


async def test_letters_go_when_the_condition_holds(world: CountingWorld) -> None:
    await world.add(25)
    world.health = Health(database_reachable=False)
    await world.hour()
    assert await world.store.tally("waits_for") == {"database": 25}
    world.health = Health()
    assert [await world.worker.turn() for _ in range(4)] == [10, 10, 5, 0]
    assert await world.transport.depth("orders") == 25


async def test_letters_of_an_open_breaker_wait_and_one_goes_as_a_probe(world: CountingWorld) -> None:
    await world.add(50, FailureKind.NETWORK)
    for _ in range(3):
        world.breakers.died("orders")
    assert await world.worker.turn() == 0
    world.clock.advance(MINUTE)
    assert [await world.worker.turn() for _ in range(3)] == [1, 0, 0], "one probe"
    assert await world.store.tally("waits_for") == {"breaker:orders": 49}
    lines = await world.store.journal(limit=1000)
    assert [line.action for line in lines] == ["claim", "sent"]
    world.breakers.succeeded("orders")
    assert await world.worker.turn() == 10


async def test_probe_that_no_letter_used_is_not_lost(world: CountingWorld) -> None:
    for _ in range(3):
        world.breakers.died("orders")
    world.clock.advance(MINUTE)
    assert await world.worker.turn() == 0
    await world.add(5, FailureKind.NETWORK)
    assert await world.worker.turn() == 1


async def test_other_sources_go_on_while_one_waits(world: CountingWorld) -> None:
    await world.add(100, FailureKind.NETWORK, priority=9)
    await world.add(5, FailureKind.NETWORK, source="mail")
    world.broker.make("mail")
    for _ in range(3):
        world.breakers.died("orders")
    assert await world.worker.turn() == 5


async def test_letters_of_a_server_that_is_gone_are_claimed_by_another(
    world: CountingWorld, tmp_path: Path
) -> None:
    await world.add(10)
    world.health = Health(cpu=0.95)
    await world.worker.turn()
    await world.store.close()
    again = await SqliteStore.open(tmp_path / "redrive.db", clock=world.clock)
    assert await again.tally("waits_for") == {"cpu": 10}
    other = CountingWorld(again, clock=world.clock)
    await other.open()
    assert await other.worker.turn() == 10
    await again.close()


async def test_rate_limits_the_letters_of_each_source() -> None:
    world = CountingWorld()
    await world.open()
    world.broker.make("mail")
    rates = RateLimits(world.clock, 2.0, {"mail": 0.5})
    admission = Admission(world.clock, world.strategy, world.breakers, rates=rates)
    worker = world.a_worker("w", admission=admission)
    await world.add(100, FailureKind.NETWORK)
    await world.add(100, FailureKind.NETWORK, source="mail")
    for _ in range(20):
        while await worker.turn():
            pass
        world.clock.advance(timedelta(seconds=1))
    sent = await world.transport.depth("orders")
    assert 40 <= sent <= 50, "two per second, and what the first claim took before the source was known"
    assert 10 <= await world.transport.depth("mail") <= 11


async def test_worker_waits_for_the_next_token_and_not_for_the_next_poll() -> None:
    world = CountingWorld()
    await world.open()
    admission = Admission(
        world.clock, world.strategy, world.breakers, rates=RateLimits(world.clock, None, {"orders": 4.0})
    )
    await world.add(10, FailureKind.NETWORK)
    worker = world.a_worker("w", admission=admission, poll=timedelta(hours=1))
    assert [await worker.turn(), await worker.turn()] == [4, 0]
    assert admission.pause(timedelta(hours=1)) == timedelta(seconds=0.25)
    world.clock.advance(timedelta(seconds=0.25))
    assert await worker.turn() == 1


class GroupTransport(MemoryTransport):
    """A transport with consumer groups, some of which are gone."""

    capabilities = Capabilities(survives_restart=False, broadcast=True)
    gone: ClassVar[set[tuple[str, str]]] = set()
    asked = 0

    async def unreachable(self, consumers: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        self.asked += 1
        return {consumer: "it has no members" for consumer in consumers if consumer in self.gone}


async def test_letters_of_a_consumer_group_that_is_gone_wait_until_it_is_back() -> None:
    world = CountingWorld()
    world.transport = transport = GroupTransport(world.clock, world.broker)
    world.worker = world.a_worker("w")
    await world.open()
    for group in ("billing", "audit"):
        origin = Origin(transport="memory", source="orders", consumer_group=group)
        lot = [
            a_letter(f"{group}/{n}", origin=origin, failure=a_failure(kind=FailureKind.NETWORK))
            for n in range(20)
        ]
        await world.store.add(lot)
    transport.gone.add(("orders", "billing"))
    try:
        for _ in range(10):
            await world.worker.turn()
        assert await transport.depth("orders") == 20, "the other group is not concerned"
        lines = len(await world.store.journal(limit=1000))
        asked = transport.asked
        await world.hour()
        assert len(await world.store.journal(limit=1000)) == lines
        assert await world.store.tally("waits_for") == {"consumer:orders/billing": 20}
        assert 55 <= transport.asked - asked <= 61, "once per `recheck_interval`"
        assert world.worker.undeliverable == {"orders": "it has no members"}
    finally:
        transport.gone.clear()
    world.clock.advance(MINUTE)
    assert [await world.worker.turn() for _ in range(3)] == [10, 10, 0]
    assert world.worker.undeliverable == {}


async def test_source_that_refuses_redrives_is_tried_with_single_letters(world: CountingWorld) -> None:
    await world.add(500, FailureKind.NETWORK)
    world.broker.refuse("orders", "disk full")
    await world.hour()
    lines = await world.store.journal(limit=10_000)
    assert len(lines) <= 2 * (10 + 130), "ten letters, then one for each try"
    world.broker.permit("orders")
    world.clock.advance(MINUTE)
    assert await world.worker.turn() == 1
    assert await world.worker.turn() == 10


async def test_letter_that_is_always_refused_does_not_hold_up_its_source(world: CountingWorld) -> None:
    await world.add(30, FailureKind.NETWORK)
    (oldest, *_) = (await world.store.page(limit=100)).heads[::-1]
    publish = world.transport.publish

    async def refusing(messages: Any) -> list[Exception | None]:
        outcomes = list(await publish([one for one in messages if not _is(one, oldest)]))
        answers = iter(outcomes)
        return [PublishError("too large") if _is(one, oldest) else next(answers) for one in messages]

    world.transport.publish = refusing  # type: ignore[method-assign, assignment]
    await world.hour()
    assert await world.transport.depth("orders") == 29


async def test_strategy_that_became_conditional_since_it_was_stored_is_held_back_too() -> None:
    world = CountingWorld()
    await world.open()
    await world.add(3, strategy="immediate")
    world.health = Health(cpu=0.95)
    assert await world.worker.turn() == 3
    heads = (await world.store.page()).heads
    assert {(head.state, head.strategy) for head in heads} == {(LetterState.PENDING, "conditional")}
    lines = len(await world.store.journal())
    await world.hour()
    assert len(await world.store.journal()) == lines
    assert await world.store.tally("waits_for") == {"cpu": 3}


async def test_workers_of_one_process_send_one_probe_together() -> None:
    world = CountingWorld()
    await world.open()
    await world.add(20, FailureKind.NETWORK)
    for _ in range(3):
        world.breakers.died("orders")
    world.clock.advance(MINUTE)
    admission = Admission(world.clock, world.strategy, world.breakers)
    workers = [world.a_worker(f"w{number}", admission=admission) for number in range(4)]
    assert sorted(await asyncio.gather(*(worker.turn() for worker in workers))) == [0, 0, 0, 1]


class BrokenStore:
    """A store whose claims fail."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *_: Any, **_options: Any) -> list[LetterHead]:
        raise OSError


async def test_reservation_is_returned_when_the_claim_fails() -> None:
    world = CountingWorld()
    await world.open()
    await world.add(20, FailureKind.NETWORK)
    for _ in range(3):
        world.breakers.died("orders")
    world.clock.advance(MINUTE)
    admission = Admission(world.clock, world.strategy, world.breakers)
    worker = world.a_worker("w", admission=admission)
    worker._store = BrokenStore(world.store)
    with pytest.raises(OSError):
        await worker.turn()
    worker._store = world.store
    assert await worker.turn() == 1


def test_gate_of_a_long_name_is_short_and_distinct() -> None:
    names = {gate_name("breaker", "x" * 300 + end) for end in "ab"}
    assert len(names) == 2
    check_gates([Gate(name=name) for name in names])


def _is(publication: Any, head: LetterHead) -> bool:
    return bool(publication.message.message_id == head.message_id)
