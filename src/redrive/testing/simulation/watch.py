"""The rules of the simulation, and what really happened in one world.

Two kinds of rules. While the world runs, the letters are compared before and after each verb of the store, and each
message that is sent is compared with what was sent and stored before: a rule is broken at that moment. When the world
is at rest, the end is judged: nothing lost, nothing twice without a fault that explains it, every count exact.

The rules are written from the promises in the documentation, not from the code that keeps them. So whether a message is
the redrive of a letter is decided here by what was sent where, never by the headers alone.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from redrive.clock import Clock
from redrive.letters import ClaimToken, DeadLetter, LetterState, Message
from redrive.letters.lifecycle import TABLE
from redrive.letters.redrive import redrive_of
from redrive.letters.verdict import QUEUE
from redrive.transports.base import Publication

if TYPE_CHECKING:
    from redrive.testing.simulation.faulty_store import SimulatedStore

_LEGAL: Final = frozenset((before, after) for (before, _), after in TABLE.items())
_OPERATION: Final = "replay:"
_NOT_SENT: Final = "redriven"  # how the detail of an attempt begins that ended a letter without a redrive
UNRESOLVED: Final = frozenset(
    {
        LetterState.PENDING,
        LetterState.PROCESSING,
        LetterState.MANUAL,
        LetterState.FAILED,
        LetterState.ARCHIVED,
    }
)


def short(letter_id: str) -> str:
    """As much of a letter's id as tells it from the others of a small world: of its time, and of its key."""
    return f"{letter_id[6:10]}-{letter_id[-4:]}"


class BrokenError(AssertionError):
    """A rule was broken."""


class Place(NamedTuple):
    """A queue of a broker."""

    broker: str
    queue: str


class Unit(NamedTuple):
    """All copies of one message that were sent to one queue."""

    broker: str
    queue: str
    name: str


class Redriven(NamedTuple):
    """What was sent for a letter under one claim."""

    place: Place
    body: bytes | None
    attempt: int
    unit: Unit  # of the letter


class Death(NamedTuple):
    """A message that is in a dead-letter queue for good."""

    place: Place
    redrive_id: str | None  # the letter that its headers name
    prior_redrives: int  # what its letter has to count, if it becomes one of its own


