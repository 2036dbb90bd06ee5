"""What does a broker's management say of its queues, beside what a connection can see?

`Probe` asks it, as somebody does who watches: over HTTP, with the user of the management API. The rules: to look
changes nothing; whatever goes wrong (no answer, 4xx, 5xx, bad JSON) is a `TransportError` in one line without
credentials.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker says of a queue."""

    queue: str
    messages: int  # ready or unacknowledged; without those that wait for a delayed retry
    unacknowledged: int
    consumers: int
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
        """What it says of these; those that are not there are left out."""
        ...


def probe_of(url: str, management_url: str) -> Probe | None:
    """The probe of the broker that a URL names; None: it has no such API."""
    if url.partition(":")[0].lower() not in ("amqp", "amqps"):
        return None
    from redrive.transports.rabbitmq.probe import RabbitProbe  # noqa: PLC0415  each broker's code loads when it is used

    return RabbitProbe(url, management_url)
