"""What a broker reports about its queues, besides what a connection can see.

A `Probe` only reads. Whatever goes wrong (no answer, 4xx, 5xx, bad JSON) is a `TransportError` in one line without
credentials. RabbitMQ and the embedded broker are asked over their management API, Kafka by its admin API.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from redrive.errors import SettingsError


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker reports about a queue or topic."""

    queue: str
    messages: int  # ready or unacknowledged; without those that wait for a delayed retry
    unacknowledged: int
    consumers: int | None  # None where the broker does not tell
    delivered: int  # since the broker counts, each message once
    deliveries: int = 0  # the same, redeliveries included
    delayed: int = 0  # wait inside the queue for a delayed retry (quorum queues of RabbitMQ 4.3 and later)
    head_at: datetime | None = None  # when the message at the head was sent, where the broker reports it

    @property
    def ready(self) -> int:
        """Messages that can be delivered now."""
        return max(0, self.messages - self.unacknowledged)

    @property
    def arrived(self) -> int:
        """Messages that came into it since then. Brokers do not count those that they dead-letter themselves."""
        return self.delivered + self.messages - self.unacknowledged


class Probe(Protocol):
    """A way to ask."""

    place: str  # without credentials: what may be shown

    async def look(self, queues: Sequence[str]) -> list[Probed]:
        """What the broker reports about these; those that do not exist are left out."""
        ...


def probe_of(
    url: str, management_url: str | None, groups: Mapping[str, str | None] | None = None
) -> Probe | None:
    """The probe of the broker that a URL names; None if there is nothing to ask.

    `groups` are the consumer groups of Kafka sources; without one it is the group that the URL gives a source.
    """
    scheme = url.partition(":")[0].lower()
    # Each broker's code is loaded when it is used.
    if scheme in ("amqp", "amqps") and management_url is not None:
        from redrive.transports.rabbitmq.probe import RabbitProbe  # noqa: PLC0415

        return RabbitProbe(url, management_url)
    if scheme in ("kafka", "kafkas"):
        try:
            from redrive.transports.kafka.probe import KafkaProbe  # noqa: PLC0415
        except ImportError as error:
            if error.name != "confluent_kafka":
                raise
            raise SettingsError("broker URL: Kafka needs confluent-kafka; install redrive[kafka]") from None
        return KafkaProbe(url, groups or {})
    return None
