"""What does a dead-letter store promise?

This is the contract, in prose. Each sentence has a number; `redrive.testing.store_suite` has at least one
test per number, and every store passes all of them. `stores.memory` is the same contract as the shortest
code that keeps it.

Adding
  S1   When `add` returns, the letters are durable: a crash of the process or the machine loses none.
  S2   Adding a letter whose id is there already changes nothing, and says so.
  S3   Body, key, headers, properties, origin and failure come back bit-exact, types included.
  S4   A new letter is `dlq_pending` with fence 0, whatever its copy says; the store stamps `created_at`.
  S5   All letters of one `add` are added, or none is.

Claiming
  S6   `claim` gives letters of one broker that are pending, due and not held, by priority, then by age.
  S7   No two claims hold the same letter at the same time.
  S8   Each claim gives the letter a fence one higher than ever before; a fence never falls.
  S9   A claimed letter is `dlq_processing`, with worker, time and end of lease in its head.
  S10  `take` claims chosen letters, pending (due or not) or manual; those that cannot be had, or belong to none of the
       brokers named, are left out. With `reclaim` it also claims, under a new fence and without counting a redrive,
       letters that the same worker has claimed and not sent, whether or not the lease has expired.
  S11  `extend` moves the end of a lease that still runs, and says which holds it could not extend.
  S12  `extend(sent=True)` marks a letter as redriven and waiting for its verdict.
  S13  A store may let a crowd that falls due at one moment in by portions of at least 10,000; the order of
       S6 holds within what was let in.

Settling
  S14  `settle` carries out each outcome whose fence is the letter's, if the lease still runs or the letter was marked
       as sent.
  S15  With another fence, without a claim, or after the lease of a letter that was not sent, it changes nothing and
       says so.
  S16  Resolve, Retry and Fail count as a redrive and leave an attempt in the history, with its strategy: that of the
       letter, unless Resolve or Fail names another. Park and Unclaim do not.
  S17  A failure shown with Retry, Fail or Park becomes the letter's failure; the message is never changed.
  S18  A settled letter is held by nobody, and it is no longer unconfirmed.

Rescuing
  S19  `rescue` ends expired leases of letters that were not sent: a crash counts as a redrive and is kept as an
       attempt.
  S20  Below the limit a rescued letter is pending again after the given time; at the limit it is `dlq_failed`.
  S21  A letter that was sent stays `dlq_processing` when its lease expires, until an outcome settles it: the store
       never presumes that it succeeded.

Changing
  S22  `apply` carries out one change on all letters named, or on none: an illegal step or an unknown id is an
       error and nothing has changed.
  S23  Only steps of `letters.lifecycle` happen, by whatever verb.
  S24  A deleted letter is gone, body, attempts and notes included; its lines in the change log stay until they are
       trimmed.
  S25  Every change after the add but a mere `extend` leaves a line in the journal, in the same transaction,
       with the actor's name; the lines of one call stand in the order of the letters it named.

Reading
  S26  `page` gives the heads that match, in the order asked, a cursor where there are more, and no bodies.
  S27  Following cursors neither skips nor repeats a letter that was there at the start, while others are added.
  S28  `load` gives whole letters in the order asked; an unknown id is a `LetterNotFoundError`.
  S29  `count` and `tally` agree with `page`.
  S30  Reading never waits for writing.

Failing
  S31  A verb that raises has changed nothing.
  S32  After `close`, every verb raises `StoreClosedError`; what was acknowledged before is there on reopening.
  S33  Settings out of range and letters that cannot be stored are refused with a message that says why.

Operating
  S34  When `begin` returns, the operation and its list are durable: the letters in the order given, each once.
       Letters that are not there may be listed.
  S35  A new operation is running, held by nobody and without an outcome, whatever its copy says; the store stamps
       `created_at`.
  S36  Beginning an operation whose id is there already changes nothing, and says so.
  S37  `operation` gives one operation, `operations` the newest first; an unknown id is an `OperationNotFoundError`,
       by whatever verb.
  S38  `remaining` gives the letters without an outcome, `items` all of them; both in the order of the list.
  S39  The first outcome of a letter stands, repeated ones change nothing, and what `operation` counts is what
       `items` tells. Outcomes are recorded after the end as well: what has happened has happened.
  S40  Recording an outcome of a letter that is not in the list is an error, and nothing has changed.
  S41  `run_operation` gives an operation to one runner at a time, until it ends or the lease does; asking again
       moves the end of the lease. A caller that knows that the runner has ended names it (`replaces`) and gets the
       operation at once, unless another runner has it by then.
  S42  A stopped operation runs again by `run_operation`, unless it was asked not to resume.
  S43  `end_operation` ends an operation that is running or stopped, whoever runs it; one that is done or cancelled
       is never run or ended again, and says so.
  S44  An operation and its items stay as they are when letters change or are deleted.

Grouping
  S45  `groups` gives the failure groups of the letters that match, the largest first and no bodies, with the error
       of the letter that came last; its numbers agree with `tally`.

Remembering
  S46  `remember` writes a memo if the version shown is the one that is there (0: nothing is), and says whether it did;
       of all that show the same version, one writes.
  S47  When `remember` returns True, the memo is durable, and its version is one higher than the one shown.
  S48  `recall` gives the memo as it was last written, bit-exact and with its version; a name under which nothing was
       written has version 0 and no body.

Waiting for verdicts
  S49  `overdue` gives the letters of one broker that were sent and whose lease has expired, by the end of that lease,
       then by id. Each is marked as unconfirmed and gets a new lease; state, fence and worker stay.
  S50  The change log gets a line of the rescuer when a letter becomes unconfirmed, and none when `overdue` gives it
       again.

Brokers
  S51  `SetBroker` moves letters to another broker and leaves their state alone; for a letter that is being redriven it
       is an error.

Waiting for conditions
  S52  `claim` leaves out letters that one of its gates stops: they stay pending and due, and `waits_for` names the
       first gate that stops them.
  S53  A gate lets as many letters pass per claim as it says, by priority, then by age.
  S54  Letters that wait at a gate that is open, or that a claim does not name, are claimed in their order (S6),
       whichever process stopped them. Where another process stopped them, one claim may come before.
  S55  Being stopped leaves no line in the change log and changes no other field. A claim that stops only letters that
       wait already writes nothing.
  S56  `take` claims letters that wait; a letter that is scheduled waits no longer.

Trimming the change log
  S57  `measure_change_log` gives the size of the next lines after a number, oldest first, and the number of the last of
       them; where no line is left, that is the number asked for and the size is 0.
  S58  `trim_change_log` looks at the next lines after a number, as long as they are older than a time or have at most a
       given number, and deletes them. Lines of letters that are pending, processing or manual stay. It says where to go
       on, and whether it is done.
  S59  The numbers of deleted lines are not given again.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

import msgspec

from redrive.errors import LetterNotFoundError
from redrive.letters import ClaimToken, DeadLetter, LetterHead, LetterState
from redrive.stores.changes import Change, Settlement
from redrive.stores.gates import Gate
from redrive.stores.memos import Memo
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.query import EVERYTHING, Query

LEASE: Final = timedelta(minutes=5)
MAX_REDRIVES: Final = 5


# --- answers ---------------------------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True):
    """Some heads, and where the next ones begin."""

    heads: tuple[LetterHead, ...]
    cursor: str | None = None


class Rescued(msgspec.Struct, frozen=True):
    """A lease that ran out, and the state its letter is in now."""

    id: str
    worker: str
    state: LetterState


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """One change: who did what to which letter, and when."""

    number: int
    at: datetime
    actor: str
    letter_id: str
    action: str
    before: LetterState
    after: LetterState | None
    detail: str = ""


class LogSize(msgspec.Struct, frozen=True):
    """The size of some lines of the change log."""

    last: int  # the number of the last of them
    bytes: int


class Trimmed(msgspec.Struct, frozen=True):
    """What was done with some lines of the change log."""

    last: int  # the number of the last line that was looked at
    deleted: int
    done: bool  # no line behind it can be deleted


LINE_OVERHEAD: Final = 100  # bytes of a line beside its texts: numbers, row header, index entries
OPEN_STATES: Final = (
    LetterState.PENDING,
    LetterState.PROCESSING,
    LetterState.MANUAL,
)  # their history is kept


class OldLine(NamedTuple):
    """What decides whether a line of the change log is deleted."""

    number: int
    at: datetime | int  # a time, or microseconds
    state: str | None  # of its letter; None: that was deleted


def find_trimmable(
    lines: Sequence[OldLine], before: datetime | int, up_to: int, after: int, limit: int
) -> tuple[list[int], Trimmed]:
    """The numbers of the lines to delete, of the next `limit` lines after `after` (S58).

    A letter that is not open never becomes open again, so the lines may be deleted later than this was decided.
    """
    numbers: list[int] = []
    last, done = after, len(lines) < limit
    for line in lines:
        if line.number > up_to and line.at >= before:  # type: ignore[operator]  # both are times, or both numbers
            done = True
            break
        last = line.number
        if line.state not in OPEN_STATES:
            numbers.append(line.number)
    return numbers, Trimmed(last, len(numbers), done)


def unknown_letter(letter_id: str) -> LetterNotFoundError:
    """There is no such letter (S22, S28)."""
    return LetterNotFoundError(f"no letter has the id {letter_id!a}")


class Store(Protocol):
    """A place where dead letters are safe. The promises are in this module's text."""

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        """Make the letters durable; True for each that is new."""
        ...

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Whole letters, in the order asked."""
        ...

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Heads that match, in the query's order."""
        ...

    async def count(self, query: Query = EVERYTHING) -> int:
        """How many letters match."""
        ...

    async def tally(self, by: str, query: Query = EVERYTHING) -> dict[str, int]:
        """How many letters match, for each value of the field `by`."""
        ...

    async def claim(
        self,
        worker: str,
        *,
        broker: str,
        limit: int = 10,
        lease: timedelta = LEASE,
        gates: Sequence[Gate] = (),
    ) -> list[LetterHead]:
        """Due letters of this broker that no gate stops, now held by `worker`."""
        ...

    async def take(
        self,
        ids: Sequence[str],
        worker: str,
        *,
        brokers: Sequence[str] | None = None,
        lease: timedelta = LEASE,
        reclaim: bool = False,
    ) -> list[LetterHead]:
        """Chosen letters of these brokers, now held by `worker`.

        None means any broker; only a caller that sends nothing asks for that. `reclaim`: also those that `worker`
        claimed in an earlier run and has not sent.
        """
        ...

    async def extend(
        self, holds: Sequence[ClaimToken], *, lease: timedelta = LEASE, sent: bool = False
    ) -> list[bool]:
        """Move the end of these leases; False for each that has been lost."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Finish held letters; False for each whose hold has been lost."""
        ...

    async def rescue(
        self, *, retry_in: timedelta, max_redrives: int = MAX_REDRIVES, limit: int = 1000
    ) -> list[Rescued]:
        """End expired leases of letters that were not sent."""
        ...

    async def overdue(self, *, broker: str, lease: timedelta, limit: int = 1000) -> list[LetterHead]:
        """Letters of this broker that were sent and got no verdict in time, now unconfirmed and held for `lease`."""
        ...

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        """Carry out one change on all these letters, in the name of `by`."""
        ...

    async def journal(
        self, letter_id: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[JournalLine]:
        """The journal from line `after` on, of one letter or of all."""
        ...

    async def measure_change_log(self, *, after: int = 0, limit: int = 10_000) -> LogSize:
        """The size of the next lines of the change log."""
        ...

    async def trim_change_log(
        self, *, before: datetime, up_to: int = 0, after: int = 0, limit: int = 1000
    ) -> Trimmed:
        """Delete, of the next lines, those from before this time or with at most the number `up_to`."""
        ...

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """Make an operation and its list durable; False: it is there already."""
        ...

    async def operation(self, operation_id: str) -> Operation:
        """How an operation stands."""
        ...

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """How the newest operations stand."""
        ...

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """The next letters of the list that have no outcome."""
        ...

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """The letters of the list behind the first `after`, each with what became of it."""
        ...

    async def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        """Write down what became of letters: (letter id, outcome, detail)."""
        ...

    async def run_operation(
        self,
        operation_id: str,
        runner: str,
        *,
        lease: timedelta = LEASE,
        resume: bool = True,
        replaces: str | None = None,
    ) -> bool:
        """The operation is `runner`'s to run; False: it has ended, or another runner has it.

        A runner that asks again while it works says `resume=False`: what a person stopped meanwhile stays stopped.
        `replaces` names a runner that is known to have ended: its lease is not waited for.
        """
        ...

    async def end_operation(
        self, operation_id: str, state: OperationState, *, by: str, note: str = ""
    ) -> bool:
        """End or stop an operation, in the name of `by`; False: it had ended for good."""
        ...

    async def groups(self, query: Query = EVERYTHING, *, limit: int = 50) -> list[Group]:
        """The largest failure groups of the letters that match."""
        ...

    async def recall(self, name: str) -> Memo:
        """What is remembered under this name."""
        ...

    async def remember(self, name: str, body: bytes, *, version: int) -> bool:
        """Write a memo that has this version; False: it has another, so recall it and think again."""
        ...

    async def damage(self) -> str | None:
        """What is wrong with what is stored, after looking at all of it; None: nothing."""
        ...

    async def close(self) -> None:
        """Finish what was begun, and let go."""
        ...
