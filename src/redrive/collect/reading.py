"""How does a message in a dead-letter queue become a letter?

`formats` tells what the message says about its death, by whatever convention; what it does not say is classified from
its words or stays unknown. The letter's message is the one that died, without the marks of its death, so that it can
be sent back as it was. The first plan for it is made here: its strategy, and when it is due.

The rule: any message becomes a letter. One that nobody understands is kept as it is, and tagged so.
"""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Final, TypeVar, get_type_hints

import msgspec

from redrive.formats import fields
from redrive.formats.told import Told
from redrive.letters import DeadLetter, Failure, FailureKind, Message, Origin, TypedValue
from redrive.letters.letter import EPOCH, MAX_TAG, storable
from redrive.letters.message import made_up_correlation_id, own_correlation_id
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, Exhausted, Plan, StrategyOptions, choose
from redrive.stores.checks import HIGHEST_PRIORITY, LOWEST_PRIORITY

_T = TypeVar("_T", Message, Origin, Failure)
UNKNOWN_REASON: Final = "Unknown"
NOT_UNDERSTOOD: Final = "not-understood"
DAMAGED: Final = "damaged-headers"
# Headers by which a producer says how a dead letter of its message is to be treated.
TAGS_HEADER: Final = "redrive-tags"
PRIORITY_HEADER: Final = "redrive-priority"
_MAX_TAGS: Final = 20
_MAX_TAGS_TEXT: Final = 4096
_NAMES: Final = 256
_MAX_COUNT: Final = 2**31 - 1  # headers may claim more; the message is kept all the same
_TEXTS: Final[dict[type[msgspec.Struct], tuple[str, ...]]] = {
    kind: tuple(name for name, hint in get_type_hints(kind).items() if hint in (str, str | None))
    for kind in (Message, Origin, Failure)
}
_texts_of: Final = {kind: attrgetter(*names) for kind, names in _TEXTS.items()}
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")
# What a broker says when it gave a message up itself.
_BROKERS_WORDS: Final = {
    "rejected": "rejected by its consumer",
    "expired": "its time to live expired",
    "maxlen": "its queue was full",
    "delivery_limit": "it exceeded the delivery limit",
}


class Reader:
    """Makes letters."""

    def __init__(self, classifier: Classifier, redactor: Redactor, options: StrategyOptions) -> None:
        self._classifier = classifier
        self._redactor = redactor
        self._options = options
        self._plans: dict[
            FailureKind, Plan | Exhausted
        ] = {}  # as of this moment: those of a batch share theirs
        self._planned_at: datetime | None = None
        self._clean_name = lru_cache(_NAMES)(redactor.clean)  # reasons and types are few, letters are many

    def letter(
        self,
        message: Message,
        told: Told,
        *,
        found: Origin,
        key: str,
        now: datetime,
        route: tuple[str, str] | None = None,
        broker: str | None = None,
    ) -> DeadLetter:
        """The letter of a message that was found in a dead-letter queue.

        `key` names it; `route` is the exchange and routing key that it remembers, if it does; `broker` is the name of
        the broker it was found on.
        """
        failure = _legible(self.failure(told, now))
        own = storable(key)
        tags = _tags(told, message)
        if (clean := _legible(message)) is not message:
            message, tags = clean, (*tags, DAMAGED) if DAMAGED not in tags else tags
        plan = self._plan(failure, now)
        due = now if isinstance(plan, Exhausted) or plan.due is None else plan.due
        return DeadLetter.create(
            message,
            _legible(_origin(told, found, route)),
            failure,
            key=own,
            reason=self._clean_name(told.reason or UNKNOWN_REASON),
            first_failed_at=told.first_failed_at,
            retry_count=min(told.retry_count or 0, _MAX_COUNT),
            retry_in=max(timedelta(0), due - failure.at),
            priority=_priority(told, message),
            tags=tags,
            group=told.group if told.group and _FINGERPRINT.fullmatch(told.group) else None,
            correlation_id=told.correlation_id or own_correlation_id(message) or made_up_correlation_id(own),
            system_state=told.system_state,
            strategy=None if isinstance(plan, Exhausted) else str(plan.strategy),
            # The id must be the same when this death is read again: by a time that the message tells, never by ours.
            died_at=told.failed_at or _died_at(told) or message.sent_at or EPOCH,
            broker=broker,
        )

    def _plan(self, failure: Failure, now: datetime) -> Plan | Exhausted:
        """What to do with it first; by its kind alone, unless it asks for more, or the user's rules look at it."""
        if self._options.rules or failure.retry_after is not None:
            return choose(failure.kind, 0, now, failure.retry_after, self._options, failure=failure)
        if now is not self._planned_at:
            self._planned_at = now
            self._plans.clear()
        plan = self._plans.get(failure.kind)
        if plan is None:
            plan = self._plans[failure.kind] = choose(failure.kind, 0, now, None, self._options)
        return plan

    def failure(self, told: Told, now: datetime) -> Failure:
        """What went wrong, as far as it is told."""
        error_type = told.error_type or told.reason or UNKNOWN_REASON
        text = (
            told.error_text
            or _BROKERS_WORDS.get(told.reason or "", "")
            or told.reason
            or ("no error information")
        )
        kind, retryable, rule, retry_after = self._classified(told, now)
        stack, redactor = told.stack, self._redactor
        if told.redacted != redactor.name:  # else whoever wrote it has hidden the same
            text = redactor.clean_error(error_type, text)
            stack = None if stack is None else redactor.clean(stack)
        return Failure(
            error_type=self._clean_name(error_type),
            text=text,
            at=min(told.failed_at or _died_at(told) or now, now),
            kind=kind,
            retryable=retryable,
            rule=rule,
            stack=stack,
            retry_after=retry_after,
            redacted=redactor.name,
        )

    def _classified(self, told: Told, now: datetime) -> tuple[FailureKind, bool, str, timedelta | None]:
        """Kind, whether it is worth a retry, by which rule, and after what time: as told, the rest by its words."""
        if told.kind is not None and told.retryable is not None and told.rule is not None:
            return told.kind, told.retryable, told.rule, told.retry_after  # somebody saw the error itself
        found = self._classifier.classify_text(told.error_type or "", told.error_text or "", None, now)
        knows = told.error_type is not None or told.error_text is not None
        return (
            told.kind or (found.kind if knows else FailureKind.UNKNOWN),
            found.retryable if told.retryable is None else told.retryable,
            told.rule or (found.rule if knows else f"{told.convention} says no more"),
            told.retry_after or found.retry_after,
        )


