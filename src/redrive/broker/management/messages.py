"""How is a message published or looked at over HTTP?

A get fetches all its messages first, then settles them: given back, acknowledged, or rejected, which dead-letters
them. Answers are made before anything is settled, so that what cannot be shown is not lost.
"""

import binascii
from base64 import b64decode, b64encode
from typing import Any, Final

from redrive.amqp.errors import AmqpError
from redrive.amqp.frames import content_header
from redrive.amqp.hot import publish_payload
from redrive.amqp.properties import FIELDS, BasicProperties, decode_properties, encode_properties
from redrive.broker.arguments import check_message_size
from redrive.broker.channel import Channel, Verdict
from redrive.broker.consumer import header_of
from redrive.broker.management.acting import acting, of_get, of_publish
from redrive.broker.management.answers import Answer, Json, bad_request, not_found
from redrive.broker.management.ask import Ask, integer, text
from redrive.broker.management.objects import check_name, exchange_name
from redrive.broker.management.tables import shown, shown_text, table
from redrive.broker.message import PROPERTIES_AT, Entry
from redrive.broker.queue import Queue

_MANDATORY: Final = 1
_NUMBERS: Final = frozenset({"delivery_mode", "priority", "timestamp"})
# What becomes of the messages; None: they are gone as soon as they are fetched.
_VERDICTS: Final[dict[str, Verdict | None]] = {
    "ack_requeue_true": "requeue",
    "ack_requeue_false": None,
    "reject_requeue_true": "fail",
    "reject_requeue_false": "reject",
}


# --- publishing ----------------------------------------------------------------------------------------------


def publish(ask: Ask) -> Answer:
    """Publish a message; tells whether a queue was reached."""
    vhost = ask.vhost()
    body = ask.json("routing_key", "properties", "payload", "payload_encoding")
    properties = _properties(body["properties"])
    octets = _payload(body)
    exchange = check_name("exchange", exchange_name(ask.name))
    if exchange and exchange not in vhost.exchanges:
        raise not_found("exchange_not_found")
    key = check_name("routing_key", text(body, "routing_key"))
    with acting(ask, vhost, of_publish) as channel:
        check_message_size(len(octets), ask.broker.max_message_size)
        channel.confirms = True
        method = publish_payload(exchange.encode(), key.encode(), _MANDATORY)
        channel.publish(method, content_header(encode_properties(properties), len(octets)), octets)
        accepted = channel.unconfirmed[-1][2]
        returned = bool(channel.session.outbox)  # the only thing that is said here is that there was no route
    if not accepted:
        raise bad_request("rejected Unable to publish message. Check queue limits.")
    return Answer(body={"routed": not returned})


def _properties(value: Any) -> BasicProperties:
    if not isinstance(value, dict) and value != []:
        raise bad_request("properties should be an object")
    given = dict(value)
    fields: dict[str, Any] = {}
    for name in (field.name for field in FIELDS if field.name in given):
        field = given[name]
        if name == "headers":
            fields[name] = table(field, "headers")
        elif name in _NUMBERS:
            if not isinstance(field, int) or isinstance(field, bool):
                raise bad_request(["not_int", name])
            fields[name] = field
        elif not isinstance(field, str):
            raise bad_request(["not_string", name])
        else:
            fields[name] = field
    return BasicProperties(**fields)


def _payload(body: dict[str, Any]) -> bytes:
    payload, encoding = body["payload"], body["payload_encoding"]
    if not isinstance(payload, str):
        raise bad_request("payload_not_string")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise bad_request(["unsupported_encoding", encoding])
    try:
        return b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(["not_base64", payload]) from None


# --- looking -------------------------------------------------------------------------------------------------


def get(ask: Ask) -> Answer:
    """Fetch messages, and do with them what `ackmode` says."""
    vhost = ask.vhost()
    body = ask.json("count", "ackmode", "encoding")
    count, encoding, mode = integer(body["count"]), body["encoding"], body["ackmode"]
    longest = integer(body["truncate"]) if "truncate" in body else None
    if encoding not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    if not isinstance(mode, str) or mode not in _VERDICTS:
        raise bad_request(["unsupported_ackmode", mode])
    if ask.name not in vhost.queues:
        raise not_found("queue_not_found")
    with acting(ask, vhost, of_get) as channel:
        session = channel.session
        session.check("read", "queue", ask.name)
        queue = session.queue(ask.name)
        queue.idle_since = ask.now
        views: list[Json] = []
        while len(views) < count and (entry := _take(channel, queue, ask.now)) is not None:
            views.append(_view(ask, queue, entry, encoding, longest))
        tags = list(channel.unacked)
        verdict = _VERDICTS[mode]
        if verdict is None:
            queue.stats.got_no_ack += len(tags)
            for tag in tags:
                entry, *_ = channel.unacked.pop(tag)
                queue.unacked -= 1
                queue.unacked_bytes -= queue.size_of(entry.message)
                queue.ground.forget(queue, entry)
        else:
            channel.settle_all(tags, verdict)
    return Answer(body=views)


def _take(channel: Channel, queue: Queue, now: int) -> Entry | None:
    """The next message, unsettled until the request is over."""
    entry = queue.take(now)
    if entry is None:
        queue.stats.got_nothing += 1
        return None
    channel.add_unacked(entry, queue, now)
    queue.stats.got += 1
    queue.stats.redelivered += entry.redelivered
    return entry


def _view(ask: Ask, queue: Queue, entry: Entry, encoding: str, longest: int | None) -> Json:
    message = entry.message
    ask.broker.load(message)
    header = header_of(queue, entry)
    octets = message.body or b""
    part = octets if longest is None else octets[: max(longest, 0)]
    payload, used = _encoded(part, encoding)
    return {
        "payload_bytes": message.size,
        "redelivered": entry.redelivered,
        "exchange": shown_text(message.exchange),
        "routing_key": shown_text(message.keys[0]),
        "message_count": queue.ready,
        "properties": _shown_properties(header[PROPERTIES_AT:]),
        "payload": payload,
        "payload_encoding": used,
    }


def _encoded(octets: bytes, encoding: str) -> tuple[str, str]:
    """The octets as text where they are text, unless base64 is wanted."""
    if encoding == "auto":
        try:
            return octets.decode(), "string"
        except UnicodeDecodeError:
            pass
    return b64encode(octets).decode(), "base64"


def _shown_properties(raw: bytes) -> object:
    """The properties that are set; none of them is an empty list, as in RabbitMQ."""
    try:
        properties = decode_properties(raw)
    except AmqpError:
        return []
    values = {field.name: getattr(properties, field.name) for field in FIELDS}
    return {name: shown(value) for name, value in values.items() if value is not None} or []
