"""What can go wrong on an AMQP connection, and whom it costs: the channel or the connection.

The rule: every error that the peer causes carries the reply code, the text and the method that the answer
(`connection.close` or `channel.close`) needs, so that whoever catches it can send that answer without
knowing what happened. A `HardError` ends the connection, a `SoftError` only the channel.

    AmqpError
    ├── HardError               the connection must be closed
    │   └── FrameSyntaxError    bytes that do not follow the grammar (501)
    ├── SoftError               the channel must be closed
    └── MisuseError             our own side was about to break the protocol; nothing was sent

It does not know what a queue or an exchange is; the broker raises its own 404s through these classes.
"""

from enum import IntEnum

from redrive.errors import RedriveError

SHORTSTR_MAX = 255


class ReplyCode(IntEnum):
    """The reply codes of AMQP 0-9-1; the name is what RabbitMQ puts in front of the text."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


SOFT_CODES = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)
HARD_CODES = frozenset(ReplyCode) - SOFT_CODES - {ReplyCode.SUCCESS}


class AmqpError(RedriveError):
    """Something on an AMQP connection is against the protocol."""

    def __init__(self, code: ReplyCode, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(f"{code.name} - {text}")
        self.code = code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

    @property
    def reply_text(self) -> str:
        """The text for a close method: `NAME - text`, cut so that it fits a short string."""
        return fit_reply_text(f"{self.code.name} - {self.text}")


class HardError(AmqpError):
    """The connection must be closed with this code."""


class SoftError(AmqpError):
    """The channel must be closed with this code; the connection lives on."""


class FrameSyntaxError(HardError):
    """Bytes that do not follow the grammar of AMQP. The code is 501, as RabbitMQ's is, not 502."""

    def __init__(self, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(ReplyCode.FRAME_ERROR, text, class_id, method_id)


class MisuseError(AmqpError):
    """Our own side asked for something that the protocol does not allow. Nothing was sent."""

    def __init__(self, text: str) -> None:
        super().__init__(ReplyCode.INTERNAL_ERROR, text)


def error_for(code: int, text: str, class_id: int = 0, method_id: int = 0) -> HardError | SoftError:
    """The error of the kind that `code` is; a code that nobody knows ends the connection."""
    try:
        known = ReplyCode(code)
    except ValueError:
        return HardError(ReplyCode.INTERNAL_ERROR, f"unknown reply code {code}: {text}", class_id, method_id)
    kind = SoftError if known in SOFT_CODES else HardError
    return kind(known, text, class_id, method_id)


def fit_reply_text(text: str) -> str:
    """`text`, shortened to what a short string holds and never cut inside a character."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= SHORTSTR_MAX:
        return raw.decode("utf-8")
    return raw[: SHORTSTR_MAX - 3].decode("utf-8", "ignore") + "..."
