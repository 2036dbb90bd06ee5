"""How is a verb of the store asked for over a wire, and how is it answered?

As MessagePack: the verb's arguments by their names, and its answer. The cold part of a letter travels as it is stored
(`cold`), so it is as bit-exact here as there. Errors travel as their class and their text and are raised on the other
side as what they were. `VERBS` is everything that can be asked for.

It does not know what carries the bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from redrive import errors
from redrive.errors import FormatError, RedriveError, StoreError
from redrive.letters import ClaimToken, DeadLetter, Failure, LetterHead, Note, RedriveAttempt
from redrive.settings import LimitSettings
from redrive.stores.base import JournalLine, LogSize, Page, Rescued, Store, Trimmed
from redrive.stores.changes import (
    Annotate,
    Archive,
    Assign,
    Change,
    Delete,
    Discard,
    Fail,
    Outcome,
    Park,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    SetBroker,
    Settlement,
    Tag,
    Unclaim,
)
from redrive.stores.cold import pack_content, pack_failure, unpack_content, unpack_failure
from redrive.stores.expansion import ExpansionBudget
from redrive.stores.gates import Gate
from redrive.stores.memos import Memo
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.query import Condition, Op, Query, Sort

CONTENT_TYPE: Final = "application/msgpack"
_MAX_SENT_RATIO: Final = 100  # what compresses better is sent as it is: a server limits the ratio
_DEFAULT_LIMITS: Final = LimitSettings()


# --- values that need help --------------------------------------------------------------------------------


# Text, or bytes where it is not valid Unicode: half a character names no letter, but somebody may ask for it.
_Text: TypeAlias = Any


def _text_out(value: Any) -> Any:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
    return value


def _text_in(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _name_in(value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise FormatError(f"an id is text, not {type(value).__name__}")
    return str(_text_in(value))


def _texts_out(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(_text_out, values))


def _texts_in(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(_text_in, values))


class _Letter(msgspec.Struct, frozen=True, array_like=True):
    head: LetterHead
    content: bytes
    failure: bytes
    attempts: tuple[RedriveAttempt, ...]
    notes: tuple[Note, ...]


class _Named(msgspec.Struct, frozen=True, array_like=True):
    """One of several kinds of value, by the name of its kind."""

    kind: str
    value: msgspec.Raw


class _Settlement(msgspec.Struct, frozen=True, array_like=True):
    claim_token: ClaimToken
    outcome: _Named


class _Condition(msgspec.Struct, frozen=True, array_like=True):
    field: str
    op: Op
    values: tuple[Any, ...]  # times are a type of MessagePack's own, and bytes are text (see `_Text`)
    negated: bool


class _Query(msgspec.Struct, frozen=True, array_like=True):
    conditions: tuple[_Condition, ...]
    text: tuple[_Text, ...]
    sort: Sort


_HEAD: Final = LetterHead.__struct_fields__
# The names of outcomes and changes on the wire. They are part of the protocol: they never change.
_OUTCOMES: Final[Mapping[str, type[Outcome]]] = {
    "Resolve": Resolve,
    "Retry": Retry,
    "Exhaust": Fail,
    "Park": Park,
    "Release": Unclaim,
}
_CHANGES: Final[Mapping[str, type[Change]]] = {
    "Schedule": Schedule,
    "Discard": Discard,
    "Archive": Archive,
    "Delete": Delete,
    "Assign": Assign,
    "Tag": Tag,
    "Prioritise": Prioritise,
    "Annotate": Annotate,
    "SetBroker": SetBroker,
}
_WIRE_NAMES: Final = {kind: name for kinds in (_OUTCOMES, _CHANGES) for name, kind in kinds.items()}
_pack: Final = msgspec.msgpack.encode


def _letter_out(letter: DeadLetter) -> _Letter:
    head = LetterHead(**{name: getattr(letter, name) for name in _HEAD})
    content = pack_content(letter, max_ratio=_MAX_SENT_RATIO)
    failure = pack_failure(letter.failure, max_ratio=_MAX_SENT_RATIO)
    return _Letter(head, content, failure, letter.attempts, letter.notes)


def _letter_in(letter: _Letter, budget: ExpansionBudget | None = None) -> DeadLetter:
    if budget is not None:
        budget.begin_letter()
    return DeadLetter(
        **msgspec.structs.asdict(letter.head),
        **unpack_content(letter.content, budget),
        failure=unpack_failure(letter.failure, budget),
        attempts=letter.attempts,
        notes=letter.notes,
    )


def _named_in(named: _Named, kinds: Mapping[str, type[Any]]) -> Any:
    if named.kind not in kinds:
        raise FormatError(f"unknown type '{named.kind:.60}' ; the other process may have a newer version")
    return msgspec.msgpack.decode(named.value, type=kinds[named.kind])


def _change_out(change: Change) -> _Named:
    return _Named(_WIRE_NAMES[type(change)], msgspec.Raw(_pack(change)))


def _outcome_out(outcome: Outcome) -> _Named:
    failure: Failure | None = getattr(outcome, "failure", None)
    if failure is not None:  # as it would be stored: text that is not valid Unicode is only text
        outcome = msgspec.structs.replace(outcome, failure=unpack_failure(pack_failure(failure)))
    return _Named(_WIRE_NAMES[type(outcome)], msgspec.Raw(_pack(outcome)))


def _query_in(query: _Query) -> Query:
    return Query(
        tuple(
            Condition(each.field, each.op, _texts_in(each.values), each.negated) for each in query.conditions
        ),
        _texts_in(query.text),
        query.sort,
    )


def _query_out(query: Query) -> _Query:
    return _Query(
        tuple(
            _Condition(each.field, each.op, _texts_out(each.values), each.negated)
            for each in query.conditions
        ),
        _texts_out(query.text),
        query.sort,
    )


# name of an argument → how it leaves, and how it comes in
_OUT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "letters": lambda letters: tuple(_letter_out(letter) for letter in letters),
    "settlements": lambda settlements: tuple(
        _Settlement(one.claim_token, _outcome_out(one.outcome)) for one in settlements
    ),
    "change": _change_out,
    "query": _query_out,
    "ids": _texts_out,
    "operation_id": _text_out,
    "letter_id": _text_out,
}
_IN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "settlements": lambda settlements: [
        Settlement(one.claim_token, _named_in(one.outcome, _OUTCOMES)) for one in settlements
    ],
    "change": lambda change: _named_in(change, _CHANGES),
    "query": _query_in,
    "ids": lambda ids: tuple(map(_name_in, ids)),
    "operation_id": _name_in,
    "letter_id": lambda name: None if name is None else _name_in(name),
}


# --- every verb -------------------------------------------------------------------------------------------


class Verb(msgspec.Struct, frozen=True):
    """The types of a verb's arguments and of its answer, as they travel."""

    arguments: type[msgspec.Struct]
    answer: Any


