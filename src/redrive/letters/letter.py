"""What is a dead letter?

`LetterHead` is what is filtered, sorted, listed and claimed: small, and kept apart from the rest by every
store. `DeadLetter` is the head with everything else: the message bit-exact, where it came from, what went
wrong, and what was tried since. Both are values; only a store changes a letter, and by `lifecycle` alone.

`letter_id` makes ids that repeat: the same message given up at the same place and time has the same id, so
adding it twice, after a crash or a lost reply, changes nothing.
"""

import re
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final, NamedTuple, Self

import msgspec

from redrive.letters.failure import Failure, FailureKind
from redrive.letters.lifecycle import LetterState
from redrive.letters.message import Message, Origin, correlation_id_of

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TAG: Final = 64  # characters of a tag that a producer or a handler sets
HEADLINE: Final = 300  # how much of the error text a head carries
# Crockford's base 32 leaves out what is mistaken when read aloud, and sorts like the bytes it stands for.
_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(a + b for a in _CROCKFORD for b in _CROCKFORD)  # ten bits, two letters
_TENS: Final = tuple(range(120, -1, -10))  # where the ten bits of each pair begin, of 130


_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class ClaimToken(NamedTuple):
    """The right to settle a letter: its id and the fence number of its claim."""

    id: str
    fence: int


class RedriveAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One redrive of a letter, and its result."""

    number: int
    started_at: datetime
    ended_at: datetime
    worker: str
    strategy: str | None
    result: str  # resolved, presumed, failed, crashed
    fence: int
    detail: str = ""


class Note(msgspec.Struct, frozen=True):
    """What a person wrote beside a letter."""

    at: datetime
    author: str
    text: str


class SystemState(msgspec.Struct, frozen=True, array_like=True):
    """How the machine was when the message failed, as fractions of one."""

    cpu_usage: float
    memory_usage: float


class LetterHead(msgspec.Struct, frozen=True, kw_only=True):
    """The small part of a letter: what is filtered, sorted, listed and claimed."""

    id: str
    state: LetterState = LetterState.PENDING
    # what died, where
    broker: str  # the name of the broker it belongs to; `unnamed:KIND` until a person assigns one
    source: str
    consumer_group: str | None = None
    message_id: str | None = None
    correlation_id: str
    size: int
    # why
    reason: str
    error_type: str
    error_text: str
    kind: FailureKind = FailureKind.UNKNOWN
    group: str  # the failure's fingerprint
    # how it is to be treated
    priority: int = 0
    tags: tuple[str, ...] = ()
    strategy: str | None = None
    assignee: str | None = None
    # counts and times
    retry_count: int = 0  # attempts by the consumer before it gave up
    dlq_retry_count: int = 0  # redrives since, crashes included
    first_failed_at: datetime
    last_failed_at: datetime
    next_retry_at: datetime
    created_at: datetime = EPOCH  # set by the store
    updated_at: datetime = EPOCH  # set by the store
    # the claim
    fence: int = 0
    locked_by: str | None = None
    locked_at: datetime | None = None
    lease_until: datetime | None = None
    sent_at: datetime | None = None  # redriven, its verdict is awaited
    presumed: bool = False  # resolved by evidence that the message was taken, not by a verdict
    unconfirmed: bool = False  # redriven, and neither a verdict nor a death came in time
    waits_for: str | None = None  # due, but stopped by this gate, such as `breaker:orders`

    @property
    def claim_token(self) -> ClaimToken:
        """The token that settles this letter."""
        return ClaimToken(self.id, self.fence)


class DeadLetter(LetterHead, frozen=True, kw_only=True):
    """A message that was given up, with everything known about it."""

    key: str  # what the id was made of: names the message and the place of its death
    message: Message
    origin: Origin
    failure: Failure
    system_state: SystemState | None = None
    derived_from: str | None = None  # the letter this one is a copy of, or whose redrive it was
    prior_redrives: int = 0  # how often the message was redriven before this letter was made
    attempts: tuple[RedriveAttempt, ...] = ()
    notes: tuple[Note, ...] = ()

    @classmethod
    def create(
        cls,
        message: Message,
        origin: Origin,
        failure: Failure,
        *,
        key: str,
        reason: str,
        first_failed_at: datetime | None = None,
        retry_count: int = 0,
        retry_in: timedelta = timedelta(0),
        priority: int = 0,
        tags: tuple[str, ...] = (),
        correlation_id: str | None = None,
        system_state: SystemState | None = None,
        group: str | None = None,
        strategy: str | None = None,
        died_at: datetime | None = None,
        broker: str | None = None,
    ) -> Self:
        """Create a letter. `key` must be the same whenever this same death is reported again.

        So must `died_at`, if the failure's own time is not. `group` is the failure's fingerprint where it is known
        already. `broker` is the broker's name; a consumer does not know it and leaves the kind of broker there.
        """
        return cls(
            id=letter_id(key, died_at or failure.at),
            key=key,
            broker=broker or origin.transport,
            source=origin.source,
            consumer_group=origin.consumer_group,
            message_id=storable(message.message_id) if message.message_id else None,
            correlation_id=storable(correlation_id or correlation_id_of(message)),
            size=message.size,
            reason=storable(reason),
            error_type=storable(failure.error_type) or "unknown",
            error_text=headline(failure.text),
            kind=failure.kind,
            group=group or failure.fingerprint,
            priority=priority,
            tags=tags,
            strategy=strategy,
            retry_count=retry_count,
            first_failed_at=first_failed_at or failure.at,
            last_failed_at=failure.at,
            next_retry_at=failure.at + retry_in,
            message=message,
            origin=origin,
            failure=failure,
            system_state=system_state,
        )


def headline(text: str) -> str:
    """As much of an error text as a head carries."""
    return storable(text if len(text) <= HEADLINE else text[: HEADLINE - 1] + "…")


def storable(text: str) -> str:
    """The text without what databases refuse: NUL and lone surrogates become the replacement character."""
    if text.isascii() and "\x00" not in text:
        return text
    return _NOT_STORABLE.sub("\ufffd", text)


def letter_id(key: str, died_at: datetime) -> str:
    """26 letters and digits: the time of death in milliseconds, then a hash of the key.

    The time in front keeps neighbours together in every index. It must be the one told by the message or by
    the broker, not the reader's clock, or a repeated add would not be recognised.
    """
    since = died_at - EPOCH
    milliseconds = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=10).digest()
    bits = ((max(0, milliseconds) & (2**48 - 1)) << 80 | int.from_bytes(digest)) << 2
    return "".join([_PAIRS[bits >> at & 1023] for at in _TENS])
