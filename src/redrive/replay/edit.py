"""How is a letter changed before it is sent back?

By an `Edit`, a value that can be kept, shown and repeated: a JSON Patch, a merge patch, changes of headers, a new body,
an expression, or several of these in order. `apply` gives the message it makes of another one; `edited_copy` gives the
letter that carries it. The old letter stays as it was: a copy has an id of its own and names the one it comes from.

The rule: the same edit of the same letter gives the same id, so doing it twice changes nothing. An edit that
cannot be understood is a `SettingsError`, told before any letter is touched; one that does not fit a message is a
`FormatError` for that message. This file knows no store and no broker.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

from redrive.errors import FormatError, SettingsError
from redrive.letters import DeadLetter, Headers, LetterState, Message, Note, letter_id
from redrive.letters.headers import pack
from redrive.letters.letter import EPOCH, storable
from redrive.letters.message import own_correlation_id
from redrive.letters.redrive import unmarked
from redrive.replay import evaluate, expression
from redrive.replay.plain import (
    Json,
    body_of,
    check_body,
    header_to_json,
    read_json,
    same,
    with_headers,
    write_json,
)
from redrive.transports.redriving import attempts_of

MOST_OPERATIONS: Final = 1000
LARGEST: Final = 64 * 1024 * 1024  # bytes that an edit may make of a body
_LONGEST_PATCH: Final = 1024 * 1024
# What an operation of a JSON Patch needs beside its path; the library asks for it only when it is applied.
_NEEDED: Final = MappingProxyType(
    {"add": "value", "replace": "value", "test": "value", "move": "from", "copy": "from"}
)


class JsonPatch(msgspec.Struct, frozen=True, tag="json-patch"):
    """RFC 6902: a list of operations, as JSON."""

    text: str


class MergePatch(msgspec.Struct, frozen=True, tag="merge-patch"):
    """RFC 7386: an object whose members replace those of the body, null removes; as JSON."""

    text: str


class HeaderEdit(msgspec.Struct, frozen=True, tag="headers"):
    """Headers to set, each with its value as JSON, and headers to remove."""

    set: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()


class NewBody(msgspec.Struct, frozen=True, tag="body"):
    """A new body as a whole; None is Kafka's null."""

    body: bytes | None


class Expression(msgspec.Struct, frozen=True, tag="expression"):
    """A line of `replay.expression`."""

    text: str


class Several(msgspec.Struct, frozen=True, tag="several"):
    """One edit after the other."""

    edits: tuple["Edit", ...]


Edit: TypeAlias = JsonPatch | MergePatch | HeaderEdit | NewBody | Expression | Several
Change: TypeAlias = Callable[[Message], Message]


# --- applying --------------------------------------------------------------------------------------------


def apply(edit: Edit, message: Message) -> Message:
    """The message after the edit."""
    return prepare(edit)(message)


def prepare(edit: Edit) -> Change:
    """The edit, understood once for any number of messages."""
    try:
        change = _prepared(edit)
    except RecursionError:
        raise SettingsError("the edit is nested too deeply") from None

    def checked(message: Message) -> Message:
        try:
            changed = change(message)
            check_body(message, changed)
        except RecursionError:
            raise FormatError("the body is nested too deeply to be edited") from None
        return changed

    return checked


def _prepared(edit: Edit) -> Change:
    match edit:
        case JsonPatch(text):
            return _on_body(_json_patch(text))
        case MergePatch(text):
            patch = _given(text, "the merge patch")
            return _on_body(lambda body: _merged(body, patch))
        case HeaderEdit():
            return _header_edit(edit)
        case NewBody(body):
            return lambda message: msgspec.structs.replace(message, body=body)
        case Expression(text):
            return _expression(text)
        case Several(edits):
            return _in_order([prepare(each) for each in edits])


def _in_order(changes: list[Change]) -> Change:
    def change(message: Message) -> Message:
        for each in changes:
            message = each(message)
        return message

    return change


def _on_body(change: Callable[[Json], Json]) -> Change:
    return lambda message: _with_body(message, change(body_of(message)))


