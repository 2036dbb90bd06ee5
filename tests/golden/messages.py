"""Dead letters, redrives and verdicts as bytes, as redrive's own consumer and sender write them.

A consumer runs on the embedded broker and on Kafka, and fails with an error of every kind. What it writes is read from
the broker without decoding.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from confluent_kafka import Consumer, Producer
from confluent_kafka.cimpl import TIMESTAMP_NOT_AVAILABLE

from redrive import App, Context, Rule, Settings
from redrive.letters import ClaimToken, DeadLetter, FailureKind, Headers, Message
from redrive.letters.verdict import QUEUE
from redrive.rules import Fixed, format_duration
from redrive.rules.rule import TypeIs
from redrive.transports import Publication, Source, Target, Transport, open_transport
from redrive.transports.redriving import SendOptions, publication
from tests.golden.amqp import Connection, Content
from tests.golden.letters import ALL_TYPES

_TIMEOUT: Final = 60.0
Mode = Literal["fail", "succeed", "wait"]
WAIT: Final = timedelta(seconds=15)


class HttpError(Exception):
    """An error with a status, as HTTP clients raise it."""

    def __init__(self, status: int, **fields: Any) -> None:
        super().__init__(f"the shop answered {status} for order 4711")
        self.status_code = status
        self.__dict__.update(fields)


class CardDeclinedError(Exception):
    """A business error; a rule of the application classifies it."""


def _chained() -> Exception:
    error = RuntimeError("order cannot be charged")
    error.__cause__ = ConnectionResetError(104, "connection reset by peer")
    return error


_KIND_OF: Final = {
    FailureKind.EXPIRED: "ShelfLifeError",
    FailureKind.OVERFLOW: "ShelfFullError",
    FailureKind.BUSINESS: "CardDeclinedError",
}
ERRORS: Final[Mapping[str, Callable[[], BaseException]]] = {
    "timeout": lambda: TimeoutError("no answer after 30 s"),
    "network": lambda: ConnectionResetError(104, "connection reset by peer"),
    "unavailable": lambda: HttpError(503),
    "rate_limited": lambda: HttpError(429, headers={"Retry-After": "120"}),
    "database": lambda: type("OperationalError", (Exception,), {"__module__": "sqlite3"})("database is locked"),
    "server_error": lambda: HttpError(500),
    "malformed": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "rejected": lambda: HttpError(400),
    "denied": lambda: PermissionError("password=hunter2 rejected for kim@example.com"),
    "not_found": lambda: FileNotFoundError("order 4711"),
    "business": lambda: CardDeclinedError("card declined for größe 5"),
    "expired": lambda: type("ShelfLifeError", (Exception,), {})("offer expired"),
    "overflow": lambda: type("ShelfFullError", (Exception,), {})("shelf is full"),
    "crash": lambda: type("BrokenProcessPool", (Exception,), {"__module__": "concurrent.futures.process"})("died"),
    "unknown": lambda: ValueError("total is negative: -5"),
    "chained": _chained,
    "long": lambda: ValueError("größe " * 700),
}  # fmt: skip
RULES: Final = tuple(
    Rule(f"golden:{kind}", kind, when=TypeIs(frozenset({f"{__name__}.{name}", name})))
    for kind, name in _KIND_OF.items()
)


def originals(*, amqp: bool) -> list[Message]:
    """What producers send: one message for each error, in different shapes."""
    shapes: Sequence[dict[str, str]] = (
        {"message_id": "message-{}", "correlation_id": "correlation-{}", "content_type": "application/json"},
        {},
        {"message_id": "größe-{}"},
        {},
    )
    messages: list[Message] = []
    for number, cause in enumerate((*ERRORS, "asked", "types")):
        shape: dict[str, Any] = {name: value.format(number) for name, value in shapes[number % 4].items()}
        if number % 4 == 3:
            shape["headers"] = Headers([("x-correlation-id", f"trace-{number}"), ("tenant", b"north")])
        headers = [
            *(ALL_TYPES if cause == "types" and amqp else ()),
            *shape.pop("headers", ()),
            ("cause", cause),
        ]
        if amqp:
            shape["properties"] = Headers(
                {"delivery_mode": 2} if number % 2 else {"delivery_mode": 2, "priority": 4, "reply_to": "r"}
            )
        else:
            shape["key"] = (None, b"customer-%d" % number, b"", b"\xff")[number % 4]
        body: bytes | None = (json.dumps({"order": number}).encode(), b"\x00\xff", b"", "größe".encode())[
            number % 4
        ]
        if not amqp and number % 7 == 3:
            body = None
        messages.append(Message(body=body, headers=Headers(headers), **shape))
    return messages


def _handler(mode: Mode) -> Callable[[Context], Awaitable[None]]:
    async def handle(context: Context) -> None:
        cause = context.headers.text("cause") or "unknown"
        if mode == "succeed":
            return
        if mode == "wait":
            context.requeue(WAIT)
        if cause == "asked":
            context.dead_letter("NoSuchCustomer", "customer 4711 was deleted")
        error = ERRORS.get(cause, ERRORS["unknown"])()
        raise error

    return handle


async def consume(
    url: str,
    sources: Mapping[str, dict[str, Any]],
    done: Callable[[Transport], Awaitable[bool]],
    *,
    mode: Mode,
) -> None:
    """Run a consumer of these sources until `done`."""
    app = App(url, settings=Settings(), rules=RULES, observers=())
    for name, options in sources.items():
        app.consume(name, attempts=1, backoff=Fixed(timedelta(milliseconds=10)), breaker=False, **options)(
            _handler(mode)
        )
    async with open_transport(url) as transport, app, asyncio.timeout(_TIMEOUT):
        while not await done(transport):  # noqa: ASYNC110  another process brings it about
            await asyncio.sleep(0.05)


async def _publish(url: str, publications: Sequence[Publication]) -> None:
    async with open_transport(url) as transport:
        assert not any(await transport.publish(publications))


async def _provision(url: str, *sources: Source) -> None:
    async with open_transport(url) as transport:
        await transport.provision(sources)
        await transport.ensure_queue(QUEUE)


def redrives_of(letters: Sequence[DeadLetter], *, amqp: bool) -> list[Publication]:
    """Redrives of letters: by a worker and by a replay, the first and a later one, to the source and elsewhere."""
    ways: Sequence[tuple[SendOptions, str | None]] = (
        (SendOptions(), None),
        (SendOptions(), "op-20260211-120000-abcdef"),
        (SendOptions(message_id="new"), None),
        (SendOptions(to="exchange" if amqp else "partition"), "op-größe"),
    )
    return [
        publication(letter, ClaimToken(letter.id, number * 7 + 1), *ways[number % 4])
        for number, letter in enumerate(letters)
    ]


def body_of(record: Mapping[str, Any]) -> bytes:
    """The body of a recorded message of either broker."""
    return b64decode(record["body"] if "body" in record else record["value"])


# --- RabbitMQ -----------------------------------------------------------------------------------------------


def amqp_record(content: Content) -> dict[str, Any]:
    """A message as JSON."""
    return {
        "exchange": content.exchange,
        "routing_key": content.routing_key,
        "properties": b64encode(content.properties).decode(),
        "body": b64encode(content.body).decode(),
    }


def put_amqp(url: str, queue: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write recorded messages to a queue."""
    with Connection(url) as connection:
        for record in records:
            connection.publish("", queue, b64decode(record["properties"]), b64decode(record["body"]))


