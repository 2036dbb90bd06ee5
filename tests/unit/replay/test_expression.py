"""The language of expressions: what it can say, what it cannot, and that nothing said in it does harm."""

import ast
import time
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from redrive.errors import FormatError, RedriveError, SettingsError
from redrive.replay.edit import Expression, apply, prepare
from redrive.replay.expression import LONGEST, parse
from redrive.testing import a_message

BODY = b'{"total": 19.99, "count": 7, "name": " Ann ", "items": [1, 2, 3], "customer": {"id": "c-1"}, "ok": true}'


def is_one_line(error: RedriveError) -> None:
    assert str(error)
    assert "\n" not in str(error)


def after(text: str, body: bytes = BODY) -> bytes:
    data = apply(Expression(text), a_message(body)).body
    assert data is not None
    return data


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("body.total * 100", "1999.00"),  # and not 1998.9999999999998
        ("body.count + 1", "8"), ("body.count / 2", "3.5"), ("6 / 2", "3"), ("body.count // 2", "3"),
        ("body.count % 2", "1"), ("-body.count", "-7"), ("0.1 + 0.2", "0.3"), ("1e3 + 1", "1001.0"),
        ("1 / 3", "0." + "3" * 34), ("round(body.total, 1)", "20.0"), ("round(2.5)", "2"), ("round(7)", "7"),
        ("int('42')", "42"), ("int(body.total)", "19"), ("float('1.5')", "1.5"), ("float(3)", "3.0"),
        ("str(body.count) + 'x'", '"7x"'), ("str(true)", '"true"'), ("str(1.10)", '"1.1"'),
        ("len(body.items)", "3"), ("len(body.name)", "5"), ("len(body)", "6"),
        ("lower(body.name)", '" ann "'), ("upper(strip(body.name))", '"ANN"'),
        ("replace(body.name, 'n', 'nn')", '" Annnn "'), ("body.items[0]", "1"), ("body.items[-1]", "3"),
        ("body.items[1:]", "[2,3]"), ("body.name[1:3]", '"An"'), ("body.items + [4]", "[1,2,3,4]"),
        ("body['customer']['id']", '"c-1"'), ("{'a': [null, true]}", '{"a":[null,true]}'),
        ("body.count > 5 and body.ok", "true"), ("not body.ok or false", "false"), ("1 < body.count <= 7", "true"),
        ("'id' in body.customer", "true"), ("9 not in body.items", "true"), ("'nn' in body.name", "true"),
        ("'many' if body.count > 5 else 'few'", '"many"'), ("body.ok == 1", "false"), ("1 == 1.0", "true"),
        ("json('{\"a\": 1.50}')", '{"a":1.50}'), ("get(body, 'nothing', 5)", "5"), ("get(body, 'count')", "7"),
        ("headers['x-hops'] + 1", "3"), ("body.customer", '{"id":"c-1"}'), ("None", "null"), ("True", "true"),
    ],
)  # fmt: skip
def test_an_expression_computes(value: str, told: str) -> None:
    assert after(f"body = {value}") == told.encode()


def test_statements_follow_each_other() -> None:
    text = 'body.total = body.total * 100; body.count += 1\ndel body.name, body.items[0]; body.customer["vip"] = true'
    assert (
        after(text)
        == b'{"total":1999.00,"count":8,"items":[2,3],"customer":{"id":"c-1","vip":true},"ok":true}'
    )


def test_a_body_that_is_json_within_json_is_unwrapped() -> None:
    assert after("body = json(body)", b'"{\\"order\\": 1}"') == b'{"order":1}'


