"""The broker in memory beyond the contract: time by hand, several connections, and troubles that it is told to have."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import (
    BrokerUnreachableError,
    PublishError,
    SettingsError,
    SourceMissingError,
    TransportClosedError,
)
from redrive.letters import DeadLetter, Message
from redrive.testing import ManualClock, a_failure
from redrive.transports import open_transport
from redrive.transports.base import Death, Delivery, Publication, Release, Source, Target, Transport
from redrive.transports.memory import MemoryBroker, MemoryReceiver, MemoryTransport

SECOND = timedelta(seconds=1)
ORDERS = Source(name="orders")


async def a_transport(
    clock: ManualClock, broker: MemoryBroker | None = None, *sent: bytes
) -> MemoryTransport:
    transport = MemoryTransport(clock, broker)
    await transport.open()
    await transport.provision([ORDERS])
    await send(transport, *sent)
    return transport


async def send(transport: MemoryTransport, *sent: bytes, to: Target = Target(name="orders")) -> None:  # noqa: B008
    outcomes = await transport.publish([Publication(Message(body=body), to) for body in sent])
    assert list(outcomes) == [None] * len(sent)


def bodies(deliveries: Any) -> list[bytes | None]:
    return [delivery.body for delivery in deliveries]


def a_death(delivery: Delivery) -> Death:
    letter = DeadLetter.create(
        delivery.message, delivery.origin, a_failure(), key=delivery.key, reason="PoisonMessage"
    )
    return Death(delivery, letter)


async def waiting(receiver: MemoryReceiver) -> "asyncio.Task[Any]":
    task = asyncio.create_task(receiver.receive())
    await settled()
    assert not task.done()
    return task


async def settled() -> None:
    for _ in range(5):  # more turns of the loop than anything here takes
        await asyncio.sleep(0)


# --- order and batches ------------------------------------------------------------------------------------


async def test_one_batch_holds_all_that_is_there() -> None:
    transport = await a_transport(ManualClock(), None, b"0", b"1", b"2")

    receiver = await transport.receiver(ORDERS)

    assert bodies(await receiver.receive()) == [b"0", b"1", b"2"]


async def test_what_is_given_back_goes_to_its_old_place() -> None:
    clock = ManualClock()
    transport = await a_transport(clock, None, b"0", b"1", b"2", b"3")
    receiver = await transport.receiver(Source(name="orders", window=3))
    first, second, third = await receiver.receive()

    await receiver.release([Release(third), Release(first)])

    assert bodies(await receiver.receive()) == [b"0", b"2"]
    assert second.alive


# --- time -------------------------------------------------------------------------------------------------


async def test_a_delay_is_kept_by_the_clock_to_the_moment() -> None:
    clock = ManualClock()
    transport = await a_transport(clock, None, b"later")
    receiver = await transport.receiver(ORDERS)
    [delivery] = await receiver.receive()
    await receiver.release([Release(delivery, 10 * SECOND)])
    task = await waiting(receiver)

    clock.advance(10 * SECOND - timedelta(microseconds=1))
    await settled()
    assert (task.done(), await transport.depth("orders")) == (False, 0)
    clock.advance(timedelta(microseconds=1))

    [again] = await asyncio.wait_for(task, 5)
    assert (again.body, again.delivery_count, again.key) == (b"later", 2, delivery.key)
    assert clock.sleepers == 0


async def test_a_jump_of_the_time_of_day_changes_no_delay() -> None:
    clock = ManualClock()
    transport = await a_transport(clock, None, b"later")
    receiver = await transport.receiver(ORDERS)
    await receiver.release([Release((await receiver.receive())[0], SECOND)])

    clock.jump(timedelta(days=1))

    assert await transport.depth("orders") == 0
    clock.advance(SECOND)
    assert await transport.depth("orders") == 1


async def test_the_shorter_of_two_delays_ends_first_whoever_asked_first() -> None:
    clock = ManualClock()
    transport = await a_transport(clock, None, b"long", b"short")
    receiver = await transport.receiver(ORDERS)
    long, short = await receiver.receive()
    await receiver.release([Release(long, 20 * SECOND), Release(short, 10 * SECOND)])

    for body in (b"short", b"long"):
        task = await waiting(receiver)
        clock.advance(10 * SECOND)
        assert bodies(await asyncio.wait_for(task, 5)) == [body]


async def test_a_message_published_meanwhile_does_not_wait_for_a_delay() -> None:
    clock = ManualClock()
    transport = await a_transport(clock, None, b"later")
    receiver = await transport.receiver(ORDERS)
    await receiver.release([Release((await receiver.receive())[0], SECOND)])
    task = await waiting(receiver)

    await send(transport, b"now")

    assert bodies(await asyncio.wait_for(task, 5)) == [b"now"]
    await settled()
    assert clock.sleepers == 0  # nobody sleeps for a receive that is over


# --- connections ------------------------------------------------------------------------------------------


async def test_two_transports_meet_on_one_broker() -> None:
    clock, broker = ManualClock(), MemoryBroker()
    one, other = await a_transport(clock, broker), await a_transport(clock, broker)
    receiver = await other.receiver(ORDERS)
    task = await waiting(receiver)

    await send(one, b"hello")

    assert bodies(await asyncio.wait_for(task, 5)) == [b"hello"]


async def test_transports_without_a_broker_in_common_share_nothing() -> None:
    one, other = await a_transport(ManualClock(), None, b"x"), await a_transport(ManualClock())

    assert (await one.depth("orders"), await other.depth("orders")) == (1, 0)


async def test_a_cut_gives_back_what_is_out_and_nothing_twice() -> None:
    broker = MemoryBroker()
    transport = await a_transport(ManualClock(), broker, b"0", b"1")
    receiver = await transport.receiver(ORDERS)
    first, second = await receiver.receive()
    receiver.accept([first])

    broker.cut()
    broker.cut()

    assert (second.alive, await transport.depth("orders")) == (False, 1)
    assert receiver.accept([first, second]) == 1
    [again] = await receiver.receive()
    assert (again.body, again.delivery_count, again.key) == (b"1", 2, second.key)


async def test_a_broker_that_left_is_unreachable_until_it_comes_back() -> None:
    broker = MemoryBroker()
    transport = await a_transport(ManualClock(), broker, b"x")
    receiver = await transport.receiver(ORDERS)
    [out] = await receiver.receive()

    broker.leave()

    assert not out.alive
    for outcome in (
        *await transport.publish([Publication(Message(body=b"y"), Target(name="orders"))]),
        *await receiver.release([Release(out)]),
        *await receiver.dead_letter([a_death(out)]),
    ):
        assert isinstance(outcome, BrokerUnreachableError)
    for verb in (transport.depth("orders"), transport.peek("orders", 1), transport.receiver(ORDERS)):
        with pytest.raises(BrokerUnreachableError, match="start it again"):
            await verb
    with pytest.raises(BrokerUnreachableError):
        await MemoryTransport(ManualClock(), broker).open()
    task = await waiting(receiver)
    broker.come_back()
    assert bodies(await asyncio.wait_for(task, 5)) == [b"x"]


async def test_a_queue_that_is_removed_is_missing_for_its_receiver_alone() -> None:
    broker = MemoryBroker()
    transport = await a_transport(ManualClock(), broker)
    task = await waiting(await transport.receiver(ORDERS))

    broker.remove("orders")

    with pytest.raises(SourceMissingError, match=r"'orders' does not exist; did you mean 'orders\.dlq'\?"):
        await asyncio.wait_for(task, 5)
    assert await transport.depth("orders.dlq") == 0


# --- refusing ---------------------------------------------------------------------------------------------


async def test_what_is_refused_stays_with_its_source_until_it_is_permitted() -> None:
    broker = MemoryBroker()
    transport = await a_transport(ManualClock(), broker, b"x")
    receiver = await transport.receiver(ORDERS)
    [delivery] = await receiver.receive()
    broker.refuse("orders.dlq", "disk is full")

    [outcome] = await receiver.dead_letter([a_death(delivery)])

    assert isinstance(outcome, PublishError)
    assert str(outcome) == "queue 'orders.dlq' refuses messages: disk is full"
    assert (delivery.alive, await transport.depth("orders.dlq")) == (True, 0)
    broker.permit("orders.dlq")
    assert await receiver.dead_letter([a_death(delivery)]) == [None]
    assert (delivery.alive, await transport.depth("orders.dlq")) == (False, 1)


async def test_a_queue_that_refuses_takes_no_publication_either() -> None:
    broker = MemoryBroker()
    transport = await a_transport(ManualClock(), broker)
    broker.refuse("orders", "closed for the night")

    [outcome] = await transport.publish([Publication(Message(body=b"x"), Target(name="orders"))])

    assert isinstance(outcome, PublishError)
    assert await transport.depth("orders") == 0


# --- what cannot be ---------------------------------------------------------------------------------------


async def test_the_empty_exchange_leads_to_the_queue_its_key_names_and_no_other_exists() -> None:
    transport = await a_transport(ManualClock())

    await send(transport, b"x", to=Target(exchange="", routing_key="orders"))
    [outcome] = await transport.publish(
        [Publication(Message(body=b"x"), Target(exchange="shop", routing_key="orders"))]
    )

    assert str(outcome) == "cannot publish to exchange 'shop': the in-memory broker has no exchanges"
    assert await transport.depth("orders") == 1


@pytest.mark.parametrize("window", [0, -1])
async def test_a_window_that_lets_nothing_through_is_refused(window: int) -> None:
    transport = await a_transport(ManualClock())
    with pytest.raises(SettingsError, match="prefetch must be at least 1"):
        await transport.receiver(Source(name="orders", window=window))
    receiver = await transport.receiver(ORDERS)
    with pytest.raises(SettingsError, match="prefetch must be at least 1"):
        receiver.resize(window)


async def test_a_broker_that_cannot_reject_says_so_before_anything_is_made() -> None:
    transport = await a_transport(ManualClock())

    with pytest.raises(SettingsError, match="set dead_letter to 'publish'"):
        await transport.provision([Source(name="new"), Source(name="bad", dead_letter="native")])

    with pytest.raises(SourceMissingError):
        await transport.depth("new")


async def test_provisioning_again_leaves_what_is_there() -> None:
    transport = await a_transport(ManualClock(), None, b"x")

    await transport.provision([ORDERS])

    assert await transport.depth("orders") == 1


async def test_a_transport_that_is_not_open_says_so() -> None:
    transport = MemoryTransport(ManualClock())
    with pytest.raises(TransportClosedError, match="transport is not open"):
        await transport.depth("orders")
    await transport.open()
    await transport.close()
    with pytest.raises(TransportClosedError, match="create a new one"):
        await transport.open()


async def test_a_delivery_of_another_transport_is_a_mistake_of_the_caller() -> None:
    class Foreign(Delivery):
        body = b""
        message = Message(body=b"")
        origin = delivery_count = alive = key = None  # type: ignore[assignment]

    receiver = await (await a_transport(ManualClock())).receiver(ORDERS)

    with pytest.raises(TypeError, match="Foreign is not a delivery of the in-memory transport"):
        receiver.accept([Foreign()])


async def test_a_url_names_it() -> None:
    transport: Transport = open_transport("memory:", ManualClock())

    async with transport:
        assert transport.kind == "memory"
