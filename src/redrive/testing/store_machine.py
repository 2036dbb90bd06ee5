"""Any store driven against the memory one, by hypothesis.

Both get the same verbs with the same arguments, in orders nobody thought of; after each verb their answers, and
all of their letters, operations, memos and both journals, must be equal::

    TestMyStore = store_machine(lambda place, clock: MyStore.open(place / "letters", clock=clock))
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from redrive.clock import Clock
from redrive.errors import RedriveError
from redrive.letters import ClaimToken, Failure, FailureKind, LetterState
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
    SetBroker,
    Settlement,
    Tag,
    Unclaim,
)
from redrive.stores.gates import Gate
from redrive.stores.memory import MemoryStore
from redrive.stores.memos import Memo
from redrive.stores.operations import Operation, OperationState
from redrive.stores.query import parse_query
from redrive.testing.clock import ManualClock
from redrive.testing.factories import a_letter, a_message

_KEYS = [f"key-{n}" for n in range(8)]
_IDS = [a_letter(key).id for key in _KEYS]
_BROKERS = st.sampled_from(["shop", "events"])
_WORKERS = st.sampled_from(["w1", "w2"])
_LEASES = st.sampled_from([timedelta(seconds=1), timedelta(minutes=1)])
_SPANS = st.sampled_from([timedelta(0), timedelta(seconds=1), timedelta(minutes=2)])
_SOME_IDS = st.lists(st.sampled_from([*_IDS, "unknown"]), max_size=3)
_OPERATIONS = st.sampled_from(["op-1", "op-2", "op-unknown"])
_MEMOS = ["memo-1", "memo-2"]
_GATES = st.lists(
    st.sampled_from(
        [
            Gate(name="kind", kinds=("not_found",)), Gate(name="strategy", strategies=("immediate",)),
            Gate(name="source", sources=("orders",)), Gate(name="all"), Gate(name="some", passes=1),
            Gate(name="kind-some", kinds=("not_found", "timeout"), passes=2),
        ]
    ),
    max_size=2,
    unique_by=lambda gate: gate.name,
).map(tuple)  # fmt: skip
_QUERIES = st.sampled_from(
    [
        "", "state:pending", "-state:pending", "priority>=1", "tag:vip", "-tag:vip", "assignee:ann", "redrives>0",
        "worker:w1", "sort:-priority", "sort:due", "sort:redrives", "error:LookupError", "boom",
        "due<=2026-02-11T12:01:00Z", "broker:shop", "-broker:shop", "unconfirmed:yes", "presumed:no", "unconfirmed:no",
        "waits_for:all", "-waits_for:all", "waits_for:k*",
    ]
)  # fmt: skip


def store_machine(
    open_store: Callable[[Path, Clock], Awaitable[Store]], *, max_examples: int = 60, steps: int = 40
) -> type:
    """A test case that drives the store that `open_store` opens."""

    class StoreMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.runner = asyncio.Runner()
            self.place = tempfile.TemporaryDirectory(prefix="redrive-machine-", ignore_cleanup_errors=True)
            self.clock = ManualClock()
            self.holds: list[ClaimToken] = []
            self.store: Store
            self.model: MemoryStore

        @initialize()
        def open(self) -> None:
            async def opening() -> Store:
                return await open_store(Path(self.place.name), self.clock)

            self.store = self.runner.run(opening())
            self.model = MemoryStore(self.clock)

        def teardown(self) -> None:
            self.runner.run(self.store.close())
            self.runner.close()
            self.place.cleanup()

        def both(self, verb: str, *args: Any, **options: Any) -> Any:
            """The answer of both, which must be one."""

            async def ask(store: Store) -> Any:
                try:
                    return await getattr(store, verb)(*args, **options)
                except RedriveError as error:
                    return type(error), str(error)

            answer, expected = self.runner.run(ask(self.store)), self.runner.run(ask(self.model))
            assert answer == expected, f"{verb}{args}{options}: {answer} is not {expected}"
            return answer

        @rule(
            picks=st.lists(
                st.tuples(st.sampled_from(_KEYS), st.integers(0, 2), _SPANS), min_size=1, max_size=3
            )
        )
        def add(self, picks: list[tuple[str, int, timedelta]]) -> None:
            lot = [
                a_letter(
                    key,
                    priority=priority,
                    tags=("vip",) if priority == 2 else (),
                    retry_in=timedelta(hours=1) + wait,
                    message=a_message(message_id=f"m-{key}", correlation_id=f"c-{key}"),
                    broker="shop" if key < _KEYS[5] else "events",
                )
                for key, priority, wait in picks
            ]
            self.both("add", lot)

        @rule(worker=_WORKERS, broker=_BROKERS, limit=st.integers(0, 3), lease=_LEASES, gates=_GATES)
        def claim(
            self, worker: str, broker: str, limit: int, lease: timedelta, gates: tuple[Gate, ...]
        ) -> None:
            self.keep_holds(self.both("claim", worker, broker=broker, limit=limit, lease=lease, gates=gates))

        @rule(ago=_SPANS, up_to=st.integers(0, 5), limit=st.integers(1, 4))
        def trim_change_log(self, ago: timedelta, up_to: int, limit: int) -> None:
            size = self.both("measure_change_log", limit=limit)
            before = self.clock.now() - ago
            self.both("trim_change_log", before=before, up_to=up_to, after=size.last, limit=limit)
            self.both("trim_change_log", before=before, up_to=up_to, limit=limit)

        @rule(
            ids=_SOME_IDS,
            worker=_WORKERS,
            brokers=st.sampled_from([None, (), ("shop",), ("events", "shop")]),
            lease=_LEASES,
            reclaim=st.booleans(),
        )
        def take(
            self,
            ids: list[str],
            worker: str,
            brokers: tuple[str, ...] | None,
            lease: timedelta,
            reclaim: bool,  # noqa: FBT001
        ) -> None:
            self.keep_holds(self.both("take", ids, worker, brokers=brokers, lease=lease, reclaim=reclaim))

        @rule(broker=_BROKERS, lease=_LEASES, limit=st.integers(1, 3))
        def overdue(self, broker: str, lease: timedelta, limit: int) -> None:
            self.both("overdue", broker=broker, lease=lease, limit=limit)

        def keep_holds(self, answer: Any) -> None:
            if isinstance(answer, list):
                self.holds += [head.claim_token for head in answer]

        @rule(data=st.data(), lease=_LEASES, sent=st.booleans())
        def extend(self, data: st.DataObject, lease: timedelta, sent: bool) -> None:  # noqa: FBT001
            self.both("extend", self.some_holds(data), lease=lease, sent=sent)

        @rule(data=st.data(), wait=_SPANS)
        def settle(self, data: st.DataObject, wait: timedelta) -> None:
            failure = Failure(
                error_type="LookupError", text="boom", at=self.clock.now(), kind=FailureKind.NOT_FOUND
            )
            outcomes: list[Outcome] = [
                Resolve(), Resolve(presumed=True, detail="quiet"),
                Retry(at=self.clock.now() + wait, strategy="immediate"),
                Retry(at=self.clock.now() + wait, failure=failure),
                Retry(at=self.clock.now() + wait, result="unconfirmed"), Fail(failure=failure), Fail(), Park(),
                Park(failure=failure, strategy="manual"), Unclaim(), Unclaim(at=self.clock.now() + wait),
            ]  # fmt: skip
            chosen = [
                Settlement(hold, data.draw(st.sampled_from(outcomes))) for hold in self.some_holds(data)
            ]
            self.both("settle", chosen)

        def some_holds(self, data: st.DataObject) -> list[ClaimToken]:
            known = [*self.holds[-6:], ClaimToken(_IDS[0], 1), ClaimToken("unknown", 1)]
            return data.draw(st.lists(st.sampled_from(known), max_size=3))

        @rule(retry_in=_SPANS, max_redrives=st.integers(1, 3), limit=st.integers(1, 3))
        def rescue(self, retry_in: timedelta, max_redrives: int, limit: int) -> None:
            self.both("rescue", retry_in=retry_in, max_redrives=max_redrives, limit=limit)

        @rule(data=st.data(), ids=_SOME_IDS, wait=_SPANS)
        def apply(self, data: st.DataObject, ids: list[str], wait: timedelta) -> None:
            changes: list[Change] = [
                Schedule(self.clock.now() + wait), Discard("junk"), Archive(), Delete(), Assign("ann"), Assign(None),
                Tag(add=("vip", "eu")), Tag(remove=("vip",)), Prioritise(1), Annotate("looked at it"), Annotate(""),
                SetBroker("shop"), SetBroker("events"),
            ]  # fmt: skip
            self.both("apply", data.draw(st.sampled_from(changes)), ids, by="ann")

        @rule(text=_QUERIES, limit=st.integers(1, 4))
        def page(self, text: str, limit: int) -> None:
            query = parse_query(text, now=self.clock.now())
            page = self.both("page", query, limit=limit)
            if page.cursor is not None:
                self.both("page", query, limit=limit, cursor=page.cursor)
            self.both("count", query)
            self.both("tally", "state", query)
            self.both("groups", query, limit=limit)

        @rule(
            which=st.sampled_from(["op-1", "op-2"]),
            ids=st.lists(st.sampled_from([*_IDS, "unknown"]), max_size=6),
        )
        def begin(self, which: str, ids: list[str]) -> None:
            self.both("begin", Operation(id=which, kind="replay", by="ann", query="tag:vip"), ids)

        @rule(
            which=_OPERATIONS,
            ids=_SOME_IDS,
            outcome=st.sampled_from(["sent", "dead", ""]),
        )
        def record(self, which: str, ids: list[str], outcome: str) -> None:
            self.both("record", which, [(letter_id, outcome, which) for letter_id in ids])

        @rule(which=_OPERATIONS, limit=st.integers(1, 3))
        def record_the_next(self, which: str, limit: int) -> None:
            answer = self.both("remaining", which, limit=limit)
            if isinstance(answer, list):
                self.both("record", which, [(letter_id, "sent", "") for letter_id in answer])

        @rule(
            which=_OPERATIONS,
            runner=_WORKERS,
            lease=_LEASES,
            resume=st.booleans(),
            replaces=st.none() | _WORKERS,
        )
        def run_operation(
            self,
            which: str,
            runner: str,
            lease: timedelta,
            resume: bool,  # noqa: FBT001
            replaces: str | None,
        ) -> None:
            self.both("run_operation", which, runner, lease=lease, resume=resume, replaces=replaces)

        @rule(which=_OPERATIONS, state=st.sampled_from(OperationState), note=st.sampled_from(["", "enough"]))
        def end_operation(self, which: str, state: OperationState, note: str) -> None:
            self.both("end_operation", which, state, by="bob", note=note)

        @rule(
            name=st.sampled_from([*_MEMOS, ""]),
            body=st.binary(max_size=8),
            off_by=st.sampled_from([0, 0, 0, -1, 1]),
        )
        def remember(self, name: str, body: bytes, off_by: int) -> None:
            memo = self.both("recall", name)
            version = memo.version if isinstance(memo, Memo) else 0
            self.both("remember", name, body, version=version + off_by)

        @rule(span=_SPANS)
        def let_time_pass(self, span: timedelta) -> None:
            self.clock.advance(span)

        @invariant()
        def all_letters_are_equal(self) -> None:
            heads = self.both("page", limit=100).heads
            assert all(
                (head.state is LetterState.PROCESSING) is (head.lease_until is not None) for head in heads
            )
            assert all(head.sent_at is not None for head in heads if head.unconfirmed)
            self.both("load", [head.id for head in heads])
            self.both("journal", limit=1000)

        @invariant()
        def all_operations_are_equal(self) -> None:
            for operation in self.both("operations"):
                items = self.both("items", operation.id, limit=10)
                told = [item.outcome for item in items if item.outcome is not None]
                assert operation.outcomes == {outcome: told.count(outcome) for outcome in set(told)}
                assert (operation.state is OperationState.RUNNING) is (operation.ended_at is None)

        @invariant()
        def all_memos_are_equal(self) -> None:
            for name in _MEMOS:
                memo = self.both("recall", name)
                assert (memo.version == 0) is (memo.body is None)

    StoreMachine.TestCase.settings = settings(
        max_examples=max_examples, stateful_step_count=steps, deadline=None, print_blob=True
    )
    case: type = StoreMachine.TestCase
    return case
