"""Consumers and servers of the previous version and of this one run side by side, and no letter is lost or guessed.

The previous version is the commit that wrote the golden data. Its code is taken from the history of the repository.
"""

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pika
import pytest

from redrive.letters import DeadLetter, LetterHead, LetterState
from redrive.settings import StoreOptions
from redrive.stores import open_store
from tests.acceptance.serving import Process, Serving, redrive, until
from tests.services import RabbitMQ

PREVIOUS = "903bd1d"
ROOT = Path(__file__).resolve().parents[2]
COUNT = 12
QUEUE = "orders"
SETTINGS = """
    [recover]
    poll_interval = "50ms"
    delays = ["100ms"]
    max_cpu = 1.0
    max_memory = 1.0

    [consume.breaker]
    enabled = false

    [[sources]]
    name = "orders"
    queue_type = "classic"
"""
PREVIOUS_SETTINGS = """
    [recover]
    poll = "50ms"
    steps = ["100ms"]
    cpu_below = 1.0
    memory_below = 1.0

    [consume]
    flood_breaker = false

    [[sources]]
    name = "orders"
    queue_type = "classic"
"""
# It fails whenever a message comes for the first time. `x-replayed` is what both versions show to a handler.
SHOP = """
    from redrive import App, Context

    app = App({url!r})

    @app.consume("orders", attempts=1, max_deliveries=1, queue_type="classic")
    async def handle(body: bytes, context: Context) -> None:
        if context.headers.get("x-replayed") is None:
            raise ConnectionResetError("connection reset by peer")
        with open("handled", "ab") as file:
            file.write(body + b"\\n")
"""


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `src` of the previous version."""
    archive = subprocess.run(["git", "archive", PREVIOUS, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        shallow = subprocess.run(
            ["git", "rev-parse", "--is-shallow-repository"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if os.environ.get("CI") and shallow.stdout.strip() == "false":
            pytest.fail(f"commit {PREVIOUS} is not in this repository: {archive.stderr.decode()}")
        pytest.skip(f"commit {PREVIOUS} is not in this repository")
    place = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(place, filter="data")
    told = subprocess.run(
        [sys.executable, "-c", "import redrive; print(redrive.__file__)"],
        env={**os.environ, "PYTHONPATH": str(place / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith(str(place)), "another version would run"
    return place / "src"


def publish(url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(COUNT):
            named = pika.BasicProperties(message_id=f"m-{number}") if number % 2 else pika.BasicProperties()
            channel.basic_publish("", QUEUE, b"order %d" % number, named, mandatory=True)


def handled(place: Path) -> list[bytes]:
    file = place / "handled"
    return sorted(file.read_bytes().splitlines()) if file.exists() else []


def settings_of(source: Path | None) -> str:
    """The same settings with the names of this version (None) or of the previous one."""
    return SETTINGS if source is None else PREVIOUS_SETTINGS


def consume(place: Path, url: str, source: Path | None) -> Process:
    (place / "redrive.toml").write_text(textwrap.dedent(settings_of(source)))
    (place / "shop.py").write_text(textwrap.dedent(SHOP.format(url=url)))
    shop = Process(place, "consume", "shop", source=source)
    shop.until_it_says("redrive consume")
    return shop


async def stored(place: Path) -> list[DeadLetter]:
    store = await open_store(StoreOptions(url=f"sqlite:{place / 'data' / 'redrive.db'}"))
    try:
        heads: tuple[LetterHead, ...] = (await store.page(limit=1000)).heads
        return await store.load([head.id for head in heads])
    finally:
        await store.close()


@pytest.fixture(params=["previous consumer", "previous server"])
def mixed(request: pytest.FixtureRequest, previous: Path) -> tuple[Path | None, Path | None]:
    """The sources of server and consumer; None is this version."""
    return (None, previous) if request.param == "previous consumer" else (previous, None)


def test_letters_are_redriven_and_resolved_across_versions(
    tmp_path: Path, rabbitmq: RabbitMQ, mixed: tuple[Path | None, Path | None]
) -> None:
    of_server, of_consumer = mixed
    server = Serving(
        tmp_path, "--broker", rabbitmq.amqp_url, settings=settings_of(of_server), source=of_server
    )
    shop = consume(tmp_path, rabbitmq.amqp_url, of_consumer)
    try:
        publish(rabbitmq.amqp_url)
        wanted = sorted(b"order %d" % number for number in range(COUNT))
        until(lambda: handled(tmp_path) == wanted, "every message was redriven once", 60)
        resolved = "redrive_letters_resolved_total" if of_server is None else "redrive_resolved_total"
        until(lambda: server.metric(resolved) == COUNT, "every letter is resolved by a verdict", 60)
    finally:
        shop.end()
        server.end()

    letters = asyncio.run(stored(tmp_path))
    assert [letter.state for letter in letters] == [LetterState.RESOLVED] * COUNT
    assert not any(letter.presumed for letter in letters)
    assert [[attempt.result for attempt in letter.attempts] for letter in letters] == [["resolved"]] * COUNT
    assert sorted(letter.message.body or b"" for letter in letters) == wanted
    broker = "rabbitmq" if of_server is None else "unnamed:rabbitmq"
    assert {(letter.broker, letter.source) for letter in letters} == {(broker, QUEUE)}
    assert {letter.error_type for letter in letters} == {"ConnectionResetError"}


def test_server_of_this_version_takes_over_the_letters_of_the_previous_one(
    tmp_path: Path, rabbitmq: RabbitMQ, previous: Path
) -> None:
    """The store is migrated, its letters are assigned to the one broker of their kind, and go on where they were."""
    settings = settings_of(previous).replace('steps = ["100ms"]', 'steps = ["1h"]')
    server = Serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings, source=previous)
    shop = consume(tmp_path, rabbitmq.amqp_url, previous)
    try:
        publish(rabbitmq.amqp_url)
        collected = "redrive_collected_total"
        until(lambda: server.metric(collected) == COUNT, "all letters are collected", 60)
    finally:
        server.end()
    settings = SETTINGS.replace('delays = ["100ms"]', 'delays = ["1h"]')
    newer = Serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings)
    try:
        until(
            lambda: {head.broker for head in asyncio.run(newer.heads())} == {"rabbitmq"},
            "the letters belong to the broker",
            60,
        )
        ids = [head.id for head in asyncio.run(newer.heads())]
        words = ("--yes", "--force", "--server", newer.http, "--broker", rabbitmq.amqp_url)
        replayed = redrive(tmp_path, "replay", *ids, *words)
        assert replayed.returncode == 0, replayed.stderr
        until(
            lambda: {head.state for head in asyncio.run(newer.heads())} == {LetterState.RESOLVED},
            "verdicts of the previous consumer resolve them",
            60,
        )
    finally:
        shop.end()
        newer.end()
