"""How does a contestant run that must not share a process, an event loop or an interpreter with anybody?

It is a module of ours in a process of its own, by a simple protocol on its pipes: it imports and connects, says
`ready`, works when it hears `go`, tells what it found in a line of JSON, and ends. So no start counts in any figure.
"""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any, Self

from benchmarks.amqp_load import ROOT

LAST_LINES = 3  # of what a contestant said before it failed


class VoidError(Exception):
    """A run that counts for nothing; the text says why."""


class Process:
    """`python -m MODULE WORDS...`, which has so many seconds for everything."""

    def __init__(self, module: str, words: Sequence[str], patience: int) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        # A pipe is read without a time-out: who says nothing for too long is ended, and that ends the pipe.
        self._patience = patience
        self._too_long = False
        self._watch = threading.Timer(patience, self._give_up)
        self._watch.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def wait_until_ready(self) -> None:
        """It has imported what it needs, and is connected."""
        if self._hear() != "ready":
            raise VoidError(self._why())

    def go(self) -> dict[str, Any]:
        """It works, tells, and ends."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._hear()
        if self._process.wait() or not line:
            raise VoidError(self._why())
        found: dict[str, Any] = json.loads(line)
        return found

    def _give_up(self) -> None:
        self._too_long = True
        self._process.kill()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _why(self) -> str:
        code = self._process.wait()
        if self._too_long:
            return f"it was not done after {self._patience} s"
        self._errors.seek(0)
        said = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"its process ended with {code}: {' / '.join(said[-LAST_LINES:]) or 'it said nothing'}"
