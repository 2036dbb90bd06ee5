"""Does aio-pika, the asyncio client, work with the broker?

The one rule: only aio-pika's public interface is used, and every test runs against each broker of `brokers.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
import pytest_asyncio
from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue

Names = Callable[[str], str]
PATIENCE = 10.0


@pytest_asyncio.fixture
async def connection(broker_url: str) -> AsyncIterator[AbstractConnection]:
    connection = await aio_pika.connect(broker_url)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def channel(connection: AbstractConnection) -> AbstractChannel:
    return await connection.channel()


async def _queue(channel: AbstractChannel, name: str, **arguments: Any) -> AbstractQueue:
    """Exclusive, so that it goes with the connection."""
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return await channel.declare_queue(name, exclusive=True, arguments=table)


async def _publish(channel: AbstractChannel, queue: str, body: bytes, **properties: Any) -> None:
    await channel.default_exchange.publish(Message(body, **properties), queue)


async def _next(queue: AbstractQueue) -> AbstractIncomingMessage:
    """The next message, whenever it comes."""
    found: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    tag = await queue.consume(found.put)
    message = await asyncio.wait_for(found.get(), PATIENCE)
    await queue.cancel(tag)
    return message


def _deaths(message: AbstractIncomingMessage) -> Any:
    return message.headers["x-death"]


async def test_a_message_is_published_and_got(channel: AbstractChannel, unique: Names) -> None:
    queue = await _queue(channel, unique("work"))
    await _publish(channel, queue.name, b"body", content_type="text/plain", headers={"n": 1, "s": "text"})

    message = await queue.get(no_ack=True)

    assert message is not None
    assert (message.body, message.content_type, message.headers) == (
        b"body",
        "text/plain",
        {"n": 1, "s": "text"},
    )
    assert await queue.get(fail=False) is None


async def test_a_consumer_gets_messages_in_order(channel: AbstractChannel, unique: Names) -> None:
    queue = await _queue(channel, unique("work"))
    for body in (b"1", b"2", b"3"):
        await _publish(channel, queue.name, body)
    bodies = []

    async with asyncio.timeout(PATIENCE), queue.iterator() as messages:
        async for message in messages:
            bodies.append(message.body)
            await message.ack()
            if len(bodies) == 3:
                break

    assert bodies == [b"1", b"2", b"3"]


async def test_publishes_are_confirmed_all_at_once(channel: AbstractChannel, unique: Names) -> None:
    queue = await _queue(channel, unique("work"))

    await asyncio.gather(*(_publish(channel, queue.name, b"body") for _ in range(50)))

    assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 50


async def test_a_full_queue_nacks(channel: AbstractChannel, unique: Names) -> None:
    queue = await _queue(channel, unique("full"), max_length=1, overflow="reject-publish")
    await _publish(channel, queue.name, b"1")

    with pytest.raises(aiormq.exceptions.DeliveryError):
        await _publish(channel, queue.name, b"2")


async def test_an_unroutable_mandatory_message_comes_back(
    connection: AbstractConnection, unique: Names
) -> None:
    channel = await connection.channel(on_return_raises=True)

    with pytest.raises(aiormq.exceptions.PublishError) as failure:
        await _publish(channel, unique("nowhere"), b"body")

    assert failure.value.message is not None
    assert failure.value.message.body == b"body"


async def test_a_transaction_takes_effect_at_commit_and_not_at_rollback(
    connection: AbstractConnection, unique: Names
) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await _queue(channel, unique("work"))
    transaction = channel.transaction()
    await transaction.select()
    await _publish(channel, queue.name, b"lost")
    await transaction.rollback()
    await _publish(channel, queue.name, b"kept")
    await transaction.commit()

    message = await queue.get(no_ack=True)

    assert message is not None
    assert message.body == b"kept"
    assert await queue.get(fail=False) is None


async def test_a_rejected_message_is_dead_lettered(channel: AbstractChannel, unique: Names) -> None:
    dead = await _queue(channel, unique("dead"))
    work = await _queue(
        channel, unique("work"), dead_letter_exchange="", dead_letter_routing_key=unique("dead")
    )
    await _publish(channel, work.name, b"body", message_id="id")
    await (await _next(work)).reject(requeue=False)

    message = await _next(dead)

    [death] = _deaths(message)
    assert (message.body, message.message_id) == (b"body", "id")
    assert {key: death[key] for key in ("queue", "reason", "count", "exchange", "routing-keys")} == {
        "queue": work.name,
        "reason": "rejected",
        "count": 1,
        "exchange": "",
        "routing-keys": [work.name],
    }


async def test_an_expired_message_is_dead_lettered(channel: AbstractChannel, unique: Names) -> None:
    dead = await _queue(channel, unique("dead"))
    work = await _queue(
        channel, unique("work"), dead_letter_exchange="", dead_letter_routing_key=unique("dead")
    )
    await _publish(channel, work.name, b"body", expiration=0.05)

    message = await _next(dead)

    [death] = _deaths(message)
    assert (death["reason"], death["original-expiration"], message.expiration) == ("expired", "50", None)


async def test_a_priority_queue_delivers_the_highest_first(channel: AbstractChannel, unique: Names) -> None:
    queue = await _queue(channel, unique("priorities"), max_priority=5)
    for priority in (1, 5, 3):
        await _publish(channel, queue.name, str(priority).encode(), priority=priority)

    assert [(await queue.get(no_ack=True)).body for _ in range(3)] == [b"5", b"3", b"1"]


async def test_a_missing_queue_is_404(channel: AbstractChannel, unique: Names) -> None:
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match="NOT_FOUND - no queue"):
        await channel.declare_queue(unique("missing"), passive=True)


async def test_a_different_declaration_is_406(channel: AbstractChannel, unique: Names) -> None:
    await channel.declare_queue(unique("work"), auto_delete=True)

    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="inequivalent arg 'durable'"):
        await channel.declare_queue(unique("work"), auto_delete=True, durable=True)


async def test_somebody_elses_exclusive_queue_is_405(
    channel: AbstractChannel, broker_url: str, unique: Names
) -> None:
    await _queue(channel, unique("mine"))
    async with await aio_pika.connect(broker_url) as other:
        with pytest.raises(aiormq.exceptions.ChannelLockedResource):
            await (await other.channel()).declare_queue(unique("mine"), passive=True)


async def test_a_reserved_name_is_403_and_the_connection_lives_on(connection: AbstractConnection) -> None:
    channel = await connection.channel()
    with pytest.raises(aiormq.exceptions.ChannelAccessRefused):
        await channel.declare_queue("amq.mine")

    await (await connection.channel()).declare_queue(exclusive=True)


async def test_no_more_is_delivered_than_the_prefetch_allows(channel: AbstractChannel, unique: Names) -> None:
    queue = await _queue(channel, unique("work"))
    for body in (b"1", b"2", b"3"):
        await _publish(channel, queue.name, body)
    found: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    await channel.set_qos(prefetch_count=2)
    await queue.consume(found.put)
    first = await asyncio.wait_for(found.get(), PATIENCE)
    await asyncio.wait_for(found.get(), PATIENCE)

    left = (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count
    assert (left, found.empty()) == (1, True)
    await first.ack()
    assert (await asyncio.wait_for(found.get(), PATIENCE)).body == b"3"


async def test_a_consumer_is_told_when_its_queue_is_deleted(
    connection: AbstractConnection, channel: AbstractChannel, unique: Names
) -> None:
    queue = await _queue(channel, unique("doomed"))
    cancelled: asyncio.Queue[Any] = asyncio.Queue()
    underlay: Any = await channel.get_underlay_channel()
    underlay.on_consumer_cancel_callbacks.add(cancelled.put)  # aio-pika itself has no name for this
    tag = await queue.consume(asyncio.Queue[AbstractIncomingMessage]().put)

    await (await connection.channel()).queue_delete(queue.name)

    assert (await asyncio.wait_for(cancelled.get(), PATIENCE)).consumer_tag == tag
