"""`redrive serve` and its neighbours as real processes, for tests that look at them from outside."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika

from redrive import __file__ as package
from redrive.letters import LetterHead
from redrive.stores.query import Query
from redrive.stores.remote import RemoteStore

PROGRAM = "from redrive.cli import main; main()"
QUICK = """
    [embedded]
    port = 0
    management_port = 0

    [recover]
    poll_interval = "50ms"
    delays = ["100ms"]

    [[sources]]
    name = "orders"
"""
PATIENCE = 60.0


def clean_environment(source: Path | None = None) -> dict[str, str]:
    """The environment of a child; `source` is a tree of another version of redrive."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    return {
        **clean,
        "PYTHONPATH": str(source or Path(package).resolve().parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def redrive(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=place,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


class Process:
    """A `redrive` command that runs."""

    def __init__(self, place: Path, *words: str, source: Path | None = None) -> None:
        """`source` is the `src` of another version of redrive, if that is to run."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=place,
            env=clean_environment(source),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._lines.put), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, keep: Callable[[str], None]) -> None:
        for line in stream:
            keep(line.rstrip())

    def until_it_says(self, words: str) -> str:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"it never said {words!r}: {self.errors}") from None
            if words in line:
                return line

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not end: {self.errors}") from None
        for reader in self._readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


class Serving(Process):
    """A `redrive serve` that is ready."""

    def __init__(self, place: Path, *options: str, settings: str = QUICK, source: Path | None = None) -> None:
        (place / "redrive.toml").write_text(textwrap.dedent(settings))
        super().__init__(place, "serve", "--data", "data", "--port", "0", *options, source=source)
        try:
            said = self.until_it_says("redrive serve is ready")
        except BaseException:
            self.end(signal.SIGKILL)
            raise
        found = re.search(r"broker (\S+?),? .*?http (http://\S+?), store (\S+)$", said)
        assert found, said
        self.broker, self.http, self.store_url = found.groups()

    def health(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.http}/health", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name):
                    return float(line.rpartition(" ")[2])
        raise AssertionError(f"there is no metric {name}")

    def broker_pid(self) -> int:
        return int(self.health()[1]["embedded_broker"]["pid"])

    async def heads(self, query: Query | None = None) -> list[LetterHead]:
        """All letters, asked over HTTP."""
        store = await RemoteStore.open(self.http)
        try:
            found: list[LetterHead] = []
            cursor = None
            while True:
                page = await store.page(query or Query(), limit=1000, cursor=cursor)
                found += page.heads
                cursor = page.cursor
                if cursor is None:
                    return found
        finally:
            await store.close()


@contextlib.contextmanager
def serving(place: Path, *options: str, settings: str = QUICK) -> Iterator[Serving]:
    server = Serving(place, *options, settings=settings)
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)


@contextlib.contextmanager
def channel(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something in another process, which tells nobody."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    """Whether this process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
