"""How are messages received from a broker, settled, and sent to it? One seam, whatever the broker.

`base` is the contract in prose; `memory` is its executable specification; `rabbitmq` speaks AMQP 0-9-1 to RabbitMQ
and to the embedded broker, `kafka` speaks to Kafka. `open_transport` finds the one that a URL names.
"""

import os
from typing import Final

from redrive.clock import Clock, SystemClock
from redrive.errors import SettingsError, use_instead
from redrive.settings import Settings, resolve
from redrive.transports.base import (
    Capabilities,
    Death,
    Delivery,
    Outcomes,
    Publication,
    Receiver,
    Release,
    Source,
    Target,
    Transport,
)

__all__ = [
    "Capabilities",
    "Death",
    "Delivery",
    "Outcomes",
    "Publication",
    "Receiver",
    "Release",
    "Source",
    "Target",
    "Transport",
    "broker_name",
    "broker_url",
    "configured_url",
    "kind_of",
    "open_transport",
]

_AMQP_PORT: Final = 5672


def broker_url(url: str) -> str:
    """The URL itself, also if it is kept elsewhere (`env:NAME`, `file:PATH`)."""
    try:
        return resolve(url, os.environ)
    except SettingsError as error:
        raise SettingsError(f"broker URL: {url:.60} cannot be used: {error}") from None


def kind_of(url: str) -> str:
    """The kind of broker that a URL names, as letters and `broker.name` have it."""
    scheme = url.partition(":")[0].lower()
    return {"amqp": "rabbitmq", "amqps": "rabbitmq", "kafka": "kafka", "kafkas": "kafka"}.get(scheme, scheme)


def broker_name(settings: Settings) -> str:
    """The name of the broker of the settings: the one they give it, or its kind."""
    broker = settings.broker
    return broker.name or ("embedded" if broker.url is None else kind_of(broker.url))


def configured_url(settings: Settings) -> str:
    """The URL of the broker of the settings; without one, the embedded broker on this machine."""
    return settings.broker.url or f"amqp://127.0.0.1:{settings.embedded.port or _AMQP_PORT}"


def open_transport(url: str, clock: Clock | None = None) -> Transport:
    """The transport that a URL names, not yet connected: `async with` connects it."""
    url = broker_url(url)
    scheme = url.partition(":")[0].lower()
    clock = clock or SystemClock()
    if scheme == "memory":
        from redrive.transports.memory import MemoryTransport  # noqa: PLC0415  each broker's code loads when it is used

        return MemoryTransport(clock)
    if scheme in ("amqp", "amqps"):
        from redrive.transports.rabbitmq import RabbitTransport  # noqa: PLC0415

        return RabbitTransport(url, clock)
    if scheme in ("kafka", "kafkas"):
        try:
            from redrive.transports.kafka import KafkaTransport  # noqa: PLC0415
        except ImportError as error:
            if error.name != "confluent_kafka":
                raise
            raise SettingsError("broker URL: Kafka needs confluent-kafka; install redrive[kafka]") from None
        return KafkaTransport(url, clock)
    known = ("amqp", "amqps", "kafka", "kafkas", "memory")
    raise SettingsError(f"broker URL: unknown scheme '{scheme}'{use_instead(scheme, known)}")
