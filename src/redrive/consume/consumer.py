"""How are several handlers run on one broker, until somebody says stop?

`Consumer.run` opens a receiver for each subscription and a `Runner` on it, and returns when all of them have come to
their end. One that fails for good (its source does not exist, its programme has a fault) ends the others in order,
and its error is raised; what happens to a broker that goes away is the transport's business.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from redrive.clock import Clock
from redrive.consume.callbacks import Callback
from redrive.consume.containment import contained_tasks
from redrive.consume.crash_log import CrashLog, folder_name
from redrive.consume.handler import Handler
from redrive.consume.observer import Observer
from redrive.consume.options import ConsumeOptions
from redrive.consume.pipe import Pipe
from redrive.consume.runner import Runner
from redrive.errors import SettingsError
from redrive.host import Host, Load
from redrive.letters.redact import Redactor
from redrive.rules import Classifier
from redrive.transports.base import HasGroups, Source, Transport

_LOG: Final = logging.getLogger("redrive.consume")


class Subscription(msgspec.Struct, frozen=True):
    """A handler and the source that it consumes."""

    handler: Handler
    source: Source
    options: ConsumeOptions


class Consumer:
    """Runs subscriptions on a transport."""

    def __init__(
        self,
        transport: Transport,
        subscriptions: Sequence[Subscription],
        *,
        clock: Clock,
        classifier: Classifier,
        redactor: Redactor,
        observers: Sequence[Observer] = (),
        callbacks: Sequence[Callback] = (),
        ready: Callable[[], None] = lambda: None,
        verdicts: bool = True,
        host: Callable[[], Load | None] | None = None,
        state: Path | None = None,
    ) -> None:
        """`ready` is called when every source is subscribed; `verdicts` are sent for redrives that were processed.

        `host` tells how busy the machine is; None: it is measured. `state` is the directory of crash logs; None: none
        are kept.
        """
        names = [subscription.source.name for subscription in subscriptions]
        if not names:
            raise SettingsError("nothing to consume: register a handler with @app.consume")
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"two handlers consume '{name}'; register only one")
        self._transport = transport
        self._subscriptions = tuple(subscriptions)
        self._clock = clock
        self._classifier = classifier
        self._redactor = redactor
        self._observers = tuple(observers)
        self._callbacks = tuple(callbacks)
        self._stop = asyncio.Event()
        self._ready = ready
        self._verdicts = verdicts
        self._host = host or Host(clock)
        self._state = state

    def stop(self) -> None:
        """Come to an end in order; `run` returns then."""
        self._stop.set()

    async def run(self) -> None:
        """Consume until `stop`, or until cancelled, which stops in order as well."""
        with contained_tasks():
            await self._run()

    async def _run(self) -> None:
        runners = [await self._runner(subscription) for subscription in self._subscriptions]
        tasks = [asyncio.create_task(runner.run(self._stop)) for runner in runners]
        self._ready()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self._stop.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _runner(self, subscription: Subscription) -> Runner:
        source, options = subscription.source, subscription.options
        pipe = Pipe(
            subscription.handler,
            source.name,
            options,
            clock=self._clock,
            classifier=self._classifier,
            redactor=self._redactor,
            host=self._host,
        )
        crash_log = self._crash_log(source, options)
        if crash_log is not None:
            # What was running is known, or it is not: then as many may have been out as fit into the window.
            most = 0 if crash_log.remembers else source.window
            source = msgspec.structs.replace(source, most_recounted=most)
        return Runner(
            await self._transport.receiver(source),
            pipe,
            options,
            observers=self._observers,
            callbacks=self._callbacks,
            clock=self._clock,
            redactor=self._redactor,
            publish=self._transport.publish if self._verdicts else None,
            crash_log=crash_log,
        )

    def _crash_log(self, source: Source, options: ConsumeOptions) -> CrashLog | None:
        """The crash log of a source; None where its messages do not outlive this process."""
        if not self._transport.capabilities.survives_restart:
            return None
        if self._state is not None:
            group = self._transport.group_of(source) if isinstance(self._transport, HasGroups) else ""
            folder = self._state / "consume" / folder_name(self._transport.endpoint, source.name, group)
            try:
                return CrashLog.open(folder, options.concurrency, self._clock)
            except OSError as error:
                _LOG.warning(
                    "Crash log unavailable: Queue=%s, Error=%s; set consume.state_directory to a writable directory",
                    source.name,
                    error,
                )
        return CrashLog(self._clock, options.concurrency)
