"""How is a connection to one of several brokers kept for as long as it is wanted?

`open` tries every broker once and says why none would have us. From then on a connection that is lost is replaced:
the brokers are tried in turn, for ever, with waits that grow. The rule: `link` gives a connection that works or waits
for one; nobody else opens any. It does not know what a connection is used for; `on_link` is awaited before anybody
gets a new one.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Final

from redrive.clock import Clock
from redrive.errors import RedriveError, TransportClosedError, TransportError
from redrive.rules.backoff import Exponential
from redrive.transports.rabbitmq.link import Link, connect
from redrive.transports.rabbitmq.url import BrokerUrl
from redrive.transports.telling import Tell

WAITS: Final = Exponential(
    initial=timedelta(milliseconds=100), factor=2.0, max_delay=timedelta(seconds=10), jitter=0.25
)


async def _nothing(_link: Link) -> None:
    """Nobody wants to be asked."""


class Lifeline:
    """One connection, replaced when it is lost."""

    def __init__(self, url: BrokerUrl, title: str, clock: Clock, tell: Tell) -> None:
        self.url = url
        self.on_link: Callable[[Link], Awaitable[None]] = _nothing
        self.lost_because: TransportError | None = None
        self.cluster_name: str | None = None  # as the broker of the last connection announced it
        self._title = title
        self._clock = clock
        self._tell = tell
        self._random = Random()  # noqa: S311  # spreads waits, hides nothing
        self._link: Link | None = None
        self._place = 0  # which broker is to be tried next
        self._arrived = asyncio.Event()
        self._is_closed = False
        self._search: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect to the first broker that lets us; if none does, raise what the last one said."""
        errors: list[TransportError] = []
        for _ in self.url.endpoints:
            try:
                await self._try_next()
            except TransportError as error:
                errors.append(error)
            else:
                return
        if len(errors) == 1:
            raise errors[0]
        raise type(errors[-1])(
            f"none of {len(errors)} endpoints could be reached: {'; '.join(map(str, errors))}"
        ) from errors[-1]

    @property
    def current(self) -> Link | None:
        """The connection, if there is one right now."""
        return self._link

    async def link(self) -> Link:
        """A connection that works; waits for one where there is none."""
        while True:
            if self._is_closed:
                raise TransportClosedError("the transport was closed")
            if self._link is not None:
                return self._link
            await self._arrived.wait()

    async def close(self) -> None:
        """Let go, for good."""
        self._is_closed = True
        self._arrived.set()
        if self._search is not None:
            self._search.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._search
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _try_next(self) -> None:
        endpoint = self.url.endpoints[self._place % len(self.url.endpoints)]
        self._place += 1
        link = await connect(self.url, endpoint, self._title)
        link.on_blocked = self._blocked
        link.on_end = self._lost
        try:
            await self.on_link(link)
        except RedriveError as error:
            self._tell(f"topology not restored endpoint={endpoint}", error)
        except BaseException:
            link.abort()
            raise
        if link.error is not None:
            raise link.error
        self._link = link
        self.cluster_name = link.cluster_name
        self._arrived.set()

    def _blocked(self, reason: str | None) -> None:
        self._tell("publishing unblocked" if reason is None else f"publishing blocked reason={reason}", None)

    def _lost(self, error: TransportError) -> None:
        self.lost_because = error
        if self._is_closed or self._link is None:
            return
        self._link = None
        self._arrived.clear()
        self._tell("connection lost", error)
        self._search = asyncio.get_running_loop().create_task(self._find_again())

    async def _find_again(self) -> None:
        attempt = 0
        while not self._is_closed:
            attempt += 1
            await self._clock.sleep(WAITS.delay(attempt, self._random))
            try:
                await self._try_next()
            except TransportError as error:
                self.lost_because = error
                self._tell(f"reconnect failed attempt={attempt}", error)
            else:
                self._tell("reconnected", None)
                return
