"""What arguments mean, and each way in which one is refused. The texts themselves are RabbitMQ's: see
`tests/interop/test_declare_texts.py`, which asks it.
"""

from collections.abc import Callable
from typing import Any

import pytest

from redrive.amqp.errors import ReplyCode, SoftError
from redrive.amqp.values import (
    DecimalValue,
    Float32,
    Int8,
    Int16,
    Int32,
    RawStr,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
)
from redrive.broker.arguments import (
    ConsumerOptions,
    Declared,
    Features,
    QueueOptions,
    check_equivalent,
    check_exchange,
    check_message_size,
    check_server_named,
    check_user_id,
    consumer_arguments,
    parse_expiration,
    parse_queue_arguments,
    routing_headers,
)
from redrive.broker.erlang import erlang_binary, erlang_string, erlang_term, type_name

TEN_YEARS = 315_360_000_000


def parse(arguments: dict[str, object], features: Features | None = None, **flags: bool) -> QueueOptions:
    flags = {"durable": True, "exclusive": False, "auto_delete": False, **flags}
    return parse_queue_arguments("q", "v", arguments, features=features or Features(), **flags)


def quorum(**arguments: object) -> dict[str, object]:
    return {"x-queue-type": "quorum"} | {f"x-{key.replace('_', '-')}": arguments[key] for key in arguments}


def refusal(function: Callable[..., object], *args: Any, **named: Any) -> str:
    with pytest.raises(SoftError) as caught:
        function(*args, **named)
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    return caught.value.text


class TestAQueue:
    def test_without_arguments_is_a_classic_one_without_limits(self) -> None:
        assert parse({}) == QueueOptions()

    def test_takes_every_option_from_its_argument(self) -> None:
        options = parse(
            {
                "x-message-ttl": Int32(1),
                "x-expires": UInt16(2),
                "x-max-length": Int8(3),
                "x-max-length-bytes": UInt32(4),
                "x-overflow": "reject-publish-dlx",
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "k",
                "x-max-priority": UInt8(5),
                "x-single-active-consumer": True,
                "x-mine": object,
            }
        )

        assert (options.message_ttl, options.expires, options.max_length, options.max_length_bytes) == (
            1,
            2,
            3,
            4,
        )
        assert type(options.message_ttl) is int, "the width on the wire is of no use any more"
        assert (options.overflow, options.max_priority) == ("reject-publish-dlx", 5)
        assert (options.dead_letter_exchange, options.dead_letter_routing_key) == ("", "k")
        assert options.single_active_consumer is True
        assert options.delivery_limit is None
        assert options.given >= {"message_ttl", "overflow", "dead_letter_exchange"}

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ({"x-message-ttl": -1}, "{value_negative,-1}"),
            ({"x-message-ttl": 0}, None),
            ({"x-message-ttl": TEN_YEARS}, None),
            ({"x-message-ttl": TEN_YEARS + 1}, "{value_too_large,315360000001}"),
            ({"x-expires": -1}, "{value_negative,-1}"),
            ({"x-expires": 0}, "{value_zero,0}"),
            ({"x-expires": 1}, None),
            ({"x-expires": TEN_YEARS}, None),
            ({"x-expires": TEN_YEARS + 1}, "{value_too_large,315360000001}"),
            ({"x-max-length": -1}, "{value_negative,-1}"),
            ({"x-max-length": 0}, None),
            ({"x-max-length-bytes": -1}, "{value_negative,-1}"),
            ({"x-max-length-bytes": 0}, None),
            ({"x-max-priority": -1}, "{value_negative,-1}"),
            ({"x-max-priority": 255}, None),
            ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
            ({"x-max-length": "1"}, '"expected integer, got longstr"'),
            ({"x-max-length": True}, '"expected integer, got bool"'),
            ({"x-max-length": 1.0}, '"expected integer, got double"'),
            ({"x-max-length": Float32(1)}, '"expected integer, got float"'),
            ({"x-max-length": Timestamp(1)}, '"expected integer, got timestamp"'),
            ({"x-max-length": DecimalValue(0, 1)}, '"expected integer, got decimal"'),
            ({"x-overflow": "drop-tail"}, "invalid_overflow"),
            ({"x-overflow": 1}, "{unacceptable_type,long}"),
            ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
            ({"x-dead-letter-routing-key": Int32(1)}, "{unacceptable_type,signedint}"),
            ({"x-single-active-consumer": 1}, "{unacceptable_type,long}"),
            ({"x-queue-version": 1}, "\"unsupported queue version '1'\""),
            ({"x-queue-version": 2}, None),
            ({"x-queue-type": "stream"}, "\"unsupported queue type 'stream'\""),
            ({"x-queue-type": 1}, "{unacceptable_type,long}"),
            ({"x-queue-type": ""}, None),
            (quorum(dead_letter_strategy="twice"), "invalid_dlx_strategy"),
            (quorum(dead_letter_strategy=2), "{unacceptable_type,long}"),
            (quorum(quorum_initial_group_size=0), "{value_zero,0}"),
            (quorum(queue_leader_locator="nowhere"), "invalid_queue_locator_arg"),
        ],
    )
    def test_is_refused_for_a_wrong_value_with_the_reason(
        self, arguments: dict[str, object], reason: str | None
    ) -> None:
        if reason is None:
            assert isinstance(parse(arguments), QueueOptions)
        else:
            key = list(arguments)[-1]
            assert refusal(parse, arguments) == f"invalid arg '{key}' for queue 'q' in vhost 'v': {reason}"

    def test_is_refused_for_an_argument_of_another_type_after_the_values_are_checked(self) -> None:
        assert refusal(parse, {"x-delivery-limit": 1}).endswith(
            "in vhost 'v' of queue type rabbit_classic_queue"
        )
        assert refusal(parse, quorum(max_priority=1)).endswith(
            "in vhost 'v' of queue type rabbit_quorum_queue"
        )
        assert "value_negative" in refusal(parse, {"x-delivery-limit": 1, "x-max-length": -1})

    def test_is_refused_for_a_dead_letter_exchange_that_is_no_text_before_anything_else(self) -> None:
        assert refusal(parse, {"x-queue-type": "none", "x-dead-letter-exchange": 1}) == (
            "invalid type 'long' for arg 'x-dead-letter-exchange' in queue 'q' in vhost 'v'"
        )


