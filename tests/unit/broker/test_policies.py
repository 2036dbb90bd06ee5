"""Which policy applies, and what it changes."""

import dataclasses
from typing import Any

import pytest

from redrive.broker.arguments import Features, QueueOptions, parse_queue_arguments
from redrive.broker.policies import Policies, Policy, PolicyError, alternate_exchange, merge


def policy(name: str = "p", pattern: str = "", **fields: Any) -> Policy:
    return Policy("v", name, pattern, **{"definition": {"max-length": 1}, **fields})


def queue(**arguments: object) -> QueueOptions:
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return parse_queue_arguments("q", "v", table, durable=True, exclusive=False, auto_delete=False)


class TestWhichOneApplies:
    def test_the_matching_one_with_the_highest_priority(self) -> None:
        policies = Policies(
            [policy("low"), policy("high", "^q", priority=2), policy("other", "^x", priority=3)]
        )

        effective = policies.effective("queue", "q")

        assert effective is not None
        assert effective.name == "high"

    def test_none_where_none_matches_and_the_first_name_of_equals(self) -> None:
        assert Policies([policy(pattern="^x$")]).effective("queue", "xx") is None
        assert Policies([policy("b"), policy("a")]).effective("queue", "q") == policy("a")

    @pytest.mark.parametrize(
        ("apply_to", "matched"),
        [
            ("all", {"classic", "quorum", "exchange"}),
            ("queues", {"classic", "quorum"}),
            ("classic_queues", {"classic"}),
            ("quorum_queues", {"quorum"}),
            ("exchanges", {"exchange"}),
            ("streams", set()),
        ],
    )
    def test_only_one_that_is_meant_for_the_kind(self, apply_to: str, matched: set[str]) -> None:
        policies = Policies([policy(apply_to=apply_to)])

        found = {
            "classic": policies.effective("queue", "q", "classic"),
            "quorum": policies.effective("queue", "q", "quorum"),
            "exchange": policies.effective("exchange", "x"),
        }

        assert {kind for kind, effective in found.items() if effective} == matched

    def test_none_that_has_a_key_which_the_type_of_queue_does_not_have(self) -> None:
        limit = policy("limit", priority=9, definition={"delivery-limit": 3, "max-length": 5})
        policies = Policies([limit, policy("plain")])

        assert policies.effective("queue", "q", "quorum") == limit
        assert policies.effective("queue", "q", "classic") == policy("plain")

    def test_only_one_of_the_same_vhost_if_several_share_the_collection(self) -> None:
        policies = Policies([policy(), dataclasses.replace(policy(), vhost="w", priority=5)])

        effective = policies.effective("queue", "q", vhost="v")

        assert effective is not None
        assert effective.vhost == "v"


class TestTheCollection:
    def test_replaces_lists_and_deletes_by_name(self) -> None:
        policies = Policies([policy("b"), policy("a")])
        policies.put(policy("b", priority=7))

        assert [(each.name, each.priority) for each in policies.list("v")] == [("a", 0), ("b", 7)]
        assert policies.get("v", "a") == policy("a")
        assert (policies.delete("v", "a"), policies.delete("v", "a")) == (True, False)
        policies.delete_vhost("v")
        assert policies.list() == ()

    def test_goes_out_and_comes_in_as_definitions(self) -> None:
        rows = [
            {
                "vhost": "v",
                "name": "p",
                "pattern": "^q",
                "apply-to": "queues",
                "definition": {"dead-letter-exchange": ""},
                "priority": 3,
            }
        ]
        policies = Policies()

        policies.load(rows)

        assert list(policies.to_json()) == rows

    def test_takes_all_rows_or_none(self) -> None:
        policies = Policies()

        with pytest.raises(PolicyError):
            policies.load([policy().to_json(), {**policy("bad").to_json(), "definition": {}}])

        assert policies.list() == ()

    def test_of_a_put_the_path_says_vhost_and_name_and_the_rest_has_defaults(self) -> None:
        made = Policy.from_json({"pattern": "a", "definition": {"expires": 1}}, "v", "n")

        assert made == Policy("v", "n", "a", "all", 0, {"expires": 1})


