"""Match names against regular expressions that clients chose, within a bounded time.

Three places take such patterns: policies, permissions, and the lists of the management API. A pattern such as
`(a|aa)+$` takes longer than the age of the universe on a name of a hundred letters, and the event loop waits meanwhile.
So each match has a time limit, and each pattern has a budget for matches that reached it; once the budget is used up,
the pattern matches nothing any more. RabbitMQ counts PCRE2's steps instead: beyond its limit there is no match either.

Results are kept per pattern and name. The limit is CPU time of this process, so that a busy machine changes nothing.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

from redrive.broker.erlang import octets
from redrive.broker.pcre import PatternError, translate

__all__ = ["BUDGET", "NameFilter", "NamePattern", "PatternError"]

MATCH_LIMIT: Final = timedelta(milliseconds=20)  # CPU time of one match
_FIRST_LIMIT: Final = (
    0.001  # seconds of the first try, which holds the interpreter's lock: nearly all need microseconds
)
BUDGET: Final = timedelta(
    milliseconds=200
)  # of a request, and of a pattern's matches that reached their limit
_MAX_CACHED: Final = 1_000  # names come from clients; a cache must not grow with them
_MAX_PATTERNS: Final = 64  # likewise
_EVERY_NAME: Final = ".*"  # needs no engine: a broker that has no other pattern starts without loading it
_LOG: Final = logging.getLogger("redrive.broker.patterns")


class NamePattern:
    """One compiled pattern, searched for in names; `^` and `$` tie it to the whole name."""

    def __init__(self, pattern: str, *, caseless: bool = False) -> None:
        self.pattern = pattern
        self._compiled = None if pattern == _EVERY_NAME else _compile(pattern, caseless=caseless)
        self._results: dict[str, bool] = {}
        self._overtime = 0.0  # seconds of matches that reached their limit

    @classmethod
    def stored(cls, pattern: str, owner: str) -> "NamePattern":
        """A pattern that was accepted before; if an earlier version did so, and it is wrong now, it matches nothing."""
        try:
            return cls(pattern)
        except PatternError as error:
            _LOG.warning(
                "pattern matches nothing owner=%s pattern=%.200r: %s; set it again", owner, pattern, error
            )
            return cls("(?!)")

    @property
    def is_exhausted(self) -> bool:
        """Whether the pattern has used up its budget and matches nothing any more."""
        return self._overtime >= BUDGET.total_seconds()

    def search(self, name: str) -> bool:
        """Whether the pattern is found in the name; a match beyond the time limit is not."""
        result = self._results.get(name)
        if result is None:
            result = self._search(name)
            if len(self._results) >= _MAX_CACHED:
                self._results.clear()
            self._results[name] = result
        return result

    def filter(self, names: Iterable[str], clock: Callable[[], float] = time.thread_time) -> list[bool]:
        """The results for many names, within the budget of a request; names beyond it do not match."""
        deadline = clock() + BUDGET.total_seconds()
        results, skipped = [], 0
        for name in names:
            if clock() < deadline:
                results.append(self.search(name))
            else:
                results.append(False)
                skipped += 1
        if skipped:
            _LOG.warning(
                "pattern reached its time limit per request pattern=%.200r limit_ms=%g unmatched_names=%d",
                self.pattern,
                BUDGET.total_seconds() * 1000,
                skipped,
            )
        return results

    def _search(self, name: str) -> bool:
        if self._compiled is None:
            return True
        if self.is_exhausted:
            return False
        limit = MATCH_LIMIT.total_seconds()
        subject = octets(name).decode("latin-1")
        try:
            return self._compiled.search(subject, timeout=_FIRST_LIMIT) is not None
        except (TimeoutError, MemoryError):
            pass
        try:
            return self._compiled.search(subject, timeout=limit, concurrent=True) is not None
        except TimeoutError:
            is_first = not self._overtime
            self._overtime += limit
        except MemoryError:
            is_first, self._overtime = True, BUDGET.total_seconds()
        is_last = self._overtime >= BUDGET.total_seconds()
        if not is_first and not is_last:
            return False
        _LOG.warning(
            "pattern reached its time limit per match pattern=%.200r limit_ms=%g name=%.100r%s",
            self.pattern,
            limit * 1000,
            name,
            "; the pattern matches nothing from now on, make it simpler" if is_last else "",
        )
        return False


def _compile(pattern: str, *, caseless: bool) -> Any:
    import regex  # noqa: PLC0415  it takes longer to load than the rest of the broker

    source = translate(octets(pattern).decode("latin-1"))
    flags = regex.VERSION0 | regex.ASCII | (regex.IGNORECASE if caseless else 0)
    try:
        return regex.compile(source, flags, cache_pattern=False)
    except (regex.error, RecursionError, OverflowError) as error:
        raise PatternError(str(error).partition(" at position")[0], len(octets(pattern))) from None


class NameFilter:
    """Filters names by patterns of requests, in a separate thread, so that the event loop is not blocked."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redrive-name-filter")
        self._patterns: OrderedDict[str, NamePattern] = OrderedDict()  # used by that thread only
        self._is_closed = False

    async def filter(self, pattern: str, names: list[str]) -> list[bool]:
        """Whether each name matches, in any case; raises `PatternError`."""
        if self._is_closed:
            return [False] * len(names)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._filter, pattern, names)

    def close(self) -> None:
        """Answer requests that wait with no match; the one that is under way ends within its budget."""
        self._is_closed = True
        self._thread.shutdown(wait=False)

    def _filter(self, pattern: str, names: list[str]) -> list[bool]:
        if self._is_closed:
            return [False] * len(names)
        known = self._patterns.pop(pattern, None) or NamePattern(pattern, caseless=True)
        self._patterns[pattern] = known  # the last one used is the last one dropped
        if len(self._patterns) > _MAX_PATTERNS:
            self._patterns.popitem(last=False)
        return known.filter(names)