class TestAQuorumQueue:
    @pytest.mark.parametrize(("given", "limit"), [(0, 0), (3, 3), (-1, -1), (-9, -1), ("3", 20), (True, 20)])
    def test_has_the_delivery_limit_of_its_argument(self, given: object, limit: int) -> None:
        assert parse(quorum(delivery_limit=given)).delivery_limit == limit

    def test_has_a_delivery_limit_of_twenty_by_default(self) -> None:
        options = parse(quorum())

        assert (options.delivery_limit, options.given) == (20, frozenset())

    @pytest.mark.parametrize(
        ("flags", "what"),
        [
            ({"durable": False}, "non-durable"),
            ({"exclusive": True}, "exclusive-owner"),
            ({"auto_delete": True}, "auto-delete"),
            ({"auto_delete": True, "exclusive": True, "durable": False}, "auto-delete"),
        ],
    )
    def test_must_be_durable_shared_and_lasting(self, flags: dict[str, bool], what: str) -> None:
        assert refusal(parse, quorum(), **flags) == f"invalid property '{what}' for queue 'q' in vhost 'v'"

    def test_must_be_named_by_its_client(self) -> None:
        check_server_named({})
        assert refusal(check_server_named, quorum()).endswith("for type rabbit_quorum_queue")

    def test_drops_its_head_where_it_is_told_what_only_classic_queues_do(self) -> None:
        options = parse(quorum(overflow="reject-publish-dlx"))

        assert options.overflow == "drop-head"
        assert "reject-publish-dlx" in options.warnings[0]

    @pytest.mark.parametrize(("overflow", "kept"), [("reject-publish", True), ("drop-head", False)])
    def test_keeps_dead_letters_at_least_once_only_if_it_refuses(self, overflow: str, kept: bool) -> None:
        options = parse(
            quorum(dead_letter_exchange="", dead_letter_strategy="at-least-once", overflow=overflow)
        )

        assert options.at_least_once is kept


