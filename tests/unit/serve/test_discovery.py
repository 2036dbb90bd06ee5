"""Dead-letter queues of the embedded broker are collected from when they appear until they are gone."""

import asyncio

import pytest

from redrive.errors import BrokerUnreachableError
from redrive.serve.discovery import Discovery, queues_at
from redrive.serve.watched import Watched
from redrive.testing import ManualClock


class Waiting:
    """A collector of nothing."""

    def __init__(self, queue: str, log: list[str]) -> None:
        self.name = queue
        self._log = log

    async def run(self, stop: asyncio.Event) -> None:
        self._log.append(f"+{self.name}")
        await stop.wait()
        self._log.append(f"-{self.name}")


class Place:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queues: list[str] | None = []
        self.log: list[str] = []
        self.discovery = Discovery(
            self.names,
            ["named.dlq"],
            lambda queue: Watched(Waiting(queue, self.log), self.clock),
            self.clock,
            lambda what, error: self.log.append(f"{what}: {error}"),
        )

    async def names(self) -> list[str]:
        if self.queues is None:
            raise BrokerUnreachableError("it is away")
        return self.queues

    async def turn(self, *queues: str) -> None:
        self.queues = list(queues)
        await self.discovery.turn()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_queue_that_comes_and_goes_takes_its_collector_with_it() -> None:
    place = Place()
    await place.turn("orders", "orders.dlq", "named.dlq", "redrive.verdicts")
    assert place.log == ["+orders.dlq"]
    await place.turn("orders.dlq", "payments.dlq")
    assert place.log == ["+orders.dlq", "+payments.dlq"]
    assert set(place.discovery.found) == {"orders.dlq", "payments.dlq"}
    await place.turn("payments.dlq")
    assert place.log[2:] == ["-orders.dlq"]
    await place.turn()
    assert place.log[3:] == ["-payments.dlq"]
    assert place.discovery.found == {}


async def test_a_broker_that_cannot_be_asked_is_no_reason_to_collect_nothing() -> None:
    place = Place()
    await place.turn("orders.dlq")
    place.queues = None
    stop = asyncio.Event()
    with pytest.raises(BrokerUnreachableError):
        await place.discovery.run(stop)
    assert place.log == ["+orders.dlq"]
    place.queues = ["orders.dlq"]
    running = asyncio.create_task(place.discovery.run(stop))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(running, 10)
    assert place.log == ["+orders.dlq", "-orders.dlq"]


async def test_nobody_at_the_management_api_is_an_error_that_says_so() -> None:
    with pytest.raises(BrokerUnreachableError, match="the queues of the embedded broker cannot be listed"):
        await queues_at("http://127.0.0.1:1/")()
