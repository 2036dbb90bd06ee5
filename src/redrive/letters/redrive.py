"""Headers of a redriven message, and the check that a message really is the redrive of a letter.

`redrive-id` and `redrive-fence` name the letter and the claim under which it was sent, `redrive-attempt` counts over
all cycles, `redrive-operation` names the replay. `redrive-to` names the consumer it is meant for, `redrive-digest` is
a hash of its content, `redrive-scope` says whether other consumers are to process it too, and
`redrive-correlation-id` keeps the correlation id of a message that has none of its own. `x-replayed` is for
everybody: this message was sent before.

Headers are copied easily, by an exchange that fans out or by a handler that forwards them. So they alone prove
nothing: a message is the redrive of a letter only if it is found at the consumer that `redrive-to` names, with the
content that was sent (`is_addressed_to`, `has_content`). Version 1 wrote neither of the two; `Redrive.to` is None
then, and the caller compares with the letter itself.
"""

from hashlib import blake2b
from typing import Final, Literal, TypeAlias

import msgspec

from redrive.letters.headers import Headers, HeaderValue, TypedValue
from redrive.letters.letter import ClaimToken
from redrive.letters.message import ConsumerRef, Message, own_correlation_id

ID: Final = "redrive-id"
FENCE: Final = "redrive-fence"
ATTEMPT: Final = "redrive-attempt"
OPERATION: Final = "redrive-operation"
TO: Final = "redrive-to"
DIGEST: Final = "redrive-digest"
SCOPE: Final = "redrive-scope"
CORRELATION_ID: Final = "redrive-correlation-id"
REPLAYED: Final = "x-replayed"
# What no handler sees, and what is removed from messages that a handler publishes.
PRIVATE: Final = (ID, FENCE, ATTEMPT, OPERATION, TO, DIGEST, SCOPE)
HEADERS: Final = (*PRIVATE, REPLAYED)
MAX_ATTEMPTS: Final = 2**31 - 1  # larger counts are read as this one
_NO_KEY: Final = bytes(8)  # the length of a key that is not there

Scope: TypeAlias = Literal["consumer", "all"]


class Redrive(msgspec.Struct, frozen=True):
    """Which letter a message claims to be a redrive of."""

    hold: ClaimToken
    attempt: int
    operation: str | None = None
    to: ConsumerRef | None = None  # None: written by version 1, which named no consumer
    digest: str | None = None
    scope: Scope = "consumer"  # all: other consumers are to process it too

    def is_addressed_to(self, source: str, group: str | None) -> bool:
        """Whether it was sent to this consumer; the broker is compared by those who know its name."""
        return self.to is None or (self.to.source, self.to.group) == (source, group or "")

    def has_content(self, message: Message) -> bool:
        """Whether the message is the one that was sent."""
        return self.digest is None or self.digest == content_digest(message)


def content_digest(message: Message) -> str:
    """A hash of key and body."""
    key = message.key
    digest = blake2b(len(key).to_bytes(8) + key if key else _NO_KEY, digest_size=16)
    if message.body:
        digest.update(message.body)
    return digest.hexdigest()


def marked(message: Message, redrive: Redrive, correlation_id: str | None = None) -> Headers:
    """The headers of a message that is sent back; `correlation_id` is added if it has none of its own."""
    headers = unmarked(message.headers)
    pairs: list[tuple[str, HeaderValue]] = [
        *headers,
        (ID, redrive.hold.id),
        (FENCE, redrive.hold.fence),
        (ATTEMPT, redrive.attempt),
    ]
    if redrive.operation is not None:
        pairs.append((OPERATION, redrive.operation))
    if redrive.to is not None:
        pairs.append((TO, str(redrive.to)))
    if redrive.digest is not None:
        pairs.append((DIGEST, redrive.digest))
        pairs.append((SCOPE, redrive.scope))
    if correlation_id and own_correlation_id(message) is None:
        pairs.append((CORRELATION_ID, correlation_id))
    pairs.append((REPLAYED, True))
    return Headers.of(pairs)


def unmarked(headers: Headers) -> Headers:
    """The headers as they were before the message was ever sent back."""
    return headers.without(*HEADERS)


def for_handlers(headers: Headers) -> Headers:
    """The headers that a handler sees: without those that only redrive understands."""
    names = headers.by_name
    if not any(name in names for name in PRIVATE):
        return headers
    # On a redrive the correlation id is ours, too; on a dead letter it is part of the description of the death.
    ours = (*PRIVATE, CORRELATION_ID) if ID in names else PRIVATE
    return headers.without(*ours)


def redrive_of(headers: Headers) -> Redrive | None:
    """Which letter this message claims to be a redrive of; None if it claims nothing that can be read."""
    if not (letter_id := headers.text(ID)):
        return None
    fence, attempt = _number(headers.get(FENCE)), _number(headers.get(ATTEMPT))
    if fence is None or attempt is None:
        return None
    hold, attempt = ClaimToken(letter_id, fence), min(attempt, MAX_ATTEMPTS)
    address, digest = headers.text(TO), headers.text(DIGEST)
    if address is None and digest is None:
        return Redrive(hold, attempt, headers.text(OPERATION))
    to = None if address is None else ConsumerRef.parse(address)
    if to is None or digest is None:
        return None
    scope: Scope = "all" if headers.text(SCOPE) == "all" else "consumer"
    return Redrive(hold, attempt, headers.text(OPERATION), to, digest, scope)


def _number(value: HeaderValue) -> int | None:
    """A whole number from zero up, also where the wire carries it as text."""
    if isinstance(value, TypedValue):
        value = value.value
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 20 else None
    return value if type(value) is int and 0 <= value < 2**63 else None
