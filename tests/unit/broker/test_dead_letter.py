import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redrive.amqp.errors import MisuseError
from redrive.amqp.hot import publish_payload, route_of
from redrive.amqp.properties import (
    FIELDS,
    BasicProperties,
    decode_properties,
    encode_properties,
    is_persistent,
    read_field,
    read_headers,
)
from redrive.amqp.table import encode_table
from redrive.amqp.values import Int8, Int32, RawStr, Timestamp
from redrive.broker.dead_letter import DeadLetter, Death, Deaths, Reason, dead_letter_of, is_cycle
from redrive.broker.message import PROPERTIES_AT, Message

NOW = 1_700_000_000
BODY = b"hello"
NONE = BasicProperties()


def message(
    properties: BasicProperties | bytes = NONE,
    *,
    exchange: str = "orders",
    keys: tuple[str, ...] = ("created",),
    persistent: bool = False,
) -> Message:
    raw = properties if isinstance(properties, bytes) else encode_properties(properties)
    header = b"\x00\x3c\x00\x00" + len(BODY).to_bytes(8, "big") + raw
    route = route_of(publish_payload(exchange.encode(), keys[0].encode()))
    return Message(exchange, keys, route, header, BODY, persistent=persistent)


def with_headers(**headers: object) -> Message:
    return message(BasicProperties(headers=headers))


def die(
    dying: Message,
    queue: str = "work",
    reason: Reason = Reason.REJECTED,
    exchange: str = "dlx",
    routing_key: str | None = None,
    seconds: int = NOW,
) -> DeadLetter:
    return dead_letter_of(
        dying, queue=queue, reason=reason, exchange=exchange, routing_key=routing_key, seconds=seconds
    )


def headers_of(letter: Message) -> dict[str, Any]:
    return read_headers(letter.properties)


def entries_of(letter: Message) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = headers_of(letter)["x-death"]
    return entries


def reread(letter: DeadLetter) -> DeadLetter:
    """The letter as a journal gives it back: with its octets, without what was known about them."""
    return DeadLetter(
        letter.exchange, letter.keys, letter.route, letter.header, BODY, persistent=letter.persistent
    )


# --- The octets ---------------------------------------------------------------------------------------------


def test_a_first_death_is_written_octet_by_octet_as_rabbitmq_4_writes_it() -> None:
    entry = (
        b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x06reasonS\x00\x00\x00\x08rejected"
        b"\x05queueS\x00\x00\x00\x04work"
        b"\x04timeT\x00\x00\x00\x00\x65\x53\xf1\x00"
        b"\x08exchangeS\x00\x00\x00\x06orders"
        b"\x0crouting-keysA\x00\x00\x00\x0cS\x00\x00\x00\x07created"
    )
    array = b"F" + len(entry).to_bytes(4, "big") + entry
    table = (
        b"\x07x-deathA"
        + len(array).to_bytes(4, "big")
        + array
        + b"\x16x-first-death-exchangeS\x00\x00\x00\x06orders"
        b"\x13x-first-death-queueS\x00\x00\x00\x04work"
        b"\x14x-first-death-reasonS\x00\x00\x00\x08rejected"
        b"\x15x-last-death-exchangeS\x00\x00\x00\x06orders"
        b"\x12x-last-death-queueS\x00\x00\x00\x04work"
        b"\x13x-last-death-reasonS\x00\x00\x00\x08rejected"
    )
    expected = (
        b"\x00\x3c\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x05"
        b"\x30\x00" + len(table).to_bytes(4, "big") + table + b"\x02"
    )
    assert die(message(BasicProperties(delivery_mode=2))).header == expected


def test_an_entry_has_its_fields_in_wire_order_and_of_wire_types() -> None:
    letter = die(message(BasicProperties(expiration="60000")), reason=Reason.EXPIRED)
    (entry,) = entries_of(letter)
    assert list(entry.items()) == [
        ("original-expiration", "60000"),
        ("count", 1),
        ("reason", "expired"),
        ("queue", "work"),
        ("time", NOW),
        ("exchange", "orders"),
        ("routing-keys", ["created"]),
    ]
    assert [type(value) for value in entry.values()] == [str, int, str, str, Timestamp, str, list]


