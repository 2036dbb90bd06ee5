"""Every arrow of both diagrams of seed 004, walked on a real RabbitMQ and on the embedded broker.

The broker, its client, the file and the consumer are the real ones; only time is turned by hand. The first test walks
all arrows of the state machine and holds the journal against the table; the others look at one part of the way each.
"""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pytest

from redrive.collect.reading import DAMAGED, NOT_UNDERSTOOD
from redrive.errors import LetterNotFoundError, SourceMissingError
from redrive.letters import FailureKind, Headers, LetterState
from redrive.letters.lifecycle import TABLE
from redrive.letters.verdict import QUEUE
from redrive.recover.retention import Retention, RetentionOptions
from redrive.rules import Health, StrategyOptions
from redrive.stores import cold_files
from redrive.stores.changes import Annotate, Assign, Discard, Schedule
from redrive.stores.operations import OperationState
from redrive.transports.redriving import SendOptions
from tests.acceptance.way_back import MINUTE, Flaky, LimitedError, Outside, WayBack, open_way_back

NETWORK = ConnectionResetError("connection reset by peer")
DENIED = PermissionError("the account is closed")
DAY = timedelta(days=1)
FAILED_ONCE = ("retry", LetterState.PROCESSING, LetterState.PENDING)


async def test_every_arrow_of_the_state_machine_is_walked_and_no_other(
    broker_url: str, tmp_path: Path
) -> None:
    twice = StrategyOptions(max_redrives=2)
    async with open_way_back(broker_url, tmp_path, strategy=twice) as way:
        errors: dict[bytes, Exception | None] = {
            b"heals": NETWORK,
            b"fails": NETWORK,
            b"odd": DENIED,
            b"void": DENIED,
        }

        async def handle(body: bytes) -> None:
            if (error := errors[body]) is not None:
                raise error

        async with way.consuming(handle):
            await way.send(*errors)
            heads = await way.until_letters(4)
            ids = {(await way.whole(head.id)).message.body: head.id for head in heads}
            await way.store.apply(Schedule(way.clock.now()), [ids[b"heals"]], by="anna")
            assert await way.worker.turn() == 3, "the two for a person, and the one that was hastened"
            await way.until_state(LetterState.PENDING, 1, ids[b"heals"])
            errors[b"heals"] = errors[b"odd"] = None
            await way.replay(ids[b"odd"])
            await way.until_state(LetterState.RESOLVED, 1, ids[b"odd"])
            await way.store.apply(Discard("nobody wants it"), [ids[b"void"]], by="anna")
            for redrives in (1, 2):
                way.clock.advance(timedelta(minutes=5))
                await way.worker.turn()
                await way.until_state(
                    LetterState.PENDING if redrives == 1 else LetterState.FAILED, redrives, ids[b"fails"]
                )
            await way.until_state(LetterState.RESOLVED, 2, ids[b"heals"])
        retention = Retention(way.store, way.clock, RetentionOptions(directory=tmp_path / "cold"))
        for _ in range(2):
            way.clock.advance(400 * DAY)
            await retention.turn()
        assert await way.heads() == ()
        lines = await way.store.journal(limit=1000)
        walked = {
            (None, LetterState.PENDING),
            *((line.before, line.after) for line in lines if line.action != "sent"),
        }
        assert walked == {(state, target) for (state, _), target in TABLE.items()}


