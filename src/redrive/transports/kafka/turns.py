"""Whose turn is it, when the records of a key go one after the other?

The first record of a key goes; those behind it wait until it is settled for good, and then the next one goes. Records
without a key have no order to keep. The rule: one record of a key is out at a time, and none is forgotten.

Pure: it does not know what it keeps.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Turns(Generic[K, T]):
    """Lines of those who wait, one for each key that is out."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[K, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def may_go(self, key: K, item: T) -> bool:
        """Whether it is this one's turn; if not, it waits here."""
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque()
            return True
        line.append(item)
        return False

    def next(self, key: K) -> T | None:
        """The one that is out is settled: who goes now, if anybody waits."""
        line = self._lines.get(key)
        if line:
            return line.popleft()
        self._lines.pop(key, None)
        return None

    def forget(self, gone: Callable[[K], bool]) -> None:
        """Nobody waits for these keys any more."""
        self._lines = {key: line for key, line in self._lines.items() if not gone(key)}
