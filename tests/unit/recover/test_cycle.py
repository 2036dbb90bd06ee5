"""The way back, walked in every direction of seed 004's diagrams, on a clock turned by hand."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from redrive.letters import Headers, LetterState, Message
from redrive.letters.redrive import redrive_of
from redrive.rules import Health, StrategyOptions
from redrive.stores.changes import Resolve, Settlement
from redrive.testing import ManualClock
from redrive.transports import Publication, Source, Target
from tests.unit.recover.cycle import World

MINUTE = timedelta(minutes=1)


class Flaky:
    """A handler that fails as long as it is told to."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.seen: list[bytes] = []

    async def __call__(self, body: bytes) -> None:
        self.seen.append(body)
        if self.error is not None:
            raise self.error


NETWORK = ConnectionResetError("connection reset by peer")


async def test_a_transient_failure_is_sent_back_after_a_minute_and_resolved_by_its_verdict() -> None:
    world, handler = World(), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one")
        await world.collect()
        letter = await world.the_letter()
        assert (letter.state, letter.strategy, letter.source) == (LetterState.PENDING, "immediate", "orders")
        assert await world.worker.turn() == 0, "it is not due yet"
        world.clock.advance(MINUTE)
        handler.error = None
        assert await world.worker.turn() == 1
        assert (await world.the_letter()).state is LetterState.PROCESSING
        await world.collect()
    resolved = await world.the_letter()
    assert resolved.state is LetterState.RESOLVED
    assert not resolved.presumed
    assert handler.seen == [b"one", b"one"]
    (whole,) = await world.store.load([resolved.id])
    (attempt,) = whole.attempts
    assert (attempt.number, attempt.strategy, attempt.result) == (1, "immediate", "resolved")


async def test_five_cycles_are_one_record_with_five_attempts_that_has_failed() -> None:
    world, handler = World(), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one", headers=Headers({"x-tenant": "north"}))
        for cycle in range(5):
            await world.collect()
            letter = await world.the_letter()
            assert (letter.state, letter.dlq_retry_count) == (LetterState.PENDING, cycle)
            world.clock.advance(2 * timedelta(hours=1))
            assert await world.worker.turn() == 1
        await world.collect()
    letter = await world.the_letter()
    assert (letter.state, letter.dlq_retry_count) == (LetterState.FAILED, 5)
    (whole,) = await world.store.load([letter.id])
    assert [attempt.result for attempt in whole.attempts] == ["failed"] * 5
    assert whole.message.headers == Headers({"x-tenant": "north"}), "no marks pile up"
    assert len(handler.seen) == 6
    assert world.collector.counts.exhausted == 1


async def test_the_waits_of_the_immediate_strategy_grow() -> None:
    world, handler = World(), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one")
        for minutes in (1, 5, 15, 30, 60):
            await world.collect()
            world.clock.advance(minutes * MINUTE - timedelta(seconds=1))
            assert await world.worker.turn() == 0
            world.clock.advance(timedelta(seconds=1))
            assert await world.worker.turn() == 1, minutes


@pytest.mark.parametrize(
    ("error", "state", "strategy"),
    [
        (PermissionError("no"), LetterState.MANUAL, "manual"),
        (ValueError("nobody knows"), LetterState.MANUAL, "manual"),
    ],
)
async def test_what_only_a_person_can_decide_is_parked(
    error: Exception, state: LetterState, strategy: str
) -> None:
    world = World()
    await world.open()
    async with world.consuming(Flaky(error)):
        await world.send(b"one")
        await world.collect()
    assert await world.worker.turn() == 1
    letter = await world.the_letter()
    assert (letter.state, letter.strategy, letter.dlq_retry_count) == (state, strategy, 0)


class LimitedError(Exception):
    status = 429

    def __init__(self, seconds: int | None) -> None:
        super().__init__("too many requests")
        self.headers = {} if seconds is None else {"Retry-After": str(seconds)}


@pytest.mark.parametrize(
    ("wait", "due"),
    [
        (None, datetime(2026, 2, 12, 1, 0, tzinfo=UTC)),  # 2 o'clock in Berlin
        (3 * 86_400, datetime(2026, 2, 14, 12, 0, tzinfo=UTC)),  # asked for three days, which is later
    ],
)
async def test_a_rate_limit_waits_for_a_quiet_hour_or_as_long_as_it_is_asked_to(
    wait: int | None, due: datetime
) -> None:
    world = World(strategy=StrategyOptions(time_zone="Europe/Berlin"))
    await world.open()
    async with world.consuming(Flaky(LimitedError(wait))):
        await world.send(b"one")
        await world.collect()
    letter = await world.the_letter()
    assert letter.strategy == "scheduled"
    assert letter.next_retry_at == due


