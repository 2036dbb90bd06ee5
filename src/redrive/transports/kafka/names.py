"""What are the topics beside a source called, and how long does a record wait in them?

A retry topic keeps records that all wait equally long, so the first of them is always the first that is due. There is
a ladder of steps; a longer wait is made of several of them, and one shorter than the first is waited for in memory.
The rule: a name depends on the source alone, and is a name that Kafka takes.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from redrive.rules import format_duration
from redrive.transports.base import Source
from redrive.transports.kafka.url import BrokerUrl

STEPS: Final[tuple[timedelta, ...]] = (
    timedelta(seconds=10),
    timedelta(seconds=30),
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=15),
    timedelta(hours=1),
    timedelta(hours=6),
)
# A wait that is this much too short for a step is waited for in it all the same.
_NEARLY: Final = timedelta(milliseconds=200)


def retry_topic(source: Source, step: timedelta) -> str:
    """The topic in which records of a source wait for `step`: `orders.retry.5m`, of a group `shop.orders.retry.5m`.

    Each source of a group has its own: who receives it must be the one whose handler knows the record.
    """
    name = source.name if source.consumer_group is None else f"{source.consumer_group}.{source.name}"
    return f"{name}.retry.{format_duration(step)}"


def retry_topics(source: Source) -> dict[str, timedelta]:
    """All of them, and how long a record waits in each."""
    return {retry_topic(source, step): step for step in STEPS}


def retries_of(sources: Iterable[Source], url: BrokerUrl) -> dict[str, tuple[str, ...]]:
    """The retry topics of each source; none where records wait in place."""
    return {source.name: tuple(retry_topics(source)) for source in sources} if url.retry == "topics" else {}


def step_for(wait: timedelta) -> timedelta | None:
    """The longest step that is not too long; None where even the shortest is."""
    return max((step for step in STEPS if step <= wait + _NEARLY), default=None)
