"""How does a broker run as a process?

It opens its data directory, listens, says where, and ends in an orderly way when it is asked to. One line on standard
output tells when it is ready and where it listens; whoever started it may wait for that line.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from redrive.amqp.connection import Limits
from redrive.broker.arguments import Features
from redrive.broker.core import Broker
from redrive.broker.server import Server, ServerOptions


@dataclass(frozen=True)
class BrokerOptions:
    """Everything that can be said about a broker process."""

    host: str = "127.0.0.1"
    port: int = 5672
    management_port: int | None = None
    data: Path | None = None
    features: Features = field(default_factory=Features)
    limits: Limits = field(default_factory=Limits)
    server: ServerOptions = field(default_factory=ServerOptions)
    dead_letter_fallback: str | None = None


async def run_broker(options: BrokerOptions) -> None:
    """Run until somebody asks to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(
        features=options.features, limits=options.limits, dead_letter_fallback=options.dead_letter_fallback
    ).with_defaults()
    server = Server(broker, options.server)
    port = await server.listen(options.host, options.port)
    _say(f"redrive broker listens on amqp://{options.host}:{port}/")
    await stop.wait()
    await server.close()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(options: BrokerOptions) -> None:
    """Run a broker in this process, on the fastest event loop there is."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415  faster where it exists

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run_broker(options))
