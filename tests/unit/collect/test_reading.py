"""What a consumer has found out about a failure is not found out a second time, and twins are looked for by name."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.collect.reading import Reader
from redrive.formats import own, told as formats
from redrive.letters import DeadLetter, FailureKind, Headers, HeaderValue, Message, Origin, SystemState
from redrive.letters.failure import fingerprint
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, StrategyOptions
from redrive.stores.base import Page
from redrive.stores.cold import pack_content, unpack_content
from redrive.stores.query import EVERYTHING, Query
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.search import SEARCH
from redrive.testing import ManualClock
from redrive.testing.factories import a_failure, a_letter
from redrive.transports import Publication, Target
from tests.unit.recover.cycle import World

FOUND = Origin(transport="rabbitmq", source="orders.dlq")
NOW = ManualClock().now()


def read(headers: dict[str, HeaderValue], classifier: Classifier | None = None) -> DeadLetter:
    message = Message(body=b"x", headers=Headers(headers))
    reader = Reader(classifier or Classifier(), Redactor(), StrategyOptions())
    told = formats.read(message, FOUND.source)
    return reader.letter(formats.stripped(message), told, found=FOUND, key="k", now=NOW)


def dead(**failure: Any) -> dict[str, HeaderValue]:
    return dict(own.write(a_letter(failure=a_failure(at=NOW - timedelta(minutes=1), **failure)), 3))


def test_what_the_same_redactor_has_cleaned_is_not_cleaned_again() -> None:
    failure = {"text": "password=hunter2hunter2", "stack": "ValueError: password=hunter2hunter2"}
    ours = read(dead(**failure, redacted=Redactor().name))
    assert "hunter2" in ours.failure.text, "whoever says so must have cleaned it"
    for other in (
        None,
        "",
        Redactor(disabled=["card"]).name,
        Redactor(terms=["shop"]).name,
        Redactor("text").name,
    ):
        letter = read(dead(**failure, redacted=other))
        assert "hunter2" not in f"{letter.failure.text}{letter.failure.stack}{letter.error_text}"
        assert letter.failure.redacted == Redactor().name


@pytest.mark.parametrize(
    "carry", [lambda value: value, lambda value: str(value).encode()], ids=["amqp", "kafka"]
)
def test_how_busy_the_machine_was_can_be_stored(carry: Callable[[HeaderValue], HeaderValue]) -> None:
    """Whatever form the headers came in, a store gets plain numbers."""
    written = own.write(a_letter(system_state=SystemState(0.25, 0.5)), 3)
    letter = read({name: carry(value) for name, value in written})
    assert unpack_content(pack_content(letter))["system_state"] == SystemState(0.25, 0.5)


def test_the_group_is_the_one_that_the_consumer_found_even_where_a_stack_was_cut() -> None:
    frames = 'Traceback:\n  File "/app/orders.py", line 3, in ship\n'
    long = frames + "".join(f'  File "/app/site-packages/lib.py", line {n}, in call\n' for n in range(2000))
    headers = dead(stack=long)
    letter = read(headers)
    assert letter.group == fingerprint("TimeoutError", letter.error_text, long)
    assert letter.group != letter.failure.fingerprint  # what is left of the stack tells another story


@pytest.mark.parametrize("group", ["", "not a fingerprint", "0123456789ABCDEF", "0" * 17, 7])
def test_a_group_that_is_no_fingerprint_is_made_anew(group: HeaderValue) -> None:
    letter = read({**dead(), "redrive-failure-group": group})
    assert letter.group == letter.failure.fingerprint


def test_what_the_consumer_decided_is_not_decided_again() -> None:
    headers = dead(kind=FailureKind.RATE_LIMITED, retryable=False, rule="the shop's own")
    letter = read(headers)  # by its words it would be a timeout, and worth a retry
    assert (letter.kind, letter.failure.retryable, letter.failure.rule) == (
        FailureKind.RATE_LIMITED,
        False,
        "the shop's own",
    )


@pytest.mark.parametrize("missing", ["redrive-failure-kind", "redrive-retryable", "redrive-error-rule"])
def test_what_is_not_told_is_found_by_the_words(missing: str) -> None:
    headers = dead(kind=FailureKind.TIMEOUT, retryable=False, rule="text:timeout")
    del headers[missing]
    letter = read(headers)
    assert letter.kind is FailureKind.TIMEOUT
    assert letter.failure.rule


def test_a_secret_in_a_reason_is_hidden_however_often_it_comes() -> None:
    headers = {**dead(), "redrive-reason": "password=hunter2"}
    assert {read(headers).reason for _ in range(3)} == {"password=[REDACTED:password]"}


class Asked(SqliteStore):
    """A store that remembers what it was asked for."""

    queries: list[Query]

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        self.queries.append(query)
        return await super().page(query, limit=limit, cursor=cursor)


async def test_twins_are_looked_up_by_the_index_of_messages(tmp_path: Path) -> None:
    """By any other, each batch would walk through all letters that are open."""
    store = await Asked.open(tmp_path / "letters.db")
    store.queries = []
    world = World(store)
    await world.open()
    letter = Publication(Message(body=b"x", message_id="m-1"), Target(name="orders.dlq"))
    assert not any(await world.transport.publish([letter]))
    await world.collect()
    (query,) = store.queries
    statement, values = SEARCH.page(query, None, 500)
    plan = await store._read(lambda db: db.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall())
    await store.close()
    assert any("letters_message" in line[-1] for line in plan)
