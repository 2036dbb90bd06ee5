"""Run the simulation.

`--seeds 0:1000` runs seeds and prints the rules that were broken, `--jobs 4` runs them in several processes, and
`--trace 17` prints one seed step by step. The exit code is 1 if a rule was broken.
"""

import argparse
import sys
from collections import Counter
from typing import Final

from redrive.testing.simulation import simulate
from redrive.testing.simulation.batch import Totals, totals_of

_PROGRESS_EVERY: Final = 10_000


def main() -> int:
    """Run what the command line asks for; 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m redrive.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:end, the end is not included")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run this seed and print each step")
    parser.add_argument("--most", type=int, default=10, help="stop after this many failing seeds")
    asked = parser.parse_args()
    if asked.trace is not None:
        return 0 if simulate(asked.trace, _say).broken is None else 1
    first, _, end = asked.seeds.partition(":")
    return _run(range(int(first), int(end) if end else int(first) + 1), asked.jobs, asked.most)


def _run(seeds: range, jobs: int, most: int) -> int:
    totals = Totals()
    with totals_of(seeds, jobs) as results:
        for part in results:
            for line in part.failed:
                _say(line)
            before = totals.run
            totals.merge(part)
            if totals.run // _PROGRESS_EVERY > before // _PROGRESS_EVERY and totals.run < len(seeds):
                _say(f"{totals.run} of {len(seeds)} seeds run, {len(totals.failed)} failed")
            if len(totals.failed) >= most:
                break
    each = totals.cpu / max(totals.run, 1) * 1000
    _say(
        f"{totals.run} seeds, {len(totals.failed)} failed; {totals.cpu:.1f} s of CPU, {each:.1f} ms each; "
        f"{totals.hours:.0f} simulated hours"
    )
    _say(f"{totals.steps} steps, {sum(totals.faults.values())} faults: {_counted(totals.faults)}")
    _say(
        f"{totals.sent} redrives, {totals.sent_again} again after a fault, {totals.presumed} presumed resolved; "
        f"letters: {_counted(totals.states)}"
    )
    return 1 if totals.failed else 0


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
