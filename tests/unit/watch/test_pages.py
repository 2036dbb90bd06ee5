"""The pages on watching are complete, and what they show runs."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from redrive.watch import logs, tracing
from redrive.watch.metrics import MOST_ERROR_TYPES, MOST_REASONS, Metrics

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference" / "metrics.md").read_text("utf-8")
HOW_TO = (DOCS / "how-to" / "monitor-a-consumer.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in REFERENCE.splitlines()
    if line[:1] == "|"
]


def test_every_metric_has_its_row_with_kind_and_labels_and_no_other_has_one() -> None:
    real = {}
    for family in Metrics(CollectorRegistry()).describe():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels: tuple[str, ...] = getattr(family, "_labelnames", ())
        kind = "untyped" if family.type == "unknown" else family.type
        real[f"`{name}`"] = (kind, ", ".join(f"`{label}`" for label in labels))
    written = {row[0]: (row[1], row[2]) for row in ROWS if row[1] in {"counter", "gauge", "untyped"}}
    assert written == real


def test_every_span_and_attribute_has_its_row() -> None:
    named = {row[0] for row in ROWS}
    source = Path(tracing.__file__).read_text("utf-8")
    attributes = {word for word in re.findall(r'"([a-z]+(?:\.[a-z_]+)+)"', source) if "exception" not in word}
    attributes -= {"redrive.watch.tracing"}
    assert len(attributes) > 10
    spans = (tracing.PROCESS_MESSAGES, tracing.PROCESS_SINGLE, tracing.DEAD_LETTER)
    assert {f"`{name}`" for name in (*attributes, *spans)} <= named


def test_every_line_has_its_row_with_its_level() -> None:
    lines = [value for value in vars(logs).values() if isinstance(value, logs._Line)]
    real = {(logging.getLevelName(line.level).lower(), f"`{line.text.replace('%s', '…')}`") for line in lines}
    assert len(real) == 14
    assert {(row[0], row[1]) for row in ROWS if row[0] in {"info", "warning", "error"}} == real


def test_every_field_of_a_line_is_named() -> None:
    source = Path(logs.__file__).read_text("utf-8")
    fields = set(re.findall(r'"([a-z_]+)":', source)) | set(re.findall(r'fields\["([a-z_]+)"\]', source))
    assert len(fields) > 15
    assert [name for name in sorted(fields) if f"`{name}`" not in REFERENCE] == []


@pytest.mark.parametrize("number", [MOST_ERROR_TYPES, MOST_REASONS, logs.LINES_PER_SECOND])
def test_the_limits_are_those_of_the_code(number: int) -> None:
    assert re.search(rf"\b{number:,}\b", REFERENCE)


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", HOW_TO, re.DOTALL)[:2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == printed, done.stderr
    assert '"message":"Published failed message to DLQ: orders.dlq"' in done.stderr
    assert "Traceback" not in "".join(line for line in done.stderr.splitlines() if not line.startswith("{"))
