"""What a dead letter tells, whoever wrote it: vectors of each convention, real brokers, and anything at all."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pika
import pytest
from hypothesis import given, strategies as st

from redrive.clock import SystemClock
from redrive.formats import onex, own, shovel, x_death
from redrive.formats.conventions import Table, recognised, with_own
from redrive.formats.systems import SYSTEMS
from redrive.formats.told import Death, Told, opened, read, stripped
from redrive.formats.x_death import NAMES as DEATH_NAMES
from redrive.letters import DeadLetter, FailureKind, Headers, HeaderValue, Message, TypedValue
from redrive.letters.convention import Convention
from redrive.testing import a_failure, a_letter
from redrive.transports.base import Death as DeathOf, Release, Source
from redrive.transports.rabbitmq import RabbitTransport
from tests.services import EmbeddedServer, RabbitMQ, RabbitMQServer, Run, Server

AT = datetime(2026, 2, 11, 11, tzinfo=UTC)


def a_message(headers: Mapping[str, HeaderValue], **fields: Any) -> Message:
    fields.setdefault("body", b'{"order": 17}')
    return Message(headers=Headers(headers), **fields)


def told(headers: Mapping[str, HeaderValue], queue: str = "orders.dlq", **fields: Any) -> Told:
    return read(a_message(headers, **fields), queue)


def deaths(*stops: tuple[str, str, int]) -> dict[str, HeaderValue]:
    """An `x-death` of these queues, reasons and counts, each an hour older than the one before."""
    entries = (
        Headers(
            {
                "count": count,
                "reason": reason,
                "queue": queue,
                "time": AT - timedelta(hours=age),
                "exchange": f"{queue}-exchange",
                "routing-keys": (f"{queue}-key", "copy"),
            }
        )
        for age, (queue, reason, count) in enumerate(stops)
    )
    return {"x-death": tuple(entries)}


SPRING: dict[str, HeaderValue] = {
    "x-exception-message": "closed",
    "x-exception-stacktrace": "java.lang.IllegalStateException: closed\n\tat shop.Orders.handle(Orders.java:58)\n",
    "x-original-exchange": "dlx",
    "x-original-routingKey": "again",
}
MASSTRANSIT: dict[str, HeaderValue] = {"MT-Reason": "fault", "MT-Fault-Message": "closed"}
NSERVICEBUS: dict[str, HeaderValue] = {
    "NServiceBus.FailedQ": "orders",
    "NServiceBus.ExceptionInfo.Message": "closed",
    "NServiceBus.TimeOfFailure": "2026-02-11 11:30:00:000000 Z",
}
CELERY: dict[str, HeaderValue] = {"task": "shop.ship", "id": "t-1", "root_id": "t-1"}
TASK = (
    b'{"queue_name":"orders","actor_name":"ship","args":[],"kwargs":{},"options":%s,"message_id":"m-1",'
    b'"message_timestamp":1}'
)


# --- nobody, and redrive itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, {"x-tenant": "north"}, {"redrive-id": "1", "x-replayed": True}])
def test_a_message_that_tells_nothing_is_unknown(headers: dict[str, HeaderValue]) -> None:
    assert told(headers) == Told(convention="unknown")


def own_headers(letter: DeadLetter) -> dict[str, HeaderValue]:
    return dict(own.write(letter, 4))


def test_a_letter_of_redrive_tells_everything_itself() -> None:
    failure = a_failure(stack="the stack", retry_after=timedelta(minutes=2))
    letter = a_letter(failure=failure, first_failed_at=AT - timedelta(minutes=5))

    assert told(own_headers(letter)) == Told(
        convention="redrive",
        reason="NonRetryableError",
        error_type="TimeoutError",
        error_text="External API timeout after 5000ms",
        group=failure.fingerprint,
        stack="the stack",
        kind=FailureKind.TIMEOUT,
        retryable=False,
        rule="type TimeoutError",
        retry_after=timedelta(minutes=2),
        source="orders",
        exchange="shop",
        routing_key="orders",
        retry_count=3,
        delivery_count=4,
        first_failed_at=AT - timedelta(minutes=5),
        failed_at=AT,
        key="orders/1",
        is_exact=True,
        correlation_id="trace-orders/1",
    )


def test_redrive_counts_before_everybody_else_and_the_journey_is_shown() -> None:
    alone, crowded = (
        own_headers(a_letter()),
        own_headers(a_letter()) | SPRING | deaths(("other", "expired", 1)),
    )

    found = told(crowded)

    assert [death.queue for death in found.deaths] == ["other"]
    assert msgspec.structs.replace(found, deaths=()) == told(alone)


def test_a_damaged_header_of_redrive_is_named() -> None:
    found = told(own_headers(a_letter()) | {"redrive-failed-at": "yesterday"})

    assert (found.failed_at, found.unreadable) == (None, ("redrive-failed-at",))


# --- RabbitMQ -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("expired", FailureKind.EXPIRED),
        ("maxlen", FailureKind.OVERFLOW),
        ("rejected", FailureKind.UNKNOWN),
        ("delivery_limit", FailureKind.UNKNOWN),
        ("something_new", None),
    ],
)
def test_a_reason_of_rabbitmq_is_a_kind_of_failure(reason: str, kind: FailureKind | None) -> None:
    found = told(deaths(("orders", reason, 1)))

    assert (found.convention, found.reason, found.kind) == ("rabbitmq", reason, kind)


def test_plain_rabbitmq_tells_origin_counts_and_times_and_no_error() -> None:
    found = told(deaths(("orders", "rejected", 1), ("retry", "expired", 4), ("orders", "delivery_limit", 2)))

    assert found.deaths[0] == Death(
        queue="orders",
        reason="rejected",
        count=1,
        at=AT,
        exchange="orders-exchange",
        routing_keys=("orders-key", "copy"),
    )
    assert msgspec.structs.replace(found, deaths=()) == Told(
        convention="rabbitmq",
        reason="rejected",
        kind=FailureKind.UNKNOWN,
        source="orders",
        exchange="orders-exchange",
        routing_key="orders-key",
        retry_count=3,
        first_failed_at=AT - timedelta(hours=2),
        failed_at=AT,
    )


def test_the_source_is_not_a_delay_queue_of_redrive() -> None:
    found = told(deaths(("orders.delay.5m", "expired", 2), ("orders", "rejected", 1)))

    assert (found.source, found.reason, found.failed_at) == ("orders", "rejected", AT - timedelta(hours=1))


def test_a_message_that_only_waited_has_no_source() -> None:
    found = told(deaths(("orders.delay.5m", "expired", 1)))

    assert (found.convention, found.source, found.kind) == ("rabbitmq", None, None)
    assert len(found.deaths) == 1


def test_of_a_queue_where_it_died_repeatedly_the_time_of_the_last_death_is_not_made_up() -> None:
    found = told(deaths(("orders", "rejected", 3)))

    assert (found.retry_count, found.first_failed_at, found.failed_at) == (3, AT, None)


def test_a_journey_that_cannot_be_read_is_named_and_still_rabbitmq_s() -> None:
    assert told({"x-death": "garbled"}) == Told(convention="rabbitmq", unreadable=("x-death",))


# --- a system and RabbitMQ ------------------------------------------------------------------------------------


def test_of_spring_amqp_and_rabbitmq_the_one_tells_the_error_and_the_other_the_origin() -> None:
    found = told(SPRING | deaths(("orders", "rejected", 1)))

    assert (found.convention, found.error_text, found.stack) == (
        "spring-amqp",
        "closed",
        SPRING["x-exception-stacktrace"],
    )
    assert (found.source, found.exchange, found.routing_key) == ("orders", "orders-exchange", "orders-key")
    assert (found.retry_count, found.failed_at, len(found.deaths)) == (1, AT, 1)
    assert (found.reason, found.kind, found.error_type) == (None, None, None)


def test_spring_amqp_alone_tells_its_own_route() -> None:
    found = told(SPRING)

    assert (found.source, found.exchange, found.routing_key) == (None, "dlx", "again")


def test_a_system_that_names_the_queue_is_right_about_it() -> None:
    waited = deaths(("nsb.v2.delay-level-05", "expired", 3))

    found = told(NSERVICEBUS | waited, "error")

    assert (found.source, found.exchange, found.retry_count) == ("orders", None, None)
    assert found.failed_at == datetime(2026, 2, 11, 11, 30, tzinfo=UTC)
    assert len(found.deaths) == 1


def test_what_rabbitmq_knows_of_the_named_queue_is_added() -> None:
    found = told(NSERVICEBUS | deaths(("delay", "expired", 3), ("orders", "rejected", 2)), "error")

    assert (found.source, found.exchange, found.retry_count) == ("orders", "orders-exchange", 2)
    assert found.first_failed_at == AT - timedelta(hours=1)


@pytest.mark.parametrize(
    ("queue", "source"),
    [("orders_error", "orders"), ("orders_skipped", "orders"), ("orders", None), ("_error", None)],
)
def test_a_queue_of_masstransit_is_called_like_its_source(queue: str, source: str | None) -> None:
    assert told(MASSTRANSIT, queue).source == source


def test_an_address_of_masstransit_counts_before_the_name_of_the_queue() -> None:
    address: dict[str, HeaderValue] = {"MT-Fault-InputAddress": "rabbitmq://localhost/payments"}

    assert told(MASSTRANSIT | address, "orders_error").source == "payments"
    assert told(MASSTRANSIT | {"MT-Fault-InputAddress": 7}, "orders_error").source == "orders"


def test_a_name_with_such_a_suffix_means_nothing_to_other_conventions() -> None:
    assert told({}, "orders_error").source is None
    assert told(SPRING, "orders_error").source is None


def test_a_task_of_dramatiq_that_failed_tells_its_error_and_one_that_expired_does_not() -> None:
    failed = told(
        deaths(("orders", "rejected", 1)), "orders.XQ", body=TASK % b'{"traceback":"the stack","retries":3}'
    )
    expired = told(deaths(("orders", "expired", 1)), "orders.XQ", body=TASK % b"{}")

    assert (failed.convention, failed.source, failed.stack, failed.kind) == (
        "dramatiq",
        "orders",
        "the stack",
        None,
    )
    assert (failed.retry_count, failed.routing_key) == (3, "orders-key")
    assert (expired.convention, expired.reason, expired.kind) == ("dramatiq", "expired", FailureKind.EXPIRED)


def test_celery_adds_nothing_so_rabbitmq_tells() -> None:
    found = told(CELERY | deaths(("celery", "rejected", 1)))

    assert (found.convention, found.reason, found.source, found.message_id) == (
        "celery",
        "rejected",
        "celery",
        "t-1",
    )
    assert (found.error_type, found.error_text, found.kind) == (None, None, FailureKind.UNKNOWN)
    assert told(CELERY) == Told(convention="celery", message_id="t-1")


def test_damage_on_both_sides_is_named() -> None:
    found = told(MASSTRANSIT | {"MT-Fault-Timestamp": "soon", "x-death": 7})

    assert found.unreadable == ("MT-Fault-Timestamp", "x-death")
    assert found.error_text == "closed"


def test_of_a_name_that_repeats_the_last_one_counts() -> None:
    message = Message(body=b"", headers=Headers([*SPRING.items(), ("x-exception-message", "closed again")]))

    assert read(message, "dlq").error_text == "closed again"


def test_a_convention_of_one_s_own_is_heard_and_stripped() -> None:
    ours = Convention(name="ours", recognised_by=("why",), fields={"error_text": "why"}, adds=("why",))
    message = a_message({"why": "closed", "x-tenant": "north"})

    assert read(message, "dlq", with_own([ours])).error_text == "closed"
    assert stripped(message, with_own([ours])).headers == Headers({"x-tenant": "north"})
    assert stripped(message) is message


def test_the_last_failure_is_as_late_as_anybody_tells() -> None:
    half_past = datetime(2026, 2, 11, 11, 30, tzinfo=UTC)
    earlier: dict[str, HeaderValue] = {"NServiceBus.TimeOfFailure": "2026-02-11 10:30:00:000000 Z"}

    assert told(NSERVICEBUS | deaths(("orders", "rejected", 1))).failed_at == half_past
    assert told(NSERVICEBUS | earlier | deaths(("orders", "rejected", 1))).failed_at == AT


# --- the message as it was ----------------------------------------------------------------------------------

PRODUCER: dict[str, HeaderValue] = {
    "x-tenant": "north",
    "redrive-id": "1",
    "redrive-fence": 2,
    "redrive-attempt": 3,
    "redrive-operation": "op",
    "redrive-to": "events/orders/shop",
    "redrive-digest": "5d41402abc4b2a76b9719d911017c592",
    "redrive-scope": "consumer",
    "x-replayed": True,
}


@pytest.mark.parametrize(
    "added",
    [
        own_headers(a_letter()),
        SPRING,
        MASSTRANSIT,
        NSERVICEBUS,
        deaths(("orders", "rejected", 1)),
        {"x-first-death-queue": "orders", "x-last-death-reason": "rejected"},
        SPRING | deaths(("orders", "rejected", 1)) | {"redrive-original-exchange": "shop"},
    ],
)
def test_what_was_added_is_removed_and_the_marks_of_a_redrive_stay(added: dict[str, HeaderValue]) -> None:
    message = a_message(PRODUCER | added, message_id="m-1", properties=Headers({"priority": 4}))

    assert stripped(message) == a_message(PRODUCER, message_id="m-1", properties=Headers({"priority": 4}))


@pytest.mark.parametrize("headers", [{}, PRODUCER, CELERY, {"x-original-exchange": "mine", "failed-at": 7}])
def test_a_message_to_which_nothing_was_added_is_given_back_as_it_is(headers: dict[str, HeaderValue]) -> None:
    message = a_message(headers)

    assert stripped(message) is message


def test_a_header_that_cannot_be_read_is_kept() -> None:
    damaged: dict[str, HeaderValue] = {"MT-Fault-Timestamp": "soon", "x-death": "garbled"}

    assert stripped(a_message(MASSTRANSIT | damaged)).headers == Headers(damaged)


def test_a_time_to_live_that_the_broker_took_away_comes_back() -> None:
    entry = Headers({"queue": "orders", "reason": "expired", "original-expiration": "60000"})
    message = a_message({"x-death": (entry,)}, properties=Headers({"priority": 4}))

    assert stripped(message).properties == Headers({"priority": 4, "expiration": "60000"})
    kept = msgspec.structs.replace(message, properties=Headers({"expiration": "5"}))
    assert stripped(kept).properties == Headers({"expiration": "5"})


# --- anything at all ----------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
TIMES = st.datetimes(timezones=st.just(UTC))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=20) | TIMES
    | st.decimals() | st.uuids() | st.sampled_from(["rejected", "expired", "orders", "a.delay.5s", "rabbitmq://h/q"])
)  # fmt: skip
ENTRY_FIELDS = st.sampled_from(
    [
        "count", "reason", "queue", "time", "exchange", "routing-keys", "original-expiration", "first-time",
        "last-time", "ttl", "src-queue", "dest-queue",
    ]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.builds(TypedValue, ANY_TEXT, inner)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(ENTRY_FIELDS | ANY_TEXT, inner, max_size=7).map(Headers)
    ),
    max_leaves=6,
)
ONEX_HEADERS = (
    "event_type",
    "original_topic",
    "failure_reason",
    "failure_timestamp",
    "retry_count",
    "max_retries",
)
SAID = [said for row in SYSTEMS for said in row.fields.values()]
NAMED = sorted(
    {
        *DEATH_NAMES,
        *own.write(a_letter(), 4).names(),
        *(name for row in SYSTEMS for name in (*row.recognised_by, *row.adds)),
        *(name for said in SAID for name in ((said,) if isinstance(said, str) else said)),
        *PRODUCER,
        *ONEX_HEADERS,
        "MT-Fault-Address",
        "x-shovelled",
        "x-shovelled-timestamp",
    }
)
PAIRS = st.lists(st.tuples(st.sampled_from(NAMED) | ANY_TEXT, VALUES), max_size=12)
OPTIONS = st.dictionaries(
    st.sampled_from(["retries", "traceback", "requeue_timestamp"]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.just([]),
).map(lambda options: TASK % msgspec.json.encode(options))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
WITHIN = st.dictionaries(
    st.sampled_from(["key", "value", "offset", "partition", "headers", "timestamp", "value_encoding"]), JSON
)
ONEX_BODIES = st.builds(
    lambda within, more: msgspec.json.encode({"original_message": within, "original_topic": "t"} | more),
    WITHIN | JSON,
    st.dictionaries(st.sampled_from([*ONEX_HEADERS, "error_type", "correlation_id"]), JSON),
)
WHOLE = OPTIONS | ONEX_BODIES
BODIES = st.none() | st.binary(max_size=40) | WHOLE | WHOLE.flatmap(
    lambda body: st.integers(0, len(body)).map(lambda cut: body[:cut])
)  # fmt: skip
OF_BODIES = {path for row in SYSTEMS if row.in_body for path in row.fields.values()}


@given(PAIRS, BODIES, ANY_TEXT | st.sampled_from(["orders_error", "orders.XQ", "orders.dlq"]))
def test_no_message_raises(pairs: list[tuple[str, HeaderValue]], body: bytes | None, queue: str) -> None:
    message = Message(body=body, headers=Headers(pairs))

    found = read(message, queue)

    # ONEX names the fields of its payload.
    assert found.convention == "onex" or set(found.unreadable) <= message.headers.names() | OF_BODIES
    assert found.kind is None or found.reason is not None
    assert found.source != ""
    # Plain values, all the way down; a name that is not UTF-8 keeps its octets.
    repr(msgspec.to_builtins(found.deaths, builtin_types=(datetime,)))


READERS: list[Callable[[Message, str], object]] = [
    lambda message, _: own.read(message.headers),
    lambda message, _: onex.read(message.body, message.headers),
    lambda message, _: x_death.read(dict(message.headers)),
    lambda message, queue: shovel.source_of(dict(message.headers), queue),
    lambda message, _: list(recognised(message, dict(message.headers))),
    lambda message, _: [
        facts
        for row in SYSTEMS  # each of them alone, whoever would be heard first
        for facts in recognised(message, dict(message.headers), Table([row]))
    ],
    opened,
]


@pytest.mark.parametrize("reader", READERS)
@given(pairs=PAIRS, body=BODIES, queue=ANY_TEXT)
def test_no_reader_raises(
    reader: Callable[[Message, str], object],
    pairs: list[tuple[str, HeaderValue]],
    body: bytes | None,
    queue: str,
) -> None:
    reader(Message(body=body, headers=Headers(pairs)), queue)


@given(PAIRS, BODIES)
def test_every_header_that_is_removed_is_one_that_somebody_names(
    pairs: list[tuple[str, HeaderValue]], body: bytes | None
) -> None:
    message = Message(body=body, headers=Headers(pairs))

    left = stripped(message)

    if read(message, "dlq").convention == "onex":  # then it is the message within, or all of it
        assert left is message or (onex.read(body, message.headers).message or message) == left
        return
    removed = message.headers.names() - left.headers.names()
    for name in removed:
        assert (
            name in DEATH_NAMES
            or own.strip(Headers({name: 1})) == Headers()
            or any(row.added(name) for row in SYSTEMS)
        )
    assert left.headers == Headers(pair for pair in message.headers if pair[0] not in removed)
    assert not removed & PRODUCER.keys()
    assert not removed & {name for name in read(message, "dlq").unreadable if not name.startswith("redrive-")}
    assert (left.body, left.message_id) == (message.body, message.message_id)


@given(PAIRS)
def test_a_message_that_was_stripped_has_nothing_more_to_lose(pairs: list[tuple[str, HeaderValue]]) -> None:
    once = stripped(Message(body=b"", headers=Headers(pairs)))

    again = stripped(once)

    assert again.headers == once.headers or read(once, "dlq").unreadable


# --- real brokers -------------------------------------------------------------------------------------------

PATIENCE = 30.0
BROKERS: dict[str, type[Server[RabbitMQ]]] = {"rabbitmq": RabbitMQServer, "embedded": EmbeddedServer}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.service(name)) for name in BROKERS])
def broker(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQ]:
    with service_run.address(BROKERS[request.param], os.environ).fresh() as vhost:
        yield vhost


@pytest.fixture
async def transport(broker: RabbitMQ) -> AsyncIterator[RabbitTransport]:
    async with RabbitTransport(broker.amqp_url, SystemClock()) as transport:
        yield transport


async def seen(transport: RabbitTransport, queue: str) -> Message:
    """The message in this queue, as soon as there is one."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await transport.peek(queue, 1)):  # noqa: ASYNC110  # the broker tells nobody
            await asyncio.sleep(0.02)
    return found[0]