def _verb(name: str, answer: Any, defaults: Mapping[str, Any] | None = None, /, **arguments: Any) -> Verb:
    """`defaults` are of arguments that an older client does not send. A number has to fit a column of a database."""
    kinds = {each: _Int64 if kind is int else kind for each, kind in arguments.items()}
    fields = [
        (each, kind, defaults[each]) if defaults and each in defaults else (each, kind)
        for each, kind in kinds.items()
    ]
    return Verb(msgspec.defstruct(f"_{name}", fields, frozen=True), answer)


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_IDS: Final = tuple[_Text, ...]
VERBS: Final[Mapping[str, Verb]] = MappingProxyType(
    {
        "add": _verb("add", list[bool], letters=tuple[_Letter, ...]),
        "load": _verb("load", list[_Letter], ids=_IDS),
        "page": _verb("page", Page, query=_Query, limit=int, cursor=str | None),
        "count": _verb("count", int, query=_Query),
        "tally": _verb("tally", dict[str, int], by=str, query=_Query),
        "claim": _verb(
            "claim",
            list[LetterHead],
            worker=str,
            broker=str,
            limit=int,
            lease=timedelta,
            gates=tuple[Gate, ...],
        ),
        "take": _verb(
            "take",
            list[LetterHead],
            {"reclaim": False},
            ids=_IDS,
            worker=str,
            brokers=tuple[str, ...] | None,
            lease=timedelta,
            reclaim=bool,
        ),
        "extend": _verb("extend", list[bool], holds=tuple[ClaimToken, ...], lease=timedelta, sent=bool),
        "settle": _verb("settle", list[bool], settlements=tuple[_Settlement, ...]),
        "rescue": _verb("rescue", list[Rescued], retry_in=timedelta, max_redrives=int, limit=int),
        "overdue": _verb("overdue", list[LetterHead], broker=str, lease=timedelta, limit=int),
        "apply": _verb("apply", None, change=_Named, ids=_IDS, by=str),
        "journal": _verb("journal", list[JournalLine], letter_id=_Text, after=int, limit=int),
        "measure_change_log": _verb("measure_change_log", LogSize, after=int, limit=int),
        "trim_change_log": _verb(
            "trim_change_log", Trimmed, before=datetime, up_to=int, after=int, limit=int
        ),
        "begin": _verb("begin", bool, operation=Operation, ids=_IDS),
        "operation": _verb("operation", Operation, operation_id=_Text),
        "operations": _verb("operations", list[Operation], limit=int),
        "remaining": _verb("remaining", list[str], operation_id=_Text, limit=int),
        "items": _verb("items", list[Item], operation_id=_Text, after=int, limit=int),
        "record": _verb("record", None, operation_id=_Text, outcomes=tuple[tuple[str, str, str], ...]),
        "run_operation": _verb(
            "run_operation",
            bool,
            {"replaces": None},
            operation_id=_Text,
            runner=str,
            lease=timedelta,
            resume=bool,
            replaces=str | None,
        ),
        "end_operation": _verb(
            "end_operation", bool, operation_id=_Text, state=OperationState, by=str, note=str
        ),
        "groups": _verb("groups", list[Group], query=_Query, limit=int),
        "recall": _verb("recall", Memo, name=str),
        "remember": _verb("remember", bool, name=str, body=bytes, version=int),
        "damage": _verb("damage", str | None),
    }
)


