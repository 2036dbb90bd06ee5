"""How does one system mark its dead letters?

A row of data: the headers it is known by, which fact stands in which of them and in what form, and which headers it has
added to the message and so are not the producer's. Every system that redrive knows is such a row (`formats.systems`),
and so is a system of one's own, as `[[conventions]]` in TOML gives it::

    [[conventions]]
    name = "shop"
    recognised_by = ["shop-error"]
    adds = ["shop-*"]

    [conventions.fields]
    error_text = "shop-error"
    failed_at = { header = "shop-at", form = "unix-ms" }

The one rule: a row that exists can be read by. What cannot be understood is refused at start, in one line that names
the row, the word and what to write instead. This file reads no message.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from redrive.errors import SettingsError, use_instead
from redrive.letters.failure import FailureKind
from redrive.letters.redrive import HEADERS

# What a value in this form gives, and what it looks like.
FORMS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "text": ("text", "text or UTF-8"),
        "name": ("text", "the same; bytes that are not UTF-8 are kept"),
        "queue": ("text", "a name that is not empty"),
        "address": ("text", "the last part of a URL: `rabbitmq://host/vhost/queue?durable=true`"),
        "java-type": ("text", "the part before the first `: ` of a Java exception printed on one line"),
        "python-type": ("text", "the type of the error that a Python traceback ends with"),
        "python-text": ("text", "the text of that error"),
        "count": ("number", "an integer from zero, also in digits"),
        "place": ("number", "the same; -1, Kafka's value for unknown, is ignored"),
        "int-be": (
            "number",
            "an integer from zero in 1 to 8 bytes, big-endian; also a Java BigInteger",
        ),
        "next-be": ("number", "the number of the next attempt in such bytes: one more than were made"),
        "int32-be": ("number", "an integer in exactly 4 bytes, big-endian"),
        "int64-be": ("number", "an integer in exactly 8 bytes, big-endian"),
        "time": ("time", "ISO 8601, in UTC unless it names a zone, or a timestamp of the wire format"),
        "unix-s": ("time", "seconds since 1970, also in digits"),
        "unix-ms": ("time", "milliseconds since 1970, also in digits"),
        "unix-ms-be": ("time", "the same in 1 to 8 bytes, big-endian; also a Java BigInteger"),
        "nservicebus-time": ("time", "`2026-02-11 11:00:00:123456 Z`"),
    }
)
# Every fact that a convention can tell, and its form if the row does not say another one.
FACTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "reason": "text",
        "error_type": "text",
        "error_text": "text",
        "stack": "text",
        "source": "queue",
        "exchange": "name",
        "routing_key": "name",
        "partition": "place",
        "offset": "place",
        "consumer_group": "name",
        "retry_count": "count",
        "delivery_count": "count",
        "first_failed_at": "time",
        "failed_at": "time",
        "sent_at": "time",
        "correlation_id": "text",
        "message_id": "text",
    }
)
# Names that stand for somebody whose words are not a row.
RESERVED: Final = ("redrive", "rabbitmq", "onex", "shovel", "unknown")


class Convention(msgspec.Struct, frozen=True, kw_only=True):
    """How one system marks its dead letters."""

    name: str
    recognised_by: tuple[str, ...]  # headers; one of them is enough
    needs_all: bool = False  # or not: they are everyday names, so all of them have to be there
    # fact: the header that tells it, or several, the first one that tells counts
    fields: dict[str, str | tuple[str, ...]]
    forms: dict[str, str] = {}  # fact: its form, where it is not the usual one
    adds: tuple[str, ...] = ()  # headers that are not the producer's; `prefix*` stands for all that begin so
    queue_suffixes: tuple[str, ...] = ()  # its dead-letter queues are called like the source, and this
    kinds: dict[str, str] = {}  # a reason it gives: the kind of failure that is
    in_body: bool = False  # all of this stands in the body, a JSON object; names are paths: `options.retries`

    def __post_init__(self) -> None:
        if not self.recognised_by:
            raise self._refused("'recognised_by' must name at least one header")
        for fact in (*self.fields, *self.forms):
            if fact not in FACTS:
                raise self._refused(f"unknown fact '{fact}'{use_instead(fact, FACTS)}")
        for fact, form in self.forms.items():
            self._check_form(fact, form)
        for kind in self.kinds.values():
            if kind not in set(FailureKind):
                raise self._refused(f"unknown kind '{kind}'{use_instead(kind, FailureKind)}")
        if self.in_body and self.adds:
            raise self._refused("'adds' cannot be used with a JSON body, which is kept unchanged")
        for mark in HEADERS:
            if self.added(mark):
                raise self._refused(f"'{mark}' is a header of redrive, so 'adds' cannot remove it")

    def _check_form(self, fact: str, form: str) -> None:
        if form not in FORMS:
            raise self._refused(f"unknown form '{form}'{use_instead(form, FORMS)}")
        wanted = FORMS[FACTS[fact]][0]
        if FORMS[form][0] != wanted:
            fitting = ", ".join(name for name, (gives, _) in FORMS.items() if gives == wanted)
            raise self._refused(
                f"'{fact}' must be a {wanted}, but form '{form}' gives another type; use one of {fitting}"
            )

    def _refused(self, why: str) -> SettingsError:
        return SettingsError(f"convention '{self.name}': {why}")

    def added(self, header: str) -> bool:
        """Whether it is this convention that adds a header of this name."""
        return header in self.adds or any(
            header.startswith(each[:-1]) for each in self.adds if each.endswith("*")
        )

    def source_of(self, dead_letter_queue: str) -> str | None:
        """The queue whose dead letters lie in this one, as far as its name tells."""
        for suffix in self.queue_suffixes:
            if dead_letter_queue.endswith(suffix) and dead_letter_queue != suffix:
                return dead_letter_queue.removesuffix(suffix)
        return None


# --- in a settings file -----------------------------------------------------------------------------------

# The keys of a [[conventions]] table.
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "Name of the convention, stored with each letter that it reads.",
        "recognised_by": "Headers that identify the convention; one of them is enough.",
        "needs_all": "`true`: all headers of `recognised_by` must be present.",
        "fields": "Table of facts: a header, a list of headers of which the first with a value is used, or `{"
        " header, form }`.",
        "adds": "Headers that the other system adds; they are removed from the message. `prefix*` matches all"
        " headers with this prefix.",
        "queue_suffixes": "Suffixes of its dead-letter queues; the rest of the name is the source.",
        "kinds": "Table: reason = failure kind.",
        "in_body": "`true`: the facts are in a JSON body; names are paths such as `options.retries`.",
    }
)
_MOST: Final = 100


def conventions_from_config(entries: Any) -> tuple[Convention, ...]:
    """The conventions that a settings file lists, in its order."""
    if not isinstance(entries, list):
        raise SettingsError("conventions: write a list, one [[conventions]] table for each system")
    if len(entries) > _MOST:
        raise SettingsError(f"conventions: {len(entries)} tables exceed the limit of {_MOST}")
    rows: list[Convention] = []
    for number, entry in enumerate(entries, start=1):
        row = _row(number, entry)
        if any(row.name == other.name for other in rows):
            raise SettingsError(f"convention '{row.name}': is defined twice; write one table for it")
        rows.append(row)
    return tuple(rows)


def _row(number: int, entry: Any) -> Convention:
    if not isinstance(entry, dict):
        raise SettingsError(f"convention {number}: write it as a table with name, recognised_by and fields")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise SettingsError(f"convention {number}: needs a 'name', as text")
    where = f"convention '{name:.60}'"
    if name in RESERVED:
        raise SettingsError(f"{where}: the name is reserved; choose a name other than {', '.join(RESERVED)}")
    for key in entry:
        if key not in KEYS:
            raise SettingsError(f"{where}: unknown key '{key:.40}'{use_instead(key, KEYS)}")
    for key in ("recognised_by", "fields"):
        if not entry.get(key):
            raise SettingsError(f"{where}: missing '{key}': {KEYS[key]}")
    fields: dict[str, str | tuple[str, ...]] = {}
    forms: dict[str, str] = {}
    for fact, said in _table(where, "fields", entry).items():
        told = said if isinstance(said, dict) else {"header": said}
        for key in told:
            if key not in ("header", "form"):
                raise SettingsError(
                    f"{where}: unknown key '{key:.40}' in fields.{fact:.40}; use header and form"
                )
        headers = _texts(where, f"fields.{fact:.40}", told.get("header"))
        fields[fact] = headers[0] if len(headers) == 1 else headers
        if "form" in told:
            forms[fact] = _text(where, f"fields.{fact:.40}", told["form"])
    return Convention(
        name=name,
        recognised_by=_texts(where, "recognised_by", entry["recognised_by"]),
        needs_all=_truth(where, "needs_all", entry),
        fields=fields,
        forms=forms,
        adds=_texts(where, "adds", entry["adds"]) if entry.get("adds") else (),
        queue_suffixes=_texts(where, "queue_suffixes", entry["queue_suffixes"])
        if entry.get("queue_suffixes")
        else (),
        kinds={
            reason: _text(where, f"kinds.{reason:.40}", kind)
            for reason, kind in _table(where, "kinds", entry).items()
        },
        in_body=_truth(where, "in_body", entry),
    )


def _texts(where: str, key: str, value: Any) -> tuple[str, ...]:
    """One text or several."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str) and each for each in values):
        raise SettingsError(f"{where}: '{key}' must be a non-empty string, or a list of them")
    return tuple(values)


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where}: '{key}' must be a string, not {value!r:.40}")
    return value


def _table(where: str, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    value = entry.get(key, {})
    if not isinstance(value, dict):
        raise SettingsError(f"{where}: invalid '{key}': {KEYS[key]}")
    return value


def _truth(where: str, key: str, entry: Mapping[str, Any]) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise SettingsError(f"{where}: '{key}' must be true or false, not {value!r:.40}")
    return value
