"""Which copies does a delivery leave when it is released or given up?

Pure: deliveries in, `Outgoing` out. A copy of a released message goes back to its own queue, straight or by way of a
delay queue, with its count; a dead letter goes to the source's dead-letter exchange with everything there is to tell.
The rule: nothing that we add may be why a message cannot be kept; what does not fit is shortened, then left out.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from redrive.amqp.errors import FrameSyntaxError
from redrive.amqp.table import encode_bare_table, encode_table
from redrive.errors import FormatError
from redrive.formats import own
from redrive.letters import DeadLetter
from redrive.letters.letter import EPOCH
from redrive.transports.base import Source
from redrive.transports.rabbitmq.delivery import RabbitDelivery
from redrive.transports.rabbitmq.envelope import DELIVERIES, NOT_BEFORE, Unsealed, seal, seal_with
from redrive.transports.rabbitmq.message import to_properties
from redrive.transports.rabbitmq.names import delay_queue, step_for
from redrive.transports.rabbitmq.publisher import Outgoing

MILLISECOND: Final = timedelta(milliseconds=1)
# Where there is hardly any room: of a text the beginning, of a stack the end tells most.
_SHORTENED: Final = {"redrive-description": slice(0, 512), "redrive-stack": slice(-512, None)}
# What a dead letter has to tell, whatever else does not fit.
_KEPT_LONGEST: Final = (
    "redrive-reason", "redrive-source", "redrive-transport", "redrive-failed-at", "redrive-error-type",
    "redrive-key", "redrive-correlation-id", "redrive-origin-exchange", "redrive-origin-routing-key",
)  # fmt: skip


def milliseconds(at: datetime) -> int:
    """Since 1970, rounded up: a message never comes early for a fraction."""
    return -((EPOCH - at) // MILLISECOND)


def copy_of(
    delivery: RabbitDelivery, user: str, *, deliveries: int, not_before: int | None = None, now: datetime
) -> Outgoing:
    """The copy by which a message comes again, as delivery number `deliveries`, not before a time."""
    source = delivery.subscription.source.name
    wait = timedelta(0) if not_before is None else not_before * MILLISECOND - (now - EPOCH)
    if wait > timedelta(0):
        marks = {DELIVERIES: deliveries, NOT_BEFORE: not_before}
        properties = seal(
            delivery.unsealed.properties,
            user,
            marks=marks,
            back_to=source,
            route=delivery.route,
            route_queue=delivery.unsealed.route_queue,
            waits=True,
        )
        return Outgoing("", delay_queue(source, step_for(wait)), properties, delivery.body)
    return again(source, delivery.unsealed, delivery.route, delivery.body, user, deliveries)


def again(
    source: str, unsealed: Unsealed, route: tuple[str, str], body: bytes, user: str, deliveries: int
) -> Outgoing:
    """The copy by which a message comes again at once."""
    properties = seal(
        unsealed.properties,
        user,
        marks={DELIVERIES: deliveries},
        back_to=source,
        route=route,
        route_queue=unsealed.route_queue,
    )
    return Outgoing("", source, properties, body)


def dead_letter_of(
    delivery: RabbitDelivery, letter: DeadLetter, source: Source, user: str, room: int
) -> Outgoing:
    """The dead letter of a delivery; `room` is how many octets its properties may have."""
    properties = delivery.unsealed.properties
    if letter.message is not delivery.message:
        with suppress(FormatError):  # what AMQP has carried before is better than nothing
            properties = to_properties(letter.message)
    told = own.tell(letter, delivery.delivery_count)
    key = (
        letter.origin.routing_key
        if source.dead_letter_routing_key is None
        else source.dead_letter_routing_key
    )
    return Outgoing(
        source.dlx,
        delivery.route[1] if key is None else key,
        _sealed_to_fit(properties, user, told, room),
        delivery.body if letter.message.body is None else letter.message.body,
    )


def _sealed_to_fit(properties: bytes, user: str, told: own.Told, room: int) -> bytes:
    try:
        marks = _kept_octets(told.shared) + _octets(told.single)
        sealed = seal_with(properties, user, marks) or seal(properties, user, marks=dict(told.pairs))
        if len(sealed) > room:
            short = _shortened(dict(told.pairs), room - len(seal(properties, user)))
            sealed = seal(properties, user, marks=short)
    except FrameSyntaxError:
        return properties  # to headers that nobody can read, nothing can be added
    return sealed if len(sealed) <= room else properties


def _octets(pairs: tuple[own.Pair, ...]) -> bytes:
    return encode_bare_table(dict(pairs))


_kept_octets: Final = lru_cache(128)(_octets)  # letters of one cause share most of what they tell


def _shortened(told: Mapping[str, object], room: int) -> dict[str, object]:
    """As much of what is told as fits: long texts are cut, then less important things are left out."""
    short = {
        name: value[_SHORTENED[name]] if name in _SHORTENED and isinstance(value, str) else value
        for name, value in told.items()
    }
    ranked: list[str] = [name for name in _KEPT_LONGEST if name in short]
    ranked += [name for name in short if name not in ranked]
    kept: dict[str, object] = {}
    for name in ranked:
        if len(encode_table({**kept, name: short[name]})) <= room:
            kept[name] = short[name]
    return kept
