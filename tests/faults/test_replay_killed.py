"""`redrive replay` killed at random and resumed at once sends every letter of its list.

The command itself, as a process, on SQLite with the embedded broker and on PostgreSQL with RabbitMQ.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from redrive.clock import SystemClock
from redrive.letters import LetterState
from redrive.settings import StoreOptions
from redrive.stores import open_store
from redrive.stores.operations import Operation
from redrive.testing import letters
from redrive.transports import Source, open_transport
from tests import soak
from tests.acceptance.serving import PROGRAM, clean_environment
from tests.faults.redrives import take_redrives

KILLS = soak.count(15, in_ci=3)
BATCH = 20
COUNT = 150 * KILLS
_TIMEOUT = 120.0


@pytest.fixture(
    params=[
        pytest.param(("sqlite", "embedded"), id="sqlite-embedded"),
        pytest.param(
            ("postgres", "rabbitmq"),
            id="postgres-rabbitmq",
            marks=[pytest.mark.service("postgres"), pytest.mark.service("rabbitmq")],
        ),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str]:
    """A folder with settings, the URL of the store and that of the broker."""
    store, broker = request.param
    amqp = request.getfixturevalue(broker).amqp_url
    store_url = (
        f"sqlite:{tmp_path}/redrive.db" if store == "sqlite" else request.getfixturevalue("postgres").url
    )
    (tmp_path / "redrive.toml").write_text(f"[store]\nurl = {json.dumps(store_url)}\n")
    return tmp_path, store_url, amqp


async def fill(store_url: str, amqp: str) -> None:
    store = await open_store(StoreOptions(url=store_url))
    await store.add(letters(COUNT, source="orders"))
    await store.close()
    async with open_transport(amqp, SystemClock()) as transport:
        await transport.provision([Source(name="orders")])


async def look(store_url: str) -> tuple[Operation, dict[str, int]]:
    store = await open_store(StoreOptions(url=store_url))
    (operation,) = await store.operations()
    states = await store.tally("state")
    await store.close()
    return operation, states


def started(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "replay", "--yes", "--force", *words],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(running: "subprocess.Popen[str]", after: float) -> bool:
    """Kill it so long after it has sent the first batch; False: it had ended before."""
    assert running.stderr is not None
    first = running.stderr.readline()
    if not first.startswith("sending: "):
        _, errors = running.communicate(timeout=_TIMEOUT)
        assert running.returncode == 0, first + errors
        return False
    time.sleep(after)
    was_running = running.poll() is None
    running.kill()
    running.communicate()
    return was_running


def answer_of(running: "subprocess.Popen[str]") -> tuple[int, Any, str]:
    out, errors = running.communicate(timeout=_TIMEOUT)
    return running.returncode, json.loads(out), errors


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_replay_killed_and_resumed_at_once_sends_every_letter(
    place: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store_url, amqp = place
    asyncio.run(fill(store_url, amqp))
    chance = random.Random(soak.seed(17))
    # A rate at which it takes seconds, so that there is something left to kill on a machine of any speed.
    where = ("source:orders", "--batch-size", str(BATCH), "--rate", "150")
    kills = int(killed(started(folder, "--broker", amqp, *where), chance.uniform(0.0, 0.2)))
    operation, _ = asyncio.run(look(store_url))
    resume = ("--resume", operation.id, "--broker", amqp)
    for _ in range(KILLS - 1):
        kills += killed(started(folder, *resume), chance.uniform(0.0, 0.2))
    began = time.monotonic()
    code, answer, errors = answer_of(started(folder, *resume, "--json"))
    took = time.monotonic() - began

    copies = asyncio.run(take_redrives(amqp))
    _, states = asyncio.run(look(store_url))
    twice = copies.total() - len(copies)
    with capsys.disabled():
        print(f"\nreplay killed {kills} times: {COUNT} letters, {twice} sent twice, resumed in {took:.1f} s")  # noqa: T201
    soak.report(kills=kills, acknowledged=COUNT, lost=COUNT - len(copies), duplicated=twice)
    assert (code, errors) == (0, "")
    assert (answer["state"], answer["outcomes"]) == ("done", {"sent": COUNT})
    assert len(copies) == COUNT
    assert states == {LetterState.PROCESSING: COUNT}
    assert kills >= 1
    assert twice <= kills * BATCH
