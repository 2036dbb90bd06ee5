"""What is planned when something is there, is not, or is otherwise; and how it is told."""

import json
import shlex
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from redrive.errors import SettingsError
from redrive.transports.base import DelayedRetry, Source
from redrive.transports.plan import Item, as_table, show
from redrive.transports.rabbitmq.delivery_counts import counts_of_version
from redrive.transports.rabbitmq.found import (
    Found,
    FoundExchange,
    FoundPolicy,
    FoundQueue,
    Permissions,
    covers,
    in_force,
    merged,
    version_of,
)
from redrive.transports.rabbitmq.mend import allow, exactly, set_policy
from redrive.transports.rabbitmq.plan import plan
from redrive.transports.rabbitmq.topology import Binding, Topology, wanted

ORDERS = Source(name="orders")


def as_wanted(topology: Topology, **changed: FoundQueue | FoundExchange | None) -> Found:
    """A broker on which everything is there, but for what is changed."""
    queues = {
        queue.name: FoundQueue(name=queue.name, type=queue.type, arguments=queue.arguments)
        for queue in topology.queues
    }
    exchanges = {each.name: FoundExchange(name=each.name, type=each.type) for each in topology.exchanges}
    for name, thing in changed.items():
        name = name.replace("_", ".")  # noqa: PLW2901
        if isinstance(thing, FoundExchange) or (thing is None and name in exchanges):
            exchanges |= {name: thing} if thing else {}
            exchanges = (
                exchanges if thing else {key: value for key, value in exchanges.items() if key != name}
            )
        else:
            queues = {key: value for key, value in queues.items() if key != name}
            queues |= {name: thing} if thing else {}
    return Found(
        queues=queues,
        exchanges=exchanges,
        bindings=topology.bindings,
        policies={},
        management="http://localhost:15672",
        operator="admin",
    )


def item(found: Found, name: str, source: Source = ORDERS) -> Item:
    [only] = [item for item in plan(found, wanted([source])).items if item.name == name]
    return only


def work_queue(**options: Any) -> FoundQueue:
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "orders.dlx",
        "x-delivery-limit": 20,
    }
    return FoundQueue(**({"name": "orders", "type": "quorum", "arguments": arguments} | options))


