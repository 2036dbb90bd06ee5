"""Does amqplib, the client of Node.js, work with the broker?

The one rule: `node/scenarios.mjs` does, this file says what should come out. amqplib has no transactions. Every test
runs against each broker of `brokers.py`.
"""

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.services import TOOLS, Missing, look_for_program
from tests.services.tools import NODE

Play = Callable[[str], Any]


@pytest.fixture
def play(broker_url: str) -> Play:
    """What came out of a scenario."""
    found = look_for_program(TOOLS["amqplib"], os.environ)
    if isinstance(found, Missing):
        found.end_test()

    def play(scenario: str) -> Any:
        done = subprocess.run(
            ["node", NODE / "scenarios.mjs", broker_url, scenario],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return play


def test_a_message_is_published_and_got(play: Play) -> None:
    assert play("publishAndGet") == {
        "body": "body",
        "contentType": "text/plain",
        "headers": {"n": 1, "s": "text"},
        "then": False,
    }


def test_a_consumer_gets_messages_in_order(play: Play) -> None:
    assert play("consume") == ["1", "2", "3"]


def test_publishes_are_confirmed(play: Play) -> None:
    assert play("confirm") == 50


def test_a_full_queue_nacks(play: Play) -> None:
    assert play("nack") == ["ack", "nack"]


def test_an_unroutable_mandatory_message_comes_back(play: Play) -> None:
    assert play("mandatory") == {
        "replyCode": 312,
        "replyText": "NO_ROUTE",
        "routingKey": "nowhere",
        "body": "body",
    }


def test_a_rejected_message_is_dead_lettered(play: Play) -> None:
    assert play("reject") == {
        "body": "body",
        "messageId": "id",
        "deliveryMode": 2,
        "deaths": 1,
        "death": {"source": True, "reason": "rejected", "count": 1, "exchange": "", "keys": 1},
        "first": "rejected",
    }


def test_an_expired_message_is_dead_lettered(play: Play) -> None:
    assert play("expire") == {"reason": "expired", "original": "50", "expiration": None}


def test_a_priority_queue_delivers_the_highest_first(play: Play) -> None:
    assert play("priority") == ["5", "3", "1"]


def test_topology_errors_have_their_codes_and_leave_the_connection_alone(play: Play) -> None:
    refusals = play("refusals")

    assert {name: refusal["code"] for name, refusal in refusals.items() if name != "alive"} == {
        "missing": 404,
        "different": 406,
        "locked": 405,
        "reserved": 403,
    }
    assert "NOT_FOUND - no queue" in refusals["missing"]["text"]
    assert "inequivalent arg 'durable'" in refusals["different"]["text"]
    assert refusals["alive"]


def test_no_more_is_delivered_than_the_prefetch_allows(play: Play) -> None:
    assert play("prefetch") == {"ready": 1, "before": 2, "after": 3}


def test_a_consumer_is_told_when_its_queue_is_deleted(play: Play) -> None:
    assert play("cancelNotify") == "told"
