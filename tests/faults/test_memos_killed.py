"""Processes that share a memo are killed at any moment: no acknowledged write is lost, overwritten or made twice."""

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from redrive.settings import StoreOptions
from redrive.stores import open_store
from redrive.stores.memos import Memo
from tests import soak
from tests.faults.children import a_child
from tests.services import Postgres

CHILD = Path(__file__).with_name("memo_child.py")
ROUNDS = soak.count(10, in_ci=2)  # of two children each: 20 kills


class Told:
    """What the children acknowledged, over all of their lives."""

    def __init__(self) -> None:
        self.lines: dict[int, str] = {}
        self.kills = 0

    def hear(self, said: bytes) -> None:
        for words in said.decode().splitlines(keepends=True):
            if words.endswith("\n"):  # a torn last line was never said
                version, line = words.split()
                assert int(version) not in self.lines, f"two were told that they wrote version {version}"
                self.lines[int(version)] = line

    def check(self, memo: Memo) -> None:
        """Hold the memo to what was told: line by line it is the history of its versions."""
        written = (memo.body or b"").decode().splitlines()
        assert len(written) == memo.version, "a version was skipped, or made twice"
        assert len(set(written)) == len(written), "a write was done twice"
        for version, line in self.lines.items():
            assert written[version - 1 : version] == [line], f"the write of version {version} is lost"
        # A child that dies has at most one write under way, which may be done without its having said so.
        assert memo.version - len(self.lines) <= self.kills


async def recalled(url: str) -> Memo:
    store = await open_store(StoreOptions(url=url))
    try:
        assert await store.damage() is None
        return await store.recall("lines")
    finally:
        await store.close()


def race_and_kill(url: str, number: int, told: Told, chance: random.Random) -> None:
    """Two children write at once; each is killed at a moment of its own."""
    with ExitStack() as children:
        pair = [children.enter_context(a_killed_child(url, f"{number}.{which}")) for which in range(2)]
        for _, said, _ in pair:
            assert said.readline() == b"open\n"
        for _, _, say in pair:
            say.write(b".")
            say.flush()
        for child, said, _ in pair:
            first = said.readline()  # each gets a turn, however busy the machine is
            time.sleep(chance.random() * 0.05)
            child.kill()
            told.kills += 1
            told.hear(first + said.read())


@contextmanager
def a_killed_child(url: str, name: str) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes], IO[bytes]]]:
    """A child, what it says and what it is told; it is dead in the end."""
    child = a_child(CHILD, url, name)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        yield child, child.stdout, child.stdin
    finally:
        child.kill()
        errors = child.stderr.read().decode()
        for pipe in (child.stdin, child.stdout, child.stderr):
            pipe.close()
        child.wait()
        assert errors == ""


def race_again_and_again(url: str, rounds: int) -> None:
    chance, told = random.Random(soak.seed(rounds)), Told()
    for number in range(rounds):
        race_and_kill(url, number, told, chance)
        told.check(asyncio.run(recalled(url)))
    soak.report(kills=told.kills, acknowledged=len(told.lines))
    writers = {line.partition("/")[0] for line in told.lines.values()}
    assert len(writers) == 2 * rounds, "somebody never wrote"


@pytest.mark.soak
def test_processes_on_one_file_that_are_killed_lose_no_write(tmp_path: Path) -> None:
    race_again_and_again(f"sqlite:{tmp_path / 'redrive.db'}", ROUNDS)


@pytest.mark.soak
def test_processes_on_one_database_that_are_killed_lose_no_write(postgres: Postgres) -> None:
    race_again_and_again(postgres.url, ROUNDS // 2)


@pytest.mark.parametrize(
    ("memo", "says"),
    [
        (Memo(2, b"a/0\nb/0\n"), "is lost"),
        (Memo(4, b"a/0\nb/0\na/1\n"), "skipped"),
        (Memo(4, b"a/0\nb/0\na/1\na/1\n"), "done twice"),
        (Memo(3, b"a/0\nc/0\na/1\n"), "the write of version 2 is lost"),
    ],
    ids=["lost", "skipped", "twice", "overwritten"],
)
def test_the_check_itself_notices(memo: Memo, says: str) -> None:
    told = Told()
    told.hear(b"1 a/0\n2 b/0\n3 a/1\n4 a/")
    told.check(Memo(3, b"a/0\nb/0\na/1\n"))
    with pytest.raises(AssertionError, match=says):
        told.check(memo)
