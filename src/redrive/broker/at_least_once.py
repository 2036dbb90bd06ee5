"""Dead letters of a quorum queue that stay in their queue until every target has taken them.

This is `x-dead-letter-strategy: at-least-once`. A dead letter that has no exchange, no route, or a target that refuses
it is kept beside the queue's line and sent again after a while; targets that have it already do not get it twice. The
entry leaves the journal of the source queue behind the records that put it into the targets, so that a crash at any
moment leaves it in one place or in both, never in none.

What a message looks like as a dead letter is in `dead_letter`, which way it goes is in `vhost`.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from redrive.broker.dead_letter import Reason, dead_letter_of, is_cycle
from redrive.broker.message import ENTRY_COST, Entry, priority_of

if TYPE_CHECKING:
    from redrive.broker.queue import Queue
    from redrive.broker.vhost import VHost

_NEVER: Final = 1 << 62
_MAX_RETRY_COST: Final = 2000 * ENTRY_COST  # of letters that are sent again in one turn


class KeptLetter:
    """A dead letter that not every target has taken."""

    __slots__ = ("died_at", "entry", "reason", "taken_by")

    def __init__(self, entry: Entry, reason: Reason, died_at: int) -> None:
        self.entry = entry
        self.reason = reason
        self.died_at = died_at
        self.taken_by: set[str] = set()  # names of queues


class KeptLetters:
    """The dead letters that one queue keeps."""

    __slots__ = ("_letters", "bytes", "due", "retry_at")

    def __init__(self) -> None:
        self._letters: dict[int, KeptLetter] = {}  # by number of the entry, in order of death
        self.bytes = 0
        self.retry_at = _NEVER
        self.due: deque[KeptLetter] = deque()  # still to be sent again in this round

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[KeptLetter]:
        return iter(self._letters.values())

    def __contains__(self, letter: KeptLetter) -> bool:
        return self._letters.get(letter.entry.number) is letter

    def add(self, letter: KeptLetter, size: int) -> None:
        """Keep one more."""
        self._letters[letter.entry.number] = letter
        self.bytes += size

    def remove(self, letter: KeptLetter, size: int) -> None:
        """Keep it no longer."""
        del self._letters[letter.entry.number]
        self.bytes -= size

    def take_all(self) -> list[Entry]:
        """Take everything out."""
        everything = [letter.entry for letter in self]
        self._letters.clear()
        self.due.clear()
        self.bytes = 0
        self.retry_at = _NEVER
        return everything


def send_or_keep(vhost: "VHost", queue: "Queue", entry: Entry, reason: Reason, now: int) -> None:
    """Send the dead letter of an entry; keep it in its queue if it is not taken by all targets."""
    vhost.broker.died(vhost, queue, reason, "at_least_once")
    letter = KeptLetter(entry, reason, now)
    problem = _send(vhost, queue, letter, now)
    if problem is None:
        vhost.broker.dead_letters_confirmed += 1
        vhost.forget(queue, entry)
        return
    if not queue.dead:
        vhost.broker.log.warning(
            "dead letters kept queue=%s vhost=%s retry_every=%.0fs: %s",
            queue.name,
            vhost.name,
            vhost.broker.dead_letter_retry / 1000,
            problem,
        )
    vhost.broker.keep.died(queue, entry, reason, now)
    keep(queue, letter, now + vhost.broker.dead_letter_retry)


def keep(queue: "Queue", letter: KeptLetter, retry_at: int) -> None:
    """Keep a letter, and send it again at this time, or with those that were there before it."""
    queue.dead.add(letter, queue.size_of(letter.entry.message))
    _retry(queue, min(retry_at, queue.dead.retry_at))


def _retry(queue: "Queue", at: int) -> None:
    if at != queue.dead.retry_at:
        queue.dead.retry_at = at
        queue.ground.wake(queue, at)


def retry(vhost: "VHost", queue: "Queue", now: int) -> None:
    """Send the letters that a queue keeps again, a batch at a time."""
    dead = queue.dead
    dead.retry_at = _NEVER
    dead.due = dead.due or deque(dead)
    allowed = vhost.broker.cost + _MAX_RETRY_COST
    while dead.due and vhost.broker.cost < allowed:
        letter = dead.due.popleft()
        if letter in dead and _send(vhost, queue, letter, now) is None:
            vhost.broker.dead_letters_confirmed += 1
            dead.remove(letter, queue.size_of(letter.entry.message))
            vhost.forget(queue, letter.entry)
    if dead.due:
        _retry(queue, now + 1)
    elif dead:
        _retry(queue, now + vhost.broker.dead_letter_retry)


def policy_changed(vhost: "VHost", queue: "Queue", now: int) -> None:
    """Send kept letters again, where they may go now; those of a queue with another strategy now go by that one.

    RabbitMQ deletes the letters in the second case.
    """
    if queue.options.at_least_once:
        queue.dead.due.clear()
        _retry(queue, now)
        return
    letters = [(letter.entry, letter.reason) for letter in queue.dead]
    queue.dead.take_all()
    for entry, reason in letters:
        vhost.bury(queue, entry, reason)


def _send(vhost: "VHost", queue: "Queue", letter: KeptLetter, now: int) -> str | None:
    """Put a letter into the targets that do not have it; None when all have it, else why not."""
    options, entry = queue.options, letter.entry
    vhost.broker.cost += ENTRY_COST
    exchange = options.dead_letter_exchange
    if exchange is None or (exchange and exchange not in vhost.exchanges):
        return f"dead-letter exchange '{exchange}' does not exist"
    vhost.broker.load(entry.message)
    message = dead_letter_of(
        entry.message,
        queue=queue.name,
        reason=letter.reason,
        exchange=exchange,
        routing_key=options.dead_letter_routing_key,
        seconds=vhost.broker.seconds(letter.died_at),
    )
    routed = vhost.targets_of_the_dead(exchange, message.keys, message.properties)
    targets = [target for target in routed if not is_cycle(message.deaths, letter.reason, target.name)]
    missing = [target for target in targets if target.name not in letter.taken_by]
    if sum(target.keeps(message) for target in missing) > 1:
        vhost.broker.keep.share(message)
    priority = priority_of(message.properties)
    refused = []
    vhost.broker.cost += ENTRY_COST * len(missing)
    for target in missing:
        if vhost.enqueue(target, message, now, None, priority, entry.failures):
            letter.taken_by.add(target.name)
        else:
            refused.append(target.name)
    if refused:
        return f"queue '{refused[0]}' is full"
    if not letter.taken_by:
        return f"nothing is bound to '{exchange}' for it" if not routed else "it would go in a circle"
    return None
