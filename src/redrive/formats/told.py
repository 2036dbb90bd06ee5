"""What does a dead letter tell of its death, whoever wrote it?

`read` asks everybody who may have written on a message, and gives one value: redrive itself first (`own`), then the
conventions of other systems (`conventions`), then RabbitMQ (`x_death`). Where a system and RabbitMQ both tell, the
error is the system's, which knows it, and the journey is RabbitMQ's, which was there. `stripped` gives the message as
it was before.

The one rule: neither raises, whatever the message. What is not told stays None and nothing is guessed; a header that
cannot be read is named, and stays on the message. This file does not know what becomes of a letter.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from redrive.formats import own, x_death
from redrive.formats.conventions import CONVENTIONS, ERROR_FACTS, Convention, recognised, without_added
from redrive.formats.own import OwnDeath
from redrive.formats.x_death import Death, Journey
from redrive.letters import Kind, Message

__all__ = ["Death", "Told", "read", "stripped"]

REDRIVE = "redrive"
RABBITMQ = "rabbitmq"
_NO_JOURNEY = Journey()


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a dead letter tells. None is what it does not tell."""

    convention: str = "unknown"  # "redrive", "rabbitmq", or the name of a row of `CONVENTIONS`
    # why
    reason: str | None = None
    error_type: str | None = None
    error_text: str | None = None
    stack: str | None = None
    kind: Kind | None = None
    retryable: bool | None = None
    rule: str | None = None
    retry_after: timedelta | None = None
    group: str | None = None  # the failure's fingerprint, by whoever saw the error whole
    # where
    source: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    # how often and when
    retry_count: int | None = None
    delivery_count: int | None = None
    first_failed_at: datetime | None = None
    failed_at: datetime | None = None
    # who
    key: str | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    deaths: tuple[Death, ...] = ()  # the journey, most recent first
    unreadable: tuple[str, ...] = ()  # names of headers that could not be read; never their content


def read(message: Message, dead_letter_queue: str, conventions: Sequence[Convention] = CONVENTIONS) -> Told:
    """What a message that was found in `dead_letter_queue` tells; never raises."""
    headers = dict(message.headers)  # the last one of a name counts
    journey = x_death.read(headers) if x_death.recognises(headers) else _NO_JOURNEY
    if (death := own.read(message.headers)) is not None:
        return _by_redrive(death, journey)
    facts = next(recognised(message, headers, conventions), None)
    if facts is None:
        name = RABBITMQ if x_death.recognises(headers) else Told().convention
        return _with_journey(name, {}, journey, dead_letter_queue)
    values = facts.values
    if "source" not in values and (source := facts.convention.source_of(dead_letter_queue)) is not None:
        values = {**values, "source": source}
    told = _with_journey(facts.convention.name, values, journey, dead_letter_queue)
    return msgspec.structs.replace(told, unreadable=(*facts.unreadable, *journey.unreadable))


def stripped(message: Message, conventions: Sequence[Convention] = CONVENTIONS) -> Message:
    """The message as it was before its death: without what redrive, RabbitMQ and other systems added to it.

    Of what was taken away, the time to live comes back. `redrive-id` and its like stay, and so does `x-replayed`:
    they are how the next death is known (E5).
    """
    names = dict(message.headers)
    adding = [convention for convention in conventions if convention.adds]
    headers = without_added(own.strip(message.headers), list(recognised(message, names, adding)))
    properties = message.properties
    if x_death.recognises(names):
        journey = x_death.read(names)
        headers = headers.without(*x_death.NAMES.difference(journey.unreadable))
        if journey.expiration is not None and "expiration" not in properties.names():
            properties = properties.with_({"expiration": journey.expiration})
    if len(headers) == len(message.headers) and properties is message.properties:
        return message
    return msgspec.structs.replace(message, headers=headers, properties=properties)


def _by_redrive(death: OwnDeath, journey: Journey) -> Told:
    """Of its own deaths redrive tells everything itself; the journey is for show."""
    return Told(
        convention=REDRIVE,
        reason=death.reason,
        error_type=death.error_type,
        error_text=death.text,
        stack=death.stack,
        kind=death.kind,
        retryable=death.retryable,
        rule=death.rule,
        retry_after=death.retry_after,
        group=death.group,
        source=death.source,
        exchange=death.exchange,
        routing_key=death.routing_key,
        retry_count=death.retry_count,
        delivery_count=death.delivery_count,
        first_failed_at=death.first_failed_at,
        failed_at=death.failed_at,
        key=death.key,
        correlation_id=death.correlation_id,
        deaths=journey.deaths,
        unreadable=(*death.unreadable, *journey.unreadable),
    )


def _with_journey(name: str, values: dict[str, Any], journey: Journey, dead_letter_queue: str) -> Told:
    """What a system tells, and beside it what RabbitMQ tells of the same death."""
    told = Told(convention=name, deaths=journey.deaths, unreadable=journey.unreadable, **values)
    # A system that names the queue is right about it: RabbitMQ may have seen the message in queues where it only
    # waited for its next try, such as those of NServiceBus.
    death = (
        journey.last(apart_from=dead_letter_queue) if told.source is None else journey.last_in(told.source)
    )
    if death is None or death.queue is None:
        return told
    journeyed: dict[str, Any] = {
        "source": death.queue,
        "exchange": told.exchange if death.exchange is None else death.exchange,
        "routing_key": death.routing_keys[0] if death.routing_keys else told.routing_key,
        "first_failed_at": told.first_failed_at or journey.began(death.queue),
        "failed_at": _later(told.failed_at, death.last_at),
        "retry_count": journey.rejections(death.queue) if told.retry_count is None else told.retry_count,
    }
    if values.keys().isdisjoint(ERROR_FACTS):
        journeyed |= {"reason": death.reason, "kind": x_death.KINDS.get(death.reason or "")}
    return msgspec.structs.replace(told, **journeyed)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The last failure is as late as anybody tells: Dramatiq, for one, tells of the try before."""
    known = [at for at in (one, other) if at is not None]
    return max(known, default=None)
