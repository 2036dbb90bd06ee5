"""Which deliveries counted against a message although it did no harm?

A broker counts every delivery that was not settled, also those that a cut connection took back before a handler had
seen them, or after it was done with them. Three cuts would make poison of a harmless message. The process that held
such a delivery knows better: it remembers the message, and its count is forgiven when it comes again. What another
process held, or one that has died, nobody can vouch for: there the broker's count stands.
"""

from collections import OrderedDict
from typing import Final

from redrive.transports.base import Delivery

_MOST: Final = 20_000


class Innocent:
    """Deliveries that are known to have done no harm, by their message; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, delivery: Delivery) -> None:
        """This delivery was lost with its connection, and nothing bad came of it."""
        key = delivery.key
        self._known[key] = self._known.pop(key, 0) + 1
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def count(self, delivery: Delivery) -> int:
        """How many earlier deliveries of this message are forgiven."""
        if (delivery.delivery_count or 1) <= 1:
            return 0
        return self._known.get(delivery.key, 0)
