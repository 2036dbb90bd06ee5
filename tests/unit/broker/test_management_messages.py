"""What happens to messages that are published and fetched over the management API?"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive.amqp.frames import content_header
from redrive.amqp.hot import publish_payload
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.amqp.values import DecimalValue, RawStr, Timestamp
from redrive.broker.channel import Channel
from redrive.broker.session import Session
from tests.unit.broker.management_place import Place, place

DEAD = {"durable": True, "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}}


@pytest.fixture
async def here() -> AsyncIterator[Place]:
    async with place() as made:
        yield made


class TestMessages:
    @pytest.fixture(autouse=True)
    async def queues(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", DEAD)
        await here.do("PUT", "/api/queues/%2F/dlq", {"durable": True})

    async def test_a_publish_tells_whether_a_queue_was_reached(self, here: Place) -> None:
        assert await here.publish("q") is True
        assert await here.publish("nowhere") is False

    async def test_what_was_published_is_what_is_fetched(self, here: Place) -> None:
        headers = {"a": 1, "deep": {"list": [1, "x", True, 1.5]}}
        await here.publish("q", "é", headers=headers, delivery_mode=2, message_id="m")
        (message,) = await here.fetch("q")
        assert message == {
            "payload_bytes": 2, "redelivered": False, "exchange": "", "routing_key": "q", "message_count": 0,
            "properties": {"headers": headers, "delivery_mode": 2, "message_id": "m"}, "payload": "é",
            "payload_encoding": "string",
        }  # fmt: skip

    async def test_octets_that_are_no_text_come_in_base64(self, here: Place) -> None:
        body = {"routing_key": "q", "properties": {}, "payload": "/wAB", "payload_encoding": "base64"}
        await here.do("POST", "/api/exchanges/%2F/amq.default/publish", body)
        (message,) = await here.fetch("q", truncate=2)
        assert (message["payload"], message["payload_encoding"], message["payload_bytes"]) == (
            "/wA=",
            "base64",
            3,
        )

    @pytest.mark.parametrize(
        ("mode", "left", "dead"),
        [
            ("ack_requeue_true", ["1", "2", "3"], []),
            ("reject_requeue_true", ["1", "2", "3"], []),
            ("ack_requeue_false", ["3"], []),
            ("reject_requeue_false", ["3"], ["1", "2"]),
        ],
    )
    async def test_messages_are_settled_after_all_are_fetched(
        self, here: Place, mode: str, left: list[str], dead: list[str]
    ) -> None:
        for payload in "123":
            await here.publish("q", payload)
        assert [one["payload"] for one in await here.fetch("q", mode, 2)] == ["1", "2"]
        assert [one["payload"] for one in await here.fetch("q")] == left
        letters = await here.fetch("dlq")
        assert [one["payload"] for one in letters] == dead
        for letter in letters:
            assert letter["properties"]["headers"]["x-death"][0]["reason"] == "rejected"
        assert here.queue("q").unacked == 0

    async def test_fetching_with_requeue_does_not_count_as_a_failure(self, here: Place) -> None:
        limited = {"durable": True, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 2}}
        await here.do("PUT", "/api/queues/%2F/limited", limited)
        await here.publish("limited")
        looks = [message for _ in range(25) for message in await here.fetch("limited")]
        assert [message["redelivered"] for message in looks] == [False] + [True] * 24
        assert looks[-1]["properties"]["headers"] == {"x-acquired-count": 24}
        for failures in range(1, 4):
            await here.fetch("limited", "reject_requeue_true")
            left = [one["properties"]["headers"]["x-delivery-count"] for one in await here.fetch("limited")]
            assert left == [failures] * (failures <= 2)

    async def test_a_full_queue_that_refuses_is_told(self, here: Place) -> None:
        full = {"arguments": {"x-max-length": 0, "x-overflow": "reject-publish"}}
        await here.do("PUT", "/api/queues/%2F/full", full)
        body = {"routing_key": "full", "properties": {}, "payload": "", "payload_encoding": "string"}
        reply = await here.call("POST", "/api/exchanges/%2F/amq.default/publish", body)
        assert reply.body["reason"] == "rejected Unable to publish message. Check queue limits."

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"payload_encoding": "x"}, ["unsupported_encoding", "x"]),
            ({"payload": "%", "payload_encoding": "base64"}, ["not_base64", "%"]),
            ({"payload": {}}, "payload_not_string"),
            ({"properties": {"priority": "x"}}, ["not_int", "priority"]),
            ({"properties": {"type": 5}}, ["not_string", "type"]),
            ({"properties": {"headers": {"a": None}}}, "null_not_allowed"),
            ({"properties": 5}, "properties should be an object"),
            (
                {"properties": {"expiration": "x"}},
                "406 PRECONDITION_FAILED - invalid expiration 'x': no_integer",
            ),
        ],
    )
    async def test_a_publish_that_makes_no_sense_is_refused(
        self, here: Place, change: dict[str, Any], reason: object
    ) -> None:
        body = {"routing_key": "q", "properties": {}, "payload": "", "payload_encoding": "string", **change}
        reply = await here.call("POST", "/api/exchanges/%2F/amq.default/publish", body)
        assert (reply.status, reply.body["reason"]) == (400, reason)
        assert here.queue("q").ready == 0

    async def test_what_a_get_lacks_is_named(self, here: Place) -> None:
        reply = await here.call("POST", "/api/queues/%2F/q/get", {"count": 1})
        assert reply.body["reason"] == "[{key_missing,ackmode},{key_missing,encoding}]"
        for change in ({"ackmode": "x"}, {"encoding": "x"}, {"count": "x"}, {"truncate": None}):
            body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", **change}
            assert (await here.call("POST", "/api/queues/%2F/q/get", body)).status == 400

    async def test_json_can_hold_every_header_that_amqp_can(self, here: Place) -> None:
        session = Session(here.broker, "test")
        session.vhost, session.user = here.broker.vhosts["/"], "guest"
        headers = {
            "raw": RawStr(b"\xff"),
            "bytes": b"\xfe",
            "decimal": DecimalValue(1, 15),
            "time": Timestamp(7),
        }
        raw = encode_properties(BasicProperties(headers=headers, app_id="\udcff", timestamp=9))
        Channel(session, 1).publish(publish_payload(b"", b"q"), content_header(raw, 0), b"")
        (message,) = await here.fetch("q")
        assert message["properties"]["headers"] == {"raw": "�", "bytes": "�", "decimal": 1.5, "time": 7}
        assert message["properties"]["app_id"] == "�"
        json.dumps(message)
