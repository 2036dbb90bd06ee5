"""How are the shop's consumers kept at work?

Each is `redrive consume` in a process of its own, and is started again when it dies, as a supervisor would; one that
cannot be started any more ends the demo. It ends with us: in order where we do, by the kernel's hand where we are
killed. What it logs goes to a file.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from redrive.clock import Clock, pause, until_first
from redrive.errors import ServiceError, on_one_line
from redrive.private_files import create_private_file

_READY: Final = b"redrive consume: "
_PATIENCE: Final = 60  # seconds until it has to be ready
_GRACE: Final = 15  # seconds to end in order
_WAIT: Final = timedelta(milliseconds=200)
_MOST_STARTS: Final = 5  # in a row that come to nothing; a poison message may be the cause of two


class Clerk:
    """One consumer, whichever process it is at the moment."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        directory: Path,
        environ: Mapping[str, str],
        clock: Clock,
        died: Callable[[str, int], None],
    ) -> None:
        """`arguments` are those of `redrive`; `died` hears of each death, with the exit code."""
        self.name = name
        self._arguments = tuple(arguments)
        self._log = directory / f"{name}.log"
        self._directory = directory
        self._environ = environ
        self._clock = clock
        self._died = died
        self._stop = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self.keeping: asyncio.Task[None] | None = (
            None  # ends when it is stopped, or cannot be started any more
        )
        self.deaths = 0

    async def start(self) -> None:
        """Returns when it consumes; a `ServiceError` tells why it does not."""
        await self._launch()
        self.keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End it in order, or by force if that takes too long."""
        self._stop.set()
        if self.keeping is not None:
            await asyncio.wait((self.keeping,))
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_GRACE):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _launch(self) -> None:
        create_private_file(self._log)
        with self._log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "redrive.serve.bound", str(os.getpid()), *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._directory,
                env=dict(self._environ),
                start_new_session=True,  # Ctrl-C is for us: they end before the broker does
            )
        assert process.stdout is not None  # noqa: S101  it is a pipe
        try:
            async with asyncio.timeout(_PATIENCE):
                line = await process.stdout.readline()  # it says nothing else
        except TimeoutError:
            line = b""
        except BaseException:  # whoever waits has been cancelled: it does not stay behind
            process.kill()
            await process.wait()
            raise
        if not line.startswith(_READY):
            if (
                line or not process.stdout.at_eof()
            ):  # it lives; killing one that has ended may lose its exit code
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
            raise ServiceError(f"the consumer of {self.name} did not start: {self._last_words()}")

    async def _keep(self) -> None:
        in_vain = 0
        while (code := await self._death()) is not None:
            self.deaths += 1
            self._died(self.name, code)
            await pause(self._clock, _WAIT, self._stop)
            if self._stop.is_set():
                return
            try:
                await self._launch()
            except ServiceError:  # it died before it was ready
                in_vain += 1
                if in_vain == _MOST_STARTS:
                    raise
            else:
                in_vain = 0

    async def _death(self) -> int | None:
        """Wait until the process is gone; its exit code, or None if it is we who stop."""
        assert self._process is not None  # noqa: S101  it was started
        await until_first(self._process.wait(), self._stop.wait())
        return None if self._stop.is_set() else self._process.returncode

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text("utf-8", "replace").split("\n")
        except OSError:
            lines = []
        return next((on_one_line(line) for line in reversed(lines) if line.strip()), "no output")