async def test_the_journey_of_a_message_that_fails_and_then_does_not(broker_url: str, tmp_path: Path) -> None:
    """Failed → router → enriched → kept → pending → polled → locked → analysed → sent back → resolved."""
    async with open_way_back(broker_url, tmp_path, queue_type="quorum") as way:
        handler = Flaky(NETWORK)
        began = way.clock.now()
        async with way.consuming(handler, attempts=3):
            await way.send(
                b"\x00\xff order 1",
                headers=Headers({"x-tenant": "north", "x-hops": 2}),
                message_id="order-1",
                correlation_id="trace-1",
            )
            (head,) = await way.until_letters(1)
            assert len(handler.seen) == 3, "tried as often as it may be"

            letter = await way.whole(head.id)
            assert (letter.state, letter.reason) == (LetterState.PENDING, "MaxDeliveryCountExceeded")
            assert (letter.error_type, letter.kind) == ("ConnectionResetError", FailureKind.NETWORK)
            assert letter.error_text == "connection reset by peer"
            assert "raise self.error" in (letter.failure.stack or "")
            assert letter.failure.rule is not None
            assert (letter.retry_count, letter.dlq_retry_count) == (3, 0)
            assert letter.first_failed_at == letter.last_failed_at == letter.created_at == began
            assert (letter.message_id, letter.correlation_id) == ("order-1", "trace-1")
            assert (letter.source, letter.origin.dead_letter_source) == ("orders", "orders.dlq")
            assert (letter.origin.exchange, letter.origin.routing_key) == ("", "orders")
            assert (letter.message.body, dict(letter.message.headers)) == (
                b"\x00\xff order 1",
                {"x-tenant": "north", "x-hops": 2},
            ), "RabbitMQ 4 sorts headers by name; their values stay"
            assert (letter.strategy, letter.next_retry_at) == ("immediate", began + MINUTE)

            stop = asyncio.Event()
            worker = way.a_worker("worker-1", poll=timedelta(seconds=30))
            polling = asyncio.create_task(worker.run(stop))
            handler.error = None
            for _ in range(2):
                assert worker.counts.claimed == 0, "it is not due yet"
                await asleep(way)
                way.clock.advance(timedelta(seconds=30))
            resolved = await way.until_state(LetterState.RESOLVED, 1)
            stop.set()
            await polling
        assert (worker.counts.claimed, worker.counts.sent, worker.counts.stale) == (1, 1, 0)
        assert not resolved.presumed
        assert handler.seen == [b"\x00\xff order 1"] * 4
        (attempt,) = (await way.whole(head.id)).attempts
        assert (attempt.number, attempt.worker, attempt.result) == (1, "worker-1", "resolved")
        steps = await way.steps(head.id)  # its verdict may be quicker than the worker's word that it was sent
        assert [step for step in steps if step[0] != "sent"] == [
            ("claim", LetterState.PENDING, LetterState.PROCESSING),
            ("resolve", LetterState.PROCESSING, LetterState.RESOLVED),
        ]
        await way.drained("orders", "orders.dlq", QUEUE)
        assert way.troubles == []


async def asleep(way: WayBack) -> None:
    """Wait until the worker has looked and sleeps until its next poll."""

    async def holds() -> bool:
        return way.clock.sleepers > 0

    await way.until(holds, "a worker that sleeps")


async def test_a_letter_is_held_by_one_worker_and_by_nobody_else(broker_url: str, tmp_path: Path) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        async with way.consuming(Flaky(NETWORK)):
            await way.send(b"one")
            await way.until_letters(1)
        way.clock.advance(MINUTE)
        other = way.a_worker("worker-2")
        assert sorted(await asyncio.gather(way.worker.turn(), other.turn())) == [0, 1]
        head = await way.the_letter()
        holder = "worker-1" if way.worker.counts.claimed else "worker-2"
        assert (head.state, head.locked_by, head.locked_at) == (
            LetterState.PROCESSING,
            holder,
            way.clock.now(),
        )
        assert (head.fence, head.sent_at) == (1, way.clock.now())
        assert way.outside.depth("orders") == 1, "it was sent once"


