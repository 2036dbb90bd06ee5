"""The command line as a person or a script meets it: a process, its output, its exit code."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from redrive import __file__ as package, __version__
from redrive.cli.root import cli
from redrive.settings import SECTIONS, load
from redrive.stores.sqlite import SqliteStore
from redrive.testing import letters

Run = Callable[..., "subprocess.CompletedProcess[str]"]
# The code under test, wherever the process starts.
PACKAGE = {"PYTHONPATH": str(Path(package).resolve().parents[1])}
PROGRAM = "from redrive.cli import main; main()"


@pytest.fixture
def redrive(tmp_path: Path) -> Run:
    """Runs the console script in an empty folder."""

    def run(
        *args: str, env: dict[str, str] | None = None, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *args],
            cwd=tmp_path, env={**clean, **PACKAGE, **(env or {})}, text=True, check=False, timeout=60, **options,
        )  # fmt: skip

    return run


def commands() -> list[list[str]]:
    """Every command, groups included, as the words that call it."""
    found: list[list[str]] = []

    def walk(command: click.Command, words: list[str]) -> None:
        found.append(words)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, [*words, name])

    walk(cli, [])
    return found


COMMANDS = commands()


def one_line(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    """The one line with which a command failed."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert re.fullmatch(r"redrive: [^\n]+\n", done.stderr), done.stderr
    return done.stderr.removeprefix("redrive: ").rstrip()


# --- help and version ------------------------------------------------------------------------------------


def test_all_commands_were_found() -> None:
    assert ["store", "check"] in COMMANDS
    assert ["config", "show"] in COMMANDS
    assert ["explain"] in COMMANDS


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(["redrive", *words]))
def test_every_command_explains_itself(redrive: Run, words: list[str]) -> None:
    for option in ("--help", "-h"):
        done = redrive(*words, option)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"Usage: {' '.join(['redrive', *words])} ")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(["redrive", *words]))
def test_the_help_of_every_command_has_an_example_on_a_line_of_its_own(
    redrive: Run, words: list[str]
) -> None:
    text = redrive(*words, "--help").stdout
    assert "Example" in text
    assert "\\b" not in text
    lines = [line for line in text.splitlines() if re.match(r"^\s+(REDRIVE_\S+=\S+ )?redrive ", line)]
    assert any(" ".join(["redrive", *words]) in line or "--config" in line for line in lines), text


def test_the_version_is_told(redrive: Run) -> None:
    for args in (["--version"], ["--config", "x.toml", "--version"]):
        done = redrive(*args)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"redrive {__version__}\n", "")


def test_telling_the_version_imports_nothing_large(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['redrive', '--version']\n"
        "from redrive.cli import main; main()\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **PACKAGE},
        capture_output=True,
        text=True,
        check=True,
    )
    told, modules = done.stdout.splitlines()
    assert told == f"redrive {__version__}"
    heavy = {"click", "msgspec", "rich", "backports", "sqlite3", "_sqlite3", "asyncio", "tomllib", "zoneinfo"}
    assert not heavy & set(modules.split())


def test_a_command_imports_only_what_it_needs(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom redrive.cli.root import run\nrun(['config', 'check'])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('redrive.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **PACKAGE},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = done.stdout.splitlines()[-1].split()
    assert "redrive.cli.config" in modules
    unneeded = ("redrive.stores.sqlite", "redrive.stores.postgres", "redrive.cli.store", "redrive.amqp")
    assert not [name for name in modules if name.startswith(unneeded)]


def test_called_without_a_command_it_shows_its_help_and_fails(redrive: Run) -> None:
    for words in ([], ["store"], ["config"]):
        done = redrive(*words)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("Usage: redrive")


# --- wrong usage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["stor"], "no command 'stor'; did you mean 'store'?"),
        (["CONFIG"], "no command 'CONFIG'; did you mean 'config'?"),
        (["zzz"], "no command 'zzz'"),
        (["store", "chek"], "check"),
        (["store", "check", "--jsn"], "--json"),
        (["--cnfig", "x"], "--config"),
        (["explain"], "TEXT"),
        (["explain", "x", "--status", "99"], "100<=x<=599"),
        (["explain", "x", "--status", "many"], "many"),
        (["explain", "a", "b"], "extra argument"),
        (["--config"], "--config"),
    ],
)
def test_wrong_usage_is_one_line_with_a_hint(redrive: Run, args: list[str], says: str) -> None:
    assert says in one_line(redrive(*args), 2)


def test_a_settings_file_that_is_not_there_is_one_line(redrive: Run) -> None:
    assert one_line(redrive("--config", "missing.toml", "config", "check"), 2) == (
        "missing.toml cannot be read: No such file or directory"
    )


# --- config ----------------------------------------------------------------------------------------------


