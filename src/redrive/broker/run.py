"""How does a broker run as a process?

It opens its data directory, listens, says where, and ends in an orderly way when it is asked to. One line on standard
output tells when it is ready and where it listens; whoever started it may wait for that line.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from redrive.amqp.content import MAX_MESSAGE_SIZE
from redrive.amqp.limits import Limits
from redrive.amqp.sasl import Credentials
from redrive.broker.arguments import Features
from redrive.broker.core import DEAD_LETTER_RETRY, GUEST, Broker
from redrive.broker.journal_errors import JournalReplacedError
from redrive.broker.journal_keep import JournalKeep
from redrive.broker.memory import default_memory_limit, find_trim, resident_bytes
from redrive.broker.server import Server, ServerOptions
from redrive.clock import until_first
from redrive.errors import ServiceError, SettingsError

_RESTORE_INTERVAL: Final = 0.5  # seconds between two looks for a journal file that was removed


@dataclass(frozen=True)
class Tls:
    """What is needed to listen for TLS; with `authority`, clients have to show a certificate it signed."""

    port: int
    certificate: Path
    key: Path
    authority: Path | None = None

    def context(self) -> ssl.SSLContext:
        """The context, or an error that says which file is wrong."""
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate, self.key)
            if self.authority is not None:
                context.load_verify_locations(self.authority)
                context.verify_mode = ssl.CERT_REQUIRED
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(f"TLS cannot be set up with {self.certificate}: {error}") from error
        return context


@dataclass(frozen=True)
class BrokerOptions:
    """Everything that can be said about a broker process."""

    host: str = "127.0.0.1"
    port: int = 5672
    management_port: int | None = None
    allowed_hosts: tuple[str, ...] = ()  # names that the management API answers to, beside its address
    tls: Tls | None = None
    data: Path | None = None
    salvage: bool = False
    features: Features = field(default_factory=Features)
    limits: Limits = field(default_factory=Limits)
    server: ServerOptions = field(default_factory=ServerOptions)
    max_message_size: int = MAX_MESSAGE_SIZE
    memory_limit: int | None = None  # bytes; None: a part of what the machine has; 0: no limit
    dead_letter_fallback: str | None = None
    dead_letter_retry: timedelta = timedelta(milliseconds=DEAD_LETTER_RETRY)
    anonymous: Credentials | None = GUEST


async def run_broker(options: BrokerOptions) -> Server:
    """Run until a stop is requested, or the journal cannot be written any more; gives the server, which is closed.

    A broker whose journal was removed or replaced does not start again by itself, with what is left: it waits until the
    file is back or it is asked to stop, and says so in a line on standard output.
    """
    stop, asked = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        asked.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    server = await start(options)
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        stop.set()

    server.on_failure = failed
    places, closers = await _listen(server, options)
    _say(f"redrive broker listens on {' and '.join(places)}")
    server.trim_memory = find_trim()
    gc.freeze()  # what is there now stays: the collector need not look at it again and again
    gc.set_threshold(50_000, 20, 100)
    await stop.wait()
    for close in closers:
        await close()
    if failures:
        server.abandon()
        error = failures[0]
        if isinstance(error, JournalReplacedError):
            _say(f"redrive broker failed: {error}")
            while not asked.is_set() and not error.is_restored:
                await until_first(asked.wait(), asyncio.sleep(_RESTORE_INTERVAL))
        raise ServiceError(f"the broker stopped because its journal failed: {error}")
    await server.close()
    return server


async def start(options: BrokerOptions) -> Server:
    """A broker as its data directory says it was, ready to listen."""
    keep = None
    if options.data is not None:
        keep = await asyncio.to_thread(JournalKeep, options.data, salvage=options.salvage)
    limit = default_memory_limit() if options.memory_limit is None else options.memory_limit
    broker = Broker(
        keep=keep,
        features=options.features,
        limits=options.limits,
        max_message_size=options.max_message_size,
        memory_limit=limit or None,
        resident=resident_bytes,
        dead_letter_fallback=options.dead_letter_fallback,
        dead_letter_retry=round(options.dead_letter_retry / timedelta(milliseconds=1)),
        anonymous=options.anonymous,
    )
    server = Server(broker, options.server, keep=keep)
    if keep is not None:
        if keep.recovered.torn:
            broker.log.warning("journal had an incomplete end, as after a crash: %s", keep.recovered.torn)
        for damage in keep.recovered.damage:
            broker.log.error("damaged part of the journal skipped: %s", damage)
        keep.restore(broker, server.clock())
    if not broker.vhosts:
        broker.with_defaults()
    if keep is not None and not keep.has_cluster_name:
        broker.rename_cluster(broker.cluster_name)
        await asyncio.to_thread(keep.flush)  # a name that a client has seen must outlive a crash
    return server


async def _listen(
    server: Server, options: BrokerOptions
) -> tuple[list[str], list[Callable[[], Awaitable[None]]]]:
    """Where it listens, and how to stop what is not the server's own."""
    host = options.host
    closers: list[Callable[[], Awaitable[None]]] = []
    try:
        places = [f"amqp://{host}:{await server.listen(host, options.port)}/"]
        if options.tls is not None:
            port = await server.listen(host, options.tls.port, options.tls.context())
            places.append(f"amqps://{host}:{port}/")
        if options.management_port is not None:
            from redrive.broker.management import start_management  # noqa: PLC0415  costs time only those who ask

            management = await start_management(server, host, options.management_port, options.allowed_hosts)
            closers.append(management.close)
            places.append(f"http://{host}:{management.port}/")
    except OSError as error:
        raise ServiceError(f"cannot listen on {host}: {error.strerror or error}") from error
    return places, closers


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(options: BrokerOptions) -> None:
    """Run a broker in this process, on the fastest event loop there is."""
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415  faster where it exists

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        _server = runner.run(run_broker(options))
        # Everything is on disk and said. To free millions of messages one by one would take seconds.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