def test_the_reasons_are_spelt_as_on_the_wire() -> None:
    assert [entries_of(die(message(), reason=reason))[0]["reason"] for reason in Reason] == [
        "rejected",
        "expired",
        "maxlen",
        "delivery_limit",
    ]


def test_names_beyond_ascii_are_written_as_utf8() -> None:
    letter = die(message(exchange="bestellungen-ä", keys=("größe",)), queue="müll", exchange="tot-ß")
    (entry,) = entries_of(letter)
    assert (entry["queue"], entry["exchange"], entry["routing-keys"]) == ("müll", "bestellungen-ä", ["größe"])
    assert letter.route == route_of(publish_payload("tot-ß".encode(), "größe".encode()))


# --- Merging ------------------------------------------------------------------------------------------------


def test_a_death_of_the_same_queue_and_reason_counts_up_and_keeps_what_was_said_first() -> None:
    first = die(message(BasicProperties(expiration="5")))
    second = die(first, seconds=NOW + 9)
    assert entries_of(second) == [entries_of(first)[0] | {"count": 2}]
    assert list(entries_of(second)[0]) == list(entries_of(first)[0])


@pytest.mark.parametrize(("queue", "reason"), [("other", Reason.REJECTED), ("work", Reason.EXPIRED)])
def test_a_death_of_another_queue_or_reason_goes_in_front(queue: str, reason: Reason) -> None:
    first = die(message())
    second = die(first, queue=queue, reason=reason, seconds=NOW + 9)
    new, old = entries_of(second)
    assert old == entries_of(first)[0]
    assert (new["queue"], new["reason"], new["count"], new["time"]) == (queue, reason, 1, NOW + 9)


def test_a_counted_death_moves_to_the_front() -> None:
    letter = die(die(die(message(), "a"), "b"), "a")
    assert [(entry["queue"], entry["count"]) for entry in entries_of(letter)] == [("a", 2), ("b", 1)]


def test_a_thousand_rounds_are_two_entries() -> None:
    letter: Message = message()
    for _ in range(1000):
        letter = die(die(letter, "work"), "retry", Reason.EXPIRED, exchange="orders")
    assert [(entry["queue"], entry["count"]) for entry in entries_of(letter)] == [
        ("retry", 1000),
        ("work", 1000),
    ]


@given(
    path=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Reason)), min_size=1, max_size=12),
    with_restarts=st.booleans(),
)
def test_counts_are_how_often_it_died_there_and_order_is_how_lately(
    *, path: list[tuple[str, Reason]], with_restarts: bool
) -> None:
    letter = die(message(), *path[0])
    for queue, reason in path[1:]:
        letter = die(reread(letter) if with_restarts else letter, queue, reason)
    newest_first = list(dict.fromkeys(reversed(path)))
    assert [(entry["queue"], entry["reason"], entry["count"]) for entry in entries_of(letter)] == [
        (*death, path.count(death)) for death in newest_first
    ]
    assert [death[:3] for death in letter.deaths] == [(*death, path.count(death)) for death in newest_first]


# --- Where it was and where it goes -------------------------------------------------------------------------


def test_a_second_hop_names_the_first_dead_letter_exchange() -> None:
    letter = die(die(message(exchange="")), "parking", exchange="dlx-2")
    assert [entry["exchange"] for entry in entries_of(letter)] == ["dlx", ""]
    assert letter.exchange == "dlx-2"


def test_a_dead_letter_is_delivered_from_the_dead_letter_exchange_with_the_original_key() -> None:
    letter = die(message())
    assert letter.route == route_of(publish_payload(b"dlx", b"created"))
    assert (letter.exchange, letter.keys) == ("dlx", ("created",))


