"""One measured case: against a peer (`Case`), or of redrive alone (`Figure`)."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.contestant import counts_instructions


@dataclass(frozen=True)
class Case:
    """Ours against a peer's, in one unit. Where less is better, `ratio` is turned over: higher is always better."""

    name: str
    ours: float
    peer: float
    peer_name: str
    asked: float
    unit: str
    less_is_better: bool = False

    @property
    def ratio(self) -> float:
        """How many times better than the peer."""
        return self.peer / self.ours if self.less_is_better else self.ours / self.peer

    def line(self, benchmark: str) -> str:
        """The case as a line of JSON."""
        return json.dumps(
            {
                "benchmark": benchmark,
                "case": self.name,
                "ours": round(self.ours, 4),
                "peer": round(self.peer, 4),
                "peer_name": self.peer_name,
                "ratio": round(self.ratio, 3),
                "asked": self.asked,
                "unit": self.unit,
            }
        )


@dataclass(frozen=True)
class Figure:
    """A measurement of redrive without a peer."""

    name: str
    value: float
    unit: str

    def line(self, benchmark: str) -> str:
        """The figure as a line of JSON; its keys are those of a case."""
        return json.dumps(
            {"benchmark": benchmark, "case": self.name, "ours": round(self.value, 4), "unit": self.unit}
        )


@dataclass(frozen=True)
class Speed:
    """What one run of a contestant has shown."""

    rate: float  # messages per second
    cpu: float  # seconds of CPU time per message


def figures_of(name: str, runs: Sequence[Speed], unit: str) -> Iterator[Figure]:
    """The medians of some runs against a third-party server: CPU time per message first, then the rate.

    The order is a preference. The server limits the rate, so the CPU time says more about redrive.
    """
    if runs:
        yield Figure(name, median(run.cpu for run in runs) * 1e6, cpu_unit(unit))
        yield Figure(name, median(run.rate for run in runs), unit)


def cpu_unit(rate_unit: str) -> str:
    """The unit of CPU time per message, for example `CPU us/message` where rates are in `messages/s`.

    Where instructions are counted, it is `instructions/message`.
    """
    measure = "instructions" if counts_instructions() else "CPU us"
    return f"{measure}/{rate_unit.removesuffix('s/s')}"


def less_is_better(unit: str) -> bool:
    """Whether a lower value in this unit is the better one: all but rates are times or sizes."""
    return not unit.endswith("/s")
