"""The filter language: every way to say something, every way to say it wrong, and cursors."""

import contextlib
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.errors import QueryError, RedriveError
from redrive.letters import FailureKind, LetterHead, LetterState
from redrive.stores.query import (
    EVERYTHING,
    FIELDS,
    SORTABLE,
    Condition,
    FieldKind,
    Op,
    Position,
    Query,
    Sort,
    _mark,
    fold,
    parse_query,
    read_cursor,
    tally_field,
    write_cursor,
)
from redrive.stores.sqlite import SqliteStore
from redrive.testing import a_failure, a_letter, a_message

NOW = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def conditions(text: str) -> tuple[Condition, ...]:
    return parse_query(text, now=NOW).conditions


def one(text: str) -> Condition:
    (condition,) = conditions(text)
    return condition


def refusal(text: str) -> str:
    with pytest.raises(QueryError) as problem:
        parse_query(text, now=NOW)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def head(**fields: Any) -> LetterHead:
    return msgspec.structs.replace(a_letter(), **fields)


# --- what can be said ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   ", "\n\t "])
def test_nothing_said_means_everything(text: str) -> None:
    assert parse_query(text, now=NOW) == EVERYTHING
    assert EVERYTHING.matches(head())


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("error:TimeoutError", Condition("error", Op.IS, ("TimeoutError",))),
        ("ERROR:TimeoutError", Condition("error", Op.IS, ("TimeoutError",))),
        ("source:orders.*", Condition("source", Op.PREFIX, ("orders.",))),
        ("tag:vip*", Condition("tag", Op.PREFIX, ("vip",))),
        ("source:*", Condition("source", Op.PREFIX, ("",))),
        ("error:TimeoutError,OSError", Condition("error", Op.IS, ("TimeoutError", "OSError"))),
        ("-tag:vip", Condition("tag", Op.IS, ("vip",), negated=True)),
        ("-source:orders.*", Condition("source", Op.PREFIX, ("orders.",), negated=True)),
        ("-priority>5", Condition("priority", Op.MORE, (5,), negated=True)),
        ("priority:5", Condition("priority", Op.IS, (5,))),
        ("priority:-5", Condition("priority", Op.IS, (-5,))),
        ("priority:1,2,3", Condition("priority", Op.IS, (1, 2, 3))),
        ("priority<5", Condition("priority", Op.LESS, (5,))),
        ("priority<=5", Condition("priority", Op.AT_MOST, (5,))),
        ("priority>5", Condition("priority", Op.MORE, (5,))),
        ("priority>=5", Condition("priority", Op.AT_LEAST, (5,))),
        ("size>=1000", Condition("size", Op.AT_LEAST, (1000,))),
        ("state:pending", Condition("state", Op.IS, ("dlq_pending",))),
        ("state:dlq_pending", Condition("state", Op.IS, ("dlq_pending",))),
        ("state:manual,failed", Condition("state", Op.IS, ("dlq_manual", "dlq_failed"))),
        ("state:p*", Condition("state", Op.PREFIX, ("dlq_p",))),
        ("kind:timeout", Condition("kind", Op.IS, ("timeout",))),
        ("since:2h", Condition("created", Op.AT_LEAST, (NOW - 2 * HOUR,))),
        ("until:1h30m", Condition("created", Op.AT_MOST, (NOW - 1.5 * HOUR,))),
        ("until:2026-01-31", Condition("created", Op.LESS, (datetime(2026, 2, 1, tzinfo=UTC),))),
        (
            "until:2026-01-31T00:00:00Z",
            Condition("created", Op.AT_MOST, (datetime(2026, 1, 31, tzinfo=UTC),)),
        ),
        ("since:2026-01-31", Condition("created", Op.AT_LEAST, (datetime(2026, 1, 31, tzinfo=UTC),))),
        ("failed<=2026-01-31", Condition("failed", Op.LESS, (datetime(2026, 2, 1, tzinfo=UTC),))),
        ("failed>2026-01-31", Condition("failed", Op.AT_LEAST, (datetime(2026, 2, 1, tzinfo=UTC),))),
        ("failed<2026-01-31", Condition("failed", Op.LESS, (datetime(2026, 1, 31, tzinfo=UTC),))),
        ("since:2026-02-11", Condition("created", Op.AT_LEAST, (datetime(2026, 2, 11, tzinfo=UTC),))),
        ("failed>2026-02-11T10:00:00Z", Condition("failed", Op.MORE, (NOW - 2 * HOUR,))),
        ("failed>2026-02-11T12:00+02:00", Condition("failed", Op.MORE, (NOW - 2 * HOUR,))),
        ("due<=2026-02-11T10:00", Condition("due", Op.AT_MOST, (NOW - 2 * HOUR,))),
        ('error:"a b"', Condition("error", Op.IS, ("a b",))),
        ('error:"a,b",c', Condition("error", Op.IS, ("a,b", "c"))),
        (r'error:"say \"hi\""', Condition("error", Op.IS, ('say "hi"',))),
        (r'error:"back\\slash"', Condition("error", Op.IS, ("back\\slash",))),
        ("error:a:b<c", Condition("error", Op.IS, ("a:b<c",))),
        ("correlation:7f:a", Condition("correlation", Op.IS, ("7f:a",))),
        ("due<+2h", Condition("due", Op.LESS, (NOW + 2 * HOUR,))),
        ("source:a*,b*", Condition("source", Op.PREFIX, ("a", "b"))),
        ('source:"a*"', Condition("source", Op.IS, ("a*",))),
        ("first_failed<1d", Condition("first_failed", Op.LESS, (NOW - 24 * HOUR,))),
    ],
)
def test_a_word_with_a_field_is_a_condition(text: str, condition: Condition) -> None:
    assert one(text) == condition


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_can_be_asked_for(name: str) -> None:
    value = {FieldKind.NUMBER: ":5", FieldKind.TIME: ">2h", FieldKind.FLAG: ":yes"}.get(
        FIELDS[name].kind, ":x"
    )
    condition = one(name + {"state": ":manual", "kind": ":network"}.get(name, value))
    assert condition.field == name
    assert hasattr(head(), FIELDS[name].attribute)


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.kind is FieldKind.TIME])
@pytest.mark.parametrize("op", [op for op in Op if op not in {Op.IS, Op.PREFIX}])
def test_every_time_can_be_compared(name: str, op: Op) -> None:
    assert one(f"{name}{op}2h") == Condition(name, op, (NOW - 2 * HOUR,))