def inner(table: dict[str, Any], section: str) -> dict[str, Any]:
    """A section of shown settings; `consume.breaker` is nested in `consume`."""
    for name in section.split("."):
        table = table[name]
    return table


def test_the_settings_in_force_are_shown_as_json(redrive: Run, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(
        "[recover]\nbatch_size = 7\n[strategies]\ntimeout = 'scheduled'\n", "utf-8"
    )
    shown = redrive("config", "show", "--json", env={"REDRIVE_RECOVER_POLL_INTERVAL": "5s"})
    assert (shown.returncode, shown.stderr) == (0, "")
    table = json.loads(shown.stdout)
    for section, (_, known) in SECTIONS.items():
        assert set(known) == {name for name in inner(table, section) if f"{section}.{name}" not in SECTIONS}
    assert (table["recover"]["batch_size"], table["recover"]["poll_interval"]) == (7, "5s")
    assert table["store"]["max_bytes"] is None
    assert table["strategies"] == {"timeout": "scheduled"}


def test_the_settings_shown_are_a_file_that_reads_back(redrive: Run, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(
        "[recover]\nbatch_size = 7\n[strategies]\ntimeout = 'scheduled'\n", "utf-8"
    )
    again = tmp_path / "again.toml"
    again.write_text(redrive("config", "show", env={"REDRIVE_RECOVER_POLL_INTERVAL": "5s"}).stdout, "utf-8")
    assert load(again) == load(tmp_path / "redrive.toml", {"REDRIVE_RECOVER_POLL_INTERVAL": "5s"})


def test_rules_and_names_of_any_kind_are_shown_so_that_they_read_back(redrive: Run, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(
        """
        [consume]
        backoff = ["1s", "5s"]
        [redact]
        terms = ["tab\\t, DEL\\u007f, \\"quote\\" and 🦊"]
        patterns = { order-id = 'ORD-[0-9]+', plain = "x{5}" }
        [[rules]]
        name = "dup"
        kind = "business"
        retryable = true
        text = ["duplicate \\"invoice\\"", "schon da"]
        pattern = 'E\\d{4}'
        [[rules]]
        name = "busy"
        kind = "unavailable"
        status = [503, "5xx"]
        errno = "ECONNREFUSED"
        """,
        "utf-8",
    )
    again = tmp_path / "again.toml"
    again.write_text(redrive("config", "show").stdout, "utf-8")
    assert load(again) == load(tmp_path / "redrive.toml")
    shown = json.loads(redrive("config", "show", "--json").stdout)
    assert shown["rules"] == tomllib.loads(again.read_text("utf-8"))["rules"]


def test_the_settings_shown_to_people_are_those_shown_to_programs(redrive: Run) -> None:
    table = json.loads(redrive("config", "show", "--json").stdout)
    shown = tomllib.loads(redrive("config", "show").stdout)
    for section in SECTIONS:
        values = inner(table, section).items()
        assert inner(shown, section) == {name: value for name, value in values if value is not None}


def test_right_settings_are_said_to_be_right(redrive: Run, tmp_path: Path) -> None:
    rule = "[[rules]]\nname = 'dup'\nkind = 'business'\ntext = 'duplicate invoice'\n"
    (tmp_path / "redrive.toml").write_text(rule, "utf-8")
    done = redrive("config", "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "configuration OK (store: sqlite:redrive.db, 1 custom rule)\n"
    assert not (tmp_path / "redrive.db").exists(), "looking at settings opens no store"


@pytest.mark.parametrize(
    "command", [["config", "check"], ["config", "show"], ["store", "check"], ["explain", "x"]]
)
@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"REDRIVE_STORE_MAX_BYTS": "5"}, "unknown variable REDRIVE_STORE_MAX_BYTS"),
        ({"REDRIVE_STORE_MAX_BYTES": "-1"}, "store.max_bytes = -1: must be an integer between"),
        ({"REDRIVE_RECOVER_LEASE": "1000000d"}, "recover.lease = '1000000d'"),
        ({"REDRIVE_RECOVER_MAX_CPU": "nan"}, "must be a number above 0 and up to 1"),
    ],
    ids=["unknown", "negative", "absurd", "not a number"],
)
def test_every_command_refuses_wrong_settings_alike(
    redrive: Run, command: list[str], env: dict[str, str], says: str
) -> None:
    assert says in one_line(redrive(*command, env=env), 2)


# --- explain ---------------------------------------------------------------------------------------------


def test_an_error_is_explained_to_people_and_to_programs(redrive: Run) -> None:
    words = redrive("explain", "--type", "TimeoutError", "External API timeout after 5000ms")
    assert (words.returncode, words.stderr) == (0, "")
    assert re.search(r"^kind\s+timeout$", words.stdout, re.MULTILINE)
    assert "immediate, after 1m" in words.stdout
    answer = json.loads(redrive("explain", "--status", "429", "slow down", "--json").stdout)
    assert answer["kind"] == "rate_limited"
    assert answer["strategy"] == "scheduled"
    assert set(answer) == {"kind", "retryable", "rule", "strategy", "redrive_in", "shown_as"}


