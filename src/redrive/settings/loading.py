"""Loading: read the settings file and the environment, and refuse unknown names.

The environment overrides the file: `REDRIVE_STORE_URL` is `url` in `[store]`, `REDRIVE_CONSUME_BREAKER_PAUSE` is
`pause` in `[consume.breaker]`. An unknown name, a wrong type or a value out of range is refused with one line that
names the setting and says what to write instead.

`table` has the settings; rules, conventions and strategies are read by the packages that use them.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from keyword import iskeyword
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from redrive.errors import SettingsError, use_instead
from redrive.letters.convention import conventions_from_config
from redrive.rules import rules_from_config, strategies_from_config
from redrive.settings.references import resolve_if_possible
from redrive.settings.table import LISTS, RENAMED, SECTIONS, Setting
from redrive.settings.values import Settings

FILE_NAME: Final = "redrive.toml"
_PREFIX: Final = "REDRIVE_"
_SECRET: Final = frozenset({"server.key"})  # not quoted in errors


def variable_name(setting: str) -> str:
    """The environment variable of a setting, such as `store.url`."""
    return f"{_PREFIX}{setting}".upper().replace(".", "_")


_VARIABLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        variable_name(f"{section}.{name}"): (section, name)
        for section in SECTIONS
        for name in SECTIONS[section][1]
    }
)
_RENAMED_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {variable_name(old): variable_name(new) for old, new in RENAMED.items() if "." in old}
)


def load(path: Path | None = None, environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Load the settings of file and environment. Without a path: `redrive.toml` here, or the defaults."""
    table = load_table(path)
    try:
        _read(table, {}, environ)
    except SettingsError as error:
        raise SettingsError(f"{path or FILE_NAME}: {error}") from None
    return read(table, environ)  # an error now is an error of the environment


def load_table(path: Path | None = None) -> dict[str, Any]:
    """Load the file as a table, without checking names and values."""
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
    """Parse TOML; a ValueError also for integers of more than 4300 digits, which Python cannot print."""
    table = tomllib.loads(text)
    repr(table)  # a hexadecimal integer of that size is parsed, but cannot be shown in an error message
    return table


def read(table: Mapping[str, Any], environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Read the settings of a table, as TOML gives it, and of the environment."""
    return _read(table, environ, environ)


def as_written(table: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The sections of file and environment together, with references such as `env:NAME` as they are written.

    A nested table is a section with a dotted name, such as `consume.breaker`.
    """
    sections: dict[str, Any] = {}
    for name, value in table.items():
        _check_section(name, value)
        sections |= _flat(name, value) if name in SECTIONS else {name: value}
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
    for nested in [name for name in fields if "." in name]:
        section, name = nested.split(".")
        outer = fields.get(section, SECTIONS[section][0]())
        fields[section] = msgspec.structs.replace(outer, **{name: fields.pop(nested)})
    return Settings(**fields)


def _check_section(name: str, value: Any) -> None:
    known = [section for section in (*SECTIONS, *LISTS, *_OTHERS) if "." not in section]
    if name in known:
        return
    old = [f"{name}.{key}" for key in value if f"{name}.{key}" in RENAMED] if isinstance(value, dict) else []
    if old:
        raise SettingsError(f"unknown setting '{old[0]}'; did you mean '{RENAMED[old[0]]}'?")
    _check_known(f"unknown section [{name}]", name, known, RENAMED.get(name))


def _flat(section: str, value: Any) -> dict[str, dict[str, Any]]:
    """A section and the sections nested in it, by name; unknown keys are refused."""
    if not isinstance(value, dict):
        raise SettingsError(f"'{section}' is a section; write [{section}] on a separate line")
    found: dict[str, dict[str, Any]] = {section: {}}
    for name, inner in value.items():
        if f"{section}.{name}" in SECTIONS:
            found |= _flat(f"{section}.{name}", inner)
        else:
            renamed = RENAMED.get(f"{section}.{name}")
            _check_known(f"unknown setting '{name}' in [{section}]", name, SECTIONS[section][1], renamed)
            found[section][name] = inner
    return found


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """(section, name, value) of each variable that names a setting."""
    found: list[tuple[str, str, Any]] = []
    for variable, text in sorted(environ.items()):
        section, _, name = variable.removeprefix(_PREFIX).partition("_")
        if variable in _VARIABLES:
            found.append((*_VARIABLES[variable], _from_text(text)))
        elif variable in _RENAMED_VARIABLES or (variable.startswith(_PREFIX) and section.lower() in SECTIONS):
            start = f"{_PREFIX}{section}_"
            known = [each.removeprefix(start).lower() for each in _VARIABLES if each.startswith(start)]
            renamed = _RENAMED_VARIABLES.get(variable)
            _check_known(f"unknown variable {variable}", name.lower(), known, renamed)
    return found


def _from_text(text: str) -> Any:
    """A variable as TOML would read it; anything that is not TOML is a string."""
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
        for key in table:
            renamed = RENAMED.get(f"{section}.{key}")
            _check_known(f"unknown setting '{key}' of {wanted.one} {number}", key, wanted.keys, renamed)
        for key, meaning in wanted.needed.items():
            if key not in table:
                raise SettingsError(f"{wanted.one} {number}: needs a '{key}', {meaning}")
        values = {
            key: _one(f"{wanted.one} {number}: {key}", wanted.keys[key], value, environ)
            for key, value in table.items()
        }
        if wanted.distinct is not None:
            name = values[wanted.distinct]
            if name in taken:
                raise SettingsError(f"{wanted.one} {number}: '{name}' is named twice; write one table for it")
            taken.add(name)
        found.append(wanted.kind(**{f"{key}_" if iskeyword(key) else key: values[key] for key in values}))
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


def _check_known(message: str, word: str, known: Collection[str], renamed: str | None) -> None:
    """Refuse a word that is not known, with its new name if it was renamed, else with a similar one."""
    if word not in known:
        raise SettingsError(
            message + (f"; did you mean '{renamed}'?" if renamed else use_instead(word, known))
        )


# Sections that are not tables of settings.
_OTHERS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "rules": rules_from_config,
        "conventions": conventions_from_config,
        "strategies": strategies_from_config,
    }
)