@pytest.mark.parametrize("state", LetterState)
def test_every_state_can_be_asked_for_in_two_spellings(state: LetterState) -> None:
    assert one(f"state:{state}") == one(f"state:{state.removeprefix('dlq_')}")


@pytest.mark.parametrize("kind", FailureKind)
def test_every_kind_can_be_asked_for(kind: FailureKind) -> None:
    assert one(f"kind:{kind}").values == (kind.value,)


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("declined", ("declined",)),
        ("Card DECLINED", ("card", "declined")),
        ('"card declined"', ("card declined",)),
        ('"state:pending"', ("state:pending",)),
        (r'"say \"hi\""', ('say "hi"',)),
        ("a-b", ("a-b",)),
        ('"-c" d', ("-c", "d")),
        ("über ÄRGER", ("über", "Ärger")),
        ("4711 http", ("4711", "http")),
        ('"two" three', ("two", "three")),
    ],
)
def test_words_without_a_field_are_searched_for(text: str, needles: tuple[str, ...]) -> None:
    assert parse_query(text, now=NOW).text == needles
    assert parse_query(text, now=NOW).conditions == ()


@pytest.mark.parametrize("field", SORTABLE)
def test_every_sortable_field_sorts_both_ways(field: str) -> None:
    assert parse_query(f"sort:{field}", now=NOW).sort == Sort(field, descending=False)
    assert parse_query(f"sort:-{field}", now=NOW).sort == Sort(field, descending=True)


def test_words_of_all_sorts_stand_together_in_any_order() -> None:
    text = 'state:pending source:orders.* error:TimeoutError,OSError -tag:vip priority>=5 since:2h "card declined"'
    query = parse_query(f"  {text}  sort:-priority x", now=NOW)
    assert [condition.field for condition in query.conditions] == [
        "state", "source", "error", "tag", "priority", "created",
    ]  # fmt: skip
    assert query.text == ("card declined", "x")
    assert query.sort == Sort("priority", descending=True)
    assert parse_query("sort:size sort:due", now=NOW).sort.field == "due"


