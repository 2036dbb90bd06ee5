"""How is a RabbitMQ, or the embedded broker, provisioned and checked?

What `transports.upkeep` asks for, put together from `topology`, `plan`, `provision` and `doctor`. The rule: a
connection for each question, because people take longer between two of them than heartbeats do.
"""

from collections.abc import AsyncIterator, Sequence

from redrive.transports.base import Source
from redrive.transports.finding import Diagnosis
from redrive.transports.plan import Applied, Plan
from redrive.transports.rabbitmq.doctor import diagnose
from redrive.transports.rabbitmq.found import Found
from redrive.transports.rabbitmq.management import guess_management_url, management_of
from redrive.transports.rabbitmq.plan import plan
from redrive.transports.rabbitmq.provision import apply, linked, look
from redrive.transports.rabbitmq.topology import Topology, wanted
from redrive.transports.rabbitmq.url import parse_url


class RabbitUpkeep:
    """A RabbitMQ, seen over the management API where there is one, and over AMQP alone where there is none."""

    def __init__(self, url: str, management_url: str | None) -> None:
        self._broker = parse_url(url)
        self._guessed = not management_url  # nobody said where the management API is
        self._management = (
            management_of(management_url, self._broker)
            if management_url
            else guess_management_url(self._broker)
        )
        self.place = self._broker.place

    async def plan(self, sources: Sequence[Source]) -> Plan:
        """How everything that these sources need stands."""
        found, topology = await self._look(sources)
        return plan(found, topology)

    async def apply(self, steps: Plan) -> AsyncIterator[Applied]:
        """Make what is missing, in order, up to the first failure."""
        async with linked(self._broker) as link:
            async for step in apply(link.channel, steps):
                yield step

    async def diagnose(self, sources: Sequence[Source]) -> Diagnosis:
        """Every fault that can be seen."""
        found, _ = await self._look(sources)
        return diagnose(found, sources)

    async def _look(self, sources: Sequence[Source]) -> tuple[Found, Topology]:
        wanted(sources)  # wrong settings are reported without asking a broker
        async with linked(self._broker) as link:
            topology = wanted(sources, link.counts)
            return await look(link, topology, self._management, guessed=self._guessed), topology
