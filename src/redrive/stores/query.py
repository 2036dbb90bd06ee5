"""Which letters are meant, and in which order?

One language for the command line, the console and replay::

    state:pending source:orders.* error:TimeoutError,OSError -tag:vip priority>=5 since:2h "card declined"

Words are ANDed; a comma in a value means OR; a leading `-` negates; `*` at the end of a value matches any
rest. `parse_query` turns the text into a `Query`, a plain value that `matches` judges in Python and that each store
translates into its own language: `matches` is the meaning, a store's translation must agree with it.
A query never sees a body: it is answered from heads alone.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from redrive.errors import QueryError, SettingsError, did_you_mean, use_instead
from redrive.letters import FailureKind, LetterHead, LetterState
from redrive.letters.letter import storable
from redrive.rules.durations import parse_duration

Value: TypeAlias = str | int | datetime


class Op(StrEnum):
    """How a field is compared."""

    IS = ":"
    PREFIX = ":*"
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="


class FieldKind(StrEnum):
    """What a field holds, which decides what may be written after its name."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"
    TAGS = "tags"
    FLAG = "yes or no"


class Field(msgspec.Struct, frozen=True):
    """A name of the language and the attribute of `LetterHead` behind it."""

    attribute: str
    kind: FieldKind
    help: str
    choices: tuple[str, ...] = ()


_TEXT, _NUMBER, _TIME, _FLAG = FieldKind.TEXT, FieldKind.NUMBER, FieldKind.TIME, FieldKind.FLAG
FIELDS: Final[Mapping[str, Field]] = MappingProxyType(
    {
        "id": Field("id", _TEXT, "id of the letter"),
        "state": Field(
            "state", _TEXT, "pending, processing, manual, resolved, failed or archived", tuple(LetterState)
        ),
        "source": Field("source", _TEXT, "queue or topic it was consumed from"),
        "broker": Field("broker", _TEXT, "name of the broker it belongs to"),
        "consumer_group": Field("consumer_group", _TEXT, "consumer group that failed"),
        "error": Field("error_type", _TEXT, "type of the error"),
        "kind": Field("kind", _TEXT, "kind of failure", tuple(FailureKind)),
        "reason": Field("reason", _TEXT, "reason of the dead-lettering"),
        "group": Field("group", _TEXT, "fingerprint of the failure"),
        "correlation": Field("correlation_id", _TEXT, "correlation id"),
        "message": Field("message_id", _TEXT, "message id"),
        "strategy": Field("strategy", _TEXT, "strategy by which it is redriven"),
        "worker": Field("locked_by", _TEXT, "worker that has claimed it"),
        "assignee": Field("assignee", _TEXT, "person it is assigned to"),
        "tag": Field("tags", FieldKind.TAGS, "one of its tags"),
        "priority": Field("priority", _NUMBER, "letters of higher priority are redriven first"),
        "size": Field("size", _NUMBER, "bytes of the body"),
        "retries": Field("retry_count", _NUMBER, "attempts by its consumer"),
        "redrives": Field("dlq_retry_count", _NUMBER, "redrives so far"),
        "created": Field("created_at", _TIME, "when it was added to the store"),
        "updated": Field("updated_at", _TIME, "when it was last changed"),
        "failed": Field("last_failed_at", _TIME, "when it last failed"),
        "first_failed": Field("first_failed_at", _TIME, "when it first failed"),
        "due": Field("next_retry_at", _TIME, "when it is due for a redrive"),
        "unconfirmed": Field("unconfirmed", _FLAG, "redriven, but no verdict arrived in time"),
        "presumed": Field("presumed", _FLAG, "resolved without a verdict"),
        "waits_for": Field(
            "waits_for", _TEXT, "condition that a due letter waits for, such as `breaker:orders`"
        ),
    }
)
_RENAMED: Final = MappingProxyType({"transport": "broker"})  # fields of earlier versions
FLAGS: Final = MappingProxyType({"no": 0, "yes": 1})
SORTABLE: Final = ("created", "updated", "failed", "first_failed", "due", "priority", "size", "redrives")
TEXT_ATTRIBUTES: Final = ("error_text", "error_type", "message_id", "correlation_id", "id")