# --- what it means ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("state:pending", {"state": LetterState.PENDING}, {"state": LetterState.MANUAL}),
        ("-state:pending", {"state": LetterState.MANUAL}, {"state": LetterState.PENDING}),
        ("state:manual,failed", {"state": LetterState.FAILED}, {"state": LetterState.PENDING}),
        ("source:orders.*", {"source": "orders.eu"}, {"source": "orders"}),
        ("source:ORDERS", {"source": "ORDERS"}, {"source": "orders"}),
        ("tag:vip", {"tags": ("new", "vip")}, {"tags": ("new",)}),
        ("tag:v*", {"tags": ("new", "vip")}, {"tags": ()}),
        ("-tag:vip", {"tags": ()}, {"tags": ("vip",)}),
        ("priority>=5", {"priority": 5}, {"priority": 4}),
        ("priority>5", {"priority": 6}, {"priority": 5}),
        ("priority<5", {"priority": 4}, {"priority": 5}),
        ("priority<=5", {"priority": 5}, {"priority": 6}),
        ("since:2h", {"created_at": NOW - 2 * HOUR}, {"created_at": NOW - 2.1 * HOUR}),
        ("until:2h", {"created_at": NOW - 2 * HOUR}, {"created_at": NOW - 1.9 * HOUR}),
        ("worker:w1", {"locked_by": "w1"}, {"locked_by": None}),
        ("-worker:w1", {"locked_by": None}, {"locked_by": "w1"}),
        ("worker:*", {"locked_by": "w1"}, {"locked_by": None}),
        ("message:m*", {"message_id": "m1"}, {"message_id": None}),
        ("DECLINED", {"error_text": "card declined"}, {"error_text": "card refused"}),
        ("trace-7", {"correlation_id": "TRACE-77"}, {"correlation_id": "trace-8"}),
        ('"card declined"', {"error_text": "Card Declined!"}, {"error_text": "declined card"}),
        ("priority>1 priority<5", {"priority": 3}, {"priority": 5}),
    ],
)
def test_a_query_matches_what_it_says(text: str, yes: dict[str, Any], no: dict[str, Any]) -> None:
    query = parse_query(text, now=NOW)
    assert query.matches(head(**yes))
    assert not query.matches(head(**no))


def test_a_star_at_the_end_of_each_of_several_values_matches_any_rest() -> None:
    query = parse_query("error:Time*,OS*", now=NOW)
    assert query.matches(head(error_type="TimeoutError"))
    assert query.matches(head(error_type="OSError"))
    assert not query.matches(head(error_type="ValueError"))


def test_a_star_in_quotes_is_a_plain_star() -> None:
    query = parse_query('error:"Time*",OSError', now=NOW)
    assert query.matches(head(error_type="Time*"))
    assert not query.matches(head(error_type="TimeoutError"))


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ('source:orders "OR"', ("or",)),
        ("declined or refused", ("declined", "or", "refused")),
        ("source:orders or refused", ("or", "refused")),
        ("(timeout)", ("(timeout)",)),
        ("ORA-00942", ("ora-00942",)),
    ],
)
def test_words_that_look_like_operators_can_be_searched_for(text: str, needles: tuple[str, ...]) -> None:
    assert parse_query(text, now=NOW).text == needles


def test_parse_uses_the_given_sort_only_if_the_text_has_none() -> None:
    oldest = Sort("created", descending=False)
    assert parse_query("state:manual", now=NOW, sort=oldest).sort is oldest
    assert parse_query("sort:-created", now=NOW, sort=oldest).sort == Sort()


def test_searching_folds_ascii_and_nothing_else() -> None:
    assert fold("ÄBC İx") == "Äbc İx"


