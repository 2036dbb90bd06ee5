"""What does a dead letter tell, whoever wrote it, and what was the message before?

`read` asks everybody who may have written on a message, and gives one value: redrive itself first (`own`), then the
conventions of other systems (`conventions`), then RabbitMQ (`x_death`). Where a system and RabbitMQ both tell, the
error is the system's, which knows it, and the journey is RabbitMQ's, which was there. A record that holds the message
within (`onex`) is opened only where nobody has marked the record itself: else it is the record that died. `stripped`
gives the message as it was before; `opened` gives both at once.

The one rule: none of them raises, whatever the message. What is not told stays None and nothing is guessed; a header
that cannot be read is named, and stays on the message. This file does not know what becomes of a letter.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from redrive.formats import onex, own, shovel, x_death
from redrive.formats.conventions import BUILT_IN, ERROR_FACTS, Facts, Table, recognised, without_added
from redrive.formats.onex import OnexRead
from redrive.formats.own import OwnDeath
from redrive.formats.x_death import Death, Journey
from redrive.letters import FailureKind, HeaderValue, Message, SystemState

__all__ = ["Death", "Opened", "Told", "opened", "read", "stripped"]

REDRIVE = "redrive"
RABBITMQ = "rabbitmq"
ONEX = "onex"
SHOVEL = "shovel"
UNKNOWN = "unknown"
_NO_JOURNEY = Journey()


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a dead letter tells. None is what it does not tell."""

    # "redrive", "rabbitmq", "onex", "shovel", or the name of a row (`formats.systems`, or one's own)
    convention: str = UNKNOWN
    # why
    reason: str | None = None
    error_type: str | None = None
    error_text: str | None = None
    stack: str | None = None
    kind: FailureKind | None = None
    retryable: bool | None = None
    rule: str | None = None
    retry_after: timedelta | None = None
    group: str | None = None  # the failure's fingerprint, by whoever saw the error whole
    redacted: str | None = None  # by which rules its texts were cleaned before they were written
    # where
    source: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    partition: int | None = None
    offset: int | None = None
    consumer_group: str | None = None
    # how often and when
    retry_count: int | None = None
    delivery_count: int | None = None
    first_failed_at: datetime | None = None
    failed_at: datetime | None = None
    sent_at: datetime | None = None  # the message itself, the first time
    # who
    key: str | None = None
    is_exact: bool = False  # the key names this one death: no other death has it
    correlation_id: str | None = None
    message_id: str | None = None
    system_state: SystemState | None = None
    # how the letter is to be treated, by the handler that gave the message up
    tags: str | None = None  # separated by commas
    priority: int | None = None
    deaths: tuple[Death, ...] = ()  # the journey, most recent first
    unreadable: tuple[str, ...] = ()  # names of headers that could not be read; never their content


_NOTHING = Told()


class Opened(NamedTuple):
    """A dead letter, taken apart."""

    told: Told
    message: Message  # as it was before its death


def read(message: Message, dead_letter_queue: str, table: Table = BUILT_IN) -> Told:
    """What a message that was found in `dead_letter_queue` tells; never raises."""
    return _told(_marks(message, table), dead_letter_queue)


def stripped(message: Message, table: Table = BUILT_IN) -> Message:
    """The message as it was before its death: without what redrive, RabbitMQ and other systems added to it.

    Of what was taken away, the time to live comes back, and so does the time at which it was sent, where somebody
    tells it. `redrive-id` and its like stay, and so does `x-replayed`: they are how the next death is known.
    """
    return _stripped(message, _marks(message, table))


def opened(message: Message, dead_letter_queue: str, table: Table = BUILT_IN) -> Opened:
    """What the message tells and what it was, at the cost of one look."""
    marks = _marks(message, table)
    return Opened(_told(marks, dead_letter_queue), _stripped(message, marks))


# --- who has written on it ----------------------------------------------------------------------------------


class _Marks(NamedTuple):
    """What everybody has written on a message."""

    headers: Mapping[str, HeaderValue]
    own: OwnDeath | None
    found: list[Facts]
    journeyed: bool
    journey: Journey
    onex: OnexRead | None


def _marks(message: Message, table: Table) -> _Marks:
    headers = message.headers.by_name
    journeyed = x_death.recognises(headers)
    journey = x_death.read(headers) if journeyed else _NO_JOURNEY
    death = own.read(message.headers)
    # What redrive has written on is no record with a body of somebody else's making.
    found = list(recognised(message, headers, table, in_bodies=death is None))
    within = None
    if not (death or found or journeyed) and onex.recognises(message.body, message.headers):
        within = onex.read(message.body, message.headers)
        if within.topic is None:  # words that look alike, and no dead letter of ONEX
            within = None
    return _Marks(headers, death, found, journeyed, journey, within)


