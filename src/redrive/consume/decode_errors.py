"""Say what a decoder could not read, without quoting the message.

The text of a decoder's error often repeats the value that was wrong: `Invalid enum value 'John'`, pydantic's
`input_value`. Such a text must not reach a log, a header or a dead letter, and no pattern finds every name in it. So it
is never used. What is used instead is known to come from the program: the class of the error, the place in the message
as far as it consists of field names of the expected type, and that type.

    ValidationError at $.customer.age, expected int
    ValidationError at $, expected Order, missing: id
    DecodeError at byte 17
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import msgspec.inspect as shapes

_PLACE: Final = re.compile(
    r" - at `(\$[^`]*)`$"
)  # how msgspec ends its texts; keys of mappings are `[...]` there
_STEP: Final = re.compile(r"\.([^.\[\]`]+)|\[(\.\.\.|\d+)\]")
_BYTE: Final = re.compile(r"^[A-Za-z ]+ is malformed: .*\(byte (\d{1,12})\)$", re.DOTALL)
_CODE: Final = re.compile(r"[a-z][a-z_]{0,39}")
_MOST_STEPS: Final = 20
_MOST_MISSING: Final = 5


def describe_msgspec_error(error: Exception, kind: Any, plain: Callable[[], Any]) -> str:
    """Describe an error that msgspec raised for this type; `plain` decodes the message without a type."""
    name = type(error).__name__
    if not isinstance(error, msgspec.ValidationError):
        found = _BYTE.match(_text_of(error))
        return f"{name} at byte {found[1]}" if found else name
    found = _PLACE.search(_text_of(error))
    try:
        info: Any = shapes.type_info(kind)
        value: Any = plain()
    except Exception:  # noqa: BLE001  a description is best effort; the class is known
        return name
    path = "$"
    for step in _STEP.finditer(found[1][1:] if found else ""):
        below = _below(info, value, step)
        if below is None:
            path += "[...]"
            return f"{name} at {path}"
        shown, info, value = below
        path += shown
    missing = _missing(info, value)
    return f"{name} at {path}, expected {_name_of(info)}" + (f", missing: {missing}" if missing else "")


def describe_foreign_error(error: Exception, *models: Any) -> str:
    """Describe an error that a user's own decoder raised. Field names of `models` (pydantic) are shown."""
    name = type(error).__name__
    if isinstance(error, msgspec.MsgspecError) and not isinstance(error, msgspec.ValidationError):
        found = _BYTE.match(_text_of(error))
        return f"{name} at byte {found[1]}" if found else name
    if isinstance(error, json.JSONDecodeError):
        return f"{name} at line {error.lineno} column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"{name} at byte {error.start}"
    details = _pydantic_details(error)
    if details is None:
        return name
    where, code = details
    return f"{name} at {_shown_path(where, models)}" + (f", {code}" if code else "")


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  an error without a text is still an error
        return ""


# --- msgspec -----------------------------------------------------------------------------------------------------


def _below(info: Any, value: Any, step: "re.Match[str]") -> tuple[str, Any, Any] | None:
    """One step down: how it is shown, the type there and the value there; None where the type does not say."""
    field, index = step[1], step[2]
    if field is not None:
        for candidate in _alternatives(info):
            for known in getattr(candidate, "fields", ()):
                if known.encode_name == field:
                    return f".{field}", known.type, value.get(field) if isinstance(value, Mapping) else None
        return None
    for candidate in _alternatives(info):
        kinds = (getattr(candidate, "item_type", None), getattr(candidate, "value_type", None))
        inner = next((kind for kind in kinds if kind is not None), None)
        items = getattr(candidate, "item_types", None)  # of a tuple
        if inner is None and items and index != "..." and int(index) < len(items):
            inner = items[int(index)]
        if inner is None:
            continue
        if index == "...":
            return "[...]", inner, None  # which key it was is the message's own
        at = int(index)
        known = value[at] if isinstance(value, list | tuple) and at < len(value) else None
        return f"[{at}]", inner, known
    return None


def _alternatives(info: Any) -> tuple[Any, ...]:
    return info.types if isinstance(info, shapes.UnionType) else (info,)


def _name_of(info: Any) -> str:
    if isinstance(info, shapes.UnionType):
        return " or ".join(dict.fromkeys(map(_name_of, info.types)))
    if isinstance(info, shapes.NoneType):
        return "null"
    cls = getattr(info, "cls", None)
    if isinstance(cls, type):
        return cls.__name__
    return type(info).__name__.removesuffix("Type").lower()


def _missing(info: Any, value: Any) -> str:
    """Names of required fields that an object does not have."""
    if not isinstance(value, Mapping):
        return ""
    for candidate in _alternatives(info):
        fields = getattr(candidate, "fields", ())
        names = [field.encode_name for field in fields if field.required and field.encode_name not in value]
        if names:
            return ", ".join(names[:_MOST_MISSING])
    return ""


# --- pydantic ----------------------------------------------------------------------------------------------------


def _pydantic_details(error: Exception) -> tuple[tuple[Any, ...], str] | None:
    """Place and code of the first error of a pydantic `ValidationError`; None of any other class."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return None
    try:
        first = errors(include_url=False, include_context=False, include_input=False)[0]
        where, code = tuple(first["loc"]), str(first["type"])
    except Exception:  # noqa: BLE001  a class of another library, whose errors are something else
        return None
    return where, code if _CODE.fullmatch(code) else ""


def _shown_path(where: tuple[Any, ...], models: tuple[Any, ...]) -> str:
    """The place, with the names of fields; any other key comes from the message and is `[...]`."""
    path, known = "$", _fields_of(*models)
    for step in where[:_MOST_STEPS]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif isinstance(step, str) and step in known:
            path += f".{step}"
        else:
            path += "[...]"
    return path


def _fields_of(*models: Any) -> frozenset[str]:
    """The names and aliases of all fields of these models and of the models in them."""
    names: set[str] = set()
    waiting: list[Any] = list(models)
    seen: set[int] = set()
    while waiting and len(seen) < 1000:
        model = waiting.pop()
        if id(model) in seen:
            continue
        seen.add(id(model))
        waiting += getattr(model, "__args__", ())
        fields = getattr(model, "model_fields", None)
        if isinstance(fields, Mapping):
            for name, field in fields.items():
                aliases = (name, getattr(field, "alias", None), getattr(field, "validation_alias", None))
                names.update(alias for alias in aliases if isinstance(alias, str))
                waiting.append(getattr(field, "annotation", None))
    return frozenset(names)
