"""How stored data is read by the current code, as plain values with the names of the recording.

The generator uses these functions with the code that writes the recording, the tests with the code of today. They go
through the parts that production uses: stores, the replay, the collector, receivers. When a field is renamed, its
recorded name is restored here, in one place.
"""

import asyncio
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import msgspec

from redrive.collect import Collector
from redrive.collect.reading import Reader
from redrive.letters import DeadLetter, LetterState, Message
from redrive.letters.letter import EPOCH
from redrive.letters.redact import Redactor
from redrive.letters.redrive import redrive_of
from redrive.letters.verdict import from_body
from redrive.recover.retention import restore
from redrive.replay.options import FAILED, SKIPPED
from redrive.replay.run import Replay
from redrive.rules import Classifier, StrategyOptions
from redrive.stores import cold_files
from redrive.stores.base import Rescued, Store
from redrive.stores.changes import SetBroker
from redrive.stores.memory import MemoryStore
from redrive.stores.operations import Item
from redrive.stores.query import parse_query
from redrive.testing import ManualClock
from redrive.transports import Outcomes, Publication, Source, Transport, open_transport
from redrive.transports.memory import MemoryTransport
from redrive.watch.alerts.written import NAME, Document
from tests.golden.plain import packed, plain, unpacked

_PAGE: Final = 1000
_PROCESSING: Final = parse_query("state:processing", now=EPOCH)
_TALLIES: Final = (
    "state",
    "source",
    "transport",
    "error",
    "kind",
    "reason",
    "strategy",
    "worker",
    "assignee",
    "tag",
)
FILTERS: Final = (
    "state:pending due<=+0s sort:due",
    "state:processing worker:worker-* sort:created",
    "source:orders,payments -tag:vip sort:-failed",
    "source:päckchen* transport:rabbitmq sort:created",
    "transport:kafka kind:timeout,network retries>=2 sort:size",
    "tag:vip tag:eu sort:created",
    "message:message-12 sort:created",
    "correlation:correlation-3* sort:updated",
    "redrives>=1 state:manual,failed,archived sort:-redrives",
    "assignee:ada priority<0 sort:priority",
    '"card declined" created>=2026-02-11T12:02:00Z sort:created',
    "size>=100000 sort:created",
)
# When the recorded dead letters are collected, so that times that depend on it are always the same.
COLLECTED_AT: Final = datetime(2026, 12, 1, tzinfo=UTC)


# --- names of the recording ---------------------------------------------------------------------------------

# Version 1 knew the kind of broker, `transport`. Stores and files of that version are read with brokers of these names.
_UNNAMED: Final = "unnamed:"
_BROKERS: Final = tuple(_UNNAMED + kind for kind in ("kafka", "memory", "rabbitmq"))
_REDACTED: Final = (
    "9fe43de5084b"  # the rules of redaction that version 1 had; what is collected today has others
)
_REPLAYED: Final = "memory"  # the broker of the replays that are resumed


def _words_today(words: str) -> str:
    """A filter of the recording as it is written today."""
    return words.replace("transport:", f"broker:{_UNNAMED}")


def _origin_as_recorded(origin: dict[str, Any]) -> dict[str, Any]:
    """An origin with its recorded names: `group` is `consumer_group` today, and `broker` is `endpoint`."""
    fields = {**origin, "group": origin["consumer_group"], "broker": origin["endpoint"]}
    return {name: value for name, value in fields.items() if name not in {"consumer_group", "endpoint"}}


def _letter_as_recorded(letter: DeadLetter) -> dict[str, Any]:
    """A letter with its recorded names: `transport` was the kind of broker, `broker` is its name today."""
    fields: dict[str, Any] = plain(letter)
    if fields["failure"]["redacted"] == Redactor().name:
        fields["failure"]["redacted"] = _REDACTED
    assert letter.consumer_group == letter.origin.consumer_group
    return {
        **{name: value for name, value in fields.items() if name != "broker"},
        "transport": letter.broker.removeprefix(_UNNAMED),
        "origin": _origin_as_recorded(fields["origin"]),
    }


# --- stores -------------------------------------------------------------------------------------------------


async def letters_of(store: Store) -> list[Any]:
    """All letters, in the order in which they were added."""
    return [_letter_as_recorded(letter) for letter in await _load(store, "sort:created")]


async def _load(store: Store, words: str, now: datetime = COLLECTED_AT) -> list[DeadLetter]:
    ids = await _ids(store, words, now)
    loaded: list[DeadLetter] = []
    for start in range(0, len(ids), _PAGE):
        loaded += await store.load(ids[start : start + _PAGE])
    return loaded


