import shlex
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redrive.letters.letter import storable
from redrive.stores.query import Condition, Op, parse_query
from redrive.watch.alerts.alert import Severity
from redrive.watch.alerts.incidents import Finding, begun
from redrive.watch.alerts.links import see_more
from redrive.watch.alerts.rules import MEASURES
from tests.unit.watch.alerts.examples import BAD

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def command(measure: str, subject: str = "orders", broker: str | None = "shop", **fields: Any) -> list[str]:
    """The command for an incident, as a shell reads it."""
    found = Finding(severity=Severity.CRITICAL, badness=1.0, text="text", component="RabbitMQ", **fields)
    return shlex.split(see_more(measure, begun("i-1", "rule", subject, found, NOON, broker=broker)))


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_has_a_command_that_can_be_run(measure: str) -> None:
    program, *words = command(measure)
    assert program == "redrive"
    if words[0] == "list":
        assert parse_query(words[1], now=NOON).conditions
    else:
        assert words in (["doctor"], ["stats"])


def test_one_letter_is_shown_and_several_are_listed() -> None:
    assert command("open_letters", letter_id="01HQ") == ["redrive", "show", "01HQ"]
    assert command("open_letters", group="f00d") == [
        "redrive",
        "list",
        "broker:shop source:orders state:pending,processing,manual group:f00d",
    ]


@given(st.sampled_from(BAD).filter(lambda text: len(text) < 1000) | st.text(max_size=50))
def test_filter_finds_the_subject_whatever_its_name(subject: str) -> None:
    [_, _, text] = command("unconfirmed", subject)
    assert parse_query(text, now=NOON).conditions == (
        Condition("source", Op.IS, (storable(subject),)),
        Condition("unconfirmed", Op.IS, (1,)),
    )
