"""Reports: messages by which a consumer informs the server that it cannot publish dead letters.

A consumer sends them to the queue of the verdicts of the same broker, at once when the first dead letter could not be
published, and every few seconds for as long as that goes on; `failures` of 0 says that it is over. A report expires, so
that none waits for a server that never comes. A server forgets a report that is not repeated. A consumer that cannot
publish anything can send no report either.
"""

from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from redrive.errors import FormatError
from redrive.letters.headers import Headers
from redrive.letters.message import Message

INTERVAL: Final = timedelta(seconds=10)  # between two reports of a failure that goes on
LIFETIME: Final = 3 * INTERVAL  # of a report that is not repeated
_MAX_ERROR_CHARS: Final = 300


class PublishReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters of a source a consumer could not publish in a row."""

    report: Literal["dead-letter-publish"] = "dead-letter-publish"
    consumer: str  # host and process
    source: str
    failures: int  # attempts since the last success; 0: dead letters are published again
    at: datetime
    dead_letter_queue: str = ""
    error: str = ""  # of the last attempt, redacted


def encode_report(report: PublishReport) -> Message:
    """The report as it travels."""
    shortened = msgspec.structs.replace(report, error=report.error[:_MAX_ERROR_CHARS])
    milliseconds = LIFETIME // timedelta(milliseconds=1)
    return Message(
        body=msgspec.json.encode(shortened),
        content_type="application/json",
        properties=Headers({"expiration": str(milliseconds)}),
    )


def decode_report(body: bytes | None) -> PublishReport:
    """The report that these bytes are; a `FormatError` if they are none."""
    try:
        return _decode(body or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FormatError(f"not a report: {error}") from None


_decode: Final = msgspec.json.Decoder(PublishReport).decode
