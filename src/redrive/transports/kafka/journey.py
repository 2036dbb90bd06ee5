"""Where was a record before it came here?

A record that has to wait outside its partition is copied to a retry topic. The copy carries where it was, how often
it was delivered there and when it may come again, in headers that are taken out before anybody sees the message. The
rule: what cannot be read counts for nothing, and a record without such headers has no journey.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from redrive.letters.letter import EPOCH
from redrive.transports.kafka.headers import Pair

PARTITION: Final = "redrive-original-partition"
OFFSET: Final = "redrive-original-offset"
DELIVERIES: Final = "redrive-deliveries"
NOT_BEFORE: Final = "redrive-not-before"  # milliseconds since 1970
# Names that `formats.own.strip` takes away as well.
WAY: Final = frozenset({PARTITION, OFFSET, DELIVERIES, NOT_BEFORE})
_MILLISECOND: Final = timedelta(milliseconds=1)


class Journey(NamedTuple):
    """What a copy tells of its original."""

    partition: int | None = None
    offset: int | None = None
    deliveries: int = 0  # of the records it was before
    not_before: int | None = None


_NONE: Final = Journey()


def journey_of(pairs: Iterable[Pair]) -> Journey:
    """What these headers tell."""
    found = {name: number for name, value in pairs if name in WAY and (number := _number(value)) is not None}
    if not found:
        return _NONE
    return Journey(found.get(PARTITION), found.get(OFFSET), found.get(DELIVERIES, 0), found.get(NOT_BEFORE))


def pairs_for(journey: Journey) -> list[Pair]:
    """The headers that tell this."""
    values = (PARTITION, journey.partition), (OFFSET, journey.offset), (DELIVERIES, journey.deliveries)
    pairs = [(name, b"%d" % value) for name, value in values if value is not None]
    if journey.not_before is not None:
        pairs.append((NOT_BEFORE, b"%d" % journey.not_before))
    return list(pairs)


def milliseconds(at: datetime) -> int:
    """Since 1970, rounded up: a record never comes early for a fraction."""
    return -((EPOCH - at) // _MILLISECOND)


def wait_until(not_before: int, now: datetime) -> timedelta:
    """How long it is until then; nothing or less if it is over."""
    return not_before * _MILLISECOND - (now - EPOCH)


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else None
