"""Dead letters, redrives and verdicts that earlier versions wrote are understood completely."""

import json
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from redrive.letters import FailureKind
from redrive.letters.redrive import HEADERS
from tests.golden.messages import body_of, put_amqp, put_kafka
from tests.golden.plain import check, read_json
from tests.golden.reading import collected, letter_content, received, verdicts_of
from tests.services import EmbeddedServer, Kafka, Run

V1 = Path(__file__).parent / "v1"
BROKERS = ("rabbitmq", "kafka")
RECORDED: dict[str, Any] = {broker: read_json(V1 / f"messages-{broker}.json") for broker in BROKERS}


@pytest.fixture
def embedded(service_run: Run) -> Any:
    with service_run.address(EmbeddedServer, {}).fresh() as vhost:
        yield vhost


async def test_rabbitmq_dead_letters_of_version_1_become_the_same_letters(embedded: Any) -> None:
    await _check_dead_letters("rabbitmq", embedded.amqp_url, partial(put_amqp, embedded.amqp_url), "")


async def test_rabbitmq_retries_and_redrives_of_version_1_are_recognized(embedded: Any) -> None:
    await _check_received("rabbitmq", embedded.amqp_url, partial(put_amqp, embedded.amqp_url), "")


async def test_kafka_dead_letters_of_version_1_become_the_same_letters(kafka: Kafka) -> None:
    await _check_dead_letters("kafka", kafka.url, partial(put_kafka, kafka.bootstrap), kafka.prefix)


async def test_kafka_retries_and_redrives_of_version_1_are_recognized(kafka: Kafka) -> None:
    await _check_received("kafka", kafka.url, partial(put_kafka, kafka.bootstrap), kafka.prefix)


async def _check_dead_letters(broker: str, url: str, put: Callable[..., None], prefix: str) -> None:
    for one in RECORDED[broker]["dead_letters"]:
        queue, messages = prefix + one["queue"], one["messages"]
        letters = await collected(url, queue, partial(put, queue, messages), len(messages))
        found = [letter_content(letter) for letter in letters]
        # An id is a hash of the key. Where the key names the dead-letter topic, both are different here.
        expected = [
            recorded if prefix not in letter["key"] or not prefix else {**recorded, "id": letter["id"]}
            for recorded, letter in zip(one["letters"], found, strict=True)
        ]
        expected = [
            _with_group(_without_redrive(recorded), letter)
            for recorded, letter in zip(expected, _unprefixed(found, prefix), strict=True)
        ]
        check(_comparable(expected, broker), _comparable(_unprefixed(found, prefix), broker))
        attempts = [_attempt(recorded) for recorded in one["letters"]]
        assert [letter.prior_redrives for letter in letters] == attempts


def _without_redrive(recorded: Any) -> Any:
    """A deliberate difference: version 1 kept the headers of a redrive on a new letter, for the sake of its count."""
    headers = [pair for pair in recorded["message"]["headers"]["headers"] if pair[0] not in HEADERS]
    return {**recorded, "message": {**recorded["message"], "headers": {"headers": headers}}}


def _with_group(recorded: Any, found: Any) -> Any:
    """A deliberate difference: version 1 did not read the consumer group of an ONEX dead letter."""
    if recorded["origin"]["group"] is None and found["origin"]["group"] == "billing-onex":
        return {**recorded, "origin": {**recorded["origin"], "group": "billing-onex"}}
    return recorded


def _attempt(recorded: Any) -> int:
    pairs = dict(map(tuple, recorded["message"]["headers"]["headers"]))
    value = pairs.get("redrive-attempt", 0)
    return int(value["bytes"]) if isinstance(value, dict) else value


async def _check_received(broker: str, url: str, put: Callable[..., None], prefix: str) -> None:
    for one in RECORDED[broker]["received"]:
        queue, to, messages = prefix + one["queue"], prefix + one["to"], one["messages"]
        found = await received(url + one["options"], queue, partial(put, to, messages), len(messages))
        check(_comparable(one["deliveries"], broker), _comparable(_unprefixed(found, prefix), broker))


def _comparable(value: Any, broker: str) -> Any:
    """The value with the headers in order of their names: AMQP tables have no order, and brokers may change it."""
    if broker != "rabbitmq":
        return value
    if isinstance(value, dict):
        items = {name: _comparable(item, broker) for name, item in value.items()}
        return (
            {"headers": sorted(items["headers"], key=itemgetter(0))} if items.keys() == {"headers"} else items
        )
    return [_comparable(item, broker) for item in value] if isinstance(value, list) else value


def _unprefixed(value: Any, prefix: str) -> Any:
    """The value without the prefix that the names of this test have."""
    return json.loads(json.dumps(value).replace(prefix, "")) if prefix else value


@pytest.mark.parametrize("broker", BROKERS)
def test_verdicts_of_version_1_are_parsed(broker: str) -> None:
    recorded = RECORDED[broker]["verdicts"]
    check(recorded["parsed"], [verdicts_of(body_of(record)) for record in recorded["messages"]])
    assert sum(map(len, recorded["parsed"])) > 1


@pytest.mark.parametrize("broker", BROKERS)
def test_recording_has_every_kind_of_failure(broker: str) -> None:
    recorded = RECORDED[broker]
    letters = [letter for one in recorded["dead_letters"] for letter in one["letters"]]
    assert {letter["kind"] for letter in letters} == set(FailureKind)
    waits, returns = recorded["received"]
    assert all(one["delivery_count"] > 1 for one in waits["deliveries"])
    assert {one["redrive"]["operation"] is None for one in returns["deliveries"]} == {True, False}
    if broker == "kafka":
        assert "billing-onex.dlq" in {one["queue"] for one in recorded["dead_letters"]}
        assert {letter["message"]["body"] is None for letter in letters} == {True, False}
