"""Probe queues over the management API of RabbitMQ or of the embedded broker.

Figures are as old as the broker's last statistics, which it takes every five
seconds; a queue that had no traffic for a while has none, and then counts from zero.
"""

import asyncio
import contextlib
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from redrive.errors import BrokerRefusedError
from redrive.transports.probing import Probed
from redrive.transports.rabbitmq.management import TIMEOUT, Api, NotFoundError, management_of
from redrive.transports.rabbitmq.url import parse_url


class _Stats(msgspec.Struct, frozen=True):
    deliver_get: int = 0
    redeliver: int = 0


class _Queue(msgspec.Struct, frozen=True):
    messages: int = 0
    messages_unacknowledged: int = 0
    messages_delayed: int = 0
    consumers: int = 0
    message_stats: _Stats = _Stats()
    head_message_timestamp: Any = None  # of classic queues; empty where the message has none


def _time(seconds: Any) -> datetime | None:
    """A timestamp of AMQP; producers may set any number."""
    if type(seconds) is not int:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


class RabbitProbe:
    """Asks the management API of one virtual host."""

    def __init__(self, url: str, management_url: str) -> None:
        broker = parse_url(url)
        self._vhost = broker.vhost
        self._at = management_of(management_url, broker)
        self.place = self._at.place

    async def look(self, queues: Sequence[str]) -> list[Probed]:
        """What it says of these; those that are not there are left out."""
        return await asyncio.to_thread(self._look, queues)

    def _look(self, queues: Sequence[str]) -> list[Probed]:
        found: list[Probed] = []
        with contextlib.closing(Api(self._at, TIMEOUT)) as api:
            self._check_access(api)
            for queue in queues:
                path = f"queues/{quote(self._vhost, safe='')}/{quote(queue, safe='')}"
                with contextlib.suppress(NotFoundError):
                    said = api.get(path, _Queue)
                    stats = said.message_stats
                    found.append(
                        Probed(
                            queue=queue,
                            messages=max(0, said.messages - said.messages_delayed),
                            unacknowledged=said.messages_unacknowledged,
                            consumers=said.consumers,
                            delivered=max(0, stats.deliver_get - stats.redeliver),
                            deliveries=stats.deliver_get,
                            delayed=said.messages_delayed,
                            head_at=_time(said.head_message_timestamp),
                        )
                    )
        return found

    def _check_access(self, api: Api) -> None:
        """Without permissions in the virtual host, RabbitMQ 4.3 answers as if no queue were there."""
        vhost = quote(self._vhost, safe="")
        try:
            api.get(f"exchanges/{vhost}/amq.direct", msgspec.Raw)  # every virtual host has it
        except NotFoundError:
            user = self._at.user
            grant = shlex.join(["rabbitmqctl", "set_permissions", "-p", self._vhost, user, "", "", ""])
            raise BrokerRefusedError(
                f"the management API at {self.place} does not show the virtual host '{self._vhost}' to "
                f"the user '{user}'; if it exists, grant access: {grant}"
            ) from None
