"""What can be seen of an error?

An error is looked at through its `Evidence`: the names of its classes, an HTTP status, an errno, its text.
One rule: looking never raises. An attribute that raises, lies or has the wrong type is an attribute that is
not there. Each thing is read when a rule first asks for it, because most errors are known by their class.
It does not know what any of it means; that is in `defaults` and `phrases`.
"""

import builtins
import itertools
import re
from functools import cached_property, lru_cache
from typing import Any, Final

LONGEST_TEXT: Final = (
    4096  # what is wrong stands at the beginning; a megabyte of text costs no more than a page
)
_DEEPEST: Final = 8  # errors looked at in one chain of causes


class Evidence:
    """What can be seen of one error."""

    error: BaseException | None = None
    name: str = ""
    types: tuple[str, ...] = ()  # `module.qualname` of its class and of those it derives from, nearest first
    status: int | None = None
    errno: int | None = None
    text: str = ""

    @cached_property
    def words(self) -> str:
        """The class's own name and the text as lower-case words, each with one space before and after."""
        return _words_of_name(self.name) + words(self.text)[1:]

    @cached_property
    def status_in_text(self) -> int | None:
        """The HTTP status that the text speaks of."""
        return status_in(self.text)


class ErrorEvidence(Evidence):
    """What can be seen of an exception."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException = error
        self.name = type(error).__name__
        self.types = qualified_names(type(error))

    @cached_property
    def status(self) -> int | None:  # type: ignore[override]
        """The HTTP status that httpx, requests, aiohttp, urllib, botocore and their like carry."""
        error = self.error
        for name in ("status", "status_code", "code"):
            if (status := _as_status(read(error, name))) is not None:
                return status
        response = read(error, "response")
        if response is not None:
            for candidate in (
                read(response, "status_code"),
                read(response, "status"),
                _botocore_status(response),
            ):
                if (status := _as_status(candidate)) is not None:
                    return status
        return _as_status(_call(read(error, "getcode")))

    @cached_property
    def errno(self) -> int | None:  # type: ignore[override]
        """The errno of an `OSError`."""
        if not issubclass(type(self.error), OSError):
            return None
        number = read(self.error, "errno")
        return number if type(number) is int else None

    @cached_property
    def text(self) -> str:  # type: ignore[override]
        """The beginning of what the error says."""
        return _text_of(self.error)


# Whatever is read off an error, beside its class, its text and its causes.
_READ_OFF: Final = frozenset(
    {
        "status",
        "status_code",
        "code",
        "response",
        "getcode",
        "errno",
        "retry_after",
        "headers",
        "exceptions",
        "__getattr__",
    }
)
# How an error tells what is on it and behind it, unless its class has a way of its own.
_OWN_WAYS: Final = ("__getattribute__", "__cause__", "__context__", "__suppress_context__")


class PlainEvidence(Evidence):
    """What can be seen of an exception whose class and text are all there is to see."""

    def __init__(self, kind: type, text: str) -> None:
        self.name = kind.__name__
        self.types = qualified_names(kind)
        self.text = text


def plain_text_of(error: BaseException) -> str | None:
    """The text of an error of which nothing else can be read but its class; None of any other.

    Such an error has no cause, no context, no status and no wish when to come back, so whatever was found out about
    it holds for the next one of the same class and text.
    """
    kind: type = type(error)
    if type(kind) is not type or not _has_nothing_to_read(kind):  # a metaclass can do anything
        return None
    if error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__):
        return None
    return _text_of(error) if _READ_OFF.isdisjoint(error.__dict__) else None


@lru_cache(1024)
def _has_nothing_to_read(kind: type) -> bool:
    """Whether the errors of a class have only what is set on each of them, and nothing that the class makes up."""
    try:
        own_ways = any(getattr(kind, name) is not getattr(BaseException, name) for name in _OWN_WAYS)
        own_dicts = [base for base in kind.__mro__ if "__dict__" in vars(base)] != [BaseException]
        return not own_ways and not own_dicts and not any(hasattr(kind, name) for name in _READ_OFF)
    except Exception:  # noqa: BLE001 (nor is a class harmless to look at)
        return False


def _text_of(error: BaseException) -> str:
    try:
        return str.__getitem__(str(error), slice(LONGEST_TEXT))
    except Exception:  # noqa: BLE001 (an error that cannot be printed has no text)
        return ""


class TextEvidence(Evidence):
    """What can be seen of a failure that exists only as text, as in another system's dead letter."""

    def __init__(self, error_type: str, text: str, status: int | None = None) -> None:
        self.types = _named_types(error_type[:LONGEST_TEXT].strip())
        self.name = re.split(r"[.$/:+]", error_type[:LONGEST_TEXT].strip())[-1]
        self.text = text[:LONGEST_TEXT]
        self.status = _as_status(status)


def qualified_names(cls: type) -> tuple[str, ...]:
    """`module.qualname` of a class and of the classes it derives from, without `object`."""
    try:
        return _qualified_names(cls)
    except Exception:  # noqa: BLE001 (a metaclass can do anything)
        return ()