class TestPlanning:
    def test_where_everything_is_as_wanted_there_is_nothing_to_do(self) -> None:
        steps = plan(as_wanted(wanted([ORDERS])), wanted([ORDERS]))
        assert {item.state for item in steps.items} == {"same"}

    def test_in_an_empty_vhost_everything_is_missing_in_the_order_of_making(self) -> None:
        steps = plan(Found(bindings=()), wanted([ORDERS]))
        assert {item.state for item in steps.items} == {"missing"}
        names = [item.name for item in steps.items]
        assert names[:3] == ["orders.dlx", "orders.dlq", "orders.dlx → orders.dlq"]
        assert names[-1] == "orders"

    @pytest.mark.parametrize(
        ("queue", "differences"),
        [
            (work_queue(durable=False), [("durable", False, True)]),
            (work_queue(auto_delete=True), [("auto-delete", True, False)]),
            (work_queue(exclusive=True), [("exclusive", True, False)]),
            (
                work_queue(type="classic", arguments={"x-dead-letter-exchange": "orders.dlx"}),
                [("type", "classic", "quorum")],
            ),
            (
                work_queue(arguments={}),
                [("dead-letter-exchange", None, "orders.dlx"), ("delivery-limit", None, 20)],
            ),
            (
                work_queue(arguments={"x-dead-letter-exchange": "", "x-delivery-limit": 20}),
                [("dead-letter-exchange", "", "orders.dlx")],
            ),
            (work_queue(definition={"delivery-limit": 5}), [("delivery-limit", 5, 20)]),
            (work_queue(definition={"delivery-limit": 50}), []),
            (work_queue(definition={"expires": 1000}), [("expires", 1000, None)]),
            (work_queue(definition={"max-length": 10, "message-ttl": 5}), []),
            (
                work_queue(
                    arguments={}, definition={"dead-letter-exchange": "orders.dlx", "delivery-limit": 20}
                ),
                [],
            ),
        ],
    )
    def test_a_work_queue_that_is_otherwise_is_told_in_what(
        self, queue: FoundQueue, differences: list[tuple[str, object, object]]
    ) -> None:
        found = item(as_wanted(wanted([ORDERS]), orders=queue), "orders")
        assert [(each.what, each.found, each.wanted) for each in found.differences] == differences
        assert found.state == ("differs" if differences else "same")
        assert bool(found.mend) == bool(differences)

    @pytest.mark.parametrize("name", ["message-ttl", "max-length", "max-length-bytes", "expires"])
    def test_a_dead_letter_queue_may_not_lose_letters(self, name: str) -> None:
        arguments = {f"x-{name}": 10, "x-delivery-limit": -1}
        queue = FoundQueue(name="orders.dlq", type="quorum", arguments=arguments)
        found = item(as_wanted(wanted([ORDERS]), orders_dlq=queue), "orders.dlq")
        assert [(each.what, each.wanted) for each in found.differences] == [(name, None)]

    @pytest.mark.parametrize(
        ("queue", "limit"),
        [
            (FoundQueue(name="orders.dlq", type="quorum", arguments={}), None),
            (FoundQueue(name="orders.dlq", type="quorum", arguments={"x-delivery-limit": 20}), 20),
            (FoundQueue(name="orders.dlq", type="quorum", arguments={}, definition={"delivery-limit": 5}), 5),
            (
                FoundQueue(
                    name="orders.dlq",
                    type="quorum",
                    arguments={"x-delivery-limit": -1},
                    definition={"delivery-limit": 5},
                ),
                5,
            ),
        ],
    )
    def test_dead_letter_queue_differs_when_it_has_a_delivery_limit(
        self, queue: FoundQueue, limit: int | None
    ) -> None:
        found = item(as_wanted(wanted([ORDERS]), orders_dlq=queue), "orders.dlq")
        assert [(each.what, each.found, each.wanted) for each in found.differences] == [
            ("delivery-limit", limit, -1)
        ]

    @pytest.mark.parametrize(
        ("exchange", "state"),
        [
            (FoundExchange(name="orders.dlx", type="fanout"), "same"),
            (FoundExchange(name="orders.dlx", type="topic"), "same"),
            (FoundExchange(name="orders.dlx", type="direct"), "differs"),
            (FoundExchange(name="orders.dlx", type="headers"), "differs"),
            (FoundExchange(name="orders.dlx", type="fanout", durable=False), "differs"),
            (FoundExchange(name="orders.dlx", type="fanout", internal=True), "differs"),
            (FoundExchange(name="orders.dlx"), "unseen"),
        ],
    )
    def test_an_exchange_has_to_lead_every_dead_letter_on(self, exchange: FoundExchange, state: str) -> None:
        assert item(as_wanted(wanted([ORDERS]), orders_dlx=exchange), "orders.dlx").state == state

    def test_a_direct_exchange_does_where_the_key_is_fixed(self) -> None:
        source = Source(name="orders", dead_letter_routing_key="failed")
        found = as_wanted(wanted([source]), orders_dlx=FoundExchange(name="orders.dlx", type="direct"))
        assert {item.state for item in plan(found, wanted([source])).items} == {"same"}

    def test_what_only_exists_is_not_judged(self) -> None:
        found = as_wanted(wanted([ORDERS]), orders=FoundQueue(name="orders"))
        assert item(found, "orders").state == "unseen"

    def test_bindings_that_cannot_be_seen_are_missing_only_where_an_end_is(self) -> None:
        seen = Found(
            queues={"orders.dlq": FoundQueue(name="orders.dlq")},
            exchanges={"orders.dlx": FoundExchange(name="orders.dlx")},
        )
        assert item(seen, "orders.dlx → orders.dlq").state == "unseen"
        assert item(Found(), "orders.dlx → orders.dlq").state == "missing"


