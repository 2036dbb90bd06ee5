"""Which dead-letter queues are there that nobody has named?

On a broker of our own every queue whose name ends in `.dlq` is collected, from when it appears until it is gone: who
starts from nothing has no settings that could name one. On a broker of somebody else nothing is ever taken unasked.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from http.client import HTTPException
from typing import Final, TypeAlias
from urllib.request import Request, urlopen

import msgspec

from redrive.clock import Clock, pause
from redrive.errors import BrokerUnreachableError
from redrive.recover.service import Services
from redrive.serve.watched import Watched

_SUFFIX: Final = ".dlq"
_EVERY: Final = timedelta(seconds=2)
_PATIENCE: Final = 5  # seconds for an answer
Look: TypeAlias = Callable[[], Awaitable[Collection[str]]]


class _Queue(msgspec.Struct, frozen=True):
    name: str


def queues_at(management: str) -> Look:
    """What tells the queues of the embedded broker, by its management API."""
    user = b64encode(b"guest:guest").decode()
    request = Request(f"{management}api/queues/%2F?columns=name", headers={"Authorization": f"Basic {user}"})  # noqa: S310  it is ours

    def ask() -> Collection[str]:
        try:
            with urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310  likewise
                return [queue.name for queue in msgspec.json.decode(answer.read(), type=list[_Queue])]
        except (OSError, HTTPException, msgspec.MsgspecError) as error:
            raise BrokerUnreachableError(
                f"the queues of the embedded broker cannot be listed: {error}"
            ) from error

    return lambda: asyncio.to_thread(ask)


class Discovery:
    """Starts and stops a collector for each dead-letter queue that comes and goes."""

    name = "discovery"

    def __init__(
        self,
        look_for: Look,
        known: Collection[str],
        make: Callable[[str], Watched],
        clock: Clock,
        trouble: Callable[[str, Exception], None],
        every: timedelta = _EVERY,
    ) -> None:
        """`known` are collected by others; `make` gives the collector of a queue."""
        self._look_for = look_for
        self._known = frozenset(known)
        self._make = make
        self._clock = clock
        self._trouble = trouble
        self._every = every
        self._running: dict[str, tuple[Services, asyncio.Task[None]]] = {}
        self.found: dict[str, Watched] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop` is set."""
        try:
            while not stop.is_set():
                await self.turn()
                await pause(self._clock, self._every, stop)
        finally:
            if stop.is_set():  # a broker that could not be asked is no reason to collect nothing
                await self._end(tuple(self._running))

    async def turn(self) -> None:
        """Look once."""
        there = {name for name in await self._look_for() if name.endswith(_SUFFIX)} - self._known
        await self._end([name for name in self._running if name not in there])
        for name in sorted(there - self._running.keys()):
            self.found[name] = self._make(name)
            services = Services([self.found[name]], self._clock, self._trouble)
            self._running[name] = services, asyncio.create_task(services.run())

    async def _end(self, names: Collection[str]) -> None:
        ending = []
        for name in names:
            services, task = self._running.pop(name)
            services.stop()
            ending.append(task)
            self.found.pop(name, None)
        await asyncio.gather(*ending)
