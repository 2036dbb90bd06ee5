"""Tags and priority of a letter come from the producer, the handler and what is wrong with the message."""

from datetime import UTC, datetime
from typing import Any

import pytest

from redrive.collect.reading import NOT_UNDERSTOOD, Reader
from redrive.consume import Context
from redrive.errors import SettingsError
from redrive.formats import own
from redrive.formats.told import opened
from redrive.letters import DeadLetter, Headers, Message, Origin, TypedValue
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, StrategyOptions
from redrive.testing.factories import a_letter
from tests.unit.recover.cycle import World

NOW = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)


def collected(headers: Headers, **fields: Any) -> DeadLetter:
    """The letter of a message with these headers in a dead-letter queue."""
    found = opened(Message(body=b"x", headers=headers, **fields), "orders.dlq")
    reader = Reader(Classifier(), Redactor(), StrategyOptions())
    place = Origin(transport="rabbitmq", source="orders.dlq")
    return reader.letter(found.message, found.told, found=place, key="k", now=NOW)


def died(headers: dict[str, Any], **letter: Any) -> Headers:
    """These headers, and those of a dead letter of redrive."""
    return Headers.of([*Headers(headers), *own.write(a_letter(**letter), 1)])


@pytest.mark.parametrize(
    "value",
    ["vip, eu", "vip,eu,vip,, ", b"vip,eu", ["vip", "eu"], TypedValue("S", b"vip,eu")],
    ids=["text", "repeated", "bytes", "list", "typed"],
)
def test_tags_of_the_producer_are_read(value: Any) -> None:
    assert collected(died({"redrive-tags": value})).tags == ("vip", "eu")


def test_header_of_the_producer_stays_on_the_message() -> None:
    letter = collected(died({"redrive-tags": "vip", "redrive-priority": 3}, tags=("late",), priority=7))
    assert letter.message.headers == Headers({"redrive-tags": "vip", "redrive-priority": 3})
    assert letter.tags == ("late", "vip")
    assert letter.priority == 7, "the handler knows best"


@pytest.mark.parametrize(
    ("value", "priority"), [(5, 5), ("-3", -3), (b"8", 8), (2**40, 0), ("high", 0), (True, 0), ([1], 0)]
)
def test_priority_of_the_producer_is_read_if_it_is_one(value: Any, priority: int) -> None:
    assert collected(died({"redrive-priority": value})).priority == priority


def test_priority_of_the_message_is_the_default() -> None:
    assert collected(died({}), properties={"priority": 4}).priority == 4


def test_tags_that_are_no_tags_are_left_out() -> None:
    letter = collected(died({"redrive-tags": "x" * 65 + ",ok," + ",".join(f"t{n}" for n in range(50))}))
    assert letter.tags[:2] == ("ok", "t0")
    assert len(letter.tags) == 20
    assert collected(died({"redrive-tags": 7})).tags == ()


def test_letter_in_an_unknown_format_keeps_its_own_tag_first() -> None:
    assert collected(Headers({"redrive-tags": "vip"})).tags == (NOT_UNDERSTOOD, "vip")


async def test_handler_tags_its_dead_letter() -> None:
    async def handler(_body: bytes, context: Context) -> None:
        context.tag("vip", "eu")
        context.tag("vip")
        context.set_priority(9)
        raise ConnectionResetError

    world = World()
    await world.open()
    async with world.consuming(handler):
        await world.send(b"one")
        await world.collect()
    letter = await world.the_letter()
    assert (letter.tags, letter.priority) == (("vip", "eu"), 9)
    (whole,) = await world.store.load([letter.id])
    assert whole.message.headers == Headers()


@pytest.mark.parametrize("tag", ["", "  ", "a,b", "x" * 65])
def test_handler_cannot_set_a_tag_that_is_none(tag: str) -> None:
    context = Context(None, "orders", 1)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="a tag must"):
        context.tag(tag)
    with pytest.raises(SettingsError, match="a priority must"):
        context.set_priority(2**40)
    assert (context.tags, context.priority) == ((), 0)
