"""Who may see and do what over the management API, and does it survive the way to another broker?"""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.broker.management.routes import OPEN, ROUTES, find
from redrive.broker.management.stats import Rates
from tests.unit.broker.management_place import Place, place

NO_VHOST = {"error": "not_found", "reason": "Not Found"}


@pytest.fixture
async def here() -> AsyncIterator[Place]:
    async with place() as made:
        yield made


@pytest.fixture
async def people(here: Place) -> Place:
    """One user per tag; the manager may configure what begins with m, the policymaker may enter, others not."""
    for name, tag in (("man", "management"), ("mon", "monitoring"), ("pol", "policymaker"), ("non", "")):
        await here.do("PUT", f"/api/users/{name}", {"password": "p", "tags": tag})
    for name in ("man", "pol"):
        await here.do("PUT", f"/api/permissions/%2F/{name}", {"configure": "^m", "write": ".*", "read": ".*"})
    await here.do("PUT", "/api/queues/%2F/q", {})
    await here.do("PUT", "/api/vhosts/other")
    return here


class TestLogin:
    async def test_nobody_gets_in_without_a_name(self, here: Place) -> None:
        reply = await here.call("GET", "/api/overview", who=None)
        assert (reply.status, reply.body) == (401, "")
        assert reply.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'

    async def test_a_wrong_password_is_told_in_rabbitmqs_words(self, here: Place) -> None:
        for who in (("guest", "x"), ("nobody", "guest"), ("", "")):
            reply = await here.call("GET", "/api/whoami", who=who)
            assert (reply.status, reply.body) == (
                401,
                {"error": "not_authorized", "reason": "Not_Authorized"},
            )

    async def test_every_path_but_the_open_ones_requires_a_login(self, here: Place) -> None:
        for pattern, handlers in ROUTES.items():
            path = re.sub(r"\{kind:.*?\}", "q", pattern)
            path = re.sub(r"\{.*?\}", "%2F", path)
            assert find(path) is not None
            for method in handlers:
                status = (await here.call(method, path, who=None)).status
                assert (status == 401) != (path in OPEN), f"{method} {path}"
        assert set(OPEN) == {"/metrics", "/", "/api", "/api/index.html", "/cli", "/cli/index.html"}

    async def test_a_user_without_a_tag_has_no_business_here(self, people: Place) -> None:
        reply = await people.call("GET", "/api/whoami", who=("non", "p"))
        assert (reply.status, reply.body["reason"]) == (401, "Not management user")


class TestBrowsers:
    GET = b'{"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}'

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Host": "evil.example", "Content-Type": "application/json"}, 403),
            ({"Content-Type": "text/plain"}, 415),
            ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
            ({}, 415),
            ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
            ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ],
    )
    async def test_page_of_another_site_cannot_remove_a_message(
        self, here: Place, headers: dict[str, str], status: int
    ) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        await here.publish("q")
        path = "/api/queues/%2F/q/get"
        reply = await here.call("POST", path, octets=self.GET, headers={"Content-Type": "", **headers})
        assert reply.status == status
        assert set(reply.body) == {"error", "reason"}
        assert here.queue("q").ready == 1
        assert (await here.call("POST", path, octets=self.GET)).body[0]["payload"] == "hello"

    async def test_page_of_another_site_cannot_read_either(self, here: Place) -> None:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://localhost:3000"}):
            assert (await here.call("GET", "/api/definitions", headers=headers)).status == 403
            assert (await here.call("GET", "/metrics", who=None, headers=headers)).status == 403


