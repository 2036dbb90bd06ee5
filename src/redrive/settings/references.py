"""References: `env:NAME` reads a value from an environment variable, `file:PATH` from a file.

URLs and passwords can be references (see `Setting.is_reference` in `table`). Loading replaces those that can be read
and leaves the others as they are written: a command that does not use the value does not need it. The code that uses a
value calls `resolve` first, which raises an error if it is missing; `redrive config check` resolves all references.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from redrive.errors import SettingsError

_VARIABLE: Final = "env:"
_FILE: Final = "file:"
_MAX_BYTES: Final = 65_536


def is_reference(text: str) -> bool:
    """Whether the value is a reference."""
    return text.startswith((_VARIABLE, _FILE))


def resolve(text: str, environ: Mapping[str, str]) -> str:
    """The value itself; a `SettingsError` if it cannot be read."""
    if text.startswith(_VARIABLE):
        name = text.removeprefix(_VARIABLE)
        if not environ.get(name):
            raise SettingsError(f"the variable {name:.60} is not set")
        return environ[name]
    if text.startswith(_FILE):
        return _from_file(Path(text.removeprefix(_FILE)))
    return text


def resolve_if_possible(text: str, environ: Mapping[str, str]) -> str:
    """The value itself, or the reference if it cannot be read."""
    try:
        return resolve(text, environ)
    except SettingsError:
        return text


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode().rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"the file {path!s:.200} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise SettingsError(f"the file {path!s:.200} is not UTF-8 text") from None
    if len(data) > _MAX_BYTES:
        raise SettingsError(f"the file {path!s:.200} is larger than {_MAX_BYTES} bytes")
    if not text.strip():
        raise SettingsError(f"the file {path!s:.200} is empty")
    return text
