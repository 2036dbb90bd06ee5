"""One measured case."""

import json
from dataclasses import dataclass


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
