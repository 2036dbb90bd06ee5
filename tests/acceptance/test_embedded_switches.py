"""Extensions of the embedded broker that are switched off in the settings, as a client of RabbitMQ meets them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.serving import Serving, channel, until

ARGUMENTS = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
    "x-message-ttl": 1,
    "x-max-length": 1,
}
IGNORED = {
    "x-dead-letter-exchange": "enable_dlx",
    "x-dead-letter-routing-key": "enable_dlx",
    "x-message-ttl": "enable_ttl",
    "x-max-length": "enable_length_limit",
}
OFF = "[embedded]\nenable_dlx = false\nenable_ttl = false\nenable_length_limit = false\n"
VARIABLES = {f"REDRIVE_EMBEDDED_{name.upper()}": "false" for name in set(IGNORED.values())}


def use(there: Any) -> None:
    """Two messages in a queue of one place that expire at once; one is rejected, the other is still there."""
    there.confirm_delivery()
    there.queue_declare("dead")
    there.queue_declare("work", arguments=ARGUMENTS)
    for body in (b"first", b"second"):
        there.basic_publish("", "work", body)
    method, _, body = there.basic_get("work")
    assert body == b"first"  # neither dropped by the limit nor expired
    there.basic_reject(method.delivery_tag, requeue=False)
    _, properties, body = there.basic_get("work", auto_ack=True)
    assert body == b"second"
    assert not (properties.headers or {}).get("x-death")
    assert there.basic_get("dead")[0] is None


def assert_warned(log: str) -> None:
    for argument, switch in IGNORED.items():
        words = f"argument '{argument}' of queue 'work' in vhost '/' is ignored: {switch} is off"
        assert words in log


@contextlib.contextmanager
def broker(place: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "redrive", "broker", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env={**os.environ, **variables},
    )
    try:
        assert process.stdout is not None
        found = re.search(r"amqp://\S+", process.stdout.readline())
        assert found
        yield process, found.group()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("given", ["file", "variables", "options"])
def test_broker_ignores_the_arguments_of_extensions_that_are_off(tmp_path: Path, given: str) -> None:
    if given == "file":
        (tmp_path / "redrive.toml").write_text(OFF)
    options = ("--no-dlx", "--no-ttl", "--no-length-limit") if given == "options" else ()
    with broker(tmp_path, *options, **(VARIABLES if given == "variables" else {})) as (process, url):
        with channel(url) as there:
            use(there)
        process.send_signal(signal.SIGTERM)
        assert_warned(process.communicate(timeout=30)[1])


def test_option_wins_over_the_settings(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(OFF)
    with broker(tmp_path, "--dlx") as (_, url), channel(url) as there:
        there.queue_declare("dead")
        there.queue_declare("work", arguments=ARGUMENTS)
        there.basic_publish("", "work", b"first")
        until(lambda: there.queue_declare("work", passive=True).method.message_count, "the message arrives")
        there.basic_reject(there.basic_get("work")[0].delivery_tag, requeue=False)
        until(
            lambda: there.queue_declare("dead", passive=True).method.message_count,
            "the message is dead-lettered",
        )


def test_server_hands_the_switches_to_its_embedded_broker(tmp_path: Path) -> None:
    server = Serving(
        tmp_path,
        "--broker-port",
        "0",
        "--management-port",
        "0",
        settings=f"{OFF}collect_all = false\n",
    )
    try:
        with channel(server.broker) as there:
            use(there)
        until(lambda: "enable_length_limit is off" in "".join(server.errors), "the warnings are in the log")
        assert_warned("\n".join(server.errors))
    finally:
        server.end(signal.SIGKILL)
