"""The CPU time of commands, from the start of the interpreter to its end.

Each command runs as a process on a SQLite store with a few letters; some also run through a server. The figure is the
smallest of some runs, user and system time together: it depends little on other processes. The peer is a limit.
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.case import Case
from benchmarks.contestant import VoidError
from redrive.stores.sqlite import SqliteStore
from redrive.testing import letters
from tests.acceptance.serving import serving

VERSION_LIMIT_S, LIMIT_S, SERVER_LIMIT_S = 0.08, 0.25, 0.35
COMMANDS = (
    ("list",),
    ("stats",),
    ("groups",),
    ("operations",),
    ("replay", "source:orders", "--dry-run"),
    ("edit", "source:orders", "--merge", "{}", "--dry-run"),
    ("export",),
    ("config", "check"),
    ("explain", "timeout"),
)


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    runs = 5 if quick else 20
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asyncio.run(_fill(directory / "redrive.db"))
        yield _case(directory, ("--version",), VERSION_LIMIT_S, runs)
        for words in COMMANDS:
            yield _case(directory, words, LIMIT_S, runs)
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as server:
        for words in (("list",), ("stats",)):
            yield _case(Path(name), (*words, "--server", server.http), SERVER_LIMIT_S, runs)


async def _fill(file: Path) -> None:
    store = await SqliteStore.open(file)
    await store.add(letters(20))
    await store.close()


def _case(directory: Path, words: tuple[str, ...], limit: float, runs: int) -> Case:
    name = f"redrive {' '.join(word for word in words if '://' not in word)}"
    best = min(_cpu_seconds(directory, words) for _ in range(runs))
    return Case(name, best, limit, "limit", 1.0, "s CPU", less_is_better=True)


def _cpu_seconds(directory: Path, words: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "redrive", *words],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")},
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise VoidError(f"redrive {' '.join(words)}: {done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
