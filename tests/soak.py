"""How often the long tests repeat: a few times in CI, the full number under `make soak`.

Every test whose count depends on it takes the count from `count()` and carries the marker `soak`, by which
`make soak` selects it. `REDRIVE_SOAK=1` asks for the full numbers.
"""

import os
from typing import Final

SOAK: Final = os.environ.get("REDRIVE_SOAK", "") not in ("", "0")


def count(full: int, *, in_ci: int | None = None) -> int:
    """`full` under `make soak`, else `in_ci`, which is a tenth of it unless given."""
    if SOAK:
        return full
    return max(1, full // 10) if in_ci is None else in_ci
