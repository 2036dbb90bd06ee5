"""A service is held to work when it does, not when it has just been started again."""

import asyncio
from datetime import timedelta

import pytest

from redrive.errors import SourceMissingError
from redrive.serve.watched import Watched
from redrive.testing import ManualClock


class Moody:
    """Fails for as long as it is told to."""

    name = "moody"

    def __init__(self) -> None:
        self.fails = True

    async def run(self, stop: asyncio.Event) -> None:
        if self.fails:
            raise SourceMissingError("there is no such queue")
        await stop.wait()


def told(watched: Watched) -> str | None:
    """What it says now, which may be something else a moment later."""
    return watched.trouble


async def test_a_service_that_fails_says_why_until_it_has_worked_for_a_while() -> None:
    clock, moody, stop = ManualClock(), Moody(), asyncio.Event()
    watched = Watched(moody, clock)
    assert told(watched) == "not running"
    # When it fails
    with pytest.raises(SourceMissingError):
        await watched.run(stop)
    assert told(watched) == "SourceMissingError: there is no such queue"
    # And is started again
    moody.fails = False
    running = asyncio.create_task(watched.run(stop))
    await asyncio.sleep(0)
    assert told(watched) == "SourceMissingError: there is no such queue"
    clock.advance(timedelta(seconds=1))
    # Then it works after a while, and has not forgotten that it failed once
    assert told(watched) is None
    assert watched.failures == 1
    stop.set()
    await running
    assert told(watched) == "not running"


async def test_a_service_that_never_failed_works_at_once() -> None:
    moody, stop = Moody(), asyncio.Event()
    moody.fails = False
    watched = Watched(moody, ManualClock(), "shop/worker-1")
    running = asyncio.create_task(watched.run(stop))
    await asyncio.sleep(0)
    assert (watched.name, told(watched)) == ("shop/worker-1", None)
    stop.set()
    await running
