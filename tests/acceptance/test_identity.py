"""Letters belong to one broker, one source and one consumer: nothing vanishes, and no bystander resolves or blames one.

On RabbitMQ and on the embedded broker, with the real collectors, workers, replays and consumers.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from redrive import App, Context
from redrive.clock import SystemClock
from redrive.letters import LetterState, Message
from redrive.letters.redrive import PRIVATE
from redrive.recover.confirmer import Confirmer
from redrive.rules import StrategyOptions
from redrive.transports import Source, open_transport
from redrive.transports.redriving import SendOptions, attempts_of
from tests.acceptance.way_back import AT_ONCE, CONSUMING, MINUTE, Flaky, WayBack, open_way_back

COUNT = 20
DENIED = PermissionError("not for the auditors")
NETWORK = ConnectionResetError("connection reset by peer")


@asynccontextmanager
async def queues(url: str, *names: str) -> AsyncIterator[None]:
    """Queues with their dead-letter queues, made before anybody collects from them."""
    async with open_transport(url, SystemClock()) as transport:
        await transport.provision(
            [Source(name=name, max_deliveries=1, queue_type="classic") for name in names]
        )
        yield


def fan_out(way: WayBack) -> None:
    """An exchange that gives a copy of everything to `orders` and to `audit`."""
    with way.outside.channel() as channel:
        channel.exchange_declare("shop", "fanout", durable=True)
        for queue in ("orders", "audit"):
            channel.queue_bind(queue, "shop")


async def letters_by_source(way: WayBack) -> Counter[str]:
    return Counter(head.source for head in await way.heads())


@pytest.mark.parametrize("orders_fails", [True, False])
async def test_copies_of_a_replay_that_die_elsewhere_are_letters_of_that_queue(
    broker_url: str, tmp_path: Path, *, orders_fails: bool
) -> None:
    with_audit = open_way_back(broker_url, tmp_path, queues=["audit.dlq"])
    async with queues(broker_url, "audit"), with_audit as way:
        fan_out(way)
        orders, audit = Flaky(NETWORK), Flaky()
        async with way.consuming(orders), way.consuming(audit, queue="audit"):
            bodies = [f"order {number}".encode() for number in range(COUNT)]
            way.outside.publish("", *[(body, pika.BasicProperties()) for body in bodies], exchange="shop")
            heads = await way.until_letters(COUNT)
            if not orders_fails:
                orders.error = None
            audit.error = DENIED
            await way.replay(*[head.id for head in heads], sending=SendOptions(to="exchange"))
            await way.until_letters(2 * COUNT)
            state = (LetterState.PENDING, 1) if orders_fails else (LetterState.RESOLVED, 1)

            async def settled() -> bool:
                found = [
                    (head.state, head.dlq_retry_count)
                    for head in await way.heads()
                    if head.source == "orders"
                ]
                return found == [state] * COUNT

            await way.until(settled, f"orders are {state}")
        assert await letters_by_source(way) == {"orders": COUNT, "audit": COUNT}
        found = {head.source: set[bytes | None]() for head in await way.heads()}
        for head in await way.heads():
            letter = await way.whole(head.id)
            found[head.source].add(letter.message.body)
            assert letter.error_type == (
                "PermissionError" if head.source == "audit" else "ConnectionResetError"
            )
            assert not set(letter.message.headers.names()) & set(PRIVATE)
        assert found == {"orders": set(bodies), "audit": set(bodies)}


@pytest.mark.parametrize("how", ["app.publish", "another client"])
async def test_handler_that_forwards_its_headers_loses_no_message_and_blames_no_letter(
    broker_url: str, tmp_path: Path, how: str
) -> None:
    with_payments = open_way_back(broker_url, tmp_path, queues=["payments.dlq"])
    async with queues(broker_url, "payments"), with_payments as way:
        app = App(
            open_transport(broker_url, SystemClock()), settings=CONSUMING, clock=way.clock, observers=()
        )
        seen: list[tuple[bytes, bool]] = []
        works = False

        @app.consume("orders", attempts=1, max_deliveries=1, backoff=AT_ONCE, queue_type="classic")
        async def forward(message: Message, context: Context) -> None:
            seen.append((message.body or b"", context.redrive is not None))
            if not works:
                raise NETWORK
            assert not set(context.headers.names()) & set(PRIVATE)
            assert not set(message.headers.names()) & set(PRIVATE)
            if how == "app.publish":
                await app.publish("payments", message.body, headers=dict(context.headers))
            else:  # a client that knows nothing of redrive, with the headers as they are on the wire
                raw = context._delivery.message.headers
                headers: dict[str, Any] = {str(name): value for name, value in raw}
                properties = pika.BasicProperties(headers=headers, message_id=message.message_id)
                await asyncio.to_thread(way.outside.publish, "payments", (message.body or b"", properties))

        payments = Flaky(DENIED)
        async with app, way.consuming(payments, queue="payments"):
            await way.send(*[f"order {number}".encode() for number in range(COUNT)])
            await way.until_letters(COUNT)
            works = True
            way.clock.advance(MINUTE)
            while await way.worker.turn():
                pass

            async def resolved() -> bool:
                found = Counter(
                    (head.source, head.state is LetterState.RESOLVED) for head in await way.heads()
                )
                return found == {("orders", True): COUNT, ("payments", False): COUNT}

            await way.until(resolved, "orders are resolved, payments have letters of their own")
        assert {body for body, is_redrive in seen if is_redrive} == {
            f"order {n}".encode() for n in range(COUNT)
        }
        for head in await way.heads():
            letter = await way.whole(head.id)
            assert (letter.message.body or b"").startswith(b"order ")
            assert letter.error_type == (
                "PermissionError" if head.source == "payments" else "ConnectionResetError"
            )


@pytest.mark.parametrize("message_id", [None, "always-the-same"])
async def test_deaths_of_equal_messages_are_all_kept(
    broker_url: str, tmp_path: Path, message_id: str | None
) -> None:
    """Four equal batches of six, while the letters of the earlier ones are open."""
    async with open_way_back(broker_url, tmp_path, queue_type="quorum") as way:
        async with way.consuming(Flaky(DENIED)):
            for batch in range(1, 5):
                await way.send(*[b"tick"] * 6, message_id=message_id)
                await way.until_letters(6 * batch)
        heads = await way.heads()
        assert len(heads) == 24
        assert not any(head.tags for head in heads)


async def test_ids_and_counts_stay_with_a_letter_over_all_redrives_and_copies(
    broker_url: str, tmp_path: Path
) -> None:
    limit = StrategyOptions(max_redrives=3)
    async with open_way_back(broker_url, tmp_path, strategy=limit) as way:
        seen: list[tuple[str, str | None, int | None]] = []

        async def handle(body: bytes, context: Context) -> None:
            redrive = context.redrive
            seen.append(
                (
                    context.correlation_id,
                    context.message.message_id,
                    None if redrive is None else redrive.attempt,
                )
            )
            raise NETWORK

        async with way.consuming(handle):
            await way.send(b"order 1")  # with neither correlation id nor message id
            (head,) = await way.until_letters(1)
            for redrives in range(1, 4):
                way.clock.advance(60 * MINUTE)
                assert await way.worker.turn() == 1
                state = LetterState.PENDING if redrives < 3 else LetterState.FAILED
                await way.until_state(state, redrives, head.id)
            assert [attempt for _, _, attempt in seen] == [None, 1, 2, 3]
            assert {correlation for correlation, _, _ in seen} == {head.correlation_id}
            assert {message_id for _, message_id, attempt in seen if attempt} == {head.id}
            # A copy counts on: the limit was reached, so the next death is the last.
            await way.replay(head.id, copies=True)
            copies = await way.until_letters(2)
            copy = await way.whole(next(each.id for each in copies if each.id != head.id))
            await way.until_state(LetterState.FAILED, 1, copy.id)
            assert attempts_of(await way.whole(copy.id)) == 4
            assert seen[-1] == (head.correlation_id, head.id, 4)


@pytest.mark.parametrize("count", [2**31, 2**62])
async def test_dead_letter_with_an_absurd_count_is_kept(broker_url: str, tmp_path: Path, count: int) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        death = {
            "queue": "orders",
            "reason": "rejected",
            "count": count,
            "exchange": "",
            "routing-keys": ["orders"],
        }
        marks = {"redrive-id": "gone", "redrive-fence": count, "redrive-attempt": count}
        own = {"redrive-reason": "x", "redrive-retry-count": count, "redrive-key": "orders/1"}
        for headers in ({"x-death": [death]}, marks, own):
            way.outside.publish("orders.dlq", (b"x", pika.BasicProperties(headers=headers)))
        await way.until_letters(3)
        await way.drained("orders.dlq")


async def test_consumer_that_is_down_for_hours_resolves_nothing(broker_url: str, tmp_path: Path) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        handler = Flaky(NETWORK)
        async with way.consuming(handler):
            await way.send(*[f"order {number}".encode() for number in range(COUNT)])
            await way.until_letters(COUNT)
        way.clock.advance(MINUTE)
        while await way.worker.turn():
            pass
        confirmer = Confirmer(
            way.store,
            way.transport,
            clock=way.clock,
            verdict_timeout=60 * MINUTE,
            retry_in=MINUTE,
        )
        for _ in range(30):  # more than a day, with the messages in the queue
            way.clock.advance(61 * MINUTE)
            assert await way.rescuer.turn() == []
            assert await confirmer.turn() == COUNT
        heads = await way.heads()
        assert {(head.state, head.unconfirmed, head.presumed) for head in heads} == {
            (LetterState.PROCESSING, True, False)
        }
        assert way.outside.depth("orders") == COUNT
        # When it is back, its verdicts resolve the letters all the same.
        handler.error = None
        async with way.consuming(handler):

            async def resolved() -> bool:
                found = {(head.state, head.presumed, head.unconfirmed) for head in await way.heads()}
                return found == {(LetterState.RESOLVED, False, False)}

            await way.until(resolved, "late verdicts resolve the letters")


async def test_redrives_that_a_consumer_without_verdicts_took_are_presumed_with_evidence_only(
    broker_url: str, tmp_path: Path
) -> None:
    async with open_way_back(broker_url, tmp_path) as way:
        async with way.consuming(Flaky(NETWORK)):
            await way.send(b"order 1")
            await way.until_letters(1)
        way.clock.advance(MINUTE)
        assert await way.worker.turn() == 1
        clock = way.clock
        transport = open_transport(broker_url, clock)  # evidence is measured by the clock of the confirmer
        async with transport:
            confirmer = Confirmer(
                way.store, transport, clock=clock, verdict_timeout=60 * MINUTE, retry_in=MINUTE
            )
            clock.advance(61 * MINUTE)
            await confirmer.turn()
            assert (await way.the_letter()).unconfirmed
            assert len(await asyncio.to_thread(way.outside.take, "orders")) == 1, "taken by another client"
            turns = 0
            while (await way.the_letter()).state is LetterState.PROCESSING:
                clock.advance(16 * MINUTE)
                await confirmer.turn()
                turns += 1
                assert turns < 20, "the queue is empty, and nothing died"
            assert turns >= 5, "not before another verdict timeout"
        letter = await way.the_letter()
        assert (letter.state, letter.presumed, letter.unconfirmed) == (LetterState.RESOLVED, True, False)
