"""Which seeds of the simulation the tests run: a fixed range, and fresh ones that change with every commit.

The fresh range is derived from the commit and printed in the header of the test run, so that a failure in CI can be
reproduced anywhere at that commit.
"""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests import soak

_FIXED_COUNT: Final = 400
_COUNT: Final = soak.count(20_000, in_ci=2_000)
_WITHOUT_GIT: Final = 20_260_101  # used as the commit's number where there is no repository


def fixed() -> range:
    """Seeds that every run has."""
    return range(_FIXED_COUNT)


@cache
def fresh() -> range:
    """Seeds that differ from commit to commit."""
    first = _commit_number() * 1000
    return range(first, first + _COUNT - _FIXED_COUNT)


def header() -> str:
    """The line that says how to run the fresh seeds again."""
    seeds = fresh()
    return f"simulation: fresh seeds, python -m redrive.testing.simulation --seeds {seeds.start}:{seeds.stop}"


def _commit_number() -> int:
    """The first eight digits of the commit's hash as a number."""
    try:
        told = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return int(told.stdout[:8], 16)
    except (OSError, ValueError, subprocess.SubprocessError):
        return _WITHOUT_GIT