def _read_amqp(url: str, queue: str) -> list[Any]:
    with Connection(url) as connection:
        return [amqp_record(content) for content in connection.get_all(queue)]


async def amqp_dead_letters(url: str) -> dict[str, list[Any]]:
    """Dead letters by queue: published by the consumer, and moved by the broker itself."""
    sources: Mapping[str, dict[str, Any]] = {
        "orders": {"max_deliveries": 1},
        "twice": {"max_deliveries": 2},
        "native": {"max_deliveries": 1, "dead_letter": "native"},
    }
    await _provision(url, *(Source(name=name, **options) for name, options in sources.items()))
    messages = originals(amqp=True)
    some = messages[:3]
    sent = {"orders": messages, "twice": some, "native": some}
    await _publish(url, [Publication(one, Target(name=name)) for name, each in sent.items() for one in each])
    done = partial(_all_dead, {f"{name}.dlq": len(each) for name, each in sent.items()})
    await consume(url, sources, done, mode="fail")
    return {f"{name}.dlq": await asyncio.to_thread(_read_amqp, url, f"{name}.dlq") for name in sent}


async def _all_dead(wanted: Mapping[str, int], transport: Transport) -> bool:
    return all([await transport.depth(queue) >= count for queue, count in wanted.items()])


async def _processed(queue: str, transport: Transport) -> bool:
    return await transport.depth(queue) == 0 and await transport.depth(QUEUE) > 0