def test_a_dead_letter_routing_key_takes_the_place_of_all_keys() -> None:
    first = die(message(keys=("created", "cc", "bcc")), routing_key="dead")
    assert first.keys == ("dead",)
    assert first.route == route_of(publish_payload(b"dlx", b"dead"))
    assert entries_of(die(first, "parking"))[0]["routing-keys"] == ["dead"]


@pytest.mark.parametrize("exchange", ["", "dlx"])
def test_the_empty_string_is_a_name_and_a_key_like_any_other(exchange: str) -> None:
    letter = die(message(), exchange=exchange, routing_key="")
    assert (letter.exchange, letter.keys) == (exchange, ("",))
    assert letter.route == route_of(publish_payload(exchange.encode(), b""))


def test_copies_are_routed_again_and_blind_ones_are_not_told() -> None:
    copied = message(
        BasicProperties(headers={"CC": ["cc-1", "cc-2"]}), keys=("created", "cc-1", "cc-2", "bcc")
    )
    first = die(copied)
    second = die(first, "parking")
    for letter in (first, second):
        assert letter.keys == ("created", "cc-1", "cc-2", "bcc")
        assert entries_of(letter)[0]["routing-keys"] == ["created", "cc-1", "cc-2"]
        assert headers_of(letter)["CC"] == ["cc-1", "cc-2"]


def test_the_cc_header_stays_but_means_nothing_behind_a_dead_letter_routing_key() -> None:
    copied = message(BasicProperties(headers={"CC": ["cc"]}), keys=("created", "cc"))
    letter = die(die(copied, routing_key="dead"), "parking")
    assert headers_of(letter)["CC"] == ["cc"]
    assert letter.keys == ("dead",)
    assert entries_of(letter)[0]["routing-keys"] == ["dead"]


def test_a_key_that_is_a_copy_and_a_blind_one_is_told_once() -> None:
    copied = message(BasicProperties(headers={"CC": ["x"]}), keys=("x", "x", "x"))
    assert entries_of(die(copied))[0]["routing-keys"] == ["x", "x"]


@pytest.mark.parametrize("cc", ["cc", 7, None, {"cc": "cc"}, [1, None, RawStr(b"\xff")]])
def test_a_cc_header_that_is_no_list_of_names_tells_nothing(cc: object) -> None:
    letter = die(message(BasicProperties(headers={"CC": cc}), keys=("created", "cc", "bcc")))
    assert entries_of(letter)[0]["routing-keys"] == ["created"]
    assert headers_of(letter)["CC"] == cc


def test_a_routing_key_too_long_for_a_delivery_is_cut_there_between_two_characters() -> None:
    letter = die(message(), routing_key="ä" * 200)
    assert letter.keys == ("ä" * 200,)
    assert letter.route == route_of(publish_payload(b"dlx", b"\xc3\xa4" * 127))


# --- Expiration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("expiration", ["0", "60000"])
def test_an_expiration_becomes_the_original_one_whatever_the_reason(expiration: str, reason: Reason) -> None:
    letter = die(message(BasicProperties(expiration=expiration)), reason=reason)
    assert entries_of(letter)[0]["original-expiration"] == expiration
    assert read_field(letter.properties, "expiration") is None


def test_without_an_expiration_there_is_no_original_one() -> None:
    assert "original-expiration" not in entries_of(die(message(), reason=Reason.EXPIRED))[0]


def test_only_the_hop_that_lost_the_expiration_tells_it() -> None:
    letter = die(die(message(BasicProperties(expiration="5"))), "parking")
    assert ["original-expiration" in entry for entry in entries_of(letter)] == [False, True]


# --- The other headers and properties -----------------------------------------------------------------------


def test_the_first_death_is_remembered_for_ever_and_the_last_one_until_the_next() -> None:
    letter = die(die(message()), "retry", Reason.EXPIRED)
    headers = headers_of(letter)
    assert [headers[f"x-first-death-{what}"] for what in ("queue", "reason", "exchange")] == [
        "work",
        "rejected",
        "orders",
    ]
    assert [headers[f"x-last-death-{what}"] for what in ("queue", "reason", "exchange")] == [
        "retry",
        "expired",
        "dlx",
    ]


