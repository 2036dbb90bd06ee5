"""In which order do messages leave a queue?

`Line` is first in, first out, where an entry that was given back goes to where it was. `PriorityLine` is one line
per priority, the highest first. Neither knows consumers, limits or time.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from redrive.broker.message import Entry


class Line(deque[Entry]):
    """First in, first out. What is given back goes to where it was, which is at the front or close to it."""

    __slots__ = ()

    def give_back(self, entry: Entry) -> None:
        """Put an entry back to where it was."""
        number = entry.number
        if not self or number < self[0].number:
            self.appendleft(entry)
            return
        at = 1
        for other in islice(self, 1, None):
            if number < other.number:
                break
            at += 1
        self.insert(at, entry)

    def heads(self) -> tuple[Entry, ...]:
        """The entries that could expire next: the first one, if there is one."""
        return (self[0],) if self else ()

    def remove_head(self, entry: Entry) -> None:
        """Take out one of `heads`."""
        assert self.popleft() is entry  # noqa: S101  it has just been looked at

    def take_all(self) -> list[Entry]:
        """Take everything out."""
        everything = list(self)
        self.clear()
        return everything


class PriorityLine:
    """One line per priority, the highest first."""

    __slots__ = ("_highest", "_lines", "_size")

    def __init__(self, highest: int) -> None:
        self._highest = highest
        self._lines: dict[int, Line] = {}  # in falling order of priority; only those that were ever used
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """All entries, first to leave first."""
        for line in self._lines.values():
            yield from line

    def _line_of(self, entry: Entry) -> Line:
        priority = min(entry.priority, self._highest)
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = Line()
            self._lines = dict(sorted(self._lines.items(), reverse=True))
        return line

    def append(self, entry: Entry) -> None:
        """Put an entry at the end of its priority."""
        self._line_of(entry).append(entry)
        self._size += 1

    def give_back(self, entry: Entry) -> None:
        """Put an entry back to where it was."""
        self._line_of(entry).give_back(entry)
        self._size += 1

    def popleft(self) -> Entry:
        """Take the first one of the highest priority out."""
        for line in self._lines.values():
            if line:
                self._size -= 1
                return line.popleft()
        raise IndexError("the line is empty")

    def heads(self) -> tuple[Entry, ...]:
        """The entries that could expire next: the first one of each priority."""
        return tuple(head for line in self._lines.values() for head in line.heads())

    def remove_head(self, entry: Entry) -> None:
        """Take out one of `heads`."""
        self._line_of(entry).remove_head(entry)
        self._size -= 1

    def take_all(self) -> list[Entry]:
        """Take everything out."""
        everything = list(self)
        self._lines.clear()
        self._size = 0
        return everything