async def test_a_quiet_hour_is_found_across_the_change_to_summer_time() -> None:
    """On 2026-03-29 in Berlin there is no 2 o'clock: the clocks go from 2 to 3."""
    world = World(strategy=StrategyOptions(time_zone="Europe/Berlin", off_peak_hours=(2,)))
    world.clock.advance(datetime(2026, 3, 28, 12, 0, tzinfo=UTC) - world.clock.now())
    await world.open()
    async with world.consuming(Flaky(LimitedError(None))):
        await world.send(b"one")
        await world.collect()
    letter = await world.the_letter()
    assert (
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
        <= letter.next_retry_at
        <= datetime(2026, 3, 30, 0, 0, tzinfo=UTC)
    )


async def test_an_outage_is_waited_for_until_the_system_is_well() -> None:
    world = World()
    await world.open()
    handler = Flaky(ConnectionRefusedError("service unavailable"))
    handler.error = RuntimeError("503 Service Unavailable")
    async with world.consuming(handler):
        await world.send(b"one")
        await world.collect()
        letter = await world.the_letter()
        assert letter.strategy == "conditional"
        world.health = Health(cpu=0.95)
        for _ in range(3):
            world.clock.advance(MINUTE)
            assert await world.worker.turn() == 0
            letter = await world.the_letter()
            assert (letter.state, letter.dlq_retry_count) == (LetterState.PENDING, 0), "nothing was tried"
            assert letter.waits_for == "cpu"
        world.health = Health(cpu=0.2)
        handler.error = None
        world.clock.advance(MINUTE)
        await world.worker.turn()
        await world.collect()
    assert (await world.the_letter()).state is LetterState.RESOLVED


async def test_redrive_without_verdict_is_unconfirmed_while_its_message_waits() -> None:
    world = World(verdict_timeout=timedelta(minutes=30))
    await world.open()
    async with world.consuming(Flaky(NETWORK)):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    assert await world.worker.turn() == 1
    world.clock.advance(timedelta(minutes=29))
    assert await world.confirmer.turn() == 0
    for _ in range(20):  # hours in which nobody consumes it
        world.clock.advance(timedelta(minutes=31))
        assert await world.rescuer.turn() == []
        assert await world.confirmer.turn() == 1
    letter = await world.the_letter()
    assert (letter.state, letter.unconfirmed, letter.presumed) == (LetterState.PROCESSING, True, False)
    assert (world.confirmer.counts.unconfirmed, world.confirmer.counts.presumed) == (1, 0)


async def test_verdict_after_the_timeout_resolves_an_unconfirmed_letter() -> None:
    world, handler = World(verdict_timeout=timedelta(minutes=30)), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    await world.worker.turn()
    world.clock.advance(timedelta(hours=3))
    await world.confirmer.turn()
    handler.error = None
    async with world.consuming(handler):
        await world.collect()
    letter = await world.the_letter()
    assert (letter.state, letter.unconfirmed, letter.presumed) == (LetterState.RESOLVED, False, False)


async def test_redrive_is_presumed_only_after_it_was_taken_and_another_timeout_without_a_death() -> None:
    world = World(verdict_timeout=timedelta(minutes=30))
    await world.open()
    async with world.consuming(Flaky(NETWORK)):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    await world.worker.turn()
    await _take_without_verdict(world)
    world.clock.advance(timedelta(minutes=31))
    await world.confirmer.turn()
    assert (await world.the_letter()).state is LetterState.PROCESSING
    for _ in range(3):
        world.clock.advance(timedelta(minutes=8))
        await world.confirmer.turn()
    assert (await world.the_letter()).unconfirmed, "24 minutes are less than the verdict timeout"
    world.clock.advance(timedelta(minutes=8))
    await world.confirmer.turn()
    letter = await world.the_letter()
    assert (letter.state, letter.presumed, letter.unconfirmed) == (LetterState.RESOLVED, True, False)


async def test_redrive_that_dies_after_it_was_presumed_is_a_letter_of_its_own_that_counts_on() -> None:
    world, handler = World(verdict_timeout=timedelta(minutes=30)), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    await world.worker.turn()
    taken = await _take_without_verdict(world)
    for _ in range(6):
        world.clock.advance(timedelta(minutes=31))
        await world.confirmer.turn()
    assert await world.states() == [LetterState.RESOLVED]
    world.broker.append("orders", taken)
    async with world.consuming(handler):
        await world.collect()
    assert await world.states() == [LetterState.PENDING, LetterState.RESOLVED]
    pending = next(head for head in await world.heads() if head.state is LetterState.PENDING)
    first = next(head for head in await world.heads() if head.state is LetterState.RESOLVED)
    (whole,) = await world.store.load([pending.id])
    assert (whole.prior_redrives, whole.derived_from) == (1, first.id)
    assert redrive_of(whole.message.headers) is None


