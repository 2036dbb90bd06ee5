"""Do the paths that tools ask besides queues and messages answer as RabbitMQ 4.3's do?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pika
import pytest
from aio_pika import Message, connect
from aio_pika.exceptions import AMQPError, ChannelPreconditionFailed

from redrive.broker.core import RABBITMQ_VERSION
from redrive.broker.server import ServerOptions
from redrive.broker.users import Users
from tests.unit.broker.management_place import Place, place

MISSING = {"error": "Object Not Found", "reason": "Not Found"}
NODE = "redrive@localhost"


@pytest.fixture
async def here() -> AsyncIterator[Place]:
    async with place() as made:
        yield made


async def refusal(here: Place, method: str, path: str, body: object = None) -> tuple[int, object]:
    reply = await here.call(method, path, body)
    return reply.status, reply.body["reason"]


def url(here: Place, vhost: str = "%2F", user: str = "guest:guest") -> str:
    return f"amqp://{user}@127.0.0.1:{here.amqp_port}/{vhost}"


async def why_refused(here: Place) -> str:
    """The reason with which the broker closes a connection before it is open."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        await asyncio.to_thread(pika.BlockingConnection, pika.URLParameters(url(here)))
    return str(caught.value)


class TestNodes:
    async def test_node_has_every_field_that_rabbitmqadmin_decodes(self, here: Place) -> None:
        (node,) = await here.get("/api/nodes")
        assert node["name"] == NODE
        assert (node["being_drained"], node["run_queue"], node["proc_total"] > 0) == (False, 0, True)
        assert node["rabbitmq_version"] == RABBITMQ_VERSION
        assert node["mem_used"] > 1_000_000
        assert node["fd_used"] > 3
        assert node["connection_created"] == 0
        assert [each["name"] for each in node["auth_mechanisms"]] == ["AMQPLAIN", "ANONYMOUS", "PLAIN"]
        assert (await here.get(f"/api/nodes/{NODE}")).keys() == node.keys()
        assert (await here.call("GET", "/api/nodes/other")).status == 404

    async def test_memory_breakdown_adds_up_to_the_total(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        await here.publish("q", "x" * 100_000)
        memory = (await here.get(f"/api/nodes/{NODE}/memory"))["memory"]
        total = memory.pop("total")["rss"]
        assert memory.pop("strategy") == "rss"
        assert memory["binary"] == 100_000
        assert sum(memory.values()) == total
        relative = (await here.get(f"/api/nodes/{NODE}/memory/relative"))["memory"]
        assert (relative.pop("total"), relative["binary"]) == (100, 1)
        assert relative.keys() == memory.keys()
        assert (await here.call("GET", "/api/nodes/other/memory")).body == MISSING

    async def test_cluster_is_renamed_and_the_node_is_not(self, here: Place) -> None:
        assert await refusal(here, "PUT", "/api/cluster-name", {}) == (400, "[{key_missing,name}]")
        await here.do("PUT", "/api/cluster-name", {"name": "orders"})
        assert await here.get("/api/cluster-name") == {"name": "orders"}
        overview = await here.get("/api/overview")
        assert (overview["cluster_name"], overview["node"]) == ("orders", NODE)
        assert here.broker.properties["cluster_name"] == "orders"

    async def test_rebalancing_is_accepted(self, here: Place) -> None:
        assert (await here.call("POST", "/api/rebalance/queues")).status == 204

    async def test_version_is_a_json_string(self, here: Place) -> None:
        assert await here.get("/api/version") == RABBITMQ_VERSION

    async def test_churn_counts_connections_channels_and_queues(self, here: Place) -> None:
        connection = await connect(url(here))
        await (await connection.channel()).declare_queue("q")
        await connection.close()
        await here.do("DELETE", "/api/queues/%2F/q")
        churn = (await here.get("/api/overview"))["churn_rates"]
        names = (
            "connection_created",
            "connection_closed",
            "queue_declared",
            "queue_created",
            "queue_deleted",
        )
        assert {name: churn[name] for name in names} == dict.fromkeys(names, 1)
        assert churn["channel_created"] == churn["channel_closed"] >= 1
        assert churn["queue_created_details"] == {"rate": 0.0}

    async def test_publishes_and_confirms_are_counted_per_virtual_host(self, here: Place) -> None:
        await here.do("PUT", "/api/vhosts/v")
        await here.do("PUT", "/api/queues/v/q", {})
        async with await connect(url(here, "v")) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.default_exchange.publish(Message(b"x"), "q")
        for path in ("overview", "vhosts/v"):
            stats = (await here.get(f"/api/{path}"))["message_stats"]
            assert (stats["publish"], stats["confirm"]) == (1, 1)
        assert "message_stats" not in await here.get("/api/vhosts/%2F")
        await here.do("DELETE", "/api/vhosts/v")
        assert (await here.get("/api/overview"))["message_stats"]["publish"] == 1


class TestDefaultQueueType:
    async def test_default_queue_type_decides_the_type_of_durable_shared_queues(self, here: Place) -> None:
        await here.do("PUT", "/api/vhosts/v", {"default_queue_type": "quorum"})
        for name, body in {
            "plain": {"durable": True},
            "named": {"durable": True, "arguments": {"x-queue-type": "classic"}},
            "transient": {"durable": False},
            "auto": {"durable": True, "auto_delete": True},
        }.items():
            await here.do("PUT", f"/api/queues/v/{name}", body)
        async with await connect(url(here, "v")) as connection:
            channel = await connection.channel()
            await channel.declare_queue("own", exclusive=True)
            await channel.declare_queue("amqp", durable=True)
            types = {queue["name"]: queue["type"] for queue in await here.get("/api/queues/v")}
        assert {name for name, kind in types.items() if kind == "quorum"} == {"plain", "amqp"}
        assert (await here.get("/api/queues/v/plain"))["arguments"] == {"x-queue-type": "quorum"}
        assert (await here.call("PUT", "/api/queues/v/plain", {"durable": True})).status == 204

    async def test_queue_keeps_its_type_when_the_default_changes(self, here: Place) -> None:
        await here.do("PUT", "/api/vhosts/v")
        await here.do("PUT", "/api/queues/v/q", {"durable": True})
        await here.do("PUT", "/api/vhosts/v", {"default_queue_type": "quorum"})
        assert (await here.get("/api/queues/v/q"))["type"] == "classic"
        reason = (
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost 'v':"
            " received 'quorum' but current is 'classic'"
        )
        assert await refusal(here, "PUT", "/api/queues/v/q", {"durable": True}) == (400, reason)

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("nope", "nope is not a valid queue type"),
            ("", "default_queue_type must not be an empty string"),
            (5, "5 is not a valid default_queue_type value"),
            ("stream", "stream queues are not supported by this broker; use classic or quorum"),
        ],
    )
    async def test_wrong_default_queue_type_is_refused_and_makes_nothing(
        self, here: Place, kind: object, reason: str
    ) -> None:
        assert await refusal(here, "PUT", "/api/vhosts/v", {"default_queue_type": kind}) == (400, reason)
        assert (await here.call("GET", "/api/vhosts/v")).status == 404


