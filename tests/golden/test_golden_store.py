"""Stores written by earlier versions are read completely: letters, change log, operations and alerts."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.stores.base import Store
from redrive.stores.changes import Prioritise
from redrive.stores.postgres import PostgresStore
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock
from tests.golden.plain import check, differences, read_json, unpacked
from tests.golden.reading import store_content, store_future
from tests.services import Postgres

V1 = Path(__file__).parent / "v1"


@pytest.fixture(scope="module")
def recorded() -> Any:
    return read_json(V1 / "store.json.zst")


@pytest.fixture
def clock(recorded: Any) -> ManualClock:
    """The time at which the store was written."""
    return ManualClock(datetime.fromisoformat(recorded["written_at"]))


@pytest.fixture
async def sqlite(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    path = tmp_path / "letters.db"
    path.write_bytes(unpacked((V1 / "store.sqlite.zst").read_bytes()))
    store = await SqliteStore.open(path, clock=clock)
    yield store
    await store.close()


@pytest.fixture
async def postgres_store(each_postgres: Postgres, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    await asyncio.to_thread(
        subprocess.run,
        [each_postgres.program, each_postgres.url, "-Xq", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null"],
        input=unpacked((V1 / "store.postgres.sql.zst").read_bytes()),
        check=True,
    )
    store = await PostgresStore.open(each_postgres.url, clock=clock)
    yield store
    await store.close()


async def test_sqlite_store_of_version_1_is_read_completely(
    sqlite: SqliteStore, clock: ManualClock, recorded: Any
) -> None:
    await _check_content(sqlite, clock, recorded)


async def test_postgres_store_of_version_1_is_read_completely(
    postgres_store: PostgresStore, clock: ManualClock, recorded: Any
) -> None:
    await _check_content(postgres_store, clock, recorded)


async def test_sqlite_store_of_version_1_is_continued(
    sqlite: SqliteStore, clock: ManualClock, recorded: Any
) -> None:
    check(recorded["future"], await store_future(sqlite, clock))


async def test_postgres_store_of_version_1_is_continued(
    postgres_store: PostgresStore, clock: ManualClock, recorded: Any
) -> None:
    check(recorded["future"], await store_future(postgres_store, clock))


async def _check_content(store: Store, clock: ManualClock, recorded: Any) -> None:
    check(recorded["content"], await store_content(store, clock.now()))
    assert await store.damage() is None


def test_recording_has_every_state_and_shape(recorded: Any) -> None:
    """What the recording is for; a recording that lacks one of these proves less than it should."""
    letters = recorded["content"]["letters"]
    assert len(letters) == 1000
    states = {letter["state"] for letter in letters}
    assert states == {
        f"dlq_{name}" for name in ("pending", "processing", "manual", "resolved", "failed", "archived")
    }
    assert {letter["transport"] for letter in letters} == {"rabbitmq", "kafka", "memory"}
    assert {letter["presumed"] for letter in letters} == {True, False}
    for field in (
        "message_id",
        "locked_by",
        "lease_until",
        "sent_at",
        "derived_from",
        "system_state",
        "assignee",
    ):
        assert {letter[field] is None for letter in letters} == {True, False}, field
    for part, fields in {
        "origin": ("exchange", "routing_key", "partition", "offset", "group", "broker", "dead_letter_source"),
        "message": ("body", "key", "content_type", "content_encoding", "correlation_id", "sent_at"),
        "failure": ("stack", "rule", "retry_after", "redacted"),
    }.items():
        for field in fields:
            assert {letter[part][field] is None for letter in letters} == {True, False}, field
    assert any(len(letter["failure"]["text"]) > 4000 for letter in letters)
    assert any(letter["attempts"] for letter in letters)
    assert any(letter["notes"] for letter in letters)
    assert any(letter["key"].endswith("#2") for letter in letters)  # a twin
    assert {one["operation"]["state"] for one in recorded["content"]["operations"]} == {
        "running", "stopped", "cancelled", "done",
    }  # fmt: skip
    document = recorded["content"]["alerts"]["document"]
    assert document["unsent"]
    assert document["book"]["over"]


async def test_comparison_fails_when_one_field_of_one_letter_changes(
    sqlite: SqliteStore, clock: ManualClock, recorded: Any
) -> None:
    letter = recorded["content"]["letters"][500]["id"]
    await sqlite.apply(Prioritise(77), [letter], by="test")
    found = list(
        differences(recorded["content"]["letters"], (await store_content(sqlite, clock.now()))["letters"])
    )
    assert [line.partition(":")[0] for line in found] == ["[500].priority", "[500].updated_at.time"]


def test_comparison_fails_when_a_field_is_lost_or_has_another_type(recorded: Any) -> None:
    before = recorded["content"]["letters"][0]
    for field in before:
        now = {name: value for name, value in before.items() if name != field}
        assert len(list(differences(before, now))) == 1, field
        assert list(differences(before, {**before, field: {"other": 1}})), field
    assert not list(differences(before, {**before, "added_later": 1}))
    assert list(differences([1, 2], [1, 2, 3]))
    assert list(differences(1, True))
    assert list(differences(1, 1.0))


def test_recorded_alerts_are_decoded_strictly(recorded: Any) -> None:
    """The alert document is one blob, in which a lost field becomes a default: the recorded values must differ."""
    current = recorded["content"]["alerts"]["document"]["book"]["current"]["map"]
    incidents = [incident for _, incident in current]
    assert any(incident["acknowledged_by"] for incident in incidents)
    assert any(incident["found"]["correlation_ids"] or incident["escalations"] for incident in incidents)
    assert any(incident["raised_at"] is None for incident in incidents)  # suspected
    assert msgspec.json.encode(incidents)
