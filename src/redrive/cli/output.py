"""How do values look as JSON, and as TOML?

JSON is for programs: one value, in ASCII, so that any encoding carries it and half a character survives. TOML is
for people: what is shown can be kept as a settings file.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def as_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON; on one line unless it is indented."""
    return json.dumps(value, indent=indent, separators=(",", ":") if indent is None else None)


def as_toml(value: Any) -> str:
    """The value as it stands behind a key."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {as_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    # A JSON string is a TOML string, but for the one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    """A name as a key; one of ours needs no quotes, one that people chose may."""
    return name if _BARE.fullmatch(name) else as_toml(name)
