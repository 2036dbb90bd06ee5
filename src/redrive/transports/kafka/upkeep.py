"""How is a Kafka provisioned and checked?

What `transports.upkeep` asks for, put together from `topology`, `plan`, `provision` and `doctor`.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from redrive.errors import SettingsError
from redrive.transports.base import Source
from redrive.transports.finding import Diagnosis
from redrive.transports.kafka.doctor import diagnose
from redrive.transports.kafka.names import retries_of
from redrive.transports.kafka.plan import plan
from redrive.transports.kafka.provision import Admin, apply, look
from redrive.transports.kafka.topics import Topics
from redrive.transports.kafka.topology import wanted
from redrive.transports.kafka.url import parse_url
from redrive.transports.plan import Applied, Plan

_LOG: Final = logging.getLogger("redrive.transports.kafka.upkeep")
_LOG.addHandler(
    logging.NullHandler()
)  # what it says of connections stands in our errors; who listens gets it, too


class KafkaUpkeep:
    """A Kafka, seen as far as its access lists let us."""

    def __init__(self, url: str, management_url: str | None = None) -> None:
        if management_url:
            raise SettingsError(
                "only RabbitMQ has a management URL; remove --management-url and broker.management_url"
            )
        self._url = parse_url(url)
        self.place = self._url.place

    async def plan(self, sources: Sequence[Source]) -> Plan:
        """How everything that these sources need stands."""
        topology = wanted(sources, retries_of(sources, self._url))
        return plan(await look(self.admin(), topology), topology)

    async def apply(self, steps: Plan) -> AsyncIterator[Applied]:
        """Make what is missing, in order, up to the first failure."""
        async for step in apply(self.admin(), steps):
            yield step

    async def diagnose(self, sources: Sequence[Source]) -> Diagnosis:
        """Every fault that can be seen."""
        retries = retries_of(sources, self._url)
        groups = {source.dlq: self._url.group_of(source.dlq, None) for source in sources}
        groups |= {source.name: self._url.group_of(source.name, source.consumer_group) for source in sources}
        found = await look(self.admin(), wanted(sources, retries), groups)
        return diagnose(found, sources, retries)

    def admin(self) -> Admin:
        """A connection of its own."""
        return Admin(Topics(self._url, _LOG), self._url)
