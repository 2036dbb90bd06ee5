"""A folder with a store in it, the command line, and the queues of a broker, for tests that look from outside."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pika

from redrive.letters import DeadLetter
from redrive.stores.base import Store
from redrive.stores.sqlite import SqliteStore
from tests.acceptance.serving import PROGRAM, clean_environment

Done = subprocess.CompletedProcess[str]


class Shop:
    """A folder with a store in it, and the command line."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.env = {**clean_environment(), "USER": "anna", "LOGNAME": "anna"}

    def run(self, *args: str, env: dict[str, str] | None = None, **options: Any) -> Done:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if "input" in options:
            del pipes["stdin"]
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *args],
            cwd=self.place, env={**self.env, **(env or {})}, text=True, check=False, timeout=60, **pipes | options,
        )  # fmt: skip

    def ok(self, *args: str, **options: Any) -> str:
        done = self.run(*args, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *args: str, **options: Any) -> Any:
        done = self.run(*args, "--json", **options)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1
        return json.loads(done.stdout)

    def fails(self, code: int, *args: str, **options: Any) -> str:
        """The one line with which a command fails."""
        done = self.run(*args, **options)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert re.fullmatch(r"redrive: [^\n]+\n", done.stderr), done.stderr
        return done.stderr.removeprefix("redrive: ").rstrip()

    def process(self, *args: str, **options: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *args], cwd=self.place, env=self.env, text=True, **options
        )

    def store(self, work: Callable[[Store], Coroutine[Any, Any, Any]], name: str = "redrive.db") -> Any:
        async def run() -> Any:
            opened = await SqliteStore.open(self.place / name)
            try:
                return await work(opened)
            finally:
                await opened.close()

        return asyncio.run(run())

    def add(self, *given: DeadLetter) -> None:
        self.store(lambda store: store.add(given))

    def whole(self, *ids: str, name: str = "redrive.db") -> list[DeadLetter]:
        found: list[DeadLetter] = self.store(lambda store: store.load(ids), name)
        return found

    def states(self) -> dict[str, int]:
        return {
            name.removeprefix("dlq_"): count
            for name, count in self.json("stats", "--all")["state"].items()
            if count
        }


class Queue:
    """A queue on a real broker, as another program sees it."""

    def __init__(self, url: str, name: str = "orders") -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.name = name
        self.channel.queue_declare(name, durable=True)

    def got(self) -> list[tuple[dict[str, Any], bytes]]:
        """Everything in it, taken out."""
        found: list[tuple[dict[str, Any], bytes]] = []
        while True:
            method, properties, body = self.channel.basic_get(self.name, auto_ack=True)
            if method is None:
                return found
            found.append((properties.headers, body))


def ids_of(answer: Any) -> list[str]:
    return [head["id"] for head in answer["letters"]]


def sending(url: str, *more: str) -> tuple[str, ...]:
    return ("replay", "--broker", url, "--yes", "--force", *more)
