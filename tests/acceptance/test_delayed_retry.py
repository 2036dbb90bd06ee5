"""`redrive provision --delayed-retry` on each version of RabbitMQ, and what a consumer makes of it."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from redrive import App
from redrive.clock import SystemClock
from redrive.settings import read
from redrive.transports import open_transport
from tests.acceptance.broker_world import Run, World, command_line
from tests.acceptance.test_doctor import _run_curl
from tests.services import RabbitMQ


@pytest.fixture
def world(each_broker: RabbitMQ) -> World:
    return World(each_broker)


@pytest.fixture
def redrive(tmp_path: Path) -> Run:
    return command_line(tmp_path)


@pytest.fixture
async def delays(world: World) -> bool:
    """Whether this broker delays retries by itself."""
    return (await world.found()).counting.since >= (4, 3)


def provision(redrive: Run, world: World, *options: str) -> tuple[int, str]:
    where = ("--broker", world.at.amqp_url, "--management-url", world.at.management_url)
    done = redrive("provision", "--source", "orders", *where, *options)
    return done.returncode, done.stdout + done.stderr


class Failing:
    """A handler that fails, and remembers when."""

    def __init__(self, times: int) -> None:
        self.at: list[float] = []
        self.is_done = asyncio.Event()
        self._times = times

    async def __call__(self, _body: bytes) -> None:
        self.at.append(time.monotonic())
        if len(self.at) == self._times:
            self.is_done.set()
        else:
            raise ConnectionResetError("connection reset by peer")


async def test_failed_deliveries_are_delayed_by_the_broker_or_the_option_is_refused(
    world: World, redrive: Run, delays: bool
) -> None:
    code, said = provision(redrive, world, "--delayed-retry", "400ms..600ms", "--apply", "--yes")
    if not delays:
        assert code == 2
        assert "delayed retry needs RabbitMQ 4.3 or later" in said
        assert world.furniture()["queues"] == []
        return
    assert code == 0, said
    handler = Failing(4)
    app = App(
        open_transport(world.at.amqp_url, SystemClock()),
        settings=read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s"}}),
        observers=(),
    )
    app.consume("orders", attempts=1, max_deliveries=5)(handler)
    world.publish("orders")
    async with app, asyncio.timeout(30):
        await handler.is_done.wait()

    waits = [later - earlier for earlier, later in zip(handler.at, handler.at[1:], strict=False)]
    assert waits[0] >= 0.4
    assert all(wait >= 0.6 for wait in waits[1:]), waits
    assert max(waits) < 5
    await world.until_depth("orders", 0)
    code, said = provision(redrive, world, "--delayed-retry", "400ms..600ms")
    assert "0 to create, 0 different, 15 present" in said


async def test_queue_that_exists_gets_delayed_retry_by_the_policy_that_the_plan_shows(
    broker: RabbitMQ, redrive: Run
) -> None:
    world = World(broker)
    await world.skip_before(4, 3)  # the test above sees it refused
    provision(redrive, world, "--apply", "--yes")
    _, said = provision(redrive, world, "--delayed-retry", "1s")
    assert "delayed-retry-type is unset, expected failed" in said
    [command] = re.findall(r"fix: (curl .*)", said)
    _run_curl(world, command)
    _, said = provision(redrive, world, "--delayed-retry", "1s")
    assert "0 different, 15 present" in said


@pytest.mark.parametrize("value", ["soon", "0s", "5m..10s", "10s..", "1s..99d", "10s..5m..1h"])
def test_delayed_retry_that_makes_no_sense_is_refused(redrive: Run, value: str) -> None:
    done = redrive(
        "provision", "--source", "orders", "--broker", "amqp://127.0.0.1:1/", "--delayed-retry", value
    )
    assert (done.returncode, "--delayed-retry" in done.stderr) == (2, True)


def test_delayed_retry_of_kafka_is_refused(redrive: Run) -> None:
    done = redrive(
        "provision", "--source", "orders", "--broker", "kafka://127.0.0.1:1", "--delayed-retry", "1s"
    )
    assert (done.returncode, "only RabbitMQ supports it" in done.stderr) == (2, True)