# --- what cannot be said ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "sate:pending",
            "unknown field 'sate'; did you mean 'state'? (to search for a word with a colon, quote it)",
        ),
        ("zzzzz:1", "unknown field 'zzzzz' (to search for a word with a colon, quote it)"),
        ("sinse:2h", "did you mean 'since'?"),
        ("http://x", "unknown field 'http'"),
        ("state:pendin", "'state' cannot be 'pendin'; did you mean 'pending'?"),
        ("state:zzz", "use one of pending, processing"),
        ("kind:timeot", "'kind' cannot be 'timeot'; did you mean 'timeout'?"),
        ("state:pending,zzz", "'state' cannot be 'zzz'"),
        ("error:", "'error:' has no value"),
        ("error:,", "'error:' has no value"),
        ("priority>", "'priority>' has no value"),
        ("error<5", "'error' is text and cannot be compared with '<'; use 'error:'"),
        ("tag>=a", "'tag' is text and cannot be compared with '>='; use 'tag:'"),
        ("priority>1,2", "'priority>' takes one value, not 2"),
        ("priority:high", "'priority' must be an integer, not 'high'"),
        ("priority:1.5", "'priority' must be an integer, not '1.5'"),
        ("size:5k", "'size' must be an integer, not '5k'"),
        (f"size>{2**63}", "'size' must be an integer of at most 63 bits"),
        ("created>soon", "'created' must be a time such as 2026-02-11T12:00Z or 2h, not 'soon'"),
        ("created:2h", "a time cannot be compared with ':'; compare 'created' with >=, >, <= or <"),
        ("error:Time*,OSError", "mixes values with and without '*'; write two filters"),
        ("-word", "only fields can be negated, not words: '-word'; to search for it, quote all of it"),
        ("-sort:size", "write 'sort:FIELD', or 'sort:-FIELD' for the largest first"),
        ("since:99999d", "must be a time such as"),
        ("since>2h", "write 'since:2h', not 'since>2h'"),
        ("sort:prio", "cannot sort by 'prio'"),
        ("sort:eror", "cannot sort by 'eror'; use one of created, updated"),
        ("sort:-priorty", "cannot sort by 'priorty'; did you mean 'priority'?"),
        ("sort:", "cannot sort by ''; use one of"),
        ('"', "a quote that is not closed"),
        ('a "b', 'a quote that is not closed: "b'),
        ('error:"a', "a quote that is not closed"),
        ("until:9999-12-31", "'created' must be a date before 9999-12-31"),
        (
            "source:orders OR source:mail",
            "'OR' is not an operator: separate values by commas: source:orders,mail (to search for the word, quote it",
        ),
        (
            "source:orders or source:mail",
            "'or' is not an operator: separate values by commas: source:orders,mail",
        ),
        ("source:a,b || source:c", "separate values by commas: source:a,b,c"),
        ("source:orders OR error:OSError", "for different fields use two filters"),
        ("OR", "for different fields use two filters"),
        ("source:orders AND state:manual", "conditions side by side must all hold, so leave it out"),
        ("source:orders and state:manual", "conditions side by side must all hold, so leave it out"),
        ("NOT source:mail", "'NOT' is not an operator: write a '-' before the field: -source:mail"),
        ("(source:orders state:manual)", "'(source:orders': there are no parentheses"),
        ('""', "the search text is empty"),
        ('"  "', "the search text is empty"),
        ("x" * 4097, "the filter has 4097 characters; the limit is 4096"),
        ("a\x00b", "not valid Unicode"),
        ("a\ud800b", "not valid Unicode"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_one_line(text: str, says: str) -> None:
    assert says in refusal(text)


@pytest.mark.parametrize("text", ['priority:"1\n2"', '"a\nb', 'since:"a\nb"', 'kind:"a\nb"'])
def test_a_value_with_a_line_end_is_refused_in_one_line(text: str) -> None:
    refusal(text)


def test_sort_can_be_written_in_capitals_like_any_other_name() -> None:
    assert parse_query("SORT:priority", now=NOW).sort.field == "priority"


@pytest.mark.parametrize("text", ["-sort:priority", "sort>priority", "sort<=priority"])
def test_a_sort_with_a_minus_before_it_or_another_sign_is_not_read_as_something_else(text: str) -> None:
    try:
        found = parse_query(text, now=NOW).sort
    except QueryError:
        return
    assert found != parse_query("sort:priority", now=NOW).sort


_words = st.lists(
    st.sampled_from([*FIELDS, "since", "until", "sort", "-", ":", "<", "<=", ">", ">=", ",", '"', "\\", "*", " ",
                     "2h", "5", "2026-02-11", "9" * 30, "é", "\t", "1e5", "pending", "0001-01-01T00:00+14:00"])
    | st.text(max_size=4),
    max_size=12,
).map("".join)  # fmt: skip


@given(_words | st.text(st.characters(), max_size=60))
def test_any_text_is_a_query_or_refused(text: str) -> None:
    try:
        query = parse_query(text, now=NOW)
    except QueryError:
        return
    assert isinstance(query, Query)
    query.matches(head(locked_by="w", tags=("a",)))


@pytest.mark.parametrize("by", ["priority", "created", "size", "zzz", ""])
def test_counting_by_what_has_no_words_is_refused(by: str) -> None:
    with pytest.raises(QueryError, match=f"cannot count by '{by}'"):
        tally_field(by)


@pytest.mark.parametrize("by", [n for n, f in FIELDS.items() if f.kind in {FieldKind.TEXT, FieldKind.TAGS}])
def test_counting_by_words_is_fine(by: str) -> None:
    assert tally_field(by) is FIELDS[by]


# --- cursors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", SORTABLE)
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_cursor_leads_back_to_where_it_was_written(field: str, sign: str) -> None:
    query = parse_query(f"state:pending sort:{sign}{field}", now=NOW)
    last = head(created_at=NOW, updated_at=NOW + timedelta(microseconds=1), priority=-5)
    cursor = write_cursor(query, last)
    assert read_cursor(query, cursor) == Position(getattr(last, FIELDS[field].attribute), last.id)
    assert cursor.isascii()
    assert not set(cursor) & set("=+/ ")


def test_a_cursor_goes_on_with_a_filter_whose_times_have_moved() -> None:
    cursor = write_cursor(parse_query("since:2h", now=NOW), head())
    later = parse_query("since:2h", now=NOW + HOUR)
    assert read_cursor(later, cursor).id == head().id


@pytest.mark.parametrize(
    "other", ["", "state:manual", "-state:pending", "state:pending x", "state:pending sort:size", "state:p*"]
)
def test_a_cursor_of_another_filter_is_refused(other: str) -> None:
    cursor = write_cursor(parse_query("state:pending", now=NOW), head())
    with pytest.raises(QueryError, match="belongs to another filter; start again from the first page"):
        read_cursor(parse_query(other, now=NOW), cursor)


def test_a_cursor_cut_off_or_changed_anywhere_is_refused_or_leads_elsewhere() -> None:
    cursor = write_cursor(EVERYTHING, head())
    for place in range(len(cursor)):
        for wrong in (
            cursor[:place],
            cursor[:place] + "!" + cursor[place:],
            cursor[:place] + "A" + cursor[place + 1 :],
        ):
            with contextlib.suppress(QueryError):
                assert isinstance(read_cursor(EVERYTHING, wrong), Position)


@given(
    st.text(st.characters(), max_size=80)
    | st.binary(max_size=60).map(lambda raw: urlsafe_b64encode(raw).decode())
)
def test_a_cursor_of_garbage_is_refused(cursor: str) -> None:
    with pytest.raises(QueryError, match="start again from the first page"):
        read_cursor(EVERYTHING, cursor)


@pytest.mark.parametrize(
    ("sort", "number"),
    [
        ("created", 2**64 - 1),
        ("created", -(2**63)),
        ("due", 2**62),
        ("priority", 2**64 - 1),
        ("priority", -(2**63)),
    ],
)
async def test_a_forged_cursor_is_refused_by_the_store(tmp_path: Path, sort: str, number: int) -> None:
    query = parse_query(f"sort:{sort}", now=NOW)
    forged = urlsafe_b64encode(msgspec.msgpack.encode((_mark(query), number, "x"))).decode()
    store = await SqliteStore.open(tmp_path / "redrive.db")
    try:
        with pytest.raises(RedriveError):
            await store.page(query, cursor=forged)
    finally:
        await store.close()


def test_the_letters_of_the_test_kit_can_be_found_by_what_they_say() -> None:
    letter = a_letter("orders/9", failure=a_failure("card declined"), message=a_message(message_id="m-9"))
    assert parse_query("source:orders error:TimeoutError declined message:m-9", now=NOW).matches(letter)


# --- yes and no, and names that are gone -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["unconfirmed", "presumed"])
def test_a_flag_is_yes_or_no(name: str) -> None:
    yes, no = parse_query(f"{name}:yes", now=NOW), parse_query(f"{name}:no", now=NOW)
    assert (yes.conditions[0].values, no.conditions[0].values) == ((1,), (0,))
    raised = msgspec.structs.replace(a_letter(), **{name: True})
    assert (yes.matches(raised), no.matches(raised)) == (True, False)
    assert (yes.matches(a_letter()), no.matches(a_letter())) == (False, True)
    assert parse_query(f"-{name}:yes", now=NOW).matches(a_letter())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("unconfirmed:true", "'unconfirmed' must be yes or no, not 'true'"),
        ("presumed:*", "'presumed' must be yes or no, not '*'"),
        ("unconfirmed>0", "'unconfirmed' is yes or no and cannot be compared with '>'; use 'unconfirmed:'"),
        ("transport:kafka", "unknown field 'transport'; did you mean 'broker'?"),
        ("-transport:kafka", "unknown field 'transport'; did you mean 'broker'?"),
    ],
)
def test_a_filter_that_cannot_be_is_refused_with_a_hint(text: str, says: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(text, now=NOW)
    assert says in str(caught.value)


def test_counting_by_a_field_that_was_renamed_names_the_new_one() -> None:
    with pytest.raises(QueryError, match="cannot count by 'transport'; did you mean 'broker'"):
        tally_field("transport")
