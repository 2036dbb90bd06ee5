"""Up to where is a partition done, when its records are done in any order?

Records are taken in the order of their offsets, handed out, and settled as they are done. The *mark* is the lowest
offset that is not done: it alone is committed, so nothing above it is lost by a crash. What is done above it, and how
often the others were delivered, goes into the note beside it (`commits`).

Before a record is handed out, a note that is durable says that it may be: it is *claimed*. Where nothing is known
against the records ahead, thousands are claimed at once; where they may have been delivered before, just those that
are handed out, so that the count of an innocent neighbour stays what it is.

Pure: offsets in, marks and notes out. Offsets need not be without gaps: compaction and transactions make some. Whoever
uses it from two threads holds a lock.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Final, NamedTuple

from redrive.transports.kafka.commits import DONE, Run, joined

AHEAD: Final = 4  # batches that are claimed at once where nothing speaks against their records
_MOST_KNOWN: Final = 100_000  # offsets of a note that are looked at


class Mark(NamedTuple):
    """What is to be committed: the lowest offset that is not done, and what is known of those from there on."""

    offset: int
    runs: tuple[Run, ...]
    claimed: int  # up to this offset, which is not among them


class Partition:
    """One partition, for as long as it is ours."""

    __slots__ = (
        "_aside", "_before", "_done", "_doubted", "_forgives", "_handed", "_order", "_position", "_told",
        "alive", "claimed", "is_changed", "number", "out", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, number: int, offset: int | None, runs: Sequence[Run] = (), *, forgives: bool = False
    ) -> None:
        """`offset` and `runs` are what was committed last; None: nothing was.

        `forgives`: one delivery that somebody else may have made is not counted, because it may not have been.
        """
        self.topic = topic
        self.number = number
        self.alive = True
        self.out = 0  # deliveries that are with somebody
        self.is_changed = False  # since it was last committed
        self.claimed = -1 if offset is None else offset  # up to here, a durable note says so
        self._position = offset  # the next one to be taken
        self._order: deque[int] = deque()  # taken, from the mark on
        self._done: set[int] = set()  # above the mark
        self._before: dict[
            int, int
        ] = {}  # deliveries before the one that is out or comes next, where there were any
        self._aside: set[int] = set()  # handed out once, and back here until they come again
        self._handed = 0 if offset is None else offset  # everything below was handed out
        self._doubted = 0  # below this, records may have been delivered before
        self._told = 0  # below this, a note has called some done before they were taken
        self._forgives = forgives
        if offset is not None:
            self._remember(offset, runs)

    def _remember(self, offset: int, runs: Sequence[Run]) -> None:
        end = offset + _MOST_KNOWN
        for length, count in runs:
            span = range(offset, min(offset + length, end))
            if count == DONE:
                self._done.update(span)
                self._told = span.stop
            elif count:
                self._before.update(dict.fromkeys(span, count))
                self._doubted = max(self._doubted, span.stop)
            offset = span.stop

    # --- taking and handing out ----------------------------------------------------------------------------------

    def take(self, offsets: Sequence[int]) -> int:
        """These records have come, in this order. How many of the first were here before, and are not taken again."""
        known, mark = 0, self.mark
        if self._position is not None and offsets[0] < self._position:
            if mark is not None and offsets[0] < mark:
                self._begin_again(offsets[0])
            else:
                known = sum(offset < self._position for offset in offsets)
        self._order.extend(offsets[known:] if known else offsets)
        self._position = max(self._position or 0, offsets[-1] + 1)
        if offsets[0] < self._told:
            self._advance()  # some of them may be done already
        return known

    def _begin_again(self, offset: int) -> None:
        """The topic was made anew under our hands: what was known of its offsets is about other records."""
        for known in (self._order, self._done, self._before, self._aside):
            known.clear()
        self.claimed = self._handed = self._position = offset
        self._doubted = self._told = 0

    def reached(self, end: int) -> None:
        """There is no record between the last one that was taken and this offset: markers of transactions at most.

        That is committed even if there never was one: commits show which partitions a group receives, and how far.
        """
        if self._position is None or end > self._position:
            self._position = end
            self.is_changed = True

    def is_done(self, offset: int) -> bool:
        """Whether a record that was taken is done, and not to be handed out."""
        return offset in self._done or not self._order or offset < self._order[0]

    def was_told_of(self, offset: int) -> bool:
        """Whether this record, or one behind it, may have been done before it was taken."""
        return offset < self._told

    def is_doubted(self, offset: int) -> bool:
        """Whether this record may have been delivered before."""
        return offset < self._doubted

    def handed_out(self, offset: int) -> None:
        """Every record up to this one was handed out."""
        self._handed = offset + 1

    @property
    def is_unheard_of(self) -> bool:
        """Whether none of its records is known to have been delivered before."""
        return not self._before

    def count(self, offset: int) -> int:
        """Which delivery of a record the one that is out is."""
        before = self._before.get(offset, 0)
        return 1 if before == 1 and self._forgives and offset < self._doubted else before + 1

    # --- settling ------------------------------------------------------------------------------------------------

    def settle(self, offsets: Iterable[int]) -> None:
        """These are done."""
        self._done.update(offsets)
        if self._aside:
            self._aside -= self._done
        self.is_changed = True
        self._advance()

    def put_aside(self, offset: int, *, counts: bool) -> None:
        """This one is to come again; its delivery counts, or is forgotten."""
        if counts:
            self._before[offset] = self._before.get(offset, 0) + 1
        self._aside.add(offset)
        self.is_changed = True

    def is_aside(self, offset: int) -> bool:
        """Whether it is here until it comes again."""
        return offset in self._aside

    def take_up(self, offset: int) -> None:
        """One that was put aside is handed out again."""
        self._aside.discard(offset)
        self.is_changed = True

    def _advance(self) -> None:
        order, done = self._order, self._done
        while order and order[0] in done:
            done.remove(order.popleft())
        if not order and done and self._position is not None:
            # What a note called done and compaction has removed since.
            self._done = {offset for offset in done if offset >= self._position}
        if self._before:
            self._forget(order[0] if order else self._position or 0)

    def _forget(self, mark: int) -> None:
        if len(self._before) > 2 * len(self._order) + 64 or not self._order:
            self._before = {offset: count for offset, count in self._before.items() if offset >= mark}

    # --- committing ----------------------------------------------------------------------------------------------

    @property
    def mark(self) -> int | None:
        """The lowest offset that is not done; None while nothing is known of the partition."""
        return self._order[0] if self._order else self._position

    @property
    def position(self) -> int | None:
        """The offset behind the last record that was taken."""
        return self._position

    @property
    def gap(self) -> int:
        """How far what was handed out is ahead of the mark."""
        return max(0, self._handed - self._order[0]) if self._order else 0

    @property
    def settled(self) -> int:
        """How many are done above the mark."""
        return len(self._done)

    def if_settled(self, offsets: Iterable[int]) -> Mark | None:
        """What to commit if these were done."""
        after = copy(self)
        after._order, after._done = deque(self._order), set(self._done)  # noqa: SLF001  # it is one of ours
        after._before, after._aside = dict(self._before), set(self._aside)  # noqa: SLF001
        after.settle(offsets)
        return after.claim(self.claimed)

    def claim(self, up_to: int) -> Mark | None:
        """What to commit so that the records below `up_to` may be handed out."""
        mark = self.mark
        if mark is None:
            return None
        end = max(up_to, self.claimed, mark)
        if not self._done and not self._before:
            return Mark(mark, (Run(end - mark, 1),) if end > mark else (), end)
        last = max((*self._done, *self._before, end - 1)) + 1
        return Mark(mark, joined(self._claimed_counts(mark, end, last)), end)

    def _claimed_counts(self, mark: int, end: int, last: int) -> Iterator[int]:
        done, before, aside = self._done, self._before, self._aside
        for offset in range(mark, min(last, mark + _MOST_KNOWN)):
            may_be_out = offset < end and offset not in aside
            yield DONE if offset in done else before.get(offset, 0) + may_be_out

    def exact(self, *, counting: bool) -> Mark | None:
        """What to commit when it is given up. `counting`: what is out has come to a bad end, as far as we know."""
        mark = self.mark
        if mark is None:
            return None
        last = max((*self._done, *self._before, self._handed - 1), default=mark - 1) + 1
        return Mark(mark, joined(self._exact_counts(mark, last, counting=counting)), mark)

    def _exact_counts(self, mark: int, last: int, *, counting: bool) -> Iterator[int]:
        done, before, aside = self._done, self._before, self._aside
        for offset in range(mark, min(last, mark + _MOST_KNOWN)):
            is_out = counting and offset < self._handed and offset not in aside
            yield DONE if offset in done else before.get(offset, 0) + is_out