class TestTags:
    async def test_a_manager_sees_what_it_may_enter(self, people: Place) -> None:
        who = ("man", "p")
        assert [vhost["name"] for vhost in await people.get("/api/vhosts", who=who)] == ["/"]
        assert (await people.call("GET", "/api/queues/other", who=who)).body == NO_VHOST
        assert "node" not in await people.get("/api/overview", who=who)
        for path, reason in (("nodes", "Not monitor user"), ("users", "Not administrator user")):
            assert (await people.call("GET", f"/api/{path}", who=who)).body["reason"] == reason

    async def test_monitor_sees_the_node_and_all_virtual_hosts_but_enters_none(self, people: Place) -> None:
        who = ("mon", "p")
        assert len(await people.get("/api/nodes", who=who)) == 1
        assert {vhost["name"] for vhost in await people.get("/api/vhosts", who=who)} == {"/", "other"}
        for method, path in (("GET", "queues/%2F/q"), ("GET", "queues/%2F"), ("DELETE", "queues/%2F/q")):
            reply = await people.call(method, f"/api/{path}", who=who)
            assert (reply.status, reply.body) == (404, NO_VHOST)
        await people.do("PUT", "/api/permissions/%2F/mon", {"configure": "^$", "write": "^$", "read": "^$"})
        assert (await people.get("/api/queues/%2F/q", who=who))["name"] == "q"

    async def test_administrator_sees_every_virtual_host_and_changes_what_it_may(self, people: Place) -> None:
        await people.do("PUT", "/api/users/adm", {"password": "p", "tags": "administrator"})
        who = ("adm", "p")
        assert (await people.get("/api/queues/%2F/q", who=who))["name"] == "q"
        reply = await people.call("DELETE", "/api/queues/%2F/q", who=who)
        assert (reply.status, reply.body["reason"]) == (401, "Access refused.")

    async def test_permissions_hold_as_they_do_over_amqp(self, people: Place) -> None:
        who = ("man", "p")
        assert (await people.call("PUT", "/api/queues/%2F/mine", {}, who=who)).status == 201
        reply = await people.call("PUT", "/api/queues/%2F/yours", {}, who=who)
        assert (reply.status, reply.body["reason"]) == (401, "Access refused.")

    async def test_policies_are_made_by_policymakers(self, people: Place) -> None:
        body = {"pattern": "q", "definition": {"max-length": 1}}
        reply = await people.call("PUT", "/api/policies/%2F/p", body, who=("man", "p"))
        assert (reply.status, reply.body["reason"]) == (401, "User not authorised to access object")
        assert (await people.call("PUT", "/api/policies/%2F/p", body, who=("pol", "p"))).status == 201
        assert people.queue("q").options.max_length == 1
        assert (await people.call("PUT", "/api/policies/%2F/p", body, who=("pol", "p"))).status == 204
        await people.do("DELETE", "/api/policies/%2F/p", who=("pol", "p"))
        assert people.queue("q").options.max_length is None

    async def test_a_permission_that_is_taken_away_is_gone_at_once(self, people: Place) -> None:
        before = people.broker.vhosts["/"].version
        await people.do("DELETE", "/api/permissions/%2F/man")
        assert people.broker.vhosts["/"].version > before
        assert (await people.call("GET", "/api/queues/%2F", who=("man", "p"))).body == NO_VHOST


