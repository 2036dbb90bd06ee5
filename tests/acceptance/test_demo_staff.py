"""The demo's consumers are kept at work, and one that cannot be is not tried for ever."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from redrive.clock import SystemClock
from redrive.demo.staff import Clerk
from redrive.errors import ServiceError
from tests.services import RabbitMQ

SHOP = """
from redrive import App

app = App()


@app.consume("orders")
async def take(order: bytes) -> None: ...
"""


def clerk(place: Path, *arguments: str) -> tuple[Clerk, list[int]]:
    codes: list[int] = []
    environ = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
    made = Clerk(
        "orders",
        ("consume", *arguments),
        directory=place,
        environ={**environ, "PYTHONDONTWRITEBYTECODE": "1"},
        clock=SystemClock(),
        died=lambda _name, code: codes.append(code),
    )
    return made, codes


async def test_a_consumer_that_does_not_start_says_why(tmp_path: Path) -> None:
    made, _ = clerk(tmp_path, "there_is_no_such_module")
    with pytest.raises(ServiceError, match=r"consumer of orders did not start: .*was not found"):
        await made.start()
    await made.stop()


@pytest.mark.service("embedded")
async def test_a_consumer_that_dies_is_started_again_until_that_is_of_no_use(
    tmp_path: Path, embedded: RabbitMQ
) -> None:
    # Given a consumer at work
    (tmp_path / "corner_shop.py").write_text(SHOP)
    made, codes = clerk(tmp_path, "corner_shop", "--broker", embedded.amqp_url)
    await made.start()
    assert made.keeping is not None
    before = _child()

    # When it cannot be started any more, and is killed
    (tmp_path / "corner_shop.py").write_text("raise RuntimeError('closed for ever')")
    before.kill()

    # Then it is tried five times, and whoever waits is told why
    with pytest.raises(ServiceError, match="closed for ever"):
        await made.keeping
    assert codes == [-signal.SIGKILL, 2, 2, 2, 2]
    assert made.deaths == 5
    await made.stop()


@pytest.mark.service("embedded")
async def test_a_consumer_that_is_stopped_is_not_started_again(tmp_path: Path, embedded: RabbitMQ) -> None:
    (tmp_path / "corner_shop.py").write_text(SHOP)
    made, codes = clerk(tmp_path, "corner_shop", "--broker", embedded.amqp_url)
    await made.start()
    process = _child()
    await made.stop()
    assert (codes, made.deaths) == ([], 0)
    assert not process.is_running()


def _child() -> psutil.Process:
    """The consumer's process."""
    (found,) = [child for child in psutil.Process().children() if "corner_shop" in " ".join(child.cmdline())]
    return found
