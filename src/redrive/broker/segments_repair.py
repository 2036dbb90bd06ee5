"""What can still be had of segments that are damaged?

Every block whose checksum is right. What is missing between them becomes a *hole* block, which says with which sequence
it goes on, so that the repaired segments read like any others. The rule: nothing is thrown away; a file that is changed
stays beside as it was, as `.damaged`. A torn tail is no damage and is left to the ordinary reading.

It does not know what the lost records said, nor what the others mean without them.
"""

import os
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

from redrive.broker.journal_errors import JournalDamagedError, translated
from redrive.broker.segments import (
    HOLE,
    OPENING,
    Block,
    Segment,
    create,
    framed,
    next_block,
    opening,
    read_opening,
)


class _Content(NamedTuple):
    """What can be read of a segment."""

    opened: bool  # the header is good
    first: int | None  # the sequence it begins with, as far as that is known
    blocks: list[Block]
    clean: bool  # nothing lies between the blocks or behind them


def repair(segments: list[Segment]) -> list[str]:
    """Take damage out of the segments; what was taken out, one line each. A torn tail is left alone."""
    report: list[str] = []
    salt = _any_salt(segments)
    following = _content(segments[0], salt, 0) if segments else None
    expected = (following.first if following else 0) or 0
    for segment, successor in zip(segments, [*segments[1:], None], strict=True):
        start, here = expected, following
        assert here is not None  # noqa: S101  # there is one as long as there are segments
        parts: list[bytes] = []
        whole = here.opened and (here.clean or successor is None)
        sequences = [block.sequence for block in here.blocks]
        end = here.blocks[-1].following if here.blocks else expected
        if successor is not None:
            following = _content(successor, salt, max(end, expected))
            sequences.append(end if following.first is None else following.first)
        for block, sequence in zip_longest(here.blocks, sequences):
            if sequence > expected:
                whole = False
                parts += framed(sequence.to_bytes(8, "little"), HOLE, expected, salt)
                report.append(f"{segment.path}: blocks {expected} to {sequence - 1} are lost")
                expected = sequence
            if block is not None:
                parts += framed(block.payload, block.back, block.sequence, salt)
                expected = block.following
        if not whole and (here.opened or successor is not None or here.blocks):
            segment.salt = salt
            aside = segment.path.with_name(segment.path.name + ".damaged")
            report.append(f"{segment.path} was repaired; the original file was kept as {aside.name}")
            with translated(segment.path, "repair"):
                aside.unlink(missing_ok=True)
                os.link(segment.path, aside)
            create(segment.path, [opening(segment, start), *parts])
    return report


def _any_salt(segments: list[Segment]) -> int:
    """The journal's salt, from a good header, or as a bad one has it."""
    salt = 0
    for segment in segments:
        with translated(segment.path, "read"), segment.path.open("rb") as file:
            data = file.read(OPENING.size)
        with suppress(JournalDamagedError):
            read_opening(segment, data)
            return segment.salt
        salt = segment.salt or salt
    return salt


def _content(segment: Segment, salt: int, sequence: int) -> _Content:
    with translated(segment.path, "read"):
        data = segment.path.read_bytes()
    first = None
    with suppress(JournalDamagedError):
        first = sequence = read_opening(segment, data)
    opened = first is not None
    blocks: list[Block] = []
    end, clean = OPENING.size, True
    while block := next_block(data, end, sequence, salt):
        clean = clean and block.at == end
        blocks.append(block)
        end, sequence = block.end, block.following
    if blocks and first is None:
        first = blocks[0].sequence
    return _Content(opened, first, blocks, clean and end == len(data))