class TestUsersAndVhosts:
    async def test_whoever_makes_a_vhost_may_use_it(self, here: Place) -> None:
        assert (await here.call("PUT", "/api/vhosts/v", {"description": "d", "tags": "a,b"})).status == 201
        vhost = await here.get("/api/vhosts/v")
        assert (vhost["description"], vhost["tags"]) == ("d", ["a", "b"])
        assert (await here.call("PUT", "/api/vhosts/v")).status == 204
        vhost = await here.get("/api/vhosts/v")
        assert (vhost["description"], vhost["tags"]) == ("", [])
        assert (await here.get("/api/permissions/v/guest"))["configure"] == ".*"
        await here.do("DELETE", "/api/vhosts/v")
        assert (await here.call("GET", "/api/permissions/v/guest")).status == 404

    async def test_a_user_is_changed_and_deleted(self, here: Place) -> None:
        assert (
            await here.call("PUT", "/api/users/u", {"password": "p", "tags": ["management"]})
        ).status == 201
        assert (await here.get("/api/whoami", who=("u", "p"))) == {
            "name": "u",
            "tags": ["management"],
            "is_internal_user": True,
        }
        assert (await here.call("PUT", "/api/users/u", {"tags": "management"})).status == 204
        assert (await here.call("GET", "/api/whoami", who=("u", "p"))).status == 401
        assert [user["name"] for user in await here.get("/api/users/without-permissions")] == ["u"]
        await here.do("DELETE", "/api/users/u")
        assert (await here.call("DELETE", "/api/users/u")).status == 404

    @pytest.mark.parametrize(
        ("path", "body", "reason"),
        [
            ("users/u", {"password": "p"}, "tags_not_present"),
            ("users/u", {"password_hash": "zz", "tags": ""}, ["not_base64", "zz"]),
            ("users/u", {"password": 5, "tags": ""}, ["not_string", "password"]),
            ("users/u", {"password": "p", "tags": 5}, "tags should be a list of strings"),
            ("permissions/%2F/guest", {"configure": ""}, "[{key_missing,write},{key_missing,read}]"),
            ("permissions/%2F/u", {"configure": "", "write": "", "read": ""}, "vhost_or_user_not_found"),
            ("policies/%2F/p", {"pattern": "x"}, "[{key_missing,definition}]"),
            (
                "policies/%2F/p",
                {"pattern": "x", "definition": {"y": 1}},
                'Validation failed\n\n[{<<"y">>,1}] are not recognised policy settings\n',
            ),
        ],
    )
    async def test_what_makes_no_sense_is_refused(
        self, here: Place, path: str, body: object, reason: object
    ) -> None:
        reply = await here.call("PUT", f"/api/{path}", body)
        assert (reply.status, reply.body) == (400, {"error": "bad_request", "reason": reason})


class TestDefinitions:
    async def test_what_is_exported_makes_the_same_broker_elsewhere(self, here: Place) -> None:
        await here.do("PUT", "/api/vhosts/v", {"description": "d"})
        await here.do("PUT", "/api/users/u", {"password": "p", "tags": "management"})
        await here.do("PUT", "/api/permissions/v/u", {"configure": "", "write": "a", "read": ".*"})
        await here.do("PUT", "/api/queues/v/q", {"durable": True, "arguments": {"x-max-length": 5}})
        await here.do(
            "PUT", "/api/exchanges/v/e", {"type": "topic", "arguments": {"alternate-exchange": "amq.fanout"}}
        )
        await here.do("POST", "/api/bindings/v/e/e/q/q", {"routing_key": "a.#", "arguments": {"n": 1}})
        await here.do("POST", "/api/bindings/v/e/amq.fanout/e/e", {})
        await here.do(
            "PUT", "/api/policies/v/p", {"pattern": ".", "definition": {"message-ttl": 9}, "priority": 2}
        )
        exported = await here.get("/api/definitions")
        async with place() as there:
            assert (await there.call("POST", "/api/definitions", exported)).status == 204
            imported = await there.get("/api/definitions")
            # Each has a cluster name of its own, which an import leaves alone.
            assert imported["original_cluster_name"] != exported["original_cluster_name"]
            for definitions in (exported, imported):
                del definitions["original_cluster_name"], definitions["explanation"]
            assert imported == exported
            assert (await there.get("/api/queues/v/q"))["policy"] == "p"
            assert (await there.get("/api/whoami", who=("u", "p")))["name"] == "u"

    async def test_one_vhost_goes_into_another(self, here: Place) -> None:
        await here.do("PUT", "/api/queues/%2F/q", {})
        await here.do("POST", "/api/bindings/%2F/e/amq.topic/q/q", {"routing_key": "k"})
        exported = await here.get("/api/definitions/%2F")
        await here.do("PUT", "/api/vhosts/v")
        await here.do("POST", "/api/definitions/v", exported)
        imported = await here.get("/api/definitions/v")
        assert (
            imported["queues"]
            == exported["queues"]
            == [
                {
                    "name": "q",
                    "type": "classic",
                    "durable": False,
                    "auto_delete": False,
                    "arguments": {"x-queue-type": "classic"},
                }
            ]
        )
        assert imported["bindings"] == exported["bindings"] != []
        assert (imported["original_vhost_name"], exported["original_vhost_name"]) == ("v", "/")

    async def test_exclusive_queues_stay_at_home(self, here: Place) -> None:
        from redrive.broker.arguments import Declared

        here.broker.vhosts["/"].declare_queue("own", Declared(), owner=object(), now=0)
        assert (await here.get("/api/definitions"))["queues"] == []

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ({"queues": 5}, "queues should be a list of objects"),
            (
                {"queues": [{"name": "x", "vhost": "no"}]},
                'Please create virtual host "no" prior to importing definitions.',
            ),
            (
                {"queues": [{"name": "x"}]},
                'Please create virtual host "undefined" prior to importing definitions.',
            ),
            ({"queues": [{"name": 5, "vhost": "/"}]}, ["not_string", "name"]),
            ({"exchanges": [{"name": "x", "vhost": "/", "type": "y"}]}, "unknown exchange type 'y'"),
            (
                {"bindings": [{"vhost": "/", "source": "amq.topic", "destination": "x"}]},
                "no queue 'x' in vhost '/'",
            ),
        ],
    )
    async def test_what_makes_no_sense_is_refused(self, here: Place, body: object, reason: object) -> None:
        reply = await here.call("POST", "/api/definitions", body)
        assert (reply.status, reply.body) == (400, {"error": "bad_request", "reason": reason})

    async def test_users_come_in_all_or_none(self, here: Place) -> None:
        body = {"users": [{"name": "a", "password": "p", "tags": ""}, {"name": "b", "password_hash": "%"}]}
        assert (await here.call("POST", "/api/definitions", body)).status == 400
        assert [user["name"] for user in await here.get("/api/users")] == ["guest"]


