"""What is a rule, and how does one write one?

A `Rule` gives a kind and says whether to try again, for every error that its condition fits. Conditions are
made by the `when_…` helpers; nobody has to derive a class::

    Rule("dup", FailureKind.BUSINESS, when=when_text("duplicate invoice"))

One rule about rules: several values in one condition mean any of them, several conditions mean all of them.
A condition sees `Evidence` only; it does not know the order in which rules are asked (`classify`).
"""

import errno
import re
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from redrive.errors import SettingsError
from redrive.letters.failure import FailureKind
from redrive.rules.evidence import Evidence

# Level one of retry: is it worth giving the message back within seconds? (Level two is `strategy`.)
RETRYABLE: Final = frozenset(
    {
        FailureKind.NETWORK,
        FailureKind.UNAVAILABLE,
        FailureKind.RATE_LIMITED,
        FailureKind.DATABASE,
        FailureKind.SERVER_ERROR,
        FailureKind.EXPIRED,
        FailureKind.OVERFLOW,
        FailureKind.CRASH,
        FailureKind.UNKNOWN,
    }
)
_LONGEST_PATTERN: Final = 500
_ERRNO_NAMES: Final = {name: number for number, name in errno.errorcode.items()}
# A group that repeats inside and is repeated itself takes exponential time on the wrong text. This finds the
# plain cases; the text looked at is short in any case.
_NESTED_REPEAT: Final = re.compile(r"\((?:[^()\\]|\\.)*(?:[+*]|\{\d+,\d*\})(?:[^()\\]|\\.)*\)(?:[+*]|\{\d+,)")


class Condition(Protocol):
    """When a rule applies."""

    def matches(self, evidence: Evidence) -> bool:
        """Whether the error fits."""
        ...


class Rule(msgspec.Struct, frozen=True):
    """What errors that fit `when` are, and whether to try again; without a word, as is usual for the kind."""

    name: str
    kind: FailureKind
    retryable: bool | None = None
    when: Condition | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise SettingsError("a rule needs a name; redrive explain shows it")
        if self.when is None:
            raise SettingsError(
                f"rule {self.name!r} has no condition: add a condition such as when=when_text(…) or "
                "when_type(…)"
            )

    @property
    def retries(self) -> bool:
        """Whether to try again within seconds."""
        return self.kind in RETRYABLE if self.retryable is None else self.retryable


class TypeIs(msgspec.Struct, frozen=True):
    """The error is of one of these classes, by `module.qualname`; a name without a dot fits in any module."""

    names: frozenset[str]

    def matches(self, evidence: Evidence) -> bool:
        """Whether the error's class, or one it derives from, is named."""
        return any(name in self.names or name.rpartition(".")[2] in self.names for name in evidence.types)


class StatusIn(msgspec.Struct, frozen=True):
    """The HTTP status is one of these."""

    statuses: frozenset[int]

    def matches(self, evidence: Evidence) -> bool:
        """Whether the error carries, or else speaks of, one of the statuses."""
        status = evidence.status if evidence.status is not None else evidence.status_in_text
        return status in self.statuses


class ErrnoIn(msgspec.Struct, frozen=True):
    """The errno of the `OSError` is one of these."""

    numbers: frozenset[int]

    def matches(self, evidence: Evidence) -> bool:
        """Whether the error has one of the numbers."""
        return evidence.errno in self.numbers


class TextFits(msgspec.Struct, frozen=True):
    """The text contains a match of one of these."""

    patterns: tuple[re.Pattern[str], ...]

    def matches(self, evidence: Evidence) -> bool:
        """Whether the text has a match."""
        return any(pattern.search(evidence.text) for pattern in self.patterns)


class Says(msgspec.Struct, frozen=True):
    """The class's name or the text contains one of these runs of words, each with a space at both ends."""

    phrases: tuple[str, ...]

    def matches(self, evidence: Evidence) -> bool:
        """Whether one of the phrases is there."""
        words = evidence.words
        for phrase in self.phrases:  # noqa: SIM110 (hundreds are tried; any() takes twice as long)
            if phrase in words:
                return True
        return False


class Asks(msgspec.Struct, frozen=True):
    """A function of the user's says yes. It is asked about exceptions only, never about mere text."""

    predicate: Callable[[BaseException], object]

    def matches(self, evidence: Evidence) -> bool:
        """Whether the function says yes."""
        return evidence.error is not None and bool(self.predicate(evidence.error))


