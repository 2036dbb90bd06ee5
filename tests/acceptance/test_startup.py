"""Which modules each command imports: what a command does not need, it does not load."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.stores.sqlite import SqliteStore
from redrive.testing import letters
from tests.acceptance.serving import clean_environment

HEAVY = frozenset(
    {
        "aiohttp", "anyio", "asyncpg", "confluent_kafka", "cronsim", "jsonpatch", "opentelemetry", "prometheus_client",
        "psutil", "rich", "starlette", "uvicorn", "uvloop", "yarl", "zipfile",
    }
)  # fmt: skip
CODE = """
import sys
from redrive.cli.root import run
run(sys.argv[1:])
print("MODULES", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    async def fill() -> None:
        store = await SqliteStore.open(tmp_path / "redrive.db")
        await store.add(letters(3))
        await store.close()

    asyncio.run(fill())
    return tmp_path


def imported(folder: Path, *words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.splitlines()[-1].removeprefix("MODULES ").split())


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--help", set()),
        ("list", set()),
        ("stats", set()),
        ("groups", set()),
        ("operations", set()),
        ("show 06", set()),
        ("discard source:orders --dry-run", set()),
        ("replay source:orders --dry-run", set()),
        ("edit source:orders --set-header a=b --dry-run", set()),
        ("edit source:orders --patch [] --dry-run", {"jsonpatch"}),
        ("export", set()),
        ("brokers", set()),
        ("alerts", {"cronsim"}),
        ("config check", {"cronsim"}),
        ("explain x", set()),
        ("publish orders x --broker amqp://127.0.0.1:1", set()),
        ("publish orders x --broker nonsense", set()),
    ],
)
def test_command_imports_only_the_libraries_it_needs(folder: Path, words: str, needed: set[str]) -> None:
    assert imported(folder, *words.split()) & HEAVY <= needed


def test_list_imports_neither_brokers_nor_servers(folder: Path) -> None:
    modules = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", CODE, "list"],
        cwd=folder, env=clean_environment(), capture_output=True, text=True, check=True, timeout=60,
    ).stderr  # fmt: skip
    assert "redrive.stores.sqlite" in modules
    for package in (
        "redrive.app",
        "redrive.transports",
        "redrive.consume",
        "redrive.serve",
        "redrive.watch",
        "redrive.amqp",
    ):
        assert f" {package}\n" not in modules
