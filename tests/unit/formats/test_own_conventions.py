"""A system of one's own is a table in the settings: checked whole, heard first, and collected like any other."""

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from redrive.cli.root import cli
from redrive.errors import SettingsError
from redrive.formats.conventions import BUILT_IN, with_own
from redrive.formats.told import opened, read as read_message
from redrive.letters import FailureKind, Headers, HeaderValue, Message
from redrive.letters.convention import KEYS, Convention, conventions_from_config
from redrive.serve.crew import Crew
from redrive.settings import load, read
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock
from redrive.transports import Publication, Source, Target
from redrive.transports.memory import MemoryTransport

SHOP = """
[broker]
dead_letter_queues = ["orders-dead"]

[[conventions]]
name = "shop"
recognised_by = ["shop-error", "shop-why"]
adds = ["shop-*"]
queue_suffixes = ["-dead"]
kinds = { "order closed" = "business" }

[conventions.fields]
reason = "shop-why"
error_text = ["shop-error", "shop-why"]
failed_at = { header = "shop-at", form = "unix-ms" }
partition = { header = ["shop-partition", "partition"], form = "int32-be" }
"""
DEAD: dict[str, HeaderValue] = {
    "trace": b"t-1",
    "shop-error": "Größe 17".encode(),
    "shop-why": b"order closed",
    "shop-at": b"1770807600250",
    "partition": b"\x00\x00\x00\x07",
}
AT = datetime(2026, 2, 11, 11, 0, 0, 250000, tzinfo=UTC)


def rows(text: str = SHOP) -> tuple[Convention, ...]:
    return read(tomllib.loads(text)).conventions


def test_a_table_in_the_settings_is_a_convention() -> None:
    assert rows() == (
        Convention(
            name="shop",
            recognised_by=("shop-error", "shop-why"),
            fields={
                "reason": "shop-why",
                "error_text": ("shop-error", "shop-why"),
                "failed_at": "shop-at",
                "partition": ("shop-partition", "partition"),
            },
            forms={"failed_at": "unix-ms", "partition": "int32-be"},
            adds=("shop-*",),
            queue_suffixes=("-dead",),
            kinds={"order closed": "business"},
        ),
    )


def test_a_message_is_read_by_it() -> None:
    message = Message(body=b"x", headers=Headers(DEAD))

    told, left = opened(message, "orders-dead", with_own(rows()))

    assert (told.convention, told.reason, told.error_text) == ("shop", "order closed", "Größe 17")
    assert (told.kind, told.failed_at, told.source, told.partition) == (FailureKind.BUSINESS, AT, "orders", 7)
    assert left.headers == Headers({"trace": b"t-1", "partition": b"\x00\x00\x00\x07"})
    assert read_message(message, "orders-dead").convention == "unknown"


async def test_what_a_server_collects_is_read_by_it(tmp_path: Path) -> None:
    clock = ManualClock()
    store, transport = MemoryStore(clock), MemoryTransport(clock)
    crew = Crew(read(tomllib.loads(SHOP)), store, transport, clock, lambda _what, _error: None)
    await transport.open()
    await transport.ensure_queue("orders-dead")
    dead = Message(body=b"\x00", key=b"k", headers=Headers(DEAD))
    assert not any(await transport.publish([Publication(dead, Target(name="orders-dead"))]))
    receiver = await transport.receiver(Source(name="orders-dead", window=1))
    (delivery,) = await receiver.receive()

    await crew.collectors["orders-dead"].keep([delivery])

    (head,) = (await store.page()).heads
    (kept,) = await store.load([head.id])
    assert (kept.source, kept.reason, kept.kind, kept.failure.at) == (
        "orders",
        "order closed",
        FailureKind.BUSINESS,
        AT,
    )
    assert (kept.origin.partition, kept.origin.dead_letter_source) == (7, "orders-dead")
    assert (kept.message.key, kept.message.headers.get("trace")) == (b"k", b"t-1")
    assert not kept.tags
    await receiver.close()
    await transport.close()


def test_it_is_heard_before_the_built_in_ones_and_may_stand_for_one() -> None:
    ours = Convention(name="ours", recognised_by=("MT-Reason",), fields={"error_text": "MT-Reason"})
    another = Convention(name="masstransit", recognised_by=("MT-Other",), fields={"error_text": "MT-Other"})
    message = Message(body=b"", headers=Headers({"MT-Reason": "fault", "MT-Other": "x"}))

    assert read_message(message, "q", with_own([ours])).convention == "ours"
    assert read_message(message, "q", with_own([another])).error_text == "x"
    assert [row.convention.name for row in with_own([another]).rows].count("masstransit") == 1
    assert with_own([]) is BUILT_IN


def test_it_may_stand_in_a_body() -> None:
    in_body = rows(
        '[[conventions]]\nname="b"\nrecognised_by="error.code"\nin_body=true\nfields.reason="error.code"'
    )
    message = Message(body=b'{"error": {"code": "E17"}}')

    assert read_message(message, "q", with_own(in_body)).reason == "E17"
    assert read_message(Message(body=b'{"error": 7}'), "q", with_own(in_body)).convention == "unknown"


