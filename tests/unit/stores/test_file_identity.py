"""A SQLite store whose file was removed or replaced reports nothing as durable until the file is back."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from redrive.errors import StoreReplacedError
from redrive.stores.sqlite import SqliteStore
from redrive.testing import a_letter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "redrive.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.close()


def remove_database(path: Path) -> Callable[[], object]:
    path.rename(path.with_name("moved"))
    return lambda: path.with_name("moved").rename(path)


def remove_log(path: Path) -> Callable[[], object]:
    return remove_database(path.with_name("redrive.db-wal"))


def remove_shared_memory(path: Path) -> Callable[[], object]:
    return remove_database(path.with_name("redrive.db-shm"))


def remove_directory(path: Path) -> Callable[[], object]:
    return remove_database(path.parent)


def replace_by_copy(path: Path) -> Callable[[], object]:
    restore = remove_database(path)
    shutil.copy(path.with_name("moved"), path)
    return restore


def replace_directory(path: Path) -> Callable[[], object]:
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.mkdir()

    def restore() -> None:
        path.parent.rmdir()
        path.parent.with_name("moved").rename(path.parent)

    return restore


@pytest.mark.parametrize(
    "damage",
    [
        remove_database,
        remove_log,
        remove_shared_memory,
        remove_directory,
        replace_by_copy,
        replace_directory,
    ],
)
async def test_write_is_refused_while_a_file_is_gone_and_accepted_when_it_is_back(
    store: SqliteStore, path: Path, damage: Callable[[Path], Callable[[], object]]
) -> None:
    assert await store.add([a_letter("before")]) == [True]
    # When a file is removed or replaced
    restore = damage(path)
    # Then neither the first write nor a later one is reported as durable
    for key in ("first", "second"):
        with pytest.raises(StoreReplacedError, match=r"was (removed|replaced) .*while it was in use"):
            await store.add([a_letter(key)])
    with pytest.raises(StoreReplacedError):
        await store.remember("name", b"body", version=0)
    # And all of it goes on when the file is back
    restore()
    assert await store.add([a_letter("after")]) == [True]
    assert await store.count() >= 2


async def test_write_is_refused_for_every_job_of_a_group(store: SqliteStore, path: Path) -> None:
    remove_database(path)
    results = await asyncio.gather(
        *(store.add([a_letter(str(number))]) for number in range(5)), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreReplacedError] * 5


async def test_reader_is_not_opened_on_another_file(path: Path) -> None:
    store = await SqliteStore.open(path)
    other = await SqliteStore.open(path.with_name("other.db"))
    await other.add([a_letter("of another store")])
    await other.close()
    path.with_name("other.db").rename(path)
    with pytest.raises(StoreReplacedError, match="replaced by another file"):
        await store.count()
    await store.close()


async def test_reader_does_not_create_the_file_that_was_removed(path: Path) -> None:
    store = await SqliteStore.open(path)
    remove_database(path)
    with pytest.raises(StoreReplacedError, match="was removed while it was in use"):
        await store.count()
    assert [each.name for each in (path.parent).glob("*.db")] == []
    await store.close()


async def test_store_behind_a_link_is_checked_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "redrive.db"
    link.symlink_to(tmp_path / "real" / "redrive.db")
    store = await SqliteStore.open(link)
    assert await store.add([a_letter("one")]) == [True]
    (tmp_path / "real" / "redrive.db-wal").rename(tmp_path / "gone")
    with pytest.raises(StoreReplacedError, match=r"redrive\.db-wal was removed"):
        await store.add([a_letter("two")])
    (tmp_path / "gone").rename(tmp_path / "real" / "redrive.db-wal")
    link.unlink()
    link.symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(StoreReplacedError):
        await store.add([a_letter("three")])
    await store.close()