async def test_a_letter_that_dies_again_and_again_waits_longer_each_time_fails_is_put_away_and_is_gone(
    broker_url: str, tmp_path: Path
) -> None:
    """Immediate: 1, 5, 15, 30, 60 minutes; five redrives → failed → 90 days → archived → a year → deleted."""
    async with open_way_back(broker_url, tmp_path) as way:
        handler = Flaky(NETWORK)
        async with way.consuming(handler):
            await way.send(b"one", headers=Headers({"x-tenant": "north"}))
            (first,) = await way.until_letters(1)
            for redrives, minutes in enumerate((1, 5, 15, 30, 60)):
                way.clock.advance(minutes * MINUTE - timedelta(seconds=1))
                assert await way.worker.turn() == 0, f"{minutes} minutes are not over"
                way.clock.advance(timedelta(seconds=1))
                assert await way.worker.turn() == 1
                last = redrives == 4
                await way.until_state(LetterState.FAILED if last else LetterState.PENDING, redrives + 1)
        assert len(handler.seen) == 6
        letter = await way.whole((await way.the_letter()).id)
        assert letter.id == first.id, "one record (E5)"
        assert [attempt.result for attempt in letter.attempts] == ["failed"] * 5
        assert [attempt.number for attempt in letter.attempts] == [1, 2, 3, 4, 5]
        assert letter.message.headers == Headers({"x-tenant": "north"}), "no marks pile up"
        steps = await way.steps(letter.id)
        assert steps.count(FAILED_ONCE) == 4
        assert steps[-1] == ("exhaust", LetterState.PROCESSING, LetterState.FAILED)
        way.clock.advance(DAY)
        assert await way.worker.turn() == 0, "what has failed stays"

        files = tmp_path / "cold"
        retention = Retention(way.store, way.clock, RetentionOptions(directory=files))
        way.clock.advance(88 * DAY)
        await retention.turn()
        assert (await way.the_letter()).state is LetterState.FAILED
        way.clock.advance(2 * DAY)
        await retention.turn()
        assert (await way.the_letter()).state is LetterState.ARCHIVED
        (file,) = files.iterdir()
        (cold,) = cold_files.read(file)
        assert (cold.id, cold.message, len(cold.attempts)) == (letter.id, letter.message, 5)
        way.clock.advance(366 * DAY)
        await retention.turn()
        with pytest.raises(LetterNotFoundError):
            await way.whole(letter.id)
        assert (await way.steps(letter.id))[-2:] == [
            ("archive", LetterState.FAILED, LetterState.ARCHIVED),
            ("delete", LetterState.ARCHIVED, None),
        ]


@pytest.mark.parametrize("senders", ["rrrrr", "wrwrw", "rrwwr"])
async def test_five_redrives_by_whomever_are_one_record_with_five_attempts_that_has_failed(
    broker_url: str, tmp_path: Path, senders: str
) -> None:
    """w: the worker, when the letter is due; r: a replay, at once."""
    async with open_way_back(broker_url, tmp_path) as way:
        async with way.consuming(Flaky(NETWORK)):
            await way.send(b"one")
            (first,) = await way.until_letters(1)
            for redrives, sender in enumerate(senders, start=1):
                if sender == "w":
                    way.clock.advance(timedelta(hours=2))
                    assert await way.worker.turn() == 1
                else:
                    assert dict((await way.replay(first.id)).outcomes) == {"sent": 1}
                await way.until_state(LetterState.FAILED if redrives == 5 else LetterState.PENDING, redrives)
        letter = await way.whole((await way.the_letter()).id)
        assert letter.id == first.id
        assert [(each.number, each.result) for each in letter.attempts] == [
            (number, "failed") for number in range(1, 6)
        ]
        by = ["w" if each.worker == "worker-1" else "r" for each in letter.attempts]
        assert "".join(by) == senders
        assert dict((await way.replay(first.id)).outcomes) == {}, "what has failed is not sent by mistake"


async def test_a_rate_limit_waits_for_a_quiet_hour_and_longer_if_it_is_asked_to(
    broker_url: str, tmp_path: Path
) -> None:
    noon = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
    berlin = StrategyOptions(time_zone="Europe/Berlin")
    async with open_way_back(broker_url, tmp_path, start=noon, strategy=berlin) as way:
        handler = Flaky(LimitedError())
        async with way.consuming(handler):
            await way.send(b"one")
            (letter,) = await way.until_letters(1)
            two_in_berlin = datetime(2026, 7, 2, 0, 0, tzinfo=UTC)
            assert (letter.strategy, letter.next_retry_at) == ("scheduled", two_in_berlin)
            way.clock.advance(two_in_berlin - noon - timedelta(seconds=1))
            assert await way.worker.turn() == 0
            handler.error = LimitedError(seconds=86_400)
            way.clock.advance(timedelta(seconds=1))
            assert await way.worker.turn() == 1
            again = await way.until_state(LetterState.PENDING, 1)
            assert again.next_retry_at == two_in_berlin + DAY, (
                "a day was asked for, which is later than 3 o'clock"
            )
            handler.error = None
            way.clock.advance(DAY)
            assert await way.worker.turn() == 1
            await way.until_state(LetterState.RESOLVED, 2)


