"""How do values look as JSON, and as TOML?

JSON is for programs: one value, in ASCII, so that any encoding carries it and half a character survives. TOML is
for people: what is shown can be kept as a settings file.
"""

import json
from collections.abc import Mapping
from typing import Any


def as_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON; on one line unless it is indented."""
    return json.dumps(value, indent=indent, separators=(",", ":") if indent is None else None)


def as_toml(value: Any) -> str:
    """The value as it stands behind a key; names of ours need no quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {as_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    # A JSON string is a TOML string, but for the one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
