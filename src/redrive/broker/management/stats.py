"""How fast is it going?

Counters only grow; a rate is how much one grew since it was looked at some seconds ago. Nothing is counted or timed
for it: `Rates` remembers what somebody saw, so the first look at a thing tells a rate of 0, and a probe that comes
every minute gets the mean of that minute. A window is `window` milliseconds long at least.
"""

from collections.abc import Hashable, Mapping
from typing import Final, TypeAlias

from redrive.broker.queue import QueueStats

Counters: TypeAlias = Mapping[str, int]
_MOST: Final = 20_000  # things that are remembered
_OLD: Final = 10 * 60_000


class Rates:
    """What was seen of each thing, and when: the last look, and the one before it that is a window old."""

    def __init__(self, window: int = 5000) -> None:
        self._window = window
        self._seen: dict[Hashable, list[tuple[int, Counters]]] = {}

    def look(self, key: Hashable, counters: Counters, now: int) -> dict[str, object]:
        """The counters, each with its `_details`: how much it grows per second."""
        seen = self._seen.get(key)
        if seen is None:
            self._tidy(now)
            seen = self._seen[key] = []
        if not seen or now - seen[-1][0] >= self._window:
            seen.append((now, counters))
            del seen[:-3]
        then, before = next((look for look in reversed(seen) if now - look[0] >= self._window), seen[0])
        seconds = (now - then) / 1000
        shown: dict[str, object] = {}
        for name, count in counters.items():
            shown[name] = count
            grown = (count - before.get(name, 0)) / seconds if seconds > 0 else 0.0
            shown[f"{name}_details"] = {"rate": round(grown, 2)}
        return shown

    def _tidy(self, now: int) -> None:
        if len(self._seen) >= _MOST:
            self._seen = {key: seen for key, seen in self._seen.items() if now - seen[-1][0] < _OLD}


def queue_counters(stats: QueueStats) -> dict[str, int]:
    """What happened in a queue, under RabbitMQ's names."""
    return {
        "publish": stats.published,
        "deliver_get": stats.delivered + stats.got,
        "deliver": stats.delivered - stats.delivered_no_ack,
        "deliver_no_ack": stats.delivered_no_ack,
        "get": stats.got - stats.got_no_ack,
        "get_no_ack": stats.got_no_ack,
        "get_empty": stats.got_nothing,
        "ack": stats.acked,
        "redeliver": stats.redelivered,
    }
