"""How do rows become a table that a person can read, on a screen of any width or in a pipe?"""

import re
import shutil
import sys
from collections.abc import Sequence

import click

from redrive.errors import on_one_line

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the last one gets what is left of the screen, and is cut there."""
    clean = [[_shown(cell) for cell in row] for row in rows]
    widths = [max([len(title), *(_width(row[place]) for row in clean)]) for place, title in enumerate(titles)]
    room = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 10_000
    left = sum(widths[:-1]) + 2 * (len(widths) - 1)
    widths[-1] = max(10, min(widths[-1], room - left))
    lines = [
        click.style("  ".join(t.ljust(w) for t, w in zip(titles, widths, strict=True)).rstrip(), bold=True)
    ]
    for row in clean:
        cells = [_fit(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _shown(cell: str) -> str:
    """What cannot be printed stands there as its escape; our own colours stay."""
    parts = _COLOUR.split(cell)
    codes = _COLOUR.findall(cell)
    text = [on_one_line(part) for part in parts]
    return "".join(piece for pair in zip(text, [*codes, ""], strict=True) for piece in pair)


def _width(cell: str) -> int:
    return len(_COLOUR.sub("", cell))


def _fit(cell: str, width: int) -> str:
    size = _width(cell)
    if size <= width:
        return cell + " " * (width - size)
    return _COLOUR.sub("", cell)[: width - 1] + "…"
