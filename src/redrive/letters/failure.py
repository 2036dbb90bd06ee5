"""What went wrong, and which other failures are the same?

`Failure` is the error as a value: text already redacted, class already decided by `rules.classify`.
`fingerprint` puts failures with one cause under one name: it looks at the error's type, at the frame
of the user's own code nearest to the error, and at the text with everything removed that differs from one
message to the next. It never looks at the message.
"""

import re
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec


class FailureKind(StrEnum):
    """What sort of failure it is: what the recovery worker chooses its strategy by."""

    TIMEOUT = "timeout"
    NETWORK = "network"
    UNAVAILABLE = "unavailable"
    RATE_LIMITED = "rate_limited"
    DATABASE = "database"
    SERVER_ERROR = "server_error"
    MALFORMED = "malformed"
    REJECTED = "rejected"  # the request itself is wrong: bad request, conflict
    DENIED = "denied"
    NOT_FOUND = "not_found"
    BUSINESS = "business"
    EXPIRED = "expired"  # the broker gave it up: time to live
    OVERFLOW = "overflow"  # the broker gave it up: queue full
    CRASH = "crash"  # it ended its worker
    UNKNOWN = "unknown"


class Failure(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One failure of one message."""

    error_type: str
    text: str
    at: datetime
    kind: FailureKind = FailureKind.UNKNOWN
    retryable: bool = True
    rule: str | None = None  # the name of the rule that decided kind and retryable
    stack: str | None = None
    retry_after: timedelta | None = None  # how long whoever refused it asked to wait
    redacted: str | None = None  # the name of the `Redactor` that cleaned its texts, if one has

    @property
    def fingerprint(self) -> str:
        """The name of the group this failure belongs to."""
        return fingerprint(self.error_type, self.text, self.stack)


# --- the fingerprint -------------------------------------------------------------------------------------
# One pass over the text; the first alternative that fits wins, so the longer shapes stand first.

_VARIABLE: Final = re.compile(
    r"""
      (?P<url>\b[a-z][a-z0-9+.-]*://[^\s'"<>]+)
    | (?P<email>[\w.+-]+@[\w-]+\.[\w.-]+)
    | (?P<uuid>\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b)
    | (?P<time>\b\d{4}-\d\d-\d\d(?:[T\ ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)
    | (?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b)
    | (?P<hex>\b0x[0-9a-f]+\b|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b)
    | (?P<quoted>"[^"\n]{1,200}"|'[^'\n]{1,200}')
    | (?P<path>(?<![\w.])/(?:[\w.@-]+/)+[\w.@-]*)
    | (?P<id>\b[a-z_]{1,12}[-_](?=[\w-]*\d)[\w-]+\b)
    | (?P<number>[+-]?\d+(?:[.,:]\d+)*)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MAY_VARY: Final = re.compile(r"""[\d"'/@-]""")  # without one of these, no alternative fits
_SPACES: Final = re.compile(r"\s+")
_LONGEST_TEXT: Final = 1000  # more of a text never told two causes apart
_LONGEST_KEPT: Final = 8 * 1024  # of text and stack together, where the fingerprint is remembered

_PYTHON_FRAME: Final = re.compile(r'^[ \t]*File "([^"\n]+)", line \d+, in (\S+)', re.MULTILINE)
_AT_FRAME: Final = re.compile(  # Java, C#, JavaScript: the frame nearest to the error stands first
    r"^[ \t]*at (?:async )?(?:new )?([\w$.<>/\[\]`:-]++)(?:[ \t]*\(([^)\n]*)\))?[ \t]*(?: \[.*| in .*)?$",
    re.MULTILINE,
)
_ANY_FRAME: Final = re.compile(r"[ \t]*(?:File|at) ")
_FOREIGN_CODE: Final = re.compile(
    r"""
      site-packages | dist-packages | /lib/python\d | [\\/]python\d*[\\/]lib[\\/] | ^<frozen | ^<string>
    | node_modules | node:internal | ^internal/
    | ^java[x]?\. | ^jdk\. | ^sun\. | ^kotlin\. | ^scala\. | ^org\.(?:springframework|apache)\.
    | ^System\. | ^Microsoft\.
    | [\\/]redrive[\\/](?:consume|transports)[\\/]
    """,
    re.VERBOSE,
)


_SEPARATOR: Final = re.compile(r"[\\/]")


def fingerprint(error_type: str, text: str, stack: str | None = None) -> str:
    """Sixteen hexadecimal digits that like failures share."""
    if len(text) + len(stack or "") <= _LONGEST_KEPT:
        return _kept_fingerprint(error_type, text, stack)
    return _fingerprint(error_type, text, stack)


def _fingerprint(error_type: str, text: str, stack: str | None) -> str:
    parts = (error_type, _frame_in(stack) if stack else "", normalise(text))
    return blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


_kept_fingerprint: Final = lru_cache(256)(_fingerprint)  # a flood of failures is one failure, many times


def normalise(text: str) -> str:
    """The text with numbers, ids, times, addresses and quoted values replaced by their kind."""
    plain = text[:_LONGEST_TEXT]
    if _MAY_VARY.search(plain):
        plain = _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", plain)
    return _SPACES.sub(" ", plain).strip().lower()


def _frame_in(stack: str) -> str:
    """The same as `in_app_frame`. From one failure to the next, often only the last line changes."""
    end = stack.rfind("\n", 0, -1) + 1
    if end and not _ANY_FRAME.match(stack, end):
        return _frame_in_lines(stack[:end])
    return in_app_frame(stack)


def in_app_frame(stack: str) -> str:
    """The frame of the user's own code nearest to the error, without line number; else the nearest."""
    python = [(path, f"{_SEPARATOR.split(path)[-1]}:{name}") for path, name in _PYTHON_FRAME.findall(stack)]
    python.reverse()  # Python prints the nearest frame last
    frames = python or [(f"{name} {where}", _without_place(name)) for name, where in _AT_FRAME.findall(stack)]
    own = (name for where, name in frames if not _FOREIGN_CODE.search(where))
    return next(own, frames[0][1] if frames else "")


_frame_in_lines: Final = lru_cache(256)(in_app_frame)


def _without_place(name: str) -> str:
    """`app/orders.js:12:5` without line and column."""
    parts = name.split(":")
    while len(parts) > 1 and parts[-1].isdecimal():
        parts.pop()
    return ":".join(parts)
