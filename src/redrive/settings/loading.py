"""Where are the settings found, and is all of it known?

The environment wins over the file: `REDRIVE_STORE_URL` is `url` in `[store]`. The rule: what is unknown, of the wrong
type or out of range is refused with one line that says where it stands and what to write instead.

Which settings there are it has from `table`; rules, conventions and strategies are read by those who know them.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from redrive.errors import SettingsError, use_instead
from redrive.letters.convention import conventions_from_config
from redrive.rules import rules_from_config, strategies_from_config
from redrive.settings.references import resolve_if_possible
from redrive.settings.table import LISTS, SECTIONS, Setting
from redrive.settings.values import Settings

FILE_NAME: Final = "redrive.toml"
_PREFIX: Final = "REDRIVE_"
_SECRET: Final = frozenset({"server.key"})  # not quoted in errors


def load(path: Path | None = None, environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings in the file and the environment. No path: `redrive.toml` here, or defaults if there is none."""
    table = load_table(path)
    try:
        _read(table, {}, environ)
    except SettingsError as error:
        raise SettingsError(f"{path or FILE_NAME}: {error}") from None
    return read(table, environ)  # what is wrong now, is wrong with the environment


def load_table(path: Path | None = None) -> dict[str, Any]:
    """What the file says, as it stands there, checked for nothing but its form."""
    if path is None:
        path = Path(FILE_NAME)
        if not path.exists():
            return {}
    try:
        return _from_toml(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; write it as TOML") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None


def _from_toml(text: str) -> dict[str, Any]:
    """The table, or a ValueError; that is also what Python raises for a number of more than 4300 digits."""
    table = tomllib.loads(text)
    repr(table)  # in hexadecimal such a number is read; it could not be shown by whoever refuses it
    return table


def read(table: Mapping[str, Any], environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings in a table, as TOML gives it, and in the environment."""
    return _read(table, environ, environ)


def as_written(table: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The sections as file and environment have them together; references are not followed."""
    sections = {name: _section(name, value) for name, value in table.items()}
    for section, name, value in _from_environment(environ):
        sections.setdefault(section, {})[name] = value
    return sections


def _read(table: Mapping[str, Any], overrides: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """`overrides` are variables that set settings; references are read from `environ`."""
    fields: dict[str, Any] = {}
    for section, values in as_written(table, overrides).items():
        if section in LISTS:
            fields[section] = _list(section, values, environ)
        elif section in _OTHERS:
            fields[section] = _OTHERS[section](values)
        else:
            kind, known = SECTIONS[section]
            fields[section] = kind(
                **{n: _one(f"{section}.{n}", known[n], v, environ) for n, v in values.items()}
            )
    return Settings(**fields)


def _section(name: str, value: Any) -> Any:
    _check_known(f"unknown section [{name}]", name, (*SECTIONS, *LISTS, *_OTHERS))
    if name in LISTS or name in _OTHERS:
        return value
    if not isinstance(value, dict):
        raise SettingsError(f"'{name}' is a section: write [{name}] on a line of its own")
    for key in value:
        _check_known(f"unknown setting '{key}' in [{name}]", key, SECTIONS[name][1])
    return dict(value)


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """(section, name, value) of each variable that names a setting."""
    found: list[tuple[str, str, Any]] = []
    for variable, text in sorted(environ.items()):
        section, _, name = variable.removeprefix(_PREFIX).lower().partition("_")
        if not variable.startswith(_PREFIX) or section not in SECTIONS:
            continue
        _check_known(
            f"unknown variable {variable}: [{section}] has no such setting", name, SECTIONS[section][1]
        )
        found.append((section, name, _from_text(text)))
    return found


def _from_text(text: str) -> Any:
    """A variable as TOML would read it; what TOML cannot read is plain text."""
    try:
        return _from_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _list(section: str, tables: Any, environ: Mapping[str, str]) -> tuple[Any, ...]:
    """One value for each table of a list."""
    wanted = LISTS[section]
    if not isinstance(tables, list):
        raise SettingsError(f"{section}: write a list, one [[{section}]] table for each {wanted.one}")
    found: list[Any] = []
    taken: set[Any] = set()
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, dict):
            raise SettingsError(f"{wanted.one} {number}: write it as a table with {_a(wanted.needed)}")
        for key, meaning in wanted.needed.items():
            if key not in table:
                raise SettingsError(f"{wanted.one} {number}: needs a '{key}', {meaning}")
        for key in table:
            _check_known(f"unknown setting '{key}' of {wanted.one} {number}", key, wanted.keys)
        values = {
            key: _one(f"{wanted.one} {number}: {key}", wanted.keys[key], value, environ)
            for key, value in table.items()
        }
        if wanted.distinct is not None:
            name = values[wanted.distinct]
            if name in taken:
                raise SettingsError(f"{wanted.one} {number}: '{name}' is named twice; write one table for it")
            taken.add(name)
        found.append(wanted.kind(**values))
    return tuple(found)


def _a(needed: Mapping[str, str]) -> str:
    return " and ".join(f"a {key}" for key in needed)


def _one(where: str, setting: Setting, value: Any, environ: Mapping[str, str]) -> Any:
    try:
        found = setting.read(value)
    except SettingsError as error:
        shown = "…" if where in _SECRET else f"{value!r:.60}"
        raise SettingsError(f"{where} = {shown}: {error}") from None
    return resolve_if_possible(found, environ) if setting.is_reference else found


def _check_known(message: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        raise SettingsError(message + use_instead(word, known))


# Sections that are no tables of settings.
_OTHERS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "rules": rules_from_config,
        "conventions": conventions_from_config,
        "strategies": strategies_from_config,
    }
)
