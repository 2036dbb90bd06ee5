"""Whatever lies in a dead-letter queue is kept: once, whole, and as far as it can be understood."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.collect.reading import DAMAGED, NOT_UNDERSTOOD
from redrive.errors import StoreFullError
from redrive.letters import FailureKind, Headers, LetterState, Message
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock
from redrive.transports import Publication, Source, Target
from tests.unit.recover.cycle import World


async def put(world: World, *messages: Message) -> None:
    target = Target(name="orders.dlq")
    assert not any(await world.transport.publish([Publication(message, target) for message in messages]))


X_DEATH = Headers(
    {
        "x-death": (
            Headers(
                {
                    "count": 2,
                    "reason": "rejected",
                    "queue": "orders",
                    "time": datetime(2026, 2, 11, 11, 0, tzinfo=UTC),
                    "exchange": "shop",
                    "routing-keys": ("orders.new",),
                }
            ),
        ),
        "x-tenant": "north",
    }
)


async def test_a_message_that_the_broker_gave_up_tells_where_and_when() -> None:
    world = World()
    await world.open()
    await put(world, Message(body=b"\x00\xff", headers=X_DEATH, message_id="m-1"))
    await world.collect()
    letter = await world.the_letter()
    assert (letter.source, letter.reason, letter.message_id) == ("orders", "rejected", "m-1")
    (whole,) = await world.store.load([letter.id])
    assert whole.message.body == b"\x00\xff"
    assert whole.origin.exchange == "shop"
    assert whole.origin.routing_key == "orders.new"
    assert whole.origin.dead_letter_source == "orders.dlq"
    assert whole.failure.at == datetime(2026, 2, 11, 11, 0, tzinfo=UTC)
    assert whole.message.headers.get("x-tenant") == "north"


async def test_a_message_that_nobody_understands_is_kept_as_it_is_and_marked() -> None:
    world = World()
    await world.open()
    headers = Headers([("a", 1), ("a", b"\xff")])
    await put(world, Message(body=None, headers=headers, key=b"\x01"))
    await world.collect()
    letter = await world.the_letter()
    assert NOT_UNDERSTOOD in letter.tags
    (whole,) = await world.store.load([letter.id])
    assert whole.message.body is None
    assert whole.message.headers == headers
    assert whole.message.key == b"\x01"
    assert whole.kind is FailureKind.UNKNOWN


async def test_a_message_whose_names_are_no_text_is_kept_and_marked(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(tmp_path / "letters.db", clock=clock)
    world = World(store)
    world.clock = clock
    await world.open()
    odd = "a\udc80"
    headers = Headers({"x-first-death-queue": b"\x80", "x-first-death-reason": "rejected"})
    await put(
        world, Message(body=b"\x80", headers=headers, message_id=odd, correlation_id=odd, content_type=odd)
    )
    await world.collect()
    letter = await world.the_letter()
    (whole,) = await world.store.load([letter.id])
    assert whole.message.body == b"\x80"
    assert DAMAGED in letter.tags
    await store.close()


async def test_what_can_be_read_of_damaged_headers_is_read() -> None:
    world = World()
    await world.open()
    await put(
        world,
        Message(body=b"x", headers=Headers({"redrive-reason": "PoisonMessage", "redrive-failed-at": 7})),
    )
    await world.collect()
    letter = await world.the_letter()
    assert letter.reason == "PoisonMessage"
    assert DAMAGED in letter.tags


async def test_a_dead_letter_that_is_handed_out_again_is_kept_once() -> None:
    """A crash between keeping and accepting: the broker gives it again."""
    world = World()
    await world.open()
    await put(world, Message(body=b"x", headers=X_DEATH))
    receiver = await world.transport.receiver(Source(name="orders.dlq"))
    await world.collector.keep(await receiver.receive())
    await receiver.close()
    await world.collect()
    assert len(await world.heads()) == 1
    assert world.collector.counts.known == 1


@pytest.mark.parametrize("apart", [False, True])
async def test_two_messages_that_look_alike_are_two_letters(apart: bool) -> None:
    world = World()
    await world.open()
    same = Message(body=b"x", headers=X_DEATH)
    for _ in range(3):
        await put(world, same)
        if apart:
            await world.collect()
    await world.collect()
    assert len(await world.heads()) == 3
    assert world.collector.counts.collected == 3


async def test_a_message_that_died_twice_because_its_consumer_crashed_is_one_letter() -> None:
    world = World()
    await world.open()

    def dead(minute: int) -> Message:
        own: dict[str, Any] = {
            "redrive-version": "2",
            "redrive-reason": "NonRetryableError",
            "redrive-error-type": "PermissionError",
            "redrive-description": "no",
            "redrive-failed-at": f"2026-02-11T11:0{minute}:00+00:00",
            "redrive-key": "orders/m-1",
            "redrive-source": "orders",
            "redrive-transport": "memory",
        }
        return Message(body=b"x", headers=Headers(own), message_id="m-1")

    await put(world, dead(1))
    await world.collect()
    await put(world, dead(2))
    await world.collect()
    assert len(await world.heads()) == 1
    await put(world, Message(body=b"something else", headers=dead(3).headers, message_id="m-1"))
    await world.collect()
    assert len(await world.heads()) == 2, "another body is another message"


async def test_nothing_is_accepted_while_the_store_is_full() -> None:
    world = World()
    await world.open()
    await put(world, Message(body=b"x", headers=X_DEATH))
    add, full = world.store.add, True

    async def refusing(letters: Any) -> list[bool]:
        if full:
            raise StoreFullError("the disk is full")
        return await add(letters)

    world.store.add = refusing  # type: ignore[method-assign]
    stop = asyncio.Event()
    task = asyncio.create_task(world.collector.run(stop))
    for _ in range(5):
        await world.quiet()
        world.clock.advance(timedelta(seconds=31))
    assert "the disk is full" in world.troubles[0]
    assert len(world.troubles) >= 3
    full = False
    for _ in range(5):
        world.clock.advance(timedelta(seconds=31))
        await world.quiet()
    stop.set()
    await asyncio.wait_for(task, 5)
    assert (await world.the_letter()).state is LetterState.PENDING
    assert await world.transport.depth("orders.dlq") == 0


async def test_a_verdict_that_cannot_be_read_is_told_and_dropped() -> None:
    world = World()
    await world.open()
    target = Target(name="redrive.verdicts")
    for body in (b"", b"{}", b"not json", b'{"id":"x","fence":1,"attempt":1,"at":"2026-02-11T11:00:00Z"}'):
        await world.transport.publish([Publication(Message(body=body), target)])
    await world.collect()
    assert (world.verdicts.counts.unreadable, world.verdicts.counts.late) == (3, 1)
    assert await world.transport.depth("redrive.verdicts") == 0


async def test_a_second_death_that_is_handed_out_again_is_told_once() -> None:
    """A crash between telling the letter and accepting the message."""
    world = World()
    await world.open()
    await put(world, Message(body=b"x", headers=X_DEATH))
    await world.collect()
    (held,) = await world.store.take([(await world.the_letter()).id], "worker-1")
    marks: dict[str, Any] = {"redrive-id": held.id, "redrive-fence": held.fence, "redrive-attempt": 1}
    await put(world, Message(body=b"x", headers=X_DEATH.with_(marks)))
    receiver = await world.transport.receiver(Source(name="orders.dlq"))
    await world.collector.keep(await receiver.receive())
    await receiver.close()
    await world.collect()
    (letter,) = await world.store.load([held.id])
    assert (letter.state, letter.dlq_retry_count, letter.notes) == (LetterState.PENDING, 1, ())
    assert (world.collector.counts.returned, world.collector.counts.known) == (1, 1)


async def test_messages_that_look_alike_and_are_handed_out_again_are_as_many_as_before() -> None:
    """A crash between keeping and accepting, where nothing tells one from the other, nor when it died."""
    world = World()
    await world.open()

    def dead(body: bytes) -> Message:
        told: dict[str, Any] = {"redrive-reason": "PoisonMessage", "redrive-key": f"orders/{body.decode()}"}
        return Message(body=body, headers=Headers(told))

    await put(world, *[dead(b"tick")] * 3, *[dead(b"tock")] * 2)
    receiver = await world.transport.receiver(Source(name="orders.dlq", window=100))
    batch = await receiver.receive()
    await world.collector.keep([each for each in batch if each.body == b"tock"])
    await world.collector.keep(batch[:3])
    await receiver.close()
    world.clock.advance(timedelta(hours=1))
    await world.collect()
    bodies = [(await world.store.load([head.id]))[0].message.body for head in await world.heads()]
    assert (bodies.count(b"tick"), bodies.count(b"tock")) == (3, 2)
    assert world.collector.counts.known == 5
