"""Does the embedded broker say what RabbitMQ says, word for word?

The one rule: one script, two brokers, equal records. What may differ stands in `differences.py` and nowhere else. Each
script is compared with each version of RabbitMQ, the newest first. Where the embedded broker cannot be started, or
`REDRIVE_DIFFERENTIAL_SELF_CHECK` is set, each script is played twice on RabbitMQ: one that does not give the same
record twice is no use for comparing.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.differential.client import NeedsManagementError
from tests.differential.differences import DIFFERENCES, Difference, cited_by, is_compared, rendered
from tests.differential.play import play
from tests.differential.record import Record, difference, lines
from tests.differential.scripts import all_scripts
from tests.services import RABBITMQS, EmbeddedServer, Missing, RabbitMQ, Run, look_for

SELF_CHECK = "REDRIVE_DIFFERENTIAL_SELF_CHECK"
SCRIPTS = all_scripts()
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rabbitmq-differences.md"


def _cases() -> Iterator[ParameterSet]:
    for generation, server in RABBITMQS.items():
        for name, script in SCRIPTS.items():
            if is_compared(script, generation):
                mark = pytest.mark.service(server.name)
                yield pytest.param(name, generation, id=f"{name}-{generation}", marks=mark)


@pytest.mark.parametrize(("name", "generation"), list(_cases()))
def test_both_brokers_say_the_same(name: str, generation: str, service_run: Run) -> None:
    script = SCRIPTS[name]
    rabbitmq = service_run.address(RABBITMQS[generation], os.environ)
    ours = _ours(service_run)
    cited = cited_by(script, generation)
    if any(row.forgive is None for row in cited):
        if ours is None:
            pytest.skip("RabbitMQ does something else here, and the embedded broker is not available")
        record = _play(script, ours, checked=True)
        assert not _complaints(record), "\n".join(lines(record))
        return

    expected = _play(script, rabbitmq)
    found = _play(script, ours or rabbitmq, checked=ours is not None)

    assert not _complaints(expected), "\n".join(lines(expected))
    assert not _demands(found), "\n".join(lines(found))
    names = (f"RabbitMQ {generation}", "RabbitMQ once more" if ours is None else "embedded")
    differing = difference(_forgiven(expected, cited), _forgiven(found, cited), names)
    if differing and rabbitmq.is_newer_than_known:
        version = ".".join(map(str, rabbitmq.version))
        pytest.xfail(f"RabbitMQ {version} is newer than the tables, and differs:\n{differing}")
    assert not differing, f"\n{differing}"


def test_every_difference_is_cited() -> None:
    cited = {name for script in SCRIPTS.values() for name in getattr(script, "differs", ())}

    assert cited == set(DIFFERENCES)


def test_the_page_about_differences_is_up_to_date() -> None:
    page = PAGE.read_text()

    for table in rendered():
        assert table in page, f"run: python -m tests.differential --write-page\n{table}"


def _ours(run: Run) -> RabbitMQ | None:
    """The embedded broker; None where RabbitMQ is to be compared with itself."""
    if os.environ.get(SELF_CHECK):
        return None
    found = look_for(EmbeddedServer, os.environ)
    if isinstance(found, Missing) and not found.required:
        return None
    return run.address(EmbeddedServer, os.environ)


def _play(script: Callable[[Any], None], broker: RabbitMQ, *, checked: bool = False) -> Record:
    try:
        return play(script, broker, checked=checked)
    except NeedsManagementError as error:
        pytest.skip(str(error))


def _forgiven(record: Record, cited: Sequence[Difference]) -> Record:
    for row in cited:
        if row.forgive is not None:
            record = row.forgive(record)
    return record


def _demands(record: Record) -> list[str]:
    return [str(entry.got) for entry in record if entry.step == "demand"]


def _complaints(record: Record) -> list[str]:
    """What must not be in the record of a broker that has nobody to be compared with."""
    breaches = ("waited in vain", "the broker broke the protocol")
    return [*_demands(record), *(str(entry.got) for entry in record if entry.step in breaches)]