async def _ids(store: Store, words: str, now: datetime) -> list[str]:
    query, cursor, ids = parse_query(words, now=now), None, list[str]()
    while True:
        page = await store.page(query, limit=_PAGE, cursor=cursor)
        ids += [head.id for head in page.heads]
        if (cursor := page.cursor) is None:
            return ids


async def store_content(store: Store, now: datetime) -> dict[str, Any]:
    """Everything that a store has."""
    return {
        "letters": await letters_of(store),
        "change_log": await _change_log(store),
        "operations": await _operations(store),
        "alerts": await _alerts(store),
        "counts": {field: plain(await _tally(store, field)) for field in _TALLIES},
        "groups": plain(await store.groups(limit=_PAGE)),
        "queries": {words: await _ids(store, _words_today(words), now) for words in FILTERS},
    }


async def _tally(store: Store, field: str) -> dict[str, int]:
    if field != "transport":
        return await store.tally(field)
    return {name.removeprefix(_UNNAMED): count for name, count in (await store.tally("broker")).items()}


async def _change_log(store: Store) -> list[Any]:
    lines, after = list[Any](), 0
    while batch := await store.journal(after=after, limit=_PAGE):
        after = batch[-1].number
        lines += [{name: value for name, value in plain(line).items() if name != "number"} for line in batch]
    return lines


async def _operations(store: Store) -> list[Any]:
    return [
        {
            "operation": plain(operation),
            "items": plain(await store.items(operation.id, limit=_PAGE)),
            "remaining": await store.remaining(operation.id, limit=_PAGE),
        }
        for operation in await store.operations(limit=_PAGE)
    ]


async def _alerts(store: Store) -> dict[str, Any]:
    memo = await store.recall(NAME)
    assert memo.body is not None
    return {"version": memo.version, "document": plain(msgspec.msgpack.decode(memo.body, type=Document))}


async def store_future(store: Store, clock: ManualClock) -> dict[str, Any]:
    """What the next processes do with the store: resume operations, end expired leases, claim due letters."""
    clock.advance(timedelta(minutes=2))  # the leases of killed replays have expired
    await _assign(store)
    resumed = [
        await _resume(store, clock, operation.id)
        for operation in reversed(await store.operations(limit=_PAGE))
        if not operation.is_over
    ]
    expired = await _expired(store)
    clock.advance(timedelta(days=31))
    names = (*_BROKERS, _REPLAYED)
    claimed = [head for name in names for head in await store.claim("next-worker", broker=name, limit=200)]
    claimed.sort(
        key=lambda head: (-head.priority, head.created_at)
    )  # version 1 claimed from all brokers at once
    return {"resumed": resumed, "expired": plain(expired), "claimed": [head.id for head in claimed[:200]]}


async def _assign(store: Store) -> None:
    """Assign the letters to the broker of the replays: version 1 sent letters of every broker to any other one."""
    for name in _BROKERS:
        ids = await _ids(store, f"broker:{name} -state:processing", COLLECTED_AT)
        for start in range(0, len(ids), _PAGE):
            await store.apply(SetBroker(_REPLAYED), ids[start : start + _PAGE], by="next")


async def _expired(store: Store) -> list[Rescued]:
    """The letters whose lease has expired, as version 1 recorded them.

    A deliberate difference: version 1 presumed that a letter succeeded if it was sent and no verdict came, and
    resolved it. Today such a letter stays `dlq_processing` and becomes unconfirmed, because a broker or consumer that
    was down for long would otherwise lose letters. It is shown here as version 1 recorded it.
    """
    leases = {head.id: head.lease_until for head in (await store.page(_PROCESSING, limit=_PAGE)).heads}
    expired = await store.rescue(retry_in=timedelta(hours=1), max_redrives=5, limit=_PAGE)
    for name in (*_BROKERS, _REPLAYED):
        for head in await store.overdue(broker=name, lease=timedelta(hours=1), limit=_PAGE):
            assert (head.state, head.unconfirmed, head.presumed) == (LetterState.PROCESSING, True, False)
            expired.append(Rescued(head.id, head.locked_by or "", LetterState.RESOLVED))
    return sorted(expired, key=lambda one: (leases[one.id] or EPOCH, one.id))


async def _resume(store: Store, clock: ManualClock, operation_id: str) -> dict[str, Any]:
    async with MemoryTransport(clock) as transport:
        sender = _Recorder(transport)
        operation = await store.operation(operation_id)
        done = await Replay(store, sender, operation, runner="next", clock=clock).run(asyncio.Event())
        items = [_item_as_recorded(item) for item in await store.items(operation_id, limit=_PAGE)]
    outcomes = Counter(item.outcome for item in items if item.outcome is not None)
    operation = msgspec.structs.replace(done, outcomes=dict(sorted(outcomes.items())))
    return {"operation": plain(operation), "items": plain(items), "sent": sender.sent}