def ask(verb: str, arguments: Mapping[str, Any]) -> bytes:
    """The question. What cannot be written down is refused here."""
    fields = {
        name: _OUT[name](value) if name in _OUT else tuple(value) if _is_many(value) else value
        for name, value in arguments.items()
    }
    try:
        return _pack(VERBS[verb].arguments(**fields))
    except (ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"'{verb}' cannot be encoded: {error}") from error


async def answer(store: Store, verb: str, question: bytes, limits: LimitSettings = _DEFAULT_LIMITS) -> bytes:
    """What this store answers. A question that expands to more than the limits allow is a `FormatError`."""
    try:
        asked = msgspec.msgpack.decode(question, type=VERBS[verb].arguments)
        arguments = {name: getattr(asked, name) for name in asked.__struct_fields__}
        arguments = {name: _IN[name](value) if name in _IN else value for name, value in arguments.items()}
        if verb == "add":
            budget = ExpansionBudget(limits)
            arguments["letters"] = [_letter_in(letter, budget) for letter in arguments["letters"]]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"the request '{verb}' cannot be read: {error}") from error
    found = await getattr(store, verb)(**arguments)
    if verb == "load":
        found = [_letter_out(letter) for letter in found]
    return _pack(found)


def read(verb: str, data: bytes) -> Any:
    """The answer."""
    try:
        found = msgspec.msgpack.decode(data, type=VERBS[verb].answer)
        return [_letter_in(letter) for letter in found] if verb == "load" else found
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StoreError(
            f"the answer to '{verb}' cannot be read: {error}; check that the server has the same version"
        ) from error


def _is_many(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


# --- errors -----------------------------------------------------------------------------------------------


class KeyProof(msgspec.Struct, frozen=True):
    """How a server proves that it knows its key, and where the key is."""

    proof: str
    file: str | None


class _Error(msgspec.Struct, frozen=True):
    kind: str
    text: str


def error_out(error: RedriveError) -> bytes:
    """An error as it travels."""
    return _pack(_Error(type(error).__name__, str(error).encode("utf-8", "replace").decode()))


def error_in(data: bytes) -> RedriveError:
    """The error that these bytes are; one that is not known here is a `StoreError` with its text."""
    try:
        told = msgspec.msgpack.decode(data, type=_Error)
    except (msgspec.MsgspecError, ValueError):
        return StoreError("the server failed without an error message; check that it is redrive serve")
    kind = getattr(errors, told.kind, None)
    if isinstance(kind, type) and issubclass(kind, RedriveError):
        return kind(told.text)
    return StoreError(f"{told.kind:.60}: {told.text}")
