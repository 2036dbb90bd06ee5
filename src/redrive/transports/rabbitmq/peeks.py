"""Remember which messages this process has only looked at: they were not delivered.

AMQP 0-9-1 cannot look at a message: it is taken and given back, and from then on the broker calls it redelivered. Up to
RabbitMQ 4.2, a quorum queue counts that as well (see `delivery_counts`). So what this process has looked at is taken
off the count again. It is forgotten before it grows without bound. What another process has looked at is not known
here: there, looking counts once on a classic queue, and each time on a quorum queue up to 4.2.
"""

from typing import Final

_MOST: Final = 10_000


class Peeks:
    """How often each message of each queue was looked at."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: dict[tuple[str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._looks)

    def looked_at(self, source: str, key: str) -> None:
        """A message was taken and given back."""
        place = (source, key)
        self._looks[place] = self._looks.pop(place, 0) + 1  # the one looked at last is forgotten last
        if len(self._looks) > _MOST:
            del self._looks[next(iter(self._looks))]

    def of(self, source: str, key: str) -> int:
        """How often it was looked at."""
        return self._looks.get((source, key), 0)

    def forget(self, source: str, key: str) -> None:
        """From now on, it counts."""
        self._looks.pop((source, key), None)
