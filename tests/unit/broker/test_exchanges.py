"""Does a message reach the queues it should, each once, and at a cost that does not grow with the bindings?"""

import tracemalloc
from collections.abc import Hashable, Mapping

import pytest
from hypothesis import example, given, strategies as st

from redrive.amqp.errors import ReplyCode, SoftError
from redrive.amqp.values import DecimalValue, Float32, Int8, Int32, RawStr, Timestamp, UInt64
from redrive.broker.exchanges import KINDS, Binding, Exchange, _Node, _Topic, kind_is_known, route


def no_headers() -> Mapping[str, object]:
    raise AssertionError("nobody but a headers exchange may ask for the headers")


def is_queue(destination: Hashable) -> bool:
    return isinstance(destination, str)


def nobody(name: str) -> Exchange | None:
    return None


def an_exchange(kind: str, *bindings: tuple[Hashable, str], **arguments: object) -> Exchange:
    exchange = Exchange(
        f"x-{kind}",
        kind,
        durable=True,
        auto_delete=False,
        internal=False,
        arguments={name.replace("_", "-"): value for name, value in arguments.items()},
    )
    for destination, key in bindings:
        assert exchange.bind(destination, key, {})
    return exchange


def matched(exchange: Exchange, key: str) -> list[Hashable]:
    return list(exchange.match(key, no_headers))


def reached(exchange: Exchange, *keys: str, named: Mapping[str, Exchange] | None = None) -> list[Hashable]:
    return route(exchange, keys, no_headers, (named or {}).get, is_queue)


def matches_headers(arguments: Mapping[str, object], headers: Mapping[str, object]) -> bool:
    exchange = an_exchange("headers")
    exchange.bind("q", "", arguments)
    return list(exchange.match("whatever", lambda: headers)) == ["q"]


def test_there_are_four_kinds_and_others_are_refused() -> None:
    assert KINDS == ("direct", "fanout", "topic", "headers")
    assert kind_is_known("topic")
    assert not kind_is_known("x-delayed-message")
    with pytest.raises(SoftError, match="unknown exchange type 'x-random'") as refused:
        an_exchange("x-random")
    assert refused.value.code is ReplyCode.PRECONDITION_FAILED


def test_an_exchange_keeps_what_it_was_declared_with() -> None:
    exchange = Exchange("x", "direct", durable=True, auto_delete=True, internal=True, arguments={"a": 1})

    assert (exchange.name, exchange.kind, exchange.arguments) == ("x", "direct", {"a": 1})
    assert exchange.durable
    assert exchange.auto_delete
    assert exchange.internal


def test_an_exchange_without_bindings_is_unused_and_still_true() -> None:
    exchange = an_exchange("direct")

    assert exchange.is_unused
    assert len(exchange) == 0
    assert exchange


# Bindings


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_binding_is_made_once_and_taken_away_once(kind: str) -> None:
    exchange = an_exchange(kind)

    assert exchange.bind("q", "k", {"a": 1, "b": 2})
    assert not exchange.bind("q", "k", {"b": 2, "a": 1})
    assert len(exchange) == 1
    assert not exchange.unbind("q", "k", {})
    assert not exchange.unbind("q", "other", {"a": 1, "b": 2})
    assert not exchange.unbind("other", "k", {"a": 1, "b": 2})
    assert exchange.unbind("q", "k", {"b": 2, "a": 1})
    assert not exchange.unbind("q", "k", {"a": 1, "b": 2})
    assert exchange.is_unused
    assert not exchange.match("k", lambda: {"a": 1, "b": 2})


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic"])
def test_a_destination_bound_twice_with_other_arguments_stays_until_both_are_gone(kind: str) -> None:
    exchange = an_exchange(kind, ("q", "k"))
    assert exchange.bind("q", "k", {"a": 1})
    assert exchange.bind("q", "k", {"a": Int32(1)})  # another width is another binding, as in RabbitMQ

    assert matched(exchange, "k") == ["q"]
    exchange.unbind("q", "k", {})
    exchange.unbind("q", "k", {"a": 1})
    assert matched(exchange, "k") == ["q"]
    exchange.unbind("q", "k", {"a": Int32(1)})
    assert matched(exchange, "k") == []


def test_a_binding_whose_argument_is_not_equal_to_itself_can_still_be_taken_away() -> None:
    exchange = an_exchange("headers")
    exchange.bind("q", "", {"a": float("nan")})

    assert exchange.unbind("q", "", {"a": float("nan")})


