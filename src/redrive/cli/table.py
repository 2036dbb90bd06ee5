"""Tables for terminals of any width and for pipes.

Columns are as wide as their content. On a narrow terminal the last column is cut first, down to 30 columns, then the
widest of the others, then the last one again; the first column, which names the row, is never cut. In a pipe cells are
cut only at 255 columns (the last one at 5,000), so that one long name does not widen every row.

Control characters in cells, including those that change the direction of text, are escaped. Colour comes from
`Coloured` alone.
"""

import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import click

from redrive.errors import on_one_line

_GAP: Final = 2
_MIN_COLUMNS: Final = 7  # of a cell that was cut
_MIN_LAST_COLUMNS: Final = 30  # of the last cell, while others can be cut
_MAX_COLUMNS: Final = 255  # of any cell but the last of its row
_MAX_LAST_COLUMNS: Final = 5_000


class Coloured(NamedTuple):
    """A text with a colour."""

    text: str
    colour: str


Cell: TypeAlias = str | Coloured


def table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, room: int | None = None) -> str:
    """The table; `room` is the width of the terminal, None: as wide as it is."""
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
    """Columns of the terminal; unlimited in a pipe."""
    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else sys.maxsize


def width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, wide: int) -> str:
    """The text in exactly `wide` columns."""
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
    last = len(widths) - 1
    others = sorted(range(1, last), key=lambda at: -natural[at])
    for at, least in ((last, _MIN_LAST_COLUMNS), *((at, _MIN_COLUMNS) for at in (*others, last))):
        too_much = sum(widths) + _GAP * last - room
        if too_much <= 0 or at == 0:
            break
        widths[at] = max(min(least, natural[at]), len(titles[at]), widths[at] - too_much)
    return widths


def _joined(titles: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(title.ljust(wide) for title, wide in zip(titles, widths, strict=True))


def _shown(cell: Cell, limit: int = _MAX_COLUMNS) -> str:
    """The text of a cell: one line of printable characters, not wider than the limit."""
    text = cell.text if isinstance(cell, Coloured) else cell
    line = on_one_line(text[: limit + 1])
    return cut(line, limit).rstrip() if width(line) > limit else line


def _painted(cell: Cell, text: str) -> str:
    if not isinstance(cell, Coloured):
        return text
    bare = text.rstrip()
    return click.style(bare, fg=cell.colour) + text[len(bare) :]