class TestKept:
    async def test_what_is_answered_is_still_there_after_a_restart(self, tmp_path: Path) -> None:
        from redrive.broker.management import start_management
        from redrive.broker.run import BrokerOptions, start

        for turn in (1, 2):
            server = await start(BrokerOptions(data=tmp_path / "data"))
            management = await start_management(server, "127.0.0.1", 0)
            there = Place(server, management, 0)
            if turn == 1:
                await there.do("PUT", "/api/queues/%2F/q", {"durable": True})
                await there.do("PUT", "/api/users/u", {"password": "p", "tags": "management"})
                await there.do(
                    "PUT", "/api/policies/%2F/p", {"pattern": "q", "definition": {"max-length": 5}}
                )
                await there.publish("q", "kept", delivery_mode=2)
                keep = server.broker.keep
                assert keep.durable_position() == keep.last_position()
            else:
                assert [one["payload"] for one in await there.fetch("q")] == ["kept"]
                assert (await there.get("/api/queues/%2F/q"))["policy"] == "p"
                assert (await there.get("/api/whoami", who=("u", "p")))["name"] == "u"
            await management.close()
            await server.close()


class TestRates:
    def test_the_first_look_tells_no_rate(self) -> None:
        assert Rates().look("q", {"publish": 5}, 1000) == {"publish": 5, "publish_details": {"rate": 0.0}}

    def test_a_rate_is_the_growth_per_second_since_a_window_ago(self) -> None:
        rates = Rates(window=5000)
        for second in range(19):
            rates.look("q", {"publish": second * 10}, second * 1000)
        assert rates.look("q", {"publish": 190}, 19_000)["publish_details"] == {"rate": 10.0}
        assert rates.look("q", {"publish": 190}, 25_000)["publish_details"] != {"rate": 10.0}
        assert rates.look("q", {"publish": 190}, 40_000)["publish_details"] == {"rate": 0.0}

    def test_a_rare_look_tells_the_mean_since_the_last_one(self) -> None:
        rates = Rates()
        rates.look("q", {"publish": 0}, 0)
        assert rates.look("q", {"publish": 120}, 60_000)["publish_details"] == {"rate": 2.0}

    def test_things_that_nobody_asks_about_are_forgotten(self) -> None:
        rates = Rates()
        for number in range(20_000):
            rates.look(number, {"publish": 0}, 0)
        rates.look("new", {"publish": 0}, 60 * 60_000)
        assert len(rates._seen) == 1


def test_nobody_imports_the_http_server_who_does_not_ask_for_it() -> None:
    code = "import sys, redrive.broker.run; sys.exit('starlette' in sys.modules or 'uvicorn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
