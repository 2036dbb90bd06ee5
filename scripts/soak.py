#!/usr/bin/env python3
"""Repeat the long tests with fresh random seeds for some minutes, and print one JSON object with what they have found.

    make soak MINUTES=30

Parts of the work take turns on all cores: seeds of the simulation, the kill loops of the tests (on every broker and
store that is installed, at CI's size or, with --full, at full size), and the fuzzers. A part that fails is a finding:
it has the seed, the command that repeats it, and the end of its output. The exit code is 1 if there are findings.

Uses the standard library only; progress goes to standard error.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
GRACE_S = 120  # for parts that are under way when the time is up; then they are stopped and do not count
SIMULATION_SEEDS = 300  # of one part
COUNTED = ("seeds", "kills", "inputs", "acknowledged", "lost", "duplicated")
TAIL_LINES = 25


@dataclass(frozen=True)
class Part:
    """Something that is run again and again, each time with another seed."""

    name: str
    command: Callable[[int], list[str]]
    count: Callable[[str], Mapping[str, int]] = lambda _output: {}  # what the output says that was done
    environment: Callable[[int], Mapping[str, str]] = lambda _seed: {}
    seconds: int = 60  # that it takes, about; not started when less is left


@dataclass
class Result:
    """What all parts have found so far."""

    counts: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    interrupted: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)


def simulation() -> Part:
    """Some seeds of the simulation."""

    def command(seed: int) -> list[str]:
        first = seed * SIMULATION_SEEDS
        words = ["--seeds", f"{first}:{first + SIMULATION_SEEDS}"]
        return [PYTHON, "-m", "redrive.testing.simulation", *words]

    return Part(
        "simulation", command, lambda output: {"seeds": _number(r"^(\d+) seeds,", output)}, seconds=10
    )


def fuzzer(name: str, inputs: int) -> Part:
    """A fuzzer, with this many inputs."""

    def command(seed: int) -> list[str]:
        return [PYTHON, f"tests/fuzz/{name}.py", "--inputs", str(inputs), "--seed", str(seed)]

    return Part(name, command, lambda output: {"inputs": inputs if output else 0}, seconds=30)


def kill_loop(name: str, words: list[str], seconds: int, *, full: bool) -> Part:
    """Tests of one file, chosen by options of pytest."""
    file, *options = words

    def command(_seed: int) -> list[str]:
        return [
            PYTHON,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "soak",
            f"tests/faults/{file}",
            *options,
        ]

    def environment(seed: int) -> Mapping[str, str]:
        return {"REDRIVE_SOAK_SEED": str(seed), "REDRIVE_SOAK": "1" if full else ""}

    return Part(name, command, environment=environment, seconds=seconds * (10 if full else 1))


def parts(*, full: bool) -> list[Part]:
    """All of them, in the order in which they take turns; the simulation has every third turn."""
    loops = [
        ("kills, embedded and SQLite", ["test_kills_under_load.py", "-k", "embedded"], 90),
        ("kills, embedded broker", ["test_broker_crash.py"], 40),
        ("kills, RabbitMQ and PostgreSQL", ["test_kills_under_load.py", "-k", "rabbitmq"], 120),
        ("kills, Kafka and SQLite", ["test_kafka_kills_under_load.py"], 40),
        ("kills, SQLite", ["test_sqlite_crash.py"], 30),
        ("kills, journal", ["test_journal_crash.py"], 20),
        ("kills, replay", ["test_replay_crash.py"], 40),
        ("kills, shared documents", ["test_memos_killed.py"], 30),
        ("kills, login", ["test_broker_killed_during_login.py"], 40),
        ("kills, migration", ["test_sqlite_migration_killed.py"], 30),
        ("network that cuts", ["test_consume_chaos.py"], 90),
    ]
    fuzzers = [
        fuzzer("fuzz_amqp", 20_000),
        fuzzer("fuzz_conventions", 20_000),
        fuzzer("fuzz_http", 5_000),
    ]
    found: list[Part] = []
    for number, (name, words, seconds) in enumerate(loops):
        loop = kill_loop(name, words, seconds, full=full)
        found += [simulation(), loop, fuzzers[number % len(fuzzers)]]
    return found


class Soak:
    """Runs parts on several threads until the time is up."""

    def __init__(self, all_parts: list[Part], minutes: float, chance: random.Random) -> None:
        self._parts = itertools.cycle(all_parts)
        self._shortest = min(part.seconds for part in all_parts)
        self._end = time.monotonic() + minutes * 60
        self._chance = chance
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._started = False  # one part is run, however short the time is
        self._stopped = False
        self.result = Result()

    def run(self, jobs: int) -> None:
        """Until the time is up, and the parts that are under way have ended or used up their grace."""
        threads = [threading.Thread(target=self._work, name=f"soak-{number}") for number in range(jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(1)
                    if time.monotonic() > self._end + GRACE_S:
                        self.stop()
        except KeyboardInterrupt:
            self.stop()
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        """Stop what is under way; it counts as interrupted."""
        with self._lock:
            self._stopped = True
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)

    def _work(self) -> None:
        while (task := self._next()) is not None:
            self._run(*task)

    def _next(self) -> tuple[Part, int] | None:
        with self._lock:
            while not self._stopped:
                left = self._end - time.monotonic()
                if left < self._shortest and self._started:
                    return None
                part = next(self._parts)
                if part.seconds <= left or not self._started:
                    self._started = True
                    return part, self._chance.randrange(1, 2**31)
            return None

    def _run(self, part: Part, seed: int) -> None:
        with tempfile.NamedTemporaryFile("r", prefix="redrive-soak-", suffix=".jsonl") as report:
            changes = {**part.environment(seed), "REDRIVE_SOAK_REPORT": report.name}
            began = time.monotonic()
            process = subprocess.Popen(
                part.command(seed),
                cwd=ROOT,
                env={**os.environ, **changes},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            with self._lock:
                self._running[process.pid] = process
            output = process.communicate()[0]
            reported = Counter[str]()
            for line in report:
                reported.update(json.loads(line))
        with self._lock:
            del self._running[process.pid]
            self._record(part, seed, process.returncode, output, reported)
        note(
            f"{part.name}: seed {seed}: exit code {process.returncode} after {time.monotonic() - began:.0f} s"
        )

    def _record(self, part: Part, seed: int, code: int, output: str, reported: Counter[str]) -> None:
        result = self.result
        result.counts.update(reported)
        result.counts.update(part.count(output))
        if code == 5:  # pytest: every test is left out, because a service is not installed
            return
        if code and self._stopped:
            result.interrupted[part.name] += 1
            return
        result.runs[part.name] += 1
        if code:
            words = [
                f"{name}={shlex.quote(value)}" for name, value in part.environment(seed).items() if value
            ]
            result.findings.append(
                {
                    "part": part.name,
                    "seed": seed,
                    "repeat": " ".join([*words, shlex.join(part.command(seed)).replace(PYTHON, "python", 1)]),
                    "output": output.splitlines()[-TAIL_LINES:],
                }
            )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1]) if found else 0


def note(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def positive(text: str) -> float:
    """Read a number above zero."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return value


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: with the figures so far."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> int:
    """Read the command line, run, and print the result."""
    parser = argparse.ArgumentParser(description="Repeat the long tests with fresh random seeds.")
    parser.add_argument("--minutes", type=positive, default=60, help="for how long (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="parts that run at once (default: one per core)"
    )
    parser.add_argument("--full", action="store_true", help="kill loops at full size, ten times that of CI")
    parser.add_argument("--seed", type=int, help="of the seeds of the parts (default: random)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only parts whose names contain this")
    options = parser.parse_args()
    chosen = [part for part in parts(full=options.full) if options.only in part.name]
    if not chosen:
        names = ", ".join(dict.fromkeys(part.name for part in parts(full=False)))
        parser.error(f"no part has {options.only!r} in its name; parts: {names}")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    soak = Soak(chosen, options.minutes, random.Random(seed))  # noqa: S311  a run must be repeatable
    began = time.monotonic()
    with ended_by_sigterm():
        soak.run(options.jobs)
    result = soak.result
    answer = {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "seed": seed,
        **{name: result.counts[name] for name in COUNTED},
        "runs": dict(result.runs),
        "interrupted": dict(result.interrupted),
        "findings": result.findings,
    }
    print(json.dumps(answer))
    return 1 if result.findings or result.counts["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
