"""Publish messages from a script, without an app: `await redrive.publish("orders", {"id": 1})`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from redrive.letters import Headers, HeaderValue, Message
from redrive.letters.redrive import for_handlers
from redrive.settings import load
from redrive.transports import Publication, Target, configured_url, kind_of, open_transport

_BATCH_SIZE: Final = 500
_JSON: Final = "application/json"


async def publish(
    target: str,
    body: Any,
    *,
    broker: str | None = None,
    headers: Mapping[str, HeaderValue] | None = None,
) -> None:
    """Publish one message to a queue or topic; return when the broker has confirmed it.

    `body`: bytes are sent as they are, a string is sent as UTF-8, anything else as JSON. `broker` is a URL; default:
    the broker of the settings, or the broker on this machine. Each call opens a connection: to publish many messages
    from a running app, use `App.publish`. Raises `TransportError` if the message was not confirmed.
    """
    url = broker or configured_url(load(None, os.environ))
    await publish_all(url, Target(name=target), [make_message(body, headers)])


def make_message(body: Any, headers: Mapping[str, HeaderValue] | None = None) -> Message:
    """A message with this body, as `publish` describes it."""
    content_type = None
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body, content_type = msgspec.json.encode(body), _JSON
    return Message(body=body, headers=for_handlers(Headers(dict(headers or {}))), content_type=content_type)


async def publish_all(url: str, target: Target, messages: Sequence[Message]) -> None:
    """Publish messages over one connection; the first error of a message is raised."""
    if kind_of(url) == "rabbitmq":  # else the transport sends it as persistent and notes that it was not
        persistent = Headers({"delivery_mode": 2})
        messages = [msgspec.structs.replace(message, properties=persistent) for message in messages]
    async with open_transport(url) as transport:
        for start in range(0, len(messages), _BATCH_SIZE):
            batch = [Publication(message, target) for message in messages[start : start + _BATCH_SIZE]]
            for error in await transport.publish(batch):
                if error is not None:
                    raise error