async def _take_without_verdict(world: World) -> Message:
    """A consumer that knows nothing of verdicts takes the redrive."""
    receiver = await world.transport.receiver(Source(name="orders"))
    (delivery,) = await receiver.receive()
    receiver.accept([delivery])
    await receiver.close()
    return delivery.message


async def test_a_worker_that_lost_its_lease_changes_nothing_and_that_is_counted() -> None:
    world, handler = World(), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    (head,) = await world.store.claim("worker-1", broker="memory")
    world.clock.advance(timedelta(minutes=6))
    await world.rescuer.turn()
    before = await world.the_letter()
    await world.worker.mark_as_sent([head.claim_token])
    assert world.worker.counts.stale == 1
    assert await world.the_letter() == before
    assert before.dlq_retry_count == 1, "the crash counts"


async def test_a_verdict_that_is_quicker_than_the_word_that_it_was_sent_is_no_lost_lease() -> None:
    world, handler = World(), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    (head,) = await world.store.claim("worker-1", broker="memory")
    await world.store.settle([Settlement(head.claim_token, Resolve())])
    await world.worker.mark_as_sent([head.claim_token])
    assert (world.worker.counts.sent, world.worker.counts.stale) == (1, 0)


async def test_a_letter_that_cannot_be_sent_is_kept_and_not_counted() -> None:
    world = World()
    await world.open()
    async with world.consuming(Flaky(NETWORK)):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    world.broker.refuse("orders", "disk full")
    await world.worker.turn()
    letter = await world.the_letter()
    assert (letter.state, letter.dlq_retry_count) == (LetterState.PENDING, 0)
    assert "disk full" in world.troubles[0]
    world.broker.permit("orders")
    world.clock.advance(MINUTE)
    await world.worker.turn()
    assert (await world.the_letter()).sent_at is not None


async def test_when_most_redrives_die_again_the_breaker_holds_the_rest_back_until_a_probe_is_processed() -> (
    None
):
    world, handler = World(batch=3), Flaky(NETWORK)
    await world.open()
    async with world.consuming(handler):
        await world.send(*[str(number).encode() for number in range(10)])
        await world.collect()
        world.clock.advance(MINUTE)
        assert await world.worker.turn() == 3
        await world.collect()
        assert world.breakers.open_sources() == ("orders",)
        seen = len(handler.seen)
        assert await world.worker.turn() == 0
        await world.quiet()
        assert len(handler.seen) == seen, "held back"
        handler.error = None
        world.clock.advance(timedelta(minutes=2))
        await world.worker.turn()
        await world.collect()
        assert len(handler.seen) == seen + 1, "one probe"
        assert world.recovered == ["orders"]
        world.clock.advance(timedelta(hours=2))
        for _ in range(6):
            await world.worker.turn()
            await world.collect()
    assert set(await world.states()) == {LetterState.RESOLVED}


async def test_a_letter_that_does_not_say_where_it_came_from_is_parked_and_never_sent_to_its_own_dead_letters() -> (
    None
):
    world = World()
    await world.open()
    own = Headers(
        {"redrive-reason": "MaxDeliveryCountExceeded", "redrive-error-type": "ConnectionResetError"}
    )
    dead = Publication(Message(body=b"x", headers=own), Target(name="orders.dlq"))
    assert not any(await world.transport.publish([dead]))
    await world.collect()
    letter = await world.the_letter()
    assert (letter.source, letter.strategy) == ("orders.dlq", "immediate")
    world.clock.advance(MINUTE)
    assert await world.worker.turn() == 1
    assert (await world.the_letter()).state is LetterState.MANUAL
    assert await world.transport.depth("orders.dlq") == 0


async def test_a_worker_stops_when_it_is_told_to_and_can_be_woken() -> None:
    world = World(poll=timedelta(hours=1))
    await world.open()
    async with world.consuming(Flaky(PermissionError("no"))):
        await world.send(b"one")
        await world.collect()
    stop = asyncio.Event()
    task = asyncio.create_task(world.worker.run(stop))
    await world.quiet()
    assert (await world.the_letter()).state is LetterState.MANUAL
    world.worker.wake()
    await world.quiet()
    stop.set()
    await asyncio.wait_for(task, 5)


def test_the_clock_of_this_world_is_turned_by_hand() -> None:
    assert isinstance(World().clock, ManualClock)