# --- what it tells ------------------------------------------------------------------------------------------


def _told(marks: _Marks, dead_letter_queue: str) -> Told:
    if marks.own is not None:
        return _by_redrive(marks.own, marks.journey)
    if marks.onex is not None:
        return _by_onex(marks.onex, dead_letter_queue)
    if marks.found:
        facts = marks.found[0]
        values = facts.values
        if "source" not in values and (source := facts.convention.source_of(dead_letter_queue)) is not None:
            values = {**values, "source": source}
        told = _with_journey(facts.convention.name, values, marks.journey, dead_letter_queue)
        told = msgspec.structs.replace(told, unreadable=(*facts.unreadable, *marks.journey.unreadable))
    elif marks.journeyed:
        told = _with_journey(RABBITMQ, {}, marks.journey, dead_letter_queue)
    else:
        told = _NOTHING
    if told.source is None and shovel.MOVES in marks.headers:
        return _with_move(told, shovel.source_of(marks.headers, dead_letter_queue))
    return told


def _with_move(told: Told, source: str | None) -> Told:
    if source is None:
        return told
    name = SHOVEL if told.convention == UNKNOWN else told.convention
    return msgspec.structs.replace(told, convention=name, source=source)


def _by_onex(record: OnexRead, dead_letter_queue: str) -> Told:
    """What the record tells of the message within."""
    return Told(
        convention=ONEX,
        error_type=record.error_type,
        error_text=record.error_text,
        source=record.topic,
        partition=record.partition,
        offset=record.offset,
        consumer_group=record.group_in(dead_letter_queue),
        retry_count=record.retry_count,
        failed_at=record.failed_at,
        sent_at=None if record.message is None else record.message.sent_at,
        correlation_id=record.correlation_id,
        unreadable=tuple(problem.removeprefix("header ").partition(" is ")[0] for problem in record.problems),
    )


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
        redacted=death.redacted,
        source=death.source,
        exchange=death.exchange,
        routing_key=death.routing_key,
        partition=death.partition,
        offset=death.offset,
        consumer_group=death.consumer_group,
        retry_count=death.retry_count,
        delivery_count=death.delivery_count,
        first_failed_at=death.first_failed_at,
        failed_at=death.failed_at,
        key=death.key,
        is_exact=death.key is not None and death.version == own.VERSION,
        correlation_id=death.correlation_id,
        system_state=death.system_state,
        tags=death.tags,
        priority=death.priority,
        deaths=journey.deaths,
        unreadable=(*death.unreadable, *journey.unreadable),
    )


def _with_journey(name: str, values: dict[str, Any], journey: Journey, dead_letter_queue: str) -> Told:
    """What a system tells, and beside it what RabbitMQ tells of the same death."""
    told = Told(convention=name, deaths=journey.deaths, unreadable=journey.unreadable, **values)
    # A system that names the queue is right about it: RabbitMQ may have seen the message in queues where it only
    # waited for its next try, such as those of NServiceBus.
    death = (
        journey.origin(found_in=dead_letter_queue) if told.source is None else journey.last_in(told.source)
    )
    if death is None or death.queue is None:
        return told
    exchange, routing_key = journey.arrival(death.queue)
    journeyed: dict[str, Any] = {
        "source": death.queue,
        "exchange": told.exchange if exchange is None else exchange,
        "routing_key": told.routing_key if routing_key is None else routing_key,
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


# --- what it was --------------------------------------------------------------------------------------------


def _stripped(message: Message, marks: _Marks) -> Message:
    if marks.onex is not None:
        return marks.onex.message or message
    headers = own.strip(message.headers)
    if marks.found:
        headers = without_added(headers, marks.found)
    properties = message.properties
    if marks.journeyed:
        headers = headers.without(*x_death.NAMES.difference(marks.journey.unreadable))
        if (ttl := marks.journey.expiration) is not None and "expiration" not in properties.names():
            properties = properties.with_({"expiration": ttl})
    sent_at = next((at for facts in marks.found if (at := facts.values.get("sent_at"))), message.sent_at)
    if (
        len(headers) == len(message.headers)
        and properties is message.properties
        and sent_at == message.sent_at
    ):
        return message
    return msgspec.structs.replace(message, headers=headers, properties=properties, sent_at=sent_at)
