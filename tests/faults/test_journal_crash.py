"""A broker's journal that is killed at any moment, or meets a full disk, keeps what it acknowledged."""

import random
import selectors
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redrive.broker.journal import Journal
from tests import soak
from tests.faults.journal_child import body_of

CHILD = Path(__file__).with_name("journal_child.py")
KILLS = soak.count(100)
SHARDS = soak.count(4)


class Told:
    """What the children said about one journal, over all of their lives."""

    def __init__(self) -> None:
        self.published: set[int] = set()
        self.settled: set[int] = set()
        self.written = 0
        self.tried_to_publish: set[int] = set()
        self.tried_to_settle: set[int] = set()
        self.tried_to_write = 0

    def hear(self, line: str) -> None:
        match line.split():
            case ["?", "+", place]:
                self.tried_to_publish.add(int(place))
            case ["?", "-", place]:
                self.tried_to_settle.add(int(place))
            case ["?", "=", number]:
                self.tried_to_write = int(number)
            case ["+", place]:
                self.published.add(int(place))
            case ["-", place]:
                self.settled.add(int(place))
            case ["=", number]:
                self.written = int(number)
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
    assert child.stderr is not None
    heard = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            end: float | None = None
            while end is None or time.monotonic() < end:
                if selector.select(None if end is None else end - time.monotonic()):
                    part = child.stdout.read1(1 << 20)  # type: ignore[attr-defined]
                    assert part, child.stderr.read().decode()
                    heard += part
                    end = end or time.monotonic() + life
    finally:
        child.kill()
        heard += child.stdout.read()
        child.stdout.close()
        child.stderr.close()
        child.wait()
    for line in heard.decode().splitlines(keepends=True):
        if line.endswith("\n"):  # the kill may have cut the last one
            told.hear(line)


def check(path: Path, told: Told) -> int:
    """Hold the journal to what was said; how many messages it has."""
    journal, recovered = Journal.open(path)
    entries = [entry for queue in recovered.queues.values() for entry in queue]
    present = {entry.place for entry in entries}
    assert told.published - told.tried_to_settle <= present, "an acknowledged message is lost"
    assert not present & told.settled, "an acknowledged settlement is lost"
    assert present <= told.tried_to_publish, "a message is there that nobody published"
    assert told.written <= int(recovered.definitions.get("written", b"0")) <= told.tried_to_write
    numbers = [entry.number for entry in entries]
    assert numbers == sorted(set(numbers)), "the order changed"
    for entry in entries:
        assert journal.read_body(entry.place) == body_of(entry.place)
    journal.close()
    # What nobody was told is decided now, because it was seen. A place that was never filled is used again.
    told.settled |= told.published - present
    told.published |= present
    told.tried_to_settle -= present
    told.tried_to_publish &= told.published
    return len(present)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_killed_journal_has_everything_it_acknowledged_and_nothing_else(tmp_path: Path, shard: int) -> None:
    chance = random.Random(soak.seed(shard))
    told = Told()
    path = tmp_path / "journal"
    found = 0
    for kill in range(KILLS // SHARDS):
        run_and_kill(
            path, shard * KILLS + kill, told, chance.choice([0.0, 0.01, 0.05, 0.2]) * chance.random()
        )
        found += check(path, told)
    soak.report(kills=KILLS // SHARDS, acknowledged=len(told.published))
    assert found
    assert told.settled
    assert min(file.name for file in path.glob("*.journal")) > "000000000001", "nothing was ever deleted"


@pytest.mark.parametrize("limit", [100, 5_000, 77_777])
def test_a_full_disk_ends_the_journal_and_keeps_what_was_acknowledged(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "journal"
    child = subprocess.run(
        [sys.executable, str(CHILD), "fill", str(path), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    acknowledged, first, second = child.stdout.splitlines()
    assert first.startswith("JournalFullError cannot write to ")
    assert "File too large; free space there, then restart the broker" in first
    assert second.startswith("JournalError the journal stopped: cannot write to ")

    journal, recovered = Journal.open(path)
    entries = [entry for queue in recovered.queues.values() for entry in queue]
    assert [entry.place for entry in entries] == list(range(1, int(acknowledged) + 1))
    assert all(journal.read_body(entry.place) == body_of(entry.place) for entry in entries)
    assert recovered.torn
    assert "bytes were dropped" in recovered.torn
    journal.publish(recovered.next_place, 1, recovered.next_place, 0, "", ("k",), b"", b"goes on")
    journal.close()
