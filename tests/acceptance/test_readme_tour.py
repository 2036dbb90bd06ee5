"""The README's five minutes, walked as a new user would: with its own files and its own commands."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from redrive import __file__ as package

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
CONSUMER = README[README.index("## A consumer in ten lines") : README.index("## Five minutes")]
TOUR = README[README.index("## Five minutes") : README.index("## Features")]
PROGRAM = "from redrive.cli import main; main()"


def python_in(text: str) -> str:
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


class Terminal:
    """A folder in which commands run, with what they need in the environment."""

    def __init__(self, place: Path) -> None:
        self.place = place
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self.env = {
            **clean,
            "PYTHONPATH": str(Path(package).resolve().parents[1]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, name: str, *args: str) -> Path:
        """A command that goes on running; where its output is."""
        output = self.place / f"{name}.out"
        with output.open("w") as out:
            self._started.append(self._popen(args, out))
        return output

    def _popen(self, args: tuple[str, ...], out: IO[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *args],
            cwd=self.place,
            env=self.env,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *args],
            cwd=self.place,
            env=self.env,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def until(holds: Callable[[], bool], why: Callable[[], str]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, why()
        time.sleep(0.2)


def test_the_five_minutes_of_the_readme(terminal: Terminal) -> None:
    # Given: everything runs. Other ports than the README's, since other tests run beside this one.
    served = terminal.start(
        "serve",
        "serve",
        "--data",
        "redrive-data",
        "--port",
        "0",
        "--broker-port",
        "0",
        "--management-port",
        "0",
    )
    until(lambda: "redrive serve is ready" in served.read_text(), served.read_text)
    ready = re.search(r"broker (amqp://\S+) .*http (http://\S+),", served.read_text())
    assert ready is not None
    broker, http = ready.groups()
    (terminal.place / "shop.py").write_text(python_in(CONSUMER).replace("amqp://localhost", broker))
    consumed = terminal.start("consume", "consume", "shop")
    until(lambda: "redrive consume: orders (5 at a time)" in consumed.read_text(), consumed.read_text)

    # When: two orders are sent, of which one is broken
    published = re.findall(r"^\$ (redrive publish .*)$", TOUR, re.MULTILINE)
    assert len(published) == 2
    for words in published:
        said = terminal.run(*shlex.split(words)[1:], "--broker", broker)
        assert said == "published 1 message to orders\n"
        assert said in TOUR
    terminal.env["REDRIVE_STORE_URL"] = http
    until(lambda: "DecodeError" in terminal.run("list"), lambda: terminal.run("list"))
    assert "order 1: 19.90" in consumed.read_text()
    listed = json.loads(terminal.run("list", "--json"))
    (letter,) = listed["letters"]
    assert '"a lot"' in terminal.run("show", letter["id"][:16])

    # Then: the README's own command corrects and replays it, and the consumer confirms it
    (edit,) = re.findall(r"^\$ (redrive edit .*)$", TOUR, re.MULTILINE)
    printed = terminal.run(*shlex.split(edit)[1:], "--broker", broker, "--force")
    for line in ('-  "total": "a lot"', '+  "total": 1000', "is done: 1 sent of 1, oldest first"):
        assert line in printed
        assert line in TOUR
    until(lambda: "order 2: 1000.00" in consumed.read_text(), consumed.read_text)
    (answer,) = re.findall(r"^(no open letters match; .*)$", TOUR, re.MULTILINE)
    until(lambda: terminal.run("list").strip() == answer, lambda: terminal.run("list"))
    closed = json.loads(terminal.run("list", "--all", "--json"))["letters"]
    assert sorted(each["state"] for each in closed) == ["dlq_archived", "dlq_resolved"]
