"""How does a publish find its queues without asking twice?

Producers repeat themselves. A `Route` is everything that follows from the octets of a `basic.publish`: the exchange,
the key, who is reached, whether it is allowed at all. Its virtual host remembers it until something changes there. A
`HeaderFacts` is everything that follows from the octets of a content header. Both are found by identity or by one
look into a dictionary; what a message needs beyond them is the exception and takes the slow way, which is here too.
"""

from typing import TYPE_CHECKING, Final

from redrive.amqp.errors import HardError, ReplyCode
from redrive.amqp.hot import parse_publish, route_of
from redrive.amqp.properties import (
    check_properties,
    is_persistent,
    read_expiration,
    read_field,
    read_headers,
)
from redrive.broker.arguments import check_user_id, parse_expiration, routing_headers
from redrive.broker.header_table import sort_headers, without_header
from redrive.broker.message import PROPERTIES_AT, priority_of
from redrive.broker.vhost import REPLY_TO

if TYPE_CHECKING:
    from redrive.broker.queue import Queue
    from redrive.broker.session import Session
    from redrive.broker.vhost import VHost

BASIC_PUBLISH: Final = (60, 40)


class Route:
    """What follows from the octets of a `basic.publish`, for whoever may publish there."""

    __slots__ = ("exchange", "fixed", "is_internal", "keys", "mandatory", "queues", "route")

    def __init__(self, vhost: "VHost", payload: bytes) -> None:
        exchange, key, mandatory, immediate = parse_publish(payload)
        if immediate:
            raise HardError(ReplyCode.NOT_IMPLEMENTED, "immediate=true", *BASIC_PUBLISH)
        self.exchange = exchange
        self.keys = (key,)
        self.mandatory = mandatory
        self.route = route_of(payload)
        self.is_internal = bool(exchange) and vhost.exchange(exchange).internal
        asked: list[bool] = []

        def headers() -> dict[str, object]:
            asked.append(True)
            return {}

        self.queues: list[Queue] = vhost.targets(exchange, self.keys, headers)
        # A fixed route holds for every message; on the way of a headers exchange each one is asked for itself.
        self.fixed = not asked


class HeaderFacts:
    """What follows from the octets of a content header."""

    __slots__ = (
        "blind_keys",
        "carbon_keys",
        "expiration",
        "header",
        "meta",
        "persistent",
        "plain",
        "priority",
        "reply_to",
    )

    def __init__(self, session: "Session", header: bytes) -> None:
        raw = header[PROPERTIES_AT:]
        check_properties(raw)
        ordered = sort_headers(raw)
        if ordered is not raw:
            raw = ordered
            header = header[:PROPERTIES_AT] + raw
        self.header = header
        self.meta = len(raw)
        self.persistent = is_persistent(raw)
        self.priority = priority_of(raw)
        written = read_expiration(raw)
        life = None if written is None else parse_expiration(written)
        if life is not None and not session.broker.features.ttl:
            session.broker.warn_once("the expiration of messages is ignored: enable_ttl is off")
            life = None
        self.expiration = life
        user = read_field(raw, "user_id")
        if user is not None:
            check_user_id(str(user), session.user, session.tags)
        self.carbon_keys: tuple[str, ...] = ()
        self.blind_keys: tuple[str, ...] = ()
        if b"CC" in raw:
            headers = read_headers(raw)
            self.carbon_keys, self.blind_keys = routing_headers(headers)
            if "BCC" in headers:  # consumers never see the keys of blind copies
                raw = without_header(raw, b"BCC")
                self.header = header[:PROPERTIES_AT] + raw
        self.reply_to = REPLY_TO.encode() in raw and read_field(raw, "reply_to") == REPLY_TO
        self.plain = not (self.carbon_keys or self.blind_keys or self.reply_to)