async def test_an_outage_is_waited_for_until_the_system_is_well(broker_url: str, tmp_path: Path) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        handler = Flaky(RuntimeError("503 Service Unavailable"))
        async with way.consuming(handler):
            await way.send(b"one")
            (letter,) = await way.until_letters(1)
            assert letter.strategy == "conditional"
            for health, gate in (
                (Health(cpu=0.95), "cpu"),
                (Health(memory=0.9), "memory"),
                (Health(database_reachable=False), "database"),
            ):
                way.health = health
                way.clock.advance(MINUTE)
                assert await way.worker.turn() == 0
                letter = await way.the_letter()
                assert (letter.state, letter.dlq_retry_count) == (LetterState.PENDING, 0), "nothing was tried"
                assert letter.waits_for == gate
            way.health = Health(cpu=0.2, memory=0.2)
            for _ in range(3):  # one that dies three times opens the breaker of its source
                way.clock.advance(MINUTE)
                assert await way.worker.turn() == 1
                letter = await way.until_state(LetterState.PENDING, letter.dlq_retry_count + 1)

            async def is_held_back() -> bool:
                return way.breakers.open_sources() == ("orders",)

            await way.until(is_held_back, "the breaker opens")
            seen = len(handler.seen)
            way.clock.advance(MINUTE - timedelta(seconds=1))
            await way.worker.turn()
            assert (await way.the_letter()).dlq_retry_count == 3
            assert len(handler.seen) == seen, "held back"
            handler.error = None
            way.clock.advance(2 * MINUTE)
            assert await way.worker.turn() == 1
            await way.until_state(LetterState.RESOLVED, 4)
            assert way.breakers.open_sources() == ()


async def test_what_only_a_person_can_decide_is_parked_then_replayed_or_discarded(
    broker_url: str, tmp_path: Path
) -> None:
    """Manual: human review → fixed → manual replay, which fails once, then resolves; discard → archived."""
    async with open_way_back(broker_url, tmp_path) as way:
        handler = Flaky(DENIED)
        async with way.consuming(handler):
            await way.send(b"to be fixed", b"to be dropped")
            await way.until_letters(2)
            assert await way.worker.turn() == 2
            heads = await way.heads()
            assert {(head.state, head.strategy, head.dlq_retry_count) for head in heads} == {
                (LetterState.MANUAL, "manual", 0)
            }
            way.clock.advance(30 * DAY)
            assert await way.worker.turn() == 0, "nobody sends it unasked"
            bodies = {(await way.whole(head.id)).message.body: head.id for head in heads}
            fixed, dropped = bodies[b"to be fixed"], bodies[b"to be dropped"]

            await way.store.apply(Assign("anna"), [fixed], by="anna")
            await way.store.apply(Annotate("the account is open again"), [fixed], by="anna")
            operation = await way.replay(fixed)
            assert (operation.state, dict(operation.outcomes)) == (OperationState.DONE, {"sent": 1})
            await way.until_state(LetterState.PENDING, 1, fixed)
            assert await way.worker.turn() == 1
            await way.until_state(LetterState.MANUAL, 1, fixed)
            handler.error = None
            await way.replay(fixed)
            await way.until_state(LetterState.RESOLVED, 2, fixed)

            await way.store.apply(Discard("nobody wants it"), [dropped], by="anna")
        letter = await way.whole(fixed)
        assert (letter.assignee, [note.text for note in letter.notes]) == (
            "anna",
            ["the account is open again"],
        )
        assert ("replay", LetterState.MANUAL, LetterState.PROCESSING) in await way.steps(fixed)
        assert (await way.steps(dropped))[-1] == ("discard", LetterState.MANUAL, LetterState.ARCHIVED)
        assert handler.seen.count(b"to be dropped") == 1


