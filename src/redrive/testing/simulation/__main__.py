"""`python -m redrive.testing.simulation --seeds 0:1000` runs seeds; `--trace 17` tells what happens in one."""

import argparse
import sys
import time
from collections import Counter

from redrive.testing.simulation import simulate


def main() -> int:
    """Run what is asked for; 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m redrive.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="from:to, the last one left out")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run this one seed and tell each step")
    parser.add_argument("--most", type=int, default=10, help="stop after so many failing seeds")
    asked = parser.parse_args()
    if asked.trace is not None:
        outcome = simulate(asked.trace, _say)
        return 0 if outcome.broken is None else 1
    first, _, last = asked.seeds.partition(":")
    return _run(range(int(first), int(last) if last else int(first) + 1), asked.most)


def _run(seeds: range, most: int) -> int:
    faults: Counter[str] = Counter()
    states: Counter[str] = Counter()
    steps = sent = again = failed = run = 0
    hours = 0.0
    began = time.process_time()
    for seed in seeds:
        outcome = simulate(seed)
        run += 1
        faults.update(outcome.faults)
        states.update(outcome.states)
        steps, sent, again = steps + outcome.steps, sent + outcome.sent, again + outcome.sent_again
        hours += outcome.virtual.total_seconds() / 3600
        if outcome.broken is not None:
            failed += 1
            _say(f"seed {seed}: {outcome.broken}")
            if failed >= most:
                break
    spent = time.process_time() - began
    each = spent / max(run, 1) * 1000
    _say(
        f"{run} seeds, {failed} failed; {spent:.1f} s of CPU, {each:.1f} ms each; {hours:.0f} hours of theirs"
    )
    _say(f"{steps} steps, {faults.total()} faults: {_counted(faults)}")
    _say(f"{sent} redrives, {again} again after a fault; letters: {_counted(states)}")
    return 1 if failed else 0


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
