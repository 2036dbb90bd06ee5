"""Files, disks and rights that are not as they should be: one line, no traceback, nothing lost.

Each is met through the console script in a process of its own. What has to be limited (rights, sizes) is limited in
that process alone.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import __file__ as package
from redrive.errors import RedriveError
from redrive.letters import DeadLetter, LetterState, Message
from redrive.stores.sqlite import SqliteOptions, SqliteStore, schema
from redrive.testing import a_letter

Done = subprocess.CompletedProcess[str]
PACKAGE = {"PYTHONPATH": str(Path(package).resolve().parents[1])}
COMMAND_LINE = "from redrive.cli import main; main()"
# Root may write what its mode forbids. A process without these two rights may not, whoever it is.
AS_ANYBODY = """
import ctypes, os, sys
for right in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    if ctypes.CDLL(None).prctl(24, right, 0, 0, 0) != 0 and os.geteuid() == 0:
        sys.exit("rights cannot be dropped")
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


def python(
    folder: Path, code: str, *args: str, anybody: bool = False, variables: dict[str, str] | None = None
) -> Done:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    words = [AS_ANYBODY, code, *args] if anybody else [code, *args]
    done = subprocess.run(
        [sys.executable, "-c", *words],
        cwd=folder, env={**clean, **PACKAGE, **(variables or {})},
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    if done.stderr == "rights cannot be dropped\n":
        pytest.skip("this machine does not let a process give up the rights of root")
    return done


def check(
    path: Path, *, before: str = "", anybody: bool = False, variables: dict[str, str] | None = None
) -> Done:
    """`redrive store check` on this file, after `before` was run in the same process."""
    code = f"{before}\n{COMMAND_LINE}"
    variables = {"REDRIVE_STORE_URL": f"sqlite:{path}", **(variables or {})}
    return python(path.parent, code, "store", "check", anybody=anybody, variables=variables)


def one_line(done: Done, code: int = 3) -> str:
    """The one line with which the command failed."""
    assert "Traceback" not in done.stderr, done.stderr
    assert re.fullmatch(r"redrive: [^\n]+\n", done.stderr), done.stderr
    assert done.stdout == ""
    assert done.returncode == code
    return done.stderr


def some_letters(count: int, prefix: str = "orders", size: int = 2000) -> list[DeadLetter]:
    chance = random.Random(prefix)
    return [
        a_letter(f"{prefix}/{number}", message=Message(body=chance.randbytes(size), correlation_id="c"))
        for number in range(count)
    ]


def put(path: Path, letters: list[DeadLetter]) -> None:
    async def add() -> None:
        store = await SqliteStore.open(path)
        assert all(await store.add(letters))
        await store.close()

    asyncio.run(add())


def all_in(path: Path) -> dict[str, DeadLetter]:
    """Every letter of a store that is whole."""

    async def read() -> dict[str, DeadLetter]:
        store = await SqliteStore.open(path, SqliteOptions(integrity_check_timeout=None))
        try:
            assert await store.damage() is None
            heads = []
            cursor = None
            while True:
                page = await store.page(limit=1000, cursor=cursor)
                heads += [head.id for head in page.heads]
                if (cursor := page.cursor) is None:
                    return {letter.id: letter for letter in await store.load(heads)}
        finally:
            await store.close()

    return asyncio.run(read())


def assert_kept(path: Path, letters: list[DeadLetter]) -> None:
    """These letters are in the store, bit-exact, and it takes another."""
    found = all_in(path)
    for letter in letters:
        assert found[letter.id].message == letter.message
    put(path, [a_letter("one more")])
    assert len(all_in(path)) == len(found) + 1


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with letters in it."""
    folder = tmp_path / "place"
    folder.mkdir()
    put(folder / "redrive.db", LETTERS)
    return folder / "redrive.db"


LETTERS = some_letters(300)


# --- files that are no store -----------------------------------------------------------------------------


def foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda path: path.write_text("I am a letter to the editor.\n" * 50),
            "is not a database; choose another file",
        ),
        (lambda path: path.write_bytes(b"\x00" * 8192), "is not a database; choose another file"),
        (lambda path: path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 4080), "redrive.db"),
        (foreign, "is the database of another program; choose another file"),
        (lambda path: path.mkdir(), "is a directory; name a file in it"),
    ],
    ids=["text", "zeros", "a mark and garbage", "foreign database", "directory"],
)
def test_a_file_that_is_no_store_is_refused_and_left_as_it_was(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    path = tmp_path / "redrive.db"
    make(path)
    before = {entry.name: entry.is_file() and entry.read_bytes() for entry in tmp_path.iterdir()}
    assert says in one_line(check(path))
    assert {entry.name: entry.is_file() and entry.read_bytes() for entry in tmp_path.iterdir()} == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "redrive.db"
    done = python(tmp_path, COMMAND_LINE, "store", "check", variables={"REDRIVE_STORE_URL": f"sqlite:{path}"})
    assert f"{path.parent} does not exist; create it" in one_line(done)


def test_the_store_of_a_newer_version_is_refused_and_loses_nothing(store: Path) -> None:
    newest = schema.migrations()[-1][0]
    with contextlib.closing(sqlite3.connect(store)) as connection:
        connection.execute(f"PRAGMA user_version = {newest + 1}")
    before = hashlib.sha256(store.read_bytes()).digest()
    assert "was written by a newer redrive" in one_line(check(store))
    assert hashlib.sha256(store.read_bytes()).digest() == before
    with contextlib.closing(sqlite3.connect(store)) as connection:
        connection.execute(f"PRAGMA user_version = {newest}")
    assert_kept(store, LETTERS)


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    one_line(check(tmp_path / ("x" * 300)))


def test_a_name_with_a_nul_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text('[store]\nurl = "sqlite:a\\u0000b"\n', "utf-8")
    done = python(tmp_path, COMMAND_LINE, "store", "check")
    assert done.returncode in {2, 3}
    one_line(done, done.returncode)


# --- damage ----------------------------------------------------------------------------------------------


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def is_said_to_be_damaged(path: Path) -> bool:
    done = check(path)
    if done.returncode == 0:
        return False
    line = one_line(done)
    return "damaged" in line or "is not a database" in line


def test_a_whole_store_is_said_to_be_whole(store: Path) -> None:
    done = check(store)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"no damage found, {len(LETTERS)} letters" in done.stdout


@pytest.mark.parametrize("place", [0.25, 0.5, 0.75])
def test_bytes_flipped_in_the_middle_are_found(store: Path, place: float) -> None:
    start = int(store.stat().st_size * place) // 8192 * 8192
    whole = store.read_bytes()[start : start + 2 * 8192]
    overwrite(store, start, bytes(byte ^ 0xFF for byte in whole))
    assert is_said_to_be_damaged(store)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.99])
def test_a_file_cut_off_is_found(store: Path, share: float) -> None:
    os.truncate(store, int(store.stat().st_size * share))
    assert is_said_to_be_damaged(store)


def test_a_header_of_garbage_is_found(store: Path) -> None:
    overwrite(store, 16, random.Random(1).randbytes(84))
    assert is_said_to_be_damaged(store)


def test_one_flipped_byte_within_a_body_is_found(store: Path) -> None:
    body = LETTERS[150].message.body
    assert body is not None
    place = store.read_bytes().index(body[500:600])
    overwrite(store, place, bytes([body[500] ^ 0xFF]))
    assert is_said_to_be_damaged(store)


def test_a_damaged_store_is_not_opened_for_work(store: Path) -> None:
    os.truncate(store, store.stat().st_size // 2)
    before = store.read_bytes()
    with pytest.raises(RedriveError, match="damaged"):
        put(store, [a_letter("one more")])
    assert store.read_bytes() == before


# --- rights ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


ADD_ONE = """
import asyncio, sys
from redrive.errors import RedriveError
from redrive.stores.sqlite import SqliteStore
from redrive.testing import a_letter
async def main():
    try:
        store = await SqliteStore.open(sys.argv[1])
        try:
            print(await store.add([a_letter("one too many")]))
        finally:
            await store.close()
    except RedriveError as error:
        print(type(error).__name__, str(error).count(chr(10)), error)
asyncio.run(main())
"""


def test_a_store_that_cannot_be_read_is_one_line(store: Path) -> None:
    with mode(store, 0o000):
        assert "cannot be read: Permission denied" in one_line(check(store, anybody=True))
    assert_kept(store, LETTERS)


def test_a_new_store_in_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    with mode(folder, 0o555):
        done = python(tmp_path, ADD_ONE, str(folder / "redrive.db"), anybody=True)
    assert done.stderr == ""
    assert done.stdout.startswith("StoreReadOnlyError 0 ")
    assert "check owner and mode of the file and its directory" in done.stdout
    assert list(folder.iterdir()) == []
    assert_kept(folder / "redrive.db", [])


def test_a_store_in_a_folder_that_cannot_be_written_is_one_line(store: Path) -> None:
    with mode(store.parent, 0o555):
        line = one_line(check(store, anybody=True))
    assert "check owner and mode of the file and its directory" in line
    assert_kept(store, LETTERS)


@pytest.mark.parametrize("folder_mode", [0o755, 0o555], ids=["file", "file and its directory"])
def test_a_store_that_cannot_be_written_takes_no_letter_and_loses_none(store: Path, folder_mode: int) -> None:
    with mode(store, 0o444), mode(store.parent, folder_mode):
        done = python(store.parent.parent, ADD_ONE, str(store), anybody=True)
    assert done.stderr == ""
    assert done.stdout.startswith("StoreReadOnlyError 0 ")
    assert "check owner and mode of the file and its directory" in done.stdout
    assert set(all_in(store)) == {letter.id for letter in LETTERS}
    assert_kept(store, LETTERS)


def test_looking_at_a_store_that_cannot_be_written_works_or_is_one_line(store: Path) -> None:
    with mode(store, 0o444):
        done = check(store, anybody=True)
    if done.returncode == 0:
        assert f"no damage found, {len(LETTERS)} letters" in done.stdout
    else:
        one_line(done)
    assert_kept(store, LETTERS)


def test_a_store_in_a_folder_that_cannot_be_entered_is_one_line(store: Path) -> None:
    with mode(store.parent, 0o000):
        done = python(
            store.parent.parent,
            COMMAND_LINE,
            "store",
            "check",
            anybody=True,
            variables={"REDRIVE_STORE_URL": f"sqlite:{store}"},
        )
    one_line(done)


# --- no room ---------------------------------------------------------------------------------------------

# Adds letters, five at a time, until three adds in a row were refused; makes room; adds some more.
ADD_UNTIL_FULL = """
import asyncio, os, resource, sys
from pathlib import Path
from redrive.errors import RedriveError
from redrive.letters import Message
from redrive.stores.sqlite import SqliteOptions, SqliteStore
from redrive.testing import a_letter

async def add(store, key):
    letter = a_letter(key, message=Message(body=os.urandom(20_000), correlation_id="c"))
    try:
        assert await store.add([letter]) == [True]
    except RedriveError as error:
        print("refused", letter.id, type(error).__name__, str(error).count(chr(10)))
        return False
    print("added", letter.id)
    return True

async def main():
    OPTIONS = SqliteOptions()
    LIMIT
    store = await SqliteStore.open(sys.argv[1], OPTIONS)
    refused = 0
    for number in range(1000):
        done = await asyncio.gather(*(add(store, f"{number}/{n}") for n in range(5)))
        refused = 0 if any(done) else refused + 1
        if refused == 3:
            break
    print("full")
    ROOM
    assert all(await asyncio.gather(*(add(store, f"room/{n}") for n in range(20)))), "there is room"
    await store.close()

asyncio.run(main())
"""


def add_until_full(path: Path, limit: str, room: str, refusal: set[str]) -> None:
    """Run it, and hold the store to what it said."""
    done = python(path.parent, ADD_UNTIL_FULL.replace("LIMIT", limit).replace("ROOM", room), str(path))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-500:] + done.stderr
    said = [line.split() for line in done.stdout.splitlines()]
    added = {words[1] for words in said if words[0] == "added"}
    refused = {words[1] for words in said if words[0] == "refused"}
    assert ["full"] in said, "the limit was never met"
    assert len(added) > 40
    assert len(refused) >= 15
    assert {words[2] for words in said if words[0] == "refused"} <= refusal
    assert {words[3] for words in said if words[0] == "refused"} == {"0"}
    found = all_in(path)
    assert added <= found.keys(), "an acknowledged letter is lost"
    assert not refused & found.keys(), "a refused letter is there"
    assert all(letter.size == 20_000 for letter in found.values())
    assert_kept(path, [])


def test_a_file_size_limit_refuses_adds_and_loses_none(tmp_path: Path) -> None:
    add_until_full(
        tmp_path / "redrive.db",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
        {"StoreFullError", "StoreError"},  # to SQLite this limit is an error of the disk, not a full one
    )


def test_the_size_limit_of_the_settings_refuses_adds_and_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    add_until_full(
        path,
        "OPTIONS = SqliteOptions(max_bytes=2_000_000)",
        "await store.close()\n"
        "    assert os.path.getsize(sys.argv[1]) <= 2_000_000\n"
        "    store = await SqliteStore.open(sys.argv[1])",
        {"StoreFullError"},
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("a small disk can be mounted by root only, and not everywhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def test_a_full_disk_refuses_adds_and_loses_none(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"\x00" * 2_000_000)
    add_until_full(small_disk / "redrive.db", "pass", "Path('ballast').unlink()", {"StoreFullError"})


def test_on_a_full_disk_a_new_store_is_refused_and_an_old_one_is_whole(small_disk: Path) -> None:
    path = small_disk / "redrive.db"
    letters = some_letters(20)
    put(path, letters)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\x00" * 4096):
            pass
    new = python(small_disk, ADD_ONE, "another.db")
    assert new.stderr == ""
    assert new.stdout.startswith("StoreFullError 0 another.db is full: free disk space")
    old = check(path)
    assert old.returncode == 0 or one_line(old)
    ballast.unlink()
    assert check(path).returncode == 0
    assert python(small_disk, ADD_ONE, "another.db").stdout == "[True]\n"
    assert_kept(path, letters)


def test_a_new_store_without_room_is_refused_and_what_was_left_is_no_obstacle(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))"
    done = python(tmp_path, f"{limit}\n{ADD_ONE}", "redrive.db")
    assert done.stderr == ""
    assert re.match(r"Store(Full)?Error 0 redrive.db ", done.stdout), done.stdout
    assert_kept(tmp_path / "redrive.db", [])


def test_a_full_store_can_be_emptied(tmp_path: Path) -> None:
    """Given a store at its limit, letters that are done with can be deleted, and their room is used again."""

    async def life() -> None:
        from redrive.stores.changes import Delete, Resolve, Settlement

        store = await SqliteStore.open(tmp_path / "redrive.db", SqliteOptions(max_bytes=1_048_576))
        try:
            done = some_letters(30, "done", 20_000)
            await store.add(done)
            heads = await store.take([letter.id for letter in done], "w")
            assert all(await store.settle([Settlement(head.claim_token, Resolve()) for head in heads]))
            added = 0
            with contextlib.suppress(RedriveError):
                for letter in some_letters(100, "more", 20_000):
                    await store.add([letter])
                    added += 1
            assert 0 < added < 100
            await store.apply(Delete(), [letter.id for letter in done], by="ann")
            assert all(await store.add(some_letters(20, "after", 20_000)))
            assert await store.tally("state") == {LetterState.PENDING: added + 20}
            assert await store.damage() is None
        finally:
            await store.close()

    asyncio.run(life())


# --- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("REDRIVE_STORE_MAX_BYTES", "-1", "must be an integer between"),
        ("REDRIVE_STORE_MAX_BYTES", "1048575", "must be an integer between"),
        ("REDRIVE_STORE_MAX_BYTES", "1e18", "must be an integer between"),
        ("REDRIVE_STORE_BUSY_TIMEOUT", "-5s", "is not a duration"),
        ("REDRIVE_STORE_BUSY_TIMEOUT", "2h", "must be a duration between 0s and 1h"),
        ("REDRIVE_STORE_INTEGRITY_CHECK_TIMEOUT", "999999999d", "is too long"),
        ("REDRIVE_STORE_URL", "", "must be a non-empty string"),
        ("REDRIVE_RECOVER_OFF_PEAK_HOURS", "[24]", "between 0 and 23"),
        ("REDRIVE_STORE_MAXBYTES", "5", "did you mean 'max_bytes'?"),
    ],
)
def test_wrong_settings_are_one_line_and_touch_no_file(
    store: Path, variable: str, value: str, says: str
) -> None:
    before = store.read_bytes()
    assert says in one_line(check(store, variables={variable: value}), 2)
    assert store.read_bytes() == before


@pytest.mark.parametrize("options", [{"max_bytes": 1}, {"max_bytes": -1}, {"max_bytes": 2**60}], ids=repr)
def test_absurd_options_are_refused_before_a_file_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(RedriveError, match="is not between 1 MB and 128 TB"):
        SqliteOptions(**options)