def test_bindings_are_listed_in_the_order_they_were_made() -> None:
    exchange = an_exchange("topic", ("b", "z"), ("a", "y"), ("b", "x"))
    exchange.unbind("a", "y", {})
    exchange.bind("a", "y", {"n": 1})

    assert exchange.bindings() == [Binding("b", "z", {}), Binding("b", "x", {}), Binding("a", "y", {"n": 1})]


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_destination_takes_all_its_bindings_along(kind: str) -> None:
    exchange = an_exchange(kind, ("q", "a"), ("other", "a"), ("q", "b.#"))
    exchange.bind("q", "a", {"n": 1})

    assert exchange.forget("q") == 3
    assert exchange.forget("q") == 0
    assert exchange.bindings() == [Binding("other", "a", {})]
    assert list(exchange.match("a", dict)) == ["other"]


def test_destinations_are_told_apart_by_identity_where_they_define_no_equality() -> None:
    one, two = object(), object()
    exchange = an_exchange("direct", (one, "k"), (two, "k"))

    assert matched(exchange, "k") == [one, two]


# Direct and fanout


def test_a_direct_exchange_matches_the_whole_key_and_nothing_else() -> None:
    exchange = an_exchange("direct", ("q1", "a"), ("q2", "a"), ("q3", "a.b"), ("q4", "#"), ("q5", ""))

    assert matched(exchange, "a") == ["q1", "q2"]
    assert matched(exchange, "a.b") == ["q3"]
    assert matched(exchange, "") == ["q5"]
    assert matched(exchange, "b") == []


def test_a_fanout_exchange_gives_everything_to_everybody() -> None:
    exchange = an_exchange("fanout", ("q1", "a"), ("q2", "b"), ("q1", "c"))

    assert matched(exchange, "whatever") == ["q1", "q2"]


# Topic


