"""Edits change what they say and nothing else, repeat, and refuse in one line what they cannot do."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.errors import FormatError, RedriveError, SettingsError
from redrive.letters import DeadLetter, Headers, LetterState, Message, Note, RedriveAttempt, TypedValue
from redrive.replay import edit as edits
from redrive.replay.difference import changes, diff
from redrive.replay.edit import (
    Edit,
    Expression,
    HeaderEdit,
    JsonPatch,
    MergePatch,
    NewBody,
    Several,
    apply,
    edited_copy,
    header_edit,
    prepare,
)
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock, a_letter, a_message

NOW = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)


def is_one_line(error: RedriveError) -> None:
    assert str(error)
    assert "\n" not in str(error)


def patch(*operations: object) -> JsonPatch:
    return JsonPatch(json.dumps(operations))


def body_after(edit: Edit, body: bytes) -> bytes | None:
    return apply(edit, a_message(body)).body


# --- JSON Patch ------------------------------------------------------------------------------------------


def test_a_json_patch_changes_what_it_names() -> None:
    edit = patch(
        {"op": "test", "path": "/order", "value": 1},
        {"op": "replace", "path": "/total", "value": 20},
        {"op": "remove", "path": "/note"},
        {"op": "add", "path": "/items/-", "value": "c"},
        {"op": "move", "from": "/old", "path": "/new"},
        {"op": "copy", "from": "/items/0", "path": "/first"},
    )
    before = b'{"order": 1, "total": 19.90, "note": "x", "items": ["a", "b"], "old": true}'
    after = body_after(edit, before)
    assert after == b'{"order":1,"total":20,"items":["a","b","c"],"new":true,"first":"a"}'


def test_numbers_that_no_edit_touches_keep_their_digits() -> None:
    before = b'{"a": 1.10, "b": 123456789012345678901234567890, "c": 0.1234567890123456789012345, "d": 1}'
    after = body_after(patch({"op": "replace", "path": "/d", "value": 2.50}), before)
    assert after is not None
    assert after.startswith(
        b'{"a":1.10,"b":123456789012345678901234567890,"c":0.1234567890123456789012345,"d":2.5'
    )


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        ({"op": "test", "path": "/order", "value": 2}, "operation 1: the test of '/order' failed"),
        (
            {"op": "remove", "path": "/nothing"},
            "operation 1 (remove '/nothing') cannot be applied to the body",
        ),
        ({"op": "add", "path": "/order/deep", "value": 1}, "cannot be applied to the body"),
        ({"op": "replace", "path": "/items/7", "value": 1}, "cannot be applied to the body"),
    ],
)
def test_a_patch_that_does_not_fit_says_which_operation(operation: object, told: str) -> None:
    with pytest.raises(FormatError) as error:
        body_after(patch(operation), b'{"order": 1, "items": []}')
    assert told in str(error.value)


def test_true_is_not_one_for_a_test() -> None:
    with pytest.raises(FormatError):
        body_after(patch({"op": "test", "path": "/a", "value": 1}), b'{"a": true}')


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{}", "1", "[1]", '[{"op": "explode", "path": "/a"}]', '[{"op": "add", "path": "/a"}]',
        '[{"op": "add", "value": 1}]', '[{"path": "/a"}]', '[{"op": "remove", "path": "a"}]',
        '[{"op": "append", "path": "/a", "value": "x"}]', '[{"op": "move", "path": "/a"}]', "[" * 100_000,
        json.dumps([{"op": "remove", "path": "/a"}] * 1001), '[{"op": "remove", "op": "remove", "path": "/a"}]',
    ],
)  # fmt: skip
def test_what_is_no_json_patch_is_refused_before_any_letter_is_touched(text: str) -> None:
    with pytest.raises(SettingsError) as error:
        prepare(JsonPatch(text))
    assert "\n" not in str(error.value)


def test_a_patch_cannot_double_a_body_without_end() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{number:x}"} for number in range(100)]
    with pytest.raises(FormatError, match="bytes"):
        body_after(patch(*doubling), b'{"a": {"text": "' + b"x" * 10_000 + b'"}}')


def test_applying_a_patch_does_not_change_the_patch() -> None:
    change = prepare(
        patch({"op": "add", "path": "/a", "value": {}}, {"op": "add", "path": "/a/b", "value": 1})
    )
    first, second = change(a_message(b"{}")), change(a_message(b"{}"))
    assert first.body == second.body == b'{"a":{"b":1}}'


# --- merge patch: the examples of RFC 7386, appendix A ---------------------------------------------------


@pytest.mark.parametrize(
    ("before", "merge", "after"),
    [
        ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
        ('{"a":"b"}', '{"a":null}', "{}"),
        ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
        ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
        ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
        ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
        ('["a","b"]', '["c","d"]', '["c","d"]'),
        ('{"a":"b"}', '["c"]', '["c"]'),
        ('{"a":"foo"}', "null", "null"),
        ('{"a":"foo"}', '"bar"', '"bar"'),
        ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
        ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
        ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
    ],
)
def test_a_merge_patch_does_as_the_rfc_says(before: str, merge: str, after: str) -> None:
    assert body_after(MergePatch(merge), before.encode()) == after.encode()


# --- whole bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.shop+json; charset=utf-8", None])
def test_a_new_body_is_json_where_the_old_one_says_so(kind: str | None) -> None:
    message = Message(body=b'{"order": 1}', content_type=kind)
    assert apply(NewBody(b'{"order": 2}'), message).body == b'{"order": 2}'
    with pytest.raises(FormatError, match="the new body is not JSON"):
        apply(NewBody(b"{order: 2}"), message)


def test_a_body_that_is_not_json_can_be_replaced_by_anything() -> None:
    assert apply(NewBody(b"\xff\x00"), Message(body=b"plain", content_type="text/plain")).body == b"\xff\x00"
    assert apply(NewBody(None), Message(body=b"plain")).body is None
    assert apply(NewBody(b"\x1f\x8b"), a_message(b"{", content_encoding="gzip")).body == b"\x1f\x8b"


@pytest.mark.parametrize(
    "edit", [patch({"op": "remove", "path": "/a"}), MergePatch("{}"), Expression("body.a = 1")]
)
@pytest.mark.parametrize(
    "body", [b"{order: 1}", b"\xff", b"", None, b'{"a": 1, "a": 2}', b"[" * 100_000 + b"]" * 100_000]
)
def test_a_body_that_is_not_json_can_only_be_replaced_as_a_whole(edit: Edit, body: bytes | None) -> None:
    with pytest.raises(FormatError, match="replaced as a whole"):
        apply(edit, a_message(body))


def test_a_compressed_body_can_only_be_replaced_as_a_whole() -> None:
    with pytest.raises(FormatError, match="encoded"):
        apply(MergePatch('{"a": 1}'), a_message(b"{}", content_encoding="gzip"))


def test_an_expression_can_set_a_body_that_it_cannot_read() -> None:
    assert apply(Expression('body = {"order": 1}'), a_message(b"{order")).body == b'{"order":1}'


@pytest.mark.parametrize("edit", [MergePatch('{"a": 1.0}'), Expression("body.a = body.a * 1"), patch()])
def test_an_edit_that_changes_nothing_keeps_every_byte(edit: Edit) -> None:
    message = a_message(b'{ "a" : 1 ,\n "b": 1.10}')
    assert apply(edit, message) == message


# --- headers ---------------------------------------------------------------------------------------------

TYPED = Headers(
    [
        ("small", TypedValue("int16", 5)), ("half", TypedValue("float32", 0.5)), ("raw", b"north"), ("odd", b"\xff"),
        ("double", 0.5), ("money", Decimal("1.10")), ("twice", 1), ("twice", 2), ("when", NOW),
        ("id", UUID(int=7)), ("table", Headers({"count": TypedValue("int64", 1), "key": b"k"})),
    ]
)  # fmt: skip


def test_headers_are_set_in_place_and_removed_and_the_rest_stays() -> None:
    edit = header_edit(["x-tenant=south", "x-new=3", 'x-text="3"', "x-flag=true"], ["x-hops"])
    after = apply(edit, a_message()).headers
    assert after == Headers([("x-tenant", "south"), ("x-new", 3), ("x-text", "3"), ("x-flag", True)])


def test_a_header_keeps_its_wire_type_where_the_new_value_fits() -> None:
    edit = header_edit(
        [
            "small=7",
            "half=2",
            "raw=south",
            "double=3",
            "money=2.20",
            "twice=9",
            'table={"count": 2, "key": "l"}',
        ]
    )
    after = apply(edit, a_message(headers=TYPED)).headers
    assert after == Headers(
        [
            ("small", TypedValue("int16", 7)), ("half", TypedValue("float32", 2.0)), ("raw", b"south"),
            ("odd", b"\xff"), ("double", 3.0), ("money", Decimal("2.20")), ("twice", 9), ("when", NOW),
            ("id", UUID(int=7)),
            ("table", Headers({"count": TypedValue("int64", 2), "key": b"l"})),
        ]
    )  # fmt: skip


def test_a_header_that_is_too_small_for_its_value_says_so() -> None:
    with pytest.raises(FormatError, match="header 'small' is an int16 and cannot hold 40000"):
        apply(header_edit(["small=40000"]), a_message(headers=TYPED))


@pytest.mark.parametrize("wrong", ["x", "=1", "x=10.0.0.1", "x={", "x=", "x=-", "x=[1"])
def test_a_header_assignment_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError):
        header_edit([wrong])


def test_a_header_is_not_changed_twice_in_one_edit() -> None:
    with pytest.raises(SettingsError, match="twice"):
        header_edit(["x=1"], ["x"])


def test_an_expression_leaves_headers_alone_that_it_does_not_name() -> None:
    message = a_message(headers=TYPED)
    after = apply(
        Expression('headers.small = headers.small + 1; headers["copy"] = headers.odd'), message
    ).headers
    assert after[1:-1] == TYPED[1:]
    assert (after[0], after[-1]) == (("small", TypedValue("int16", 6)), ("copy", b"\xff"))


def test_an_expression_reaches_into_tables_and_deletes() -> None:
    edit = Expression('headers.table.count = headers["table"]["count"] + 1; del headers["twice"], headers.id')
    after = apply(edit, a_message(headers=TYPED)).headers
    assert after.get("table") == Headers({"count": TypedValue("int64", 2), "key": b"k"})
    assert after.names() == TYPED.names() - {"twice", "id"}


def test_a_value_that_json_has_no_word_for_does_not_get_into_a_body() -> None:
    with pytest.raises(FormatError, match="JSON cannot represent"):
        apply(Expression("body.when = headers.when"), a_message(headers=TYPED))


# --- several, and kept -----------------------------------------------------------------------------------


def test_several_edits_are_applied_in_order_and_can_be_kept() -> None:
    edit = Several(
        (MergePatch('{"total": 5}'), Expression("body.total = body.total * 2"), header_edit(["a=1"]))
    )
    message = apply(edits.read(edits.write(edit)), a_message(b"{}"))
    assert (message.body, message.headers.get("a")) == (b'{"total":10}', 1)


def test_every_kind_of_edit_can_be_kept() -> None:
    for edit in (
        patch(),
        MergePatch("{}"),
        HeaderEdit(),
        NewBody(b"\xff\x00"),
        NewBody(None),
        Expression("body = 1"),
    ):
        assert edits.read(edits.write(edit)) == edit


@pytest.mark.parametrize(
    "text", ["", "{}", '{"type": "expression", "text": "import os"}', "[" * 10_000, '{"type":"x"}']
)
def test_what_was_kept_is_checked_when_it_is_read(text: str) -> None:
    with pytest.raises(SettingsError):
        edits.read(text)


# --- the copy --------------------------------------------------------------------------------------------


def a_worn_letter() -> DeadLetter:
    attempt = RedriveAttempt(
        number=1, started_at=NOW, ended_at=NOW, worker="w", strategy=None, result="failed", fence=1
    )
    return msgspec.structs.replace(
        a_letter("orders/7", priority=3, tags=("vip",)),
        state=LetterState.FAILED, dlq_retry_count=5, fence=5, attempts=(attempt,), notes=(Note(NOW, "ann", "hm"),),
    )  # fmt: skip


def test_a_copy_has_an_id_of_its_own_and_names_the_letter_it_comes_from() -> None:
    letter = a_worn_letter()
    message = apply(MergePatch('{"order": 2}'), letter.message)
    copy = edited_copy(letter, message, by="ann", at=NOW)
    assert copy.id != letter.id
    assert copy.derived_from == letter.id
    assert copy.message.body == b'{"order":2}'
    assert copy.size == len(b'{"order":2}')
    assert (copy.state, copy.fence, copy.dlq_retry_count, copy.attempts) == (LetterState.PENDING, 0, 0, ())
    assert (copy.priority, copy.tags, copy.origin, copy.failure) == (
        3,
        ("vip",),
        letter.origin,
        letter.failure,
    )
    assert copy.correlation_id == letter.correlation_id
    assert copy.next_retry_at == NOW
    assert copy.notes == (Note(NOW, "ann", f"edited copy of {letter.id}"),)
    assert letter == a_worn_letter()


async def test_repeating_an_edit_adds_nothing() -> None:
    store, letter = MemoryStore(ManualClock()), a_worn_letter()
    edit = Expression("body.order = body.order + 1")
    first = edited_copy(letter, apply(edit, letter.message), by="ann", at=NOW)
    later = edited_copy(letter, apply(edit, letter.message), by="bob", at=NOW + timedelta(days=1))
    other = edited_copy(letter, apply(header_edit(["x=1"]), letter.message), by="ann", at=NOW)
    assert await store.add([letter, first]) == [True, True]
    assert await store.add([later, other]) == [False, True]
    [kept] = await store.load([letter.id])
    assert kept.message == letter.message


def test_headers_of_another_type_make_another_copy() -> None:
    letter = a_worn_letter()
    messages = [
        msgspec.structs.replace(letter.message, headers=Headers({"n": n})) for n in (1, True, 1.0, "1")
    ]
    assert len({edited_copy(letter, message, by="a", at=NOW).id for message in messages}) == 4


def test_an_edit_without_effect_makes_no_copy() -> None:
    letter = a_letter()
    with pytest.raises(FormatError, match="changes nothing"):
        edited_copy(letter, apply(MergePatch("{}"), letter.message), by="ann", at=NOW)


# --- differences -----------------------------------------------------------------------------------------


def test_a_difference_reads_like_a_diff() -> None:
    old = a_message(b'{"order": 1, "lines": [1, 2, 3], "total": 19.90}')
    new = apply(Several((Expression("body.total = body.total * 100"), header_edit(["x-hops=3"]))), old)
    assert diff(old, new) == (
        "--- before\n+++ after\n"
        " content type: application/json\n"
        ' header x-tenant: "north"\n'
        "-header x-hops: 2\n+header x-hops: 3\n"
        " \n {\n"
        '   "order": 1,\n'
        "     2,\n     3\n   ],\n"
        '-  "total": 19.90\n+  "total": 1990.00\n }\n'
    )


def test_a_difference_as_data_names_each_place_with_both_sides() -> None:
    old = a_message(b'{"a": 1, "b/c": [1, 2], "gone": null}')
    new = apply(
        Several(
            (Expression('body.a = 2; body["b/c"] = [1]; del body.gone'), header_edit(["n=1"], ["x-hops"]))
        ),
        old,
    )
    assert msgspec.json.decode(msgspec.json.encode(changes(old, new))) == [
        {"where": "header", "path": "x-hops", "before": 2},
        {"where": "header", "path": "n", "after": 1},
        {"where": "body", "path": "/a", "before": 1, "after": 2},
        {"where": "body", "path": "/b~1c/1", "before": 2},
        {"where": "body", "path": "/gone", "before": None},
    ]


def test_a_difference_of_bytes_is_shown_as_hexadecimal() -> None:
    old, new = Message(body=b"\xff\x00"), Message(body=b"\xff\x01")
    assert "-ff 00\n+ff 01\n" in diff(old, new)
    assert changes(old, new)[0].after == {"bytes": "ff01"}


def test_a_difference_shows_nothing_that_a_terminal_would_act_upon() -> None:
    text = diff(Message(body=b"a"), Message(body=b"\x1b[2Jb", headers=Headers({"\x1b": "\x07"})))
    assert text.replace("\n", "").isprintable()


def test_equal_messages_have_no_difference() -> None:
    assert diff(a_message(), a_message()) == ""
    assert changes(a_message(), a_message()) == []


def test_the_same_meaning_in_other_bytes_is_told() -> None:
    old, new = a_message(b'{"a":1}'), a_message(b'{ "a": 1 }')
    assert "but the bytes differ" in diff(old, new)
    assert [each.where for each in changes(old, new)] == ["body"]


def test_a_difference_of_very_many_lines_takes_no_time() -> None:
    old = Message(body=b"\n".join(b"%d" % n for n in range(50_000)))
    new = Message(body=b"\n".join(b"%d" % (n * 7) for n in range(50_000)))
    text = diff(old, new)
    assert text.count("\n-") == text.count("\n+") - 1 == 49_999 - 0


# --- anything --------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
operations = st.lists(
    st.dictionaries(st.sampled_from(["op", "path", "from", "value", "x"]),
                    st.sampled_from(["add", "remove", "copy", "move", "test", "replace", "", "/", "/a", "/a/0",
                    "/-", "/~2"]) | values),
    max_size=5,
)  # fmt: skip


@given(operations | values, values)
def test_no_patch_breaks_with_another_error(given_patch: object, body: object) -> None:
    message = a_message(json.dumps(body).encode())
    for edit in (JsonPatch(json.dumps(given_patch)), MergePatch(json.dumps(given_patch))):
        try:
            after = apply(edit, message)
        except RedriveError as error:
            is_one_line(error)
        else:
            diff(message, after)
            msgspec.json.encode(changes(message, after))


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")), st.binary())
def test_no_text_and_no_body_breaks_with_another_error(text: str, body: bytes) -> None:
    for edit in (
        JsonPatch(text),
        MergePatch(text),
        HeaderEdit((("x", text),)),
        NewBody(body),
        Expression(text),
    ):
        try:
            after = apply(edit, a_message(body))
        except RedriveError as error:
            is_one_line(error)
        else:
            diff(a_message(body), after)
            msgspec.json.encode(changes(a_message(body), after))