PROPERTIES = pika.BasicProperties(
    headers={"a-tenant": "north", "z-hops": 2},
    message_id="m-1",
    delivery_mode=2,
    expiration="600000",
    priority=3,
)


def with_orders(amqp_url: str, arguments: dict[str, object], *acts: Callable[[Any], None]) -> None:
    """Make the queue `orders`, whose dead letters go to `dead`, and act on it."""
    with closing(pika.BlockingConnection(pika.URLParameters(amqp_url))) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "direct", durable=True)
        for queue in ("dead", "plain"):
            channel.queue_declare(queue, durable=True)
        routed: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("orders", durable=True, arguments=routed | arguments)
        channel.queue_bind("orders", "shop", "eu.orders")
        channel.confirm_delivery()
        for act in acts:
            act(channel)


def send(channel: Any) -> None:
    """A message to `orders`, and the same to `plain`, where it lives."""
    channel.basic_publish("", "plain", b"\x00\xff", PROPERTIES)
    channel.basic_publish("shop", "eu.orders", b"\x00\xff", PROPERTIES)


def reject(channel: Any, *, requeue: bool = False) -> None:
    channel.basic_reject(channel.basic_get("orders")[0].delivery_tag, requeue=requeue)


def reject_twice(channel: Any) -> None:
    reject(channel, requeue=True)
    reject(channel, requeue=True)