@pytest.mark.parametrize(
    ("pattern", "keys", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.", ".b", ""]),
        ("*", ["a", "*", "#"], ["", "a.b", "."]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("*.*", ["a.b", "."], ["a", "a.b.c", ""]),
        ("#", ["", "a", "a.b.c", "."], []),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b", "b.a"]),
        ("#.a", ["a", "b.a", "b.c.a", ".a", "a.a"], ["", "a.b"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.c"]),
        ("#.#", ["", "a", "a.b"], []),
        ("#.*", ["a", "a.b"], [""]),
        ("*.#", ["a", "a.b"], [""]),
        ("#.*.#.x", ["a.x", "a.b.c.x", "x.x"], ["x", "x.a", ""]),
        ("", [""], ["a", "."]),
        ("a*", ["a*"], ["ab", "a"]),
        ("ключ.*", ["ключ.слово"], ["ключ"]),
    ],
)
def test_a_pattern_matches_these_keys_and_not_those(pattern: str, keys: list[str], others: list[str]) -> None:
    exchange = an_exchange("topic", ("q", pattern))

    assert [key for key in keys if not matched(exchange, key)] == []
    assert [key for key in others if matched(exchange, key)] == []


def naive(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return naive(pattern[1:], key) or (bool(key) and naive(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and naive(pattern[1:], key[1:])


def words(text: str) -> list[str]:
    return text.split(".") if text else []


PATTERNS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), max_size=6).map(".".join)


@given(
    patterns=st.lists(PATTERNS, max_size=12),
    gone=st.sets(st.integers(0, 11)),
    keys=st.lists(KEYS, max_size=6),
)
@example(patterns=["#.a.#", "a.#"], gone={0}, keys=["a", "a.a"])
def test_the_trie_agrees_with_a_matcher_that_tries_every_way(
    patterns: list[str], gone: set[int], keys: list[str]
) -> None:
    exchange = an_exchange("topic", *((number, pattern) for number, pattern in enumerate(patterns)))
    for number in gone & set(range(len(patterns))):
        assert exchange.unbind(number, patterns[number], {})
    left = [(number, pattern) for number, pattern in enumerate(patterns) if number not in gone]

    for key in keys:
        found = matched(exchange, key)
        assert len(found) == len(set(found))
        assert set(found) == {number for number, pattern in left if naive(words(pattern), words(key))}

    for number, pattern in left:
        assert exchange.unbind(number, pattern, {})
    assert root_of(exchange).children == {}


def root_of(exchange: Exchange) -> _Node:
    assert isinstance(exchange._index, _Topic)
    return exchange._index._root


class Lookups(dict[str, _Node]):
    """A node's children that count how often somebody looks for one."""

    count = 0

    def get(self, key: str, default: object = None) -> _Node | None:  # type: ignore[override]
        Lookups.count += 1
        return super().get(key)


def lookups(exchange: Exchange, key: str) -> int:
    nodes = [root_of(exchange)]
    for node in nodes:
        node.children = Lookups(node.children)
        nodes.extend(node.children.values())
    before = Lookups.count
    assert len(matched(exchange, key)) == 4
    return Lookups.count - before


def test_matching_a_topic_costs_the_same_with_ten_bindings_and_with_ten_thousand() -> None:
    def bound(count: int) -> Exchange:
        wanted = [("q1", "order.7.eu"), ("q2", "*.7.#"), ("q3", "#.eu"), ("q4", "order.#")]
        crowd = [("q", f"order.x{n}.eu") for n in range(count)]
        crowd += [("q", f"*.x{n}.#") for n in range(count)]
        crowd += [("q", f"#.x{n}") for n in range(count)]
        return an_exchange("topic", *wanted, *crowd)

    few, many = lookups(bound(3), "order.7.eu"), lookups(bound(3_333), "order.7.eu")

    assert few == many
    assert many < 60


def test_many_hashes_in_one_pattern_do_not_multiply_the_ways() -> None:
    exchange = an_exchange("topic", *((f"q{n}", ".".join(["#", "a"] * 12 + ["#", "b"])) for n in range(4)))

    # Every way to share 60 words out among 13 hashes would be more than 10¹² of them.
    assert lookups(exchange, ".".join(["a"] * 59 + ["b"])) < 60 * 30 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_bindings_made_and_taken_away_leave_nothing_behind(kind: str) -> None:
    exchange = an_exchange(kind)

    def churn(start: int) -> None:
        for n in range(start, start + 5_000):
            exchange.bind(f"q{n}", f"a.{n}.*.#", {"n": n})
            exchange.bind(f"q{n}", f"a.{n}", {})
        for n in range(start, start + 5_000):
            assert exchange.unbind(f"q{n}", f"a.{n}", {})
            assert exchange.forget(f"q{n}") == 1

    churn(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        churn(5_000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert grown < 1_500_000  # the tables that a dictionary keeps for next time, not 10,000 bindings
    assert exchange.is_unused
    assert not any(vars(exchange._index).values()) if kind != "topic" else not root_of(exchange).children
    assert exchange._numbers == {}


# Headers


@pytest.mark.parametrize(
    ("arguments", "headers", "is_matched"),
    [
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({"x-match": "all"}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any", "x-a": 1, "b": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-match": "any-with-x"}, False),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 1}, False),
        ({"x-match": "any", "a": None}, {"a": []}, True),
    ],
)
def test_a_headers_binding_matches_as_its_x_match_says(
    arguments: dict[str, object], headers: dict[str, object], *, is_matched: bool
) -> None:
    assert matches_headers(arguments, headers) is is_matched


@pytest.mark.parametrize(
    ("wanted", "value", "is_equal"),
    [
        (Int32(7), 7, True),
        (Int8(7), UInt64(7), True),
        (Timestamp(7), 7, True),
        ("1", 1, False),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        (True, False, False),
        (1, 1.0, False),
        (1.5, Float32(1.5), True),
        ("ab", b"ab", True),
        (RawStr(b"\xff"), b"\xff", True),
        ("ab", RawStr(b"\xff"), False),
        (1, None, False),
        ([1, "a"], [1, "a"], True),
        ([1], [Int32(1)], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        (DecimalValue(2, 314), DecimalValue(2, 314), True),
        (DecimalValue(2, 314), [2, 314], False),
    ],
)
def test_header_values_are_equal_where_rabbitmq_says_so(
    wanted: object, value: object, *, is_equal: bool
) -> None:
    assert matches_headers({"h": wanted}, {"h": value}) is is_equal


@pytest.mark.parametrize("how", ["some", "", 1, None, RawStr(b"\xff"), [], "ALL"])
def test_an_x_match_that_nobody_knows_is_refused_and_nothing_is_bound(how: object) -> None:
    exchange = an_exchange("headers")

    with pytest.raises(SoftError, match="Invalid x-match") as refused:
        exchange.bind("q", "", {"x-match": how})

    assert refused.value.code is ReplyCode.PRECONDITION_FAILED
    assert exchange.is_unused
    assert exchange._numbers == {}
    assert an_exchange("direct").bind("q", "", {"x-match": how})


def test_a_headers_exchange_names_a_destination_once_and_asks_for_the_headers_once() -> None:
    exchange = an_exchange("headers")
    asked: list[int] = []

    def headers() -> Mapping[str, object]:
        asked.append(1)
        return {"a": 1, "b": 2}

    assert not exchange.match("k", headers)
    assert asked == []
    exchange.bind("q", "", {"a": 1})
    exchange.bind("q", "", {"b": 2})
    exchange.bind("p", "", {"b": 2})

    assert route(exchange, ["k", "cc"], headers, nobody, is_queue) == ["q", "p"]
    assert asked == [1]


# Routes through several exchanges


def test_a_queue_that_several_keys_match_is_reached_once() -> None:
    exchange = an_exchange("direct", ("q2", "b"), ("q1", "a"), ("q1", "b"))

    assert reached(exchange, "a", "b", "a") == ["q1", "q2"]
    assert reached(exchange, "b", "nobody") == ["q2", "q1"]
    assert reached(exchange) == []
    assert reached(an_exchange("fanout", ("q", ""))) == ["q"]


def test_a_message_goes_on_through_exchanges_bound_to_exchanges_with_all_its_keys() -> None:
    third = an_exchange("direct", ("q3", "b"), ("q1", "b"))
    second = an_exchange("topic", (third, "#"), ("q2", "a"))
    first = an_exchange("direct", (second, "a"), ("q1", "a"))

    assert reached(first, "a") == ["q1", "q2"]
    assert reached(first, "a", "b") == ["q1", "q2", "q3"]


def test_circles_of_bindings_end() -> None:
    one, two = an_exchange("fanout", ("q1", "")), an_exchange("fanout", ("q2", ""))
    one.bind(two, "", {})
    two.bind(one, "", {})
    two.bind(two, "", {})

    assert reached(one, "k") == ["q1", "q2"]
    assert reached(two, "k") == ["q2", "q1"]


@given(edges=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))), start=st.integers(0, 7))
def test_any_graph_of_fanouts_reaches_exactly_the_queues_that_can_be_walked_to(
    edges: set[tuple[int, int]], start: int
) -> None:
    exchanges = [an_exchange("fanout", (f"q{n}", "")) for n in range(8)]
    for source, target in edges:
        exchanges[source].bind(exchanges[target], "", {})
    walked = {start}
    while more := {target for source, target in edges if source in walked} - walked:
        walked |= more

    found = reached(exchanges[start], "k")

    assert len(found) == len(set(found))
    assert set(found) == {f"q{n}" for n in walked}


def test_a_chain_of_a_thousand_exchanges_is_walked_to_its_end() -> None:
    chain = [an_exchange("fanout", ("q", ""))]
    for _ in range(2_000):
        chain.append(an_exchange("fanout", (chain[-1], "")))

    assert reached(chain[-1], "k") == ["q"]


# Alternate exchanges


def test_what_matches_nothing_goes_to_the_alternate_exchange() -> None:
    exchange = an_exchange("direct", ("q", "a"), alternate_exchange="spare")
    spare = an_exchange("fanout", ("rest", ""))

    assert reached(exchange, "b", named={"spare": spare}) == ["rest"]
    assert reached(exchange, "a", named={"spare": spare}) == ["q"]
    assert reached(exchange, "b", "a", named={"spare": spare}) == ["q"]


def test_an_alternate_exchange_that_is_missing_drops_the_message() -> None:
    assert reached(an_exchange("direct", alternate_exchange="gone"), "a") == []


def test_alternate_exchanges_form_chains_and_circles_of_them_end() -> None:
    one = an_exchange("direct", alternate_exchange="two")
    two = an_exchange("topic", alternate_exchange="three")
    three = an_exchange("direct", ("q", "a"), alternate_exchange="one")
    named = {"one": one, "two": two, "three": three}

    assert reached(one, "a", named=named) == ["q"]
    assert reached(one, "b", named=named) == []
    own = an_exchange("direct", alternate_exchange="own")
    assert reached(own, "b", named={"own": own}) == []


def test_an_exchange_in_between_that_matches_nothing_uses_its_own_alternate_only() -> None:
    deaf = an_exchange("direct", alternate_exchange="spare")
    first = an_exchange("fanout", (deaf, ""), ("q", ""), alternate_exchange="unused")
    named = {"spare": an_exchange("fanout", ("rest", "")), "unused": an_exchange("fanout", ("wrong", ""))}

    # The first one matched something, though what it matched led nowhere by itself.
    assert reached(first, "k", named=named) == ["q", "rest"]
    first.forget("q")
    deaf.arguments = {}
    assert reached(first, "k", named=named) == []


def test_a_policy_can_give_the_alternate_exchange_but_the_argument_wins() -> None:
    named = {"a": an_exchange("fanout", ("qa", "")), "p": an_exchange("fanout", ("qp", ""))}
    by_policy = an_exchange("direct")
    by_policy.alternate = "p"
    by_both = an_exchange("direct", alternate_exchange="a")
    by_both.alternate = "p"
    by_nonsense = an_exchange("direct", alternate_exchange=7)

    assert reached(by_policy, "k", named=named) == ["qp"]
    assert reached(by_both, "k", named=named) == ["qa"]
    assert reached(by_nonsense, "k", named=named) == []
