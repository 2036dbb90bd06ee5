"""How long are letters kept, and where do they go then?

    resolved   30 days, then deleted
    failed     90 days, then written to a cold file and archived
    archived   one year, then written to a cold file once more, with all that was noted since, and deleted
    pending    never touched; neither is what is held or waits for a person

Ages count from the last change of a letter. `restore` brings a file back: what was not pending when it was put away
waits for a person then, so that nothing is sent back unasked.

The rule: the file is on the disk before the letter is changed. A crash between the two gives a letter that is in two
files, never one that is gone. The service takes a few hundred letters at a time and does not know which store it has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from redrive.clock import Clock, pause
from redrive.errors import (
    FormatError,
    LetterInvalidError,
    SettingsError,
)
from redrive.letters import DeadLetter, LetterState
from redrive.settings import LimitSettings
from redrive.stores import cold_files
from redrive.stores.base import Store
from redrive.stores.brokers import UNNAMED
from redrive.stores.changes import Annotate, Archive, Change, Delete, Park, Settlement
from redrive.stores.checks import LARGEST_PAGE, LONGEST_TEXT
from redrive.stores.many import change_those_that_can, load_those_there, portions
from redrive.stores.query import Condition, Op, Query, Sort

_LEFTOVER: Final = timedelta(days=1)  # a writer that is older than this is no longer writing
# When a restored letter is due: never by itself. It also marks one whose restoring was cut short.
NEVER_DUE: Final = datetime(9999, 1, 1, tzinfo=UTC)
_BATCH: Final = 500
_BATCH_BYTES: Final = 16 * 1024 * 1024  # of bodies that are restored at once
_PORTION: Final = 64 * 1024 * 1024  # bytes of body that are loaded at once


class RetentionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long letters stay in the store, by state, and where the cold files are."""

    directory: Path
    resolved: timedelta = timedelta(days=30)
    failed: timedelta = timedelta(days=90)
    archived: timedelta = timedelta(days=365)
    every: timedelta = timedelta(hours=1)
    batch: int = _BATCH

    def __post_init__(self) -> None:
        for name in ("resolved", "failed", "archived", "every"):
            if getattr(self, name) <= timedelta(0):
                raise SettingsError(f"retention: '{name}' must be longer than 0 seconds")
        if isinstance(self.batch, bool) or not 1 <= self.batch <= LARGEST_PAGE:
            raise SettingsError(f"retention: batch must be between 1 and {LARGEST_PAGE}, not {self.batch}")


class RetentionCounts(msgspec.Struct):
    """What the service has done since it began."""

    deleted: int = 0
    archived: int = 0
    written: int = 0  # letters in files
    files: int = 0
    changed: int = 0  # left alone, because somebody else changed them meanwhile
    refused: int = 0  # kept in the store, because they cannot be written exactly


