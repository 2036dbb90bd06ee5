"""How does a line of a program's log look, for people and for programs?

For the command line, which owns its process; a library user configures logging in their own way and can take
`JsonFormatter` alone. Both formatters redact what they write, whoever logged it: a line of a library may hold
the URL it failed to reach. Both escape what a terminal would act on or what would look like another log line: names
come from clients, and those of users are logged before anybody has logged in.

The rule: a line is always written. What cannot be told as JSON is told as text.
"""

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TextIO, get_args

import msgspec

from redrive.errors import SettingsError, on_one_line, use_instead
from redrive.letters.letter import storable
from redrive.letters.redact import Redactor

Format = Literal["text", "json"]
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_STACK: Final = "error_stack"  # the field in which `Logs` gives a redacted traceback
_OWN: Final = frozenset(("time", "level", "logger", "message", "exception", "stack"))
_PLAIN: Final = (bytes, bytearray, datetime)
_DEEPEST: Final = 20
_MOST_NAMES: Final = 1_000
_LIKE_A_SECRET: Final = "q7Zk2Wx9vT"  # noqa: S105  no word and no number: what a rule takes for a value
# What every record has; the rest is `extra`.
_KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


_encode: Final = msgspec.json.Encoder().encode


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and every field of `extra`."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()
        self._names: dict[str, str] = {}  # name of a field → what stands in place of any value, or nothing

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redactor.clean(_message_of(record)),
        }
        for name, value in _extra_of(record):
            fields[f"{name}_" if name in _OWN else name] = self._told(name, value)
        if text := _exception_of(self, record):
            fields["exception"] = self._redactor.clean(text)
        if record.stack_info:
            fields["stack"] = self._redactor.clean(record.stack_info)
        try:
            line = _encode(fields)
        except Exception:  # noqa: BLE001  one bad field must not cost the line: lone surrogates, huge numbers …
            line = _encode({storable(name): _encodable(value) for name, value in fields.items()})
        return _printable_json(line.decode())

    def _told(self, name: str, value: object) -> object:
        """The value of a field, clean, as something that JSON has."""
        if isinstance(value, str):
            return self._hidden(name) or self._redactor.clean(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        try:
            plain = msgspec.to_builtins(value, builtin_types=_PLAIN, str_keys=True, enc_hook=_text_of)
            return self._cleaned(name, plain, _DEEPEST)
        except Exception:  # noqa: BLE001  circles, keys of strange types …
            return self._hidden(name) or self._redactor.clean(_text_of(value))

    def _cleaned(self, name: str, value: object, depth: int) -> object:
        if depth == 0:
            return "…"
        if isinstance(value, dict):
            return {
                self._redactor.clean(key): self._cleaned(key, item, depth - 1) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._cleaned(name, item, depth - 1) for item in value]
        if isinstance(value, bytes | bytearray):
            value = value.decode(errors="backslashreplace")
        if isinstance(value, str):
            return self._hidden(name) or self._redactor.clean(value)
        return value

    def _hidden(self, name: str) -> str:
        """What stands for a value whose name says that it is a secret, whatever the value looks like."""
        hidden = self._names.get(name)
        if hidden is None:
            found = self._redactor.find(f"{name}={_LIKE_A_SECRET}")
            hidden = f"[REDACTED:{found[0].kind}]" if found else ""
            if len(self._names) < _MOST_NAMES:
                self._names[name] = hidden
        return hidden


class TextFormatter(logging.Formatter):
    """Time, level, logger and message on one line; a traceback below it."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        record.message = on_one_line(self._redactor.clean(_message_of(record)))
        record.asctime = self.formatTime(record)
        below = (_exception_of(self, record), record.stack_info, getattr(record, _STACK, None))
        stacks = (self._redactor.clean(stack.rstrip()) for stack in below if isinstance(stack, str) and stack)
        return "\n".join((self.formatMessage(record), *map(_printable_lines, stacks)))


def configure(
    level: str = "info",
    format: Format = "text",  # noqa: A002  the option's own name
    stream: TextIO | None = None,
    *,
    redactor: Redactor | None = None,
) -> logging.Handler:
    """Let the whole process log in this format to `stream` (standard error). Asked again, the last one counts."""
    if level.lower() not in LEVELS:
        raise SettingsError(f"log level {level!r:.40} is unknown{use_instead(level, LEVELS)}")
    if format not in get_args(Format):
        raise SettingsError(f"log format {format!r:.40} is unknown{use_instead(format, get_args(Format))}")
    handler = _Configured(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(redactor) if format == "json" else TextFormatter(redactor))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Configured)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


class _Configured(logging.StreamHandler[TextIO]):
    """The handler that `configure` has set, and may replace; others' stay."""


def _printable_lines(text: str) -> str:
    """Several lines; control characters are escaped."""
    return "\n".join(on_one_line(line.expandtabs(4)) for line in text.split("\n"))


def _printable_json(line: str) -> str:
    """The same JSON in printable characters: the encoder escapes those below a space only."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def _extra_of(record: logging.LogRecord) -> Iterable[tuple[str, object]]:
    return ((name, value) for name, value in vars(record).items() if name not in _KNOWN)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  words that do not fit their text
        return f"{record.msg} {record.args!r:.500}"


def _exception_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""


def _encodable(value: object) -> object:
    """The value itself where it can be encoded, else its text."""
    try:
        _encode(value)
    except Exception:  # noqa: BLE001  likewise
        return storable(_text_of(value))
    return value


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  an object that cannot be told
        return f"(a {type(value).__name__} without text)"