async def amqp_redrives(url: str, letters: Sequence[DeadLetter]) -> dict[str, Any]:
    """Redrives in their queue, the verdicts of a consumer that processed them, and dead letters of one that failed."""
    source = Source(name="orders", max_deliveries=1)
    await _provision(url, source)
    sent = redrives_of(letters, amqp=True)
    targets = [Publication(one.message, Target(name="orders")) for one in sent]
    await _publish(url, targets)
    redrives = await asyncio.to_thread(_read_amqp, url, "orders")
    half = len(letters) // 2
    # Reading the queue counted as a delivery, so a limit of 1 would be exceeded.
    await consume(url, {"orders": {"max_deliveries": 5}}, partial(_processed, "orders"), mode="succeed")
    verdicts = await asyncio.to_thread(_read_amqp, url, QUEUE)
    await _publish(url, targets[:half])
    await consume(
        url, {"orders": {"max_deliveries": 1}}, partial(_all_dead, {"orders.dlq": half}), mode="fail"
    )
    again = await asyncio.to_thread(_read_amqp, url, "orders.dlq")
    return {"redrives": redrives, "verdicts": verdicts, "died_again": again}


async def amqp_retries(url: str) -> list[Any]:
    """Messages that a handler gave back, in their queue again after the wait."""
    source = Source(name="waits", max_deliveries=5)
    await _provision(url, source)
    messages = originals(amqp=True)
    await _publish(url, [Publication(one, Target(name=source.name)) for one in messages])
    waiting = partial(_all_dead, {f"{source.name}.delay.{format_duration(WAIT)}": len(messages)})
    await consume(url, {source.name: {"max_deliveries": 5}}, waiting, mode="wait")
    async with open_transport(url) as transport, asyncio.timeout(_TIMEOUT):
        while await transport.depth(source.name) < len(messages):  # noqa: ASYNC110  the broker brings it about
            await asyncio.sleep(0.1)
    return await asyncio.to_thread(_read_amqp, url, source.name)


# --- Kafka --------------------------------------------------------------------------------------------------