class Retention:
    """Puts old letters away."""

    name = "retention"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        options: RetentionOptions,
        *,
        trouble: Callable[[str, Exception], None] = lambda _what, _error: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._options = options
        self._trouble = trouble
        self.counts = RetentionCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop` is set."""
        before = self._clock.now() - _LEFTOVER
        await asyncio.to_thread(cold_files.sweep, self._options.directory, before=before)
        while not stop.is_set():
            await self.turn(stop)
            await pause(self._clock, self._options.every, stop)

    async def turn(self, stop: asyncio.Event | None = None) -> None:
        """Look once at everything that is old enough; `stop` ends it between two batches."""
        # What needs no file comes first: a full disk does not keep it back.
        steps: tuple[tuple[LetterState, timedelta, Callable[[Sequence[str]], Awaitable[None]]], ...] = (
            (LetterState.RESOLVED, self._options.resolved, self._delete_resolved),
            (LetterState.FAILED, self._options.failed, self._archive_failed),
            (LetterState.ARCHIVED, self._options.archived, self._delete_archived),
        )
        for state, age, put_away in steps:
            old = Query(
                (
                    Condition("state", Op.IS, (state,)),
                    Condition("updated", Op.LESS, (self._clock.now() - age,)),
                ),
                sort=Sort("updated", descending=False),
            )
            # The cursor passes what has to stay, so that it does not come again and again.
            cursor: str | None = None
            while stop is None or not stop.is_set():
                page = await self._store.page(old, limit=self._options.batch, cursor=cursor)
                for ids in portions(page.heads, _PORTION):
                    await put_away(ids)
                if (cursor := page.cursor) is None:
                    break

    async def _delete_resolved(self, ids: Sequence[str]) -> None:
        self.counts.deleted += await self._apply(Delete(), ids)

    async def _archive_failed(self, ids: Sequence[str]) -> None:
        written = await self._write(await self._load(ids))
        self.counts.archived += await self._apply(Archive(), [letter.id for letter in written])

    async def _delete_archived(self, ids: Sequence[str]) -> None:
        written = await self._write(await self._load(ids))
        # After this the file is all there is: what somebody noted while it was written has to be in one, next time.
        now = {letter.id: letter for letter in await self._load([letter.id for letter in written])}
        same = [letter.id for letter in written if now.get(letter.id) == letter]
        self.counts.changed += sum(letter_id not in same for letter_id in now)
        self.counts.deleted += await self._apply(Delete(), same)

    async def _load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Those of the letters that are still there."""
        found = await load_those_there(self._store, ids)
        self.counts.changed += len(ids) - len(found)
        return found

    async def _write(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Make the letters durable in a file; those that are in it."""
        lines, refused = await asyncio.to_thread(_lines_of, letters)
        for error in refused:
            self.counts.refused += 1
            self._trouble("letter not archived, it stays in the store", error)
        if lines:
            day = self._clock.now().date()
            await asyncio.to_thread(
                cold_files.write_lines, self._options.directory, list(lines.values()), day=day
            )
            self.counts.files += 1
            self.counts.written += len(lines)
        return [letter for letter in letters if letter.id in lines]

    async def _apply(self, change: Change, ids: Sequence[str]) -> int:
        """Change all of them, or, where one of them is no longer what it was, each that still is."""
        done = await change_those_that_can(self._store, change, ids, by=self.name)
        self.counts.changed += len(ids) - done
        return done


def _lines_of(letters: Sequence[DeadLetter]) -> tuple[dict[str, bytes], list[LetterInvalidError]]:
    """The lines by id, and why some letters have none."""
    lines: dict[str, bytes] = {}
    refused: list[LetterInvalidError] = []
    for letter in letters:
        try:
            lines[letter.id] = cold_files.line_of(letter)
        except LetterInvalidError as error:
            refused.append(error)
    return lines, refused


# --- the way back ----------------------------------------------------------------------------------------


class Restored(msgspec.Struct):
    """What became of the letters of a file."""

    read: int = 0
    added: int = 0
    present: int = 0  # were there already, and were left alone
    parked: int = 0  # wait for a person now
    unnamed: int = 0  # of those read, letters whose broker is not recorded


async def restore(
    store: Store,
    path: Path,
    *,
    by: str,
    broker: str | None = None,
    limits: LimitSettings | None = None,
    progress: Callable[[Restored], None] = lambda _counts: None,
) -> Restored:
    """Add the letters of a cold file to the store. At damage, those before it are there, and the error says so.

    `broker` is the name of the broker that all of them belong to; without it each keeps its own. `limits` bound what a
    file of others may expand to.
    """
    counts = Restored()
    letters = cold_files.read(path, limits)
    damage: FormatError | None = None
    while damage is None:
        batch, damage = await asyncio.to_thread(_next, letters)
        if not batch:
            break
        if broker is not None:
            batch = [msgspec.structs.replace(letter, broker=broker) for letter in batch]
        counts.unnamed += sum(letter.broker.startswith(UNNAMED) for letter in batch)
        await _restore_batch(store, batch, path.name, by, counts)
        progress(counts)
    if damage is not None:
        raise FormatError(f"{damage}; the {counts.read} letters before that were restored")
    return counts


def _next(letters: Iterator[DeadLetter]) -> tuple[list[DeadLetter], FormatError | None]:
    batch: list[DeadLetter] = []
    size = 0
    try:
        for letter in islice(letters, _BATCH):
            batch.append(letter)
            size += len(letter.message.body or b"")
            if size >= _BATCH_BYTES:
                break
    except FormatError as error:
        return batch, error
    return batch, None


async def _restore_batch(
    store: Store, batch: Sequence[DeadLetter], file: str, by: str, counts: Restored
) -> None:
    unique = {letter.id: letter for letter in batch}
    sleeping = {letter.id for letter in unique.values() if letter.state is not LetterState.PENDING}
    # Added as never due, so that no worker can be quicker than the parking below.
    adding = [
        msgspec.structs.replace(letter, next_retry_at=NEVER_DUE) if letter.id in sleeping else letter
        for letter in unique.values()
    ]
    is_new = await store.add(adding)
    counts.read += len(batch)
    counts.added += sum(is_new)
    counts.present += len(batch) - sum(is_new)
    if sleeping:
        await _park(store, unique, await _unparked(store, sorted(sleeping)), file, by, counts)


async def _unparked(store: Store, ids: Sequence[str]) -> list[str]:
    """Those that were added never due and not parked: now, or by a run that was cut short."""
    added = Query((Condition("id", Op.IS, tuple(ids)), Condition("state", Op.IS, (LetterState.PENDING,))))
    page = await store.page(added, limit=len(ids))
    return [head.id for head in page.heads if head.next_retry_at == NEVER_DUE and head.fence == 0]


async def _park(
    store: Store, letters: dict[str, DeadLetter], ids: Sequence[str], file: str, by: str, counts: Restored
) -> None:
    for letter_id in ids:
        await _copy_notes(store, letters[letter_id], by)
    held = await store.take(ids, by)
    settlements = []
    for head in held:
        old = letters[head.id]
        detail = f"restored from {file}; it was {old.state} after {old.dlq_retry_count} redrives"
        settlements.append(Settlement(head.claim_token, Park(detail=detail)))
    counts.parked += sum(await store.settle(settlements))


async def _copy_notes(store: Store, letter: DeadLetter, by: str) -> None:
    """A store takes letters without their notes: they are written again, with author and time in the text."""
    if not letter.notes:
        return
    [now] = await store.load([letter.id])
    there = {note.text for note in now.notes}
    for note in letter.notes:
        text = f"{note.author} at {note.at.isoformat()}: {note.text}"[:LONGEST_TEXT]
        if text not in there:
            await store.apply(Annotate(text), [letter.id], by=by)
