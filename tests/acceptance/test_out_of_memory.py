"""A handler that runs out of memory is a failed attempt of its message alone.

The consumer limits its address space, as `ulimit -v` does. A process that the kernel ends instead is tried in
`test_crashing_message`.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pika
import pytest

from tests.acceptance.serving import PROGRAM, channel, clean_environment, until
from tests.services import RabbitMQ

SHOP = """
    import os, resource
    from pathlib import Path
    from redrive import App

    MEGABYTE = 1 << 20
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + 256 * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    app = App({url!r})

    @app.consume("orders", attempts=2, max_deliveries=1)
    async def handle(body: bytes) -> None:
        with open("runs", "ab") as runs:
            runs.write(body + b"\\n")
        if body == b"large":
            bytearray(8192 * MEGABYTE)
        elif body == b"many":
            hoard = []
            while True:
                hoard.append(bytearray(4096))
        with open("done", "ab") as done:
            done.write(body + b" %d\\n" % os.getpid())
"""


def consumers(url: str) -> int:
    try:
        with channel(url) as amqp:
            return int(amqp.queue_declare("orders", passive=True).method.consumer_count)
    except pika.exceptions.ChannelClosedByBroker:  # there is no such queue yet
        return 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and other systems do not enforce RLIMIT_AS")
@pytest.mark.parametrize("body", [b"large", b"many"])
def test_only_the_message_whose_handler_runs_out_of_memory_fails(
    embedded: RabbitMQ, body: bytes, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP.format(url=embedded.amqp_url)))
    with (tmp_path / "log").open("wb") as log:
        consumer = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "consume", "shop"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        with channel(embedded.amqp_url) as amqp:
            until(lambda: consumers(embedded.amqp_url), "the consumer is there")
            # Given messages before and after the one whose handler runs out of memory
            wanted = {b"%d" % number for number in range(20)}
            for each in (*sorted(wanted)[:10], body, *sorted(wanted)[10:]):
                amqp.basic_publish("", "orders", each)

            def dead() -> int:
                return int(amqp.queue_declare("orders.dlq", passive=True).method.message_count)

            # When all have been handled
            done = tmp_path / "done"
            until(lambda: dead() == 1 and len(done.read_bytes().splitlines()) == 20, "all are handled")
            _, properties, dead_body = amqp.basic_get("orders.dlq", auto_ack=True)
        # Then that message alone is a dead letter, and the process has not ended
        assert dead_body == body
        assert properties.headers["redrive-error-type"] == "MemoryError"
        assert (tmp_path / "runs").read_bytes().splitlines().count(body) == 2
        assert {line.split()[0] for line in done.read_bytes().splitlines()} == wanted
        assert {int(line.split()[1]) for line in done.read_bytes().splitlines()} == {consumer.pid}
        consumer.terminate()
        assert consumer.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        consumer.kill()
        consumer.wait(30)
