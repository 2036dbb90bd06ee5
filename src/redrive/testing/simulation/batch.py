"""Run many seeds, in one process or in several, and add up what happened in them."""

import gc
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Final

import msgspec

from redrive.testing.simulation.run import Outcome, simulate

_CHUNK: Final = 50  # seeds that a process runs before it reports


class Totals(msgspec.Struct):
    """What happened in some seeds."""

    run: int = 0
    failed: list[str] = []
    faults: dict[str, int] = {}
    states: dict[str, int] = {}
    steps: int = 0
    sent: int = 0
    sent_again: int = 0
    presumed: int = 0
    hours: float = 0.0
    cpu: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add one seed."""
        if outcome.broken is not None:
            self.failed.append(f"seed {outcome.seed}: {outcome.broken}")
        self.merge(
            Totals(
                run=1,
                faults=outcome.faults,
                states=outcome.states,
                steps=outcome.steps,
                sent=outcome.sent,
                sent_again=outcome.sent_again,
                presumed=outcome.presumed,
                hours=outcome.virtual.total_seconds() / 3600,
            )
        )

    def merge(self, other: "Totals") -> None:
        """Add other seeds."""
        self.run += other.run
        self.failed += other.failed
        self.faults = dict(Counter(self.faults) + Counter(other.faults))
        self.states = dict(Counter(self.states) + Counter(other.states))
        self.steps += other.steps
        self.sent += other.sent
        self.sent_again += other.sent_again
        self.presumed += other.presumed
        self.hours += other.hours
        self.cpu += other.cpu


@contextmanager
def totals_of(seeds: range, jobs: int) -> Iterator[Iterator[Totals]]:
    """The totals of one part of the seeds after the other."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    if jobs == 1:
        yield map(_run, chunks)
        return
    executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        yield executor.map(_run, chunks)
    finally:
        executor.shutdown(cancel_futures=True)


def _run(seeds: range) -> Totals:
    """Run some seeds with one garbage collection at the end: during them it would take a quarter of the time."""
    began = time.process_time()
    totals = Totals()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for seed in seeds:
            totals.add(simulate(seed))
    finally:
        if was_enabled:
            gc.enable()
        gc.collect()
    totals.cpu = time.process_time() - began
    return totals
