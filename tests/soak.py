"""How often the long tests repeat, and with which seeds.

Every test whose size depends on it takes its number from `count()`, its seed from `seed()`, carries the marker `soak`
and reports what it has found by `report()`. CI runs a tenth of the full number with fixed seeds; `make soak` repeats
the same tests with a fresh seed for each run (`REDRIVE_SOAK_SEED`), and adds their reports up.
"""

import json
import os
from hashlib import blake2b
from typing import Final

FULL_SIZE: Final = os.environ.get("REDRIVE_SOAK", "") not in ("", "0")
_SEED: Final = os.environ.get("REDRIVE_SOAK_SEED", "")
_REPORT: Final = os.environ.get("REDRIVE_SOAK_REPORT", "")


def count(full: int, *, in_ci: int | None = None) -> int:
    """`full` with `REDRIVE_SOAK=1`, else `in_ci`, which is a tenth of it unless given."""
    if FULL_SIZE:
        return full
    return max(1, full // 10) if in_ci is None else in_ci


def seed(fixed: int) -> int:
    """The seed of a test: `fixed` in CI, another one for each seed of a soak run."""
    if not _SEED:
        return fixed
    return int.from_bytes(blake2b(f"{_SEED}/{fixed}".encode(), digest_size=6).digest())


def report(*, kills: int = 0, acknowledged: int = 0, lost: int = 0, duplicated: int = 0) -> None:
    """Add the figures of a test to those of the soak run, if there is one. Call it before the assertions."""
    if not _REPORT:
        return
    line = json.dumps({"kills": kills, "acknowledged": acknowledged, "lost": lost, "duplicated": duplicated})
    with open(_REPORT, "a", encoding="utf-8") as file:  # noqa: PTH123  one write per line: tests share the file
        file.write(f"{line}\n")
