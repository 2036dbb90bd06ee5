"""Run everything in one process.

    lock → embedded broker → transport → store → HTTP → services → connected → ready

and the other way round on stopping: what writes ends before what it writes to. An unreachable broker or store does not
stop the start: HTTP answers, alerts are sent, and the services that need it wait; `/health`, log and alerts say so.
Whatever else is wrong at the start ends the server with that error.

Its owner stops it and is called when it is ready: it handles no signals and prints nothing.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from redrive.clock import Clock, until_first
from redrive.errors import RedriveError, SettingsError
from redrive.listening import Listening
from redrive.recover.service import Services
from redrive.serve.child import EmbeddedBroker
from redrive.serve.condition import Condition
from redrive.serve.connection import LateStore
from redrive.serve.crew import Crew
from redrive.serve.discovery import queues_at
from redrive.serve.figures import Figures
from redrive.serve.lock import ServeLock
from redrive.serve.web import check_loopback, start_web
from redrive.settings import Settings, StoreOptions, hide_secrets
from redrive.stores import check_url
from redrive.stores.server_key import FILE_NAME as KEY_FILE, StoreAccess, open_access
from redrive.transports import Source, Transport, broker_name, open_transport
from redrive.transports.probing import probe_of
from redrive.watch.alerts.made import check

_LOG: Final = logging.getLogger("redrive.server")
_STOP: Final = timedelta(seconds=15)  # for what the services have begun
_LEAVE: Final = timedelta(seconds=5)  # for a broker that does not answer when we say good-bye


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything is."""

    broker: str  # without credentials
    management: str | None  # of the embedded broker
    http: str
    store: str  # without credentials


