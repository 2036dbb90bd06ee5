"""The public names as a program uses them. Nothing runs this file: mypy --strict reads it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import redrive
from redrive import (
    ClaimToken,
    Classification,
    Classifier,
    Clock,
    DeadLetter,
    DelayList,
    Exponential,
    Failure,
    FailureKind,
    Fixed,
    Headers,
    LetterHead,
    LetterState,
    Message,
    Note,
    Origin,
    Query,
    Redactor,
    RedriveAttempt,
    RedriveError,
    Rule,
    Settings,
    Store,
    SystemClock,
    TypedValue,
    decide,
    open_store,
    parse_query,
)
from redrive.letters import HeaderValue
from redrive.rules import Decision, Failed, NotRun, Succeeded
from redrive.settings import load
from redrive.stores.base import JournalLine, Page, Rescued
from redrive.stores.changes import (
    Assign,
    Delete,
    Discard,
    Outcome,
    Park,
    Resolve,
    Retry,
    Schedule,
    Settlement,
    Tag,
)
from redrive.stores.memory import MemoryStore
from redrive.stores.memos import Memo
from redrive.stores.sqlite import SqliteOptions, SqliteStore
from redrive.testing import ManualClock

assert_type(redrive.__version__, str)

# --- values ----------------------------------------------------------------------------------------------

now = datetime(2026, 2, 11, tzinfo=UTC)
headers = Headers({"x-tenant": "north", "x-hops": 2, "nested": Headers([("a", b"b"), ("a", None)])})
assert_type(headers.get("x-tenant"), HeaderValue)
assert_type(headers.get_all("x-tenant"), tuple[HeaderValue, ...])
assert_type(headers.text("x-tenant"), str | None)
assert_type(headers.with_({"x-hops": TypedValue("int8", 3)}), Headers)
assert_type(headers.without("x-hops"), Headers)
assert_type(headers[0], tuple[str, HeaderValue])
assert_type(headers[1:], Headers)

message = Message(body=b"{}", headers=headers, message_id="m-1")
assert_type(message.body, bytes | None)
assert_type(message.size, int)
origin = Origin(transport="kafka", source="orders", partition=3, offset=17)
failure = Failure(error_type="TimeoutError", text="timed out", at=now, kind=FailureKind.TIMEOUT)
assert_type(failure.fingerprint, str)

letter = DeadLetter.create(message, origin, failure, key="orders/3/17", reason="exhausted", tags=("vip",))
assert_type(letter, DeadLetter)
assert_type(letter.claim_token, ClaimToken)
assert_type(letter.state, LetterState)
assert_type(letter.attempts, tuple[RedriveAttempt, ...])
assert_type(letter.notes, tuple[Note, ...])
head: LetterHead = letter
assert_type(head.lease_until, datetime | None)

# --- rules -----------------------------------------------------------------------------------------------

classifier = Classifier()
found = classifier.classify(TimeoutError("timed out"))
assert_type(found, Classification)
assert_type(found.kind, FailureKind)
assert_type(found.retryable, bool)
assert_type(decide(Failed(found), 1, 3), Decision)
assert_type(decide(Succeeded(), 1, 3), Decision)
assert_type(decide(NotRun(), 4, 3), Decision)
assert_type(Exponential().delay(1, 0.5), timedelta)
assert_type(Fixed(timedelta(seconds=1)).delay(1), timedelta)
assert_type(DelayList(timedelta(seconds=1), then="stop").delay(2), timedelta | None)
assert_type(Redactor(terms=["falcon"]).clean("about falcon"), str)

# --- settings --------------------------------------------------------------------------------------------

settings = load(Path("redrive.toml"), {"REDRIVE_STORE_URL": "memory:"})
assert_type(settings, Settings)
assert_type(settings.store.max_bytes, int | None)
assert_type(settings.recover.lease, timedelta)
assert_type(settings.rules, tuple[Rule, ...])
assert_type(settings.redact.patterns, Mapping[str, str])

# --- clocks ----------------------------------------------------------------------------------------------

clocks: Sequence[Clock] = [SystemClock(), ManualClock()]
assert_type(clocks[0].now(), datetime)
assert_type(clocks[0].monotonic(), timedelta)

# --- stores ----------------------------------------------------------------------------------------------

query = parse_query("state:pending since:2h", now=now)
assert_type(query, Query)
assert_type(query.matches(letter), bool)


async def stores() -> Sequence[Store]:
    """Each of them is a `Store`."""
    file = await SqliteStore.open("redrive.db", SqliteOptions(max_bytes=None))
    assert_type(file, SqliteStore)
    return [await open_store(settings.store), MemoryStore(ManualClock()), file]


async def life_of_a_letter(store: Store) -> None:
    """Every verb, with what it takes and gives."""
    assert_type(await store.add([letter]), list[bool])
    assert_type(await store.load([letter.id]), list[DeadLetter])
    page = await store.page(query, limit=10)
    assert_type(page, Page)
    assert_type(page.heads, tuple[LetterHead, ...])
    assert_type(page.cursor, str | None)
    assert_type(await store.count(), int)
    assert_type(await store.tally("state", query), dict[str, int])
    held = await store.claim("worker-1", broker="rabbitmq", limit=5, lease=timedelta(minutes=1))
    assert_type(held, list[LetterHead])
    assert_type(await store.take([letter.id], "worker-1"), list[LetterHead])
    assert_type(await store.extend([one.claim_token for one in held], sent=True), list[bool])
    outcomes: list[Outcome] = [Resolve(), Retry(at=now, failure=failure), Park(detail="look at it")]
    settlements = [Settlement(one.claim_token, outcome) for one, outcome in zip(held, outcomes, strict=False)]
    assert_type(await store.settle(settlements), list[bool])
    assert_type(await store.rescue(retry_in=timedelta(minutes=1)), list[Rescued])
    for change in (Schedule(now), Discard("no longer wanted"), Assign("ann"), Tag(add=("vip",)), Delete()):
        await store.apply(change, [letter.id], by="ann")
    assert_type(await store.journal(letter.id, after=0), list[JournalLine])
    memo = await store.recall("alarm")
    assert_type(memo, Memo)
    assert_type(memo.body, bytes | None)
    assert_type(await store.remember("alarm", b"quiet", version=memo.version), bool)
    assert_type(await store.damage(), str | None)
    try:
        await store.close()
    except RedriveError as error:
        assert_type(error.exit_code, int)
