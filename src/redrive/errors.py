"""Every error that redrive raises on purpose.

One tree, drawn once::

    RedriveError
    ├── SettingsError               a setting is unknown, missing or out of range
    ├── QueryError                  a filter cannot be understood
    ├── FormatError                 bytes or headers are not what their convention says
    │   └── DecodeError             a message is not what its handler asks for
    ├── LifecycleError              a step that the state machine does not have
    ├── ServiceError                an outside thing that tests or adapters need is not there
    ├── NotifyError                 a receiver of alerts has not taken one
    ├── TransportError              the broker cannot do it
    │   ├── BrokerUnreachableError  nobody answers there, or the connection was lost
    │   ├── BrokerRefusedError      the broker does not let us: user, vhost, permission
    │   ├── BrokerConflictError     the name of the broker belongs to another cluster
    │   ├── SourceMissingError      no queue or topic has this name
    │   ├── SourceConflictError     it exists, but is not what was asked for
    │   ├── ConsumerTimeoutError    a delivery was not acknowledged in time, and was taken back
    │   ├── PublishError            a message was not made durable
    │   └── TransportClosedError    the transport or receiver was closed
    └── StoreError                  the dead-letter store cannot do it
        ├── StoreDamagedError       the file is not a database, or not a whole one
        ├── StoreVersionError       the file was written by a newer redrive
        ├── StoreReadOnlyError      the file or its directory cannot be written
        ├── StoreFullError          the disk or the size limit is full
        ├── StoreBusyError          somebody else holds the store for longer than we wait
        ├── StoreUnreachableError   the database server does not answer
        ├── StoreReplacedError      a file of the store was removed or replaced while it was open
        ├── StoreClosedError        the store was closed
        ├── StoreAccessError        a server does not let this process use its store
        ├── LetterNotFoundError     no letter has this id
        ├── LetterInvalidError      the letter cannot be stored as it is
        ├── OperationNotFoundError  no operation has this id
        └── IncidentNotFoundError   no open incident has this id

The AMQP room has its own branch below the root, with reply codes: `redrive.amqp.errors.AmqpError`.

Errors of libraries are translated into these at the edge where they occur. A message says what is wrong
and what to do next, in one line, whatever it quotes; `exit_code` is what the command line exits with.
"""

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import ClassVar


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A hint to end a message with, if a known word is close to the one that was written; else nothing."""
    close = get_close_matches(str(word)[:60].lower(), list(known), 1, 0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def use_instead(word: object, known: Iterable[str]) -> str:
    """The same, but where no known word is close, all of them are named."""
    known = list(known)
    return did_you_mean(word, known) or f"; use one of {', '.join(known)}"


def on_one_line(text: str) -> str:
    """The text as one line that a terminal only shows: what cannot be printed stands there as its escape."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


class RedriveError(Exception):
    """The root: catching it catches everything that redrive raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(on_one_line(message))


class SettingsError(RedriveError):
    """A setting is unknown, missing or out of range."""

    exit_code = 2


class QueryError(RedriveError):
    """A filter cannot be understood."""

    exit_code = 2


class FormatError(RedriveError):
    """Bytes or headers are not what their convention says."""


class DecodeError(FormatError):
    """A message is not what its handler asks for. No retry can help."""


class LifecycleError(RedriveError):
    """A step that the state machine does not have. Nothing was changed."""


class ServiceError(RedriveError):
    """An outside thing that is needed is not there."""


class NotifyError(RedriveError):
    """A receiver of alerts has not taken one.

    `is_permanent` says that sending it again cannot help; `retry_after` is how long the receiver asks to be left alone.
    """

    def __init__(
        self, message: str = "", *, is_permanent: bool = False, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
        self.retry_after = retry_after


class TransportError(RedriveError):
    """The broker cannot do it. What was not settled stays with the broker."""

    exit_code = 4


class BrokerUnreachableError(TransportError):
    """Nobody answers there, or the connection was lost."""


class BrokerRefusedError(TransportError):
    """The broker does not let us."""


class BrokerConflictError(TransportError):
    """The name of the broker belongs to another kind of broker, or to another cluster."""


class SourceMissingError(TransportError):
    """No queue or topic has this name."""


class SourceConflictError(TransportError):
    """It exists, but is not what was asked for."""


class ConsumerTimeoutError(TransportError):
    """The broker took deliveries back, because one was not acknowledged within its consumer timeout."""


class PublishError(TransportError):
    """A message was not made durable."""


class TransportClosedError(TransportError):
    """The transport or the receiver was closed."""


class StoreError(RedriveError):
    """The dead-letter store cannot do it. Whatever was asked has not happened."""

    exit_code = 3


class StoreDamagedError(StoreError):
    """The file is not a database, or not a whole one."""


class StoreVersionError(StoreError):
    """The store was written by a newer redrive."""


class StoreReadOnlyError(StoreError):
    """The store cannot be written."""


class StoreFullError(StoreError):
    """The disk or the size limit is full."""


class StoreBusyError(StoreError):
    """Somebody else holds the store for longer than we wait."""


class StoreUnreachableError(StoreError):
    """The database server does not answer."""


class StoreReplacedError(StoreError):
    """A file of the store was removed or replaced while it was open. Nothing is reported durable until it is back."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreAccessError(StoreError):
    """A server does not let this process use its store: the key is missing or wrong."""


class LetterNotFoundError(StoreError):
    """No letter has this id."""


class LetterInvalidError(StoreError):
    """The letter cannot be stored as it is."""


class OperationNotFoundError(StoreError):
    """No operation has this id."""


class IncidentNotFoundError(StoreError):
    """No open incident has this id."""