class TestMending:
    def test_what_a_policy_can_set_is_mended_by_one(self) -> None:
        queue = work_queue(arguments={"x-queue-type": "quorum"})
        words = shlex.split(item(as_wanted(wanted([ORDERS]), orders=queue), "orders").mend)
        assert words[:6] == [
            *("curl", "-u", "admin", "-X", "PUT"),
            "http://localhost:15672/api/policies/%2F/redrive-orders",
        ]
        assert json.loads(words[-1]) == {
            "pattern": "^orders$",
            "apply-to": "queues",
            "priority": 0,
            "definition": {"dead-letter-exchange": "orders.dlx", "delivery-limit": 20},
        }

    def test_an_argument_is_mended_by_another_queue(self) -> None:
        queue = work_queue(arguments={"x-dead-letter-exchange": "other", "x-delivery-limit": 20})
        mend = item(as_wanted(wanted([ORDERS]), orders=queue), "orders").mend
        assert "cannot be changed in place" in mend
        assert "delete 'orders'" in mend

    def test_what_a_policy_sets_too_much_is_lifted(self) -> None:
        queue = FoundQueue(
            name="orders.dlq",
            type="quorum",
            arguments={"x-delivery-limit": -1},
            policy="p",
            definition={"message-ttl": 5, "x": 1},
        )
        words = shlex.split(item(as_wanted(wanted([ORDERS]), orders_dlq=queue), "orders.dlq").mend)
        assert json.loads(words[-1])["definition"] == {"x": 1}
        alone = FoundQueue(
            name="orders.dlq",
            type="quorum",
            arguments={"x-delivery-limit": -1},
            policy="p",
            definition={"message-ttl": 5},
        )
        told = item(as_wanted(wanted([ORDERS]), orders_dlq=alone), "orders.dlq").mend
        assert told == "change the pattern of the policy 'p' so that it does not match 'orders.dlq'"

    @pytest.mark.parametrize(
        ("policy", "priority"),
        [
            (FoundPolicy(name="all", pattern=".*", apply_to="all", priority=7, definition={}), 8),
            (FoundPolicy(name="redrive-q", pattern="^q$", apply_to="all", priority=7, definition={}), 7),
            (None, 100),
        ],
    )
    def test_a_policy_has_to_win_over_the_one_in_force(
        self, policy: FoundPolicy | None, priority: int
    ) -> None:
        found = Found(policies={policy.name: policy} if policy else None)
        queue = FoundQueue(name="q", arguments={}, policy=policy.name if policy else "unseen")
        body = json.loads(shlex.split(set_policy(found, queue, {"max-length": 1}))[-1])
        assert body["priority"] == priority

    @pytest.mark.parametrize("name", ["orders", "a.b", "a+b", "a|b", "^", "a'b", "ä", "a/b", "a b", "a\\b"])
    def test_a_pattern_fits_exactly_one_name(self, name: str) -> None:
        mine = Permissions(read=exactly(name))
        assert mine.allow("read", name)
        assert not mine.allow("read", f"{name}x")
        assert not mine.allow("read", f"x{name}")

    def test_a_permission_is_added_to_those_that_are_there(self) -> None:
        found = Found(user="shop", vhost="a/b", permissions=Permissions(write="^old$", read=".*"))
        ctl, _, curl = allow(found, "write", "").partition(", or: ")
        assert ctl == "rabbitmqctl set_permissions -p a/b shop '' '^old$|^amq\\.default$' '.*'"
        words = shlex.split(curl)
        assert words[5] == "http://HOST:15672/api/permissions/a%2Fb/shop"
        assert json.loads(words[-1]) == {"configure": "", "write": "^old$|^amq\\.default$", "read": ".*"}

    @pytest.mark.parametrize(
        ("seen", "mend"),
        [
            ({"version": (4, 3, 0)}, "queue arguments cannot be changed in place"),
            ({"version": (4, 3, 1)}, "curl "),
            ({"version": (4, 3, 0), "is_embedded": True}, "curl "),
        ],
    )
    def test_delayed_retry_of_a_queue_that_exists_is_set_by_policy_from_4_3_1_on(
        self, seen: dict[str, Any], mend: str
    ) -> None:
        retry = DelayedRetry(timedelta(seconds=10), timedelta(minutes=5))
        found = msgspec.structs.replace(as_wanted(wanted([ORDERS])), **seen)
        source = msgspec.structs.replace(ORDERS, delayed_retry=retry)
        differing = item(found, "orders", source)
        assert {each.what: each.wanted for each in differing.differences} == {
            "delayed-retry-type": "failed",
            "delayed-retry-min": 10_000,
            "delayed-retry-max": 300_000,
        }
        assert differing.mend.startswith(mend)

    @pytest.mark.parametrize(
        ("source", "version", "why"),
        [
            (Source(name="orders", queue_type="classic"), (4, 3), "only quorum queues support delayed retry"),
            (ORDERS, (4, 2), "delayed retry needs RabbitMQ 4.3 or later"),
        ],
    )
    def test_delayed_retry_is_refused_where_the_broker_would_ignore_it(
        self, source: Source, version: tuple[int, ...], why: str
    ) -> None:
        asked = msgspec.structs.replace(source, delayed_retry=DelayedRetry(timedelta(1), timedelta(1)))
        with pytest.raises(SettingsError, match=why):
            wanted([asked], counts_of_version(version))

    def test_permissions_that_cannot_be_seen_are_not_replaced(self) -> None:
        mend = allow(Found(user="shop"), "read", "orders")
        assert mend.startswith("grant read permission on ^orders$ with rabbitmqctl set_permissions")