class Server:
    """Collectors, workers and everything else, on one store and one broker."""

    def __init__(self, settings: Settings, clock: Clock, sources: Sequence[Source] = ()) -> None:
        """The settings are looked at here; nothing is opened before `run`. `sources` are made where they are missing.

        Their dead letters are collected, beside the queues that the settings name.
        """
        check_loopback(settings.server.host)
        check(settings, os.environ)
        self._settings = settings
        self._clock = clock
        self._sources = tuple(sources)
        self._data = Path(settings.server.data_directory)
        self._store = store_of(settings)
        self._redactor = settings.redactor()
        self._stop = asyncio.Event()
        self._refusal: RedriveError | None = None  # what no waiting repairs

    def stop(self) -> None:
        """Come to an end in order; may be called from a signal handler of the loop."""
        self._stop.set()

    async def run(self, ready: Callable[[Places], None] = lambda _places: None) -> None:
        """Run until `stop` is called. `ready` is told where everything is, once it works."""
        async with contextlib.AsyncExitStack() as ending:
            if (file := _file_of(self._store)) is not None:
                ending.callback(ServeLock.take(file).release)
            broker, url, management = await self._broker(ending)
            transport = open_transport(url, self._clock)
            ending.push_async_callback(self._close, transport)
            late = LateStore(self._store, self._clock, trouble=self._trouble, refused=self._refused)
            ending.push_async_callback(late.close)
            await late.open()
            store = late.verbs
            discover = (
                queues_at(management)
                if management is not None and self._settings.embedded.collect_all
                else None
            )
            crew = Crew(
                self._settings,
                store,
                transport,
                self._clock,
                self._trouble,
                self._sources,
                discover,
                "the embedded broker" if broker is not None else component_of(transport.kind),
                probe_of(
                    url,
                    management or self._settings.broker.management_url,
                    {source.name: source.consumer_group for source in self._sources},
                ),
                broker_name(self._settings),
                self._refused,
                late,
            )
            condition = Condition(
                store,
                transport,
                lambda: crew.services,
                self._clock,
                broker,
                name=crew.broker,
                unserved=lambda: crew.measures.unserved,
                store_problem=lambda: crew.store_problem,
                broker_problem=lambda: crew.connection.problem,
                consumers=crew.consumer_reports.problems,
            )
            web = await start_web(
                store,
                condition,
                Figures(store, crew, self._clock),
                self._settings.server.host,
                self._settings.server.port,
                self._access(),
                self._settings.limits,
                self._settings.server.allowed_hosts,
            )
            ending.push_async_callback(web.close)
            if self._stop.is_set():
                return
            await self._work(crew, lambda: ready(self._places(url, management, web)))
            if self._refusal is not None:
                raise self._refusal

    async def _work(self, crew: Crew, ready: Callable[[], None]) -> None:
        """Run the services until `stop`; those that a silent broker holds up are left behind."""
        services = Services(crew.permanent, self._clock, self._trouble)
        running = asyncio.create_task(services.run(_STOP))
        try:
            for prerequisite in crew.prerequisites:
                await until_first(prerequisite.wait(), self._stop.wait())
            await until_first(crew.registration.attempted.wait(), self._stop.wait())
            if not self._stop.is_set():
                ready()
            await self._stop.wait()
        finally:  # also where whoever runs us is cancelled
            _LOG.info("server stopping")
            services.stop()
            await asyncio.wait((running,), timeout=(_STOP + _LEAVE).total_seconds())
            if not running.done():
                _LOG.warning(
                    "shutdown timed out timeout=%gs; claimed letters are released when their leases expire",
                    (_STOP + _LEAVE).total_seconds(),
                )
                running.cancel()
                await asyncio.wait((running,), timeout=_LEAVE.total_seconds())

    async def _close(self, transport: Transport) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE.total_seconds()):
                await transport.close()

    def _access(self) -> StoreAccess:
        """How other processes may use the store: by the key in the settings or in the data directory."""
        try:
            return open_access(self._data, self._settings.server.key)
        except OSError as error:
            _LOG.warning(
                "store key not written file=%s: %s; other processes cannot use the store until the file is writable, or"
                " server.key is set",
                self._data / KEY_FILE,
                error.strerror or error,
            )
            return StoreAccess(secrets.token_urlsafe(32), None)

    # --- the broker --------------------------------------------------------------------------------------------

    async def _broker(
        self, ending: contextlib.AsyncExitStack
    ) -> tuple[EmbeddedBroker | None, str, str | None]:
        """The broker that the settings name, or one of our own; its process, its URL, its management API."""
        embedded = self._settings.embedded
        if self._settings.broker.url is not None:
            return None, self._settings.broker.url, None
        broker = EmbeddedBroker(
            self._data / "broker",
            self._clock,
            port=embedded.port,
            management_port=embedded.management_port,
            environment={
                "REDRIVE_EMBEDDED_ANONYMOUS_LOGIN_USER": embedded.anonymous_login_user,
                "REDRIVE_EMBEDDED_ANONYMOUS_LOGIN_PASS": embedded.anonymous_login_pass,
            },
            options=_broker_options(self._settings),
        )
        ending.push_async_callback(broker.stop)
        addresses = await broker.start()
        return broker, addresses.amqp, addresses.management

    # --- reports -----------------------------------------------------------------------------------------------

    def _refused(self, error: RedriveError) -> None:
        """End the server with this error."""
        self._refusal = error
        self._stop.set()

    def _trouble(self, event: str, error: Exception) -> None:
        _LOG.warning("%s: %s: %s", event, type(error).__name__, self._redactor.clean(str(error)))

    def _places(self, broker: str, management: str | None, web: Listening) -> Places:
        return Places(
            broker=hide_secrets(broker),
            management=management,
            http=web.url,
            store=hide_secrets(self._store.url),
        )


def store_of(settings: Settings) -> StoreOptions:
    """The store that is served: the one that is named, else a file in the data directory."""
    store = check_url(settings.store)
    if store.url.startswith("http:"):
        raise SettingsError(
            f"store.url = '{hide_secrets(store.url):.60}' is the store of another server; set store.url "
            "to sqlite:FILE or postgresql://…"
        )
    if store.url != StoreOptions().url:
        return store
    file = Path(settings.server.data_directory) / store.url.removeprefix("sqlite:")
    return msgspec.structs.replace(store, url=f"sqlite:{file}")


def component_of(kind: str) -> str:
    """What alerts call a broker of this kind."""
    return {"rabbitmq": "RabbitMQ", "kafka": "Kafka"}.get(kind, kind)


def _broker_options(settings: Settings) -> list[str]:
    """What the settings say of the embedded broker, for `redrive broker`."""
    embedded = settings.embedded
    return [
        "--dlx" if embedded.enable_dlx else "--no-dlx",
        "--ttl" if embedded.enable_ttl else "--no-ttl",
        "--length-limit" if embedded.enable_length_limit else "--no-length-limit",
        *(f"--allowed-host={name}" for name in settings.server.allowed_hosts),
    ]


def _file_of(store: StoreOptions) -> Path | None:
    scheme, _, rest = store.url.partition(":")
    return Path(rest) if scheme == "sqlite" and rest else None
