"""Whether a replay is refused depends on its target, is decided before the question, and leaves nothing half done.

On the embedded broker and SQLite, each command a process of its own.
"""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from redrive.clock import SystemClock
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, plan
from redrive.stores.base import Store
from redrive.stores.operations import OperationState
from redrive.stores.query import EVERYTHING
from redrive.testing import a_letter, letters
from tests.acceptance.serving import PROGRAM
from tests.acceptance.shop import Queue, Shop
from tests.services import RabbitMQ

BUSY = {"REDRIVE_RECOVER_MAX_CPU": "0.01", "REDRIVE_RECOVER_MAX_MEMORY": "0.01"}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def url(embedded: RabbitMQ) -> str:
    return embedded.amqp_url


@pytest.fixture
def orders(url: str) -> Iterator[Queue]:
    queue = Queue(url)
    yield queue
    queue.connection.close()


def answered(shop: Shop, *words: str) -> tuple[int, str]:
    """Run a command on a terminal where somebody answers every question with yes; exit code and what it says."""
    master, slave = pty.openpty()
    os.write(master, b"y\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=shop.place,
        env={**shop.env, **BUSY},
        stdin=slave,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(slave)
    os.close(master)
    return done.returncode, done.stdout + done.stderr


def test_replay_of_a_few_letters_is_never_refused(shop: Shop, orders: Queue, url: str) -> None:
    # Given a machine that is busy, and a queue without consumers
    shop.add(a_letter())
    # When somebody replays one letter
    code, said = answered(shop, "replay", a_letter().id, "--broker", url)
    # Then it is sent, with a warning before the question
    assert code == 0, said
    assert len(orders.got()) == 1
    warning = said.index("warning: orders: 0 consumers, at least 1, replay.min_consumers")
    assert warning < said.index("send 1 letter, oldest first, to broker")


def test_replay_is_refused_before_the_question_and_force_overrides(
    shop: Shop, orders: Queue, url: str
) -> None:
    shop.add(*letters(12))
    code, said = answered(shop, "replay", "source:orders", "--broker", url)
    assert code == 1
    assert said == (
        "redrive: replay aborted: health check failed "
        "(orders: 0 consumers, at least 1, replay.min_consumers); use --force to override\n"
    )
    assert shop.json("operations") == []
    assert shop.json("replay", "source:orders", "--broker", url, "--yes", "--force")["total"] == 12
    # Now twelve messages wait, and something consumes them without acknowledging
    shop.add(*letters(12, prefix="more"))
    orders.channel.basic_qos(prefetch_count=1)
    orders.channel.basic_consume("orders", lambda *_delivery: None)
    deep = {"REDRIVE_REPLAY_MAX_DEPTH": "5"}
    refused = shop.fails(1, "replay", "state:pending", "--broker", url, "--yes", env=deep)
    assert refused.startswith("replay aborted: health check failed (orders: 11 messages waiting, limit 5, ")
    answer = shop.json("replay", "state:pending", "--broker", url, "--yes")
    assert answer["outcomes"] == {"sent": 12}
    assert (answer["order"], answer["not_sent"]) == ("oldest", [])


def test_edit_with_replay_is_refused_before_anything_is_edited(shop: Shop, orders: Queue, url: str) -> None:
    shop.add(*letters(12))
    words = ("edit", "source:orders", "--set-header", "x-fixed=yes", "--replay", "--broker", url)
    refused = shop.fails(1, *words, "--yes", "--json")
    assert refused.startswith("nothing was edited or sent: health check failed (orders: 0 consumers, ")
    assert shop.states() == {"pending": 12}
    done = json.loads(shop.ok(*words, "--yes", "--json", "--force"))
    assert done["operation"]["outcomes"] == {"sent": 12}


def test_edit_reports_the_stored_copy_if_its_replay_fails(shop: Shop, url: str) -> None:
    # Given a letter whose queue is gone, which is found out after the edit
    shop.add(a_letter(source="nowhere"))
    words = ("edit", a_letter().id, "--set-header", "x-fixed=yes", "--replay", "--broker", url)
    done = shop.run(*words, "--yes", "--force")
    assert done.returncode == 4
    assert "1 letter edited" in done.stdout
    assert "redrive: edited, but 1 copy was not sent: " in done.stderr
    (copy,) = shop.json("list", "state:pending")["letters"]
    assert f"send with: redrive replay {copy['id']}" in done.stderr


def test_edited_copy_at_the_limit_of_redrives_waits_for_a_person_who_replays_it(
    shop: Shop, orders: Queue, url: str
) -> None:
    shop.add(msgspec.structs.replace(a_letter(), prior_redrives=5))
    told = shop.ok("edit", a_letter().id, "--set-header", "x-fixed=yes", "--yes")
    (copy,) = shop.json("list", "state:manual")["letters"]
    assert (
        "1 letter at the limit of redrives (recover.max_redrives): state manual, not sent by workers" in told
    )
    assert f"send with: redrive replay {copy['id']}" in told
    answer = shop.json("replay", copy["id"], "--broker", url, "--yes")
    assert answer["outcomes"] == {"sent": 1}
    ((headers, _),) = orders.got()
    assert headers["x-fixed"] == "yes"


def test_resume_says_how_long_it_waits_for_a_runner_on_another_machine(
    shop: Shop, orders: Queue, url: str
) -> None:
    # Given a replay that another machine has begun
    shop.add(*letters(3))

    async def begun_elsewhere(store: Store) -> str:
        frozen = await plan(store, EVERYTHING)
        operation = await begin(store, frozen, ReplayOptions(), by="anna", clock=SystemClock())
        runner = "anna@elsewhere/4711/00000000-1"
        assert await store.run_operation(operation.id, runner, lease=timedelta(minutes=1))
        return operation.id

    operation = shop.store(begun_elsewhere)
    # When it is resumed here
    words = ("replay", "--resume", operation, "--broker", url, "--force", "--yes", "--json")
    running = shop.process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stderr is not None
    # Then the command says what it waits for
    said = r"waiting: anna@elsewhere/4711 may still run this operation; its lease expires in (1m|\d+s)\n"
    line = running.stderr.readline()
    assert re.fullmatch(said, line), line
    # And it sends everything once the other runner has stopped
    shop.store(lambda store: store.end_operation(operation, OperationState.STOPPED, by="anna"))
    out, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
    assert json.loads(out)["outcomes"] == {"sent": 3}
    assert len(orders.got()) == 3