def test_the_broker_s_headers_win_over_a_client_s_of_the_same_name() -> None:
    forged = {
        f"x-{which}-death-{what}": 7
        for which in ("first", "last")
        for what in ("queue", "reason", "exchange")
    }
    headers = headers_of(die(with_headers(**forged)))
    assert {name: headers[name] for name in forged} == {
        f"x-{which}-death-{what}": value
        for which in ("first", "last")
        for what, value in (("queue", "work"), ("reason", "rejected"), ("exchange", "orders"))
    }


def test_headers_are_sorted_by_their_octets() -> None:
    names = ["zebra", "x-delay", "x-later", "Upper", "\U0001f40c", "\udcff", "é", "a", ""]
    headers = headers_of(die(with_headers(**dict.fromkeys(names, "v"))))
    assert list(headers) == sorted(headers, key=lambda name: name.encode("utf-8", "surrogateescape"))
    assert set(names) < set(headers)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.builds(Int8, st.integers(-128, 127))
    | st.builds(Int32, st.integers(-(2**31), 2**31 - 1))
    | st.builds(Timestamp, st.integers(0, 2**64 - 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
TEXTS = {
    field.name: st.none() | st.text(max_size=9)
    for field in FIELDS
    if field.name not in {"headers", "delivery_mode", "priority", "timestamp"}
}
PROPERTIES = st.builds(
    BasicProperties,
    headers=st.none() | st.dictionaries(st.text(max_size=9), VALUES, max_size=5),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    **TEXTS,
)


@given(sent=PROPERTIES, persistent=st.booleans())
def test_everything_else_stays_as_the_sender_wrote_it(*, sent: BasicProperties, persistent: bool) -> None:
    dying = message(sent, persistent=persistent)
    letter = die(die(dying), "parking")
    got = decode_properties(letter.properties)
    for field in FIELDS:
        if field.name not in {"headers", "expiration"}:
            assert getattr(got, field.name) == getattr(sent, field.name)
    assert got.headers is not None
    theirs = {name: got.headers[name] for name in sent.headers or {}}
    assert encode_table(theirs) == encode_table(sent.headers or {})
    assert letter.header[:PROPERTIES_AT] == dying.header[:PROPERTIES_AT]
    assert encode_properties(got) == letter.properties
    assert letter.body is dying.body
    assert (letter.persistent, letter.size) == (persistent, dying.size)


def test_a_persistent_message_stays_persistent() -> None:
    letter = die(message(BasicProperties(delivery_mode=2), persistent=True))
    assert letter.persistent
    assert is_persistent(letter.properties)


def test_the_message_that_died_is_not_changed() -> None:
    dying = message(BasicProperties(expiration="5", headers={"b": 1, "a": 2}))
    before = (dying.header, dying.exchange, dying.keys, dying.route)
    die(die(dying))
    assert (dying.header, dying.exchange, dying.keys, dying.route) == before


def test_a_dead_letter_is_not_journalled_yet() -> None:
    dying = message(persistent=True)
    dying.place = 7
    assert die(dying).place == 0


def test_a_body_that_is_only_on_disk_must_be_read_first() -> None:
    dying = message()
    dying.body = None
    with pytest.raises(MisuseError, match="read from disk"):
        die(dying)


# --- What clients send --------------------------------------------------------------------------------------

CLIENT_DEATHS: list[object] = [
    [
        {
            "count": 41,
            "reason": "rejected",
            "queue": "work",
            "time": Timestamp(1),
            "exchange": "",
            "routing-keys": [],
        }
    ],
    [{"count": "41", "reason": "rejected", "queue": "work"}],
    [{"queue": "work", "reason": 7, "count": 2**63 - 1}],
    [{}],
    ["work", None, 3, [[]]],
    [],
    {"queue": "work", "reason": "rejected", "count": 41},
    '[{"queue": "work"}]',
    RawStr(b"\xff\xfe"),
    b"\x00",
    True,
    7,
    None,
]


@pytest.mark.parametrize("sent", CLIENT_DEATHS, ids=repr)
def test_an_x_death_from_a_client_is_replaced_by_a_fresh_one(sent: object) -> None:
    letter = die(with_headers(**{"x-death": sent, "kept": 1}))
    assert headers_of(letter) == headers_of(die(with_headers(kept=1)))
    assert [death[:3] for death in letter.deaths] == [("work", "rejected", 1)]


def test_a_dead_letter_that_a_consumer_publishes_again_starts_anew() -> None:
    dead = die(die(message(BasicProperties(message_id="m"))), "retry", Reason.EXPIRED)
    again = Message("orders", ("created",), dead.route, dead.header, BODY, persistent=False)
    assert [(entry["queue"], entry["count"]) for entry in entries_of(die(again))] == [("work", 1)]
    assert headers_of(die(again))["x-first-death-queue"] == "work"


def test_a_made_up_death_does_not_stop_a_message_as_a_cycle() -> None:
    forged = [{"count": 1, "reason": "expired", "queue": "target"}]
    letter = die(with_headers(**{"x-death": forged}), reason=Reason.EXPIRED)
    assert not is_cycle(letter.deaths, Reason.EXPIRED, "target")


@given(st.binary(max_size=60))
def test_headers_that_are_garbage_never_cost_the_message(table: bytes) -> None:
    raw = b"\x30\x00" + len(table).to_bytes(4, "big") + table + b"\x02"
    letter = die(die(message(raw)), "parking")
    assert letter.body is BODY
    assert [death.queue for death in letter.deaths] == ["parking", "work"]
    assert letter.properties[-1:] == b"\x02"


@given(st.binary(max_size=60))
def test_properties_that_are_garbage_never_cost_the_message(raw: bytes) -> None:
    letter = die(die(message(raw)), "parking")
    assert letter.body is BODY
    assert [death.queue for death in letter.deaths] == ["parking", "work"]


def test_headers_in_front_of_a_damage_are_kept_and_none_behind_it() -> None:
    good = b"\x04goodS\x00\x00\x00\x03yes"
    for bad in (
        b"\x03badZ\x00\x00",
        b"\x03badS\x00\x00\xff\xffx",
        b"\x03badl\x00",
        b"\x09bad",
        b"\x03badS\x00",
    ):
        table = good + bad
        raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
        headers = headers_of(die(message(raw)))
        assert headers["good"] == "yes"
        assert not any(name.startswith("bad") for name in headers)


def test_values_that_nobody_here_can_read_pass_through_as_they_are() -> None:
    nested = b"\x01nF\x00\x00\x00\x03\x01xZ"  # a table with a value of no known type
    first = die(message(b"\x20\x00" + len(nested).to_bytes(4, "big") + nested))
    letter = die(reread(first))
    assert nested in letter.header
    assert [death.times for death in letter.deaths] == [2]


# --- After a restart ----------------------------------------------------------------------------------------


def test_a_letter_read_back_from_its_octets_dies_on_as_if_nothing_had_happened() -> None:
    letter = die(
        die(message(BasicProperties(expiration="5", headers={"CC": ["cc"]}), keys=("k", "cc", "bcc"))),
        "retry",
    )
    back = reread(letter)
    assert back.deaths == letter.deaths
    for queue, reason in itertools.product(("work", "retry", "third"), Reason):
        assert (
            die(back, queue, reason, seconds=NOW + 5).header
            == die(letter, queue, reason, seconds=NOW + 5).header
        )


@given(st.binary(max_size=80))
def test_a_letter_read_back_with_damaged_octets_has_no_deaths_and_still_dies(raw: bytes) -> None:
    back = DeadLetter("dlx", ("k",), b"", bytes(12) + raw, BODY, persistent=True)
    assert back.deaths == ()
    assert len(die(back).deaths) == 1


@pytest.mark.parametrize("sent", CLIENT_DEATHS, ids=repr)
def test_entries_that_make_no_sense_are_left_out_of_what_is_read_back(sent: object) -> None:
    header = with_headers(**{"x-death": sent}).header
    back = DeadLetter("dlx", ("k",), b"", header, BODY, persistent=True)
    assert all(type(death.times) is int for death in back.deaths)
    die(back)


# --- Cycles -------------------------------------------------------------------------------------------------


def cycle_by_the_book(path: list[tuple[str, str]], reason: str, target: str) -> bool:
    """The rule about cycles, written out slowly."""
    if reason == "rejected":
        return False
    places = [place for place, (queue, _) in enumerate(path) if queue == target]
    if not places:
        return False
    it_and_newer = path[: min(places) + 1]
    return not [entry for entry in it_and_newer if entry[1] == "rejected"]


def deaths(*path: tuple[str, str]) -> Deaths:
    return tuple(Death(queue, reason, 1, b"", b"") for queue, reason in path)


def test_the_cycle_check_is_the_written_rule_for_all_short_histories() -> None:
    alphabet = list(itertools.product("ab", Reason))
    for length in range(1, 5):
        for path in itertools.permutations(alphabet, length):
            for target in "abc":
                reason = path[0][1]
                expected = cycle_by_the_book([(queue, str(why)) for queue, why in path], str(reason), target)
                assert is_cycle(deaths(*path), reason, target) is expected


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(Reason)), max_size=10),
    st.sampled_from(Reason),
    st.sampled_from("abcde"),
)
def test_the_cycle_check_is_the_written_rule_for_long_histories(
    path: list[tuple[str, Reason]], reason: Reason, target: str
) -> None:
    expected = cycle_by_the_book([(queue, str(why)) for queue, why in path], str(reason), target)
    assert is_cycle(deaths(*path), reason, target) is expected


