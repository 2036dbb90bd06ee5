"""Write the golden data: stores, broker directories, files and messages of one version of redrive.

    python -m tests.golden.make --source TREE --to tests/golden/v1
    python -m tests.golden.make --source TREE --to DIR --letters 100000

`TREE` is a checkout of the version that writes, as a rule an old one. The interpreter is that of `make setup`; the
services are those that the tests use (PostgreSQL 15 and Kafka). `v1` was written by commit 903bd1d. These modules use
the names of that version and of the current one. Once the current code has other names, use the modules of the commit
that last changed `v1` to write it again.

Stack traces contain the paths of both trees. Write from neutral places, such as symbolic links below /srv.

The letters are the same on every run: clock, seed and random ids are fixed. What goes through a broker has the time at
which it was written. With more than 1,000 letters only the stores are written, uncompressed, with their recordings: the
data for load tests, which does not belong in the repository.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

_LETTERS: Final = 1000
_SET: Final = re.compile(
    r"SET (?:transaction_timeout|lock_timeout|idle_in_transaction_session_timeout|row_security)\b"
)


def main() -> None:
    """Read the arguments, then write with the code of the given tree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help="checkout of the version that writes")
    parser.add_argument("--to", type=Path, required=True, help="directory to write to; replaced")
    parser.add_argument(
        "--letters", type=int, default=_LETTERS, help="letters in each store (default: %(default)s)"
    )
    arguments = parser.parse_args()
    sys.path.insert(0, str((arguments.source / "src").absolute()))
    for name in [
        name for name in os.environ if name.startswith("REDRIVE_") and not name.startswith("REDRIVE_TEST_")
    ]:
        del os.environ[name]
    shutil.rmtree(arguments.to, ignore_errors=True)
    arguments.to.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="redrive-golden-") as work:
        asyncio.run(
            _write(arguments.source.absolute(), arguments.to.absolute(), Path(work), arguments.letters)
        )
    for path in sorted(arguments.to.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:>10,} {path.relative_to(arguments.to)}")  # noqa: T201


async def _write(source: Path, to: Path, work: Path, letters: int) -> None:
    import redrive

    assert Path(redrive.__file__).is_relative_to(source), f"redrive is imported from {redrive.__file__}"
    from tests.services import KAFKAS, POSTGRESES, Run

    small = letters <= _LETTERS
    version = {
        "commit": _output("git", "-C", str(source), "rev-parse", "HEAD"),
        "version": redrive.__version__,
        "letters": letters,
    }
    (to / "version.json").write_text(json.dumps(version, indent=1) + "\n")
    with Run.of(os.environ) as run:
        await _sqlite(to, work, letters)
        await _postgres(to, letters, run.address(POSTGRESES["15"], os.environ), work)
        if small:
            await _files(to, work, source)
            await asyncio.to_thread(_brokers, to, work)
            await _amqp_messages(to, work)
            await _kafka_messages(
                to, run.address(KAFKAS["4.3"], os.environ), run.address(KAFKAS["3.9"], os.environ)
            )


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


# --- stores -------------------------------------------------------------------------------------------------


async def _sqlite(to: Path, work: Path, letters: int) -> None:
    from redrive.stores.sqlite import SqliteStore
    from redrive.testing import ManualClock
    from tests.golden.letters import START, fill
    from tests.golden.plain import packed, write_json
    from tests.golden.reading import store_content, store_future

    path, copy = work / "letters.db", work / "copy.db"
    clock = ManualClock(START)
    store = await SqliteStore.open(path, clock=clock)
    await fill(store, clock, letters=letters)
    content = await store_content(store, clock.now())
    await store.close()
    shutil.copy(path, copy)
    written_at = clock.now()
    store = await SqliteStore.open(copy, clock=clock)
    future = await store_future(store, clock)
    await store.close()
    small = letters <= _LETTERS
    recording = {"written_at": written_at.isoformat(), "content": content, "future": future}
    write_json(to / f"store.json{'.zst' if small else ''}", recording)
    (to / f"store.sqlite{'.zst' if small else ''}").write_bytes(
        packed(path.read_bytes()) if small else path.read_bytes()
    )


async def _postgres(to: Path, letters: int, server: Any, work: Path) -> None:
    from redrive.stores.postgres import PostgresStore
    from redrive.testing import ManualClock
    from tests.golden.letters import START, fill
    from tests.golden.plain import check, packed, read_json
    from tests.golden.reading import store_content, store_future

    with server.fresh() as database:
        clock = ManualClock(START)
        store = await PostgresStore.open(database.url, clock=clock)
        await fill(store, clock, letters=letters)
        recorded = read_json(to / f"store.json{'.zst' if letters <= _LETTERS else ''}")
        check(recorded["content"], await store_content(store, clock.now()))
        await store.close()
        dump = await asyncio.to_thread(_dump, database)
        store = await PostgresStore.open(database.url, clock=clock)
        check(recorded["future"], await store_future(store, clock))
        await store.close()
    small = letters <= _LETTERS
    (to / f"store.postgres.sql{'.zst' if small else ''}").write_bytes(packed(dump) if small else dump)


def _dump(database: Any) -> bytes:
    """The database as plain SQL that every supported psql and server can load."""
    program = Path(database.program).with_name("pg_dump")
    flags = ("--no-owner", "--no-privileges", "--no-comments", "--no-tablespaces")
    done = subprocess.run([program, *flags, database.url], check=True, capture_output=True)
    lines = done.stdout.decode().splitlines()
    kept = [
        line for line in lines if not _SET.match(line) and not line.startswith((r"\restrict", r"\unrestrict"))
    ]
    return ("\n".join(kept) + "\n").encode()