class Condition(msgspec.Struct, frozen=True):
    """`field` compared with any of `values`; negated: with none of them."""

    field: str
    op: Op
    values: tuple[Value, ...]
    negated: bool = False

    def holds(self, head: LetterHead) -> bool:
        """Whether the head meets this condition."""
        field = FIELDS[self.field]
        actual = getattr(head, field.attribute)
        candidates = actual if field.kind is FieldKind.TAGS else (actual,)
        return self.negated is not any(
            _compare(self.op, candidate, value)
            for candidate in candidates
            if candidate is not None
            for value in self.values
        )


def _compare(op: Op, actual: Value, wanted: Value) -> bool:
    match op:
        case Op.IS:
            return actual == wanted
        case Op.PREFIX:
            return str(actual).startswith(str(wanted))
        case Op.LESS:
            return actual < wanted  # type: ignore[operator]  # parse gives both the field's type
        case Op.AT_MOST:
            return actual <= wanted  # type: ignore[operator]
        case Op.MORE:
            return actual > wanted  # type: ignore[operator]
        case Op.AT_LEAST:
            return actual >= wanted  # type: ignore[operator]


class Sort(msgspec.Struct, frozen=True):
    """An order of letters; equal ones are ordered by id."""

    field: str = "created"
    descending: bool = True


class Query(msgspec.Struct, frozen=True):
    """All conditions hold, and every piece of text occurs in the error or in one of the ids."""

    conditions: tuple[Condition, ...] = ()
    text: tuple[str, ...] = ()
    sort: Sort = Sort()

    def matches(self, head: LetterHead) -> bool:
        """Whether the head is one of those meant."""
        return all(condition.holds(head) for condition in self.conditions) and all(
            any(needle in fold(getattr(head, name) or "") for name in TEXT_ATTRIBUTES) for needle in self.text
        )

    def narrowed(self, condition: Condition) -> "Query":
        """The same query with one more condition."""
        return Query((*self.conditions, condition), self.text, self.sort)


EVERYTHING: Final = Query()


def tally_field(name: str) -> Field:
    """The field that letters are counted by: one with words in it."""
    field = FIELDS.get(name)
    if field is None or field.kind not in {FieldKind.TEXT, FieldKind.TAGS}:
        words = tuple(n for n, f in FIELDS.items() if f.kind in {FieldKind.TEXT, FieldKind.TAGS})
        hint = f"; did you mean '{_RENAMED[name]}'?" if name in _RENAMED else use_instead(name, words)
        raise QueryError(f"cannot count by '{name}'{hint}")
    return field


def fold(text: str) -> str:
    """The text as searched: ASCII letters in lower case, which every database can do alike."""
    return text.translate(_FOLD)


_FOLD: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


# --- reading ---------------------------------------------------------------------------------------------

_WORD: Final = re.compile(
    r"""\s*(?:
        "(?P<quoted>(?:[^"\\]|\\.)*)"
      | (?P<negated>-)?(?P<name>[A-Za-z_]+)(?P<op>:|<=|>=|<|>)(?P<value>(?:"(?:[^"\\]|\\.)*"|[^\s"])*)
      | (?P<bare>[^\s"]+)
    )""",
    re.VERBOSE,
)
_ALIASES: Final = MappingProxyType({"since": ("created", Op.AT_LEAST), "until": ("created", Op.AT_MOST)})
_OPERATORS: Final = MappingProxyType(
    {"OR": "OR", "||": "OR", "|": "OR", "AND": "AND", "&&": "AND", "&": "AND", "NOT": "NOT", "!": "NOT"}
)
_FIELD_BEGINS: Final = re.compile(r"-?[A-Za-z_]+(:|<|>)")
_LONGEST_QUERY: Final = 4096
_VALUE_PART: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,"]+)')


def parse_query(text: str, *, now: datetime, sort: Sort | None = None) -> Query:
    """The query a person wrote. `now` is what `since:2h` counts back from, `sort` the order if the text has none."""
    if len(text) > _LONGEST_QUERY:
        raise QueryError(f"the filter has {len(text)} characters; the limit is {_LONGEST_QUERY}")
    if text != storable(text):
        raise QueryError("the filter contains characters that are not valid Unicode")
    conditions: list[Condition] = []
    needles: list[str] = []
    sort = sort or Sort()
    position = 0
    words: list[re.Match[str]] = []
    while position < len(text.rstrip()):
        found = _WORD.match(text, position)
        if found is None:
            raise QueryError(f"the filter has a quote that is not closed: {text[position:].strip()[:40]}")
        position = found.end()
        words.append(found)
    _check_operators(words)
    for found in words:
        if found["quoted"] is not None:
            needles.append(_quoted_needle(_unquote(found["quoted"])))
        elif found["bare"] is not None:
            needles.append(_needle(found["bare"]))
        elif found["name"].lower() == "sort":
            if found["negated"] or found["op"] != ":":
                raise QueryError("write 'sort:FIELD', or 'sort:-FIELD' for the largest first")
            sort = _sort(found["value"])
        else:
            negated = found["negated"] is not None
            conditions.append(
                _condition(found["name"].lower(), found["op"], found["value"], now, negated=negated)
            )
    return Query(tuple(conditions), tuple(needles), sort)


