"""What does a commit say beside its offset?

Kafka keeps one number for a partition: everything below it is done. It keeps a text beside it, and there stands what
the number cannot say: which records above it are done as well, and how often the others were delivered. So nothing
that is done is repeated after a rebalance, and a record that ends its process is known by its count (T4).

    redrive/1 k3xq 2xd,1x3,10000x1      two are done, one was delivered three times, 10,000 may have been once

Pure: runs in, text out. The rule: a text that is damaged, somebody else's or too long says less, never something
wrong.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_VERSION: Final = "redrive/1"
_RUN: Final = re.compile(r"([1-9][0-9]{0,8})x(d|[0-9]{1,6})")
_MOST_RUNS: Final = 4096


class Run(NamedTuple):
    """So many offsets in a row, and how often each was delivered, or that they are `DONE`."""

    length: int
    times: int


DONE: Final = -1


class Note(NamedTuple):
    """What stands beside an offset: who wrote it, and the runs from that offset on."""

    owner: str
    runs: tuple[Run, ...]


_NOTHING: Final = Note("", ())


def write(note: Note, room: int) -> str:
    """The note as text of at most `room` characters; what does not fit is left out at the end."""
    text = f"{_VERSION} {note.owner} "
    if len(text) > room:
        return ""
    parts: list[str] = []
    used = len(text)
    for length, count in note.runs[:_MOST_RUNS]:
        part = f"{length}x{'d' if count == DONE else count}"
        used += len(part) + 1
        if used > room:
            break
        parts.append(part)
    return text + ",".join(parts)


def read(text: str | None) -> Note:
    """What a text says; nothing, if it is not one of ours."""
    words = (text or "").split(" ")
    if len(words) != 3 or words[0] != _VERSION:
        return _NOTHING
    runs: list[Run] = []
    for part in words[2].split(",") if words[2] else ():
        found = _RUN.fullmatch(part)
        if found is None:
            break
        runs.append(Run(int(found[1]), DONE if found[2] == "d" else int(found[2])))
    return Note(words[1], tuple(runs))


def joined(counts: Iterable[int]) -> tuple[Run, ...]:
    """Offsets in a row, by their counts, as runs. What was never delivered need not be said at the end."""
    runs: list[Run] = []
    length, last = 0, DONE
    for count in counts:
        if count == last:
            length += 1
            continue
        if length:
            runs.append(Run(length, last))
        length, last = 1, count
    if length and last:
        runs.append(Run(length, last))
    return tuple(runs)