@pytest.mark.parametrize("reason", [Reason.EXPIRED, Reason.MAXLEN, Reason.DELIVERY_LIMIT])
def test_a_queue_that_dead_letters_to_itself_without_a_client_is_a_cycle(
    reason: Reason,
) -> None:
    letter = die(message(), "work", reason)
    assert is_cycle(letter.deaths, reason, "work")
    assert not is_cycle(letter.deaths, reason, "second")


def test_a_queue_that_dead_letters_to_itself_by_rejection_is_none() -> None:
    assert not is_cycle(die(message()).deaths, Reason.REJECTED, "work")


def test_a_retry_loop_that_begins_with_a_rejection_goes_round_for_ever() -> None:
    letter: Message = message()
    for _ in range(5):
        rejected = die(letter, "work")
        assert not is_cycle(rejected.deaths, Reason.REJECTED, "wait-1")
        once = die(rejected, "wait-1", Reason.EXPIRED)
        assert not is_cycle(once.deaths, Reason.EXPIRED, "wait-2")
        twice = die(once, "wait-2", Reason.EXPIRED)
        assert not is_cycle(twice.deaths, Reason.EXPIRED, "work")
        letter = twice


def test_a_rejection_older_than_the_way_round_does_not_help() -> None:
    letter = die(die(die(message(), "work"), "a", Reason.EXPIRED), "b", Reason.EXPIRED)
    assert is_cycle(letter.deaths, Reason.EXPIRED, "a")


# --- Messages that are alike --------------------------------------------------------------------------------


def test_letters_that_are_alike_share_their_header_and_route() -> None:
    one, two = die(message()), die(message())
    assert one is not two
    assert one.header is two.header
    assert one.route is two.route


@given(
    st.lists(
        st.tuples(PROPERTIES, st.sampled_from("ab"), st.sampled_from(Reason), st.integers(0, 3)), max_size=6
    )
)
def test_what_died_before_does_not_colour_what_dies_now(
    others: list[tuple[BasicProperties, str, Reason, int]],
) -> None:
    dying = message(BasicProperties(message_id="m", headers={"a": 1}))
    before = die(dying).header
    for sent, queue, reason, seconds in others:
        die(message(sent), queue, reason, seconds=seconds)
    assert die(dying).header == before
