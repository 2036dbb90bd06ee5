"""Does the management API show and do what it says?"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive.broker.core import Broker
from redrive.broker.management import start_management
from redrive.broker.management.lists import _in_portions
from redrive.broker.server import Server
from tests.unit.broker.management_place import Place, place

DEAD: dict[str, Any] = {
    "durable": True,
    "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"},
}
MISSING = {"error": "Object Not Found", "reason": "Not Found"}


@pytest.fixture
async def here() -> AsyncIterator[Place]:
    async with place() as made:
        yield made


class TestPaths:
    async def test_an_unknown_path_is_not_found(self, here: Place) -> None:
        reply = await here.call("GET", "/api/nowhere")
        assert (reply.status, reply.body) == (404, MISSING)

    async def test_a_wrong_method_is_told_the_right_ones(self, here: Place) -> None:
        reply = await here.call("POST", "/api/queues/%2F/x", {})
        assert (reply.status, reply.body) == (405, "")
        assert reply.headers["allow"] == "HEAD, GET, PUT, DELETE, OPTIONS"

    async def test_the_slash_in_a_name_is_part_of_the_name(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/a%2Fb%20c", {})
        assert [queue["name"] for queue in await here.get("/api/queues/%2F")] == ["a/b c"]
        assert (await here.get("/api/queues/%2F/a%2Fb%20c"))["vhost"] == "/"

    async def test_a_slash_at_the_end_of_a_path_changes_nothing(self, here: Place) -> None:
        assert await here.get("/api/queues/") == []

    async def test_a_name_that_is_not_utf_8_is_not_found(self, here: Place) -> None:
        assert (await here.call("GET", "/api/queues/%2F/%ff")).status == 404

    async def test_a_body_that_is_not_an_object_is_refused(self, here: Place) -> None:
        for octets in (b'{"a', b"[1]", b"5", b'"x"', b"[" * 100_000):
            reply = await here.call("PUT", "/api/queues/%2F/q", octets=octets)
            assert (reply.status, reply.body) == (400, {"error": "bad_request", "reason": "not_json"})

    async def test_a_body_that_is_too_large_is_refused(self, here: Place) -> None:
        reply = await here.call("PUT", "/api/queues/%2F/q", octets=b" " * (21 * 1024 * 1024))
        assert reply.body == {"error": "bad_request", "reason": "Exceeded HTTP request body size limit"}

    async def test_a_fault_of_ours_is_logged_and_not_told(
        self, here: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(here.broker, "vhosts", None)
        reply = await here.call("GET", "/api/queues")
        assert reply.status == 500
        assert reply.body == {"error": "internal_server_error", "reason": "see the broker's log"}
        assert "GET /api/queues failed" in caplog.text
        monkeypatch.undo()

    async def test_head_is_get_without_the_body(self, here: Place) -> None:
        reply = await here.call("HEAD", "/api/overview")
        assert (reply.status, reply.body) == (200, "")


class TestListening:
    async def test_a_taken_port_is_an_error_of_the_system(self, here: Place) -> None:
        with pytest.raises(OSError, match="in use"):
            await start_management(here.server, "127.0.0.1", here.management.port)

    async def test_it_listens_no_more_once_it_is_closed(self) -> None:
        server = Server(Broker().with_defaults())
        management = await start_management(server, "127.0.0.1", 0)
        await management.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", management.port)
        await server.close()


class TestQueues:
    async def test_a_queue_is_made_once_and_then_the_same(self, here: Place) -> None:
        assert (await here.call("PUT", "/api/queues/%2F/q", DEAD)).status == 201
        assert (await here.call("PUT", "/api/queues/%2F/q", DEAD)).status == 204
        reply = await here.call("PUT", "/api/queues/%2F/q", {})
        assert reply.status == 400
        assert reply.body["reason"].startswith("inequivalent arg 'durable' for queue 'q' in vhost '/'")

    async def test_a_queue_tells_what_a_probe_wants_to_know(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", DEAD)
        await here.do("PUT", "/api/policies/%2F/p", {"pattern": "^q$", "definition": {"max-length": 9}})
        await here.publish("q", "four", timestamp=1_700_000_000)
        queue = await here.get("/api/queues/%2F/q")
        expected = {
            "name": "q", "vhost": "/", "type": "classic", "durable": True, "auto_delete": False, "exclusive": False,
            "arguments": {**DEAD["arguments"], "x-queue-type": "classic"},
            "policy": "p", "effective_policy_definition": {"max-length": 9},
            "state": "running", "consumers": 0, "messages": 1, "messages_ready": 1, "messages_unacknowledged": 0,
            "message_bytes": 4, "message_bytes_ready": 4, "message_bytes_unacknowledged": 0,
            "head_message_timestamp": 1_700_000_000,
        }  # fmt: skip
        assert {name: queue[name] for name in expected} == expected
        assert queue["message_stats"]["publish"] == 1
        assert queue["message_stats"]["publish_details"] == {"rate": 0.0}
        assert queue["memory"] > 0
        assert queue["idle_since"].endswith("+00:00")

    async def test_an_unknown_queue_is_not_found(self, here: Place) -> None:
        for method, path in (("GET", "x"), ("DELETE", "x"), ("DELETE", "x/contents")):
            reply = await here.call(method, f"/api/queues/%2F/{path}")
            assert (reply.status, reply.body) == (404, MISSING)
        assert (await here.call("PUT", "/api/queues/no/x", {})).body["reason"] == "vhost_not_found"

    async def test_a_queue_that_holds_something_is_not_deleted_if_empty(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        await here.publish("q")
        reply = await here.call("DELETE", "/api/queues/%2F/q?if-empty=true")
        assert reply.body == {"error": "bad_request", "reason": "queue 'q' in vhost '/' not empty"}
        await here.do("DELETE", "/api/queues/%2F/q/contents")
        assert (await here.call("DELETE", "/api/queues/%2F/q?if-empty=true")).status == 204
        assert await here.get("/api/queues") == []

    async def test_switches_and_arguments_are_checked(self, here: Place) -> None:
        for body, reason in (
            ({"durable": "maybe"}, ["not_boolean", "maybe"]),
            ({"arguments": {"a": None}}, "null_not_allowed"),
            ({"arguments": 5}, "arguments should be an object"),
            ({"arguments": {"a": 1 << 63}}, ["number_too_large", str(1 << 63)]),
        ):
            assert (await here.call("PUT", "/api/queues/%2F/q", body)).body["reason"] == reason
        reply = await here.call("PUT", f"/api/queues/%2F/{'x' * 300}", {})
        assert reply.body["reason"] == "queue should be less than 255 bytes, actually was 300\n"


class TestLists:
    @pytest.fixture(autouse=True)
    async def five_queues(self, here: Place) -> None:
        for name in ("a1", "a2", "b1", "b2", "c"):
            await here.do("PUT", f"/api/queues/%2F/{name}", {})

    async def test_a_page_tells_where_it_stands(self, here: Place) -> None:
        page = await here.get("/api/queues?page=2&page_size=2&columns=name")
        assert page == {
            "filtered_count": 5, "item_count": 2, "items": [{"name": "b1"}, {"name": "b2"}], "page": 2,
            "page_count": 3, "page_size": 2, "total_count": 5,
        }  # fmt: skip

    async def test_names_are_searched_for_plainly_or_by_pattern(self, here: Place) -> None:
        plain = await here.get("/api/queues?page=1&name=1&columns=name")
        assert [row["name"] for row in plain["items"]] == ["a1", "b1"]
        pattern = await here.get("/api/queues?page=1&name=^B&use_regex=true&columns=name")
        assert [row["name"] for row in pattern["items"]] == ["b1", "b2"]

    @pytest.mark.parametrize(
        ("query", "error"),
        [
            ("page=9", "page_out_of_range"),
            ("page=0", "invalid_pagination_parameters"),
            ("page=1&page_size=501", "invalid_pagination_parameters"),
            ("page=x", "bad_request"),
            ("page=1&name=(&use_regex=true", "bad_request"),
        ],
    )
    async def test_a_page_that_makes_no_sense_is_refused(self, here: Place, query: str, error: str) -> None:
        reply = await here.call("GET", f"/api/queues?{query}")
        assert (reply.status, reply.body["error"]) == (400, error)

    async def test_a_list_is_sorted_by_what_is_inside(self, here: Place) -> None:
        await here.publish("b1")
        rows = await here.get(
            "/api/queues?sort=messages&sort_reverse=true&columns=name,message_stats.publish"
        )
        assert rows[0] == {"name": "b1", "message_stats": {"publish": 1}}


class TestExchangesAndBindings:
    async def test_the_default_exchange_goes_by_another_name(self, here: Place) -> None:
        assert (await here.get("/api/exchanges/%2F/amq.default"))["name"] == ""
        assert len(await here.get("/api/exchanges/%2F")) == 7

    async def test_a_predeclared_exchange_is_not_deleted(self, here: Place) -> None:
        reply = await here.call("DELETE", "/api/exchanges/%2F/amq.direct")
        assert (reply.status, reply.body) == (401, {"error": "not_authorised", "reason": "Access refused."})

    async def test_a_binding_is_found_and_deleted_by_its_properties_key(self, here: Place) -> None:
        await here.do("PUT", "/api/exchanges/%2F/e", {"type": "headers", "durable": True})
        await here.do("PUT", "/api/queues/%2F/q", {})
        places: list[str] = []
        for body in ({}, {"routing_key": "a~ b/"}, {"arguments": {"x-match": "all", "a": 1}}):
            reply = await here.do("POST", "/api/bindings/%2F/e/e/q/q", body)
            assert reply.status == 201
            places.append(reply.headers["location"])
            one = await here.get(f"/api/bindings/%2F/e/e/q/{places[-1]}")
            assert one["arguments"] == body.get("arguments", {})
        assert len(await here.get("/api/queues/%2F/q/bindings")) == 4
        assert len(await here.get("/api/exchanges/%2F/e/bindings/source")) == 3
        for index in (0, 2):
            await here.do("DELETE", f"/api/bindings/%2F/e/e/q/{places[index]}")
        left = await here.get("/api/bindings/%2F/e/e/q/q")
        assert [row["properties_key"] for row in left] == ["a%7E+b%2F"]

    async def test_exchanges_are_bound_to_exchanges(self, here: Place) -> None:
        await here.do("PUT", "/api/exchanges/%2F/e", {"type": "fanout"})
        await here.do("POST", "/api/bindings/%2F/e/amq.topic/e/e", {"routing_key": "#"})
        rows = await here.get("/api/exchanges/%2F/e/bindings/destination")
        assert [(row["source"], row["destination_type"]) for row in rows] == [("amq.topic", "exchange")]
        await here.do("DELETE", "/api/bindings/%2F/e/amq.topic/e/e/%2523")
        assert await here.get("/api/exchanges/%2F/e/bindings/destination") == []


class TestTheWhole:
    async def test_the_overview_adds_up(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        await here.publish("q")
        await here.fetch("q", "ack_requeue_false")
        await here.publish("q")
        await here.publish("nowhere")
        view = await here.get("/api/overview")
        assert view["rabbitmq_version"].startswith("4.")
        assert view["product_name"] == "RabbitMQ"
        assert view["object_totals"] == {
            "channels": 0, "connections": 0, "consumers": 0, "exchanges": 7, "queues": 1,
        }  # fmt: skip
        assert view["queue_totals"]["messages"] == view["queue_totals"]["messages_ready"] == 1
        stats = view["message_stats"]
        assert (stats["publish"], stats["get_no_ack"], stats["return_unroutable"]) == (3, 1, 1)
        assert {row["protocol"] for row in view["listeners"]} == {"amqp", "http"}
        await here.do("DELETE", "/api/queues/%2F/q")
        assert (await here.get("/api/overview"))["message_stats"]["get_no_ack"] == 1

    async def test_the_node_is_the_broker(self, here: Place) -> None:
        (node,) = await here.get("/api/nodes")
        assert node["running"] is True
        assert (await here.get(f"/api/nodes/{node['name']}"))["name"] == node["name"]
        assert (await here.call("GET", "/api/nodes/other")).status == 404

    async def test_health_checks_say_ok_or_what_failed(self, here: Place) -> None:
        checks = "/api/health/checks"
        for check in (
            "alarms", "local-alarms", "virtual-hosts", "is-in-service", "ready-to-serve-clients",
            f"port-listener/{here.amqp_port}", "protocol-listener/amqp", "protocol-listener/http",
        ):  # fmt: skip
            assert (await here.get(f"{checks}/{check}"))["status"] == "ok"
        reply = await here.call("GET", f"{checks}/port-listener/1")
        assert (reply.status, reply.body["status"], reply.body["missing"]) == (503, "failed", 1)
        assert (await here.call("GET", f"{checks}/port-listener/x")).status == 400
        assert (await here.call("GET", f"{checks}/protocol-listener/mqtt")).status == 503
        here.broker.block("low on memory")
        reply = await here.call("GET", f"{checks}/alarms")
        assert reply.status == 503
        assert reply.body["reason"] == "There are alarms in effect in the cluster"

    async def test_prometheus_reads_deaths_by_reason_type_and_strategy(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", DEAD)
        await here.do("PUT", "/api/queues/%2F/dlq", {})
        await here.publish("q", "four")
        await here.fetch("q", "reject_requeue_false")
        lines = (await here.call("GET", "/metrics", who=None)).body.splitlines()
        name = "rabbitmq_global_messages_dead_lettered_rejected_total"
        labels = 'queue_type="rabbit_classic_queue",dead_letter_strategy'
        assert f'{name}{{{labels}="at_most_once"}} 1' in lines
        assert f'{name}{{{labels}="disabled"}} 0' in lines
        assert "rabbitmq_queue_messages_ready 1" in lines
        assert "rabbitmq_queue_messages_ready_bytes 4" in lines

    async def test_queues_by_name_are_for_those_who_monitor(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/a%22b", {})
        assert (await here.call("GET", "/metrics/per-object", who=None)).status == 401
        text = await here.get("/metrics/per-object")
        assert 'rabbitmq_queue_messages_ready{vhost="/",queue="a\\"b"} 0' in text.splitlines()

    async def test_a_long_list_lets_the_broker_take_its_turns(self) -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        made = await _in_portions([dict] * 1000)
        counting.cancel()
        assert made == [{}] * 1000
        assert turns >= 4
