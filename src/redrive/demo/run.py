"""How do the shop, its customers and redrive run together?

    directory → server (broker, store, HTTP) → bank and mail host → consumers → traffic · eyes

and the other way round at the end. The settings are written to a file in the directory first, and everybody reads that
file: the server, the consumers, and whoever looks at the directory afterwards. They are those of any service, only that
every wait is short; what a person decides at two in the night elsewhere, is due after a second here.

It handles no signals, and shows nothing itself.
"""

import asyncio
import contextlib
import json
import os
from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

import msgspec

from redrive.app import App
from redrive.clock import Clock, pause
from redrive.demo.outside import Outside
from redrive.demo.shop import BANK, MAIL_HOST
from redrive.demo.staff import Clerk
from redrive.demo.story import Event, Story, Summary
from redrive.demo.traffic import MAILBOX, Traffic
from redrive.demo.view import View
from redrive.errors import BrokerUnreachableError, SettingsError
from redrive.private_files import create_private_file, make_private_directory
from redrive.serve import Places, Server
from redrive.settings import FILE_NAME, StoreOptions, load
from redrive.stores import open_store
from redrive.stores.base import Store
from redrive.transports import open_transport

_LOOK_EVERY: Final = timedelta(milliseconds=300)
_CONSUMERS: Final = ("orders", "payments", "mail")
_SETTINGS: Final = """\
# The settings of `redrive demo`. All intervals are shorter than the defaults.

[store]
url = {store}

[server]
data_directory = {data}
port = {port}

[embedded]
port = 0
management_port = 0

[consume.breaker]
pause = "1s"
max_pause = "2s"

[recover]
poll_interval = "200ms"             # default: 30s
lease = "5s"                        # default: 5m
delays = ["500ms", "1s", "1500ms"]  # default: 1m to 1h
max_redrives = 3                    # default: 5
recheck_interval = "1s"             # default: 1m
verdict_timeout = "30s"             # default: 1h

[strategies]
rate_limited = "immediate"          # default: scheduled; Retry-After is respected either way

[[sources]]
name = "orders"
prefetch = 1                        # a crash affects only one order
concurrency = 1
max_deliveries = 2                  # dead-letter a message that crashed two processes

[[sources]]
name = "payments"
attempts = 1                        # no retries in the consumer, to show the recovery
max_deliveries = 1

[[sources]]
name = "mail"
prefetch = 1
concurrency = 1
attempts = 1
"""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How long, and where."""

    directory: Path
    seconds: timedelta | None = None  # None: until it is stopped
    port: int = 0


class Demo:
    """The shop, from its opening to its end."""

    def __init__(self, options: Options, file: Path, view: View, clock: Clock) -> None:
        """`file` has the settings, as `write_settings` wrote them."""
        self._file = file
        self._options = options
        self._view = view
        self._clock = clock
        self._stop = asyncio.Event()
        self._story = Story()
        self._news: list[Event] = []

    def stop(self) -> None:
        """Close the shop; may be called from a signal handler of the loop."""
        self._stop.set()

    async def run(self) -> Summary | None:
        """Run until the time is over or `stop` is called; None if it never came to open."""
        file = self._file
        async with contextlib.AsyncExitStack() as ending:
            settings = load(file, {})
            server = Server(settings, self._clock, App(settings=settings).sources())
            serving, places = await self._serve(server)
            ending.push_async_callback(_finish, server, serving)
            if places is None:
                return None
            store = await open_store(StoreOptions(url=places.http))
            ending.push_async_callback(store.close)
            transport = open_transport(places.broker, self._clock)
            ending.push_async_callback(transport.close)
            await transport.open()
            await asyncio.to_thread(limit_mail, places.management or "")
            outside = Outside(self._clock)
            ending.push_async_callback(outside.close)
            await outside.open()
            clerks = [self._clerk(name, file, places, outside) for name in _CONSUMERS]
            for clerk in clerks:
                ending.push_async_callback(clerk.stop)
            await asyncio.gather(*(clerk.start() for clerk in clerks))
            traffic = Traffic(transport, outside, self._clock)
            self._view.opened(hints(places))
            ending.callback(self._view.closed)
            opened = self._clock.monotonic()
            lasting = [serving, *(clerk.keeping for clerk in clerks if clerk.keeping is not None)]
            await self._watch(store, traffic, lasting)
            await self._look(store, opened)
            seconds = (self._clock.monotonic() - opened).total_seconds()
            deaths = {clerk.name: clerk.deaths for clerk in clerks}
            return self._story.summary(seconds, traffic.sent, deaths)

    async def _serve(self, server: Server) -> tuple[asyncio.Task[None], Places | None]:
        """The server while it runs; no places if we were stopped before it was ready."""
        ready: asyncio.Future[Places] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(server.run(ready.set_result))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((serving, ready, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.done():
            serving.result()
        return serving, ready.result() if ready.done() else None

    def _clerk(self, name: str, file: Path, places: Places, outside: Outside) -> Clerk:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
        return Clerk(
            name,
            (
                *("--config", str(file), "consume", f"redrive.demo.shop:{name}"),
                *("--broker", places.broker, "--log-level", "warning"),
            ),
            directory=self._options.directory,
            environ={**clean, BANK: outside.bank_url, MAIL_HOST: outside.mail_url},
            clock=self._clock,
            died=self._died,
        )

    def _died(self, name: str, code: int) -> None:
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        self._news.append(Event(self._clock.now(), f"the consumer of {name} exited ({how}) and is restarted"))

    # --- while it is open --------------------------------------------------------------------------------------

    async def _watch(self, store: Store, traffic: Traffic, lasting: Sequence[asyncio.Task[None]]) -> None:
        """Customers come, and we look, until it is over or one of us fails; `lasting` are ended by others."""
        opened = self._clock.monotonic()
        ours = [
            asyncio.create_task(traffic.run(self._stop)),
            asyncio.create_task(self._keep_looking(store, opened)),
            asyncio.create_task(self._until_closing_time()),
        ]
        try:
            done, _ = await asyncio.wait((*lasting, *ours), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stop.set()
            await asyncio.wait(ours)
        for task in (*done, *ours):
            task.result()

    async def _until_closing_time(self) -> None:
        if self._options.seconds is None:
            await self._stop.wait()
        else:
            await pause(self._clock, self._options.seconds, self._stop)

    async def _keep_looking(self, store: Store, opened: timedelta) -> None:
        while not self._stop.is_set():
            await self._look(store, opened)
            await pause(self._clock, _LOOK_EVERY, self._stop)

    async def _look(self, store: Store, opened: timedelta) -> None:
        events = await self._story.look(store)
        news, self._news = self._news, []
        told = sorted([*events, *news], key=lambda event: event.at)
        self._view.show(told, self._story, open_for=self._clock.monotonic() - opened)


async def _finish(server: Server, serving: asyncio.Task[None]) -> None:
    server.stop()
    await asyncio.wait((serving,))


def write_settings(options: Options) -> Path:
    """The settings, in a file of the directory, which has to be empty."""
    directory = options.directory.resolve()
    try:
        make_private_directory(directory)
        if any(directory.iterdir()):
            raise SettingsError(f"{directory} is not empty; choose a new or empty directory")
        file = directory / FILE_NAME
        create_private_file(file)
        file.write_text(
            _SETTINGS.format(
                store=_toml(f"sqlite:{directory / 'redrive.db'}"),
                data=_toml(str(directory)),
                port=options.port,
            ),
            "utf-8",
        )
    except OSError as error:
        raise SettingsError(f"{directory} cannot be used: {error.strerror or error}") from error
    return file


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a TOML string


def limit_mail(management: str) -> None:
    """Let the mail queue hold only so much: what does not fit, the broker gives up itself."""
    definition = {"max-length": MAILBOX, "overflow": "drop-head"}
    body = json.dumps({"pattern": "^mail$", "definition": definition, "apply-to": "queues"}).encode()
    request = Request(  # noqa: S310  it is our own broker
        f"{management}api/policies/%2F/demo",
        body,
        {
            "Authorization": f"Basic {b64encode(b'guest:guest').decode()}",
            "Content-Type": "application/json",
        },
        method="PUT",
    )
    try:
        with urlopen(request, timeout=10):  # noqa: S310  likewise
            pass
    except (OSError, HTTPException) as error:
        raise BrokerUnreachableError(f"the embedded broker refused a policy: {error}") from error


def hints(places: Places) -> Sequence[str]:
    """What can be tried while the shop is open."""
    server = f"--server {places.http}"
    return (
        "The shop is open. In another terminal:",
        f"  redrive list {server}",
        f"  redrive show {server} ID",
        f"  redrive replay {server} --broker {places.broker} state:manual --dry-run",
        f"  redrive top {server}",
    )