async def test_a_pending_letter_goes_when_it_is_scheduled_and_a_resolved_one_is_deleted_after_30_days(
    broker_url: str, tmp_path: Path
) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        handler = Flaky(NETWORK)
        async with way.consuming(handler):
            await way.send(b"one")
            (letter,) = await way.until_letters(1)
            tomorrow = way.clock.now() + DAY
            await way.store.apply(Schedule(tomorrow), [letter.id], by="anna")
            assert (await way.steps(letter.id))[0] == ("schedule", LetterState.PENDING, LetterState.PENDING)
            way.clock.advance(DAY - timedelta(seconds=1))
            assert await way.worker.turn() == 0
            handler.error = None
            way.clock.advance(timedelta(seconds=1))
            assert await way.worker.turn() == 1
            await way.until_state(LetterState.RESOLVED, 1)
        retention = Retention(way.store, way.clock, RetentionOptions(directory=tmp_path / "cold"))
        way.clock.advance(29 * DAY)
        await retention.turn()
        assert (await way.the_letter()).state is LetterState.RESOLVED
        way.clock.advance(2 * DAY)
        await retention.turn()
        assert await way.heads() == ()
        assert (await way.steps(letter.id))[-1] == ("delete", LetterState.RESOLVED, None)


# --- where it goes ---------------------------------------------------------------------------------------------


async def test_a_message_that_another_client_rejected_goes_back_to_its_queue_and_to_no_other(
    broker_url: str, tmp_path: Path
) -> None:
    """H12. The broker's own dead-lettering, pika as consumer; the exchange has a second queue."""
    async with open_way_back(broker_url, tmp_path) as way:
        with way.outside.channel() as channel:
            channel.exchange_declare("shop", "fanout", durable=True)
            channel.queue_declare("audit", durable=True)
            channel.queue_declare("copied", durable=True)
            for queue in ("orders", "audit"):
                channel.queue_bind(queue, "shop")
        fields = pika.BasicProperties(
            headers={"CC": ["copied"], "x-tenant": "north"}, message_id="m-1", expiration="600000"
        )
        way.outside.publish("orders.new", (b"one", fields), exchange="shop")
        assert len(way.outside.take("audit")) == 1, "everybody has seen it once"
        way.outside.reject("orders")
        (head,) = await way.until_letters(1)
        letter = await way.whole(head.id)
        assert (letter.source, letter.reason, letter.kind) == ("orders", "rejected", FailureKind.UNKNOWN)
        assert (letter.origin.exchange, letter.origin.routing_key) == ("shop", "orders.new")
        assert letter.tags == ()
        assert await way.worker.turn() == 1
        await way.until_state(LetterState.MANUAL, 0)

        await way.replay(head.id)
        assert (way.outside.depth("audit"), way.outside.depth("copied")) == (0, 0)
        way.outside.reject("orders")
        again = await way.until_state(LetterState.PENDING, 1)
        assert again.id == head.id, "its second death is one of the same letter"
        await way.replay(head.id)
        handler = Flaky()
        async with way.consuming(handler):
            await way.until_state(LetterState.RESOLVED, 2)
        assert handler.seen == [b"one"]
        assert (way.outside.depth("audit"), way.outside.depth("copied")) == (0, 0)


async def test_a_message_that_was_given_back_before_it_died_remembers_the_exchange_it_came_through(
    broker_url: str, tmp_path: Path
) -> None:
    """The broker tells of the copy by which it came again, which went straight to the queue."""
    async with open_way_back(broker_url, tmp_path) as way:
        with way.outside.channel() as channel:
            channel.exchange_declare("shop", "topic", durable=True)
            channel.queue_declare("audit", durable=True)
            channel.queue_bind("audit", "shop", "orders.*")
            channel.queue_bind("orders", "shop", "orders.*")
        handler = Flaky(NETWORK)
        async with way.consuming(handler, max_deliveries=2, dead_letter="native"):
            way.outside.publish(
                "orders.new", (b"one", pika.BasicProperties(message_id="m-1")), exchange="shop"
            )
            (head,) = await way.until_letters(1)
        assert handler.seen == [b"one", b"one"]
        letter = await way.whole(head.id)
        assert (letter.source, letter.reason) == ("orders", "rejected")
        assert (letter.origin.exchange, letter.origin.routing_key) == ("shop", "orders.new")
        way.outside.take("audit")
        await way.replay(head.id, sending=SendOptions(to="exchange"))
        assert [found.body for found in way.outside.take("audit")] == [b"one"], (
            "who asks for everybody gets it"
        )