def send_one_more(channel: Any) -> None:
    channel.basic_publish("shop", "eu.orders", b"newer")


@pytest.mark.parametrize(
    ("reason", "kind", "rejections", "arguments", "act"),
    [
        ("rejected", FailureKind.UNKNOWN, 1, {}, reject),
        ("expired", FailureKind.EXPIRED, None, {"x-message-ttl": 1}, lambda _: None),
        ("maxlen", FailureKind.OVERFLOW, None, {"x-max-length": 1}, send_one_more),
        (
            "delivery_limit",
            FailureKind.UNKNOWN,
            1,
            {"x-queue-type": "quorum", "x-delivery-limit": 1},
            reject_twice,
        ),
    ],
)
async def test_a_message_that_a_broker_gave_up_is_told_and_is_as_it_was(
    broker: RabbitMQ,
    transport: RabbitTransport,
    reason: str,
    kind: FailureKind,
    rejections: int | None,
    arguments: dict[str, object],
    act: Callable[[Any], None],
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)  # the wire has whole seconds
    await asyncio.to_thread(with_orders, broker.amqp_url, arguments, send, act)

    dead = await seen(transport, "dead")
    found = read(dead, "dead")

    assert (found.convention, found.reason, found.kind, found.unreadable) == ("rabbitmq", reason, kind, ())
    assert (found.source, found.exchange, found.routing_key) == ("orders", "shop", "eu.orders")
    assert found.retry_count == rejections
    assert found.failed_at is not None
    assert before <= found.failed_at <= datetime.now(UTC)
    assert found.first_failed_at == found.failed_at
    alive = await seen(transport, "plain")
    assert "expiration" in alive.properties.names()
    assert stripped(dead) == alive


