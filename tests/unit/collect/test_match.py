"""A dead letter or a verdict counts for a letter only if broker, place, content and claim agree."""

from typing import Any

import msgspec
import pytest

from redrive.letters import (
    ClaimToken,
    ConsumerRef,
    DeadLetter,
    Headers,
    LetterHead,
    LetterState,
    Message,
    Origin,
)
from redrive.letters.redrive import HEADERS, Redrive, content_digest, marked, redrive_of
from redrive.letters.verdict import QUEUE, Verdict, resolved, to_messages
from redrive.stores.changes import Resolve, Settlement
from redrive.transports import Publication, Target
from redrive.transports.redriving import SendOptions, attempts_of, publication
from tests.unit.recover.cycle import World

X_DEATH = "x-death"


def died_in(queue: str, message: Message) -> Message:
    """The message as a broker moves it to the dead letters of a queue."""
    death = Headers(
        {"queue": queue, "reason": "rejected", "count": 1, "exchange": "", "routing-keys": (queue,)}
    )
    return msgspec.structs.replace(message, headers=message.headers.with_({X_DEATH: (death,)}))


async def put(world: World, *messages: Message) -> None:
    target = Target(name="orders.dlq")
    assert not any(await world.transport.publish([Publication(one, target) for one in messages]))


async def sent_letter(body: bytes = b"order 1", **fields: Any) -> tuple[World, DeadLetter, Message]:
    """A world with one letter that was redriven, and the redrive as it was sent."""
    world = World()
    await world.open()
    await put(world, died_in("orders", Message(body=body, **fields)))
    await world.collect()
    (head,) = await world.heads()
    (held,) = await world.store.take([head.id], "worker-1")
    (letter,) = await world.store.load([held.id])
    message = publication(letter, held.claim_token, SendOptions()).message
    await world.store.extend([held.claim_token], sent=True)
    return world, letter, message


async def others(world: World, letter: DeadLetter) -> list[DeadLetter]:
    ids = [head.id for head in await world.heads() if head.id != letter.id]
    return await world.store.load(ids)


async def head_of(world: World, letter: DeadLetter) -> LetterHead:
    return (await world.store.load([letter.id]))[0]


async def test_redrive_that_dies_where_it_was_sent_returns_to_its_letter() -> None:
    world, letter, message = await sent_letter()
    await put(world, died_in("orders", message))
    await world.collect()
    assert await others(world, letter) == []
    head = await head_of(world, letter)
    assert (head.state, head.dlq_retry_count) == (LetterState.PENDING, 1)


async def test_copy_that_dies_in_another_queue_is_a_letter_of_that_queue() -> None:
    world, letter, message = await sent_letter()
    await put(world, died_in("audit", message))
    await world.collect()
    (other,) = await others(world, letter)
    assert (other.source, other.message.body, other.derived_from) == ("audit", b"order 1", letter.id)
    assert attempts_of(other) == 0
    assert not set(other.message.headers.names()) & set(HEADERS)
    assert (await head_of(world, letter)).state is LetterState.PROCESSING, "nobody has said anything of it"


async def test_copied_headers_on_other_content_are_a_letter_that_counts_on() -> None:
    world, letter, message = await sent_letter(message_id="m-1")
    other_body = msgspec.structs.replace(message, body=b"order 2")
    await put(world, died_in("orders", other_body))
    await world.collect()
    (other,) = await others(world, letter)
    assert (other.message.body, other.message_id, other.derived_from) == (b"order 2", "m-1", letter.id)
    assert attempts_of(other) == 1
    assert (await head_of(world, letter)).state is LetterState.PROCESSING


async def test_redrive_of_another_broker_is_a_letter_of_its_own() -> None:
    world, letter, message = await sent_letter()
    redrive = redrive_of(message.headers)
    assert redrive is not None
    assert redrive.to is not None
    elsewhere = msgspec.structs.replace(redrive, to=redrive.to._replace(broker="eu"))
    moved = msgspec.structs.replace(message, headers=marked(letter.message, elsewhere))
    await put(world, died_in("orders", moved))
    await world.collect()
    assert len(await others(world, letter)) == 1
    assert (await head_of(world, letter)).state is LetterState.PROCESSING