async def test_a_queue_that_is_gone_has_a_redirect(broker_url: str, tmp_path: Path) -> None:
    """H1."""
    async with open_way_back(broker_url, tmp_path) as way:
        async with way.consuming(Flaky(NETWORK)):
            await way.send(b"one", message_id="m-1")
            (letter,) = await way.until_letters(1)
        way.outside.delete("orders")
        way.outside.declare("orders.v2")
        way.clock.advance(MINUTE)
        assert await way.worker.turn() == 1
        kept = await way.the_letter()
        assert (kept.state, kept.dlq_retry_count) == (LetterState.PENDING, 0), (
            "it was not sent, so it does not count"
        )
        assert way.troubles
        with pytest.raises(SourceMissingError):
            await way.replay(letter.id)
        sending = SendOptions(redirects={"orders": "orders.v2"})
        done = await way.replay(letter.id, sending=sending)
        assert dict(done.outcomes) == {"sent": 1}
        handler = Flaky()
        async with way.consuming(handler, queue="orders.v2"):
            await way.until_state(LetterState.RESOLVED, 1)
        assert handler.seen == [b"one"]


async def test_a_message_that_had_a_time_to_live_does_not_expire_on_its_way_back(
    broker_url: str, tmp_path: Path
) -> None:
    """It died of it; whoever sends it back wants it to arrive, also if nobody consumes at the moment."""
    async with open_way_back(broker_url, tmp_path) as way:
        way.outside.publish("orders", (b"late", pika.BasicProperties(expiration="1", message_id="m-1")))
        (head,) = await way.until_letters(1)
        assert (head.source, head.reason, head.kind) == ("orders", "expired", FailureKind.EXPIRED)
        letter = await way.whole(head.id)
        assert letter.message.properties.get("expiration") == "1", "the letter has what its producer set"
        await way.replay(head.id)
        (found,) = way.outside.take("orders")
        assert (found.body, found.properties.expiration) == (b"late", None)
        assert found.headers["x-replayed"] is True


# --- what is heard, and what is not ----------------------------------------------------------------------------


async def test_redrive_that_dies_after_the_verdict_timeout_returns_to_its_letter(
    broker_url: str, tmp_path: Path
) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        handler = Flaky(NETWORK)
        async with way.consuming(handler):
            await way.send(b"one", message_id="m-1")
            (first,) = await way.until_letters(1)
        way.clock.advance(MINUTE)
        assert await way.worker.turn() == 1
        way.clock.advance(timedelta(hours=5))
        assert await way.rescuer.turn() == [], "it was sent: nobody has crashed"
        assert (await way.the_letter()).state is LetterState.PROCESSING

        async with way.consuming(handler):  # the consumer is back, and the redrive dies
            await way.until_state(LetterState.PENDING, 1, first.id)
            for redrives in range(2, 6):
                way.clock.advance(timedelta(hours=2))
                assert await way.worker.turn() == 1
                await way.until_state(
                    LetterState.FAILED if redrives == 5 else LetterState.PENDING, redrives, first.id
                )
        assert len(handler.seen) == 6, "one delivery and five redrives"


async def test_a_copy_of_a_letter_that_has_failed_does_not_begin_to_count_anew(
    broker_url: str, tmp_path: Path
) -> None:
    """H3: a person may insist, again and again; by themselves they go no more."""
    async with open_way_back(broker_url, tmp_path, strategy=StrategyOptions(max_redrives=2)) as way:
        handler = Flaky(NETWORK)
        async with way.consuming(handler):
            await way.send(b"one", message_id="m-1")
            (first,) = await way.until_letters(1)
            for redrives in (1, 2):
                way.clock.advance(timedelta(hours=2))
                await way.worker.turn()
                await way.until_state(LetterState.FAILED if redrives == 2 else LetterState.PENDING, redrives)
            way.clock.advance(MINUTE)
            done = await way.replay(first.id, copies=True)
            assert dict(done.outcomes) == {"sent": 1}
            await way.until_letters(2)
            copy = next(head for head in await way.heads() if head.id != first.id)
            await way.until_state(LetterState.FAILED, 1, copy.id)
            assert (await way.whole(copy.id)).derived_from == first.id
            way.clock.advance(DAY)
            assert await way.worker.turn() == 0
            way.clock.advance(MINUTE)
            handler.error = None
            await way.replay(copy.id, copies=True)
            await way.until_letters(3)
            last = next(head for head in await way.heads() if head.id not in {first.id, copy.id})
            await way.until_state(LetterState.RESOLVED, 1, last.id)
        assert (await way.whole(last.id)).prior_redrives == 3
        assert len(handler.seen) == 5


