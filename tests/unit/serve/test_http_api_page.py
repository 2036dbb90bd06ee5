"""The page on the HTTP API lists every metric and every service."""

import re
import tomllib
from pathlib import Path

from redrive.serve.figures import FAMILIES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "http-api.md").read_text("utf-8")


def test_every_metric_has_its_row_with_kind_and_labels_and_no_other_has_one() -> None:
    real = {
        f"`{name}_total`" if family.kind == "counter" else f"`{name}`": (
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
        )
        for name, family in FAMILIES.items()
    }
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|"
    ]
    assert {row[0]: (row[1], row[2]) for row in rows if row[1] in {"counter", "gauge"}} == real


def test_every_service_is_described() -> None:
    services = tomllib.loads((ROOT / "tests" / "names.toml").read_text())["health"]["services"]
    patterns = {re.sub(r"QUEUE\.dlq$", "QUEUE", re.sub(r"worker-1$", "worker-N", name)) for name in services}
    assert [name for name in sorted(patterns) if f"`{name}`" not in PAGE] == []
