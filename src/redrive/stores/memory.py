"""The contract of `stores.base` as the shortest code that keeps it.

The executable specification: other stores are driven against it in tests, and it serves tests and programs
that need no durability (of S1 it keeps only what a process can). It is one dictionary of immutable letters; a
verb works on a copy of what it touches and puts all of it back at once, so that one that raises has changed
nothing. What is asked has been looked at by `stores.door`; operations are in `memory_operations`.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from redrive.clock import Clock, SystemClock
from redrive.errors import StoreClosedError
from redrive.letters import ClaimToken, DeadLetter, LetterHead, LetterState, Note, RedriveAttempt, Step
from redrive.letters.lifecycle import after
from redrive.stores.base import (
    LINE_OVERHEAD,
    JournalLine,
    LogSize,
    OldLine,
    Page,
    Rescued,
    Trimmed,
    find_trimmable,
    unknown_letter,
)
from redrive.stores.changes import (
    RECLAIMED,
    RELEASED,
    STEP_OF,
    Annotate,
    Assign,
    Change,
    Outcome,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    SetBroker,
    Settlement,
    Tag,
    Unclaim,
    action_of,
    attempt_strategy,
    describe,
    failure_fields,
    result_of,
    retagged,
    state_after,
)
from redrive.stores.checks import check_letter
from redrive.stores.door import Door
from redrive.stores.gates import Gate, Gatekeeper
from redrive.stores.memory_operations import MemoryOperations
from redrive.stores.memos import NOTHING, Memo
from redrive.stores.operations import Group, Item, Operation, OperationState, end, run
from redrive.stores.query import FIELDS, FieldKind, Position, Query, write_cursor

_FREE: dict[str, Any] = {
    "locked_by": None, "locked_at": None, "lease_until": None, "sent_at": None, "unconfirmed": False,
    "waits_for": None,
}  # fmt: skip
_HEAD_FIELDS = LetterHead.__struct_fields__
_ONE_TICK = timedelta(microseconds=1)


class MemoryStore(Door):
    """Letters in a dictionary."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._letters: dict[str, DeadLetter] = {}
        self._lines: list[JournalLine] = []
        self._last_line = 0  # numbers are not given again (S59)
        self._book = MemoryOperations()
        self._memos: dict[str, Memo] = {}
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
                    letter, state=LetterState.PENDING, fence=0, dlq_retry_count=0, presumed=False, attempts=(),
                    notes=(), created_at=stamp, updated_at=stamp, **_FREE,
                )  # fmt: skip
        return answers

    async def _load(self, ids: Sequence[str]) -> list[DeadLetter]:
        self._check_open()
        return [self._find(letter_id) for letter_id in ids]

    async def _page(self, query: Query, limit: int, position: Position | None) -> Page:
        self._check_open()
        attribute = FIELDS[query.sort.field].attribute

        def place(head: LetterHead) -> tuple[Any, str]:
            return getattr(head, attribute), head.id

        found = sorted(
            filter(query.matches, self._letters.values()), key=place, reverse=query.sort.descending
        )
        if position is not None:
            last = (position.value, position.id)
            found = [
                head
                for head in found
                if (place(head) < last if query.sort.descending else place(head) > last)
            ]
        heads = tuple(_head(letter) for letter in found[:limit])
        return Page(heads, write_cursor(query, heads[-1]) if len(found) > limit else None)

    async def _count(self, query: Query) -> int:
        self._check_open()
        return sum(map(query.matches, self._letters.values()))

    async def _tally(self, by: str, query: Query) -> dict[str, int]:
        self._check_open()
        field = FIELDS[by]
        counts: Counter[str] = Counter()
        for head in filter(query.matches, self._letters.values()):
            value = getattr(head, field.attribute)
            counts.update(value if field.kind is FieldKind.TAGS else [] if value is None else [str(value)])
        return dict(counts)

    async def _groups(self, query: Query, limit: int) -> list[Group]:
        self._check_open()
        found: dict[str, list[DeadLetter]] = {}
        for letter in filter(query.matches, self._letters.values()):
            found.setdefault(letter.group, []).append(letter)
        groups = sorted(map(_group, found.values()), key=lambda group: (-group.count, group.group))
        return groups[:limit]

    async def _journal(self, letter_id: str | None, after: int, limit: int) -> list[JournalLine]:
        self._check_open()
        return [line for line in self._lines if line.number > after and letter_id in {None, line.letter_id}][
            :limit
        ]

    async def _measure_change_log(self, after: int, limit: int) -> LogSize:
        self._check_open()
        lines = [line for line in self._lines if line.number > after][:limit]
        return LogSize(lines[-1].number if lines else after, sum(map(_bytes_of, lines)))

    async def _trim_change_log(self, before: datetime, up_to: int, after: int, limit: int) -> Trimmed:
        self._check_open()
        states = {letter.id: letter.state for letter in self._letters.values()}
        lines = [
            OldLine(line.number, line.at, states.get(line.letter_id))
            for line in self._lines
            if line.number > after
        ]
        numbers, trimmed = find_trimmable(lines[:limit], before, up_to, after, limit)
        self._lines = [line for line in self._lines if line.number not in set(numbers)]
        return trimmed

    # --- claiming ----------------------------------------------------------------------------------------

    async def _claim(
        self, worker: str, broker: str, limit: int, lease: timedelta, gates: Sequence[Gate]
    ) -> list[LetterHead]:
        now = self._now()
        due = [
            each
            for each in self._letters.values()
            if each.broker == broker and each.state is LetterState.PENDING and each.next_retry_at <= now
        ]
        due.sort(key=lambda letter: (-letter.priority, letter.created_at, letter.id))
        keeper = Gatekeeper(gates, limit)
        seen: Counter[str | None] = Counter()
        let_in: list[DeadLetter] = []
        for letter in due:
            gate = letter.waits_for
            seen[gate] += 1
            if gate is None:
                let_in.append(letter)
            elif seen[gate] <= keeper.let_in(gate):
                let_in.append(self._wait(letter, None))
        heads: list[LetterHead] = []
        for letter in let_in:
            if len(heads) == limit:
                break
            stopped = keeper.stop(letter.source, letter.consumer_group, letter.kind, letter.strategy)
            if stopped is None:
                heads.append(self._hold(letter, worker, now, lease, Step.CLAIM))
            else:
                self._wait(letter, stopped)
        return heads

    def _wait(self, letter: DeadLetter, gate: str | None) -> DeadLetter:
        """The letter waits at this gate, or at none: no change that the log records (S55)."""
        changed = self._letters[letter.id] = msgspec.structs.replace(letter, waits_for=gate)
        return changed

    async def _take(
        self,
        ids: Sequence[str],
        worker: str,
        brokers: Sequence[str] | None,
        lease: timedelta,
        *,
        reclaim: bool,
    ) -> list[LetterHead]:
        now = self._now()
        steps = {LetterState.PENDING: Step.CLAIM, LetterState.MANUAL: Step.REPLAY}
        heads: list[LetterHead] = []
        for letter_id in dict.fromkeys(ids):
            letter = self._letters.get(letter_id)
            if letter is None or (brokers is not None and letter.broker not in brokers):
                continue
            if reclaim and letter.locked_by == worker and letter.sent_at is None:
                self._change(letter, Step.RETRY, worker, now, action=RELEASED, detail=RECLAIMED, **_FREE)
                letter = self._letters[letter_id]
            if letter.state in steps:
                heads.append(self._hold(letter, worker, now, lease, steps[letter.state]))
        return heads

    def _hold(
        self, letter: DeadLetter, worker: str, now: datetime, lease: timedelta, step: Step
    ) -> LetterHead:
        held: dict[str, Any] = {
            "locked_by": worker, "locked_at": now, "lease_until": now + lease, "waits_for": None,
        }  # fmt: skip
        return self._change(letter, step, worker, now, fence=letter.fence + 1, **held)

    async def _extend(self, holds: Sequence[ClaimToken], lease: timedelta, *, sent: bool) -> list[bool]:
        now = self._now()
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

    def _held(self, hold: ClaimToken, now: datetime, *, or_sent: bool = False) -> DeadLetter | None:
        """The letter, if this hold is its claim and its lease still runs, or it was sent (S11, S14, S15)."""
        letter = self._letters.get(hold.id)
        if letter is None or letter.fence != hold.fence or letter.lease_until is None:
            return None
        return letter if letter.lease_until > now or (or_sent and letter.sent_at is not None) else None

    # --- settling ----------------------------------------------------------------------------------------

    async def _settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        now = self._now()
        return [self._settle_one(one.claim_token, one.outcome, now) for one in settlements]

    def _settle_one(self, hold: ClaimToken, outcome: Outcome, now: datetime) -> bool:
        letter = self._held(hold, now, or_sent=True)
        if letter is None:
            return False
        step, result = STEP_OF[type(outcome)], result_of(outcome)
        changes: dict[str, Any] = {"strategy": outcome.strategy or letter.strategy}
        if isinstance(outcome, Resolve):
            changes["presumed"] = outcome.presumed
        elif not isinstance(outcome, Unclaim) and outcome.failure is not None:
            changes |= {"failure": outcome.failure, **failure_fields(outcome.failure)}
        if isinstance(outcome, Retry | Unclaim) and outcome.at is not None:
            changes["next_retry_at"] = outcome.at
        if result is not None:
            strategy = attempt_strategy(outcome, letter.strategy)
            changes |= _attempted(letter, result, now, strategy, outcome.detail)
        worker, action = letter.locked_by or "", action_of(outcome)
        self._change(letter, step, worker, now, action=action, detail=outcome.detail, **changes, **_FREE)
        return True

    async def _rescue(self, retry_in: timedelta, max_redrives: int, limit: int) -> list[Rescued]:
        now = self._now()
        rescued: list[Rescued] = []
        for letter in self._expired(now, sent=False)[:limit]:
            changes: dict[str, Any] = {}
            step = Step.EXHAUST
            if letter.dlq_retry_count + 1 < max_redrives:
                step, changes["next_retry_at"] = Step.RETRY, now + retry_in
            changes |= _attempted(letter, "crashed", now, letter.strategy, "the lease expired")
            head = self._change(letter, step, "rescuer", now, detail="crashed", **changes, **_FREE)
            rescued.append(Rescued(letter.id, letter.locked_by or "", head.state))
        return rescued

    async def _overdue(self, broker: str, lease: timedelta, limit: int) -> list[LetterHead]:
        now = self._now()
        expired = [each for each in self._expired(now, sent=True) if each.broker == broker]
        heads: list[LetterHead] = []
        for letter in expired[:limit]:
            changed = msgspec.structs.replace(
                letter, lease_until=now + lease, unconfirmed=True, updated_at=now
            )
            self._letters[letter.id] = changed
            if not letter.unconfirmed:
                self._note_change(now, "rescuer", "unconfirmed", letter, changed.state, "")
            heads.append(_head(changed))
        return heads

    def _expired(self, now: datetime, *, sent: bool) -> list[DeadLetter]:
        """The letters whose lease has expired, those that were sent or the others, in the order of their leases."""
        found = [
            each
            for each in self._letters.values()
            if each.lease_until is not None and each.lease_until <= now and (each.sent_at is not None) is sent
        ]
        return sorted(found, key=lambda letter: (letter.lease_until, letter.id))

    # --- changing ----------------------------------------------------------------------------------------

    async def _apply(self, change: Change, ids: Sequence[str], by: str) -> None:
        now = self._now()
        letters = [self._find(letter_id) for letter_id in dict.fromkeys(ids)]
        states = [state_after(change, letter.state) for letter in letters]
        for letter, state in zip(letters, states, strict=True):
            effects = _effects(change, letter, by, now)
            self._put(letter, state, by, now, action_of(change), describe(change), **effects)

    # --- operating ---------------------------------------------------------------------------------------

    async def _begin(self, operation: Operation, letters: list[str]) -> bool:
        return self._book.begin(operation, letters, self._now())

    async def _operation(self, operation_id: str) -> Operation:
        self._check_open()
        return self._book.find(operation_id)

    async def _operations(self, limit: int) -> list[Operation]:
        self._check_open()
        return self._book.newest(limit)

    async def _remaining(self, operation_id: str, limit: int) -> list[str]:
        self._check_open()
        return [item.letter_id for item in self._book.items(operation_id) if item.outcome is None][:limit]

    async def _items(self, operation_id: str, after: int, limit: int) -> list[Item]:
        self._check_open()
        return self._book.items(operation_id)[after : after + limit]

    async def _record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        self._book.record(operation_id, outcomes, self._now())

    async def _run_operation(
        self, operation_id: str, runner: str, lease: timedelta, *, resume: bool, replaces: str | None
    ) -> bool:
        now, operation = self._now(), self._book.find(operation_id)
        return self._book.keep(run(operation, runner, lease, now, resume=resume, replaces=replaces))

    async def _end_operation(self, operation_id: str, state: OperationState, by: str, note: str) -> bool:
        now = self._now()
        return self._book.keep(end(self._book.find(operation_id), state, by, note, now))

    # --- remembering -------------------------------------------------------------------------------------

    async def _recall(self, name: str) -> Memo:
        self._check_open()
        return self._memos.get(name, NOTHING)

    async def _remember(self, name: str, body: bytes, version: int) -> bool:
        self._check_open()
        if self._memos.get(name, NOTHING).version != version:
            return False
        self._memos[name] = Memo(version + 1, body)
        return True

    # --- the store as a whole ----------------------------------------------------------------------------

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
        step: Step,
        actor: str,
        now: datetime,
        *,
        action: str | None = None,
        detail: str = "",
        **changes: Any,
    ) -> LetterHead:
        state = after(letter.state, step)
        return self._put(letter, state, actor, now, action or str(step), detail, **changes)

    def _put(
        self,
        letter: DeadLetter,
        state: LetterState | None,
        actor: str,
        now: datetime,
        action: str,
        detail: str,
        **changes: Any,
    ) -> LetterHead:
        self._note_change(now, actor, action, letter, state, detail)
        if state is None:
            del self._letters[letter.id]
            return _head(letter)
        changed = msgspec.structs.replace(letter, state=state, updated_at=now, **changes)
        self._letters[letter.id] = changed
        return _head(changed)

    def _note_change(
        self,
        now: datetime,
        actor: str,
        action: str,
        letter: DeadLetter,
        state: LetterState | None,
        detail: str,
    ) -> None:
        self._last_line = number = self._last_line + 1
        self._lines.append(
            JournalLine(number=number, at=now, actor=actor, letter_id=letter.id, action=action,
                        before=letter.state, after=state, detail=detail)
        )  # fmt: skip

    def _find(self, letter_id: str) -> DeadLetter:
        try:
            return self._letters[letter_id]
        except KeyError:
            raise unknown_letter(letter_id) from None

    def _stamp(self) -> datetime:
        """The time, a microsecond later for each letter, so that age orders letters of one batch."""
        now = self._clock.now()
        if self._last_stamp is not None and now <= self._last_stamp:
            now = self._last_stamp + _ONE_TICK
        self._last_stamp = now
        return now

    def _now(self) -> datetime:
        """The time at which an open store does something."""
        self._check_open()
        return self._clock.now()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")


def _bytes_of(line: JournalLine) -> int:
    texts = (line.actor, line.letter_id, line.action, line.before, line.after or "", line.detail)
    return LINE_OVERHEAD + sum(len(text.encode()) for text in texts)


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
    attempt = RedriveAttempt(
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
            return {"next_retry_at": at, "waits_for": None}
        case Assign(to):
            return {"assignee": to}
        case Tag():
            return {"tags": retagged(letter.tags, change)}
        case Prioritise(priority):
            return {"priority": priority}
        case Annotate(text):
            return {"notes": (*letter.notes, Note(now, by, text))}
        case SetBroker(broker):
            return {"broker": broker}
        case _:
            return {}
