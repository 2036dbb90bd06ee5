"""`redrive serve` as a process: it collects, sends back and resolves, and outlives what can happen to it."""

import asyncio
import os
import signal
import stat
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pika
import pytest

from redrive.letters import LetterState
from tests.acceptance.serving import (
    PATIENCE,
    QUICK,
    Process,
    Serving,
    channel,
    is_there,
    redrive,
    serving,
    until,
)
from tests.services import RabbitMQ, RabbitMQServer

SHOP = """
    from pathlib import Path
    from redrive import App, Context

    app = App({url!r})

    @app.consume("orders", concurrency=1)
    async def handle(body: bytes, context: Context) -> None:
        seen = Path("seen")
        again = seen.exists() and body.decode() in seen.read_text()
        with seen.open("a") as file:
            file.write(body.decode() + "\\n")
        if not again:
            raise TimeoutError("the bank did not answer")
"""


async def letters_become(server: Serving, states: dict[LetterState, int]) -> None:
    """Wait until the letters are in these states."""
    end = time.monotonic() + PATIENCE
    while True:
        heads = await server.heads()
        found = {state: sum(head.state is state for head in heads) for state in states}
        if found == states and len(heads) == sum(states.values()):
            return
        assert time.monotonic() < end, f"{found} and not {states}; {server.errors[-5:]}"
        await asyncio.sleep(0.05)


async def the_way_back(server: Serving, place: Path) -> float:
    """A message dies in a consumer's process, is collected, sent back, processed, and resolved; how long that took."""
    (place / "shop.py").write_text(textwrap.dedent(SHOP.format(url=server.broker)))
    consumer = Process(place, "consume", "shop")
    try:
        consumer.until_it_says("redrive consume")
        with channel(server.broker) as amqp:
            until(
                lambda: amqp.queue_declare("orders", passive=True).method.consumer_count,
                "the consumer is there",
            )
            began = time.monotonic()
            amqp.basic_publish("", "orders", b"order 17")
            await letters_become(server, {LetterState.RESOLVED: 1})
            took = time.monotonic() - began
    finally:
        assert consumer.end() == 0
    assert (place / "seen").read_text() == "order 17\norder 17\n"
    [head] = await server.heads()
    assert (head.dlq_retry_count, head.presumed, head.error_type) == (1, False, "TimeoutError")
    assert (
        server.metric("redrive_letters_collected_total")
        == server.metric("redrive_letters_resolved_total")
        == 1
    )
    # A verdict that is quicker than the worker's own note finds the letter done; the note is then stale.
    assert server.metric("redrive_redrives_sent_total") + server.metric("redrive_stale_writes_total") == 1
    assert server.metric("redrive_time_in_dlq_mean_seconds") < PATIENCE
    return took


# --- the way back ------------------------------------------------------------------------------------------


