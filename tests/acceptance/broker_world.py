"""What do the tests of `provision` and `doctor` share?

A virtual host on a real RabbitMQ and on the embedded broker in turn (`broker`), a hand that makes and breaks things in
it over AMQP and over the management API (`World`), and the command line as a process. This file does not know what
is tested.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from redrive import __file__ as package
from redrive.transports.base import Source
from redrive.transports.finding import Diagnosis
from redrive.transports.plan import Applied, Plan
from redrive.transports.rabbitmq.doctor import diagnose
from redrive.transports.rabbitmq.found import Found
from redrive.transports.rabbitmq.management import ManagementUrl, parse_management_url
from redrive.transports.rabbitmq.plan import plan
from redrive.transports.rabbitmq.provision import apply, linked, look
from redrive.transports.rabbitmq.topology import wanted
from redrive.transports.rabbitmq.url import BrokerUrl, parse_url
from tests.services import RabbitMQ

PROGRAM = "from redrive.cli import main; main()"
NOWHERE = ManagementUrl(host="127.0.0.1", port=1, user="guest", password="guest")


class World:
    """A virtual host, to be furnished and looked at."""

    def __init__(self, at: RabbitMQ) -> None:
        self.at = at

    @property
    def url(self) -> BrokerUrl:
        return parse_url(self.at.amqp_url)

    @property
    def management(self) -> ManagementUrl:
        return parse_management_url(self.at.management_url)

    # --- furnishing ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with pika.BlockingConnection(pika.URLParameters(self.at.amqp_url)) as connection:
            yield connection.channel()

    def queue(self, name: str, arguments: Mapping[str, object] | None = None, **options: Any) -> None:
        with self.channel() as channel:
            channel.queue_declare(name, **({"durable": True} | options), arguments=dict(arguments or {}))

    def exchange(
        self, name: str, kind: str = "fanout", arguments: Mapping[str, object] | None = None
    ) -> None:
        with self.channel() as channel:
            channel.exchange_declare(name, kind, durable=True, arguments=dict(arguments or {}))

    def bind(self, exchange: str, queue: str, key: str = "") -> None:
        with self.channel() as channel:
            channel.queue_bind(queue, exchange, key)

    def unbind(self, exchange: str, queue: str, key: str = "") -> None:
        with self.channel() as channel:
            channel.queue_unbind(queue, exchange, key)

    def delete_queue(self, name: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(name)

    def delete_exchange(self, name: str) -> None:
        with self.channel() as channel:
            channel.exchange_delete(name)

    def publish(self, queue: str, count: int = 1) -> None:
        """Durable when it returns."""
        with self.channel() as channel:
            channel.confirm_delivery()
            for _ in range(count):
                channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2), mandatory=True)

    def api(self, method: str, path: str, body: object = None) -> Any:
        return self.at.api(method, path.replace("{v}", quote(self.at.vhost, safe="")), body)

    def policy(self, name: str, queue: str, **definition: object) -> None:
        settings = {key.replace("_", "-"): value for key, value in definition.items()}
        body = {"pattern": f"^{queue}$", "apply-to": "queues", "definition": settings}
        self.api("PUT", f"/policies/{{v}}/{name}", body)

    @contextlib.contextmanager
    def user(self, tags: str = "", **permissions: str) -> Iterator[str]:
        """A user with these permissions and the password `secret`; `None` of them where none are named."""
        name = f"user-{self.at.vhost}"
        self.api("PUT", f"/users/{name}", {"password": "secret", "tags": tags})
        try:
            if permissions:
                self.api(
                    "PUT",
                    f"/permissions/{{v}}/{name}",
                    {"configure": "", "write": "", "read": "", **permissions},
                )
            yield name
        finally:
            self.api("DELETE", f"/users/{name}")

    def url_of(self, user: str) -> str:
        """The broker's URL for another user."""
        parts = urlsplit(self.at.amqp_url)
        return parts._replace(netloc=f"{user}:secret@{parts.netloc.rpartition('@')[2]}").geturl()

    def management_of(self, user: str) -> str:
        parts = urlsplit(self.at.management_url)
        return parts._replace(netloc=f"{user}:secret@{parts.netloc.rpartition('@')[2]}").geturl()

    # --- looking --------------------------------------------------------------------------------------------

    async def found(self, *sources: Source, url: str | None = None, over_amqp: bool = False) -> Found:
        async with linked(parse_url(url or self.at.amqp_url)) as link:
            at = NOWHERE if over_amqp else self.management
            return await look(link, wanted(sources, link.counts), at, guessed=over_amqp)

    async def plan(self, *sources: Source, over_amqp: bool = False) -> Plan:
        found = await self.found(*sources, over_amqp=over_amqp)
        return plan(found, wanted(sources, found.counting))

    async def apply(self, *sources: Source, over_amqp: bool = False) -> list[Applied]:
        steps = await self.plan(*sources, over_amqp=over_amqp)
        async with linked(self.url) as link:
            return [step async for step in apply(link.channel, steps)]

    async def provisioned(self, *sources: Source) -> None:
        """Everything these sources need is there."""
        assert all(step.result == "made" for step in await self.apply(*sources))

    async def diagnosis(self, *sources: Source, url: str | None = None, over_amqp: bool = False) -> Diagnosis:
        return diagnose(await self.found(*sources, url=url, over_amqp=over_amqp), sources)

    async def skip_before(self, *version: int) -> None:
        """Leave the test out where an older RabbitMQ stands for the newest."""
        if (await self.found()).counting.since < version:
            pytest.skip(f"needs RabbitMQ {'.'.join(map(str, version))}")

    async def until_depth(self, queue: str, count: int) -> None:
        """Wait until so many messages are ready in a queue."""
        await asyncio.to_thread(self._until_depth, queue, count)

    def _until_depth(self, queue: str, count: int) -> None:
        ready = -1
        with self.channel() as channel:
            for _ in range(600):
                ready = channel.queue_declare(queue, passive=True).method.message_count
                if ready == count:
                    return
                channel.connection.sleep(0.05)
        raise AssertionError(f"{ready} messages in {queue}, not {count}")

    def furniture(self) -> dict[str, Any]:
        """Everything that was declared, as definitions, to see that nothing has changed."""
        definitions = self.api("GET", "/definitions/{v}")
        return {
            kind: sorted(definitions[kind], key=json.dumps)
            for kind in ("queues", "exchanges", "bindings", "policies")
        }


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def command_line(folder: Path) -> Run:
    """Runs `redrive` in a folder."""

    def run(
        *args: str, env: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> "subprocess.CompletedProcess[str]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        place = {"PYTHONPATH": str(Path(package).resolve().parents[1])}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *args],
            cwd=folder, env={**clean, **place, **(env or {})}, text=True, check=False, timeout=60,
            stdin=stdin, capture_output=True,
        )  # fmt: skip

    return run
