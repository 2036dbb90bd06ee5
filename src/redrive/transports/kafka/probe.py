"""Probe topics: how many records each group has passed, and how many wait.

Counted by offsets. A group has passed what is below its commits, and what its notes call done; everything else up to
the end of a partition waits. So `arrived` of a dead-letter topic is its end offset, the number of records that were
ever written to it, and `delivered` of a source is the number of records that its group has passed. Retention changes
neither. Offsets without a record (of transactions, or where compaction removed one) count as one, and a group that
began in the middle of a topic counts as if it had passed what came before.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from redrive.errors import SourceMissingError
from redrive.transports.kafka import looking
from redrive.transports.kafka.topics import Topics
from redrive.transports.kafka.url import parse_url
from redrive.transports.probing import Probed

_LIBRDKAFKA: Final = logging.getLogger("redrive.transports.kafka.librdkafka")
_CONCURRENT: Final = 4  # topics that are asked for at the same time


class KafkaProbe:
    """Asks a cluster for offsets, with a client of its own."""

    def __init__(self, url: str, groups: Mapping[str, str | None]) -> None:
        self._url = parse_url(url)
        self._groups = dict(groups)
        self._topics: Topics | None = None
        self.place = self._url.place

    async def look(self, queues: Sequence[str]) -> list[Probed]:
        """What the cluster reports about these topics; those that do not exist are left out."""
        topics = self._topics
        if topics is None:
            topics = self._topics = Topics(self._url, _LIBRDKAFKA)
        limit = asyncio.Semaphore(_CONCURRENT)

        async def ask(topic: str) -> Probed | None:
            async with limit:
                topics.forget(topic)
                with contextlib.suppress(SourceMissingError):
                    return await self._probed(topics, topic)
                return None

        return [found for found in await asyncio.gather(*map(ask, queues)) if found is not None]

    async def _probed(self, topics: Topics, topic: str) -> Probed:
        group = self._url.group_of(topic, self._groups.get(topic))
        found = (await looking.waiting(topics, group, topic)).values()
        passed = sum(seen.begin + len(seen.done) for seen in found)
        return Probed(
            queue=topic,
            messages=sum(seen.total for seen in found),
            unacknowledged=0,
            consumers=None,
            delivered=passed,
            deliveries=passed,
        )
