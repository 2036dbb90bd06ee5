"""A process that is killed at any moment loses no letter it acknowledged, and leaves no illegal state."""

import asyncio
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redrive.letters import LetterHead, LetterState
from redrive.letters.lifecycle import TABLE, Step
from redrive.stores.sqlite import SqliteOptions, SqliteStore
from tests import soak

CHILD = Path(__file__).with_name("crash_child.py")
KILLS = soak.count(200)
SHARDS = soak.count(8)
AFTER = {
    "Resolve": LetterState.RESOLVED, "Retry": LetterState.PENDING, "Fail": LetterState.FAILED,
    "Park": LetterState.MANUAL, "Unclaim": LetterState.PENDING,
}  # fmt: skip


class Told:
    """What the children acknowledged about one store, over all of their lives."""

    def __init__(self) -> None:
        self.added: set[str] = set()
        self.fence: dict[str, int] = {}
        self.state: dict[str, tuple[int, LetterState]] = {}

    def hear(self, line: str) -> None:
        match line.split():
            case ["added", letter]:
                self.added.add(letter)
            case ["claimed", letter, fence]:
                self.fence[letter] = max(self.fence.get(letter, 0), int(fence))
            case ["settled", letter, fence, outcome]:
                self.state[letter] = (int(fence), AFTER[outcome])
            case ["open"]:
                pass
            case _:
                pytest.fail(f"the child said {line!r}")


def run_and_kill(path: Path, seed: int, told: Told, life: float) -> None:
    """Start a child, let it live for `life` seconds from its first word on, kill it, and hear all it said."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(path), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    heard = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            end: float | None = None
            while end is None or time.monotonic() < end:
                left = 60.0 if end is None else end - time.monotonic()
                if selector.select(max(left, 0)):
                    piece = os.read(child.stdout.fileno(), 1 << 16)
                    assert piece, (
                        f"the child died by itself: {child.stderr.read().decode() if child.stderr else ''}"
                    )
                    heard += piece
                    end = end or time.monotonic() + life
                elif end is None:
                    pytest.fail("the child did not open its store within a minute")
    finally:
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
    heard += rest
    for line in heard.decode().splitlines(keepends=True):
        if line.endswith("\n"):  # a torn last line was never said
            told.hear(line)


async def check(path: Path, told: Told) -> int:
    """Hold the store to what was told; gives the number of letters in it."""
    store = await SqliteStore.open(path, SqliteOptions(integrity_check_timeout=None))
    try:
        assert await store.damage() is None
        letters: dict[str, LetterHead] = {}
        cursor: str | None = None
        while True:
            page = await store.page(limit=1000, cursor=cursor)
            letters |= {head.id: head for head in page.heads}
            if (cursor := page.cursor) is None:
                break
        assert told.added <= letters.keys(), "an acknowledged letter is lost"
        for letter_id, fence in told.fence.items():
            assert letters[letter_id].fence >= fence, "a fence fell"
        for letter_id, (fence, state) in told.state.items():
            if letters[letter_id].fence == fence:
                assert letters[letter_id].state is state, "a settled letter is in another state"
        for head in letters.values():
            held = (head.locked_by, head.locked_at, head.lease_until)
            assert (head.state is LetterState.PROCESSING) == (None not in held) == any(held)
        sample = random.Random(1).sample(sorted(letters), min(50, len(letters)))
        for letter in await store.load(sample):
            assert letter.message.body == b'{"order": 12345}'
            lines = await store.journal(letter.id, limit=10_000)
            reached: LetterState | None = LetterState.PENDING
            for line in lines:
                assert line.before is reached
                reached = TABLE[line.before, Step.RETRY if line.action == "release" else Step(line.action)]
                assert line.after is reached
            assert letter.state is reached
            assert sum(line.action in {"resolve", "exhaust"} for line in lines) <= 1
            assert letter.dlq_retry_count == len(letter.attempts)
        return len(letters)
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path, shard: int) -> None:
    chance = random.Random(soak.seed(shard))
    path = tmp_path / "redrive.db"
    told = Told()
    for kill in range(KILLS // SHARDS):
        run_and_kill(path, seed=chance.randrange(2**31), told=told, life=chance.random() ** 2 * 0.15)
        if kill % 5 == 4:
            asyncio.run(check(path, told))
    count = asyncio.run(check(path, told))
    soak.report(kills=KILLS // SHARDS, acknowledged=len(told.added))
    assert count >= len(told.added) > 0
    assert told.state, "no letter was ever settled: the load was not mixed"


def test_the_check_itself_notices_a_lost_letter(tmp_path: Path) -> None:
    path, told = tmp_path / "redrive.db", Told()
    run_and_kill(path, seed=1, told=told, life=0.05)
    told.added.add("a letter that was never stored")
    with pytest.raises(AssertionError, match="an acknowledged letter is lost"):
        asyncio.run(check(path, told))