async def test_redrive_whose_place_of_death_is_unknown_is_a_letter_of_its_own() -> None:
    world, letter, message = await sent_letter()
    await put(world, message)
    await world.collect()
    (other,) = await others(world, letter)
    assert other.message.body == b"order 1"
    assert (await head_of(world, letter)).state is LetterState.PROCESSING


async def test_redrive_that_dies_after_its_letter_was_resolved_keeps_its_count() -> None:
    world, letter, message = await sent_letter()
    assert await world.store.settle([Settlement(letter.claim_token, Resolve())]) == [True]
    await put(world, died_in("orders", message))
    await world.collect()
    (other,) = await others(world, letter)
    assert (attempts_of(other), other.derived_from) == (1, letter.id)


async def test_two_copies_of_one_redrive_that_die_in_one_batch_count_once() -> None:
    world, letter, message = await sent_letter()
    await put(world, died_in("orders", message), died_in("orders", message))
    await world.collect()
    assert await others(world, letter) == []
    assert (await head_of(world, letter)).dlq_retry_count == 1
    assert (world.collector.counts.returned, world.collector.counts.known) == (1, 1)


@pytest.mark.parametrize(("source", "body", "is_own"), [
    ("orders", b"order 1", True), ("audit", b"order 1", False), ("orders", b"order 2", False),
])  # fmt: skip
async def test_redrive_of_version_1_is_matched_by_source_and_content(
    source: str,
    body: bytes,
    is_own: bool,
) -> None:
    world, letter, message = await sent_letter()
    old = marked(letter.message, Redrive(letter.claim_token, 1))
    await put(world, died_in(source, msgspec.structs.replace(message, headers=old, body=body)))
    await world.collect()
    assert len(await others(world, letter)) == (0 if is_own else 1)
    assert (await head_of(world, letter)).dlq_retry_count == (1 if is_own else 0)


async def test_letter_of_another_broker_with_the_same_id_does_not_swallow_a_dead_letter() -> None:
    """Consumers of two brokers make equal ids of equal keys and times."""
    world = World()
    await world.open()
    told = {
        "redrive-version": "2", "redrive-reason": "x", "redrive-key": "orders/7", "redrive-source": "orders",
        "redrive-failed-at": "2026-02-11T11:00:00.000000+00:00",
    }  # fmt: skip
    dead = Message(body=b"x", headers=Headers(told))
    await put(world, dead)
    await world.collect()
    world.collector._broker = "eu"
    await put(world, dead)
    await world.collect()
    await put(world, dead)
    await world.collect()
    assert sorted(head.broker for head in await world.heads()) == ["eu", "memory"]


# --- deaths of equal messages ----------------------------------------------------------------------------------


def dead(number: int, *, deliveries: int = 1) -> Message:
    """A dead letter as a consumer of RabbitMQ writes it: equal messages have keys with a token of their own."""
    told: dict[str, Any] = {
        "redrive-version": "2", "redrive-reason": "x", "redrive-key": f"orders/m-1~{number}",
        "redrive-failed-at": f"2026-02-11T11:00:00.00000{number}+00:00", "redrive-source": "orders",
        "redrive-delivery-count": deliveries,
    }  # fmt: skip
    return Message(body=b"same", message_id="m-1", headers=Headers(told))


async def test_deaths_of_equal_messages_are_all_kept_in_one_batch_or_several() -> None:
    world = World()
    await world.open()
    await put(world, dead(1), dead(2), dead(3))
    await world.collect()
    await put(world, dead(4), dead(5))
    await world.collect()
    heads = await world.heads()
    assert len(heads) == 5
    assert not any(head.tags for head in heads), "a first delivery is certainly a message of its own"


async def test_dead_letter_that_was_published_twice_is_one_letter() -> None:
    world = World()
    await world.open()
    await put(world, dead(1), dead(1))
    await world.collect()
    await put(world, dead(1))
    await world.collect()
    assert len(await world.heads()) == 1
    assert world.collector.counts.known == 2


async def test_death_of_a_redelivered_equal_message_is_kept_and_tagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from redrive.transports.memory import MemoryDelivery

    monkeypatch.setattr(MemoryDelivery, "has_exact_key", False)
    world = World()
    await world.open()
    await put(world, dead(1), dead(2, deliveries=2))
    await world.collect()
    assert sorted(head.tags for head in await world.heads()) == [(), ("possible-duplicate",)]


