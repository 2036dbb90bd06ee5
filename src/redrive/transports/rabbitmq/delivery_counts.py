"""Delivery counts by RabbitMQ version: what counts, where the count is kept, and when the broker gives up.

Only quorum queues count. Each generation counts something else, and compares its `delivery-limit` with something else.
Consuming, giving back, poison detection, peeking, provisioning, `redrive doctor` and the documentation read this one
table. Every row was measured on a running server; `tests/interop/test_delivery_counts.py` measures them again.

    counts = counts_of(link.server_properties)
    if counts.nack_counts: ...

Classic queues keep no count in any version. They set `redelivered`, and nothing else.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

DELIVERY_COUNT: Final = "x-delivery-count"  # header of deliveries from quorum queues
ACQUIRED_COUNT: Final = "x-acquired-count"  # the same, from 4.3
UNLIMITED: Final = -1  # as `x-delivery-limit`, where `can_be_unlimited`
_EMBEDDED: Final = "redrive "  # how the embedded broker's `platform` begins


class DeliveryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How the quorum queues of one generation of RabbitMQ count deliveries.

    `basic.reject` with requeue, a closed channel and a lost connection count in every generation.
    """

    versions: str  # for people: "4.0 to 4.2"
    since: tuple[int, int]
    # Whether basic.nack(requeue) and basic.recover count, also after basic.get: then looking at a message counts.
    nack_counts: bool
    limit_compared_with: str  # for people
    default_limit: int | None  # of a queue that has no limit of its own; None: unlimited
    # Whether a limit of -1 means none. Where it does not, the queue drops a message on its first return.
    can_be_unlimited: bool
    delivery_count_holds: str  # what the header x-delivery-count says, for people
    has_acquired_count: bool  # whether x-acquired-count holds every assignment to a consumer
    # Whether the first delivery of a dead-lettered message may be `redelivered` and have the counts of another queue.
    carries_counts: bool
    carries_flag: bool  # the same, of `redelivered` in a classic queue
    limits_carried: bool  # whether the limit is compared with deliveries in other queues too

    @property
    def looking_counts(self) -> bool:
        """Whether a message of a quorum queue that is taken and given back has one delivery more."""
        return self.nack_counts

    def limit_in_force(self, limit: int | None) -> int | None:
        """The limit of a quorum queue whose argument and policy say this; None: it gives up no message."""
        if limit is None:
            return self.default_limit
        return None if limit < 0 and self.can_be_unlimited else limit

    def survives_look(self, count: int, limit: int | None) -> bool:
        """Whether a message with this x-delivery-count may be taken and given back by a nack under this limit."""
        return limit is None or count + self.nack_counts <= limit


TABLE: Final = (
    DeliveryCounts(
        versions="3.8 to 3.13",
        since=(3, 8),
        nack_counts=True,
        limit_compared_with="returns of any kind",
        default_limit=None,
        can_be_unlimited=False,
        delivery_count_holds="returns of any kind",
        has_acquired_count=False,
        carries_counts=False,
        carries_flag=False,
        limits_carried=False,
    ),
    DeliveryCounts(
        versions="4.0 to 4.2",
        since=(4, 0),
        nack_counts=True,
        limit_compared_with="returns of any kind",
        default_limit=20,
        can_be_unlimited=True,
        delivery_count_holds="returns of any kind",
        has_acquired_count=False,
        carries_counts=True,
        carries_flag=False,
        limits_carried=False,
    ),
    DeliveryCounts(
        versions="4.3 and later",
        since=(4, 3),
        nack_counts=False,
        limit_compared_with="failures, those in earlier queues included",
        default_limit=20,
        can_be_unlimited=True,
        delivery_count_holds="failures, those in earlier queues included",
        has_acquired_count=True,
        carries_counts=True,
        carries_flag=True,
        limits_carried=True,
    ),
)

NEWEST: Final = TABLE[-1]


def counts_of_version(version: tuple[int, ...] | None) -> DeliveryCounts:
    """The row of a version such as (4, 3, 6).

    An unknown version gets the row of 4.0, which is the careful one: there, everything counts and there is a limit.
    """
    if not version:
        return TABLE[1]
    return max((row for row in TABLE if row.since <= version), key=_since, default=TABLE[0])


def counts_of(server_properties: Mapping[str, object]) -> DeliveryCounts:
    """The row of a server, by what it says of itself in connection.start."""
    if is_embedded(server_properties):
        return NEWEST  # the embedded broker behaves like the newest RabbitMQ, whatever version it announces
    numbers = re.match(r"\d+(?:\.\d+)*", _text(server_properties.get("version")))
    return counts_of_version(tuple(map(int, numbers[0].split("."))) if numbers else None)


def is_embedded(server_properties: Mapping[str, object]) -> bool:
    """Whether this is the embedded broker."""
    return _text(server_properties.get("platform")).startswith(_EMBEDDED)


def _since(row: DeliveryCounts) -> tuple[int, int]:
    return row.since


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
