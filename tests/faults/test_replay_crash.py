"""A replay killed at random moments and resumed sends every letter, and none twice that was recorded as sent."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from redrive.clock import SystemClock
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, plan
from redrive.stores.operations import OperationState
from redrive.stores.query import EVERYTHING
from redrive.stores.sqlite import SqliteStore
from redrive.testing import letters
from redrive.transports import Source, open_transport
from tests import soak
from tests.faults.children import a_child
from tests.faults.redrives import take_redrives

CHILD = Path(__file__).with_name("replay_child.py")
KILLS = soak.count(50)
COUNT, BATCH = 60 * KILLS, 20  # more than is sent before the last kill


async def prepare(path: Path, url: str) -> str:
    clock = SystemClock()
    store = await SqliteStore.open(path)
    await store.add(letters(COUNT, source="orders"))
    async with open_transport(url, clock) as transport:
        await transport.provision([Source(name="orders")])
    # A rate, so that there is something left to kill.
    options = ReplayOptions(batch=BATCH, stop_at=None, rate=1000, health_check=False)
    operation = await begin(store, await plan(store, EVERYTHING), options, by="test", clock=clock)
    await store.close()
    return operation.id


def run(path: Path, url: str, name: str, life: float | None) -> bool:
    """Run a child for so long from its first word on, then kill it; whether it came to its end before."""
    child = a_child(CHILD, str(path), url, name)
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        first = child.stdout.readline()
        assert first == b"begun\n", child.stderr.read().decode()
        if life is None:
            out, errors = child.communicate(timeout=120)
            assert b"ended done" in out, errors.decode()
            return True
        time.sleep(life)
        return child.poll() is not None
    finally:
        child.kill()
        child.communicate()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_replay_killed_again_and_again_sends_all_and_repeats_at_most_a_batch_for_each_kill(
    broker_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, chance = tmp_path / "letters.db", random.Random(soak.seed(50))
    name = asyncio.run(prepare(path, broker_url))
    kills = 0
    for _ in range(KILLS):
        if run(path, broker_url, name, chance.uniform(0.0, 0.12)):
            break
        kills += 1
    assert run(path, broker_url, name, None)

    async def look() -> tuple[Counter[str], Counter[str], OperationState, int]:
        store = await SqliteStore.open(path)
        operation = await store.operation(name)
        marks: Counter[str] = Counter()
        after = 0
        while lines := await store.journal(after=after, limit=10_000):
            after = lines[-1].number
            marks.update(line.letter_id for line in lines if line.action == "sent")
        await store.close()
        return await take_redrives(broker_url), marks, operation.state, operation.recorded

    copies, marks, state, recorded = asyncio.run(look())
    twice = copies.total() - COUNT
    soak.report(kills=kills, acknowledged=COUNT, lost=COUNT - len(copies), duplicated=twice)
    with capsys.disabled():
        print(f"\nreplay killed {kills} times: {COUNT} letters, {twice} sent twice, batches of {BATCH}")  # noqa: T201
    assert kills >= 0.6 * KILLS, "it was too quick to be killed"
    assert state is OperationState.DONE
    assert recorded == COUNT
    assert len(copies) == COUNT, "each letter was sent"
    assert set(marks.values()) == {1}, "what was recorded as sent was sent again"
    assert twice <= kills * BATCH
