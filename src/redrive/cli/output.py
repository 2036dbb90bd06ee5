"""Print values as JSON or TOML, and long text through a pager.

JSON is one value in ASCII, so that every encoding can carry it. TOML can be saved as a settings file.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON; on one line unless it is indented."""
    return json.dumps(value, indent=indent, separators=(",", ":") if indent is None else None)


def to_toml(value: Any) -> str:
    """The value as it is written after a key."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {to_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    # A JSON string is a TOML string, except for the one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    """A name as a key, quoted if it needs to be."""
    return name if _BARE.fullmatch(name) else to_toml(name)


def echo_paged(text: str) -> None:
    """Print the text; on a terminal that is too small for it, through a pager: `$PAGER`, or less if there is one."""
    is_short = text.count("\n") + 1 < shutil.get_terminal_size().lines
    has_pager = bool(os.environ.get("PAGER") or shutil.which("less"))
    if is_short or not has_pager or not sys.stdout.isatty() or not sys.stdin.isatty():
        click.echo(text)
        return
    os.environ.setdefault("LESS", "-FRX")
    click.echo_via_pager(text + "\n")