def test_two_places_never_share_a_value() -> None:
    assert after("body.a = body.b; body.a.x = 2", b'{"b": {"x": 1}}') == b'{"b":{"x":1},"a":{"x":2}}'
    assert after("body.a = body", b'{"b": 1}') == b'{"b":1,"a":{"b":1}}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("body.nothing", "body has no 'nothing'"), ("body.customer.name", "body.customer has no 'name'"),
        ("body.items[3]", "body.items has 3 items and no item 3"), ("body.count.x", "body.count is a number"),
        ("body.name * 2", "a text is not a number"), ("body.ok + 1", "true or false is not a number"),
        ("body.name + 1", "a text is not a number"), ("1 / 0", "division by zero"), ("1.5 / 0", "division by zero"),
        ("5 % 0", "division by zero"), ("1.5 // 1", "// takes integers"), ("int('x')", "not an integer"),
        ("int('1.5')", "not an integer"), ("body.name and true", "is not true or false"),
        ("body.name < 1", "a text"),
        ("len(1)", "has no length"), ("str([])", "cannot be converted to a string"), ("lower(1)", "is not a string"),
        ("json('{')", "not JSON"),
        ("replace('a', '', 'b')", "non-empty"), ("round(1.5, 99)", "0 to 34 places"), ("get(1, 'a')", "get takes"),
        ("{1: 2}", "the name of a member must be a string"), ("1 in 2", "cannot contain"),
        ("null.x", "null and has no 'x'"),
        ("body.items['a']", "a list and has no 'a'"), ("headers.nothing", "headers has no 'nothing'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_message_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(FormatError) as error:
        after(f"body.x = {text}")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["del body.nothing", "body.items[3] = 1", "del body.items[9]", "body.a.b = 1", "body.name[0] = 'x'"],
)
def test_a_place_that_is_not_there_is_told(text: str) -> None:
    with pytest.raises(FormatError):
        after(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"), ("   \n ", "empty"), ("body.total", "without an assignment"),
        ("body = ", "syntax error"),
        ("total = 1", "unknown name 'total'; use one of body, headers"), ("body = totl", "unknown name 'totl'"),
        ("bdy.total = 1", "unknown name 'bdy'; did you mean 'body'?"),
        ("body = __import__('os')", "unknown function"),
        ("import os", "import is not part"), ("body = open('f')", "unknown function"),
        ("body = eval('1')", "unknown function"),
        ("body = body.name.lower()", "methods are not supported; write lower(…)"), ("body = (lambda: 1)()", "lambda"),
        ("body = [x for x in body]", "a loop"), ("while true: body = 1", "a loop"),
        ("for x in body: body = 1", "a loop"),
        ("body = 2 ** 9", "** is not part"), ("body = f'{body}'", "an f-string"), ("body = 1 << 9", "LShift is not"),
        ("body = 1, 2", "a tuple"), ("body.a = body.b = 1", "assign one value"),
        ("body = headers = 1", "assign one value"),
        ("headers = {}", "one by one"), ("del body", "cannot be deleted"),
        ("body[1:2] = []", "a slice cannot be changed"),
        ("body = body.items[::2]", "with a step is not supported"), ("body = lower()", "lower takes 1 value"),
        ("body = lower(a=1)", "takes 1"),
        ("body = {**body}", "** is not part"), ("body = b'x'", "a literal"), ("body = ...", "a literal"),
        ("body = 1j", "a literal"), ("body = 1e999", "at most 34 digits"),
        ("body = " + "9" * 40, "at most 34 digits"),
        ("body.from = 1", 'write ["from"] instead of .from'), ("body.größe = 1", 'write ["größe"]'),
        ("body = 'a\x00'", "syntax error"), ("body = '\ud800'", "syntax error"),
        ("body = (x := 1)", ":= is not part"), ("body = lower(*body)", "* is not part"),
        ("body = " + "-" * 3000 + "1", ""),
        ("body = " + "(" * 300 + "1" + ")" * 300, "syntax error"), ("body = 1" + "+1" * 600, "split it"),
        ("body = " + "[" * 60 + "]" * 60, "deeper than 40"), ("x" * (LONGEST + 1), "the limit is 4096"),
        ("body = yield 1", "Yield"), ("body = await x", ""), ("@x\ndef f(): pass", "FunctionDef"),
        ("raise body", "Raise"),
        ("body: int = 1", "AnnAssign"), ("body = 'a' 'b' if 1", "syntax error"),
        ("lower = 1", "unknown name 'lower'"), ("true = 1", "only members"),
        ("body = lower", "unknown name 'lower'"), ("body().x = 1", "unknown function 'body'"),
        ("int('1').x = 1", "only members"),
    ],
)  # fmt: skip
def test_what_is_not_in_the_language_is_refused_before_any_letter_is_touched(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse(text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["__class__", "__dict__", "keys", "__globals__", "format", "pop"])
def test_a_dot_reaches_members_and_nothing_of_python(name: str) -> None:
    for whole in ("body", "body.name", "body.items", "body.total", "headers"):
        with pytest.raises(FormatError):
            after(f"body.x = {whole}.{name}")
    assert after(f"body = body.{name}", msgspec.json.encode({name: 1})) == b"1"


@pytest.mark.parametrize(
    "text",
    [
        "; ".join(["body.x = body"] * 60),
        "; ".join(["body.t = body.t + body.t"] * 30),
        "; ".join(["body.t = replace(body.t, 'a', body.t)"] * 20),
        "body.x = [" + ",".join(["body"] * 200) + "]",
        "; ".join(["body.l = body.l + body.l + body.l"] * 20),
        "; ".join(["body.n = body.n * body.n"] * 30),
        "body.n = int(body.huge)",
        "body.n = body.huge * body.huge",
        "body.n = str(body.huge) + str(body.huge); body.n = round(body.huge)",
        "body.t = upper(body.t); " + "; ".join(["body.t = body.t + upper(body.t)"] * 40),
    ],
)
def test_no_expression_takes_much_time_or_memory(text: str) -> None:
    body = b'{"t": "' + b"a" * 100_000 + b'", "n": 123456789, "l": [1, 2, 3], "huge": 1e999999999}'
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises(FormatError) as error:
            after(text, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)
    # Generous bounds: what is to be noticed is a thousand times as much.
    assert peak < 500_000_000
    assert time.monotonic() - began < 60


def test_an_expression_on_a_large_body_goes_through() -> None:
    body = b'{"t": "' + b"a" * 5_000_000 + b'", "n": 1}'
    assert after("body.n = 2", body) == body.replace(b", ", b",").replace(b": ", b":").replace(b"1}", b"2}")


def test_a_prepared_expression_serves_many_messages() -> None:
    change = prepare(Expression("body.n = body.n + 1"))
    assert [change(a_message(b'{"n":%d}' % n)).body for n in range(3)] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']


# --- anything --------------------------------------------------------------------------------------------

words = st.sampled_from(
    ["body", "headers", ".", "[", "]", "(", ")", "=", "==", "+", "-", "*", "/", "//", "%", "1", "0", "2.5", "'a'",
    "total",
     "items", "x", ";", "\n", "del ", " if ", " else ", " in ", " not ", " and ", ",", ":", "{", "}", "lower",
     "int", "round",
     "json", "get", "true", "null", "\\", '"', "#", "lambda ", "import ", "**", "@", "ß", "\ud800", "\x00", " "]
)  # fmt: skip
soup = st.lists(words, max_size=30).map("".join)


@settings(max_examples=500)
@given(st.text() | soup | soup.map(lambda text: f"body.x = {text}"))
def test_no_text_breaks_the_parser_with_another_error(text: str) -> None:
    try:
        after(text)
    except RedriveError as error:
        is_one_line(error)


numbers = st.sampled_from(["1", "0", "-3", "2.5", "1e30", "body.n", "body.f", "body.big", "body.huge"])
texts = st.sampled_from(["'a'", "body.t", "''", "str(body.n)"])
terms = st.recursive(
    numbers | texts | st.sampled_from(["body", "body.l", "headers", "true", "null", "[]", "{'a': 1}"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "==", "<", "in", "and"]), inner).map(
            lambda three: f"({three[0]} {three[1]} {three[2]})"
        ),
        st.tuples(st.sampled_from(["int", "float", "str", "len", "round", "lower", "json", "-"]), inner).map(
            lambda two: f"{two[0]}({two[1]})"
        ),
        st.tuples(inner, inner).map(lambda two: f"{two[0]}[{two[1]}]"),
        st.tuples(inner, inner, inner).map(lambda three: f"({three[0]} if {three[1]} else {three[2]})"),
        st.tuples(inner, inner, inner).map(lambda three: f"replace({', '.join(three)})"),
    ),
    max_leaves=12,
)


@settings(max_examples=500)
@given(terms)
def test_whatever_is_computed_is_json_or_a_clear_error(term: str) -> None:
    body = (
        b'{"n": 7, "f": 1.50, "t": "abc", "l": [1, [2]], "huge": 1e99999, '
        b'"big": 123456789012345678901234567890123456789012}'
    )
    ast.parse(term)  # so that most of what is tried gets as far as being computed
    try:
        data = after(f"body = {term}", body)
    except RedriveError as error:
        is_one_line(error)
    else:
        msgspec.json.decode(data, type=msgspec.Raw)
