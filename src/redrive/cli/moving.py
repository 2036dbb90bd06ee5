"""`redrive export` and `redrive import`: letters into files, and back.

The files are those of `stores.cold_files`: compressed lines of JSON with checksums, whole or not there. An export
changes nothing in the store; an import adds what is not there yet.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from redrive.cli.letters import actor, check_broker_name, common, counted, query_of, with_store
from redrive.cli.output import as_json
from redrive.cli.progress import Show, progress
from redrive.clock import SystemClock
from redrive.errors import (
    LetterInvalidError,
    RedriveError,
    SettingsError,
    StoreError,
    on_one_line,
)
from redrive.letters import DeadLetter
from redrive.private_files import make_private_directory
from redrive.recover.retention import Restored, restore
from redrive.settings import Settings
from redrive.stores import cold_files
from redrive.stores.base import Store
from redrive.stores.many import load_those_there, pages, portions
from redrive.stores.query import Query

_LOADED: Final = 16 * 1024 * 1024  # bytes of body that are loaded at once
_FILE: Final = 64 * 1024 * 1024  # bytes of lines in a file of a folder
_ONE_FILE: Final = 512 * 1024 * 1024  # likewise where one file was asked for
_SUFFIX: Final = ".jsonl.zst"


class _Exported(msgspec.Struct):
    letters: int = 0
    files: list[str] = msgspec.field(default_factory=list)
    refused: list[str] = msgspec.field(default_factory=list)


@click.command("export")
@click.argument("filter_words", metavar="[FILTER]...", nargs=-1)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FILE|DIR",
    type=click.Path(path_type=Path),
    help="A file that ends in .jsonl.zst, or a folder for as many files as it takes.",
)
@common
@click.pass_obj
def export(
    path: Path | None,
    filter_words: tuple[str, ...],
    target: Path,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Write letters to files, bodies and all. The store stays as it is.

    \b
    Examples:
      redrive export --to backup/
      redrive export source:orders since:1d --to orders.jsonl.zst
      zstd -dc orders.jsonl.zst | jq .

    Exit codes: 0 done; 1 some letters cannot be written.
    """
    query = query_of(filter_words)
    into_one = target.name.endswith(_SUFFIX) and not target.is_dir()
    if into_one and target.exists():
        raise SettingsError(f"{target} exists; choose another name")
    if not into_one and target.is_file():
        raise SettingsError(f"{target} is a file; give a folder, or a name that ends in {_SUFFIX}")

    async def work(store: Store, _settings: Settings) -> _Exported:
        with progress(await store.count(query), quiet=for_programs) as show:
            return await _export(store, query, target, show, into_one=into_one)

    done = with_store(path, server, work)
    if for_programs:
        click.echo(as_json(msgspec.to_builtins(done)))
    else:
        where = f" to {done.files[0]}" if len(done.files) == 1 else f" to {len(done.files)} files in {target}"
        click.echo(on_one_line(f"{counted(done.letters)} written{where if done.files else ''}"))
        for why in done.refused:
            click.echo(on_one_line(why), err=True)
    if done.refused:
        raise RedriveError(f"{counted(len(done.refused))} cannot be written")


async def _export(store: Store, query: Query, target: Path, show: Show, *, into_one: bool) -> _Exported:
    done = _Exported()
    lines: list[bytes] = []
    size = seen = 0
    async for letters in _letters(store, query):
        for line in await asyncio.to_thread(_lines_of, letters, done.refused):
            if into_one and size + len(line) > _ONE_FILE:
                raise StoreError(
                    f"more than {_ONE_FILE // 2**20} MiB is too much for one file; give a folder with --to"
                )
            if not into_one and lines and size + len(line) > _FILE:
                await _write(target, lines, done, into_one=False)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        seen += len(letters)
        show(seen, "reading", "")
    if lines:
        await _write(target, lines, done, into_one=into_one)
    return done