def _check_operators(words: Sequence[re.Match[str]]) -> None:
    """Refuse operators of other languages, which would be searched for as words."""
    for place, word in enumerate(words):
        bare = word["bare"]
        if bare is None:
            continue
        before = words[place - 1] if place else None
        after = words[place + 1] if place + 1 < len(words) else None
        is_between_fields = before is not None and after is not None and before["name"] and after["name"]
        operator = _OPERATORS.get(bare) or (_OPERATORS.get(bare.upper()) if is_between_fields else None)
        if operator is not None:
            raise QueryError(
                f"'{bare}' is not an operator: {_spelling(operator, before, after)} "
                f'(to search for the word, quote it: "{bare}")'
            )
        if bare.startswith("(") and _FIELD_BEGINS.match(bare.lstrip("(")):
            raise QueryError(
                f"'{bare:.40}': there are no parentheses; conditions side by side must all hold, and a comma means or"
            )


def _spelling(operator: str, before: re.Match[str] | None, after: re.Match[str] | None) -> str:
    """How to write what was meant."""
    if operator == "AND":
        return "conditions side by side must all hold, so leave it out"
    if operator == "NOT":
        example = (
            f"{after['name']}:{after['value']}" if after is not None and after["name"] else "source:mail"
        )
        return f"write a '-' before the field: -{example}"
    names = {word["name"].lower() for word in (before, after) if word is not None and word["name"]}
    if len(names) == 1 and before is not None and after is not None:
        return f"separate values by commas: {before['name']}:{before['value']},{after['value']}"
    return "separate values of one field by commas (source:orders,mail); for different fields use two filters"


def _needle(text: str) -> str:
    if text.startswith("-"):
        raise QueryError(
            f"only fields can be negated, not words: '{text:.40}'; to search for it, quote all of it"
        )
    return fold(text)


def _quoted_needle(text: str) -> str:
    if not text.strip():
        raise QueryError("the search text is empty: write a word between the quotes")
    return fold(text)


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _sort(value: str) -> Sort:
    name = value.removeprefix("-")
    if name not in SORTABLE:
        raise QueryError(f"cannot sort by '{name}'{use_instead(name, SORTABLE)}")
    return Sort(name, descending=value.startswith("-"))


def _condition(name: str, symbol: str, raw: str, now: datetime, *, negated: bool) -> Condition:
    op = Op(symbol)
    if name in _ALIASES:
        if op is not Op.IS:
            raise QueryError(f"write '{name}:{raw}', not '{name}{symbol}{raw}'")
        name, op = _ALIASES[name]
    field = FIELDS.get(name)
    if field is None:
        known = (*FIELDS, *_ALIASES, "sort")
        hint = f"; did you mean '{_RENAMED[name]}'?" if name in _RENAMED else did_you_mean(name, known)
        raise QueryError(f"unknown field '{name}'{hint} (to search for a word with a colon, quote it)")
    found = _VALUE_PART.findall(raw)
    parts = [_unquote(quoted) if quoted else plain for quoted, plain in found]
    starred = [plain.endswith("*") for _, plain in found]
    if not parts:
        raise QueryError(f"'{name}{symbol}' has no value")
    if op is not Op.IS:
        if field.kind in {FieldKind.TEXT, FieldKind.TAGS}:
            raise QueryError(f"'{name}' is text and cannot be compared with '{symbol}'; use '{name}:'")
        if field.kind is FieldKind.FLAG:
            raise QueryError(f"'{name}' is yes or no and cannot be compared with '{symbol}'; use '{name}:'")
        if len(parts) > 1:
            raise QueryError(f"'{name}{symbol}' takes one value, not {len(parts)}")
    elif field.kind is FieldKind.TIME:
        raise QueryError(f"a time cannot be compared with ':'; compare '{name}' with >=, >, <= or <")
    elif any(starred) and field.kind in {FieldKind.TEXT, FieldKind.TAGS}:
        if not all(starred):
            raise QueryError(f"'{name}:{raw:.40}' mixes values with and without '*'; write two filters")
        return Condition(name, Op.PREFIX, tuple(_prefix(name, part[:-1]) for part in parts), negated)
    if field.kind is FieldKind.TIME and (day := _day(parts[0])) is not None and op in _BEYOND_DAY:
        return Condition(name, _BEYOND_DAY[op], (_day_after(name, day),), negated)
    return Condition(name, op, tuple(_value(name, field, part, now) for part in parts), negated)