class Watch:
    """Sees everything that really happened in one world."""

    def __init__(
        self, store: "SimulatedStore", clock: Clock, *, limit: int, verdict_timeout: timedelta
    ) -> None:
        self._store = store
        self._clock = clock
        self._limit = limit
        self._verdict_timeout = verdict_timeout
        self.broken: list[str] = []
        self.excuses = 0  # faults after which something may be there, or be sent, twice
        self.setbacks = 0  # faults after which a message may only be handled once more than it should
        self.frozen: dict[str, frozenset[str]] = {}  # operation → its list
        self.sent: dict[ClaimToken, Redriven] = {}
        self.sent_again = 0  # sends of a letter whose earlier copy had not come back
        self.stale = 0  # sends under a claim that was over
        self.presumed = 0
        self.has_verdicts = True  # whether consumers send verdicts
        self.marked: dict[str, int] = {}  # letter → the last fence under which it was marked as sent
        self.finished: set[ClaimToken] = set()
        self.taken: set[ClaimToken] = set()  # redrives that the consumer they were sent to has received
        self.died: set[ClaimToken] = set()  # redrives that died there
        self.verdicts: set[ClaimToken] = set()  # redrives that were processed there
        self.deaths: dict[tuple[str, str], Death] = {}  # broker and key → those that are no redrives
        self.copies: Counter[Unit] = Counter()
        self.processed: Counter[Unit] = Counter()
        self.calls = 0
        self._overdue: dict[ClaimToken, timedelta] = {}  # when a redrive became unconfirmed
        self._answers: defaultdict[Place, list[tuple[timedelta, timedelta | None]]] = defaultdict(list)

    def rule(self, kept: bool, what: str) -> None:  # noqa: FBT001  reads as a sentence
        """This must be so."""
        if not kept:
            self.broken.append(what)
            raise BrokenError(what)

    # --- messages ----------------------------------------------------------------------------------------------

    def copied(self, broker: str, queue: str, message: Message) -> None:
        """A message was sent to a queue by its producer, by a mirror, or by a handler that forwards it."""
        self.copies[Unit(broker, queue, _name(message))] += 1

    def took(self, broker: str, queue: str, messages: Sequence[Message]) -> None:
        """These messages were received."""
        for message in messages:
            if (hold := self.redrive_of(Place(broker, queue), message)) is not None:
                self.taken.add(hold)

    def handled(self, broker: str, queue: str, message: Message) -> None:
        """A handler has processed this message."""
        hold = self.redrive_of(Place(broker, queue), message)
        if hold is None:
            self.processed[Unit(broker, queue, _name(message))] += 1
        else:
            self.processed[self.sent[hold].unit] += 1
            self.verdicts.add(hold)

    def buried(self, broker: str, queue: str, key: str, message: Message) -> None:
        """This message is in the dead-letter queue."""
        place = Place(broker, queue)
        if (hold := self.redrive_of(place, message)) is not None:
            self.died.add(hold)
            return
        copied = redrive_of(message.headers)
        is_here = copied is not None and copied.to is not None and copied.to[:2] == place
        self.deaths[broker, key] = Death(
            place,
            None if copied is None else copied.hold.id,
            copied.attempt if copied is not None and is_here else 0,
        )

    def answered(self, broker: str, queue: str, taken_until: timedelta | None) -> None:
        """The broker has told until when everything was taken from a queue."""
        self._answers[Place(broker, queue)].append((self._clock.monotonic(), taken_until))

    def redrive_of(self, place: Place, message: Message) -> ClaimToken | None:
        """The claim that this message is the redrive of: sent under it to this place, with this body."""
        copied = redrive_of(message.headers)
        if copied is None or (sent := self.sent.get(copied.hold)) is None:
            return None
        return copied.hold if (sent.place, sent.body) == (place, message.body) else None

    # --- verbs of the store ------------------------------------------------------------------------------------

    def store_did(
        self,
        verb: str,
        before: dict[str, DeadLetter],
        holds: Sequence[ClaimToken],
        answer: Any,
        brokers: Sequence[str] | None,
    ) -> None:
        """A verb of the store has happened; `brokers` are those that it was asked for."""
        now = self._clock.now()
        after = self._store.letters
        for letter_id in before:
            self.rule(letter_id in after, f"{verb}: letter {letter_id} is gone")
        for letter_id, new in after.items():
            old = before.get(letter_id)
            if old is new:
                continue
            if old is None:
                self._added(verb, new)
            else:
                self._changed(verb, old, new, holds, now)
                self.rule(
                    brokers is None or new.broker in brokers,
                    f"{verb} for {brokers} has changed {_told(new)}, a letter of another broker",
                )
        if verb == "settle":
            for hold, done in zip(holds, answer, strict=True):
                old = before.get(hold.id)
                if done:
                    self.rule(
                        old is not None and old.fence == hold.fence and old.state is LetterState.PROCESSING,
                        f"settle under {hold} was carried out, but it was not the claim",
                    )

    def _added(self, verb: str, new: DeadLetter) -> None:
        self.rule(verb == "add", f"{verb} has added letter {new.id}")
        self.rule(
            (new.state, new.fence, new.dlq_retry_count) == (LetterState.PENDING, 0, 0),
            f"letter {new.id} is new, yet {new.state}",
        )
        self.rule(redrive_of(new.message.headers) is None, f"{_told(new)} has the headers of a redrive")
        death = self.deaths.get((new.broker, _death_key(new)))
        if death is None:  # a redrive: its letter was presumed resolved, or a second copy was processed
            self.rule(new.derived_from is not None, f"{_told(new)} was added, but no such message has died")
            other = self._store.letters[new.derived_from or ""]
            self.rule(
                other.state is LetterState.RESOLVED,
                f"{_told(new)} was added, but it is a redrive of {short(other.id)}, which is {other.state}",
            )
            attempts = {
                sent.attempt for hold, sent in self.sent.items() if hold.id == other.id and hold in self.died
            }
            self.rule(
                new.prior_redrives in attempts,
                f"{_told(new)} counts {new.prior_redrives} redrives of {short(other.id)}, not one of {attempts}",
            )
            return
        self.rule((new.broker, new.source) == death.place, f"{_told(new)} has died at {death.place}")
        self.rule(
            new.prior_redrives == death.prior_redrives,
            f"{_told(new)} counts {new.prior_redrives} earlier redrives, not {death.prior_redrives}",
        )

    def _changed(
        self, verb: str, old: DeadLetter, new: DeadLetter, holds: Sequence[ClaimToken], now: datetime
    ) -> None:
        name = _told(old)
        if verb == "claim" and new.state is LetterState.PENDING:
            # It was not claimed: a gate has stopped it, or is open again.
            only = msgspec.structs.replace(old, waits_for=new.waits_for)
            self.rule(new == only, f"claim: {name} was changed, but not claimed")
            return
        if old.state is not new.state:
            self.rule(
                (old.state, new.state) in _LEGAL, f"{verb}: {name} went from {old.state} to {new.state}"
            )
        self.rule(new.message == old.message, f"{verb}: the message of {name} was changed")
        self.rule(new.broker == old.broker, f"{verb}: {name} was moved to broker {new.broker}")
        claimed = verb in {"claim", "take"}
        self.rule(
            new.fence == old.fence + claimed,
            f"{verb}: the fence of {name} went from {old.fence} to {new.fence}",
        )
        if verb == "claim":
            self.rule(old.next_retry_at <= now, f"{name} was claimed before it was due")
        ran = old.lease_until is not None and old.lease_until > now
        was_sent = old.sent_at is not None
        if verb in {"extend", "settle"}:
            self.rule(old.claim_token in holds, f"{verb}: {name} was changed by a worker whose claim is over")
            self.rule(
                ran or (verb == "settle" and was_sent),
                f"{verb}: {name} was changed after its lease had ended",
            )
        if verb == "overdue":
            self.rule(was_sent and not ran, f"{name} became unconfirmed before its verdict timeout")
            self.rule(old.state is new.state, f"overdue: {name} went from {old.state} to {new.state}")
            self._overdue.setdefault(old.claim_token, self._clock.monotonic())
        if old.state is LetterState.PROCESSING and new.state is not LetterState.PROCESSING:
            self._finished(verb, old, ran=ran)
        if not was_sent and new.sent_at is not None:
            self.marked[old.id] = old.fence
        self._counted(verb, old, new)

    def _finished(self, verb: str, old: DeadLetter, *, ran: bool) -> None:
        name = _told(old)
        self.rule(verb in {"settle", "rescue"}, f"{verb} has finished {name}")
        self.rule(
            old.claim_token not in self.finished, f"{verb}: {name} was finished twice under {old.fence}"
        )
        self.finished.add(old.claim_token)
        if verb == "rescue":
            self.rule(not ran, f"{name} was rescued while its lease ran")
            self.rule(old.sent_at is None, f"{name} was rescued although it was sent")

    def _counted(self, verb: str, old: DeadLetter, new: DeadLetter) -> None:
        name = _told(old)
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
        if not more:
            return
        last = new.attempts[-1]
        most = self._limit + last.detail.startswith(_NOT_SENT)
        self.rule(new.dlq_retry_count <= most, f"{verb}: {name} has more redrives than are allowed")
        hold = old.claim_token
        if last.result == "resolved":
            self.rule(hold in self.verdicts, f"{name} is resolved, but its consumer has not processed it")
        elif last.result == "failed" and not last.detail.startswith(_NOT_SENT):
            self.rule(hold in self.died, f"{name} has a failed attempt, but its redrive has not died")
        elif last.result == "presumed":
            self._presumed(name, hold)
        elif last.result == "unconfirmed":
            self.excuses += 1  # the operator sends it once more; the first copy may still be under way

    def _presumed(self, name: str, hold: ClaimToken) -> None:
        """A letter was presumed to be resolved: was there evidence, long enough ago, and is it still true?"""
        self.presumed += 1
        name = f"{name} is presumed to be resolved, but"
        self.rule(hold in self.taken, f"{name} its consumer has not taken it")
        self.rule(hold in self._overdue, f"{name} it was not unconfirmed")
        answers = self._answers[self.sent[hold].place]
        latest = self._clock.monotonic() - self._verdict_timeout
        self.rule(
            any(at <= latest and until is not None and until >= self._overdue[hold] for at, until in answers),
            f"{name} there was no evidence a verdict timeout ago",
        )
        self.rule(answers[-1][1] is not None, f"{name} something waits in its queue")

    # --- replays and redrives ----------------------------------------------------------------------------------

    def planned(self, operation: str, ids: Sequence[str]) -> None:
        """An operation is about to begin with this list."""
        self.frozen[operation] = frozenset(ids)

    def taking(self, worker: str, ids: Sequence[str]) -> None:
        """Letters are about to be taken by hand."""
        operation = worker.removeprefix(_OPERATION)
        strange = set(ids) - self.frozen.get(operation, frozenset())
        self.rule(not strange, f"a replay takes letters that are not in its list: {sorted(strange)}")

    def sending(self, who: str, broker: str, publications: Sequence[Publication]) -> None:
        """These messages are sent to this broker."""
        for publication in publications:
            redrive = redrive_of(publication.message.headers)
            if redrive is None or publication.target.name == QUEUE:
                continue
            hold, place = redrive.hold, Place(broker, publication.target.name)
            letter = self._store.letters[hold.id]
            name = _told(letter)
            self.rule(hold not in self.sent, f"{who} sends {name} twice under one claim")
            self.rule(letter.broker == broker, f"{who} sends {name} of broker {letter.broker} to {broker}")
            self.rule(
                redrive.operation is not None or letter.source == place.queue,
                f"{who} sends {name} of {letter.source} to {place.queue}",
            )
            if (
                letter.claim_token != hold
                or letter.lease_until is None
                or letter.lease_until <= self._clock.now()
            ):
                self.rule(
                    self.excuses > 0, f"{who} sends {name} under a claim that is over, and nothing went wrong"
                )
                self.stale += 1
            else:
                self._sends(who, letter, redrive.attempt, redrive.operation)
            unit = Unit(letter.broker, letter.source, _name(letter.message))
            self.sent[hold] = Redriven(place, publication.message.body, redrive.attempt, unit)

    def _sends(self, who: str, letter: DeadLetter, attempt: int, operation: str | None) -> None:
        name = _told(letter)
        count = _redrives(letter)
        self.rule(attempt == count + 1, f"{who} sends {name} as number {attempt}; it is number {count + 1}")
        self.rule(attempt <= self._limit, f"{who} sends {name} for the {attempt}th time")
        came_back = {each.fence for each in letter.attempts if each.result in {"failed", "unconfirmed"}}
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

    def judge(self) -> None:
        """The world is at rest: is everything where it belongs?"""
        letters: defaultdict[Unit, list[DeadLetter]] = defaultdict(list)
        keys: set[tuple[str, str]] = set()
        for letter in self._store.letters.values():
            letters[Unit(letter.broker, letter.source, _name(letter.message))].append(letter)
            keys.add((letter.broker, _death_key(letter)))
            self._judge_letter(letter)
        for (broker, key), death in self.deaths.items():
            self.rule((broker, key) in keys, f"message {key} of {broker} died at {death.place} and is lost")
        for unit, copies in self.copies.items():
            self._judge_unit(unit, copies, letters[unit])
        self._judge_journal()
        self._judge_operations()

    def _judge_unit(self, unit: Unit, copies: int, letters: Sequence[DeadLetter]) -> None:
        name = f"message {unit.name} of {unit.broker}/{unit.queue}"
        kept = sum(one.state in UNRESOLVED for one in letters)
        done = self.processed[unit]
        self.rule(done > 0 or kept > 0, f"{name} is lost")
        # What is there twice and is then doubled again is there four times.
        self.rule(kept <= copies * 2**self.excuses, f"{name} is in {kept} letters")
        if not self.excuses and not self.setbacks:
            # An unconfirmed letter whose redrive was processed counts once.
            kept -= sum(
                one.state is LetterState.PROCESSING and one.claim_token in self.verdicts for one in letters
            )
            states = [str(one.state) for one in letters]
            self.rule(
                len(letters) <= copies and done + kept == copies,
                f"{name}: sent {copies} times, processed {done} times, letters {states}, and nothing went wrong",
            )

    def _judge_letter(self, letter: DeadLetter) -> None:
        name = _told(letter)
        self.rule(
            [one.number for one in letter.attempts] == list(range(1, letter.dlq_retry_count + 1)),
            f"{name}: attempts are not numbered in order",
        )
        fences = [one.fence for one in letter.attempts]
        self.rule(fences == sorted(set(fences)), f"{name}: two attempts under one claim")
        if letter.presumed:
            self.rule(
                self.excuses + self.setbacks > 0 or not self.has_verdicts,
                f"{name} is presumed to be resolved, and nothing went wrong",
            )
        redrives = _redrives(letter)
        if letter.state is LetterState.FAILED:
            self.rule(redrives >= self._limit, f"{name} has failed for good after {redrives} redrives")
        elif letter.state in {LetterState.PENDING, LetterState.MANUAL}:
            self.rule(redrives < self._limit, f"{name} is {letter.state} with {redrives} redrives")

    def _judge_journal(self) -> None:
        last: dict[str, LetterState | None] = {}
        for line in self._store.journal_lines:
            before = last.get(line.letter_id, LetterState.PENDING)
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


def _told(letter: DeadLetter) -> str:
    return f"letter {letter.id} ({letter.message.body!r})"


def _name(message: Message) -> str:
    return (message.body or b"").decode()


def _redrives(letter: DeadLetter) -> int:
    """How often its message was redriven, as other letters too."""
    return letter.dlq_retry_count + letter.prior_redrives


def _death_key(letter: DeadLetter) -> str:
    """The key of the death; the collector adds to it where a letter of another broker has the same id."""
    return letter.key.partition("@")[0].partition("#")[0]
