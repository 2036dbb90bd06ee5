"""Letters of every shape and state, written to a store through its public verbs.

`fill` runs the same script on any store: it adds letters of all shapes, brings them into all states, leaves operations
half done and alerts unsent. With a `ManualClock` and a fixed seed the result is the same on every run and every store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import msgspec

from redrive.collect import Collector
from redrive.collect.reading import Reader
from redrive.formats import own
from redrive.letters import (
    DeadLetter,
    Failure,
    FailureKind,
    Headers,
    HeaderValue,
    Message,
    Origin,
    SystemState,
    TypedValue,
)
from redrive.letters.message import own_correlation_id
from redrive.letters.redact import Redactor
from redrive.letters.redrive import Redrive, marked
from redrive.replay.edit import edited_copy
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, plan
from redrive.replay.run import Progress, Replay
from redrive.rules import Classifier, StrategyOptions
from redrive.stores.base import Store
from redrive.stores.changes import (
    Annotate,
    Archive,
    Assign,
    Change,
    Delete,
    Discard,
    Fail,
    Outcome,
    Park,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    Settlement,
    Tag,
    Unclaim,
)
from redrive.stores.operations import Operation, OperationState
from redrive.stores.query import parse_query
from redrive.testing import ManualClock
from redrive.transports import Publication, Source, Target
from redrive.transports.memory import MemoryTransport
from redrive.watch.alerts.alarm import Alarm
from redrive.watch.alerts.rules import Measured
from redrive.watch.alerts.written import Document, Unsent, Written

START: Final = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_BATCH: Final = 500
_FROM_COLLECTOR: Final = 6  # letters that a collector makes, twins among them

_SOURCES: Final = {
    "rabbitmq": ("orders", "payments", "billing.eu", "päckchen/größe 5"),
    "kafka": ("clicks", "orders.events", "cdc_public.users"),
    "memory": ("jobs", "mail"),
}
_STACK: Final = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/handlers.py", line {line}, in {name}\n'
    "    await charge(order)\n"
    '  File "/srv/shop/payment.py", line 7, in charge\n'
    "    raise {error}\n"
)
ALL_TYPES: Final = Headers(
    [
        ("none", None),
        ("true", True),
        ("false", False),
        ("int", -42),
        ("big", 2**63 - 1),
        ("float", 2.5),
        ("text", "größe €"),
        ("bytes", b"\x00\xff\x01"),
        ("decimal", Decimal("19.90")),
        ("time", datetime(2026, 2, 11, 11, 30, tzinfo=UTC)),
        ("list", (1, "two", True, None, (3.5, b"\xfe"))),
        ("table", Headers({"inner": Headers({"deep": TypedValue("uint16", 65535)}), "n": 1})),
        *((f"typed-{kind}", TypedValue(kind, value)) for kind, value in (
            ("int8", -8), ("uint8", 200), ("int16", -300), ("uint16", 60000), ("int32", -70000),
            ("uint32", 4_000_000_000), ("uint64", 2**64 - 1), ("float32", 0.5), ("longstr", b"\xc3\x28"),
            ("timestamp", 2**40),
        )),
    ]
)  # fmt: skip
_ONLY_STORED: Final[tuple[tuple[str, HeaderValue], ...]] = (
    ("huge", 2**80),
    ("uuid", UUID("6f1e3c1a-58b3-4c2e-9d58-0f4b8a3e7c55")),
    ("infinity", float("inf")),
    ("odd text", "a\udc80b"),
    ("repeated", b"1"),
    ("repeated", b"2"),
)


def new_letter(number: int, random: Random) -> DeadLetter:
    """The letter with this number. Shapes repeat with different periods, so that they meet in all combinations."""
    transport = ("rabbitmq", "kafka", "rabbitmq", "memory", "kafka")[number % 5]
    source = _SOURCES[transport][number % len(_SOURCES[transport])]
    at = START - _DAY + number * _SECOND + timedelta(microseconds=number)
    kinds = tuple(FailureKind)
    failure = _failure(number, kinds[number % len(kinds)], at)
    message = _message(number, transport, random)
    return DeadLetter.create(
        message,
        _origin(number, transport, source),
        failure,
        key=f"{source}/{number}" if number % 7 else f"{source}/größe/{number}",
        reason=("NonRetryableError", "MaxDeliveriesExceeded", "rejected", "expired", "Unknown")[number % 5],
        first_failed_at=None if number % 3 else at - _MINUTE * (number % 50),
        retry_count=(0, 1, 3, 2**31 - 1)[number % 4] if number % 100 == 3 else number % 6,
        retry_in=timedelta(seconds=(0, 30, 3600)[number % 3]),
        priority=(0, 0, 5, 255, -3)[number % 5] if number % 4 == 0 else 0,
        tags=((), ("vip",), ("vip", "eu"), ("größe 5",), ())[number % 5],
        correlation_id=None if own_correlation_id(message) else f"made-up-{number}",
        system_state=SystemState(0.25 + number % 3 / 10, 0.5) if number % 4 == 1 else None,
        strategy=(None, "backoff", "manual", "off_peak")[number % 4],
    )


def _origin(number: int, transport: str, source: str) -> Origin:
    dead_letters = None if number % 6 == 0 else f"{source}.dlq"
    match transport:
        case "rabbitmq":
            return Origin(
                transport=transport,
                source=source,
                exchange=("shop", "", None)[number % 3],
                routing_key=(f"{source}.new", None, "")[number % 3],
                endpoint=("rabbit-1:5672/%2F", None)[number % 2],
                dead_letter_source=dead_letters,
            )
        case "kafka":
            return Origin(
                transport=transport,
                source=source,
                partition=None if number % 8 == 4 else number % 12,
                offset=None if number % 8 == 4 else 2**40 + number,
                consumer_group=(None, "billing", "audit")[number % 3],
                endpoint="kafka-1:9092,kafka-2:9092",
                dead_letter_source=dead_letters,
            )
    return Origin(transport=transport, source=source, dead_letter_source=dead_letters)


def _message(number: int, transport: str, random: Random) -> Message:
    bodies = (
        b'{"order":%d,"total":"19.90"}' % number,
        b"",
        random.randbytes(number % 40),
        "größe".encode(),
        b'{"broken": ',
        b"\xff\xfe%d" % number,
    )
    body: bytes | None = bodies[number % 6]
    if transport == "kafka" and number % 11 == 0:
        body = None
    if number % 500 == 13:
        body = b"large " * 20_000
    pairs: list[tuple[str, HeaderValue]] = []
    if number % 4 == 1:
        pairs = [("tenant", "north"), ("attempt", number % 3), ("trace", b"\x01\x02")]
    if number % 25 == 2:
        pairs = [*ALL_TYPES, *_ONLY_STORED]
    if number % 9 == 5:
        pairs.append(("x-correlation-id", f"trace-{number}"))
    headers = Headers(pairs)
    if number % 50 == 7:
        redrive = Redrive(_HOLD, number % 5 + 1, None if number % 100 == 7 else "op-earlier")
        headers = marked(Message(body=body, headers=headers), redrive)
    properties: dict[str, HeaderValue] = {}
    if transport == "rabbitmq" and number % 3:
        properties = {"delivery_mode": 2, "priority": number % 10, "reply_to": "answers", "app_id": "shop"}
    if transport == "rabbitmq" and number % 10 == 6:
        properties |= {"type": "order", "user_id": "guest", "expiration": "60000", "cluster_id": "c"}
    return Message(
        body=body,
        key=None
        if transport != "kafka" or number % 4 == 0
        else (b"", b"customer-%d" % number, b"\xff")[number % 3],
        headers=headers,
        content_type=("application/json", None, "application/octet-stream")[number % 3],
        content_encoding="gzip" if number % 20 == 9 else None,
        message_id=None if number % 3 == 2 else f"message-{number}" if number % 40 else f"größe/{number}",
        correlation_id=None if number % 5 == 3 else f"correlation-{number // 4}",
        sent_at=None if number % 4 == 2 else START - 2 * _DAY + number * _SECOND,
        properties=Headers(properties),
    )


def _failure(number: int, kind: FailureKind, at: datetime) -> Failure:
    error = ("TimeoutError", "shop.errors.CardDeclined", "ConnectionResetError", "größe.Fehler")[number % 4]
    text = (
        f"no answer from 10.0.0.{number % 200} after {number} ms",
        "card declined",
        "",
        "password=[REDACTED:password] rejected by db-1",
        "größe\nin two lines",
    )[number % 5]
    if number % 60 == 11:
        text = f"{text}: " + "a very long explanation " * 200
    stack = _STACK.format(line=number % 30, name=f"handle_{number % 3}", error=error) if number % 2 else None
    return Failure(
        error_type=error,
        text=text,
        at=at,
        kind=kind,
        retryable=number % 3 != 0,
        rule=(None, "type:timeout", "größe-rule")[number % 3],
        stack=stack if number % 60 != 31 else (stack or "") + '  File "/srv/a.py", line 1, in f\n' * 300,
        retry_after=timedelta(seconds=90, microseconds=5) if number % 8 == 3 else None,
        redacted=None if number % 4 == 0 else "parts-1-0123456789abcdef",
    )


_HOLD: Final = new_letter(0, Random(0)).claim_token


# --- states -------------------------------------------------------------------------------------------------


class Script:
    """Brings letters of one store into all states."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.random = Random(seed)

    async def run(self, letters: int) -> None:
        """Everything, in order; the store has exactly this many letters afterwards."""
        groups: list[list[str]] = [[] for _ in range(20)]
        extra = await self._collect()
        copies = 4 * (letters // 200)
        for start in range(0, letters - extra - copies, _BATCH):
            numbers = range(start, min(start + _BATCH, letters - extra - copies))
            added = [new_letter(number, self.random) for number in numbers]
            assert all(await self.store.add(added))
            for number, letter in zip(numbers, added, strict=True):
                groups[(7 * number + number // 20) % 20].append(letter.id)  # no shape has only some states
            self.clock.advance(_MINUTE)
        assert not any(await self.store.add([new_letter(0, Random(0))]))  # known already: changes nothing
        await self._settle(groups)
        await self._edit(groups[4], copies // 2)
        await self._operate(groups[0], groups[1], copies - copies // 2, groups[15])
        await self._hold(groups)
        await self._alert()

    async def _collect(self) -> int:
        """Letters that a collector makes of messages in a dead-letter queue; two of them look the same."""
        async with MemoryTransport(self.clock) as transport:
            source = Source(name="jobs")
            await transport.provision([source])
            death = new_letter(20_000_000, self.random)
            same = Message(body=b"twin", headers=own.write(death, 1), sent_at=START - _HOUR)
            messages = [same, same, same, Message(body=b"\x00", message_id="other"), Message(body=None, key=b"k"),
                        Message(body=b"", headers=Headers({"x-replayed": True}), correlation_id="c-1")]  # fmt: skip
            assert not any(
                await transport.publish([Publication(one, Target(name=source.dlq)) for one in messages])
            )
            receiver = await transport.receiver(Source(name=source.dlq))
            batch = await receiver.receive()
            collector = Collector(
                transport,
                self.store,
                source.dlq,
                reader=Reader(Classifier(), Redactor(), StrategyOptions()),
                options=StrategyOptions(),
                clock=self.clock,
                trouble=_fail,
            )
            await collector.keep(batch)
            receiver.accept(batch)
        assert collector.counts.collected == _FROM_COLLECTOR, collector.counts
        self.clock.advance(_MINUTE)
        return _FROM_COLLECTOR

    async def _settle(self, groups: Sequence[Sequence[str]]) -> None:
        now = self.clock.now()
        await self._apply(Schedule(now + 30 * _DAY), groups[5])
        await self._apply(Schedule(now - _DAY), groups[6])
        for change in (
            Assign("kim"), Tag(add=("reviewed", "größe"), remove=("vip",)), Prioritise(-7),
            Annotate("called the customer"), Assign(None), Annotate("größe\nsecond note"), Assign("ada"),
        ):  # fmt: skip
            await self._apply(change, groups[7])
            self.clock.advance(_SECOND)
        again = _failure(3, FailureKind.NETWORK, now)
        await self._attempt(
            groups[8], Retry(at=now + _HOUR, failure=again, strategy="backoff", detail="died again")
        )
        for number in range(3):
            later = _failure(number + 5, FailureKind.DATABASE, now + number * _MINUTE)
            await self._attempt(
                groups[9], Retry(at=now + number * _HOUR, failure=later, detail=f"try {number}")
            )
        await self._attempt(
            groups[13],
            Park(failure=_failure(6, FailureKind.MALFORMED, now), strategy="manual", detail="look"),
        )
        await self._attempt(groups[14], Park(detail="look"))
        await self._apply(Discard("größe: not needed any more"), groups[14])
        await self._attempt(
            groups[15], Fail(failure=_failure(9, FailureKind.UNKNOWN, now), detail="at the limit")
        )
        await self._attempt(groups[16], Retry(at=now))
        await self._attempt(groups[16], Fail(strategy="backoff"))
        await self._apply(Archive(), groups[16])
        await self._attempt(
            groups[17], Resolve(detail="processed by a consumer of orders", strategy="backoff")
        )
        half = len(groups[18]) // 2
        await self._attempt(groups[18][:half], Resolve(presumed=True))
        # A worker that crashed: what it had sent is unconfirmed, the rest is pending again or failed.
        held = await self._take(groups[18][half:], "worker-3", _MINUTE)
        assert all(await self.store.extend([head.claim_token for head in held], lease=_MINUTE, sent=True))
        await self._attempt(groups[19], Unclaim(at=now + _HOUR, detail="the breaker is open"))
        await self._take(groups[19], "worker-4", _MINUTE)
        self.clock.advance(2 * _MINUTE)
        expired = len(groups[19])
        done = 0
        while part := len(await self.store.rescue(retry_in=_HOUR, max_redrives=5, limit=1000)):
            done += part
        assert done == expired
        for kind in ("rabbitmq", "kafka", "memory"):
            await self.store.overdue(broker=kind, lease=_HOUR)
        gone = [new_letter(10_000_000 + number, self.random) for number in range(3)]
        await self.store.add(gone)
        await self._attempt([letter.id for letter in gone], Resolve())
        await self._apply(Delete(), [letter.id for letter in gone])

    async def _hold(self, groups: Sequence[Sequence[str]]) -> None:
        await self._take(groups[12], "worker-5", _SECOND)  # expired, and not yet noticed
        self.clock.advance(_MINUTE)
        await self._take(groups[10], "worker-1", 5 * _MINUTE)
        sent = await self._take(groups[11], "host-2/worker-2", 5 * _MINUTE)
        assert all(await self.store.extend([head.claim_token for head in sent], lease=_HOUR, sent=True))
        claimed = await self.store.claim("worker-6", broker="rabbitmq", limit=5, lease=7 * _MINUTE)
        assert len(claimed) == 5

    async def _take(self, ids: Sequence[str], worker: str, lease: timedelta) -> list[Any]:
        heads: list[Any] = []
        for start in range(0, len(ids), _BATCH):
            heads += await self.store.take(ids[start : start + _BATCH], worker, lease=lease)
        assert len(heads) == len(ids)
        return heads

    async def _attempt(self, ids: Sequence[str], outcome: Outcome) -> None:
        held = await self._take(ids, "worker-1", 5 * _MINUTE)
        self.clock.advance(_SECOND)
        for start in range(0, len(held), _BATCH):
            batch = [Settlement(head.claim_token, outcome) for head in held[start : start + _BATCH]]
            assert all(await self.store.settle(batch))

    async def _apply(self, change: Change, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _BATCH):
            await self.store.apply(change, ids[start : start + _BATCH], by="kim")

    # --- copies and operations ------------------------------------------------------------------------------

    async def _edit(self, ids: Sequence[str], copies: int) -> None:
        """Edited copies: the body, the headers, or the ids changed."""
        originals = await self.store.load(ids[:copies])
        edits: Sequence[dict[str, Any]] = (
            {"body": b'{"fixed":true}'},
            {"headers": Headers({"tenant": "south", "n": TypedValue("int16", 3)})},
            {"message_id": "edited", "correlation_id": "edited"},
        )
        edited = [
            edited_copy(
                letter,
                msgspec.structs.replace(letter.message, **edits[number % 3]),
                by="kim",
                at=self.clock.now(),
            )
            for number, letter in enumerate(originals)
        ]
        assert all(await self.store.add(edited))

    async def _operate(
        self, first: Sequence[str], second: Sequence[str], copies: int, failed: Sequence[str]
    ) -> None:
        """Replays that are done, stopped, killed while sending, killed before recording, and cancelled."""
        size = len(first) // 4
        async with MemoryTransport(self.clock) as transport:
            for name in (name for names in _SOURCES.values() for name in names):
                await transport.ensure_queue(name)
            options = ReplayOptions(batch=3, health_check=False)
            await self._replay(transport, first[:size], options, "done")
            await self._replay(transport, first[size : 2 * size], options, "stopped", stop_after=2)
            await self._replay(transport, first[2 * size : 3 * size], options, "killed", hang="publish")
            await self._replay(transport, second[:size], options, "killed", hang="record")
            await self._replay(transport, failed[:copies], options, "done", copies=True)
        operation = Operation(id="op-cancelled", kind="replay", by="größe", query='state:pending "größe"')
        assert await self.store.begin(operation, [*second[size : size + 5], "0" * 26])
        assert not await self.store.begin(operation, second[:1])  # known already
        assert await self.store.run_operation(operation.id, "console", lease=_MINUTE)
        await self.store.record(
            operation.id, [(second[size], "failed", "größe"), (second[size + 1], "skipped", "")]
        )
        assert await self.store.end_operation(
            operation.id, OperationState.CANCELLED, by="kim", note="wrong filter"
        )

    async def _replay(
        self,
        transport: MemoryTransport,
        ids: Sequence[str],
        options: ReplayOptions,
        end: str,
        *,
        stop_after: int = 0,
        hang: str = "",
        copies: bool = False,
    ) -> None:
        query = parse_query(f"id:{','.join(ids[:100])} sort:created", now=self.clock.now())
        frozen = await plan(self.store, query, words=f"golden {end}", copies=copies)
        operation = await begin(self.store, frozen, options, by="kim", clock=self.clock)
        stop, hanging, batches = asyncio.Event(), asyncio.Event(), count(1)

        def heard(progress: Progress) -> None:
            if progress.phase == "sending" and next(batches) == stop_after:
                stop.set()

        store = _Hanging(self.store, hang, hanging)
        sender = _Hanging(transport, hang, hanging)
        replay = Replay(store, sender, operation, runner="kim@host:4711", clock=self.clock, progress=heard)
        task = asyncio.create_task(replay.run(stop))
        if hang:
            await hanging.wait()
            task.cancel()  # as if the process were killed: nothing is written after that
            await asyncio.gather(task, return_exceptions=True)
        else:
            assert (await task).state == end
        self.clock.advance(_SECOND)

    # --- alerts ---------------------------------------------------------------------------------------------

    async def _alert(self) -> None:
        """Alerts that are suspected, open, acknowledged, escalated, over, and partly not sent."""
        numbers = count(1)
        alarm = Alarm(
            make_id=lambda _key: f"incident-{next(numbers):03}", link=lambda one: f"https://console/{one.id}"
        )
        written = Written(self.store)

        async def look(*measured: Measured, unsent: tuple[str, ...] = ()) -> None:
            now = self.clock.now()

            def change(document: Document) -> None:
                alerts = alarm.looked(document.book, measured, now)
                if unsent:
                    document.unsent += [Unsent(alert, unsent, now + _MINUTE) for alert in alerts]

            await written.change(change)
            self.clock.advance(_MINUTE)

        def measured(measure: str, subject: str, value: float, **fields: Any) -> Measured:
            return Measured(measure=measure, subject=subject, value=value, component="RabbitMQ", **fields)

        letters = measured(
            "open_letters", "orders", 3, queue="orders.dlq", error_type="TimeoutError", group="0123456789abcdef",
            is_news=True, counts={"open": 3.0, "new": 1.5}, correlation_ids=("c-1", "größe"),
        )  # fmt: skip
        depth = measured("dlq_depth", "payments.dlq", 150, queue="payments.dlq")
        await look(letters, depth, measured("dlq_depth", "mail.dlq", 5000), unsent=("mail", "webhook"))
        book = await written.book()
        ids = {incident.subject: incident.id for incident in book.open()}
        now = self.clock.now()
        assert await written.change(
            lambda document: document.book.acknowledge(ids["payments.dlq"], "kim", now)
        )
        await look(measured("dlq_depth", "mail.dlq", 0), measured("error_spike", "CardDeclined", 6))
        self.clock.advance(5 * _MINUTE)
        await look(measured("dlq_depth", "mail.dlq", 0), letters, unsent=("pager",))
        self.clock.advance(31 * _MINUTE)
        await look(letters, measured("broker_unreachable", "rabbit-1", 1), unsent=("pager",))
        await look(measured("dlq_depth", "payments.dlq", 1001, queue="payments.dlq"), unsent=("mail",))


class _Hanging:
    """Hands every call on, but the named one never returns."""

    def __init__(self, inner: Any, verb: str, reached: asyncio.Event) -> None:
        self._inner = inner
        self._verb = verb
        self._reached = reached
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        verb: Callable[..., Awaitable[Any]] = getattr(self._inner, name)
        return self._hang if name == self._verb and self._is_due() else verb

    def _is_due(self) -> bool:
        self._calls += 1
        return self._calls == 3  # the first two batches are complete

    async def _hang(self, *_: Any, **__: Any) -> Any:
        self._reached.set()
        await asyncio.Event().wait()


def _fail(what: str, error: Exception) -> None:
    raise AssertionError(what) from error


async def fill(store: Store, clock: ManualClock, *, letters: int = 1000, seed: int = 20260211) -> None:
    """Write the golden letters, operations and alerts to an empty store."""
    ids = Random(seed)
    with patch("redrive.replay.plan.uuid4", lambda: UUID(int=ids.getrandbits(128), version=4)):
        await Script(store, clock, seed).run(letters)
