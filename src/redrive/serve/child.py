"""Run the embedded broker as a child process of the server, and restart it when it exits.

A separate process can use another core, and a crash of one does not end the other. The broker is ready when it has
printed its addresses. When it exits, it is restarted on the same ports with growing delays. Its output is written to
the log of the server. It is stopped with the server, and killed by the kernel if the server is killed.
"""

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from redrive.clock import Clock, pause, until_first
from redrive.errors import ServiceError, StoreError, on_one_line
from redrive.private_files import make_private_directory

_LOG: Final = logging.getLogger("redrive.server.broker")
_READY: Final = re.compile(r"listens on (amqp://\S+:(\d+)/) and (http://\S+:(\d+)/)$")
_FAILED: Final = "redrive broker failed: "
_PATIENCE: Final = 60  # seconds until it has to be ready: a large journal is read first
_FIRST_WAIT: Final = timedelta(milliseconds=200)
_LONGEST_WAIT: Final = timedelta(seconds=30)
_CALM: Final = timedelta(minutes=1)
_GRACE: Final = timedelta(seconds=20)  # to end in order


class Addresses(msgspec.Struct, frozen=True):
    """Where the broker listens."""

    amqp: str
    management: str


class EmbeddedBroker:
    """The broker's process, whichever it is at the moment."""

    def __init__(
        self,
        data: Path,
        clock: Clock,
        *,
        port: int,
        management_port: int,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._data = data
        self._environment = {**os.environ, **(environment or {})}  # secrets are not for a command line
        self._clock = clock
        self._ports = (port, management_port)
        self._options = tuple(options)  # further ones of `redrive broker`
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._last_words: deque[str] = deque(maxlen=5)
        self._ready = False
        self._failure: str | None = None  # why it does not run, in its own words
        self.restarts = 0

    @property
    def is_ready(self) -> bool:
        """Whether it has said where it listens, and runs."""
        return self._ready and self.pid is not None

    @property
    def trouble(self) -> str | None:
        """Why it does not work; None: it has said that it is ready."""
        if self.is_ready:
            return None
        return self._failure or "the embedded broker is not running; it is being restarted"

    @property
    def pid(self) -> int | None:
        """The process it is now; None: it is away."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> Addresses:
        """Start it for the first time, and keep it running from then on."""
        addresses = await self._launch()
        self._keeping = asyncio.create_task(self._keep())
        return addresses

    async def stop(self) -> None:
        """End it in order, or by force if that takes too long."""
        self._stop.set()
        if self._keeping is not None:
            await self._keeping
        await self._end()

    # --- one process -------------------------------------------------------------------------------------------

    async def _launch(self) -> Addresses:
        """A process that is ready; a `ServiceError` tells why there is none."""
        port, management = self._ports
        self._ready = False
        self._last_words.clear()
        try:
            make_private_directory(self._data)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "redrive.serve.bound", str(os.getpid()), "broker"),
                *("--port", str(port), "--management-port", str(management), "--data", str(self._data)),
                *self._options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for us: the broker ends last
            )
        except OSError as error:
            raise ServiceError(
                f"the embedded broker could not be started: {error.strerror or error}"
            ) from error
        self._process = process
        assert process.stdout is not None  # noqa: S101  both are pipes
        assert process.stderr is not None  # noqa: S101
        errors = asyncio.create_task(self._relay(process.stderr))
        self._readers = [errors]
        try:
            async with asyncio.timeout(_PATIENCE):
                ready = await self._until_ready(process.stdout)
        except TimeoutError:
            await self._end()
            raise ServiceError(f"the embedded broker was not ready within {_PATIENCE} s") from None
        except BaseException:  # whoever waits has been cancelled: it does not stay behind
            await self._end()
            raise
        if ready is None:
            code = await process.wait()
            await errors
            why = self._last_words[-1].removeprefix("redrive: ") if self._last_words else f"exit code {code}"
            kind = StoreError if code == StoreError.exit_code else ServiceError
            raise kind(f"the embedded broker did not start: {why}")
        self._readers.append(asyncio.create_task(self._relay(process.stdout)))
        self._failure = None
        self._ports = (int(ready[2]), int(ready[4]))  # clients find it there again
        self._ready = True
        return Addresses(ready[1], ready[3])

    async def _until_ready(self, out: asyncio.StreamReader) -> re.Match[str] | None:
        while line := await out.readline():
            if ready := _READY.search(line.decode("utf-8", "replace").rstrip()):
                return ready
        return None

    async def _relay(self, stream: asyncio.StreamReader) -> None:
        """What the broker says is in our log."""
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                continue  # a line beyond all measure: what follows it is heard again
            if not line:
                return
            words = on_one_line(line.decode("utf-8", "replace").rstrip())
            self._last_words.append(words)
            if words.startswith(_FAILED):  # it runs, and does nothing until somebody has acted
                self._ready = False
                self._failure = f"the embedded broker stopped: {words.removeprefix(_FAILED)}"
            _LOG.warning("embedded broker output: %s", words)

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(_GRACE.total_seconds()):
                    await process.wait()
            except TimeoutError:
                _LOG.warning("embedded broker killed pid=%s waited=%gs", process.pid, _GRACE.total_seconds())
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    # --- all of them -------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Start it again whenever it has died."""
        wait = _FIRST_WAIT
        ready_at = self._clock.monotonic()
        while await self._has_died():
            if self._clock.monotonic() - ready_at > _CALM:
                wait = _FIRST_WAIT
            code = None if self._process is None else self._process.returncode
            _LOG.error(
                "embedded broker exited exit_code=%s restart_in=%gs",
                code,
                wait.total_seconds(),
            )
            await pause(self._clock, wait, self._stop)
            if self._stop.is_set():
                return
            wait = min(wait * 2, _LONGEST_WAIT)
            try:
                await self._launch()
            except (ServiceError, StoreError) as error:
                self._failure = str(error)
                _LOG.error("embedded broker not started: %s", error)
            else:
                self.restarts += 1
                ready_at = self._clock.monotonic()
                _LOG.warning("embedded broker restarted pid=%s", self.pid)

    async def _has_died(self) -> bool:
        """Wait until the process is gone; False: it is we who stop."""
        if self._process is None:
            return not self._stop.is_set()
        await until_first(self._process.wait(), self._stop.wait())
        return not self._stop.is_set()
