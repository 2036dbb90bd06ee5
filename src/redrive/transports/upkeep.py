"""How is a broker provisioned and checked, whatever it is?

`Upkeep` is a broker as `redrive provision` and `redrive doctor` see it; `upkeep_of` finds the one that a URL names.
Each broker has a file of the same name with its own. The rule: to plan and to diagnose change nothing; to apply makes
only what a plan has found missing.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from redrive.errors import SettingsError
from redrive.transports import broker_url
from redrive.transports.base import Source
from redrive.transports.finding import Diagnosis
from redrive.transports.plan import Applied, Plan

__all__ = ["Applied", "Diagnosis", "Plan", "Upkeep", "upkeep_of"]


class Upkeep(Protocol):
    """A broker, to be furnished and looked over. Each call connects for itself."""

    place: str  # the URL without credentials and options: what may be shown

    async def plan(self, sources: Sequence[Source]) -> Plan:
        """How everything that these sources need stands."""
        ...

    def apply(self, steps: Plan) -> AsyncIterator[Applied]:
        """Make what is missing, in order, up to the first failure."""
        ...

    async def diagnose(self, sources: Sequence[Source]) -> Diagnosis:
        """Every fault that can be seen."""
        ...


def upkeep_of(url: str, management_url: str | None = None) -> Upkeep:
    """The broker that a URL names, not yet asked anything."""
    url = broker_url(url)
    if management_url is not None:
        management_url = broker_url(management_url)
    scheme = url.partition(":")[0].lower()
    if scheme in ("amqp", "amqps"):
        from redrive.transports.rabbitmq.upkeep import RabbitUpkeep  # noqa: PLC0415  each broker's code loads when it is used

        return RabbitUpkeep(url, management_url)
    if scheme in ("kafka", "kafkas"):
        try:
            from redrive.transports.kafka.upkeep import KafkaUpkeep  # noqa: PLC0415
        except ImportError as error:
            if error.name != "confluent_kafka":
                raise
            raise SettingsError("broker URL: Kafka needs confluent-kafka; install redrive[kafka]") from None
        return KafkaUpkeep(url, management_url)
    raise SettingsError("broker URL: must start with amqp://, amqps://, kafka:// or kafkas://")
