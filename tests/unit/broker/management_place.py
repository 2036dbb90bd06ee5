"""What does a test of the management API get? A broker in this process, a port on loopback, and somebody to ask it."""

import asyncio
import http.client
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from redrive.broker.management import start_management
from redrive.broker.queue import Queue
from redrive.broker.run import BrokerOptions, start
from redrive.broker.server import Server
from redrive.listening import Listening

GUEST = ("guest", "guest")


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Place:
    """A broker and its API."""

    def __init__(self, server: Server, management: Listening, amqp_port: int) -> None:
        self.server = server
        self.broker = server.broker
        self.management = management
        self.amqp_port = amqp_port

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        who: tuple[str, str] | None = GUEST,
        octets: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """What is answered; JSON where it is JSON. A header that is empty is not sent."""
        if body is not None:
            octets = json.dumps(body).encode()
        return await asyncio.to_thread(self._call, method, path, octets, who, headers or {})

    def _call(
        self,
        method: str,
        path: str,
        octets: bytes | None,
        who: tuple[str, str] | None,
        more: dict[str, str],
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.management.port, timeout=30)
        headers = (
            {} if who is None else {"Authorization": f"Basic {b64encode(':'.join(who).encode()).decode()}"}
        )
        if octets is not None:
            headers["Content-Type"] = "application/json"
        headers = {name: value for name, value in {**headers, **more}.items() if value}
        try:
            connection.request(method, path, octets, headers)
            response = connection.getresponse()
            text = response.read().decode()
            found = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        is_json = found.get("content-type") == "application/json"
        return Reply(response.status, json.loads(text) if is_json and text else text, found)

    async def get(self, path: str, **more: Any) -> Any:
        """The body of a GET that has to work."""
        reply = await self.call("GET", path, **more)
        assert reply.status == 200, reply
        return reply.body

    async def do(self, method: str, path: str, body: object = None, **more: Any) -> Reply:
        """A change that has to work."""
        reply = await self.call(method, path, body, **more)
        assert reply.status < 300, reply
        return reply

    def queue(self, name: str, vhost: str = "/") -> Queue:
        return self.broker.vhosts[vhost].queues[name]

    async def publish(self, key: str, payload: str = "hello", **properties: object) -> Any:
        body = {
            "routing_key": key,
            "properties": properties,
            "payload": payload,
            "payload_encoding": "string",
        }
        return (await self.do("POST", "/api/exchanges/%2F/amq.default/publish", body)).body["routed"]

    async def fetch(self, queue: str, mode: str = "ack_requeue_true", count: int = 10, **more: object) -> Any:
        body = {"count": count, "ackmode": mode, "encoding": "auto", **more}
        return (await self.do("POST", f"/api/queues/%2F/{queue}/get", body)).body


@asynccontextmanager
async def place(data: Path | None = None) -> AsyncIterator[Place]:
    """A broker for the time of a test: a new one, or the one that the data directory holds."""
    server = await start(BrokerOptions(data=data))
    port = await server.listen("127.0.0.1", 0)
    management = await start_management(server, "127.0.0.1", 0)
    try:
        yield Place(server, management, port)
    finally:
        await management.close()
        await server.close()
