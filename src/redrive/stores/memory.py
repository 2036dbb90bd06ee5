"""The contract of `stores.base` as the shortest code that keeps it.

The executable specification: other stores are driven against it in tests, and it serves tests and programs
that need no durability (of S1 it keeps only what a process can). It is one dictionary of immutable letters; a
verb works on a copy of what it touches and puts all of it back at once, so that one that raises has changed
nothing.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from redrive.clock import Clock, SystemClock
from redrive.errors import LetterNotFoundError, StoreClosedError
from redrive.letters import Attempt, DeadLetter, Hold, LetterHead, Note, State, Step
from redrive.letters.lifecycle import after
from redrive.stores.base import LEASE, MAX_REDRIVES, JournalLine, Page, Rescued
from redrive.stores.changes import (
    STEP_OF,
    STEP_OF_CHANGE,
    Annotate,
    Assign,
    Change,
    Outcome,
    Prioritise,
    Release,
    Resolve,
    Retry,
    Schedule,
    Settlement,
    Tag,
    action_of,
    describe,
    failure_fields,
    retagged,
)
from redrive.stores.checks import (
    LARGEST_CLAIM,
    LARGEST_PAGE,
    check_change,
    check_lease,
    check_letter,
    check_limit,
    check_name,
    check_outcome,
    check_rescue,
)
from redrive.stores.operations import (
    Group,
    Item,
    Operation,
    OperationState,
    begun,
    check_after,
    check_end,
    check_operation,
    check_outcomes,
    check_run,
    end,
    not_listed,
    run,
    unknown_operation,
)
from redrive.stores.query import EVERYTHING, FIELDS, FieldKind, Query, read_cursor, tally_field, write_cursor

_FREE: dict[str, Any] = {"locked_by": None, "locked_at": None, "lease_until": None, "sent_at": None}
_HEAD_FIELDS = LetterHead.__struct_fields__
_ONE_TICK = timedelta(microseconds=1)


class MemoryStore:
    """Letters in a dictionary."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._letters: dict[str, DeadLetter] = {}
        self._journal: list[JournalLine] = []
        self._operations: dict[str, Operation] = {}
        self._items: dict[str, dict[str, Item]] = {}
        self._last_stamp: datetime | None = None
        self._closed = False

    # --- adding and reading ------------------------------------------------------------------------------

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        """S1 to S5."""
        self._check_open()
        for letter in letters:
            check_letter(letter)
        answers: list[bool] = []
        for letter in letters:
            stamp = self._stamp()
            answers.append(letter.id not in self._letters)
            if answers[-1]:
                self._letters[letter.id] = msgspec.structs.replace(
                    letter, state=State.PENDING, fence=0, dlq_retry_count=0, presumed=False, attempts=(), notes=(),
                    created_at=stamp, updated_at=stamp, **_FREE,
                )  # fmt: skip
        return answers

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """S28."""
        self._check_open()
        return [self._find(letter_id) for letter_id in ids]

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        """S26, S27."""
        self._check_open()
        check_limit(limit, LARGEST_PAGE)
        attribute = FIELDS[query.sort.field].attribute

        def place(head: LetterHead) -> tuple[Any, str]:
            return getattr(head, attribute), head.id

        found = sorted(
            filter(query.matches, self._letters.values()), key=place, reverse=query.sort.descending
        )
        if cursor is not None:
            last = read_cursor(query, cursor)
            found = [
                head
                for head in found
                if (
                    place(head) < (last.value, last.id)
                    if query.sort.descending
                    else place(head) > (last.value, last.id)
                )
            ]
        heads = tuple(_head(letter) for letter in found[:limit])
        return Page(heads, write_cursor(query, heads[-1]) if len(found) > limit else None)

    async def count(self, query: Query = EVERYTHING) -> int:
        """S29."""
        self._check_open()
        return sum(map(query.matches, self._letters.values()))

    async def tally(self, by: str, query: Query = EVERYTHING) -> dict[str, int]:
        """S29."""
        self._check_open()
        field = tally_field(by)
        counts: Counter[str] = Counter()
        for head in filter(query.matches, self._letters.values()):
            value = getattr(head, field.attribute)
            counts.update(value if field.kind is FieldKind.TAGS else [] if value is None else [str(value)])
        return dict(counts)

    # --- claiming ----------------------------------------------------------------------------------------

    async def claim(self, worker: str, *, limit: int = 10, lease: timedelta = LEASE) -> list[LetterHead]:
        """S6 to S9."""
        check_limit(limit, LARGEST_CLAIM)
        now = self._begin(worker, lease)
        due = [
            each
            for each in self._letters.values()
            if each.state is State.PENDING and each.next_retry_at <= now
        ]
        due.sort(key=lambda letter: (-letter.priority, letter.created_at, letter.id))
        return [self._hold(letter, worker, now, lease, Step.CLAIM) for letter in due[:limit]]

    async def take(self, ids: Sequence[str], worker: str, *, lease: timedelta = LEASE) -> list[LetterHead]:
        """S10."""
        now = self._begin(worker, lease)
        steps = {State.PENDING: Step.CLAIM, State.MANUAL: Step.REPLAY}
        chosen = [self._letters[i] for i in dict.fromkeys(ids) if i in self._letters]
        return [
            self._hold(each, worker, now, lease, steps[each.state]) for each in chosen if each.state in steps
        ]

    def _begin(self, worker: str, lease: timedelta) -> datetime:
        self._check_open()
        check_name("the worker's name", worker)
        check_lease(lease)
        return self._clock.now()

    def _hold(
        self, letter: DeadLetter, worker: str, now: datetime, lease: timedelta, step: Step
    ) -> LetterHead:
        held: dict[str, Any] = {"locked_by": worker, "locked_at": now, "lease_until": now + lease}
        return self._change(letter, step, worker, now, fence=letter.fence + 1, **held)

    async def extend(
        self, holds: Sequence[Hold], *, lease: timedelta = LEASE, sent: bool = False
    ) -> list[bool]:
        """S11, S12."""
        self._check_open()
        check_lease(lease)
        now = self._clock.now()
        answers: list[bool] = []
        for hold in holds:
            letter = self._held(hold, now)
            answers.append(letter is not None)
            if letter is not None:
                sent_at = (letter.sent_at or now) if sent else letter.sent_at
                changed = msgspec.structs.replace(
                    letter, lease_until=now + lease, sent_at=sent_at, updated_at=now
                )
                self._letters[letter.id] = changed
                if sent and letter.sent_at is None:
                    self._note_change(now, letter.locked_by or "", "sent", letter, changed.state, "")
        return answers

    def _held(self, hold: Hold, now: datetime) -> DeadLetter | None:
        """The letter, if this hold is still good for it (S15)."""
        letter = self._letters.get(hold.id)
        if (
            letter is None
            or letter.fence != hold.fence
            or letter.lease_until is None
            or letter.lease_until <= now
        ):
            return None
        return letter

    # --- settling ----------------------------------------------------------------------------------------

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """S14 to S18."""
        self._check_open()
        for one in settlements:
            check_outcome(one.outcome)
        now = self._clock.now()
        return [self._settle_one(one.hold, one.outcome, now) for one in settlements]

    def _settle_one(self, hold: Hold, outcome: Outcome, now: datetime) -> bool:
        letter = self._held(hold, now)
        if letter is None:
            return False
        step, result = STEP_OF[type(outcome)]
        changes: dict[str, Any] = {"strategy": outcome.strategy or letter.strategy}
        if isinstance(outcome, Resolve):
            changes["presumed"] = outcome.presumed
            result = "presumed" if outcome.presumed else result
        elif not isinstance(outcome, Release) and outcome.failure is not None:
            changes |= {"failure": outcome.failure, **failure_fields(outcome.failure)}
        if isinstance(outcome, Retry | Release) and outcome.at is not None:
            changes["next_retry_at"] = outcome.at
        if result is not None:
            changes |= _attempted(letter, result, now, outcome.strategy, outcome.detail)
        worker, action = letter.locked_by or "", action_of(outcome)
        self._change(letter, step, worker, now, action=action, detail=outcome.detail, **changes, **_FREE)
        return True

    async def rescue(
        self, *, retry_in: timedelta, max_redrives: int = MAX_REDRIVES, limit: int = 1000
    ) -> list[Rescued]:
        """S19 to S21."""
        self._check_open()
        check_rescue(retry_in, max_redrives, limit)
        now = self._clock.now()
        ended = [
            each
            for each in self._letters.values()
            if each.lease_until is not None and each.lease_until <= now
        ]
        ended.sort(key=lambda letter: (letter.lease_until, letter.id))
        rescued: list[Rescued] = []
        for letter in ended[:limit]:
            changes: dict[str, Any] = {}
            if letter.sent_at is not None:
                step, result, changes["presumed"] = Step.RESOLVE, "presumed", True
            elif letter.dlq_retry_count + 1 < max_redrives:
                step, result, changes["next_retry_at"] = Step.RETRY, "crashed", now + retry_in
            else:
                step, result = Step.EXHAUST, "crashed"
            changes |= _attempted(letter, result, now, letter.strategy, "the lease ended")
            head = self._change(letter, step, "rescuer", now, detail=result, **changes, **_FREE)
            rescued.append(Rescued(letter.id, letter.locked_by or "", head.state))
        return rescued

    # --- changing ----------------------------------------------------------------------------------------

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        """S22 to S25."""
        self._check_open()
        check_name("the actor's name", by)
        check_change(change)
        step = STEP_OF_CHANGE[type(change)]
        letters = [self._find(letter_id) for letter_id in dict.fromkeys(ids)]
        for letter in letters:
            if step is not None:
                after(letter.state, step)
        now = self._clock.now()
        for letter in letters:
            effects = _effects(change, letter, by, now)
            self._change(letter, step, by, now, action=action_of(change), detail=describe(change), **effects)

    async def journal(
        self, letter_id: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[JournalLine]:
        """S25."""
        self._check_open()
        check_limit(limit, LARGEST_CLAIM)
        return [
            line for line in self._journal if line.number > after and letter_id in {None, line.letter_id}
        ][:limit]

    # --- operations and groups ---------------------------------------------------------------------------

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """S34 to S36."""
        self._check_open()
        check_operation(operation, ids)
        if operation.id in self._operations:
            return False
        self._items[operation.id] = {letter_id: Item(letter_id) for letter_id in ids}
        total = len(self._items[operation.id])
        self._operations[operation.id] = begun(operation, total, self._clock.now())
        return True

    async def operation(self, operation_id: str) -> Operation:
        """S37."""
        self._check_open()
        try:
            return self._operations[operation_id]
        except KeyError:
            raise unknown_operation(operation_id) from None

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """S37."""
        self._check_open()
        check_limit(limit, LARGEST_PAGE)
        return list(reversed(self._operations.values()))[:limit]

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        await self.operation(operation_id)
        return [item.letter_id for item in self._items[operation_id].values() if item.outcome is None][:limit]

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        check_after(after)
        await self.operation(operation_id)
        return list(self._items[operation_id].values())[after : after + limit]

    async def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        """S39, S40."""
        check_outcomes(outcomes)
        operation = await self.operation(operation_id)
        items = dict(self._items[operation_id])
        counts = Counter(operation.outcomes)
        now = self._clock.now()
        for letter_id, outcome, detail in outcomes:
            if letter_id not in items:
                raise not_listed(operation_id, letter_id)
            if items[letter_id].outcome is None:
                items[letter_id] = Item(letter_id, outcome, detail, now)
                counts[outcome] += 1
        self._items[operation_id] = items
        self._operations[operation_id] = msgspec.structs.replace(operation, outcomes=dict(counts))

    async def run_operation(
        self, operation_id: str, runner: str, *, lease: timedelta = LEASE, resume: bool = True
    ) -> bool:
        """S41, S42."""
        check_run(runner, lease)
        operation = await self.operation(operation_id)
        return self._keep(run(operation, runner, lease, self._clock.now(), resume=resume))

    async def end_operation(
        self, operation_id: str, state: OperationState, *, by: str, note: str = ""
    ) -> bool:
        """S43."""
        check_end(state, by, note)
        operation = await self.operation(operation_id)
        return self._keep(end(operation, state, by, note, self._clock.now()))

    def _keep(self, operation: Operation | None) -> bool:
        if operation is not None:
            self._operations[operation.id] = operation
        return operation is not None

    async def groups(self, query: Query = EVERYTHING, *, limit: int = 50) -> list[Group]:
        """S45."""
        self._check_open()
        check_limit(limit, LARGEST_PAGE)
        found: dict[str, list[DeadLetter]] = {}
        for letter in filter(query.matches, self._letters.values()):
            found.setdefault(letter.group, []).append(letter)
        groups = sorted(map(_group, found.values()), key=lambda group: (-group.count, group.group))
        return groups[:limit]

    async def damage(self) -> str | None:
        """Nothing can be wrong with a dictionary."""
        self._check_open()
        return None

    async def close(self) -> None:
        """S32."""
        self._closed = True

    # --- the one place where a letter changes ------------------------------------------------------------

    def _change(
        self,
        letter: DeadLetter,
        step: Step | None,
        actor: str,
        now: datetime,
        *,
        action: str | None = None,
        detail: str = "",
        **changes: Any,
    ) -> LetterHead:
        state = after(letter.state, step) if step is not None else letter.state
        self._note_change(now, actor, action or str(step), letter, state, detail)
        if state is None:
            del self._letters[letter.id]
            return _head(letter)
        changed = msgspec.structs.replace(letter, state=state, updated_at=now, **changes)
        self._letters[letter.id] = changed
        return _head(changed)

    def _note_change(
        self, now: datetime, actor: str, action: str, letter: DeadLetter, state: State | None, detail: str
    ) -> None:
        number = len(self._journal) + 1
        self._journal.append(
            JournalLine(number=number, at=now, actor=actor, letter_id=letter.id, action=action,
                        before=letter.state, after=state, detail=detail)
        )  # fmt: skip

    def _find(self, letter_id: str) -> DeadLetter:
        try:
            return self._letters[letter_id]
        except KeyError:
            raise LetterNotFoundError(f"no letter has the id {letter_id!a}") from None

    def _stamp(self) -> datetime:
        """The time, a microsecond later for each letter, so that age orders letters of one batch."""
        now = self._clock.now()
        if self._last_stamp is not None and now <= self._last_stamp:
            now = self._last_stamp + _ONE_TICK
        self._last_stamp = now
        return now

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")


def _head(letter: LetterHead) -> LetterHead:
    return LetterHead(**{name: getattr(letter, name) for name in _HEAD_FIELDS})


def _group(letters: list[DeadLetter]) -> Group:
    """What letters of one fingerprint have in common (S45)."""
    last = max(letters, key=lambda letter: letter.created_at)
    return Group(
        group=last.group,
        count=len(letters),
        error_type=last.error_type,
        error_text=last.error_text,
        sources=tuple(sorted({letter.source for letter in letters})),
        first_seen=min(letter.first_failed_at for letter in letters),
        last_seen=max(letter.last_failed_at for letter in letters),
        states=dict(Counter(str(letter.state) for letter in letters)),
    )


def _attempted(
    letter: DeadLetter, result: str, now: datetime, strategy: str | None, detail: str
) -> dict[str, Any]:
    """One more redrive, and its line in the history (S16, S19)."""
    attempt = Attempt(
        number=letter.dlq_retry_count + 1,
        started_at=letter.locked_at or now,
        ended_at=now,
        worker=letter.locked_by or "",
        strategy=strategy,
        result=result,
        fence=letter.fence,
        detail=detail,
    )
    return {"dlq_retry_count": attempt.number, "attempts": (*letter.attempts, attempt)}


def _effects(change: Change, letter: DeadLetter, by: str, now: datetime) -> dict[str, Any]:
    match change:
        case Schedule(at):
            return {"next_retry_at": at}
        case Assign(to):
            return {"assignee": to}
        case Tag():
            return {"tags": retagged(letter.tags, change)}
        case Prioritise(priority):
            return {"priority": priority}
        case Annotate(text):
            return {"notes": (*letter.notes, Note(now, by, text))}
        case _:
            return {}