class AllOf(msgspec.Struct, frozen=True):
    """Every one of these fits."""

    conditions: tuple[Condition, ...]

    def matches(self, evidence: Evidence) -> bool:
        """Whether all fit."""
        return all(condition.matches(evidence) for condition in self.conditions)


def when_type(*types: type[BaseException] | str) -> TypeIs:
    """The error is of one of these classes or derives from one; a class can be given by its name."""
    if not types or not all(types):
        raise SettingsError("type: name at least one class, such as 'httpx.ConnectError'")
    return TypeIs(
        frozenset(one if isinstance(one, str) else f"{one.__module__}.{one.__qualname__}" for one in types)
    )


def when_status(*statuses: int | str) -> StatusIn:
    """The HTTP status is one of these; "5xx" is all from 500 to 599."""
    if not statuses:
        raise SettingsError("status: give at least one, such as 409 or '5xx'")
    return StatusIn(frozenset(number for status in statuses for number in _statuses(status)))


def when_errno(*numbers: int | str) -> ErrnoIn:
    """The errno is one of these, by number or by name ("ECONNREFUSED")."""
    if not numbers:
        raise SettingsError("errno: give at least one, such as 'ECONNREFUSED'")
    return ErrnoIn(frozenset(_errno(number) for number in numbers))


def when_text(*texts: str) -> TextFits:
    """The text contains one of these, as whole words and in any case."""
    if not texts or not all(text.strip() for text in texts):
        raise SettingsError("text: it is empty and would match every error; write the words to search for")
    if any(len(text) > _LONGEST_PATTERN for text in texts):
        raise SettingsError(f"text: longer than {_LONGEST_PATTERN} characters; use a few distinctive words")
    spaced = (r"\s+".join(map(re.escape, text.split())) for text in texts)
    return TextFits(tuple(re.compile(rf"(?<!\w){text}(?!\w)", re.IGNORECASE) for text in spaced))


def when_pattern(*patterns: str | re.Pattern[str]) -> TextFits:
    """The text contains a match of one of these regular expressions, in any case."""
    if not patterns:
        raise SettingsError("pattern: give at least one regular expression")
    return TextFits(tuple(_pattern(pattern) for pattern in patterns))


def when(predicate: Callable[[BaseException], object]) -> Asks:
    """The function says yes to the error. A function that raises has said no."""
    if not callable(predicate):
        raise SettingsError("when: takes a function of the error, such as lambda error: error.code == 'E17'")
    return Asks(predicate)


def all_of(*conditions: Condition) -> Condition:
    """All of these fit."""
    if not conditions:
        raise SettingsError("all_of: give at least one condition")
    return conditions[0] if len(conditions) == 1 else AllOf(conditions)


def _statuses(status: int | str) -> range:
    if isinstance(status, str):
        if found := re.fullmatch(r"([1-5])xx", status.strip().lower()):
            first = int(found[1]) * 100
            return range(first, first + 100)
        status = int(status) if re.fullmatch(r"[0-9]{3}", status) else 0
    if isinstance(status, bool) or not 100 <= status <= 599:
        raise SettingsError("status: give 100 to 599, or a whole class such as '5xx'")
    return range(status, status + 1)


def _errno(number: int | str) -> int:
    found = _ERRNO_NAMES.get(number.strip().upper()) if isinstance(number, str) else number
    if found is None or isinstance(found, bool) or found <= 0:
        raise SettingsError(
            f"errno: {number!r:.40} is unknown on this system; write a name such as 'ECONNREFUSED'"
        )
    return found


def _pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    source = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not source.strip():
        raise SettingsError("pattern: it is empty and would match every error")
    if len(source) > _LONGEST_PATTERN:
        raise SettingsError(f"pattern: longer than {_LONGEST_PATTERN} characters")
    if _NESTED_REPEAT.search(source):
        raise SettingsError(
            f"pattern: {source!r:.60} has nested repetition and can take exponential time; simplify it"
        )
    try:
        compiled = pattern if isinstance(pattern, re.Pattern) else re.compile(pattern, re.IGNORECASE)
    except re.error as problem:
        raise SettingsError(f"pattern: {source!r:.60} is not a regular expression: {problem}") from None
    if compiled.search(""):
        raise SettingsError(f"pattern: {source!r:.60} matches the empty text and therefore every error")
    return compiled