async def test_from_nothing_a_message_dies_and_is_sent_back_and_resolved(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.health()[0] == 200
        await the_way_back(server, tmp_path)
        assert server.end() == 0


async def test_on_a_rabbitmq_a_message_dies_and_is_sent_back_and_resolved(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    with serving(tmp_path, "--broker", rabbitmq.amqp_url) as server:
        assert "embedded_broker" not in server.health()[1]
        server.broker = rabbitmq.amqp_url  # what it says has no password
        await the_way_back(server, tmp_path)
        assert server.end() == 0


async def test_dead_letters_of_another_system_are_collected_as_they_are(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    with channel(rabbitmq.amqp_url) as amqp:
        amqp.queue_declare("legacy.dead", durable=True)
        amqp.queue_declare(
            "legacy",
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "legacy.dead"},
        )
        for number in range(20):
            amqp.basic_publish("", "legacy", b"%d" % number)
        time_of_grace = time.monotonic() + PATIENCE
        rejected = 0
        while rejected < 20:
            assert time.monotonic() < time_of_grace
            method, _, _ = amqp.basic_get("legacy")
            if method is not None:
                amqp.basic_reject(method.delivery_tag, requeue=False)
                rejected += 1
    settings = QUICK + '\n    [broker]\n    dead_letter_queues = ["legacy.dead"]\n'
    with serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings) as server:
        # Nobody says why they were rejected, so a person has to look at them.
        await letters_become(server, {LetterState.MANUAL: 20})
        assert {head.source for head in await server.heads()} == {"legacy"}
        assert server.metric("redrive_letters_parked_total") == 20


async def test_without_settings_every_dead_letter_queue_of_the_embedded_broker_is_found(
    tmp_path: Path,
) -> None:
    settings = QUICK.replace("[[sources]]", "").replace('name = "orders"', "")
    with serving(tmp_path, settings=settings) as server:
        assert not any(name.endswith(".dlq") for name in server.health()[1]["services"])
        await the_way_back(server, tmp_path)
        assert server.health()[1]["services"]["embedded/orders.dlq"] == "ok"
        with channel(server.broker) as amqp:
            amqp.queue_delete("orders.dlq")
        until(
            lambda: "embedded/orders.dlq" not in server.health()[1]["services"],
            "who has nothing to collect is gone",
        )
        assert server.health()[0] == 200
        assert server.end() == 0


# --- one at a time -----------------------------------------------------------------------------------------


def test_a_second_server_on_the_same_store_is_refused_and_told_whom_it_met(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        second = redrive(tmp_path, "serve", "--data", "data", "--port", "0")
        assert second.returncode == 3
        assert second.stdout == ""
        assert second.stderr == (
            f"redrive: another redrive serve (process {server.process.pid}) is using data/redrive.db; "
            "stop it, or use another store\n"
        )
        assert server.health()[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org", "::"])
def test_a_server_does_not_listen_beyond_this_machine(tmp_path: Path, host: str) -> None:
    refused = redrive(tmp_path, "serve", REDRIVE_SERVER_HOST=host)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"redrive: server.host = '{host}' is not a loopback address")
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        taken = server.broker.rpartition(":")[2].strip("/")
        (tmp_path / "other").mkdir()
        refused = redrive(tmp_path / "other", "serve", "--port", "0", "--broker-port", taken)
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1].startswith(
            "redrive: the embedded broker did not start: cannot listen on"
        )


# --- what can happen to it ---------------------------------------------------------------------------------


def _rejecting(server: Serving, count: int) -> None:
    """So many messages die on the broker, without a word."""
    with channel(server.broker) as amqp:
        amqp.confirm_delivery()
        for number in range(count):
            amqp.basic_publish("", "orders.dlq", b"%d" % number, pika.BasicProperties(delivery_mode=2))


async def test_a_server_that_is_killed_loses_nothing_and_leaves_nobody_behind(tmp_path: Path) -> None:
    # Given a server that is killed while it collects
    count = 400
    settings = QUICK + "\n    [collect]\n    batch_size = 10\n"
    with serving(tmp_path, settings=settings) as server:
        broker = server.broker_pid()
        _rejecting(server, count)
        server.process.kill()
        server.end(signal.SIGKILL)
        until(lambda: not is_there(broker), "the broker is gone with it")
    # When it is started again
    with serving(tmp_path, settings=settings) as server:
        end = time.monotonic() + PATIENCE
        bodies: set[bytes | None] = set()
        heads = await server.heads()
        while len(bodies) < count and time.monotonic() < end:
            heads = await server.heads()
            bodies = await _bodies(server, [head.id for head in heads])
            await asyncio.sleep(0.1)
        # Then every message is there
        assert bodies == {b"%d" % number for number in range(count)}
        assert len(heads) == count
        assert server.end() == 0


async def test_a_server_that_is_killed_again_and_again_keeps_each_dead_letter_once(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    # Given more dead letters than a server can collect before it is killed
    count = 4000
    # What a worker held when it was killed is rescued when its lease ends.
    settings = QUICK.replace('poll_interval = "50ms"', 'poll_interval = "50ms"\n    lease = "1s"') + (
        "\n    [collect]\n    batch_size = 20\n"
    )
    with serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings) as server:
        assert server.end() == 0  # the queues are there now
    with channel(rabbitmq.amqp_url) as amqp:
        for number in range(count):
            amqp.basic_publish("", "orders.dlq", b"%d" % number)
        until(
            lambda: amqp.queue_declare("orders.dlq", passive=True).method.message_count == count, "all wait"
        )
    # When it is killed in the middle of its work, three times
    kept: list[int] = []
    for _ in range(3):
        with serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings) as server:
            until(lambda server=server: server.metric("redrive_letters_collected_total") > 0, "it collects")  # type: ignore[misc]
            kept.append(len(await server.heads()))
            server.end(signal.SIGKILL)
    assert kept[0] < count
    # Then the next one has every message, each once
    with serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings) as server:
        await letters_become(server, {LetterState.MANUAL: count})
        ids = [head.id for head in await server.heads()]
        bodies = [await _bodies(server, ids[at : at + 500]) for at in range(0, count, 500)]
        assert set().union(*bodies) == {b"%d" % number for number in range(count)}


async def _bodies(server: Serving, ids: list[str]) -> set[bytes | None]:
    from redrive.stores.remote import RemoteStore

    store = await RemoteStore.open(server.http)
    try:
        return {letter.message.body for letter in await store.load(ids)}
    finally:
        await store.close()


async def test_the_embedded_broker_is_started_again_when_it_dies(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        broker = server.broker_pid()
        # When the broker dies
        os.kill(broker, signal.SIGKILL)
        # Then it comes back at the same place, perhaps before anybody could ask, and everything goes on
        until(lambda: server.health()[1]["embedded_broker"]["restarts"] == 1, "it was started again")
        until(lambda: server.health()[0] == 200, "the server is well again")
        assert server.broker_pid() != broker
        await the_way_back(server, tmp_path)
        assert any("embedded broker exited" in line for line in server.errors)


def test_a_broker_that_hangs_is_told_and_so_is_that_it_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        broker = server.broker_pid()
        os.kill(broker, signal.SIGSTOP)
        until(lambda: server.health()[0] == 503, "the server says that it is not well")
        assert server.health()[1]["broker"] == "no answer within 2 s"
        assert server.health()[1]["store"] == "ok"
        os.kill(broker, signal.SIGCONT)
        until(lambda: server.health()[0] == 200, "the server is well again")
        assert server.broker_pid() == broker


def test_a_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "0") as server:
        file = tmp_path / "data" / "redrive.db"
        file.write_bytes(b"\xff" * file.stat().st_size)  # a disk that gives nonsense
        until(lambda: server.health()[0] == 503, "the server says that it is not well")
        assert "Store" in server.health()[1]["store"]
        assert server.health()[1]["broker"] == "ok"
        assert server.end() == 0


