"""Was everything right that happened?

Two kinds of rules. While the world runs, each verb of the store is compared with the letters before and after it, and
each message that is sent with what the store knows of its letter: a rule that is broken is broken at that moment. When
the world has come to rest, the end is judged: nothing lost, nothing twice without an excuse, every count exact.

The rules are written down here once more, from the promises and not from the code that keeps them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from redrive.letters import DeadLetter, Hold, State
from redrive.letters.lifecycle import TABLE
from redrive.letters.redrive import redrive_of
from redrive.letters.verdict import QUEUE
from redrive.transports.base import Publication

if TYPE_CHECKING:
    from redrive.testing.simulation.faulty_store import SimulatedStore

_LEGAL: Final = frozenset((before, after) for (before, _), after in TABLE.items())
_OPERATION: Final = "replay:"
UNRESOLVED: Final = frozenset({State.PENDING, State.PROCESSING, State.MANUAL, State.FAILED, State.ARCHIVED})


def short(letter_id: str) -> str:
    """As much of a letter's id as tells it from the others of a small world: of its time, and of its key."""
    return f"{letter_id[6:10]}-{letter_id[-4:]}"


class BrokenError(AssertionError):
    """A rule was broken."""


class Watch:
    """Sees everything that really happened in one world."""

    def __init__(self, store: "SimulatedStore", limit: int, now: Callable[[], datetime]) -> None:
        self._store = store
        self._limit = limit
        self._now = now
        self.broken: list[str] = []
        self.excuses = 0  # faults after which something may be there, or be sent, twice
        self.setbacks = 0  # faults after which a message may only be handled once more than it should
        self.frozen: dict[str, frozenset[str]] = {}  # operation → its list
        self.sent: set[Hold] = set()
        self.sent_again = 0  # sends of a letter whose earlier copy had not come back
        self.stale = 0  # sends under a claim that was over
        self.marked: dict[str, int] = {}  # letter → the last fence under which it was marked as sent
        self.finished: set[Hold] = set()
        self.processed: Counter[str] = Counter()
        self.verdicts: set[Hold] = set()  # redrives that a handler has really processed
        self.calls: Counter[str] = Counter()

    def rule(self, kept: bool, what: str) -> None:  # noqa: FBT001  reads as a sentence
        """This must be so."""
        if not kept:
            self.broken.append(what)
            raise BrokenError(what)

    # --- while it runs -----------------------------------------------------------------------------------------

    def store_did(self, verb: str, before: dict[str, DeadLetter], holds: Sequence[Hold], answer: Any) -> None:
        """A verb of the store has happened."""
        now = self._now()
        after = self._store.letters
        for letter_id in before:
            self.rule(letter_id in after, f"{verb}: letter {letter_id} is gone")
        shown = set(holds)
        for letter_id, new in after.items():
            old = before.get(letter_id)
            if old is new:
                continue
            if old is None:
                self.rule(verb == "add", f"{verb} has added letter {letter_id}")
                self.rule(
                    (new.state, new.fence, new.dlq_retry_count) == (State.PENDING, 0, 0),
                    f"letter {letter_id} is new, yet {new.state}",
                )
                continue
            self._changed(verb, old, new, shown, now)
        if verb == "settle":
            for hold, done in zip(holds, answer, strict=True):
                old = before.get(hold.id)
                if done:
                    self.rule(
                        old is not None and old.fence == hold.fence and old.state is State.PROCESSING,
                        f"settle under {hold} was carried out, but it was not the claim",
                    )

    def _changed(self, verb: str, old: DeadLetter, new: DeadLetter, shown: set[Hold], now: datetime) -> None:
        name = f"letter {old.id} ({old.message.body!r})"
        if old.state is not new.state:
            self.rule(
                (old.state, new.state) in _LEGAL, f"{verb}: {name} went from {old.state} to {new.state}"
            )
        self.rule(new.message == old.message, f"{verb}: the message of {name} was changed")
        claimed = verb in {"claim", "take"}
        self.rule(
            new.fence == old.fence + claimed,
            f"{verb}: the fence of {name} went from {old.fence} to {new.fence}",
        )
        if verb == "claim":
            self.rule(old.next_retry_at <= now, f"{name} was claimed before it was due")
        ran = old.lease_until is not None and old.lease_until > now
        if verb in {"extend", "settle"}:
            self.rule(old.hold in shown, f"{verb}: {name} was changed by somebody whose claim is over")
            self.rule(ran, f"{verb}: {name} was changed after its lease had ended")
        if old.state is State.PROCESSING and new.state is not State.PROCESSING:
            self.rule(verb in {"settle", "rescue"}, f"{verb} has finished {name}")
            self.rule(old.hold not in self.finished, f"{verb}: {name} was finished twice under {old.fence}")
            self.finished.add(old.hold)
            if verb == "rescue":
                self.rule(not ran, f"{name} was rescued while its lease ran")
        if old.sent_at is None and new.sent_at is not None:
            self.marked[old.id] = old.fence
        more = new.dlq_retry_count - old.dlq_retry_count
        self.rule(
            more in {0, 1},
            f"{verb}: {name} went from {old.dlq_retry_count} to {new.dlq_retry_count} redrives",
        )
        self.rule(
            len(new.attempts) == new.dlq_retry_count, f"{verb}: {name} has other attempts than redrives"
        )
        self.rule(
            new.attempts[: len(old.attempts)] == old.attempts, f"{verb}: the history of {name} was rewritten"
        )
        self.rule(new.dlq_retry_count <= self._limit, f"{verb}: {name} has more redrives than are allowed")

    def planned(self, operation: str, ids: Sequence[str]) -> None:
        """An operation is about to begin with this list."""
        self.frozen[operation] = frozenset(ids)

    def taking(self, worker: str, ids: Sequence[str]) -> None:
        """Letters are about to be taken by hand."""
        operation = worker.removeprefix(_OPERATION)
        strange = set(ids) - self.frozen.get(operation, frozenset())
        self.rule(not strange, f"a replay takes letters that are not in its list: {sorted(strange)}")

    def sending(self, who: str, publications: Sequence[Publication]) -> None:
        """These messages are sent."""
        for publication in publications:
            redrive = redrive_of(publication.message.headers)
            if redrive is None or publication.target.name == QUEUE:
                continue
            hold, name = redrive.hold, f"letter {redrive.hold.id} ({publication.message.body!r})"
            self.rule(hold not in self.sent, f"{who} sends {name} twice under one claim")
            letter = self._store.letters[hold.id]
            if letter.hold != hold or letter.lease_until is None or letter.lease_until <= self._now():
                self.rule(
                    self.excuses > 0, f"{who} sends {name} under a claim that is over, and nothing went wrong"
                )
                self.stale += 1
            else:
                self._sends(who, letter, redrive.attempt, redrive.operation)
            self.sent.add(hold)

    def _sends(self, who: str, letter: DeadLetter, attempt: int, operation: str | None) -> None:
        name = f"letter {letter.id} ({letter.message.body!r})"
        earlier = redrive_of(letter.message.headers)
        count = letter.dlq_retry_count + (0 if earlier is None else earlier.attempt)
        self.rule(attempt == count + 1, f"{who} sends {name} as number {attempt}; it is number {count + 1}")
        self.rule(attempt <= self._limit, f"{who} sends {name} for the {attempt}th time")
        came_back = {each.fence for each in letter.attempts if each.result == "failed"}
        marked = self.marked.get(letter.id)
        self.rule(
            marked is None or marked in came_back,
            f"{who} sends {name} again, which was recorded as sent and has not come back",
        )
        if any(hold.id == letter.id and hold.fence not in came_back for hold in self.sent):
            self.rule(self.excuses > 0, f"{who} sends {name} again, and nothing went wrong")
            self.sent_again += 1
        if operation is not None:
            self.rule(letter.id in self.frozen[operation], f"{who} sends {name}, which is not in the list")
            item = self._store.list_of(operation).get(letter.id)
            self.rule(
                item is not None and item.outcome is None,
                f"{who} sends {name} although its outcome is recorded",
            )

    # --- the end -----------------------------------------------------------------------------------------------

    def judge(self, messages: Sequence[str]) -> None:
        """The world is at rest: is everything where it belongs?"""
        letters: defaultdict[str, list[DeadLetter]] = defaultdict(list)
        for letter in self._store.letters.values():
            letters[(letter.message.body or b"").decode()].append(letter)
            self._judge_letter(letter)
        for message in messages:
            kept = [one for one in letters[message] if one.state in UNRESOLVED]
            done = self.processed[message]
            self.rule(done > 0 or bool(kept), f"message {message} is lost")
            # What is there twice and is then doubled again is there four times.
            self.rule(len(kept) <= 2**self.excuses, f"message {message} lies in {len(kept)} letters")
            if not self.excuses and not self.setbacks:
                self.rule(done <= 1, f"message {message} was processed {done} times, and nothing went wrong")
                states = [str(one.state) for one in letters[message]]
                self.rule(
                    len(states) <= 1 and done + len(kept) == 1,
                    f"message {message}: processed {done} times, letters {states}, and nothing went wrong",
                )
        self._judge_journal()
        self._judge_operations()

    def _judge_letter(self, letter: DeadLetter) -> None:
        name = f"letter {letter.id} ({letter.message.body!r})"
        self.rule(
            [one.number for one in letter.attempts] == list(range(1, letter.dlq_retry_count + 1)),
            f"{name}: attempts are not numbered in order",
        )
        fences = [one.fence for one in letter.attempts]
        self.rule(fences == sorted(set(fences)), f"{name}: two attempts under one claim")
        for attempt in letter.attempts:
            hold = Hold(letter.id, attempt.fence)
            if attempt.result == "resolved":
                self.rule(hold in self.verdicts, f"{name} is resolved, but nobody has processed it")
            elif attempt.result == "failed" and not attempt.detail.startswith("sent back"):
                self.rule(hold in self.sent, f"{name} has a failed attempt that was never sent")
            elif attempt.result == "presumed":
                self.rule(
                    self.excuses + self.setbacks > 0,
                    f"{name} is presumed to be resolved, and nothing went wrong",
                )
        earlier = redrive_of(letter.message.headers)
        redrives = letter.dlq_retry_count + (0 if earlier is None else earlier.attempt)
        if letter.state is State.FAILED:
            self.rule(redrives >= self._limit, f"{name} has failed for good after {redrives} redrives")
        elif letter.state in {State.PENDING, State.MANUAL}:
            self.rule(
                letter.dlq_retry_count < self._limit, f"{name} is {letter.state} with {redrives} redrives"
            )

    def _judge_journal(self) -> None:
        last: dict[str, State | None] = {}
        for line in self._store.journal_lines:
            before = last.get(line.letter_id, State.PENDING)
            self.rule(line.before is before, f"line {line.number} of the journal begins at {line.before}")
            if line.after is not line.before:
                self.rule(
                    (line.before, line.after) in _LEGAL,
                    f"line {line.number} leads from {line.before} to {line.after}",
                )
            last[line.letter_id] = line.after

    def _judge_operations(self) -> None:
        for operation in self._store.all_operations.values():
            items = self._store.list_of(operation.id)
            self.rule(set(items) == self.frozen[operation.id], f"the list of {operation.id} was changed")
            self.rule(operation.is_over, f"{operation.id} is {operation.state} at the end")
            if operation.state == "done":
                self.rule(
                    all(item.outcome is not None for item in items.values()),
                    f"{operation.id} is done, but not with every letter",
                )