class TestVirtualHosts:
    async def test_protected_virtual_host_is_not_deleted(self, here: Place) -> None:
        await here.do("PUT", "/api/vhosts/v")
        await here.do("POST", "/api/vhosts/v/deletion/protection")
        assert (await here.get("/api/vhosts/v"))["protected_from_deletion"] is True
        reason = "Refusing to delete virtual host 'v' because it is protected from deletion"
        assert await refusal(here, "DELETE", "/api/vhosts/v") == (412, reason)
        await here.do("DELETE", "/api/vhosts/v/deletion/protection")
        await here.do("DELETE", "/api/vhosts/v")
        reason = "Cannot enable deletion protection of virtual host 'v' because it does not exist"
        assert await refusal(here, "POST", "/api/vhosts/v/deletion/protection") == (404, reason)

    async def test_max_queues_refuses_a_new_queue_over_http_amqp_and_import(self, here: Place) -> None:
        await here.do("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 1})
        assert await here.get("/api/vhost-limits") == [{"vhost": "/", "value": {"max-queues": 1}}]
        for _ in range(2):
            await here.do("PUT", "/api/queues/%2F/first", {})
        reason = "cannot declare queue 'second': queue limit in vhost '/' (1) is reached"
        assert await refusal(here, "PUT", "/api/queues/%2F/second", {}) == (400, reason)
        rows = {"queues": [{"name": "first"}, {"name": "second"}]}
        status, text = await refusal(here, "POST", "/api/definitions/%2F", rows)
        assert (status, str(text).split(".")[0]) == (
            400,
            'Adding 1 queue(s) to virtual host "/" would exceed the limit of 1 queue(s)',
        )
        async with await connect(url(here)) as connection:
            with pytest.raises(ChannelPreconditionFailed, match="queue limit in vhost"):
                await (await connection.channel()).declare_queue("second")
        await here.do("DELETE", "/api/vhost-limits/%2F/max-queues")
        await here.do("PUT", "/api/queues/%2F/second", {})

    async def test_max_connections_refuses_one_more(self, here: Place) -> None:
        await here.do("PUT", "/api/vhost-limits/%2F/max-connections", {"value": 1})
        async with await connect(url(here)):
            assert "connection limit (1) is reached" in await why_refused(here)
        await here.do("PUT", "/api/vhost-limits/%2F/max-connections", {"value": -1})
        async with await connect(url(here)), await connect(url(here)):
            pass

    @pytest.mark.parametrize(
        ("path", "body", "reason"),
        [
            ("%2F/max-queues", {}, "[{key_missing,value}]"),
            (
                "%2F/max-queues",
                {"value": "x"},
                'Validation failed\n\nmax-queues should be a number, actually was <<"x">>\n',
            ),
            (
                "%2F/nope",
                {"value": 3},
                'Validation failed\n\nUnrecognised terms [{<<"nope">>,3}] in limits\n',
            ),
        ],
    )
    async def test_wrong_limit_is_refused(self, here: Place, path: str, body: object, reason: str) -> None:
        assert await refusal(here, "PUT", f"/api/vhost-limits/{path}", body) == (400, reason)
        assert await here.get("/api/vhost-limits/%2F") == []


class TestUsers:
    async def test_several_users_are_deleted_at_once(self, here: Place) -> None:
        for name in ("a", "b", "c"):
            await here.do("PUT", f"/api/users/{name}", {"password": "p", "tags": ""})
        await here.do("POST", "/api/users/bulk-delete", {"users": ["a", "none", "b"]})
        assert {user["name"] for user in await here.get("/api/users")} == {"guest", "c"}
        assert await refusal(here, "POST", "/api/users/bulk-delete", {}) == (400, "[{key_missing,users}]")
        assert (await here.call("POST", "/api/users/bulk-delete", {"users": "c"})).status == 400

    async def test_connections_of_a_user_are_listed_and_closed(self, here: Place) -> None:
        connection = await connect(url(here))
        (row,) = await here.get("/api/connections/username/guest")
        assert row.keys() == {"name", "vhost", "user", "node"}
        assert await here.get("/api/connections/username/none") == []
        await here.do("DELETE", "/api/connections/username/guest")
        with contextlib.suppress(AMQPError, asyncio.CancelledError):
            await connection.close()
        assert await here.get("/api/connections/username/guest") == []

    async def test_user_limits_refuse_connections_and_channels(self, here: Place) -> None:
        await here.do("PUT", "/api/user-limits/guest/max-connections", {"value": 1})
        await here.do("PUT", "/api/user-limits/guest/max-channels", {"value": 1})
        assert (await here.get("/api/users/guest"))["limits"] == {"max-connections": 1, "max-channels": 1}
        connection = await connect(url(here))
        await connection.channel()
        assert "user connection limit (1) is reached" in await why_refused(here)
        with pytest.raises(AMQPError, match="maximum allowed user limit of 1"):
            await connection.channel()
        await here.do("DELETE", "/api/user-limits/guest/max-channels")
        assert await here.get("/api/user-limits") == [{"user": "guest", "value": {"max-connections": 1}}]

    async def test_wrong_user_limit_is_refused(self, here: Place) -> None:
        for path, body, expected in (
            ("guest/nope", {"value": 3}, (400, 'Unrecognised terms [{<<"nope">>,3}] in user-limits')),
            (
                "guest/max-channels",
                {"value": "x"},
                (400, 'max-channels should be a number, actually was <<"x">>'),
            ),
            ("none/max-channels", {"value": 1}, (404, "Not Found")),
        ):
            assert await refusal(here, "PUT", f"/api/user-limits/{path}", body) == expected
        assert (await here.call("DELETE", "/api/user-limits/none/max-channels")).status == 404

    async def test_login_attempts_are_counted_by_protocol(self, here: Place) -> None:
        await here.do("DELETE", f"/api/auth/attempts/{NODE}")
        await here.call("GET", "/api/whoami", who=("guest", "wrong"))
        await (await connect(url(here))).close()
        rows = {row["protocol"]: row for row in await here.get(f"/api/auth/attempts/{NODE}")}
        counted = {
            name: (row["auth_attempts_failed"], row["auth_attempts_succeeded"]) for name, row in rows.items()
        }
        assert counted == {"http": (1, 1), "amqp091": (0, 1)}
        assert await here.get(f"/api/auth/attempts/{NODE}/source") == []
        assert (await here.call("GET", "/api/auth/attempts/other")).status == 404

    async def test_hashed_password_can_be_imported(self, here: Place) -> None:
        hashed = (await here.get("/api/auth/hash_password/se%2Fcret"))["ok"]
        users = Users()
        users.add("u", password_hash=hashed)
        assert users.check("u", "se/cret")


class TestParameters:
    async def test_global_parameter_is_set_shown_and_deleted(self, here: Place) -> None:
        assert await refusal(here, "PUT", "/api/global-parameters/p", {}) == (400, "[{key_missing,value}]")
        assert (await here.call("PUT", "/api/global-parameters/p", {"value": {"a": 1}})).status == 201
        assert (await here.call("PUT", "/api/global-parameters/p", {"value": None})).status == 204
        assert await here.get("/api/global-parameters") == [{"name": "p", "value": None}]
        await here.do("DELETE", "/api/global-parameters/p")
        for method in ("GET", "DELETE"):
            assert (await here.call(method, "/api/global-parameters/p")).body == MISSING

    async def test_unknown_component_has_an_empty_list_and_takes_no_parameter(self, here: Place) -> None:
        for path in ("", "/shovel", "/shovel/%2F"):
            assert await here.get(f"/api/parameters{path}") == []
        assert (await here.call("GET", "/api/parameters/shovel/%2F/x")).body == MISSING
        reason = "Validation failed\n\ncomponent shovel not found\n"
        assert await refusal(here, "PUT", "/api/parameters/shovel/%2F/x", {"value": {}}) == (400, reason)
        assert await refusal(here, "PUT", "/api/parameters/shovel/none/x", {"value": {}}) == (
            404,
            "vhost_not_found",
        )

    async def test_policies_and_limits_are_parameters_too(self, here: Place) -> None:
        await here.do("PUT", "/api/policies/%2F/p", {"pattern": "q", "definition": {"max-length": 1}})
        value = {"pattern": "q", "apply-to": "all", "definition": {"max-length": 1}, "priority": 0}
        row = {"vhost": "/", "component": "policy", "name": "p", "value": value}
        assert await here.get("/api/parameters/policy/%2F/p") == row
        assert await here.get("/api/parameters/policy") == [row]
        assert (await refusal(here, "PUT", "/api/parameters/policy/%2F/p", {"value": value}))[0] == 400
        await here.do("PUT", "/api/parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 5}})
        assert here.broker.vhosts["/"].limits == {"max-queues": 5}
        await here.do("DELETE", "/api/parameters/vhost-limits/%2F/limits")
        assert here.broker.vhosts["/"].limits == {}

    async def test_unsupported_settings_are_listed_as_empty_and_refused_with_a_reason(
        self, here: Place
    ) -> None:
        for path in (
            "topic-permissions", "vhosts/%2F/topic-permissions",
            "users/guest/topic-permissions", "shovels", "shovels/%2F", "federation-links",
        ):  # fmt: skip
            assert await here.get(f"/api/{path}") == []
        assert (await here.call("GET", "/api/operator-policies/none")).status == 404
        path = "/api/topic-permissions/%2F/guest"
        assert (await here.call("GET", path)).body == MISSING
        status, reason = await refusal(here, "PUT", path, {"exchange": "amq.topic", "write": "", "read": ""})
        assert (status, "not supported by this broker" in str(reason)) == (400, True)


class TestOperatorPolicies:
    async def test_stricter_value_of_policy_and_operator_policy_is_in_force(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": 7}})
        policy = {"max-length": 9, "message-ttl": 50, "overflow": "drop-head", "dead-letter-exchange": ""}
        await here.do("PUT", "/api/policies/%2F/p", {"pattern": "q", "definition": policy})
        operator = {"max-length": 5, "message-ttl": 90, "overflow": "reject-publish", "expires": 60000}
        await here.do("PUT", "/api/operator-policies/%2F/o", {"pattern": "q", "definition": operator})
        queue = await here.get("/api/queues/%2F/q")
        assert (queue["policy"], queue["operator_policy"]) == ("p", "o")
        effective = {**policy, "max-length": 5, "overflow": "reject-publish", "expires": 60000}
        assert queue["effective_policy_definition"] == effective
        options = here.queue("q").options
        assert (options.max_length, options.message_ttl, options.overflow, options.expires) == (
            5,
            50,
            "reject-publish",
            60000,
        )
        await here.do("DELETE", "/api/operator-policies/%2F/o")
        assert here.queue("q").options.max_length == 7
        assert (await here.get("/api/queues/%2F/q"))["operator_policy"] is None

    async def test_operator_policy_without_a_policy_is_in_force(self, here: Place) -> None:
        await here.do(
            "PUT", "/api/operator-policies/%2F/o", {"pattern": "q", "definition": {"max-length": 2}}
        )
        await here.do("PUT", "/api/queues/%2F/q", {})
        for _ in range(3):
            await here.publish("q")
        assert (await here.get("/api/queues/%2F/q"))["messages"] == 2

    async def test_operator_policy_takes_only_keys_that_can_be_combined(self, here: Place) -> None:
        body = {"pattern": "q", "definition": {"dead-letter-exchange": "d"}}
        reason = (
            'Validation failed\n\n[{<<"dead-letter-exchange">>,<<"d">>}] are not recognised policy settings\n'
        )
        assert await refusal(here, "PUT", "/api/operator-policies/%2F/o", body) == (400, reason)
        assert await here.get("/api/operator-policies") == []

    async def test_imported_policies_before_a_mistake_are_in_force(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        good = {"name": "p", "pattern": "q", "definition": {"max-length": 3}}
        body = {"policies": [good, {**good, "name": "bad", "definition": {"none": 1}}]}
        status, reason = await refusal(here, "POST", "/api/definitions/%2F", body)
        assert (status, str(reason).endswith('(vhost: "/" key: "bad")')) == (400, True)
        assert here.queue("q").options.max_length == 3


class TestFeatures:
    async def test_feature_flags_are_all_enabled(self, here: Place) -> None:
        flags = await here.get("/api/feature-flags")
        assert {flag["state"] for flag in flags} == {"enabled"}
        assert (await here.call("PUT", "/api/feature-flags/quorum_queue/enable", {})).status == 204
        assert await refusal(here, "PUT", "/api/feature-flags/nope/enable", {}) == (400, "unsupported")

    async def test_transient_shared_queue_is_a_deprecated_feature_in_use(self, here: Place) -> None:
        assert await here.get("/api/deprecated-features/used") == []
        await here.do("PUT", "/api/queues/%2F/q", {"durable": False})
        (used,) = await here.get("/api/deprecated-features/used")
        assert used in await here.get("/api/deprecated-features")
        assert (used["name"], used["state"]) == ("transient_nonexcl_queues", "permitted")


class TestRights:
    async def test_manager_gets_the_refusals_of_rabbitmq(self, here: Place) -> None:
        await here.do("PUT", "/api/users/man", {"password": "p", "tags": "management"})
        who = ("man", "p")
        other = "User not authorised to access object"
        admin = "Not administrator user"
        for method, path, reason in (
            ("GET", "connections/username/guest", other),
            ("DELETE", "connections/username/guest", other),
            ("GET", "user-limits/guest", other),
            ("GET", "user-limits", admin),
            ("GET", "global-parameters", other),
            ("PUT", "global-parameters/p", other),
            ("GET", "parameters", other),
            ("GET", "topic-permissions", admin),
            ("GET", "auth/hash_password/x", admin),
            ("GET", f"auth/attempts/{NODE}", "Not monitor user"),
            ("PUT", "cluster-name", admin),
            ("PUT", "vhost-limits/%2F/max-queues", admin),
            ("PUT", "operator-policies/%2F/p", admin),
            ("POST", "users/bulk-delete", admin),
            ("POST", "vhosts/%2F/deletion/protection", admin),
            ("POST", "rebalance/queues", admin),
        ):
            reply = await here.call(method, f"/api/{path}", {}, who=who)
            assert (reply.status, reply.body["reason"]) == (401, reason), path
        for path in ("vhost-limits", "user-limits/man", "connections/username/man"):
            assert await here.get(f"/api/{path}", who=who) == []
        for path in ("feature-flags", "deprecated-features", "version", "healthchecks/node"):
            assert await here.get(f"/api/{path}", who=who)


class TestQueues:
    async def test_list_leaves_out_fields_without_a_value_and_details_do_not(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        (row,) = await here.get("/api/queues")
        assert None not in row.values()
        (detailed,) = await here.get("/api/queues/detailed")
        assert detailed["policy"] is None
        assert (await here.get("/api/queues/%2F/q"))["policy"] is None

    async def test_quorum_queue_has_its_members_and_limit(self, here: Place) -> None:
        for name, limit in (("limited", 3), ("default", None), ("unlimited", -1)):
            arguments = {"x-queue-type": "quorum"} | ({} if limit is None else {"x-delivery-limit": limit})
            await here.do("PUT", f"/api/queues/%2F/{name}", {"durable": True, "arguments": arguments})
        rows = {row["name"]: row for row in await here.get("/api/queues")}
        assert {name: row["delivery_limit"] for name, row in rows.items()} == {
            "limited": 3,
            "default": 20,
            "unlimited": "unlimited",
        }
        row = rows["default"]
        assert (row["leader"], row["members"], row["online"]) == (NODE, [NODE], [NODE])
        assert (row["delayed_retry"], row["messages_delayed"]) == ("disabled", 0)
        (status,) = await here.get("/api/queues/quorum/%2F/default/status")
        assert (status["Node Name"], status["Raft State"]) == (NODE, "leader")

    async def test_quorum_queue_counts_ready_messages_by_priority(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
        await here.publish("q")
        await here.publish("q")
        for priority in (3, 0, 40, 31):
            await here.publish("q", priority=priority)
        fields = ("messages_by_priority", "messages_active_priorities", "messages_ready_returned")
        queue = await here.get("/api/queues/%2F/q")
        assert [queue[name] for name in fields] == [{"31": 2, "4": 2, "3": 1, "0": 1}, 4, 0]
        await here.fetch("q", "ack_requeue_true", 2)
        queue = await here.get("/api/queues/%2F/q")
        assert [queue[name] for name in fields] == [{"4": 2, "3": 1, "0": 1}, 3, 2]
        assert (queue["messages"], queue["messages_persistent"]) == (6, 6)

    async def test_status_is_for_quorum_queues_alone(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        reply = await here.call("GET", "/api/queues/quorum/%2F/q/status")
        assert (reply.status, reply.body["reason"]) == (503, "classic_queue_not_supported")
        assert (await here.call("GET", "/api/queues/quorum/%2F/none/status")).status == 404

    async def test_queue_action_is_refused(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        path = "/api/queues/%2F/q/actions"
        assert await refusal(here, "POST", path, {"action": "sync"}) == (400, ["unknown", "sync"])


class TestEmptyNames:
    async def test_default_exchange_may_be_named_by_an_empty_part(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        body = {"routing_key": "q", "properties": {}, "payload": "x", "payload_encoding": "string"}
        assert (await here.do("POST", "/api/exchanges/%2F//publish", body)).body == {"routed": True}
        assert (await here.get("/api/exchanges/%2F//"))["name"] == ""
        assert [row["routing_key"] for row in await here.get("/api/bindings/%2F/e//q/q")] == ["q"]
        assert (await here.call("GET", "/api/queues/%2F//bindings")).status == 404

    async def test_binding_is_found_by_its_key_as_listed_and_encoded_once_more(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        for key in ("a.#", "k a/b~"):
            await here.do("POST", "/api/bindings/%2F/e/amq.topic/q/q", {"routing_key": key})
        between = "/api/bindings/%2F/e/amq.topic/q/q"
        for listed in ("a.%23", "k+a%2Fb%7E"):
            for written in (listed, listed.replace("%", "%25")):
                assert (await here.get(f"{between}/{written}"))["properties_key"] == listed
            await here.do("DELETE", f"{between}/{listed}")
        assert await here.get(between) == []


class TestPages:
    async def test_api_redirects_to_an_index_of_all_paths(self, here: Place) -> None:
        for path in ("/", "/api", "/api/"):
            reply = await here.call("GET", path, who=None)
            assert (reply.status, reply.headers["location"]) == (301, "/api/index.html")
        page = await here.call("GET", "/api/index.html", who=None)
        assert page.headers["content-type"].startswith("text/html")
        assert "<code>/api/queues/{vhost}/{name}/get</code>" in page.body

    async def test_rabbitmqadmin_is_not_served_as_in_rabbitmq_43(self, here: Place) -> None:
        assert (await here.call("GET", "/cli", who=None)).headers["location"] == "/cli/index.html"
        assert "rabbitmqadmin-ng" in (await here.call("GET", "/cli/index.html", who=None)).body
        assert (await here.call("GET", "/cli/rabbitmqadmin", who=None)).body == MISSING


class TestHealth:
    @pytest.mark.parametrize(
        "check",
        [
            "below-node-connection-limit", "metadata-store/initialized", "metadata-store/initialized/with-data",
            "reached-target-cluster-size", "certificate-expiration/1/days",
            "quorum-queues-without-elected-leaders/all-vhosts/",
            "quorum-queues-without-elected-leaders/all-vhosts/pattern/x",
            "quorum-queues-without-elected-leaders/vhost/%2F/",
            "quorum-queues-without-elected-leaders/vhost/%2F/pattern/x",
        ],
    )  # fmt: skip
    async def test_check_of_one_node_is_ok(self, here: Place, check: str) -> None:
        assert await here.get(f"/api/health/checks/{check}") == {"status": "ok"}

    async def test_health_of_the_node_follows_its_alarms(self, here: Place) -> None:
        for path in ("", f"/{NODE}"):
            assert await here.get(f"/api/healthchecks/node{path}") == {"status": "ok"}
        assert (await here.call("GET", "/api/healthchecks/node/other")).status == 404
        here.broker.block("low on memory")
        assert (await here.call("GET", "/api/healthchecks/node")).status == 503

    async def test_protocols_are_checked_together(self, here: Place) -> None:
        path = "/api/health/checks/protocol-listener"
        assert await here.get(f"{path}/http,amqp091") == {"status": "ok", "protocols": ["amqp", "http"]}
        reply = await here.call("GET", f"{path}/amqp,mqtt")
        assert (reply.status, reply.body["missing"]) == (503, ["mqtt"])

    async def test_wrong_expiration_is_refused(self, here: Place) -> None:
        path = "/api/health/checks/certificate-expiration"
        assert await refusal(here, "GET", f"{path}/x/days") == (400, "Invalid expiration value.")
        assert (await here.call("GET", f"{path}/1/hours")).status == 400

    async def test_connection_limit_of_the_node_is_reported(self, here: Place) -> None:
        here.server.options = ServerOptions(max_connections=0)
        reply = await here.call("GET", "/api/health/checks/below-node-connection-limit")
        assert (reply.status, reply.body["limit"]) == (503, 0)
        assert (await here.call("GET", "/api/health/checks/ready-to-serve-clients")).status == 503


class TestDurability:
    async def test_settings_survive_a_restart(self, tmp_path: Path) -> None:
        async with place(data=tmp_path) as here:
            await here.do("PUT", "/api/vhosts/v", {"default_queue_type": "quorum", "description": "d"})
            await here.do("POST", "/api/vhosts/v/deletion/protection")
            await here.do("PUT", "/api/vhost-limits/v/max-queues", {"value": 9})
            await here.do("PUT", "/api/user-limits/guest/max-channels", {"value": 99})
            await here.do("PUT", "/api/global-parameters/p", {"value": [1]})
            await here.do("PUT", "/api/cluster-name", {"name": "orders"})
            await here.do(
                "PUT", "/api/operator-policies/v/o", {"pattern": "q", "definition": {"max-length": 2}}
            )
            await here.do("PUT", "/api/queues/v/q", {"durable": True})
            await here.do(
                "PUT", "/api/queues/v/c", {"durable": True, "arguments": {"x-queue-type": "classic"}}
            )
            before = await here.get("/api/definitions")
        async with place(data=tmp_path) as here:
            assert await here.get("/api/definitions") == before
            assert (await here.get("/api/vhosts/v"))["protected_from_deletion"] is True
            assert (await here.get("/api/queues/v/q"))["type"] == "quorum"
            assert here.queue("q", "v").options.max_length == 2
            assert here.broker.users.limits("guest") == {"max-channels": 99}

    async def test_classic_queue_stays_classic_after_the_default_changed(self, tmp_path: Path) -> None:
        async with place(data=tmp_path) as here:
            await here.do("PUT", "/api/vhosts/v")
            await here.do("PUT", "/api/queues/v/q", {"durable": True})
            await here.do("PUT", "/api/vhosts/v", {"default_queue_type": "quorum"})
        async with place(data=tmp_path) as here:
            assert (await here.get("/api/queues/v/q"))["type"] == "classic"