def test_a_second_signal_ends_at_once_and_takes_the_broker_with_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        # Given a server that waits for its broker to end
        broker = server.broker_pid()
        os.kill(broker, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: any("server stopping" in line for line in server.errors), "it has begun to stop")
        # When it is asked once more
        assert server.end(signal.SIGTERM) == 130
        until(lambda: not is_there(broker), "the broker is gone with it")


@pytest.mark.slow
def test_a_broker_that_hangs_does_not_keep_it_from_stopping(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        broker = server.broker_pid()
        os.kill(broker, signal.SIGSTOP)
        began = time.monotonic()
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < 60
        assert not is_there(broker)


async def test_a_rabbitmq_that_goes_away_is_waited_for(tmp_path: Path, own_rabbitmq: RabbitMQServer) -> None:
    with serving(tmp_path, "--broker", own_rabbitmq.amqp_url) as server:
        own_rabbitmq.stop()
        until(lambda: server.health()[0] == 503, "the server says that it is not well")
        assert "no answer" in server.health()[1]["broker"]
        own_rabbitmq.start()
        until(lambda: server.health()[0] == 200, "the server is well again")
        server.broker = own_rabbitmq.amqp_url
        await the_way_back(server, tmp_path)


def test_sigterm_ends_everything_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        broker = server.broker_pid()
        assert server.end(signal.SIGTERM) == 0
        assert not is_there(broker)
        assert [line.partition("redrive.server: ")[2] for line in server.errors] == ["server stopping"]
    with serving(tmp_path) as again:  # neither lock nor port nor journal is held
        assert again.end(signal.SIGINT) == 0


# --- over HTTP ---------------------------------------------------------------------------------------------


def test_the_command_line_uses_the_store_of_a_running_server(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        checked = redrive(tmp_path, "store", "check", REDRIVE_STORE_URL=server.http)
        assert checked.stderr == ""
        assert checked.stdout.startswith(f"{server.http}: no damage found, 0 letters\n")
        url = server.http
    gone = redrive(tmp_path, "store", "check", REDRIVE_STORE_URL=url)
    assert gone.returncode == 3
    assert gone.stderr.startswith(f"redrive: the store at {url} does not answer: Connection refused")
    assert gone.stderr.count("\n") == 1


def _status(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_page_in_a_browser_cannot_use_the_store(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        damage = f"{server.http}/store/damage"
        form = {"Content-Type": "text/plain"}
        (key_file,) = tmp_path.rglob("server.key")
        key = {"Authorization": f"Bearer {key_file.read_text().strip()}"}
        form |= key
        ours = {"Content-Type": "application/msgpack", **key}
        assert _status(urllib.request.Request(damage, b"\x80", form)) == 415
        assert _status(urllib.request.Request(damage, b"\x80", {**ours, "Host": "evil.example"})) == 403
        assert (
            _status(urllib.request.Request(damage, b"\x80", {**ours, "Origin": "http://evil.example"})) == 403
        )
        assert _status(urllib.request.Request(damage, b"\x80", ours)) == 200
        assert _status(urllib.request.Request(f"{server.http}/store/close", b"\x80", ours)) == 400


def test_what_a_server_creates_is_private_and_its_store_needs_the_key(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with serving(tmp_path) as server:
            modes = {
                path: stat.S_IMODE(path.stat().st_mode)
                for path in (tmp_path / "data").rglob("*")
                if path.exists()
            }
            others = {path.name: oct(mode) for path, mode in modes.items() if mode & 0o077}
            assert {"redrive.db", "redrive.db-wal", "server.key", "broker"} <= {path.name for path in modes}
            assert others == {}
            count = f"{server.http}/store/count"
            ours = {"Content-Type": "application/msgpack"}
            assert _status(urllib.request.Request(count, b"\x80", ours)) == 401
            listed = redrive(tmp_path, "list", "--server", server.http)
            assert (listed.returncode, listed.stdout) == (0, "no letters match\n")
            (tmp_path / "data" / "server.key").rename(tmp_path / "moved")
            refused = redrive(tmp_path, "list", "--server", server.http)
            assert refused.returncode == 3
            assert "run as the account of the server, or set REDRIVE_SERVER_KEY" in refused.stderr
            key = (tmp_path / "moved").read_text().strip()
            again = redrive(tmp_path, "list", "--server", server.http, REDRIVE_SERVER_KEY=key)
            assert again.stdout == listed.stdout
    finally:
        os.umask(before)
