"""How do rows become a table that a person can read, on a screen of any width or in a pipe?

Columns are as wide as they need to be. On a screen that is too narrow the last one is cut first, then the widest of the
others; the first one, which names the row, never is. In a pipe cells are as long as they are, up to a limit that no
sensible text has (255 columns, and 5,000 for the last one), so that one long name does not widen every row.

The rule: what stands in a cell is shown and never acted upon. Control characters, also those that change the direction
of text, are escaped. Colour comes from `Coloured` alone, not from what the text brings along.
"""

import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import click

from redrive.errors import on_one_line

_GAP: Final = 2
_LEAST: Final = 7  # columns of a cell that was cut; eight columns of letters fit into 80
_MAX_COLUMNS: Final = 255  # of any cell but the last of its row
_MAX_LAST_COLUMNS: Final = 5_000


class Coloured(NamedTuple):
    """A text with a colour."""

    text: str
    colour: str


Cell: TypeAlias = str | Coloured


def table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, room: int | None = None) -> str:
    """The table; `room` is the width of the screen, None: whatever the screen has."""
    clean = [
        [*map(_shown, row[:-1]), *(_shown(cell, _MAX_LAST_COLUMNS) for cell in row[-1:])] for row in rows
    ]
    natural = [max([len(title), *(width(row[at]) for row in clean)]) for at, title in enumerate(titles)]
    widths = _fitted(natural, titles, screen() if room is None else room)
    lines = [click.style(_joined(titles, widths).rstrip(), bold=True)]
    for row, cells in zip(rows, clean, strict=True):
        padded = [cut(cell, wide) for cell, wide in zip(cells, widths, strict=True)]
        if padded:
            padded[-1] = padded[-1].rstrip()
        lines.append((" " * _GAP).join(_painted(cell, text) for cell, text in zip(row, padded, strict=True)))
    return "\n".join(line.rstrip() for line in lines)


def screen() -> int:
    """How many columns there are; in a pipe, as many as anybody may want."""
    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else sys.maxsize


def width(text: str) -> int:
    """How many columns of a screen the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, wide: int) -> str:
    """The text in exactly so many columns."""
    size = width(text)
    if size > wide:
        size = at = 0
        while size + (step := width(text[at])) <= wide - 1:
            size += step
            at += 1
        text, size = text[:at] + "…", size + 1
    return text + " " * (wide - size)


def _fitted(natural: Sequence[int], titles: Sequence[str], room: int) -> list[int]:
    widths = list(natural)
    if not widths:
        return widths
    places = [len(widths) - 1, *sorted(range(1, len(widths) - 1), key=lambda at: -natural[at])]
    for at in places:
        too_much = sum(widths) + _GAP * (len(widths) - 1) - room
        if too_much <= 0 or at == 0:
            break
        widths[at] = max(min(_LEAST, natural[at]), len(titles[at]), widths[at] - too_much)
    return widths


def _joined(titles: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(title.ljust(wide) for title, wide in zip(titles, widths, strict=True))


def _shown(cell: Cell, limit: int = _MAX_COLUMNS) -> str:
    """What a cell shows: one line of printable characters, not wider than the limit."""
    text = cell.text if isinstance(cell, Coloured) else cell
    line = on_one_line(text[: limit + 1])
    return cut(line, limit).rstrip() if width(line) > limit else line


def _painted(cell: Cell, text: str) -> str:
    if not isinstance(cell, Coloured):
        return text
    bare = text.rstrip()
    return click.style(bare, fg=cell.colour) + text[len(bare) :]
