"""Whom does the shop depend on?

A bank and a mail host, on ports of this machine. The bank refuses stolen cards, lets a wholesale customer pay only so
often and says when to come back, and is gone altogether for a while now and then. The mail host is slow with
newsletters, and one of its mailboxes never answers.

Nothing here knows queues: what comes of all this is the shop's trouble.
"""

import asyncio
import math
from datetime import timedelta
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from redrive.clock import Clock
from redrive.errors import ServiceError
from redrive.listening import Listening
from redrive.serve.web import listen

STOLEN: Final = "stolen"
WHOLESALE: Final = "wholesale"
SILENT: Final = "nobody@silent.example"
NEWSLETTER: Final = "News"
_HOST: Final = "127.0.0.1"
_QUOTA: Final = 2  # payments of a wholesale customer in each window
_WINDOW: Final = timedelta(seconds=2)
_MAIL_TAKES: Final = timedelta(milliseconds=20)
_NEWSLETTER_TAKES: Final = timedelta(milliseconds=200)
_SILENCE: Final = timedelta(seconds=10)
_TRIES: Final = 20  # to have the old port again


class _Charge(msgspec.Struct, frozen=True):
    id: int
    customer: str
    card: str


class _Mail(msgspec.Struct, frozen=True):
    to: str
    subject: str


class Quota:
    """So many in each window of time."""

    def __init__(self, clock: Clock, most: int = _QUOTA, window: timedelta = _WINDOW) -> None:
        self._clock = clock
        self._most = most
        self._window = window
        self._ends: timedelta | None = None
        self._taken = 0

    def take(self) -> timedelta | None:
        """One more; how long to wait if that is one too many, None if it is not."""
        now = self._clock.monotonic()
        if self._ends is None or now >= self._ends:
            self._ends, self._taken = now + self._window, 0
        if self._taken >= self._most:
            return self._ends - now
        self._taken += 1
        return None


class Outside:
    """Bank and mail host."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quota = Quota(clock)
        self._closing = asyncio.Event()
        self._bank_app = Starlette(routes=[Route("/charge", self._charge, methods=["POST"])])
        self._bank: Listening | None = None
        self._mail: Listening | None = None
        self.bank_url = ""
        self.mail_url = ""

    async def open(self) -> None:
        """Both are there from now on."""
        self._bank = await listen(self._bank_app, _HOST, 0)
        mail_app = Starlette(routes=[Route("/deliver", self._deliver, methods=["POST"])])
        self._mail = await listen(mail_app, _HOST, 0)
        self.bank_url, self.mail_url = self._bank.url, self._mail.url

    async def close(self) -> None:
        """Both are gone."""
        self._closing.set()
        await self.bank_goes_down()
        if self._mail is not None:
            await self._mail.close()

    async def bank_goes_down(self) -> None:
        """The bank refuses connections from now on."""
        if self._bank is not None:
            bank, self._bank = self._bank, None
            await bank.close()

    async def bank_comes_back(self) -> None:
        """The bank is where it was."""
        port = int(self.bank_url.rpartition(":")[2])
        for left in reversed(range(_TRIES)):
            try:
                self._bank = await listen(self._bank_app, _HOST, port)
            except ServiceError:
                if not left:
                    raise
                await self._clock.sleep(timedelta(milliseconds=500))
            else:
                return

    # --- answers -----------------------------------------------------------------------------------------------

    async def _charge(self, request: Request) -> Response:
        charge = msgspec.json.decode(await request.body(), type=_Charge)
        if charge.card == STOLEN:
            return PlainTextResponse("this card was reported stolen", HTTPStatus.FORBIDDEN)
        if charge.customer == WHOLESALE and (wait := self._quota.take()) is not None:
            seconds = str(math.ceil(wait.total_seconds()))
            return PlainTextResponse(
                "too many payments", HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": seconds}
            )
        return PlainTextResponse("paid")

    async def _deliver(self, request: Request) -> Response:
        mail = msgspec.json.decode(await request.body(), type=_Mail)
        if mail.to == SILENT:
            await self._wait(_SILENCE)
        await self._wait(_NEWSLETTER_TAKES if mail.subject == NEWSLETTER else _MAIL_TAKES)
        return PlainTextResponse("delivered")

    async def _wait(self, duration: timedelta) -> None:
        """As `pause`, but whoever has hung up is not waited for on closing."""
        try:
            async with asyncio.timeout(duration.total_seconds()):
                await self._closing.wait()
        except TimeoutError:
            pass
