"""A process that is flooded with dead letters writes a few lines a second, and tells the rest before it ends."""

import json
import subprocess
import sys
from typing import Any

import pytest

FLOODED = """
import asyncio, sys
from datetime import UTC, datetime
from redrive.letters import DeadLetter, Failure, Message, Origin
from redrive.letters.event import DeadLettered
from redrive.watch.logs import Logs, configure


def event():
    failure = Failure(error_type="ValueError", text="no such article", at=datetime.now(UTC))
    origin = Origin(transport="rabbitmq", source="orders")
    letter = DeadLetter.create(
        Message(body=b"s3cr3t-Body", message_id="m-17"), origin, failure, key="17", reason="NonRetryableError"
    )
    return DeadLettered.of(
        letter, at=datetime.now(UTC), description=failure.text, dead_letter_queue="orders.dlq", delivery_count=1
    )


async def main():
    logs, one = Logs(), event()
    for _ in range(10_000):
        logs.dead_lettered(one)
    if "wait" in sys.argv:
        await asyncio.sleep(2)
        print("waited", file=sys.stderr, flush=True)


configure("info", sys.argv[1])
asyncio.run(main())
"""


def run(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", FLOODED, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr.splitlines()


def told(lines: list[dict[str, Any]], begin: str) -> int:
    return sum(line.get("suppressed", 1) for line in lines if line["message"].startswith(begin))


def test_every_dead_letter_of_a_flood_is_written_or_counted() -> None:
    lines = [json.loads(line) for line in run("json")]
    assert told(lines, "Non-retryable error for message: ") == 10_000
    assert told(lines, "Published failed message to DLQ: ") == 10_000
    assert 42 <= len(lines) < 500, "so few, however slow the machine is"
    assert lines[0] == {
        **lines[0],
        "level": "warning",
        "logger": "redrive.consume",
        "message": "Non-retryable error for message: MessageId=m-17, Error=no such article",
        "queue_name": "orders",
        "message_id": "m-17",
        "error_type": "ValueError",
    }
    assert "s3cr3t-Body" not in json.dumps(lines)


@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_flood_that_has_ended_is_told_of_while_the_process_does_nothing(format_: str) -> None:
    lines = run(format_, "wait")
    assert lines[-1] == "waited"
    assert " more" in lines[-2], "the number came before the process was done waiting"