@lru_cache(1024)
def _qualified_names(cls: type) -> tuple[str, ...]:
    return tuple([f"{one.__module__}.{one.__qualname__}" for one in cls.__mro__[:-1]])


def chain(error: BaseException) -> list[ErrorEvidence]:
    """The error, what it was raised `from`, and the members of a group: nearest first, each once."""
    links, seen = [ErrorEvidence(error)], {id(error)}
    for link in links:  # grows while it is walked
        _follow(links, seen, read(link.error, "__cause__"))
        if issubclass(type(link.error), BaseExceptionGroup):
            members = read(link.error, "exceptions")
            for member in members if type(members) is tuple else ():
                _follow(links, seen, member)
    return links


def contexts(links: list[ErrorEvidence]) -> list[ErrorEvidence]:
    """What was being handled when the errors of a chain were raised without `from`."""
    seen = {id(link.error) for link in links}
    found: list[ErrorEvidence] = []
    for link in itertools.chain(links, found):  # grows while it is walked
        if not read(link.error, "__suppress_context__"):
            _follow(found, seen, read(link.error, "__context__"))
        _follow(found, seen, read(link.error, "__cause__"))
    return found


def _follow(links: list[ErrorEvidence], seen: set[int], error: Any) -> None:
    if issubclass(type(error), BaseException) and id(error) not in seen and len(links) < _DEEPEST:
        seen.add(id(error))
        links.append(ErrorEvidence(error))


def read(thing: Any, name: str) -> Any:
    """An attribute, or None where there is none or reading it fails."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 (a property can do anything)
        return None


def look_up(mapping: Any, *keys: str) -> Any:
    """The value of the first key that is there, or None; for header objects of any library."""
    for key in keys:
        try:
            if (value := mapping.get(key)) is not None:
                return value
        except Exception:  # noqa: BLE001, S112 (not a mapping, or one that refuses)
            continue
    return None


def _call(function: Any) -> Any:
    try:
        return function() if callable(function) else None
    except Exception:  # noqa: BLE001 (a closed response may refuse)
        return None


def is_botocore(response: Any) -> bool:
    """Whether this is the dictionary in which botocore keeps a whole response."""
    return type(response) is dict and type(response.get("ResponseMetadata")) is dict


def _botocore_status(response: Any) -> Any:
    return look_up(response["ResponseMetadata"], "HTTPStatusCode") if is_botocore(response) else None


def _as_status(value: Any) -> int | None:
    if not issubclass(type(value), int) or type(value) is bool:
        return None
    number = int.__index__(value)
    return number if 100 <= number <= 599 else None


def _named_types(name: str) -> tuple[str, ...]:
    builtin = vars(builtins).get(name.removeprefix("builtins."))
    if isinstance(builtin, type) and issubclass(builtin, BaseException):
        return qualified_names(builtin)
    return (name,) if name else ()


# --- text ------------------------------------------------------------------------------------------------

_SETTING: Final = re.compile(r"\b\w{1,60}=")  # "timeout=30" names a setting; it does not say what happened
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD: Final = re.compile(r"[^\W_]+")


def words(text: str) -> str:
    """The text as lower-case words with a space around each; `NotFound` and `NOT_FOUND` are two words."""
    if "=" in text:
        text = _SETTING.sub(" ", text)
    plain = text.lower()
    if plain != text:
        plain = _HUMP.sub(" ", text).lower()
    found = _WORD.findall(plain)
    return f" {' '.join(found)} " if found else " "


_words_of_name: Final = lru_cache(1024)(words)  # classes are few


# A bare number is an amount. It is a status after "HTTP" or "status", before its own reason phrase, or after
# "error" when it stands alone there: "Error 429", but not "Error: 500 items".
_REASONS: Final = (
    "client error|server error|bad request|unauthorized|forbidden|not found|conflict|gone|request timeout|"
    "unprocessable|too many requests|internal server error|bad gateway|service unavailable|gateway time"
).replace(" ", r"\ ")
_STATUS: Final = re.compile(
    rf"""
      \b(?:https?(?:/[0-9.]{{1,3}})?(?:[ _-]?(?:status|error|response|code)){{0,2}}|status(?:[ _-]?code)?)
        (?:\ (?:is|was|of))?["']?\ ?[:=]?\ ?["'(\[<]?([45][0-9]{{2}})(?![\w%]|[.,][0-9])
    | \b([45][0-9]{{2}})\ ?[:-]?\ \(?(?:{_REASONS})\b
    | ^([45][0-9]{{2}}),\ message=
    | \b(?:error|response)(?:[ _-]code)?\ ?[:=]?\ ?\(?([45][0-9]{{2}})
        (?=\s*$|[:;)\]"']|[.,](?![0-9])|\ -|\ (?:while|when|from|for|on|returned|received|during)\b)
    """,
    re.VERBOSE,
)


def status_in(text: str) -> int | None:
    """The HTTP status, from 400 up, that a text speaks of."""
    if "4" not in text and "5" not in text:
        return None
    found = _STATUS.search(text[:LONGEST_TEXT].lower())
    return int(found[found.lastindex or 0]) if found else None
