"""What redrive creates can be read by its owner alone, whatever the umask."""

import asyncio
import os
import stat
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import msgspec
import pytest

from redrive.broker import segments
from redrive.cli.file_permissions import permission_findings
from redrive.cli.transfer import _one_file
from redrive.demo.run import Options, write_settings
from redrive.errors import SettingsError
from redrive.private_files import create_private_file, make_private_directory, private_opener
from redrive.serve.lock import ServeLock
from redrive.settings import RetentionSettings, ServerSettings, Settings, StoreOptions
from redrive.stores import cold_files
from redrive.stores.server_key import open_access, read_key
from redrive.stores.sqlite import SqliteStore
from redrive.testing.factories import a_letter


@pytest.fixture(autouse=True, params=[0o022, 0o000], ids=["umask 022", "umask 000"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    return {
        str(each.relative_to(path)): stat.S_IMODE(each.stat().st_mode) for each in [path, *path.rglob("*")]
    }


def assert_private(path: Path) -> None:
    for name, mode in modes(path).items():
        assert mode in {0o600, 0o700}, f"{name} has mode {mode:04o}"


async def test_sqlite_store_is_private_with_its_log_and_index(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "data"
    make_private_directory(directory)
    store = await SqliteStore.open(directory / "redrive.db")
    await store.add([a_letter()])
    assert {"redrive.db", "redrive.db-wal", "redrive.db-shm"} <= set(modes(directory))
    assert_private(tmp_path / "new")
    await store.close()


def test_journal_is_private_with_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "data" / "broker"
    os.close(segments.lock(directory))
    segments.create(directory / "000000000001.journal", [b"x"])
    assert_private(tmp_path / "new")


def test_archive_and_export_are_private_with_their_directories(tmp_path: Path) -> None:
    cold_files.write(tmp_path / "new" / "archive", [a_letter()], day=date(2026, 2, 11))
    _one_file(tmp_path / "new" / "export" / "x.jsonl.zst", [cold_files.line_of(a_letter())])
    assert_private(tmp_path / "new")


def test_locks_keys_and_the_demo_are_private_with_their_directories(tmp_path: Path) -> None:
    ServeLock.take(tmp_path / "new" / "a" / "redrive.db").release()
    open_access(tmp_path / "new" / "b", None)
    write_settings(Options(directory=tmp_path / "new" / "c" / "shop"))
    assert_private(tmp_path / "new")


def test_directories_that_exist_and_races_are_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_directory(tmp_path)
    make_private_directory(tmp_path / "a")
    make_private_directory(tmp_path / "a")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_private_directory(tmp_path / "file" / "a")


def test_an_existing_file_keeps_its_mode_and_content(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("content")
    file.chmod(0o640)
    create_private_file(file)
    with open(file, "a", opener=private_opener) as opened:
        opened.write(" more")
    assert file.read_text() == "content more"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


# --- the key of a server ---


def test_a_key_is_created_once_and_differs_by_directory(tmp_path: Path) -> None:
    one, again, other = (open_access(tmp_path / name, None) for name in ("a", "a", "b"))
    assert one == again
    assert one.key != other.key
    assert len(one.key) >= 40
    assert one.file == (tmp_path / "a" / "server.key").resolve()
    assert read_key(tmp_path / "a" / "server.key") == one.key


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = open_access(tmp_path, None).file
    assert file is not None
    file.chmod(0o644)
    with pytest.raises(SettingsError, match=r"can be read by other users \(mode 0644\).*chmod 600"):
        open_access(tmp_path, None)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, b"x" * 2000, b"two words " * 4])
def test_a_file_without_a_key_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "server.key").write_bytes(content)
    assert read_key(tmp_path / "server.key") is None


def test_a_key_in_the_settings_needs_no_file(tmp_path: Path) -> None:
    assert open_access(tmp_path / "none", "x" * 20).key == "x" * 20
    assert not (tmp_path / "none").exists()


async def test_servers_that_start_at_once_have_one_key(tmp_path: Path) -> None:
    found = await asyncio.gather(*(asyncio.to_thread(open_access, tmp_path, None) for _ in range(8)))
    assert len({access.key for access in found}) == 1
    assert set(modes(tmp_path)) == {".", "server.key"}


# --- doctor ---


def test_doctor_reports_open_files_with_the_command_that_closes_them(tmp_path: Path) -> None:
    settings = Settings(
        store=StoreOptions(url=f"sqlite:{tmp_path / 'my store.db'}"),
        server=ServerSettings(data_directory=str(tmp_path / "data")),
        retention=RetentionSettings(archive_directory=str(tmp_path / "archive")),
    )
    assert permission_findings(settings) == []
    for name in (
        "my store.db",
        "my store.db-wal",
        "data/broker/000000000001.journal",
        "archive/letters.jsonl.zst",
    ):
        file = tmp_path / name
        make_private_directory(file.parent)
        create_private_file(file)
    assert permission_findings(settings) == []

    (tmp_path / "my store.db").chmod(0o644)
    (tmp_path / "my store.db-wal").chmod(0o640)
    (tmp_path / "data" / "broker").chmod(0o755)
    (tmp_path / "archive" / "letters.jsonl.zst").chmod(0o604)
    store, journal, archive = permission_findings(settings)

    assert store.mend == f"chmod 600 '{tmp_path}/my store.db' '{tmp_path}/my store.db-wal'"
    assert "(mode 0644) and 1 more" in store.text
    assert journal.mend == f"chmod -R go= {tmp_path}/data/broker"
    assert archive.mend == f"chmod -R go= {tmp_path}/archive"
    assert {finding.severity for finding in (store, journal, archive)} == {"warning"}
    for finding in (store, journal, archive):
        assert os.system(finding.mend) == 0
    assert permission_findings(settings) == []


def test_doctor_leaves_stores_that_are_no_files_alone() -> None:
    for url in ("memory:", "postgresql://db-1/orders", "http://127.0.0.1:8642"):
        settings = Settings(store=StoreOptions(url=url))
        assert (
            permission_findings(
                msgspec.structs.replace(settings, server=ServerSettings(data_directory="/none"))
            )
            == []
        )
