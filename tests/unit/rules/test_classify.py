"""Order, causes, explanations, retry hints, and errors that misbehave."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.letters.failure import FailureKind
from redrive.rules import (
    Classifier,
    Rule,
    all_of,
    parse_retry_after,
    when,
    when_errno,
    when_pattern,
    when_status,
    when_text,
    when_type,
)

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
DEFAULT = Classifier()


def raised(
    error: BaseException, cause: BaseException | None = None, context: BaseException | None = None
) -> BaseException:
    error.__cause__ = cause
    if cause is None:
        error.__suppress_context__ = False
        error.__context__ = context
    return error


def test_the_users_rules_come_before_the_defaults_and_in_their_order() -> None:
    first = Rule("first", FailureKind.BUSINESS, when=when_type(TimeoutError))
    second = Rule("second", FailureKind.REJECTED, when=when_type(OSError))
    assert Classifier((first, second)).classify(TimeoutError()).rule == "first"
    assert Classifier((second, first)).classify(TimeoutError()).rule == "second"
    assert Classifier((first, second)).classify(ValueError()).rule == "default"


def test_without_defaults_only_the_users_rules_are_asked() -> None:
    assert Classifier((), defaults=False).classify(TimeoutError()).kind == FailureKind.UNKNOWN


@pytest.mark.parametrize(
    ("condition", "fits", "does_not"),
    [
        (when_text("duplicate invoice"), Exception("Duplicate  Invoice 17"), Exception("duplicate invoices")),
        (when_text("C++"), Exception("no C++ here"), Exception("C+")),
        (when_pattern(r"E\d{4}"), Exception("code e1234"), Exception("E12")),
        (when_status(409, "5xx"), Exception("HTTP 511"), Exception("HTTP 410")),
        (when_errno("ENOSPC"), OSError(28, "full"), OSError(1, "no")),
        (when_type("ValueError"), UnicodeError(), KeyError()),
        (when(lambda error: "x" in str(error)), Exception("x"), Exception("y")),
        (all_of(when_type(ValueError), when_text("late")), ValueError("too late"), KeyError("late")),
    ],
)
def test_a_condition_fits_what_it_says(condition: Any, fits: BaseException, does_not: BaseException) -> None:
    classifier = Classifier((Rule("mine", FailureKind.BUSINESS, when=condition),))
    assert classifier.classify(fits).rule == "mine"
    assert classifier.classify(does_not).rule != "mine"


def test_a_rule_can_say_otherwise_than_its_kind_does() -> None:
    rule = Rule("patient", FailureKind.TIMEOUT, retryable=True, when=when_type(TimeoutError))
    assert Classifier((rule,)).classify(TimeoutError()).retryable


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rule("x", FailureKind.BUSINESS),
        lambda: Rule(" ", FailureKind.BUSINESS, when=when_type(ValueError)),
        lambda: when_text(""),
        when_text,
        lambda: when_text("a" * 501),
        lambda: when_pattern("(a+)+b"),
        lambda: when_pattern("("),
        lambda: when_pattern("x*"),
        lambda: when_pattern("a" * 501),
        when_pattern,
        when_status,
        lambda: when_status(99),
        lambda: when_status("6xx"),
        lambda: when_errno("ENOTHING"),
        when_errno,
        when_type,
        lambda: when("no function"),  # type: ignore[arg-type]
        all_of,
    ],
)
def test_a_rule_that_cannot_work_is_refused(make: Any) -> None:
    with pytest.raises(SettingsError):
        make()


def test_a_predicate_that_raises_has_said_no_and_the_explanation_tells() -> None:
    def broken(_: BaseException) -> NoReturn:
        raise ZeroDivisionError

    classifier = Classifier((Rule("broken", FailureKind.BUSINESS, when=when(broken)),))
    assert classifier.classify(TimeoutError()).rule == "type:timeout"
    first, *_, last = classifier.explain(TimeoutError())
    assert (first.rule, first.matched, first.note) == ("broken", False, "raised ZeroDivisionError")
    assert (last.rule, last.matched) == ("type:timeout", True)


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), ValueError("x"), OSError(28, "x"), Exception("HTTP 503"), Exception("order not found")],
)
def test_an_explanation_ends_with_the_rule_that_decided(error: BaseException) -> None:
    steps = DEFAULT.explain(error)
    assert [step.matched for step in steps].count(True) == 1
    assert steps[-1].matched
    assert steps[-1].rule == DEFAULT.classify(error).rule


def test_an_explanation_of_a_text_ends_with_the_rule_that_decided() -> None:
    for text in ("timeout", "nothing known", "HTTP 500"):
        assert DEFAULT.explain_text("", text)[-1].rule == DEFAULT.classify_text("", text).rule


def test_what_is_certain_about_the_cause_beats_words_of_the_wrapper() -> None:
    error = raised(RuntimeError("bad request to partner"), cause=TimeoutError())
    assert DEFAULT.classify(error).rule == "type:timeout"


def test_the_errors_own_class_beats_its_cause() -> None:
    assert DEFAULT.classify(raised(PermissionError(), cause=TimeoutError())).kind == FailureKind.DENIED


def test_a_context_decides_only_when_nothing_else_does() -> None:
    assert (
        DEFAULT.classify(raised(RuntimeError("failed"), context=ConnectionError())).kind
        == FailureKind.NETWORK
    )
    assert (
        DEFAULT.classify(raised(RuntimeError("order not found"), context=ConnectionError())).kind
        == FailureKind.NOT_FOUND
    )


def test_a_context_that_was_suppressed_is_not_looked_at() -> None:
    error = raised(RuntimeError("failed"), context=ConnectionError())
    error.__suppress_context__ = True
    assert DEFAULT.classify(error).kind == FailureKind.UNKNOWN


def test_a_group_is_looked_into() -> None:
    group = ExceptionGroup("unhandled errors in a TaskGroup", [KeyError("x"), ConnectionResetError()])
    assert DEFAULT.classify(group).kind == FailureKind.NETWORK


def test_a_ring_of_causes_comes_to_an_end() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert DEFAULT.classify(one).kind == FailureKind.UNKNOWN


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120), (b"7", 7), (30, 30), (1.5, 1.5), (timedelta(minutes=2), 120), ("0", 0),
        ("Sun, 15 Nov 2026 12:01:00 GMT", 60), ("Sun, 15 Nov 2026 11:00:00 GMT", 0),
        ("999999999999", 7 * 86400), (10**400, None), (-1, None), ("-5", None), (float("nan"), None),
        (float("inf"), None), ("soon", None), (True, None), (object(), None), (None, None),
    ],
)  # fmt: skip
def test_a_retry_after_value_is_honoured_within_reason(value: Any, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == (None if seconds is None else timedelta(seconds=seconds))


def test_a_date_without_now_is_no_wish() -> None:
    assert parse_retry_after("Sun, 15 Nov 2026 12:01:00 GMT", None) is None


def test_a_retry_after_is_read_from_attribute_header_and_response() -> None:
    for attributes in (
        {"retry_after": 30},
        {"headers": {"retry-after": "30"}},
        {"response": SimpleNamespace(headers={"Retry-After": b"30"})},
        {"response": {"ResponseMetadata": {"HTTPHeaders": {"retry-after": "30"}}}},
    ):
        error = Exception("Too Many Requests")
        vars(error).update(attributes)
        assert DEFAULT.classify(error, NOW).retry_after == timedelta(seconds=30), attributes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("retry after 30 seconds", 30), ("Please try again in 5 minutes.", 300), ("retry-after: 120", 120),
        ("try again in 1m26.4s", 86.4), ("Retry in 250ms", 0.25), ('{"retry_after": 12}', 12),
        ("retry after 3 attempts", None), ("retry 3 times", None), ("try again later", None),
        ("retry after 900 days", 7 * 86400),
    ],
)  # fmt: skip
def test_a_hint_in_the_text_is_read(text: str, seconds: float | None) -> None:
    found = DEFAULT.classify_text("", f"rate limit: {text}").retry_after
    assert found == (None if seconds is None else timedelta(seconds=seconds))


def test_who_does_not_try_again_is_told_no_time() -> None:
    assert DEFAULT.classify_text("", "forbidden, retry after 30 seconds").retry_after is None


def boom(*_: object) -> NoReturn:
    raise RuntimeError("boom")


class Nasty(Exception):  # noqa: N818
    __str__ = __repr__ = boom
    response = status = retry_after = __cause__ = property(boom)


class LyingInt(int):
    __index__ = __int__ = __le__ = __ge__ = __eq__ = __hash__ = boom


class LyingHeaders:
    get = __getitem__ = __contains__ = boom


values = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.booleans(),
    st.just(boom),
    st.builds(LyingInt, st.integers(0, 700)),
    st.builds(LyingHeaders),
    st.dictionaries(st.text(), st.integers()),
    st.builds(lambda value: SimpleNamespace(status_code=value, headers=value), st.integers() | st.text()),
)
plain = st.none() | st.integers() | st.text() | st.binary() | st.builds(Nasty)
names = st.sampled_from(["status", "status_code", "code", "response", "getcode", "headers", "retry_after"])
classes = st.sampled_from([Exception, OSError, TimeoutError, ValueError, Nasty, SystemExit, KeyError])


@given(classes, st.lists(plain, max_size=3), st.dictionaries(names, values), st.none() | st.just(NOW))
def test_no_exception_makes_classification_raise(
    cls: type[BaseException], args: list[Any], attributes: dict[str, Any], now: datetime | None
) -> None:
    error = cls(*args)
    vars(error).update(attributes)
    found = DEFAULT.classify(error, now)
    assert found.rule
    assert DEFAULT.explain(error)[-1].rule == found.rule


@given(st.text(), st.text(), st.none() | st.integers())
def test_no_text_makes_classification_raise(error_type: str, text: str, status: int | None) -> None:
    assert DEFAULT.classify_text(error_type, text, status).rule


def test_only_the_beginning_of_a_long_text_is_looked_at() -> None:
    assert DEFAULT.classify_text("", "x " * 500_000 + "timeout").kind == FailureKind.UNKNOWN
    assert DEFAULT.classify(Exception("timeout " + "=" * 1_000_000)).kind == FailureKind.TIMEOUT


# --- errors that are remembered by class and text --------------------------------------------------------------

THE_LONG_WAY = Classifier(rules=(Rule("never", FailureKind.BUSINESS, when=when(lambda _: False)),))


class Speaking(Exception):  # noqa: N818
    """Its status is made up by the class."""

    @property
    def status(self) -> int:
        return 429


class Slotted(Exception):  # noqa: N818
    __slots__ = ("status_code",)
    status_code: int


class Answering(Exception):  # noqa: N818
    def __getattr__(self, name: str) -> int:
        return 503


class Hiding(Exception):  # noqa: N818
    @property
    def __dict__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError


class Odd(type):
    def __hash__(cls) -> int:
        raise RuntimeError


class OfAnOddClass(Exception, metaclass=Odd):  # noqa: N818
    pass


def slotted(status: int) -> Slotted:
    error = Slotted("no luck")
    error.status_code = status
    return error


def noted(error: Exception, **found: object) -> Exception:
    vars(error).update(found)
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("invalid format: the total is not a number"),
        noted(ValueError("invalid format: the total is not a number"), order=17),
        RuntimeError("no luck"),
        noted(RuntimeError("no luck"), status=429),
        noted(RuntimeError("no luck"), response=SimpleNamespace(status_code=503)),
        noted(RuntimeError("deadlock"), retry_after=30),
        RuntimeError("deadlock; try again in 5 minutes"),
        RuntimeError("HTTP 503"),
        raised(RuntimeError("no luck"), cause=ConnectionResetError()),
        raised(RuntimeError("no luck"), context=ConnectionResetError()),
        ExceptionGroup("no luck", [TimeoutError()]),
        OSError(111, "no luck"),
        KeyError("x"),
        TimeoutError(),
        Speaking("no luck"),
        slotted(404),
        slotted(429),
        Answering("no luck"),
        Hiding("no luck"),
        OfAnOddClass("no luck"),
    ],
    ids=repr,
)
def test_an_error_that_is_remembered_is_judged_as_if_it_were_the_first(error: Exception) -> None:
    DEFAULT.classify(RuntimeError("no luck"), NOW)  # another one of the same text
    judged = DEFAULT.classify(error, NOW)

    assert judged == DEFAULT.classify(error, NOW)
    assert judged == THE_LONG_WAY.classify(error, NOW)


@given(st.sampled_from([ValueError, KeyError, RuntimeError, LookupError, UnicodeError]), st.text())
def test_any_text_is_judged_the_same_way_when_it_comes_again(kind: type[Exception], text: str) -> None:
    assert DEFAULT.classify(kind(text)) == THE_LONG_WAY.classify(kind(text))
