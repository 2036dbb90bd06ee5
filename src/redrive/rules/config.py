"""How does a rule look in a settings file?

A list of plain mappings, as `[[rules]]` in TOML gives them::

    [[rules]]
    name = "dup"
    kind = "business"
    text = "duplicate invoice"

One rule: what cannot be understood is refused at start, in one line that names the rule, the key and what to
write instead. Several keys mean all of them, a list in one key means any of its values.
It does not know where the mappings come from.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from redrive.errors import SettingsError, did_you_mean
from redrive.letters.failure import FailureKind
from redrive.rules.rule import (
    Condition,
    Rule,
    all_of,
    when_errno,
    when_pattern,
    when_status,
    when_text,
    when_type,
)
from redrive.rules.strategy import Strategy

_CONDITIONS: Final[dict[str, tuple[tuple[type, ...], Callable[..., Condition]]]] = {
    "text": ((str,), when_text),
    "pattern": ((str,), when_pattern),
    "type": ((str,), when_type),
    "status": ((int, str), when_status),
    "errno": ((int, str), when_errno),
}
_KEYS: Final = ("name", "kind", "retryable", *_CONDITIONS)
_MOST_RULES: Final = 1000
_Named = TypeVar("_Named", bound=StrEnum)


def rules_from_config(entries: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The rules that a settings file lists, in its order."""
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Sequence):
        raise SettingsError("rules: write a list, one [[rules]] table for each rule")
    if len(entries) > _MOST_RULES:
        raise SettingsError(f"rules: {len(entries)} rules exceed the limit of {_MOST_RULES}")
    rules = tuple(_rule(number, entry) for number, entry in enumerate(entries, start=1))
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"rule {name!r}: the name is used twice; rename one of the rules")
    return rules


def strategies_from_config(table: Mapping[str, Any]) -> dict[FailureKind, Strategy]:
    """The strategies that a settings file gives to kinds of failure: `timeout = "scheduled"`."""
    if not isinstance(table, Mapping):
        raise SettingsError('strategies: write a table, such as timeout = "immediate"')
    return {
        _named(FailureKind, kind, f"strategies: {kind!r:.40}", "kind"): _named(
            Strategy, strategy, f"strategies: {kind}", "strategy"
        )
        for kind, strategy in table.items()
    }


def _rule(number: int, entry: Any) -> Rule:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"rule {number}: write it as a table with name, kind and a condition")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise SettingsError(f"rule {number}: needs a 'name', as text")
    where = f"rule {name!r:.60}"
    for key in entry:
        if key not in _KEYS:
            raise SettingsError(f"{where}: unknown key {key!r:.40}{did_you_mean(key, _KEYS)}")
    if "kind" not in entry:
        raise SettingsError(f"{where}: needs a 'kind', one of {', '.join(FailureKind)}")
    retryable = entry.get("retryable")
    if retryable is not None and not isinstance(retryable, bool):
        raise SettingsError(f"{where}: 'retryable' must be true or false, not {retryable!r:.40}")
    conditions = [_condition(where, key, entry[key]) for key in _CONDITIONS if key in entry]
    if not conditions:
        raise SettingsError(f"{where}: needs a condition, at least one of {', '.join(_CONDITIONS)}")
    return Rule(
        name.strip(),
        _named(FailureKind, entry["kind"], f"{where}: 'kind'", "kind"),
        retryable,
        all_of(*conditions),
    )


def _condition(where: str, key: str, value: Any) -> Condition:
    allowed, make = _CONDITIONS[key]
    values = value if isinstance(value, list | tuple) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, allowed):
            raise SettingsError(f"{where}: {key!r} cannot be {one!r:.40}")
    try:
        return make(*values)
    except SettingsError as problem:
        raise SettingsError(f"{where}: {problem}") from None


def _named(names: type[_Named], value: Any, where: str, what: str) -> _Named:
    try:
        return names(value)
    except ValueError:
        known = [str(name) for name in names]
        hint = did_you_mean(value, known) or f"; it is one of {', '.join(known)}"
        raise SettingsError(f"{where}: unknown {what} {value!r:.40}{hint}") from None