async def test_a_verdict_that_comes_twice_or_late_changes_nothing(broker_url: str, tmp_path: Path) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        async with way.consuming(Flaky(NETWORK)):
            await way.send(b"one")
            (letter,) = await way.until_letters(1)
        word = {"id": letter.id, "fence": 1, "attempt": 1, "at": "2026-02-11T12:00:00Z", "source": "orders"}
        way.outside.publish(QUEUE, (json.dumps(word).encode(), pika.BasicProperties()))

        async def heard() -> bool:
            return way.verdicts.counts.late == 1

        await way.until(heard, "a late verdict")
        assert (await way.the_letter()).state is LetterState.PENDING, "nobody has sent it yet"
        way.clock.advance(MINUTE)
        await way.worker.turn()
        for _ in range(2):
            way.outside.publish(QUEUE, (json.dumps(word).encode(), pika.BasicProperties()))
        await way.until_state(LetterState.RESOLVED, 1)

        async def heard_again() -> bool:
            return way.verdicts.counts.late == 2

        await way.until(heard_again, "a second verdict")
        assert len((await way.whole(letter.id)).attempts) == 1


# --- letters of others -----------------------------------------------------------------------------------------


async def test_what_the_broker_itself_gave_up_says_why(broker_url: str, tmp_path: Path) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        to_orders = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "orders.dlq"}
        way.outside.declare("slow", x_message_ttl=1, **to_orders)
        way.outside.declare("full", x_max_length=1, **to_orders)
        way.outside.publish("slow", (b"too slow", pika.BasicProperties(message_id="m-1")))
        for body in (b"pushed out", b"stays"):
            way.outside.publish("full", (body, pika.BasicProperties(message_id=body.decode())))
        heads = {head.source: head for head in await way.until_letters(2)}
        assert (heads["slow"].kind, heads["slow"].reason) == (FailureKind.EXPIRED, "expired")
        assert (heads["full"].kind, heads["full"].reason) == (FailureKind.OVERFLOW, "maxlen")
        assert (heads["slow"].strategy, heads["full"].strategy) == ("manual", "immediate")
        assert (await way.whole(heads["full"].id)).message.body == b"pushed out"
        assert way.outside.take("full")[0].body == b"stays"
        way.clock.advance(MINUTE)
        assert await way.worker.turn() == 2, "one is parked, one is sent"
        assert [found.body for found in way.outside.take("full")] == [b"pushed out"]
        assert way.outside.take("slow") == []


TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/tasks.py", line 12, in charge\n'
    "    pay(order)\n"
    "ConnectionRefusedError: [Errno 111] Connection refused\n"
)
DRAMATIQ = {
    "queue_name": "mail",
    "actor_name": "charge",
    "args": [1],
    "kwargs": {},
    "options": {"retries": 3, "traceback": TRACEBACK, "requeue_timestamp": 1770811200000},
    "message_id": "d-1",
    "message_timestamp": 1770811100000,
}
OTHERS: dict[str, tuple[bytes, dict[str, Any], str, str, FailureKind, str]] = {
    # queue: body, headers, source, error type, kind, a part of the text
    "billing_error": (
        b'{"message": {}}',
        {
            "MT-Reason": "fault",
            "MT-Fault-ExceptionType": "System.TimeoutException",
            "MT-Fault-Message": "The operation has timed out",
            "MT-Fault-InputAddress": "rabbitmq://localhost/billing?durable=true",
            "MT-Fault-Timestamp": "2026-02-11T11:00:00.0000000Z",
            "MT-Fault-RetryCount": 2,
        },
        "billing",
        "System.TimeoutException",
        FailureKind.TIMEOUT,
        "timed out",
    ),
    "error": (
        b"<Order/>",
        {
            "NServiceBus.FailedQ": "sales",
            "NServiceBus.ExceptionInfo.ExceptionType": "System.Net.Http.HttpRequestException",
            "NServiceBus.ExceptionInfo.Message": "503 (Service Unavailable)",
            "NServiceBus.TimeOfFailure": "2026-02-11 11:00:00:000000 Z",
            "NServiceBus.MessageId": "n-1",
        },
        "sales",
        "System.Net.Http.HttpRequestException",
        FailureKind.UNAVAILABLE,
        "Service Unavailable",
    ),
    "mail.XQ": (
        json.dumps(DRAMATIQ).encode(),
        {},
        "mail",
        "ConnectionRefusedError",
        FailureKind.NETWORK,
        "refused",
    ),
}