@pytest.mark.parametrize("count", [2**31, 2**62, 2**63 - 1])
async def test_counts_beyond_any_limit_are_clamped_and_the_letter_is_kept(count: int) -> None:
    world = World()
    await world.open()
    death = Headers({"queue": "orders", "reason": "rejected", "count": count})
    own: dict[str, Any] = {"redrive-reason": "x", "redrive-retry-count": count, "redrive-key": "orders/2"}
    marks: dict[str, Any] = {"redrive-id": "gone", "redrive-fence": count, "redrive-attempt": count}
    await put(
        world,
        Message(body=b"a", headers=Headers({"x-death": (death,)})),
        Message(body=b"b", headers=Headers(own)),
        Message(body=b"c", headers=Headers(marks)),
    )
    await world.collect()
    assert len(await world.heads()) == 3
    assert await world.transport.depth("orders.dlq") == 0


# --- verdicts --------------------------------------------------------------------------------------------------


async def judged(world: World, *verdicts: Verdict) -> None:
    target = Target(name=QUEUE)
    await world.transport.publish([Publication(one, target) for one in to_messages(verdicts)])
    await world.collect()


async def test_verdict_of_the_addressed_consumer_resolves_its_letter() -> None:
    world, letter, message = await sent_letter()
    redrive = redrive_of(message.headers)
    assert redrive is not None
    await judged(world, resolved(redrive, "orders", world.clock.now()))
    assert (await head_of(world, letter)).state is LetterState.RESOLVED


@pytest.mark.parametrize(("source", "group"), [("audit", ""), ("orders", "audit")])
async def test_verdict_of_another_consumer_changes_nothing(source: str, group: str) -> None:
    world, letter, message = await sent_letter()
    redrive = redrive_of(message.headers)
    assert redrive is not None
    await judged(world, resolved(redrive, source, world.clock.now(), group))
    assert (await head_of(world, letter)).state is LetterState.PROCESSING
    assert world.verdicts.counts.other_consumer == 1


async def test_verdict_for_another_broker_changes_nothing() -> None:
    world, letter, _ = await sent_letter()
    redrive = Redrive(
        letter.claim_token, 1, None, ConsumerRef("eu", "orders"), content_digest(letter.message)
    )
    await judged(world, resolved(redrive, "orders", world.clock.now()))
    assert (await head_of(world, letter)).state is LetterState.PROCESSING
    assert world.verdicts.counts.other_broker == 1


@pytest.mark.parametrize(
    ("source", "state"), [("orders", LetterState.RESOLVED), ("audit", LetterState.PROCESSING)]
)
async def test_verdict_of_version_1_counts_for_the_source_of_its_letter(
    source: str, state: LetterState
) -> None:
    world, letter, _ = await sent_letter()
    await judged(world, resolved(Redrive(letter.claim_token, 1), source, world.clock.now()))
    assert (await head_of(world, letter)).state is state


def test_origin_of_a_delivery_decides_whether_a_redrive_is_its_own() -> None:
    message = Message(body=b"x", key=b"k")
    redrive = Redrive(
        ClaimToken("l", 1), 1, None, ConsumerRef("events", "orders", "shop"), content_digest(message)
    )
    origin = Origin(transport="kafka", source="orders", consumer_group="shop")
    assert redrive.is_addressed_to(origin.source, origin.consumer_group)
    assert not redrive.is_addressed_to("orders", "audit")
    assert not redrive.is_addressed_to("payments", "shop")
    assert redrive.has_content(message)
    assert not redrive.has_content(msgspec.structs.replace(message, key=b"other"))


@pytest.mark.parametrize("text", ["", "x", "a/b", "a/b/c/d", "/b/c", "a//c"])
def test_redrive_with_an_unreadable_address_is_an_ordinary_message(text: str) -> None:
    headers = Headers({"redrive-id": "l", "redrive-fence": 1, "redrive-attempt": 1, "redrive-to": text})
    assert redrive_of(headers) is None or not text
    assert redrive_of(headers.with_({"redrive-digest": "00"})) is None


@pytest.mark.parametrize("parts", [("shop", "a/b c", "größe"), ("shop", "%2F", ""), ("x", "\udcff", "/")])
def test_address_of_a_redrive_survives_its_header(parts: tuple[str, str, str]) -> None:
    assert ConsumerRef.parse(str(ConsumerRef(*parts))) == ConsumerRef(*parts)