def _with_body(message: Message, body: Json) -> Message:
    """The message with this body, if that is another one: what is the same keeps its bytes."""
    try:
        if same(body_of(message), body):
            return message
    except FormatError:
        pass  # it was not JSON, so it is another one
    data = write_json(body, "the body")
    if len(data) > max(LARGEST, message.size):
        raise FormatError(f"the edited body would have {len(data)} bytes; the limit is {LARGEST} bytes")
    return msgspec.structs.replace(message, body=data)


def _given(text: str, what: str) -> Json:
    """JSON that a person gave."""
    if len(text) > _LONGEST_PATCH:
        raise SettingsError(f"{what} has {len(text)} characters; the limit is {_LONGEST_PATCH}")
    try:
        return read_json(text, what)
    except FormatError as error:
        raise SettingsError(str(error)) from None


# --- JSON Patch and merge patch --------------------------------------------------------------------------


def _json_patch(text: str) -> Callable[[Json], Json]:
    from jsonpatch import (  # noqa: PLC0415  most programs never edit
        InvalidJsonPatch,
        JsonPatch as Library,
        JsonPatchException,
        JsonPatchTestFailed,
        JsonPointerException,
    )

    what = "the JSON Patch"
    given = _given(text, what)
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise SettingsError(f'{what} is not a list of operations such as {{"op": "remove", "path": "/note"}}')
    if len(given) > MOST_OPERATIONS:
        raise SettingsError(f"{what} has {len(given)} operations; the limit is {MOST_OPERATIONS}")
    steps = []
    for number, operation in enumerate(given, 1):
        try:
            steps.append((number, operation, Library([operation])))
        except (InvalidJsonPatch, JsonPointerException) as error:
            raise SettingsError(f"{what}: operation {number}: {error}") from None
        needed = _NEEDED.get(operation["op"], "path")
        if needed not in operation:
            raise SettingsError(f"{what}: operation {number} has no '{needed}'")
        if needed == "from" and not (
            isinstance(operation["from"], str) and operation["from"][:1] in {"", "/"}
        ):
            raise SettingsError(f"{what}: operation {number}: 'from' is not a path such as /order/total")

    def change(body: Json) -> Json:
        for number, operation, step in steps:
            try:
                body = step.apply(body, in_place=True)  # the value is our own
            except JsonPatchTestFailed:
                raise FormatError(
                    f"operation {number}: the test of {operation['path']!r:.60} failed"
                ) from None
            except (JsonPatchException, JsonPointerException, TypeError, ValueError, LookupError) as error:
                told = f"{operation['op']} {operation['path']!r:.60}"
                raise FormatError(
                    f"operation {number} ({told}) cannot be applied to the body: {error}"
                ) from None
            if (
                operation["op"] == "copy"
            ):  # the only one that makes more than was given, and doubles when repeated
                _check_size(body)
        return body

    return change


def _check_size(body: Json) -> None:
    if len(write_json(body, "the body")) > LARGEST:
        raise FormatError(f"the edited body would have more than {LARGEST} bytes")


def _merged(target: Json, patch: Json) -> Json:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


# --- headers and expressions -----------------------------------------------------------------------------


def header_edit(assignments: Iterable[str], removals: Iterable[str] = ()) -> HeaderEdit:
    """The edit for `name=value` as people write it: JSON, or a text that begins with a letter."""
    pairs = []
    for each in assignments:
        name, equals, value = each.partition("=")
        if not equals:
            raise SettingsError(f"'{each:.60}' is not a header; write NAME=VALUE")
        bare = value[:1].isalpha() and value not in {"true", "false", "null"}
        pairs.append((name, msgspec.json.encode(storable(value)).decode() if bare else value))
    edit = HeaderEdit(tuple(pairs), tuple(removals))
    _header_edit(edit)
    return edit