@pytest.mark.parametrize("way", ["publish", "native"])
async def test_a_message_that_waited_and_died_tells_its_source_either_way(
    transport: RabbitTransport, broker: RabbitMQ, way: Any
) -> None:
    source = Source(name="orders", queue_type="classic", dead_letter=way)
    await transport.provision([source])
    with closing(pika.BlockingConnection(pika.URLParameters(broker.amqp_url))) as connection:
        connection.channel().basic_publish("", "orders", b"\x00\xff", PROPERTIES)
    original = await seen(transport, "orders")
    receiver = await transport.receiver(source)

    async with asyncio.timeout(PATIENCE):
        [delivery] = await receiver.receive()
        assert list(await receiver.release([Release(delivery, timedelta(seconds=1))])) == [None]
        [again] = await receiver.receive()
    letter = DeadLetter.create(
        again.message, again.origin, a_failure(), key=again.key, reason="NonRetryableError"
    )
    assert list(await receiver.dead_letter([DeathOf(again, letter)])) == [None]

    dead = await seen(transport, "orders.dlq")
    found = read(dead, "orders.dlq")
    assert found.convention == ("redrive" if way == "publish" else "rabbitmq")
    assert (found.source, found.unreadable) == ("orders", ())
    assert stripped(dead) == original


async def test_a_task_that_dramatiq_gave_up_is_told(broker: RabbitMQ, transport: RabbitTransport) -> None:
    dramatiq = pytest.importorskip("dramatiq")
    rabbitmq = pytest.importorskip("dramatiq.brokers.rabbitmq")
    errors = iter([LookupError("no order 17"), ValueError("on the second try")])

    def ship(_: int) -> None:
        raise next(errors)

    def fail_twice() -> None:
        tasks = rabbitmq.RabbitmqBroker(url=broker.amqp_url)
        actor = dramatiq.actor(ship, broker=tasks, queue_name="orders", max_retries=1, max_backoff=1)
        actor.send(17)
        worker = dramatiq.Worker(tasks, worker_timeout=100, worker_threads=1)
        worker.start()
        try:
            assert dead_letters(tasks)
        finally:
            worker.stop()
            tasks.close()

    def dead_letters(tasks: Any) -> int:
        until = time.monotonic() + PATIENCE
        while not (count := tasks.get_queue_message_counts("orders")[2]) and time.monotonic() < until:
            time.sleep(0.02)
        return int(count)

    before = datetime.now(UTC) - timedelta(seconds=1)
    await asyncio.to_thread(fail_twice)

    dead = await seen(transport, "orders.XQ")
    found = read(dead, "orders.XQ")
    # It tells of the first try: the second one was rejected as it had come.
    assert (found.convention, found.error_type, found.error_text) == (
        "dramatiq",
        "LookupError",
        "no order 17",
    )
    assert (found.source, found.exchange, found.routing_key, found.retry_count) == ("orders", "", "orders", 1)
    assert found.failed_at is not None
    assert before <= found.failed_at <= datetime.now(UTC)
    assert [(death.queue, death.reason) for death in found.deaths] == [("orders", "rejected")]
    assert stripped(dead).headers == Headers()


async def test_a_task_of_celery_that_was_rejected_is_known(
    broker: RabbitMQ, transport: RabbitTransport
) -> None:
    celery = pytest.importorskip("celery")

    def send_a_task(_: Any) -> None:
        with celery.Celery(broker=broker.amqp_url, set_as_current=False) as app:
            app.conf.broker_transport_options = {"confirm_publish": True}
            app.send_task("shop.ship", [17], task_id="t-1", exchange="shop", routing_key="eu.orders")

    await asyncio.to_thread(with_orders, broker.amqp_url, {}, send_a_task, reject)

    found = read(await seen(transport, "dead"), "dead")
    assert (found.convention, found.message_id, found.reason) == ("celery", "t-1", "rejected")
    assert (found.source, found.exchange, found.retry_count) == ("orders", "shop", 0)
    assert (found.error_type, found.error_text, found.unreadable) == (None, None, ())
