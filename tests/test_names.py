"""Names, texts and thresholds that users build on: dashboards, runbooks, filters, scripts.

`names.toml` lists every header, metric, setting, exit code, alert rule, service of `/health`, log event and JSON field
as the code declares them. A change of one of them breaks what others have built, so it needs a line in the changelog.
To update the list after such a change:

    python -m tests.test_names --write
"""

import ast
import asyncio
import difflib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from redrive import errors
from redrive.cli.letter_table import plain
from redrive.cli.output import to_toml
from redrive.cli.selection import select
from redrive.cli.show import as_data
from redrive.cli.stats import count_letters
from redrive.formats import own
from redrive.letters import LetterState
from redrive.rules.decide import Reason
from redrive.serve.condition import Condition
from redrive.serve.connection import LateStore
from redrive.serve.crew import Crew
from redrive.serve.figures import FAMILIES
from redrive.settings import StoreOptions, read
from redrive.settings.table import LISTS, SECTIONS
from redrive.stores.changes import Annotate, Retry, Settlement
from redrive.stores.memory import MemoryStore
from redrive.stores.query import Query
from redrive.testing import ManualClock
from redrive.testing.factories import a_failure, a_letter
from redrive.transports import Source
from redrive.transports.memory import MemoryTransport
from redrive.watch import logs
from redrive.watch.alerts.alert import Occasion, Severity
from redrive.watch.alerts.rules import MEASURES, RULES
from redrive.watch.alerts.shapes import as_json
from redrive.watch.metrics import Metrics
from tests.unit.watch.alerts.examples import ORDINARY
from tests.unit.watch.deliveries import an_event

Names: TypeAlias = dict[str, Any]  # key: a text, a number, or a list of texts
FILE: Final = Path(__file__).parent / "names.toml"
SOURCE: Final = Path(errors.__file__).parent
BROKER: Final = "BROKER"
RULE = {rule.name: rule for rule in RULES}
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL

# --- what the code declares --------------------------------------------------------------------------------------

