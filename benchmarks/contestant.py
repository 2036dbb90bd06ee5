"""Run a contestant in its own process.

It is a module of ours that follows a simple protocol on its pipes: it imports and connects, prints `ready`, works when
it reads `go`, prints what it found as a line of JSON, and exits. So no start-up time counts in any figure.

Where `INSTRUCTIONS` is set in the environment, the process runs under valgrind, which counts the instructions between
`go` and the exit; they replace its CPU time, one microsecond for each instruction. Unlike CPU time, the count hardly
depends on what else the machine does.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from benchmarks.amqp_load import ROOT

LAST_LINES = 3  # of what a contestant said before it failed
INSTRUCTIONS: Final = "REDRIVE_BENCH_INSTRUCTIONS"
_SLOWER: Final = 20  # valgrind needs far longer for each message, and fewer of them suffice


def counts_instructions() -> bool:
    """Whether contestants count instructions instead of CPU time."""
    return bool(os.environ.get(INSTRUCTIONS))


def scaled(messages: int) -> int:
    """How many messages to measure with: fewer where instructions are counted."""
    return messages // _SLOWER if counts_instructions() else messages


class VoidError(Exception):
    """A run that counts for nothing; the text says why."""


class Process:
    """`python -m MODULE WORDS...`, which has so many seconds for everything."""

    def __init__(self, module: str, words: Sequence[str], patience: int) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        self._folder = tempfile.TemporaryDirectory(prefix="redrive-bench-")
        self._log = Path(self._folder.name) / "valgrind.log"
        self._process = subprocess.Popen(
            [*self._counter(), sys.executable, "-m", module, *words],
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
        self._folder.cleanup()

    def wait_until_ready(self) -> None:
        """It has imported what it needs, and is connected."""
        if self._hear() != "ready":
            raise VoidError(self._why())

    def go(self) -> dict[str, Any]:
        """It works, tells, and ends."""
        assert self._process.stdin is not None
        if counts_instructions():
            subprocess.run(
                ["callgrind_control", "--instr=on", str(self._process.pid)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._hear()
        if self._process.wait() or not line:
            raise VoidError(self._why())
        found: dict[str, Any] = json.loads(line)
        if counts_instructions():
            found["cpu"] = self._instructions() * 1e-6
        return found

    def _counter(self) -> list[str]:
        if not counts_instructions():
            return []
        return [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--callgrind-out-file=/dev/null",
            f"--log-file={self._log}",
        ]

    def _instructions(self) -> int:
        collected = re.search(r"Collected : (\d+)", self._log.read_text())
        if collected is None:
            raise VoidError("valgrind has counted no instructions")
        return int(collected[1])

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