def test_an_error_is_shown_without_its_secrets(redrive: Run) -> None:
    done = redrive("explain", "login failed: password=hunter2 for db-1")
    assert "hunter2" not in done.stdout
    assert "db-1" in done.stdout


def test_a_rule_of_ones_own_is_named(redrive: Run, tmp_path: Path) -> None:
    rule = "[[rules]]\nname = 'dup'\nkind = 'business'\ntext = 'duplicate invoice'\n"
    (tmp_path / "own.toml").write_text(rule, "utf-8")
    done = redrive("--config", "own.toml", "explain", "Duplicate invoice 7", "--json")
    assert json.loads(done.stdout)["rule"] == "dup"


# --- store -----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three letters, where the command line looks for it."""

    async def add() -> None:
        opened = await SqliteStore.open(tmp_path / "redrive.db")
        await opened.add(letters(3))
        await opened.claim("worker", broker="rabbitmq", limit=1)
        await opened.close()

    asyncio.run(add())
    return tmp_path / "redrive.db"


def test_a_store_is_checked_and_counted(redrive: Run, store: Path) -> None:
    done = redrive("store", "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sqlite:redrive.db: no damage found, 3 letters\n")
    assert re.search(r"^  pending +2$", done.stdout, re.MULTILINE)
    answer = json.loads(redrive("store", "check", "--json").stdout)
    assert answer == {
        "url": "sqlite:redrive.db",
        "letters": 3,
        "states": {
            "dlq_pending": 2, "dlq_processing": 1, "dlq_manual": 0, "dlq_resolved": 0, "dlq_failed": 0,
            "dlq_archived": 0,
        },
    }  # fmt: skip


def test_looking_at_a_store_that_is_not_there_makes_none(redrive: Run, tmp_path: Path) -> None:
    assert "redrive.db does not exist" in one_line(redrive("store", "check"), 3)
    assert list(tmp_path.iterdir()) == []


def test_sqlites_name_for_a_database_in_memory_is_refused(redrive: Run) -> None:
    done = redrive("store", "check", env={"REDRIVE_STORE_URL": "sqlite::memory:"})
    assert "for a store in memory write memory:" in one_line(done, 3)


def test_a_store_in_memory_is_whole(redrive: Run, tmp_path: Path) -> None:
    done = redrive("store", "check", env={"REDRIVE_STORE_URL": "memory:"})
    assert done.stdout.startswith("memory:: no damage found, 0 letters\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "sqlit:x.db",
            "is not a store; write sqlite:FILE, postgresql://… or memory:; did you mean 'sqlite'?",
        ),
        (
            "postgressql://u:secret@x",
            "store.url = 'postgressql://u:…@x' is not a store",
        ),
        ("sqlite:", "store.url = 'sqlite:' is not a store"),
        ("memory:x", "is not a store"),
        ("redrive.db", "is not a store"),
    ],
)
def test_a_store_that_is_none_is_a_wrong_setting(redrive: Run, url: str, says: str) -> None:
    assert says in one_line(redrive("store", "check", env={"REDRIVE_STORE_URL": url}), 2)


# --- output that nobody takes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [["config", "show"], ["--help"], ["explain", "x"], ["store", "check", "--json"], ["--version"]],
    ids=" ".join,
)
def test_a_reader_that_went_away_is_no_reason_to_complain(redrive: Run, store: Path, args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = redrive(*args, stdout=writer)
    finally:
        os.close(writer)
    assert (done.stderr, done.returncode) == ("", 141)


@pytest.mark.parametrize("args", [["config", "show"], ["--version"]], ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(redrive: Run, args: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = redrive(*args, stdout=full)
    assert done.returncode not in {0, 120}
    assert re.fullmatch(r"redrive: [^\n]+\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    "args", [["explain", "caf\udce9", "--json"], ["config", "show", "--json"]], ids=["explain", "show"]
)
def test_text_that_is_no_unicode_is_shown_or_refused(redrive: Run, args: list[str]) -> None:
    done = redrive(*args, env={"REDRIVE_STORE_URL": "sqlite:caf\udce9.db"} if "show" in args else {})
    if done.returncode == 0:
        json.loads(done.stdout)
    else:
        assert re.fullmatch(r"redrive: [^\n]+\n", done.stderr), done.stderr


def test_a_number_of_thousands_of_digits_is_one_line(redrive: Run) -> None:
    one_line(redrive("config", "check", env={"REDRIVE_STORE_MAX_BYTES": "9" * 5000}), 2)