def _legible(value: _T) -> _T:
    """The value with texts that a store can keep. Octets that are no text at all survive in bodies and headers only."""
    kind = type(value)
    texts = _texts_of[kind](value)
    if "".join(filter(None, texts)).isascii():  # as nearly all are; one look is quicker than many
        return value
    changes: dict[str, str] = {}
    for name, text in zip(_TEXTS[kind], texts, strict=True):
        if text is not None and not text.isascii() and (clean := storable(text)) != text:
            changes[name] = clean
    return msgspec.structs.replace(value, **changes) if changes else value


def _origin(told: Told, found: Origin, route: tuple[str, str] | None) -> Origin:
    # A broker tells how the message came to its queue the last time: straight, if it was given back before.
    exchange, key = route or (told.exchange, told.routing_key)
    # Partition, offset and group of what was found are of the dead-letter topic and of whoever collects it.
    place = found if told.source is None else told
    return Origin(
        transport=found.transport,
        source=told.source or found.source,
        exchange=exchange,
        routing_key=key,
        partition=place.partition,
        offset=place.offset,
        consumer_group=told.consumer_group,
        endpoint=found.endpoint,
        dead_letter_source=found.source,
    )


def _died_at(told: Told) -> datetime | None:
    return told.deaths[0].at if told.deaths else None


def _priority(told: Told, message: Message) -> int:
    """The priority that the handler asked for, else its producer in a header, else that of the message."""
    if told.priority is not None:
        return told.priority
    asked = message.headers.get(PRIORITY_HEADER) if len(message.headers) else None
    if asked is not None:
        with suppress(ValueError):
            number = fields.whole(_plain(asked))
            if LOWEST_PRIORITY <= number <= HIGHEST_PRIORITY:
                return number
    value = message.properties.get("priority")
    return value if type(value) is int and 0 <= value <= 255 else 0


def _tags(told: Told, message: Message) -> tuple[str, ...]:
    """Tags that say what is wrong with the letter, then those of the handler, then those of the producer."""
    tags = () if told.convention != "unknown" else (NOT_UNDERSTOOD,)
    if told.unreadable:
        tags = (*tags, DAMAGED)
    asked = message.headers.get(TAGS_HEADER) if len(message.headers) else None
    if told.tags is None and asked is None:
        return tags
    words = asked if isinstance(asked, tuple) else (_plain(asked),)
    texts = (told.tags or "", *(word for word in words if isinstance(word, str)))
    return tuple(dict.fromkeys([*tags, *(tag for text in texts for tag in _split(text))]))[:_MAX_TAGS]


def _split(text: str) -> list[str]:
    """The tags in a text; one that is too long, or cannot be stored, is left out."""
    tags = [storable(tag.strip()) for tag in text[:_MAX_TAGS_TEXT].split(",")]
    return [tag for tag in tags if 0 < len(tag) <= MAX_TAG]


def _plain(value: object) -> object:
    """The value of a header without the name of its type, and bytes as text."""
    if isinstance(value, TypedValue):
        value = value.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