_HEADER: Final = re.compile(r"redrive-[a-z-]*[a-z]|redrive-(original|property)-|x-replayed")
_HEADER_PACKAGES: Final = ("collect", "formats", "letters", "transports")
_NO_HEADERS: Final = frozenset({"redrive-kafka-publisher", "redrive-letters"})  # a thread, a file
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_LOGGERS: Final = frozenset({"_LOG", "_log", "log"})


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules of these packages, or of all but the test kit, each with the name of its package."""
    for path in sorted(SOURCE.rglob("*.py")):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package in packages or (not packages and package != "testing"):
            yield package, ast.parse(path.read_text())


def headers() -> Names:
    found = {
        node.value
        for _, module in modules(*_HEADER_PACKAGES)
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _HEADER.fullmatch(node.value)
    }
    version_1 = set(own._VERSION_1)
    written = {own.PREFIX + name for name in own._OF_THE_DEATH}
    return {
        "dead_letter": sorted(written),
        "other": sorted(found - written - version_1 - _NO_HEADERS),
        "read_version_1": sorted(version_1),
        "version": own.VERSION,
    }


def consumer_metrics() -> Names:
    return {
        family.name + ("_total" if family.type == "counter" else ""): [*family._labelnames]  # type: ignore[attr-defined]
        for family in Metrics(CollectorRegistry()).describe()
    }


def server_metrics() -> Names:
    return {
        name + ("_total" if family.kind == "counter" else ""): [*family.labels]
        for name, family in FAMILIES.items()
    }


def settings() -> Names:
    sections = {section: sorted(keys) for section, (_, keys) in SECTIONS.items()}
    lists = {f"[[{name}]]": sorted(each.keys) for name, each in LISTS.items()}
    return {**sections, **lists}


def exit_codes() -> Names:
    def below(kind: type[errors.RedriveError]) -> Iterator[type[errors.RedriveError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    return {
        kind.__name__: kind.exit_code
        for kind in below(errors.RedriveError)
        if kind.__module__ == errors.__name__ and "exit_code" in vars(kind)
    }


def alerts() -> Names:
    return {
        "rules": [*RULE],
        "measures": [*MEASURES],
        "severities": [*map(str, Severity)],
        "occasions": [*map(str, Occasion)],
        "json": [*as_json(ORDINARY)],
    }


def a_crew(clock: ManualClock) -> Crew:
    """The services of a server with everything that is optional."""
    settings = read({"conditions": [{"name": "db", "url": "tcp://127.0.0.1:1"}], "recover": {"workers": 1}})

    def ignore(*_ignored: object) -> None: ...

    async def discover() -> list[str]:
        return []

    return Crew(
        settings,
        MemoryStore(clock),
        MemoryTransport(clock),
        clock,
        ignore,
        [Source(name="QUEUE")],
        discover,
        broker=BROKER,
        store_connection=LateStore(StoreOptions(), clock, trouble=ignore, refused=ignore),
    )


async def health() -> Names:
    clock = ManualClock()
    crew = a_crew(clock)
    report = await Condition(
        MemoryStore(clock), MemoryTransport(clock), lambda: crew.services, clock
    ).report()
    metrics = Metrics(CollectorRegistry())
    metrics.received("QUEUE", 1)
    return {
        "server": [*report, "embedded_broker"],
        "services": [*report["services"]],
        "consumer": sorted(flat(metrics.health())),
    }


def log_events() -> Names:
    """The events of all packages; `%s` and the like stand for values."""
    found: dict[str, set[str]] = {}
    for package, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                for text in texts(node.args[0]) if is_logged(node.func, package) else ():
                    if re.search(r"[a-z]{2}", text.replace("%s", "")):
                        found.setdefault(package, set()).add(text)
    lines = [line for line in vars(logs).values() if isinstance(line, logs._Line)]
    return {
        **{package: sorted(found[package]) for package in sorted(found)},
        "lines": [line.text for line in lines],
    }


def is_logged(called: ast.Attribute, package: str) -> bool:
    receiver = called.value
    logger = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return (
        (called.attr in _LEVELS and logger in _LOGGERS)
        or called.attr == "_trouble"
        or (called.attr == "_tell" and package == "transports")
        or (called.attr in {"_tell_failed", "_failed"} and package == "consume")
    )


def texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))


def loggers() -> Names:
    names = {
        node.args[0].value
        for _, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "getLogger"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    return {"names": sorted(names)}


async def json_fields() -> Names:
    """The fields of `list`, `show` and `stats` with `--json`, of a letter that was redriven once and has a note."""
    clock = ManualClock()
    store = MemoryStore(clock)
    letter = a_letter()
    await store.add([letter])
    [head] = await store.claim("worker", broker="rabbitmq")
    await store.extend([head.claim_token], lease=timedelta(hours=1), sent=True)
    assert await store.settle([Settlement(head.claim_token, Retry(at=clock.now()))]) == [True]
    await store.apply(Annotate("looked at"), [letter.id], by="anna")
    [whole] = await store.load([letter.id])
    page = await store.page(Query(), limit=1)
    shown = as_data(whole, await store.journal(letter.id), body=True)
    return {
        "list": sorted(flat({"letters": plain(page.heads), "cursor": None, "count": 1})),
        "show": sorted(flat(shown)),
        "stats": sorted(await count_letters(store, select(()), with_closed=True)),
    }


def flat(value: object, name: str = "") -> Iterator[str]:
    """The paths of all fields, such as `attempts[].at`."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        yield from {path for each in value for path in flat(each, f"{name}[]")}
    else:
        yield name


DECLARED: Final[Mapping[str, Callable[[], Names]]] = {
    "headers": headers,
    "metrics.consumer": consumer_metrics,
    "metrics.server": server_metrics,
    "settings": settings,
    "exit_codes": exit_codes,
    "alerts": alerts,
    "health": lambda: asyncio.run(health()),
    "log.loggers": loggers,
    "log.events": log_events,
    "json": lambda: asyncio.run(json_fields()),
}

# --- the list ----------------------------------------------------------------------------------------------------


def as_lines(section: str, names: Names) -> Iterator[str]:
    """A section of the file: one text per line, so that a change is one line of a diff."""
    yield f"[{section}]"
    for key, value in names.items():
        shown = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else to_toml(key)
        if isinstance(value, list) and value and not section.startswith("metrics"):
            yield from (f"{shown} = [", *(f"    {to_toml(each)}," for each in value), "]")
        else:
            yield f"{shown} = {to_toml(value)}"


def write() -> None:
    parts = ["# Names that users build on. Update: python -m tests.test_names --write"]
    parts += ["\n".join(as_lines(section, names())) for section, names in DECLARED.items()]
    FILE.write_text("\n\n".join(parts) + "\n")


@pytest.mark.parametrize("section", DECLARED)
def test_names_are_those_of_the_list(section: str) -> None:
    listed: Any = tomllib.loads(FILE.read_text())
    for part in section.split("."):
        listed = listed.get(part, {})
    before, now = as_lines(section, listed), as_lines(section, DECLARED[section]())
    changes = list(difflib.unified_diff([*before], [*now], "names.toml", "code", n=0, lineterm=""))
    assert not changes, "\n".join(
        [
            "names that users build on have changed:",
            *changes,
            "if that is intended, run: python -m tests.test_names --write, and add a line to CHANGELOG.md",
        ]
    )