class TestARefusal:
    @pytest.mark.parametrize(
        ("definition", "problem"),
        [
            ({}, "no policy provided"),
            ({"max-width": 1}, '[{<<"max-width">>,1}] are not recognised policy settings'),
            ({"message-ttl": -1}, "-1 is not a valid message TTL"),
            ({"message-ttl": 0}, None),
            ({"message-ttl": True}, "true is not a valid message TTL"),
            ({"expires": 0}, "0 is not a valid queue expiry"),
            ({"expires": 1}, None),
            ({"max-length": "1"}, '<<"1">> is not a valid maximum length'),
            ({"max-length-bytes": None}, "null is not a valid maximum length in bytes"),
            ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
            ({"dead-letter-exchange": ""}, None),
            ({"dead-letter-routing-key": []}, "[] is not a valid dead letter routing key"),
            ({"dead-letter-strategy": "x"}, '<<"x">> is not a valid dead letter strategy'),
            ({"overflow": "x"}, '<<"x">> is not a valid overflow value'),
            ({"delivery-limit": 1.5}, "1.5 is not a valid delivery limit"),
            ({"delivery-limit": -1}, None),
            ({"alternate-exchange": {}}, "#{} is not a valid alternate exchange name"),
            ({"queue-version": True}, "true is not a valid queue-version value"),
            ({"max-age": "0D"}, '<<"0D">> is not a valid max age'),
            ({"expires": 0, "unknown": 1}, "0 is not a valid queue expiry"),
        ],
    )
    def test_names_what_is_wrong_in_the_definition(
        self, definition: dict[str, Any], problem: str | None
    ) -> None:
        if problem is None:
            policy(definition=definition).check()
            return
        with pytest.raises(PolicyError) as caught:
            policy(definition=definition).check()
        assert caught.value.reason == f"Validation failed\n\n{problem}\n"

    def test_names_everything_that_is_wrong_around_it(self) -> None:
        with pytest.raises(PolicyError) as caught:
            policy(pattern="(", apply_to="x", priority="y", definition=[1]).check()

        assert caught.value.reason.splitlines() == [
            "Validation failed",
            "",
            "parse error while reading policy p: [1]. Validator: policy_validator.",
            (
                "apply-to 'x' unrecognised; should be one of: 'queues', 'classic_queues',  'quorum_queues', 'streams',"
                " 'exchanges', or 'all'"
            ),
            'pattern should be regular expression but is invalid: {"missing closing parenthesis",1}',
            'priority should be a number, actually was <<"y">>',
        ]

    def test_names_what_is_missing(self) -> None:
        with pytest.raises(PolicyError, match='Key "pattern" not found in n'):
            Policy.from_json({"definition": {}}, "v", "n")

    def test_changes_nothing(self) -> None:
        policies = Policies([policy()])

        with pytest.raises(PolicyError):
            policies.put(policy(definition={}))

        assert policies.list() == (policy(),)


class TestMerging:
    @pytest.mark.parametrize("option", ["message-ttl", "expires", "max-length", "max-length-bytes"])
    @pytest.mark.parametrize(("argument", "setting", "result"), [(5, 9, 5), (9, 5, 5), (None, 7, 7)])
    def test_the_smaller_number_wins(
        self, option: str, argument: int | None, setting: int, result: int
    ) -> None:
        name = option.replace("-", "_")
        options = queue(**({name: argument} if argument is not None else {}))

        assert getattr(merge(options, {option: setting}), name) == result

    @pytest.mark.parametrize(
        ("option", "argument", "setting"),
        [
            ("dead-letter-exchange", "", "policy"),
            ("dead-letter-exchange", "mine", ""),
            ("overflow", "drop-head", "reject-publish"),
        ],
    )
    def test_the_argument_wins_even_if_it_says_the_default(
        self, option: str, argument: str, setting: str
    ) -> None:
        name = option.replace("-", "_")

        assert getattr(merge(queue(**{name: argument}), {option: setting}), name) == argument
        assert getattr(merge(queue(), {option: setting}), name) == setting

    def test_exchange_and_routing_key_are_settled_each_for_itself(self) -> None:
        merged = merge(
            queue(dead_letter_exchange="mine"),
            {"dead-letter-exchange": "policy", "dead-letter-routing-key": "policy"},
        )

        assert (merged.dead_letter_exchange, merged.dead_letter_routing_key) == ("mine", "policy")

    @pytest.mark.parametrize(
        ("argument", "setting", "result"),
        [(5, 9, 5), (9, 5, 5), (-1, 5, 5), (5, -1, 5), (None, 30, 30), (None, -1, -1)],
    )
    def test_the_stricter_delivery_limit_wins_and_the_default_gives_way(
        self, argument: int | None, setting: int, result: int
    ) -> None:
        limit = {} if argument is None else {"delivery_limit": argument}

        assert (
            merge(queue(queue_type="quorum", **limit), {"delivery-limit": setting}).delivery_limit == result
        )

    def test_a_queue_does_not_take_what_its_type_has_not(self) -> None:
        assert merge(queue(), {"delivery-limit": 3}) == queue()
        assert merge(queue(queue_type="quorum"), {"overflow": "reject-publish-dlx"}) == queue(
            queue_type="quorum"
        )
        assert merge(queue(), {"alternate-exchange": "x", "queue-mode": "lazy"}) == queue()

    def test_a_switched_off_extension_is_off_for_policies_too(self) -> None:
        everything = {"message-ttl": 1, "max-length": 1, "dead-letter-exchange": "x"}
        off = Features(dlx=False, ttl=False, length_limit=False)

        assert merge(queue(), everything, off) == queue()

    @pytest.mark.parametrize(("argument", "result"), [(None, "policy"), ("", ""), ("mine", "mine")])
    def test_an_alternate_exchange_by_argument_wins(self, argument: str | None, result: str) -> None:
        assert alternate_exchange(argument, {"alternate-exchange": "policy"}) == result
        assert alternate_exchange(argument, {}) == argument