def put_kafka(bootstrap: str, topic: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write recorded messages to the first partition of a topic."""
    producer = Producer({"bootstrap.servers": bootstrap})
    failed: list[Any] = []
    for record in records:
        producer.produce(
            topic,
            key=_decoded(record["key"]),
            value=_decoded(record["value"]),
            headers=[(name, _decoded(value)) for name, value in record["headers"]],
            timestamp=record["timestamp"],
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(_TIMEOUT) == 0
    assert not failed, failed


def _decoded(value: str | None) -> bytes | None:
    return None if value is None else b64decode(value)


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _read_kafka(bootstrap: str, topic: str, count: int) -> list[Any]:
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"golden-{topic}-{count}", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    reader.subscribe([topic])
    found: list[Any] = []
    try:
        while len(found) < count:
            record = reader.poll(_TIMEOUT)
            assert record is not None, f"{len(found)} of {count} records in {topic}"
            assert record.error() is None, record.error()
            kind, timestamp = record.timestamp()
            headers: Any = record.headers() or []
            found.append(
                {
                    "key": _encoded(record.key()),
                    "value": _encoded(record.value()),
                    "headers": [[name, _encoded(value)] for name, value in headers],
                    "timestamp": 0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
                }
            )
    finally:
        reader.close()
    return found


async def kafka_dead_letters(
    server: Any, variant: Literal["plain", "onex", "large"]
) -> tuple[str, list[Any]]:
    """A dead-letter topic and its records; those of `large` do not fit, and are cut or refer to the value."""
    url = f"{server.url}?dead_letter_format=onex&environment=prod" if variant == "onex" else server.url
    source = Source(name=f"clicks-{variant}", consumer_group=f"billing-{variant}", max_deliveries=1)
    messages = originals(amqp=False)
    if variant == "large":
        server.topic(source.dlq, config={"max.message.bytes": "4000"})
        body = Random(4711).randbytes(5000)
        messages = [
            msgspec.structs.replace(one, body=body if at % 2 else b"") for at, one in enumerate(messages[13:])
        ]
    await _provision(url, source)
    await _publish(url, [Publication(one, Target(name=source.name, partition=0)) for one in messages])
    options = {source.name: {"max_deliveries": 1, "consumer_group": source.consumer_group}}
    await consume(url, options, partial(_kafka_depth, source.dlq, len(messages)), mode="fail")
    return source.dlq, await asyncio.to_thread(_read_kafka, server.bootstrap, source.dlq, len(messages))


async def kafka_retries(server: Any) -> list[Any]:
    """Copies in a retry topic of records that a handler gave back."""
    url = f"{server.url}?retry=topics"
    source = Source(name="waits", consumer_group="waiting", max_deliveries=5)
    await _provision(url, source)
    messages = originals(amqp=False)
    await _publish(url, [Publication(one, Target(name=source.name, partition=0)) for one in messages])
    topic = "waiting.waits.retry.10s"  # the longest step that is not longer than the wait
    options = {source.name: {"max_deliveries": 5, "consumer_group": source.consumer_group}}
    await consume(url, options, partial(_kafka_depth, topic, len(messages)), mode="wait")
    return await asyncio.to_thread(_read_kafka, server.bootstrap, topic, len(messages))


async def kafka_redrives(url: str, letters: Sequence[DeadLetter]) -> dict[str, Any]:
    """Redrives in their topic, the verdicts of a consumer that processed them, and dead letters of one that failed."""
    bootstrap = urlsplit(url).netloc.rpartition("@")[2]
    good, bad = (
        Source(name=f"returns-{end}", consumer_group=f"returns-{end}", max_deliveries=1)
        for end in ("good", "bad")
    )
    await _provision(url, good, bad)
    sent = redrives_of(letters, amqp=False)
    for source in (good, bad):
        await _publish(url, [Publication(one.message, Target(name=source.name, partition=0)) for one in sent])
    redrives = await asyncio.to_thread(_read_kafka, bootstrap, good.name, len(sent))
    options = {"max_deliveries": 1}
    await consume(
        url,
        {good.name: {**options, "consumer_group": good.consumer_group}},
        partial(_kafka_depth, QUEUE, 1),
        mode="succeed",
    )
    await consume(
        url,
        {bad.name: {**options, "consumer_group": bad.consumer_group}},
        partial(_kafka_depth, bad.dlq, len(sent)),
        mode="fail",
    )
    return {
        "redrives": redrives,
        "verdicts": await asyncio.to_thread(_read_kafka, bootstrap, QUEUE, 1),
        "died_again": await asyncio.to_thread(_read_kafka, bootstrap, bad.dlq, len(sent)),
    }


async def _kafka_depth(topic: str, count: int, transport: Transport) -> bool:
    with suppress(Exception):
        return await transport.depth(topic) >= count
    return False