class TestTelling:
    def test_people_get_a_line_per_thing_and_what_differs_below(self) -> None:
        found = as_wanted(
            wanted([ORDERS]),
            orders=work_queue(arguments={"x-dead-letter-exchange": "", "x-delivery-limit": 20}),
            orders_dlq=None,
        )
        lines = list(show(plan(found, wanted([ORDERS]))))
        assert lines[0] == "= exchange orders.dlx"
        assert lines[1] == "+ queue    orders.dlq  (quorum, x-delivery-limit=-1)"
        assert lines[2] == "= binding  orders.dlx → orders.dlq"
        at = lines.index("~ queue    orders")
        assert lines[at + 1] == '    dead-letter-exchange is "", expected orders.dlx'
        assert lines[at + 2].startswith("    fix: queue arguments cannot be changed in place")

    def test_programs_get_plain_values(self) -> None:
        found = as_wanted(wanted([ORDERS]), orders=work_queue(durable=False))
        told = json.loads(json.dumps(as_table(plan(found, wanted([ORDERS])))))
        assert (told["vhost"], told["missing"], told["differs"]) == ("/", 0, 1)
        [queue] = [item for item in told["items"] if item["name"] == "orders"]
        assert queue["differences"] == [{"what": "durable", "found": False, "wanted": True}]


# --- what is there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("#", "", True),
        ("#", "a.b.c", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.#", "a", True),
        ("a.#.z", "a.b.c.z", True),
        ("a.#.z", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.#", False),
        ("a.#", "a.*", True),
        ("#.#.#.#", "a.b.c.d.e", True),
        (".".join(["#"] * 60) + ".x", ".".join(["a"] * 60), False),
    ],
)
def test_a_topic_pattern_takes_what_rabbitmq_says_it_takes(pattern: str, key: str, fits: bool) -> None:
    assert covers(pattern, key) is fits


def exchanges(**types: str) -> dict[str, FoundExchange]:
    return {name: FoundExchange(name=name, type=kind) for name, kind in types.items()}


def bound(exchange: str, destination: str, key: str = "", to: Any = "queue") -> Binding:
    return Binding(exchange=exchange, destination=destination, routing_key=key, to=to)


