"""How does a message travel through a queue of ours and come out as it was?

A copy that we publish must not expire, must not be refused for its user id, must reach nobody a second time and must
outlive the broker; and it has to remember how often it was delivered. So `seal` moves what would hurt into headers
`redrive-original-…` and adds what we have to know, and `unseal` undoes all of it. The rule: `unseal(seal(x))` is x,
whatever the broker added in between; every property that is not named here keeps its octets.

It works on raw properties (`amqp.properties`) and decodes nothing but the headers.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from redrive.amqp.errors import AmqpError
from redrive.amqp.properties import add_headers, decode_fields, read_field, read_headers, replace_fields
from redrive.transports.rabbitmq.delivery_counts import ACQUIRED_COUNT, DELIVERY_COUNT
from redrive.transports.rabbitmq.names import STEPS, delay_queue

OURS: Final = "redrive-"
DELIVERIES: Final = "redrive-deliveries"  # the number of the delivery that follows
NOT_BEFORE: Final = "redrive-not-before"  # milliseconds since 1970
_ORIGINAL: Final = "redrive-original-"
_SOURCE: Final = _ORIGINAL + "source"
_EXCHANGE: Final = _ORIGINAL + "exchange"
_ROUTING_KEY: Final = _ORIGINAL + "routing-key"
_ROUTE_QUEUE: Final = _ORIGINAL + "route-queue"  # the queue that this route led to, if it is not `_SOURCE`
_EXPIRATION: Final = _ORIGINAL + "expiration"
_USER_ID: Final = _ORIGINAL + "user-id"
_MODE: Final = _ORIGINAL + "delivery-mode"
_ORDER: Final = _ORIGINAL + "order"
# The broker sends a copy to every key that stands here, so they must not stand there a second time.
_CARBON_COPIES: Final = {"CC": _ORIGINAL + "cc", "BCC": _ORIGINAL + "bcc"}
_COPY_MARKS: Final = tuple(
    bytes([len(name)]) + name.encode() for name in _CARBON_COPIES
)  # as the wire has them
# A broker replaces or merges what it finds under these names when a message dies, and waiting is a death.
_DEATHS: Final = (
    "x-death",
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("queue", "reason", "exchange")),
)
DEATH: Final = b"\x07x-death"  # the name of the header as the wire has it
_COUNTS: Final = (DELIVERY_COUNT, ACQUIRED_COUNT)
_PERSISTENT: Final = 2
# Without any of these, nothing was added that `unseal` takes out. What redrive tells of a death (`redrive-reason` and
# so on) is no seal: a dead letter as such is not opened and packed again for nothing.
_TRACES: Final = frozenset(
    {
        *(DELIVERIES, NOT_BEFORE, *_COUNTS),
        *(_SOURCE, _EXCHANGE, _ROUTING_KEY, _ROUTE_QUEUE, _EXPIRATION, _USER_ID, _MODE, _ORDER),
        *_CARBON_COPIES.values(),
        *(_ORIGINAL + name for name in _DEATHS),
    }
)
_OURS, _COUNTED = OURS.encode(), b"-count"  # each trace has one of these, and most messages have neither


class Unsealed(NamedTuple):
    """What a delivery is made of, once everything that was added on the way is taken out."""

    properties: bytes
    exchange: str | None = None  # None: the one it was delivered with
    routing_key: str | None = None
    deliveries: int = 1  # what this delivery would be if the broker had not counted any further
    broker_count: int | None = (
        None  # deliveries that failed, by the headers of a quorum queue; None: no such header
    )
    not_before: int | None = None
    fields: dict[str, Any] | None = None  # of `properties`, where they had to be read
    route_queue: str | None = None  # the queue that the remembered route led to; None: not known
    is_marked: bool = False  # a copy of ours, made for this queue
    has_died: bool = (
        False  # since it was marked, the broker dead-lettered it, other than in a delay queue of ours
    )
    acquired: int | None = None  # how often the queue handed it out before, from RabbitMQ 4.3 on
    limited_count: int = 0  # what a delivery limit is compared with, failures in other queues included

    def route(self, exchange: str, routing_key: str) -> tuple[str, str]:
        """The route its producer used, if this is the one it was delivered with."""
        return (
            exchange if self.exchange is None else self.exchange,
            routing_key if self.routing_key is None else self.routing_key,
        )


def seal(
    properties: bytes,
    user: str,
    *,
    marks: Mapping[str, object] | None = None,
    back_to: str | None = None,
    route: tuple[str, str] | None = None,
    route_queue: str | None = None,
    waits: bool = False,
) -> bytes:
    """The raw properties for a copy that `user` publishes, with `marks` among the headers.

    `back_to` is the queue that the marks are meant for: in another one, where the message may end as a dead letter,
    they count for nothing. `route` is the exchange and routing key to remember, `route_queue` the queue to which it
    led, if that is not `back_to`; `waits`: the copy will die in a delay queue on its way.
    """
    before = read_headers(properties)
    headers = {_CARBON_COPIES.get(name, name): value for name, value in before.items() if name not in _COUNTS}
    if waits or back_to is not None:
        headers = {_ORIGINAL + name if name in _DEATHS else name: value for name, value in headers.items()}
    if waits and sorted(before) != list(before):
        headers[_ORDER] = list(before)  # brokers sort the headers of the dead
    if back_to is not None:
        headers[_SOURCE] = back_to
    if route is not None:
        headers[_EXCHANGE], headers[_ROUTING_KEY] = route
        if route_queue not in (None, back_to):
            headers[_ROUTE_QUEUE] = route_queue
    if (expiration := read_field(properties, "expiration")) is not None:
        headers[_EXPIRATION] = expiration
    drops = ["expiration"]
    owner = read_field(properties, "user_id")
    if owner is not None and owner != user:
        headers[_USER_ID] = owner
        drops.append("user_id")
    mode = _persist(properties, headers)
    headers.update(marks or {})
    return replace_fields(properties, tuple(drops), headers=headers or None, delivery_mode=mode)  # type: ignore[arg-type]  # names of fields


def seal_with(properties: bytes, user: str, marks: bytes) -> bytes | None:
    """The same as `seal` with nothing but these marks, a table without its length, at the least cost.

    None where more than that has to be done. Most messages need no more: then the headers they have are looked at,
    but they are not written anew. All marks have names of ours.
    """
    if (
        read_field(properties, "delivery_mode") != _PERSISTENT
        or read_field(properties, "expiration") is not None
    ):
        return None
    owner = read_field(properties, "user_id")
    if owner is not None and owner != user:
        return None
    for name in read_headers(properties):
        if name.startswith(OURS) or name in _CARBON_COPIES or name in _COUNTS:
            return None
    return add_headers(properties, marks)


def seal_publication(properties: bytes, user: str, *, to_one: bool = False) -> bytes:
    """The raw properties of a new message: durable, and with no user id that the broker would refuse.

    `to_one`: it goes to one queue, whoever else its producer once sent a copy to.
    """
    owner = read_field(properties, "user_id")
    is_foreign = owner is not None and owner != user
    has_copies = to_one and any(mark in properties for mark in _COPY_MARKS)
    if not is_foreign and not has_copies and read_field(properties, "delivery_mode") == _PERSISTENT:
        return properties
    headers = read_headers(properties)
    if has_copies:
        headers = {_CARBON_COPIES.get(name, name): value for name, value in headers.items()}
    if is_foreign:
        headers[_USER_ID] = owner
    mode = _persist(properties, headers)
    drops = ("user_id",) if is_foreign else ()
    return replace_fields(properties, drops, headers=headers or None, delivery_mode=mode)  # type: ignore[arg-type]


def _persist(properties: bytes, headers: dict[str, object]) -> int:
    mode = read_field(properties, "delivery_mode")
    if mode != _PERSISTENT:
        headers[_MODE] = mode
    return _PERSISTENT


def unseal(properties: bytes, source: str) -> Unsealed:
    """What came out of the queue `source`, as it was before we, or the broker on our behalf, touched it.

    What cannot be read is left as it is: it was not sealed by us, and nobody is to stumble over it.
    """
    if _OURS not in properties and _COUNTED not in properties:
        return Unsealed(properties)
    try:
        fields = decode_fields(properties)
        headers = fields.get("headers")
        if headers is None or _TRACES.isdisjoint(headers):
            return Unsealed(properties, fields=fields)
        return _unseal(properties, headers, source)
    except AmqpError:
        return Unsealed(properties)


def _unseal(properties: bytes, headers: dict[str, object], source: str) -> Unsealed:
    failed, acquired = headers.pop(DELIVERY_COUNT, None), headers.pop(ACQUIRED_COUNT, None)
    deliveries, not_before = headers.pop(DELIVERIES, None), headers.pop(NOT_BEFORE, None)
    sealed_for = headers.pop(_SOURCE, None)
    if sealed_for not in (None, source):
        deliveries = not_before = None
    exchange, key = headers.pop(_EXCHANGE, None), headers.pop(_ROUTING_KEY, None)
    route_queue = headers.pop(_ROUTE_QUEUE, sealed_for)
    changes: dict[str, object] = {}
    for field, name in (("expiration", _EXPIRATION), ("user_id", _USER_ID)):
        if isinstance(text := headers.pop(name, None), str):
            changes[field] = text
    if _MODE in headers:
        mode = headers.pop(_MODE)
        changes["delivery_mode"] = mode if isinstance(mode, int) and 0 <= mode <= 255 else None
    _forget_waiting(headers, source)
    is_marked = isinstance(deliveries, int)
    has_died = is_marked and "x-death" in headers  # a copy has none when it is made
    if has_died:
        deliveries = None  # it was given up, and begins anew
    _merge_deaths(headers)
    names = {sealed: name for name, sealed in _CARBON_COPIES.items()} | {
        _ORIGINAL + name: name for name in _DEATHS
    }
    headers = {names.get(name, name): value for name, value in headers.items()}
    order = headers.pop(_ORDER, None)
    if isinstance(order, list):
        places = {name: place for place, name in enumerate(order)}
        headers = dict(sorted(headers.items(), key=lambda pair: places.get(pair[0], len(places))))
    return Unsealed(
        replace_fields(properties, (), headers=headers or None, **changes),
        exchange if isinstance(exchange, str) else None,
        key if isinstance(key, str) else None,
        max(1, deliveries) if isinstance(deliveries, int) else 1,
        _failures(failed, acquired),
        not_before if isinstance(not_before, int) else None,
        route_queue=route_queue if isinstance(route_queue, str) else None,
        is_marked=is_marked,
        has_died=has_died,
        acquired=acquired if isinstance(acquired, int) else None,
        limited_count=max(0, failed) if isinstance(failed, int) else 0,
    )


def _failures(failed: object, acquired: object) -> int | None:
    """How many deliveries from this queue have failed; never more than there were."""
    if failed is None and acquired is None:
        return None
    count = max(0, failed) if isinstance(failed, int) else 0
    return min(count, max(0, acquired)) if isinstance(acquired, int) else count


def _forget_waiting(headers: dict[str, object], source: str) -> None:
    """Take out what the broker wrote when the message died in a delay queue of its source."""
    waiting = _delay_queues(source)
    deaths = headers.get("x-death")
    if isinstance(deaths, list):
        others = [death for death in deaths if not _died_waiting(death, waiting)]
        if others:
            headers["x-death"] = others
        else:
            del headers["x-death"]
    for which in ("first", "last"):
        if headers.get(f"x-{which}-death-queue") in waiting:
            for what in ("queue", "reason", "exchange"):
                headers.pop(f"x-{which}-death-{what}", None)


def _merge_deaths(headers: dict[str, object]) -> None:
    """Put what a copy remembers of earlier deaths together with what the broker wrote since, as the broker does."""
    for name in _DEATHS:
        if name in headers and (kept := _ORIGINAL + name) in headers:
            newer = headers.pop(name)
            if name == "x-death":
                headers[kept] = _merged(newer, headers[kept])
            elif name.startswith("x-last"):
                headers[kept] = newer


def _merged(newer: object, older: object) -> object:
    if not isinstance(newer, list) or not isinstance(older, list):
        return newer if isinstance(newer, list) else older
    deaths: dict[object, Any] = {}
    for death in (*newer, *older):
        key: object = (death.get("queue"), death.get("reason")) if isinstance(death, dict) else id(death)
        first = deaths.get(key)
        if first is None:
            deaths[key] = death
        else:  # entries keep what they said first, and are counted
            counts = [each.get("count") for each in (first, death)]
            deaths[key] = {**death, "count": sum(count for count in counts if isinstance(count, int))}
    return list(deaths.values())


def _died_waiting(death: object, waiting: frozenset[object]) -> bool:
    return isinstance(death, dict) and cast("dict[str, object]", death).get("queue") in waiting


@lru_cache(maxsize=1024)
def _delay_queues(source: str) -> frozenset[object]:
    return frozenset(delay_queue(source, step) for step in STEPS)