class TestASwitchedOffExtension:
    @pytest.mark.parametrize(
        ("features", "ignored"),
        [
            (Features(dlx=False), {"x-dead-letter-exchange": 1, "x-dead-letter-routing-key": "k"}),
            (Features(ttl=False), {"x-message-ttl": -1, "x-expires": 5}),
            (
                Features(length_limit=False),
                {"x-max-length": 1, "x-max-length-bytes": 1, "x-overflow": "none"},
            ),
        ],
    )
    def test_has_no_arguments_only_warnings(self, features: Features, ignored: dict[str, object]) -> None:
        options = parse({**ignored, "x-max-priority": 1}, features)

        assert options == QueueOptions(max_priority=1, given=frozenset({"max_priority"}))
        assert len(options.warnings) == len(ignored)
        assert all("is off" in warning for warning in options.warnings)


class TestARedeclare:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ({"x-max-length": 1}, {"x-max-length": Int16(1)}),
            ({"x-max-length": Int8(1)}, {"x-max-length": UInt32(1)}),
            ({}, {"x-queue-type": "classic"}),
            ({"x-queue-type": "classic"}, {}),
            ({}, {"x-mine": 1}),
        ],
    )
    def test_that_means_the_same_is_accepted(self, old: dict[str, object], new: dict[str, object]) -> None:
        check_equivalent("queue", "q", "v", Declared(arguments=old), Declared(arguments=new))

    @pytest.mark.parametrize(
        ("old", "new", "difference"),
        [
            (Declared(durable=True), Declared(), "'durable' … received 'false' but current is 'true'"),
            (
                Declared(),
                Declared(auto_delete=True),
                "'auto_delete' … received 'true' but current is 'false'",
            ),
            (
                Declared(),
                Declared(arguments={"x-max-length": Int32(100)}),
                "'x-max-length' … received the value '100' of type 'signedint' but current is none",
            ),
            (
                Declared(arguments={"x-dead-letter-exchange": "x"}),
                Declared(),
                "'x-dead-letter-exchange' … received none but current is the value 'x' of type 'longstr'",
            ),
            (
                Declared(arguments={"x-max-length": 1}),
                Declared(arguments={"x-max-length": True}),
                "'x-max-length' … received 'true' but current is '1'",
            ),
            (
                Declared(),
                Declared(arguments=quorum()),
                "'x-queue-type' … received 'quorum' but current is 'classic'",
            ),
        ],
    )
    def test_that_differs_is_refused_with_the_difference(
        self, old: Declared, new: Declared, difference: str
    ) -> None:
        text = refusal(check_equivalent, "queue", "q", "v", old, new)

        assert text == "inequivalent arg " + difference.replace("…", "for queue 'q' in vhost 'v':")

    def test_of_an_exchange_looks_at_type_flags_and_alternate_exchange(self) -> None:
        old = Declared(type="direct", arguments={"x-mine": 1})
        check_equivalent("exchange", "x", "v", old, Declared(type="direct"))

        assert "arg 'type'" in refusal(check_equivalent, "exchange", "x", "v", old, Declared(type="topic"))
        new = Declared(type="direct", internal=True)
        assert "arg 'internal'" in refusal(check_equivalent, "exchange", "x", "v", old, new)
        new = Declared(type="direct", arguments={"alternate-exchange": "a"})
        assert refusal(check_equivalent, "exchange", "x", "v", old, new).endswith("but current is none")