@pytest.mark.parametrize("queue", OTHERS)
async def test_a_dead_letter_of_another_system_is_understood_and_goes_back_to_where_that_system_reads(
    broker_url: str, tmp_path: Path, queue: str
) -> None:
    body, headers, source, error_type, kind, words = OTHERS[queue]
    for name in (queue, source):
        Outside(broker_url).declare(name)
    async with open_way_back(broker_url, tmp_path, queues=[queue]) as way:
        own = {"x-tenant": "north"}
        way.outside.publish(queue, (body, pika.BasicProperties(headers={**headers, **own}, message_id="m-1")))
        (head,) = await way.until_letters(1)
        assert (head.source, head.error_type, head.kind) == (source, error_type, kind)
        assert words in head.error_text
        assert head.tags == ()
        await way.replay(head.id)
        (found,) = way.outside.take(source)
        assert found.body == body
        told = {name: value for name, value in found.headers.items() if "redrive" not in name}
        kept = {"NServiceBus.MessageId": "n-1"} if queue == "error" else {}
        assert told == {**own, **kept, "x-replayed": True}, "as its producer sent it"


async def test_spring_tells_the_error_and_the_broker_tells_the_queue(broker_url: str, tmp_path: Path) -> None:
    """Its recoverer names no queue: the route it names leads to all who are bound, so a person says where to."""
    async with open_way_back(broker_url, tmp_path) as way:
        headers = {
            "x-exception-message": "Connection refused: connect",
            "x-exception-stacktrace": "java.net.ConnectException: Connection refused: connect\n\tat shop.Pay.run",
            "x-original-exchange": "shop",
            "x-original-routingKey": "orders.new",
        }
        way.outside.publish("orders.dlq", (b"{}", pika.BasicProperties(headers=headers, message_id="m-1")))
        (head,) = await way.until_letters(1)
        letter = await way.whole(head.id)
        assert (letter.origin.exchange, letter.origin.routing_key) == ("shop", "orders.new")
        assert (letter.kind, letter.error_text) == (FailureKind.NETWORK, "Connection refused: connect")
        assert letter.message.headers == Headers()
        await way.replay(head.id, sending=SendOptions(target="orders"))
        (found,) = way.outside.take("orders")
        assert found.body == b"{}"


async def test_what_nobody_understands_is_kept_as_it_is_and_tagged(broker_url: str, tmp_path: Path) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        strange = {"x-death": "yesterday", "a": -1}
        way.outside.publish(
            "orders.dlq",
            (b"\x80 nobody knows", pika.BasicProperties()),
            (b"\x81 damaged", pika.BasicProperties(headers=strange)),
        )
        heads = {(await way.whole(head.id)).message.body: head for head in await way.until_letters(2)}
        unknown, damaged = heads[b"\x80 nobody knows"], heads[b"\x81 damaged"]
        assert unknown.tags == (NOT_UNDERSTOOD,)
        assert DAMAGED in damaged.tags
        assert (await way.whole(damaged.id)).message.headers.get("x-death") == "yesterday", "kept as it is"
        assert await way.worker.turn() == 2
        assert {head.state for head in await way.heads()} == {LetterState.MANUAL}
        assert way.troubles == []


async def test_messages_that_cannot_be_told_apart_are_as_many_letters(
    broker_url: str, tmp_path: Path
) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        same = (b"tick", pika.BasicProperties(headers={"x-tenant": "north"}))
        other = (b"tock", pika.BasicProperties())
        for count in (5, 2):
            way.outside.publish("orders.dlq", *[same] * count, *[other] * count)
            await way.until_letters(2 * (count if count == 5 else 7))
        await way.drained("orders.dlq")
        bodies = [(await way.whole(head.id)).message.body for head in await way.heads()]
        assert (bodies.count(b"tick"), bodies.count(b"tock")) == (7, 7)
        assert way.collector.counts.collected == 14