# --- files --------------------------------------------------------------------------------------------------


async def _files(to: Path, work: Path, source: Path) -> None:
    """Archive files, as retention writes them; and exports, into one file and into a folder."""
    from redrive.recover.retention import Retention, RetentionOptions
    from redrive.stores.sqlite import SqliteStore
    from redrive.testing import ManualClock
    from tests.golden.letters import START
    from tests.golden.plain import write_json
    from tests.golden.reading import file_content

    copy, archive, exports = work / "retention.db", to / "archive", to / "export"
    shutil.copy(work / "letters.db", copy)
    clock = ManualClock(START)
    store = await SqliteStore.open(copy, clock=clock)
    retention = Retention(store, clock, RetentionOptions(directory=archive), trouble=_fail)
    for days in (100, 300):
        clock.advance(timedelta(days=days))
        await retention.turn()
    await store.close()
    environment = {
        **os.environ,
        "PYTHONPATH": str(source / "src"),
        "REDRIVE_STORE_URL": f"sqlite:{work / 'letters.db'}",
    }
    for target, words in (
        (exports / "all-states.jsonl.zst", "tag:vip"),
        (exports / "folder", "source:jobs,mail"),
    ):
        command = [
            sys.executable,
            "-m",
            "redrive",
            "export",
            "--all",
            "--format",
            "archive",
            "--output",
            str(target),
            words,
        ]
        await asyncio.to_thread(subprocess.run, command, check=True, env=environment, cwd=work)
    paths = sorted([*archive.iterdir(), exports / "all-states.jsonl.zst", *(exports / "folder").iterdir()])
    write_json(to / "files.json.zst", {str(path.relative_to(to)): await file_content(path) for path in paths})


def _fail(what: str, error: Exception) -> None:
    raise AssertionError(what) from error


# --- brokers ------------------------------------------------------------------------------------------------


def _brokers(to: Path, work: Path) -> None:
    """Data directories of the embedded broker, after SIGKILL and after an orderly stop."""
    from tests.golden import broker
    from tests.golden.plain import write_json
    from tests.golden.reading import pack_directory, unpack_directory

    for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGTERM)):
        with broker.running(work / name) as process, broker.fill(process):
            process.end(number)
        packed = pack_directory(work / name)
        (to / f"broker-{name}.tar.zst").write_bytes(packed)
        unpack_directory(packed, work / "again")
        with broker.running(work / "again") as process:
            write_json(to / f"broker-{name}.json.zst", broker.content(process))


# --- messages -----------------------------------------------------------------------------------------------


async def _amqp_messages(to: Path, work: Path) -> None:
    from tests.golden import broker, messages
    from tests.golden.plain import write_json

    with broker.running(work / "consume") as first, broker.running(work / "read") as second:
        url, other = first.url("/"), second.url("/")
        recording = _Recording(other, partial(messages.put_amqp, other))
        letters = []
        for queue, records in (await messages.amqp_dead_letters(url)).items():
            letters += await recording.dead_letters(queue, records)
        await recording.received("waits", "waits", await messages.amqp_retries(url))
        await recording.redrives(await messages.amqp_redrives(other, letters))
    write_json(to / "messages-rabbitmq.json", recording.content)


async def _kafka_messages(to: Path, server: Any, other: Any) -> None:
    from tests.golden import messages
    from tests.golden.plain import write_json

    recording = _Recording(other.url, partial(messages.put_kafka, other.bootstrap))
    letters = await recording.dead_letters(*await messages.kafka_dead_letters(server, "plain"))
    await recording.dead_letters(*await messages.kafka_dead_letters(server, "onex"))
    await recording.dead_letters(*await messages.kafka_dead_letters(server, "large"))
    await recording.received(
        "waits", "waits.retry.10s", await messages.kafka_retries(server), "?retry=topics"
    )
    await recording.redrives(await messages.kafka_redrives(server.url, letters))
    write_json(to / "messages-kafka.json", recording.content)


class _Recording:
    """Messages of one broker with what the code that wrote them reads from them."""

    def __init__(self, url: str, put: Callable[..., None]) -> None:
        """`url` and `put` belong to a server on which nothing was consumed, as in the tests."""
        self._url = url
        self._put = put
        self.content: dict[str, Any] = {"dead_letters": [], "received": [], "verdicts": {}}

    async def dead_letters(self, queue: str, records: Sequence[Any]) -> list[Any]:
        from tests.golden.reading import collected, letter_content

        letters = await collected(self._url, queue, partial(self._put, queue, records), len(records))
        parsed = [letter_content(letter) for letter in letters]
        self.content["dead_letters"].append({"queue": queue, "messages": records, "letters": parsed})
        return letters

    async def received(self, queue: str, to: str, records: Sequence[Any], options: str = "") -> None:
        from tests.golden.reading import received

        parsed = await received(self._url + options, queue, partial(self._put, to, records), len(records))
        self.content["received"].append(
            {"queue": queue, "to": to, "options": options, "messages": records, "deliveries": parsed}
        )

    async def redrives(self, records: dict[str, Any]) -> None:
        from tests.golden.messages import body_of
        from tests.golden.reading import verdicts_of

        await self.received("returns", "returns", records["redrives"])
        await self.dead_letters("returns.dlq", records["died_again"])
        verdicts = records["verdicts"]
        parsed = [verdicts_of(body_of(record)) for record in verdicts]
        self.content["verdicts"] = {"messages": verdicts, "parsed": parsed}


if __name__ == "__main__":
    main()
