"""The order in which messages leave a queue.

`Line` is a classic queue's: first in, first out, where a returned entry goes back to its old place. `PriorityLine` is
that of a classic queue with `x-max-priority`: one line per priority, the highest first. `QuorumLine` is a quorum
queue's: returned entries first, in the order of their return, then 32 priorities. None of them knows consumers, limits
or time.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from redrive.broker.message import Entry

_QUORUM_HIGHEST: Final = 31
_QUORUM_DEFAULT: Final = 4  # of a message without a priority


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
        priority = max(0, min(entry.priority, self._highest))
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
        """The entry that could expire next: only the first of all, as in RabbitMQ."""
        return next((line.heads() for line in self._lines.values() if line), ())

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


class QuorumLine:
    """Returned entries in the order of their return, then one line per priority, the highest first."""

    __slots__ = ("_default", "_levels", "_returned", "_size")

    def __init__(self) -> None:
        self._returned: deque[Entry] = deque()
        self._default: deque[Entry] = deque()
        self._levels = {_QUORUM_DEFAULT: self._default}  # in falling order of priority; only those ever used
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """All entries, first to leave first."""
        yield from self._returned
        for level in self._levels.values():
            yield from level

    def append(self, entry: Entry) -> None:
        """Put an entry at the end of its priority."""
        if entry.priority < 0:
            self._default.append(entry)
        else:
            self._level(entry.priority).append(entry)
        self._size += 1

    def _level(self, priority: int) -> deque[Entry]:
        priority = min(priority, _QUORUM_HIGHEST)
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = deque()
            self._levels = dict(sorted(self._levels.items(), reverse=True))
        return level

    def give_back(self, entry: Entry) -> None:
        """Put a returned entry behind those that were returned before it."""
        self._returned.append(entry)
        self._size += 1

    def popleft(self) -> Entry:
        """Take out the entry that is to leave next."""
        if self._returned:
            self._size -= 1
            return self._returned.popleft()
        for level in self._levels.values():
            if level:
                self._size -= 1
                return level.popleft()
        raise IndexError("the line is empty")

    def heads(self) -> tuple[Entry, ...]:
        """The entries that could expire next: the first returned one and the first one of each priority."""
        return tuple(level[0] for level in (self._returned, *self._levels.values()) if level)

    def remove_head(self, entry: Entry) -> None:
        """Take out one of `heads`."""
        for level in (self._returned, *self._levels.values()):
            if level and level[0] is entry:
                level.popleft()
                self._size -= 1
                return
        raise ValueError("the entry is not at the head of the line")

    @property
    def returned(self) -> int:
        """How many returned entries there are."""
        return len(self._returned)

    def by_priority(self) -> dict[int, int]:
        """How many entries of each priority there are, without the returned ones."""
        return {priority: len(level) for priority, level in self._levels.items() if level}

    def take_all(self) -> list[Entry]:
        """Take everything out."""
        everything = list(self)
        self._returned.clear()
        for level in self._levels.values():
            level.clear()
        self._size = 0
        return everything