GOOD: dict[str, Any] = {"name": "shop", "recognised_by": ["e"], "fields": {"reason": "e"}}


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ({}, "conventions: write a list, one [[conventions]] table for each system"),
        ([7], "convention 1: write it as a table with name, recognised_by and fields"),
        ([{}], "convention 1: needs a 'name', as text"),
        ([GOOD | {"name": " "}], "convention 1: needs a 'name', as text"),
        ([GOOD, GOOD], "convention 'shop': is defined twice; write one table for it"),
        ([GOOD | {"name": "redrive"}],
         "convention 'redrive': the name is reserved; choose a name other than redrive, "),
        ([GOOD | {"recognized_by": "e"}],
         "convention 'shop': unknown key 'recognized_by'; did you mean 'recognised_by'?"),
        ([{"name": "shop", "recognised_by": "e"}], "convention 'shop': missing 'fields': Table of facts"),
        ([{"name": "shop", "fields": {"reason": "e"}}], "convention 'shop': missing 'recognised_by': Headers"),
        ([GOOD | {"recognised_by": [""]}], "convention 'shop': 'recognised_by' must be a non-empty string"),
        ([GOOD | {"recognised_by": [7]}], "convention 'shop': 'recognised_by' must be a non-empty string"),
        ([GOOD | {"needs_all": 1}], "convention 'shop': 'needs_all' must be true or false, not 1"),
        ([GOOD | {"fields": "e"}], "convention 'shop': invalid 'fields': Table of facts"),
        ([GOOD | {"fields": {"reson": "e"}}], "convention 'shop': unknown fact 'reson'; did you mean 'reason'?"),
        ([GOOD | {"fields": {"reason": 7}}], "convention 'shop': 'fields.reason' must be a non-empty string"),
        (
            [GOOD | {"fields": {"reason": {"form": "text"}}}],
            "convention 'shop': 'fields.reason' must be a non-empty string",
        ),
        ([GOOD | {"fields": {"reason": {"header": "e", "form": 7}}}],
         "convention 'shop': 'fields.reason' must be a string, not 7"),
        ([GOOD | {"fields": {"reason": {"header": "e", "type": "text"}}}],
         "convention 'shop': unknown key 'type' in fields.reason; use header and form"),
        ([GOOD | {"fields": {"failed_at": {"header": "e", "form": "unix_ms"}}}],
         "convention 'shop': unknown form 'unix_ms'; did you mean 'unix-ms'?"),
        ([GOOD | {"fields": {"failed_at": {"header": "e", "form": "text"}}}],
         "convention 'shop': 'failed_at' must be a time, but form 'text' gives another type; use one of time, "),
        ([GOOD | {"fields": {"offset": {"header": "e", "form": "time"}}}],
         "convention 'shop': 'offset' must be a number, but form 'time' gives another type; use one of count, "),
        ([GOOD | {"kinds": {"x": "bussiness"}}],
         "convention 'shop': unknown kind 'bussiness'; did you mean 'business'?"),
        ([GOOD | {"kinds": {"x": 7}}], "convention 'shop': 'kinds.x' must be a string, not 7"),
        ([GOOD | {"adds": ["*"]}],
         "convention 'shop': 'redrive-id' is a header of redrive, so 'adds' cannot remove it"),
        ([GOOD | {"in_body": True, "adds": "x"}], "convention 'shop': 'adds' cannot be used with a JSON body"),
        ([GOOD | {"name": f"row {number}"} for number in range(101)],
         "conventions: 101 tables exceed the limit of 100"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(tables: Any, line: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read({"conventions": tables})

    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_mistake_in_a_file_is_told_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_text(SHOP.replace("unix-ms", "unix"))

    with pytest.raises(
        SettingsError, match=r"redrive\.toml: convention 'shop': unknown form 'unix'; did you mean"
    ):
        load(file)


def test_every_key_can_be_written() -> None:
    (row,) = conventions_from_config(
        [
            GOOD
            | {
                "needs_all": True,
                "adds": ["e"],
                "queue_suffixes": "-dead",
                "kinds": {"x": "expired"},
                "in_body": False,
            }
        ]
    )

    assert set(KEYS) == set(Convention.__struct_fields__) - {"forms"}
    assert (row.needs_all, row.adds, row.queue_suffixes, row.kinds) == (
        True,
        ("e",),
        ("-dead",),
        {"x": "expired"},
    )


def test_what_is_shown_of_it_can_be_kept_as_a_settings_file(tmp_path: Path) -> None:
    file, shown = tmp_path / "first.toml", tmp_path / "shown.toml"
    file.write_text(SHOP, "utf-8")

    result = CliRunner().invoke(cli, ["--config", str(file), "config", "show"])
    shown.write_text(result.output, "utf-8")

    assert load(shown).conventions == load(file).conventions