class TestTheRest:
    def test_an_exchange_tells_its_alternate_exchange(self) -> None:
        assert check_exchange("x", "v", "fanout", {}) is None
        assert check_exchange("x", "v", "fanout", {"alternate-exchange": ""}) == ""
        assert refusal(check_exchange, "x", "v", "none", {}) == "unknown exchange type 'none'"
        assert refusal(check_exchange, "x", "v", "topic", {"alternate-exchange": True}) == (
            "invalid type 'bool' for arg 'alternate-exchange' in exchange 'x' in vhost 'v'"
        )

    def test_a_consumer_has_a_priority_and_on_a_quorum_queue_a_timeout(self) -> None:
        assert consumer_arguments("q", "v", {}) == ConsumerOptions()
        assert consumer_arguments("q", "v", {"x-priority": Int8(-3)}, exclusive=True) == ConsumerOptions(
            priority=-3, exclusive=True
        )
        timeout = {"x-consumer-timeout": 5}
        assert consumer_arguments("q", "v", timeout, queue_type="quorum").timeout == 5
        assert refusal(consumer_arguments, "q", "v", timeout).endswith("of queue type rabbit_classic_queue")
        assert refusal(consumer_arguments, "q", "v", {"x-priority": 1.0}).endswith(
            '"expected integer, got double"'
        )

    @pytest.mark.parametrize(
        ("text", "milliseconds"),
        [("0", 0), (b"60000", 60000), ("+7", 7), (str(TEN_YEARS), TEN_YEARS), ("007", 7)],
    )
    def test_an_expiration_is_a_number_in_text(self, text: str | bytes, milliseconds: int) -> None:
        assert parse_expiration(text) == milliseconds

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "no_integer"),
            ("soon", "no_integer"),
            (" 5", "no_integer"),
            ("٥", "no_integer"),
            ("-1", "{value_negative,-1}"),
            (str(TEN_YEARS + 1), "{value_too_large,315360000001}"),
            ("5s", '{leftover_string,"s"}'),
            ("1_000", '{leftover_string,"_000"}'),
            ("1.5", '{leftover_string,".5"}'),
            ('5"\n', '{leftover_string,"\\"\\n"}'),
            ("5\x00", "{leftover_string,[0]}"),
        ],
    )
    def test_an_expiration_that_is_none_is_refused_with_the_reason(self, text: str, reason: str) -> None:
        assert refusal(parse_expiration, text) == f"invalid expiration '{text}': {reason}"

    def test_a_user_may_name_nobody_but_itself_unless_it_is_an_impersonator(self) -> None:
        check_user_id(None, "me")
        check_user_id("me", "me")
        check_user_id("you", "me", ["impersonator"])
        assert refusal(check_user_id, "you", "me", ["administrator"]) == (
            "user_id property set to 'you' but authenticated user was 'me'"
        )

    def test_a_message_has_a_largest_size(self) -> None:
        check_message_size(10, 10)
        assert refusal(check_message_size, 11, 10) == "message size 11 is larger than configured max size 10"

    def test_further_routing_keys_stand_in_arrays_of_text(self) -> None:
        assert routing_headers({}) == ((), ())
        assert routing_headers({"CC": ["a", 1, RawStr(b"\xff")], "BCC": ["b"]}) == (("a", "\udcff"), ("b",))
        assert refusal(routing_headers, {"BCC": "b"}) == (
            'invalid message: {unacceptable_type_in_header,"BCC",longstr}'
        )

    def test_values_are_printed_as_erlang_does(self) -> None:
        assert erlang_term({"a": [Int32(1), None, True, DecimalValue(1, 5)], "b": "x"}) == (
            '[{<<"a">>,array,[{signedint,1},{void,undefined},{bool,true},{decimal,{1,5}}]},{<<"b">>,longstr,<<"x">>}]'
        )
        assert (erlang_binary(b""), erlang_binary(b"\xff"), erlang_binary("é".encode())) == (
            "<<>>",
            "<<255>>",
            '<<"é"/utf8>>',
        )
        assert (erlang_string(""), erlang_string('a"\\'), erlang_string("€")) == (
            "[]",
            '"a\\"\\\\"',
            "[8364]",
        )
        others: tuple[object, ...] = (RawStr(b""), b"", {}, (), None)
        assert [type_name(value) for value in others] == ["longstr", "binary", "table", "array", "void"]
