"""`redrive export` and `redrive import`: letters as JSON lines, CSV or archive files, and back.

An archive is what retention writes (`stores.cold_files`): compressed lines of JSON with checksums; a file is complete
or does not exist. `redrive import` reads archives. An export changes nothing in the store.
"""

import asyncio
import csv
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

import click
import msgspec

from redrive.cli.letter_table import plain, state_name
from redrive.cli.output import to_json
from redrive.cli.progress import Show, progress
from redrive.cli.selection import (
    SelectionCommand,
    actor,
    all_option,
    check_broker_name,
    pluralise,
    run_with_store,
    select,
    selection_argument,
    store_options,
)
from redrive.cli.show import message_data
from redrive.clock import SystemClock
from redrive.errors import (
    LetterInvalidError,
    RedriveError,
    SettingsError,
    StoreError,
    on_one_line,
)
from redrive.letters import DeadLetter
from redrive.private_files import make_private_directory, private_opener
from redrive.recover.retention import Restored, restore
from redrive.settings import Settings
from redrive.stores import cold_files
from redrive.stores.base import Store
from redrive.stores.many import load_those_there, pages, portions
from redrive.stores.query import Query

_LOADED_BYTES: Final = 16 * 1024 * 1024  # of bodies that are loaded at a time
_FILE_BYTES: Final = 64 * 1024 * 1024  # of lines per file of a directory
_MAX_FILE_BYTES: Final = 512 * 1024 * 1024  # of lines, if one file was asked for
_SUFFIX: Final = ".jsonl.zst"
_COLUMNS: Final = (
    "id", "state", "broker", "source", "consumer_group", "error_type", "error_text", "kind", "reason", "group",
    "message_id", "correlation_id", "retry_count", "dlq_retry_count", "first_failed_at", "last_failed_at",
    "created_at", "priority", "tags", "assignee", "size",
)  # fmt: skip


class _Exported(msgspec.Struct):
    letters: int = 0
    files: list[str] = msgspec.field(default_factory=list)
    refused: list[str] = msgspec.field(default_factory=list)