def _header_edit(edit: HeaderEdit) -> Change:
    names = [name for name, _ in edit.set]
    if not all((*names, *edit.remove)):
        raise SettingsError("the name of a header must not be empty")
    for name in names:
        if names.count(name) > 1 or name in edit.remove:
            raise SettingsError(f"header '{name:.60}' is changed twice in one edit")
    values: dict[str, Json] = {}
    for name, text in edit.set:
        try:
            values[name] = _given(text, f"the value of header '{name:.60}'")
        except SettingsError as error:
            raise SettingsError(f"{error}; write a string in quotes") from None

    def change(message: Message) -> Message:
        headers = with_headers(message.headers.without(*edit.remove), values)
        return msgspec.structs.replace(message, headers=headers)

    return change


def _expression(text: str) -> Change:
    program = expression.parse(text)

    def change(message: Message) -> Message:
        body: Any = None
        if program.uses_body:
            try:
                body = body_of(message)
            except FormatError as error:
                body = evaluate.Unreadable(str(error))
        before = {name: header_to_json(value) for name, value in message.headers}
        working = {name: header_to_json(value) for name, value in message.headers}
        body, after = evaluate.run(program.statements, body, working)
        gone = [name for name in before if name not in after]
        changed = {
            name: value
            for name, value in after.items()
            if name not in before or not same(before[name], value)
        }
        if gone or changed:
            headers = with_headers(message.headers.without(*gone), changed)
            message = msgspec.structs.replace(message, headers=headers)
        if program.uses_body and not isinstance(body, evaluate.Unreadable):
            message = _with_body(message, body)
        return message

    return change


# --- keeping ---------------------------------------------------------------------------------------------


def write(edit: Edit) -> str:
    """The edit as JSON, to be kept with the operation it belongs to."""
    return msgspec.json.encode(edit).decode()


def read(text: str | bytes) -> Edit:
    """The edit that `write` wrote, checked."""
    try:
        edit: Edit = msgspec.json.decode(text, type=Edit)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise SettingsError(f"not a valid edit: {error}") from None
    prepare(edit)
    return edit


def edited_copy(letter: DeadLetter, message: Message, *, by: str, at: datetime) -> DeadLetter:
    """A new letter with this message, due at `at`. It has the death of the old one, and a history of its own."""
    if message == letter.message:
        raise FormatError(f"the edit changes nothing in letter {letter.id}")
    key = f"{_key_of_edits(letter.id)}{_digest(message)}"
    message = msgspec.structs.replace(message, headers=unmarked(message.headers))
    return msgspec.structs.replace(
        letter,
        id=letter_id(key, letter.failure.at),  # not `at`: the same edit tomorrow is the same letter
        key=key,
        derived_from=letter.id,
        prior_redrives=attempts_of(letter),
        message=message,
        message_id=storable(message.message_id) if message.message_id else None,
        correlation_id=storable(own_correlation_id(message) or letter.correlation_id),
        size=message.size,
        state=LetterState.PENDING,
        strategy=None,
        dlq_retry_count=0,
        next_retry_at=at,
        created_at=EPOCH,
        updated_at=EPOCH,
        fence=0,
        locked_by=None,
        locked_at=None,
        lease_until=None,
        sent_at=None,
        presumed=False,
        unconfirmed=False,
        attempts=(),
        notes=(Note(at, by, f"edited copy of {letter.id}"),),
    )


def is_new_edit(letter: DeadLetter) -> bool:
    """Whether the letter is an edited copy that was never redriven."""
    original = letter.derived_from
    return (
        original is not None
        and letter.dlq_retry_count == 0
        and letter.key.startswith(_key_of_edits(original))
    )


def _key_of_edits(letter_id: str) -> str:
    """How the keys of all edited copies of a letter begin."""
    return f"edit/{letter_id}/"


def _digest(message: Message) -> str:
    """What tells this content from any other."""
    digest = blake2b(digest_size=16)
    for value in msgspec.structs.astuple(message):
        match value:
            case None:
                data, kind = b"", b"-"
            case bytes():
                data, kind = value, b"b"
            case Headers():
                data, kind = pack(value), b"h"
            case datetime():
                data, kind = value.isoformat().encode(), b"t"
            case _:
                data, kind = str(value).encode("utf-8", "surrogatepass"), b"s"
        digest.update(kind + len(data).to_bytes(8) + data)
    return digest.hexdigest()