class TestRoutes:
    def test_exchanges_lead_on_to_exchanges_and_in_circles(self) -> None:
        found = Found(
            exchanges=exchanges(a="fanout", b="direct", c="topic"),
            bindings=(
                bound("a", "b", to="exchange"),
                bound("b", "c", "k", to="exchange"),
                bound("c", "a", "#", to="exchange"),
                bound("c", "q", "k"),
                bound("c", "r", "z"),
            ),
        )
        assert found.routes("a", "k") == {"q"}
        assert found.routes("a", "z") == frozenset()

    def test_the_default_exchange_leads_to_the_queue_of_that_name(self) -> None:
        found = Found(queues={"q": FoundQueue(name="q")}, bindings=())
        assert found.routes("", "q") == {"q"}
        assert found.routes("", "r") == frozenset()

    def test_an_alternate_exchange_takes_what_has_no_binding(self) -> None:
        found = Found(
            exchanges={
                "a": FoundExchange(name="a", type="direct", alternate="b"),
                "b": FoundExchange(name="b", type="fanout"),
            },
            bindings=(bound("a", "q", "k"), bound("b", "r")),
        )
        assert found.routes("a", "k") == {"q"}
        assert found.routes("a", "z") == {"r"}

    def test_where_only_headers_or_a_plugin_could_say_every_binding_counts(self) -> None:
        found = Found(exchanges=exchanges(a="headers"), bindings=(bound("a", "q", "k"),))
        assert found.routes("a", "z") == {"q"}

    def test_messages_of_a_queue_have_its_name_and_the_keys_of_its_bindings(self) -> None:
        found = Found(
            exchanges=exchanges(t="topic", f="fanout"),
            bindings=(bound("t", "q", "a.*"), bound("f", "q", "no"), bound("t", "r", "b")),
        )
        assert found.keys_into("q") == {"q", "a.*"}


class TestPolicies:
    POLICIES = (
        FoundPolicy(name="low", pattern=".*", apply_to="all", priority=0, definition={"max-length": 5}),
        FoundPolicy(name="high", pattern="^q", apply_to="queues", priority=9, definition={"max-length": 7}),
        FoundPolicy(name="quorum", pattern="q", apply_to="quorum_queues", priority=10, definition={"x": 1}),
        FoundPolicy(name="exchanges", pattern="q", apply_to="exchanges", priority=99, definition={}),
    )

    @pytest.mark.parametrize(
        ("name", "kind", "acts"),
        [("q1", "classic", "high"), ("q1", "quorum", "quorum"), ("z", "quorum", "low"), ("q", "exchange", "exchanges")],
    )  # fmt: skip
    def test_the_one_with_the_highest_priority_acts(self, name: str, kind: str, acts: str) -> None:
        policy = in_force(self.POLICIES, name, kind)
        assert policy is not None
        assert policy.name == acts

    def test_nothing_acts_where_nothing_fits(self) -> None:
        assert in_force(self.POLICIES[1:2], "z", "classic") is None
        assert merged(None, None) == {}

    def test_an_operators_limit_counts_where_it_is_smaller(self) -> None:
        low, high, *_ = self.POLICIES
        assert merged(high, low) == {"max-length": 5}
        assert merged(low, high) == {"max-length": 5}
        assert merged(None, high) == {"max-length": 7}

    @pytest.mark.parametrize(
        ("name", "argument", "policy", "counts"),
        [
            ("dead-letter-exchange", "a", "b", "a"),
            ("dead-letter-exchange", None, "b", "b"),
            ("dead-letter-exchange", "", "b", ""),
            ("overflow", "drop-head", "reject-publish", "drop-head"),
            ("message-ttl", 5, 3, 3),
            ("message-ttl", 3, 5, 3),
            ("max-length", None, 5, 5),
        ],
    )
    def test_an_argument_and_a_policy_are_put_together_as_rabbitmq_does(
        self, name: str, argument: object, policy: object, counts: object
    ) -> None:
        arguments = {} if argument is None else {f"x-{name}": argument}
        queue = FoundQueue(name="q", arguments=arguments, definition={name: policy})
        assert queue.setting(name) == counts


@pytest.mark.parametrize(
    ("text", "version"),
    [("3.10.8", (3, 10, 8)), ("4.1.0-rc.1", (4, 1, 0)), ("4", (4,)), ("", None), (None, None), ("x", None)],
)
def test_a_version_is_read_as_numbers(text: object, version: tuple[int, ...] | None) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        (".*", "q", True),
        ("", "q", False),
        ("^q", "q1", True),
        ("q$", "1q", True),
        ("amq", "", True),
        ("^amq\\.default$", "", True),
        ("(?>q)(*SKIP)", "q", None),
    ],
)
def test_a_permission_is_searched_for_in_a_name(pattern: str, name: str, allowed: bool | None) -> None:
    assert Permissions(write=pattern).allow("write", name) is allowed