@click.command("export", cls=SelectionCommand)
@selection_argument
@all_option
@click.option(
    "--format",
    "form",
    type=click.Choice(("jsonl", "csv", "archive")),
    help="JSON lines with bodies, CSV without, or the archive format of redrive import; default: by the file name.",
)
@click.option(
    "--output",
    metavar="FILE|DIR",
    type=click.Path(path_type=Path),
    help="Write to a file, or for an archive to a directory; default: standard output.",
)
@store_options
@click.pass_obj
def export(
    path: Path | None,
    words: tuple[str, ...],
    with_closed: bool,  # noqa: FBT001  click passes flags by name
    form: str | None,
    output: Path | None,
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """An existing file is never replaced. With --output, --json prints a report.

    \b
    Examples:
      redrive export source:orders | jq .error_type
      redrive export --format csv since:1d > letters.csv
      redrive export --all --output orders.jsonl.zst source:orders
      redrive export --all --format archive --output backup/

    Exit codes: 0 done; 1 some letters could not be written.
    """
    selection = select(words)
    form = form or _format_of(output)
    if output is None and (form == "archive" or as_json):
        raise SettingsError(f"{'--json' if as_json else 'an archive'} needs a file: pass --output FILE")
    if output is not None:
        _check_output(output, form)

    async def work(store: Store, _settings: Settings) -> _Exported:
        query = await selection.open_query(store, with_closed=with_closed)
        if form == "archive":
            assert output is not None  # noqa: S101  checked above
            with progress(await store.count(query), quiet=as_json) as show:
                return await _archive(store, query, output, show, into_one=_is_archive_file(output))
        write = _write_csv if form == "csv" else _write_jsonl
        if output is None:
            return _Exported(letters=await write(store, query, sys.stdout))
        with _new_file(output) as file:
            return _Exported(letters=await write(store, query, file), files=[str(output)])

    done = run_with_store(path, server, work)
    if as_json:
        click.echo(to_json(msgspec.to_builtins(done)))
    elif output is not None:
        target = done.files[0] if len(done.files) == 1 else f"{len(done.files)} files in {output}"
        click.echo(on_one_line(f"{pluralise(done.letters)} written{f' to {target}' if done.files else ''}"))
    if done.refused:
        for reason in done.refused if not as_json else ():
            click.echo(on_one_line(reason), err=True)
        raise RedriveError(f"{pluralise(len(done.refused))} could not be written")


def _format_of(output: Path | None) -> str:
    name = "" if output is None else output.name
    return "archive" if name.endswith(_SUFFIX) else "csv" if name.endswith(".csv") else "jsonl"


def _is_archive_file(output: Path) -> bool:
    return output.name.endswith(_SUFFIX) and not output.is_dir()


def _check_output(output: Path, form: str) -> None:
    is_file = form != "archive" or _is_archive_file(output)
    if is_file and output.is_dir():
        raise SettingsError(f"{output} is a directory; pass the name of a file, or --format archive")
    if is_file and output.exists():
        raise SettingsError(f"{output} already exists; pass another name")
    if not is_file and output.is_file():
        raise SettingsError(f"{output} is a file; pass a directory, or a name that ends with {_SUFFIX}")


# --- text ------------------------------------------------------------------------------------------------


@contextmanager
def _new_file(output: Path) -> Iterator[TextIO]:
    """A new file that only its owner can read; it is removed again if writing it fails."""
    try:
        make_private_directory(output.parent)
        file = open(output, "x", encoding="utf-8", newline="", opener=private_opener)  # noqa: SIM115
    except OSError as error:
        raise StoreError(f"{output} cannot be written: {error.strerror or error}") from None
    try:
        with file:
            yield file
    except BaseException:
        output.unlink(missing_ok=True)
        raise


async def _write_jsonl(store: Store, query: Query, file: TextIO) -> int:
    """One letter with its message per line."""
    count = 0
    async for letters in _letters(store, query):
        for letter in letters:
            fields = msgspec.structs.asdict(letter)
            message = fields.pop("message")
            file.write(
                to_json({**{n: plain(v) for n, v in fields.items()}, "message": message_data(message)}) + "\n"
            )
        count += len(letters)
    return count


async def _write_csv(store: Store, query: Query, file: TextIO) -> int:
    """One letter per row, without its message; tags are separated by spaces."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(_COLUMNS)
    count = 0
    async for heads in pages(store, query):
        rows.writerows([_cell(name, getattr(head, name)) for name in _COLUMNS] for head in heads)
        count += len(heads)
    return count


def _cell(name: str, value: Any) -> Any:
    if name == "state":
        return state_name(value)
    return " ".join(value) if name == "tags" else value.isoformat() if isinstance(value, datetime) else value


# --- archives --------------------------------------------------------------------------------------------


async def _archive(store: Store, query: Query, target: Path, show: Show, *, into_one: bool) -> _Exported:
    done = _Exported()
    lines: list[bytes] = []
    size = seen = 0
    async for letters in _letters(store, query):
        for line in await asyncio.to_thread(_lines_of, letters, done.refused):
            if into_one and size + len(line) > _MAX_FILE_BYTES:
                raise StoreError(
                    f"more than {_MAX_FILE_BYTES // 2**20} MiB do not fit into one file; pass a directory with --output"
                )
            if not into_one and lines and size + len(line) > _FILE_BYTES:
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
    """One file; it is complete and on the disk before it gets its name."""
    try:
        make_private_directory(target.parent)
        folder = Path(tempfile.mkdtemp(".tmp", ".export-", target.parent))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}") from None
    try:
        written = _next_file(folder, lines)
        try:
            target.hardlink_to(written)  # never replaces an existing file
        except FileExistsError:
            raise StoreError(f"{target} already exists; pass another name") from None
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


async def _letters(store: Store, query: Query) -> AsyncIterator[list[DeadLetter]]:
    """The letters that match, in batches of limited size."""
    async for heads in pages(store, query):
        for ids in portions(heads, _LOADED_BYTES):
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
@store_options
@click.pass_obj
def import_(
    path: Path | None,
    paths: tuple[Path, ...],
    broker: str | None,
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Files are archives that redrive export or retention has written. Letters that exist already stay as they are.

    \b
    Examples:
      redrive import orders.jsonl.zst
      redrive import /var/lib/redrive/cold
      redrive import backup/ --broker shop
      REDRIVE_STORE_URL=sqlite:copy.db redrive import backup/

    Letters that were not pending when they were written get the state manual.
    """
    if broker is not None:
        check_broker_name(broker)
    files = _files(paths)

    async def work(store: Store, settings: Settings) -> tuple[list[dict[str, Any]], RedriveError | None]:
        reports: list[dict[str, Any]] = []
        before = 0
        with progress(None, quiet=as_json) as show:
            for file in files:
                on_progress = _on_progress(show, before, file.name)
                try:
                    counts = await restore(
                        store, file, by=actor(), broker=broker, limits=settings.limits, progress=on_progress
                    )
                except RedriveError as error:
                    return reports, error
                before += counts.read
                reports.append({"file": str(file), **msgspec.to_builtins(counts)})
        return reports, None

    reports, problem = run_with_store(path, server, work, create=True)
    _print_import(reports, as_json=as_json, whole=problem is None)
    if problem is not None:
        raise problem


def _on_progress(show: Show, before: int, name: str) -> Callable[[Restored], None]:
    return lambda counts: show(before + counts.read, "reading", name)


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for each in paths:
        if each.is_dir():
            inside = [file.path for file in cold_files.listing(each)]
            if not inside:
                raise StoreError(f"{each} contains no archive files")
            files += inside
        elif each.exists():
            files.append(each)
        else:
            raise StoreError(f"{each} does not exist")
    return files


def _print_import(reports: Sequence[dict[str, Any]], *, as_json: bool, whole: bool) -> None:
    total = {name: sum(each[name] for each in reports) for name in Restored.__struct_fields__}
    if as_json:
        if whole:  # after an error, standard output stays empty
            click.echo(to_json({**total, "files": reports}))
        return
    if whole or reports:
        click.echo(
            f"{pluralise(total['read'])} read: {total['added']} added ({total['parked']} of them as manual), "
            f"{total['present']} already present"
        )
    if total["unnamed"]:
        click.echo(
            f"{pluralise(total['unnamed'])} without a broker name: not sent until you run: redrive set-broker NAME "
            "'broker:unnamed:*'"
        )