def _item_as_recorded(item: Item) -> Item:
    """An item as version 1 recorded it.

    A deliberate difference: version 1 skipped letters that a worker of any broker had claimed. Today a letter of
    another broker is a failure with that reason.
    """
    if item.outcome == FAILED and item.detail.startswith(f"it belongs to broker '{_UNNAMED}"):
        return msgspec.structs.replace(item, outcome=SKIPPED, detail="somebody holds it, or it is over")
    return item


class _Recorder:
    """A transport that keeps the ids of the letters that are sent."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.sent: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        self.sent += [
            {"redrive": plain(redrive_of(one.message.headers)), "to": plain(one.target)}
            for one in publications
        ]
        return [None for _ in publications]


# --- files of letters ---------------------------------------------------------------------------------------


async def file_content(path: Path) -> dict[str, Any]:
    """The letters of an archive or export file, and what an import makes of them."""
    store = MemoryStore(ManualClock(COLLECTED_AT))
    counts = await restore(store, path, by="import")
    return {
        "letters": [_letter_as_recorded(letter) for letter in cold_files.read(path)],
        "import": plain(counts),
        "imported": plain(await store.tally("state")),
        "imported_letters": await letters_of(store),
    }


# --- messages -----------------------------------------------------------------------------------------------


async def collected(url: str, queue: str, put: Callable[[], None], count: int) -> list[DeadLetter]:
    """The letters that a collector makes of the messages that `put` writes to a dead-letter queue."""
    clock = ManualClock(COLLECTED_AT)
    store = MemoryStore(clock)
    async with open_transport(url) as transport:
        await transport.ensure_queue(queue)
        await asyncio.to_thread(put)
        collector = Collector(
            transport,
            store,
            queue,
            reader=Reader(Classifier(), Redactor(), StrategyOptions()),
            options=StrategyOptions(),
            clock=clock,
            trouble=_fail,
        )
        stop = asyncio.Event()
        task = asyncio.create_task(collector.run(stop))
        async with asyncio.timeout(60):
            while await store.count() < count and not task.done():  # noqa: ASYNC110  a broker brings it about
                await asyncio.sleep(0.02)
        stop.set()
        await task
    return await _load(store, "sort:created")


async def received(url: str, queue: str, put: Callable[[], None], count: int) -> list[Any]:
    """What a consumer receives of the messages that `put` writes to its queue: message, origin and redrive."""
    found: list[Any] = []
    async with open_transport(url) as transport:
        await transport.provision([Source(name=queue)])
        await asyncio.to_thread(put)
        receiver = await transport.receiver(Source(name=queue, window=2 * count))
        async with asyncio.timeout(60):
            while len(found) < count:
                batch = await receiver.receive()
                found += [
                    {
                        "message": plain(one.message),
                        "origin": _without_endpoint(_origin_as_recorded(plain(one.origin))),
                        "redrive": plain(one.redrive),
                        "delivery_count": one.delivery_count,
                    }
                    for one in batch
                ]
                receiver.accept(batch)
        await receiver.stop()
        await receiver.close()
    # Records of several topics come in any order.
    return sorted(found, key=lambda one: one["origin"]["offset"] or 0)


def letter_content(letter: DeadLetter) -> dict[str, Any]:
    """A collected letter without the endpoint, which is different in every run."""
    fields = _letter_as_recorded(letter)
    # The collector names the broker; version 1 recorded its kind.
    return {**fields, "transport": letter.origin.transport, "origin": _without_endpoint(fields["origin"])}


def _without_endpoint(origin: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in origin.items() if name != "broker"}


def verdicts_of(body: bytes) -> list[Any]:
    """The verdicts of one message."""
    return [plain(verdict) for verdict in from_body(body)]


def message_of(stored: Message) -> Any:
    """A message."""
    return plain(stored)


def _fail(what: str, error: Exception) -> None:
    raise AssertionError(what) from error


# --- directories --------------------------------------------------------------------------------------------


def pack_directory(directory: Path) -> bytes:
    """A directory as a compressed archive."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _files(directory):
            info = archive.gettarinfo(path, str(path.relative_to(directory)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            with path.open("rb") as file:
                archive.addfile(info, file)
    return packed(buffer.getvalue())


def unpack_directory(data: bytes, directory: Path) -> None:
    """Write the files that `pack_directory` packed."""
    shutil.rmtree(directory, ignore_errors=True)
    with tarfile.open(fileobj=BytesIO(unpacked(data))) as archive:
        archive.extractall(directory, filter="data")


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())