# --- texts, thresholds and defaults that specifications fix --------------------------------------------------------


def test_text_of_a_message_that_needs_a_person_is_fixed() -> None:
    text = RULE["dead-letter"].told("orders", 3, 0, "orders.dlq", "Manual intervention required.")
    assert text == "1 or more messages found in Dead-Letter Queue orders.dlq. Manual intervention required."


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        # depth of a dead-letter queue, and its share of all messages
        ("dlq-depth", 100, None),
        ("dlq-depth", 101, WARNING),
        ("dlq-depth", 1000, WARNING),
        ("dlq-depth", 1001, CRITICAL),
        ("dead-letter-ratio", 0.10, None),
        ("dead-letter-ratio", 0.1001, CRITICAL),
        # any message in a dead-letter queue, and a probe that fails
        ("dead-letter", 0, None),
        ("dead-letter", 1, CRITICAL),
        ("probe-failed", 0, None),
        ("probe-failed", 1, CRITICAL),
        # 1 % and 5 % of the throughput, one error type, a dead letter that could not be published
        ("recent-dead-letter-ratio", 0.01, None),
        ("recent-dead-letter-ratio", 0.0101, WARNING),
        ("recent-dead-letter-ratio", 0.05, WARNING),
        ("recent-dead-letter-ratio", 0.0501, CRITICAL),
        ("error-spike", 5, None),
        ("error-spike", 5.1, WARNING),
        ("dead-letter-publish-failed", 0, None),
        ("dead-letter-publish-failed", 1, CRITICAL),
        # 100 letters in a minute, 10,000 open ones, less than half of them resolved
        ("ingestion-rate", 100, None),
        ("ingestion-rate", 101, WARNING),
        ("backlog", 10_000, None),
        ("backlog", 10_001, CRITICAL),
        ("resolution-rate", 0.5, None),
        ("resolution-rate", 0.49, WARNING),
        # a minute without a collector
        ("dlq-uncollected", 60, None),
        ("dlq-uncollected", 61, CRITICAL),
    ],
)
def test_threshold_is_fixed(name: str, value: float, severity: Severity | None) -> None:
    judged = RULE[name].judged(value)
    assert (judged and judged[0]) == severity


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dead-letter-ratio", "orders: 12 % of messages were dead-lettered (threshold 10 %)"),
        ("recent-dead-letter-ratio", "orders: 12 % of recent messages were dead-lettered (threshold 5 %)"),
    ],
)
def test_ratio_is_reported_in_percent(name: str, text: str) -> None:
    judged = RULE[name].judged(0.12)
    assert judged is not None
    assert RULE[name].told("orders", 0.12, judged[1]) == text


def test_severities_are_fixed() -> None:
    assert [*Severity] == ["warning", "critical"]
    assert RULE["dead-letter"].judged(1) == (CRITICAL, 0)


@pytest.mark.parametrize(
    "line",
    [
        'messages_deadlettered_total{queue_name="orders",reason="PoisonMessage"} 1.0',
        "dlq_messages_total 1.0",
        'dlq_messages_by_error_type{error_type="ValueError"} 1.0',
        'dlq_messages_by_topic{original_topic="orders"} 1.0',
        "dlq_publish_failures_total 0.0",
    ],
)
def test_name_of_a_metric_is_fixed(line: str) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.dead_lettered(an_event(reason="PoisonMessage", failure=a_failure(error_type="ValueError")))
    assert line in generate_latest(registry).decode().splitlines()


def test_reasons_and_states_are_fixed() -> None:
    assert {*Reason} >= {"PoisonMessage", "NonRetryableError", "MaxDeliveryCountExceeded"}
    assert [*LetterState] == [
        "dlq_pending",
        "dlq_processing",
        "dlq_manual",
        "dlq_resolved",
        "dlq_failed",
        "dlq_archived",
    ]


def test_defaults_are_fixed() -> None:
    settings = read({})
    assert settings.alerts.probe_interval == timedelta(seconds=60)
    assert (settings.recover.max_cpu, settings.recover.max_memory) == (0.80, 0.85)
    assert settings.recover.max_redrives == 5
    days = (settings.retention.resolved, settings.retention.failed, settings.retention.archived)
    assert days == (timedelta(days=30), timedelta(days=90), timedelta(days=365))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_names --write")
    write()
