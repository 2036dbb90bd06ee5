"""Sample records of every system, made of what its documentation says, and what is read of each.

`vectors/NAME.toml` holds the records of one system: where each was found, its headers in their order, what it tells
(nothing else may be told) and which headers are kept. Text stands for itself, `{ hex }` for bytes, `{ null }` for a
header without a value, `{ table }` for a table. Every record is read as Kafka carries it, where text is bytes, and as
AMQP does, where it is text; `only_as` says where just one of them is meant.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.formats.systems import SYSTEMS
from redrive.formats.told import Told, opened, read, stripped
from redrive.letters import FailureKind, Headers, HeaderValue, Message, TypedValue
from redrive.letters.convention import RESERVED

VECTORS = Path(__file__).parent / "vectors"
WIRES: dict[str, Callable[[str], HeaderValue]] = {
    "bytes": lambda text: text.encode(),
    "text": lambda text: text,
    "typed": lambda text: TypedValue("longstr", text.encode()),
}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    queue: str
    headers: list[list[Any]]
    kept: list[str]
    tells: dict[str, Any]
    body: str = '{"order": 17}'
    expiration: str | None = None
    original: dict[str, str] = {}
    only_as: str | None = None

    def message(self, wire: str) -> Message:
        headers = Headers((name, as_carried(value, wire)) for name, value in self.headers)
        return Message(body=self.body.encode(), key=b"outer", headers=headers)

    @property
    def told(self) -> Told:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.tells.items()
        }
        if "kind" in values:
            values["kind"] = FailureKind(values["kind"])
        return Told(**values)


def as_carried(value: Any, wire: str) -> HeaderValue:
    match value:
        case str():
            return WIRES[wire](value)
        case {"hex": digits}:
            return bytes.fromhex(digits)
        case {"null": True}:
            return None
        case {"table": table}:
            return Headers((name, as_carried(item, wire)) for name, item in table.items())
        case list():
            return tuple(as_carried(item, wire) for item in value)
    return value  # type: ignore[no-any-return]  # a number or a time


def records(system: str) -> list[Record]:
    table = tomllib.loads((VECTORS / f"{system}.toml").read_text("utf-8"))
    return msgspec.convert(table["records"], list[Record])


NAMES = sorted(file.stem for file in VECTORS.glob("*.toml"))
CASES = [
    pytest.param(record, wire, id=f"{system}: {record.about} ({wire})")
    for system in NAMES
    for record in records(system)
    for wire in WIRES
    if record.only_as in (None, wire)
]


def test_every_system_has_its_records() -> None:
    assert set(NAMES) == {row.name for row in SYSTEMS} | set(RESERVED) - {"redrive", "unknown"}


@pytest.mark.parametrize("row", SYSTEMS, ids=lambda row: row.name)
def test_every_fact_of_a_row_is_in_one_of_its_records(row: Any) -> None:
    told = {
        fact
        for record in records(row.name)
        if record.tells["convention"] == row.name
        for fact in record.tells
    }

    assert set(row.fields) <= told


@pytest.mark.parametrize(("record", "wire"), CASES)
def test_a_record_tells_what_its_system_documents_and_no_more(record: Record, wire: str) -> None:
    told = read(record.message(wire), record.queue)

    assert msgspec.structs.replace(told, deaths=()) == record.told


@pytest.mark.parametrize(("record", "wire"), CASES)
def test_a_record_is_stripped_to_the_message_that_died(record: Record, wire: str) -> None:
    message = record.message(wire)
    left = stripped(message)

    assert [name for name, _ in left.headers] == record.kept
    assert all(pair in message.headers for pair in left.headers)  # not one of them is changed
    assert left.body == record.original.get("body", record.body).encode()
    assert left.key == record.original.get("key", "outer").encode()
    assert left.sent_at == record.tells.get("sent_at")
    assert left.properties.get("expiration") == record.expiration
    assert opened(message, record.queue) == (read(message, record.queue), left)


@pytest.mark.parametrize(("record", "wire"), CASES)
def test_any_header_of_a_record_may_be_damaged_and_the_others_still_tell(record: Record, wire: str) -> None:
    whole = record.message(wire)
    for place, (name, _) in enumerate(whole.headers):
        damage: tuple[str, HeaderValue] = (name, TypedValue("odd", (b"\xff", 2**70)))
        headers = Headers([*whole.headers[:place], damage, *whole.headers[place + 1 :]])
        message = msgspec.structs.replace(whole, headers=headers)

        told, left = opened(message, record.queue)

        before = msgspec.structs.asdict(read(whole, record.queue))
        for fact, value in msgspec.structs.asdict(told).items():
            spread = fact in ("unreadable", "deaths", "convention", "kind")
            assert spread or value is None or value == before[fact] or name in told.unreadable, fact
        if name in told.unreadable:
            assert name in left.headers.names()