def _prefix(name: str, value: str) -> str:
    return f"dlq_{value}" if name == "state" and not value.startswith("dlq_") else value


def _value(name: str, field: Field, text: str, now: datetime) -> Value:
    if field.kind is FieldKind.NUMBER:
        try:
            return _of_63_bits(int(text))
        except ValueError:
            raise QueryError(f"'{name}' must be an integer, not '{text:.40}'") from None
        except OverflowError:
            raise QueryError(f"'{name}' must be an integer of at most 63 bits, not '{text:.40}'") from None
    if field.kind is FieldKind.TIME:
        return _time(name, text, now)
    if field.kind is FieldKind.FLAG:
        if text not in FLAGS:
            raise QueryError(f"'{name}' must be yes or no, not '{text:.40}'")
        return FLAGS[text]
    if field.choices:
        value = _prefix(name, text)
        if value not in field.choices:
            known = [choice.removeprefix("dlq_") for choice in field.choices]
            raise QueryError(f"'{name}' cannot be '{text}'{use_instead(text, known)}")
        return value
    return text


def _of_63_bits(number: int) -> int:
    """The number, if every database can hold it."""
    if abs(number) >= 2**63:
        raise OverflowError
    return number


# A date is a whole day: until it means before the next one, and after it from the next one on.
_BEYOND_DAY: Final = MappingProxyType({Op.AT_MOST: Op.LESS, Op.MORE: Op.AT_LEAST})


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _day_after(name: str, day: date) -> datetime:
    try:
        return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    except OverflowError:
        raise QueryError(f"'{name}' must be a date before {day}") from None


def _time(name: str, text: str, now: datetime) -> datetime:
    """`2026-02-11`, `2026-02-11T12:00:00Z`, or a duration: `2h` counts back from now, `+2h` forward."""
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return now + parse_duration(text[1:]) if text.startswith("+") else now - parse_duration(text)
    except (SettingsError, OverflowError):
        raise QueryError(f"'{name}' must be a time such as 2026-02-11T12:00Z or 2h, not '{text}'") from None


# --- paging ----------------------------------------------------------------------------------------------


class Position(msgspec.Struct, frozen=True):
    """The last letter of a page: the value it was sorted by, and its id."""

    value: int | datetime
    id: str


def write_cursor(query: Query, last: LetterHead) -> str:
    """Where the next page of `query` begins, as text to be handed back as it is."""
    return cursor_at(query, Position(getattr(last, FIELDS[query.sort.field].attribute), last.id))


def cursor_at(query: Query, position: Position) -> str:
    """The cursor that `read_cursor` reads this position from."""
    value = position.value
    number = value if isinstance(value, int) else (value - _EPOCH) // timedelta(microseconds=1)
    return urlsafe_b64encode(msgspec.msgpack.encode((_mark(query), number, position.id))).decode().rstrip("=")


def read_cursor(query: Query, cursor: str) -> Position:
    """The position that `write_cursor` wrote for this same query."""
    try:
        data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        mark, number, last_id = msgspec.msgpack.decode(data, type=tuple[bytes, int, str])
        is_time = FIELDS[query.sort.field].kind is FieldKind.TIME
        value = _EPOCH + timedelta(microseconds=number) if is_time else _of_63_bits(number)
    except (ValueError, msgspec.MsgspecError, OverflowError):
        raise QueryError("the cursor cannot be read; start again from the first page") from None
    if mark != _mark(query):
        raise QueryError("the cursor belongs to another filter; start again from the first page")
    return Position(value, last_id)


def _mark(query: Query) -> bytes:
    """What tells one query from another; times are left out, because `since:2h` moves between two pages."""
    shape = [
        (c.field, c.op, c.negated, [v for v in c.values if not isinstance(v, datetime)])
        for c in query.conditions
    ]
    return blake2b(msgspec.msgpack.encode((shape, query.text, query.sort)), digest_size=6).digest()


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
