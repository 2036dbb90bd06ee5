"""A stack reads as Python's own, only without marks, and at a fraction of its cost."""

import re
import traceback

import pytest

from redrive.letters.stack import stack_of, stack_parts


def raised(make: str) -> BaseException:
    try:
        CASES[make]()
    except BaseException as error:  # noqa: BLE001  whatever a case raises
        return error
    raise AssertionError


def plain() -> None:
    raise ValueError("invalid format: order 17")


def caused() -> None:
    try:
        plain()
    except ValueError as error:
        raise LookupError("not there") from error


def in_the_middle() -> None:
    try:
        plain()
    except ValueError:
        raise KeyError("x")  # noqa: B904  that is the case


def hidden() -> None:
    try:
        plain()
    except ValueError:
        raise KeyError("x") from None


def noted() -> None:
    error = RuntimeError("two\nlines")
    error.add_note("and a note")
    raise error


def wordless() -> None:
    raise RuntimeError


def recursive(depth: int = 50) -> None:
    if depth:
        recursive(depth - 1)
    else:
        plain()


def grouped() -> None:
    raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])


def unparsable() -> None:
    compile("1 +", "x.py", "exec")


CASES = {
    function.__name__: function
    for function in (plain, caused, in_the_middle, hidden, noted, wordless, recursive, grouped, unparsable)
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_python_itself_would_print_without_the_marks(name: str) -> None:
    error = raised(name)
    expected = "".join(traceback.format_exception(error))
    without_marks = re.sub(r"^ +[~^]+ *\n", "", expected, flags=re.MULTILINE)
    own = re.sub(r"^ +[~^]+ *\n", "", stack_of(error), flags=re.MULTILINE)
    assert own == without_marks


def test_an_error_that_cannot_be_told_is_still_told() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert stack_of(MuteError()).endswith("MuteError: <exception str() failed>\n")


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert stack_of(first).count("ValueError") == 2


def test_the_words_stand_apart_from_the_frames() -> None:
    parts = stack_parts(raised("plain"))
    assert parts[-1] == "ValueError: invalid format: order 17\n"
    assert "order 17" not in parts[0].replace('raise ValueError("invalid format: order 17")', "")


def test_the_same_code_has_another_stack_on_another_line() -> None:
    def fails(late: bool) -> None:
        if late:
            raise ValueError("late")
        raise ValueError("early")

    def caught(late: bool) -> ValueError:
        with pytest.raises(ValueError) as found:
            fails(late)
        return found.value

    for late in (True, False, True, False):
        assert ('raise ValueError("late")' in stack_of(caught(late))) is late


def test_more_stacks_than_are_remembered_are_told_all_the_same() -> None:
    def caught(number: int) -> Exception:
        try:
            exec(compile("\n" * number + "raise ValueError", "made-up", "exec"))
        except ValueError as error:
            return error
        raise AssertionError

    for number in (*range(1200), 0, 1):
        assert f'File "made-up", line {number + 1}, in <module>' in stack_of(caught(number))


@pytest.mark.parametrize("depth", [1, 48, 49, 50, 51, 60])
def test_a_stack_of_any_depth_is_told_alike_each_time(depth: int) -> None:
    def descend(left: int) -> None:
        if not left:
            raise ValueError("at the bottom")
        descend(left - 1)

    def caught() -> ValueError:
        try:
            descend(depth)
        except ValueError as error:
            return error
        raise AssertionError

    first, second = stack_of(caught()), stack_of(caught())
    repeated = depth - 3  # as often as Python leaves a line out

    assert first == second
    assert ("[Previous line repeated" in first) is (repeated > 0)
    assert f"repeated {repeated} more time" in first or repeated <= 0