async def _write(target: Path, lines: Sequence[bytes], done: _Exported, *, into_one: bool) -> None:
    written = await asyncio.to_thread(_one_file if into_one else _next_file, target, lines)
    done.files.append(str(written))
    done.letters += len(lines)


def _next_file(folder: Path, lines: Sequence[bytes]) -> Path:
    return cold_files.write_lines(folder, lines, day=SystemClock().now().date())


def _one_file(target: Path, lines: Sequence[bytes]) -> Path:
    """One file under a name of its own; it is whole, on the disk, before it gets that name."""
    try:
        make_private_directory(target.parent)
        folder = Path(tempfile.mkdtemp(".tmp", ".export-", target.parent))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}") from None
    try:
        written = _next_file(folder, lines)
        try:
            target.hardlink_to(written)  # never replaces what somebody else has put there meanwhile
        except FileExistsError:
            raise StoreError(f"{target} exists; choose another name") from None
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


async def _letters(store: Store, query: Query) -> AsyncIterator[list[DeadLetter]]:
    """The letters that match, as many at a time as memory likes."""
    async for heads in pages(store, query):
        for ids in portions(heads, _LOADED):
            yield await load_those_there(store, ids)


def _lines_of(letters: Sequence[DeadLetter], refused: list[str]) -> list[bytes]:
    lines: list[bytes] = []
    for letter in letters:
        try:
            lines.append(cold_files.line_of(letter))
        except LetterInvalidError as error:
            refused.append(str(error))
    return lines


@click.command("import")
@click.argument("paths", metavar="FILE|DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--broker", metavar="NAME", help="The broker that the letters belong to; default: as in the file."
)
@common
@click.pass_obj
def import_(
    path: Path | None,
    paths: tuple[Path, ...],
    broker: str | None,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Add the letters of exported files, or of the files that retention wrote, to the store.

    \b
    Examples:
      redrive import orders.jsonl.zst
      redrive import /var/lib/redrive/cold
      redrive import backup/ --broker shop
      REDRIVE_STORE_URL=sqlite:copy.db redrive import backup/

    Letters that are there already stay as they are. What was not pending when it was written waits for a person.
    """
    if broker is not None:
        check_broker_name(broker)
    files = _files(paths)

    async def work(store: Store, settings: Settings) -> tuple[list[dict[str, Any]], RedriveError | None]:
        told: list[dict[str, Any]] = []
        before = 0
        with progress(None, quiet=for_programs) as show:
            for file in files:
                heard = _heard(show, before, file.name)
                try:
                    counts = await restore(
                        store, file, by=actor(), broker=broker, limits=settings.limits, progress=heard
                    )
                except RedriveError as error:
                    return told, error
                before += counts.read
                told.append({"file": str(file), **msgspec.to_builtins(counts)})
        return told, None

    told, problem = with_store(path, server, work, create=True)
    _tell(told, for_programs=for_programs, whole=problem is None)
    if problem is not None:
        raise problem


def _heard(show: Show, before: int, name: str) -> Callable[[Restored], None]:
    return lambda counts: show(before + counts.read, "reading", name)


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for each in paths:
        if each.is_dir():
            inside = [file.path for file in cold_files.listing(each)]
            if not inside:
                raise StoreError(f"{each} holds no files of letters")
            files += inside
        elif each.exists():
            files.append(each)
        else:
            raise StoreError(f"{each} does not exist")
    return files


def _tell(told: Sequence[dict[str, Any]], *, for_programs: bool, whole: bool) -> None:
    total = {name: sum(each[name] for each in told) for name in Restored.__struct_fields__}
    if for_programs:
        if whole:  # an error is told on standard error, and standard output stays one value or none
            click.echo(as_json({**total, "files": told}))
        return
    if whole or told:
        click.echo(
            f"{counted(total['read'])} read: {total['added']} added, {total['present']} there already, "
            f"{total['parked']} wait for a person"
        )
    if total["unnamed"]:
        click.echo(
            f"{counted(total['unnamed'])} without a broker's name: they are not sent until you run redrive set-broker "
            "NAME --where 'broker:unnamed:*'"
        )
