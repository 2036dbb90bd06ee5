"""A worker that was stopped beyond its lease and goes on then can change nothing, and that is counted (E3)."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.clock import SystemClock
from redrive.collect import VerdictCollector
from redrive.letters import LetterHead, LetterState
from redrive.letters.redrive import Redrive, redrive_of
from redrive.letters.verdict import QUEUE, resolved, to_messages
from redrive.recover.breaker import Breakers
from redrive.recover.rescuer import Rescuer
from redrive.recover.worker import Worker, WorkerOptions
from redrive.rules import StrategyOptions
from redrive.stores.sqlite import SqliteStore
from redrive.testing import letters
from redrive.transports import Publication, Source, Target, Transport, open_transport
from tests.faults.children import a_child

CHILD = Path(__file__).with_name("worker_child.py")
COUNT = 5
LEASE = 1.0  # seconds; the heartbeat of a worker that runs comes three times as often


@contextmanager
def a_worker(path: Path, url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker in a process of its own, that is about to publish."""
    child = a_child(CHILD, str(path), url, str(LEASE))
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        first = child.stdout.readline()
        assert first == b"sending\n", child.stderr.read().decode()
        yield child
    finally:
        child.kill()
        child.communicate()


async def heads_of(store: SqliteStore) -> dict[str, LetterHead]:
    return {head.id: head for head in (await store.page(limit=100)).heads}


async def rescue_all(store: SqliteStore) -> None:
    """End the leases as soon as they have run out."""
    rescuer = Rescuer(store, SystemClock(), retry_in=timedelta(0))
    count, end = 0, time.monotonic() + 30
    while count < COUNT and time.monotonic() < end:
        count += len(await rescuer.turn())
        await asyncio.sleep(0.05)
    assert count == COUNT, "a worker that stands still extends no lease"


async def taken(transport: Transport, count: int) -> list[Redrive]:
    """The redrives that lie in the queue; they are gone then."""
    receiver = await transport.receiver(Source(name="orders", window=100))
    found: list[Redrive] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            batch = await receiver.receive()
            found += [redrive for each in batch if (redrive := redrive_of(each.message.headers)) is not None]
            receiver.accept(batch)
    await receiver.close()
    return found


@pytest.mark.timeout(120)
async def test_a_worker_stopped_beyond_its_lease_changes_nothing_when_it_goes_on(
    broker_url: str, tmp_path: Path
) -> None:
    path, clock = tmp_path / "letters.db", SystemClock()
    store = await SqliteStore.open(path)
    await store.add(letters(COUNT))
    async with open_transport(broker_url, clock) as transport:
        await transport.provision([Source(name="orders", queue_type="classic")])
        await transport.ensure_queue(QUEUE)
        with a_worker(path, broker_url) as child:
            held = await heads_of(store)
            assert {(head.state, head.locked_by, head.fence) for head in held.values()} == {
                (LetterState.PROCESSING, "stopped", 1)
            }
            await asyncio.sleep(2 * LEASE)  # it waits for its publish, and its heart beats
            assert await Rescuer(store, clock).turn() == []

            child.send_signal(signal.SIGSTOP)
            await rescue_all(store)
            second = Worker(
                store,
                transport,
                name="second",
                strategy=StrategyOptions(),
                options=WorkerOptions(),
                clock=clock,
                breakers=Breakers(clock),
            )
            assert await second.turn() == COUNT
            before = await heads_of(store)
            assert {(head.state, head.locked_by, head.fence) for head in before.values()} == {
                (LetterState.PROCESSING, "second", 2)
            }
            lines = await store.journal(limit=1000)

            child.send_signal(signal.SIGCONT)
            assert child.stdin is not None
            out, errors = await asyncio.to_thread(child.communicate, b"go\n", 60)
            assert child.returncode == 0, errors.decode()
            counts = json.loads(out.splitlines()[-1])
            assert (counts["claimed"], counts["sent"], counts["stale"]) == (COUNT, 0, COUNT)
            assert await heads_of(store) == before, "it has changed nothing"
            assert await store.journal(limit=1000) == lines

        sent = await taken(transport, 2 * COUNT)
        stale = [redrive for redrive in sent if redrive.hold.fence == 1]
        assert len(stale) == COUNT, "what it sent was sent, under a claim that is over"
        verdicts = VerdictCollector(transport, store, clock=clock, trouble=lambda _what, _error: None)
        stop = asyncio.Event()
        listening = asyncio.create_task(verdicts.run(stop))

        async def heard(count: int, redrives: list[Redrive]) -> tuple[int, int]:
            """Say that these were processed, and wait until so many verdicts have been heard."""
            words = to_messages([resolved(redrive, "orders", clock.now()) for redrive in redrives])
            assert not any(await transport.publish([Publication(word, Target(name=QUEUE)) for word in words]))
            counts = verdicts.counts
            for _ in range(3000):
                if counts.late + counts.resolved >= count:
                    break
                await asyncio.sleep(0.01)
            return counts.late, counts.resolved

        assert await heard(COUNT, stale) == (COUNT, 0)
        assert await heads_of(store) == before, "nor have the verdicts on what it sent"
        good = [redrive for redrive in sent if redrive.hold.fence == 2]
        assert await heard(2 * COUNT, good) == (COUNT, COUNT)
        stop.set()
        await listening
        whole = await store.load(list(before))
        assert {letter.state for letter in whole} == {LetterState.RESOLVED}
        assert {
            tuple((each.worker, each.result, each.fence) for each in letter.attempts) for letter in whole
        } == {(("stopped", "crashed", 1), ("second", "resolved", 2))}, (
            "the stale attempt is in the history, as the crash it looked like"
        )
    await store.close()
