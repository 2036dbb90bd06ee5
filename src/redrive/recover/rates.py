"""Limit how many letters per second are redriven to one source.

One bucket of tokens per source: it fills at the rate and holds what one second brings, at least one token. A worker
reserves tokens before it claims and returns those that no letter needed. A source that was never seen has no bucket
yet: its first letters are paid afterwards, so the bucket may be in debt for a moment.

Each server counts for itself: two servers on one store redrive twice as much.
"""

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from redrive.clock import Clock


class _Bucket(msgspec.Struct):
    rate: float  # per second
    tokens: float
    at: timedelta  # when the tokens were counted


class RateLimits:
    """The buckets of all sources."""

    def __init__(
        self, clock: Clock, default: float | None = None, by_source: Mapping[str, float] | None = None
    ) -> None:
        """`default` is the rate of sources that `by_source` does not name; None: no limit."""
        self._clock = clock
        self._default = default
        self._by_source = dict(by_source or {})
        self._buckets: dict[str, _Bucket] = {}
        for source in self._by_source:
            self._bucket(source)

    def sources(self) -> tuple[str, ...]:
        """The sources that have a limit and were seen, or are named."""
        return tuple(self._buckets)

    def reserve(self, source: str, count: int) -> int:
        """Take up to `count` tokens of this source; how many those are."""
        bucket = self._bucket(source)
        if bucket is None:
            return count
        taken = max(0, min(count, int(bucket.tokens)))
        bucket.tokens -= taken
        return taken

    def spend(self, source: str, count: int) -> None:
        """Pay for letters; a negative count returns tokens."""
        if (bucket := self._bucket(source)) is not None:
            bucket.tokens -= count

    def wait(self, source: str) -> timedelta:
        """How long until a letter of this source may go."""
        bucket = self._bucket(source)
        if bucket is None or bucket.tokens >= 1:
            return timedelta(0)
        return timedelta(seconds=(1 - bucket.tokens) / bucket.rate)

    def _bucket(self, source: str) -> _Bucket | None:
        """The bucket of a source, filled up to now."""
        now = self._clock.monotonic()
        bucket = self._buckets.get(source)
        if bucket is None:
            rate = self._by_source.get(source, self._default)
            if rate is None:
                return None
            bucket = self._buckets[source] = _Bucket(rate, max(1.0, rate), now)
            return bucket
        filled = bucket.tokens + (now - bucket.at).total_seconds() * bucket.rate
        bucket.tokens, bucket.at = min(filled, max(1.0, bucket.rate)), now
        return bucket
