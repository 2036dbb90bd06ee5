from datetime import timedelta

import pytest

from redrive.clock import SystemClock
from redrive.testing.transport_suite import TransportSuite
from redrive.transports.memory import MemoryBroker, MemoryTransport


class TestMemoryTransport(TransportSuite):
    quiet = 0.02
    delay = timedelta(milliseconds=100)
    unsendable = None  # it carries whatever Python can hold

    @pytest.fixture
    def place(self) -> MemoryBroker:
        return MemoryBroker()

    async def open_transport(self, place: MemoryBroker) -> MemoryTransport:
        transport = MemoryTransport(SystemClock(), place)
        await transport.open()
        return transport

    async def cut(self, place: MemoryBroker) -> None:
        place.cut()

    async def leave(self, place: MemoryBroker) -> None:
        place.leave()

    async def come_back(self, place: MemoryBroker) -> None:
        place.come_back()

    async def remove(self, place: MemoryBroker, queue: str) -> None:
        place.remove(queue)
