"""The tree of errors is the one that is drawn, and every message can stand on one line."""

import re

import pytest

from redrive import errors
from redrive.errors import (
    QueryError,
    RedriveError,
    SettingsError,
    StoreError,
    TransportError,
    did_you_mean,
    use_instead,
)

Tree = dict[str, "Tree"]


def drawn() -> dict[str, str]:
    """Error → its parent, as the module's text draws them."""
    lines = re.findall(r"^    ([ │├└─]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    parents: dict[str, str] = {}
    above: dict[int, str] = {}
    for branch, name in lines:
        depth = len(branch) // 4
        above[depth] = name
        parents[name] = above[depth - 1] if depth else "Exception"
    return parents


def real() -> dict[str, str]:
    found = {"RedriveError": "Exception"}
    waiting: list[type[RedriveError]] = [RedriveError]
    while waiting:
        parent = waiting.pop()
        for child in parent.__subclasses__():
            if child.__module__ == "redrive.errors":
                found[child.__name__] = parent.__name__
                waiting.append(child)
    return found


def test_the_tree_in_the_text_is_the_tree_of_classes() -> None:
    assert drawn() == real()


def test_every_error_of_the_module_is_in_the_tree() -> None:
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")
    }
    assert defined == set(real())


@pytest.mark.parametrize("name", sorted(real()))
def test_each_error_says_in_its_own_text_what_it_means(name: str) -> None:
    kind = getattr(errors, name)
    assert "__doc__" in vars(kind)
    assert kind.__doc__.strip().endswith((".", "any more."))


@pytest.mark.parametrize("name", sorted(real()))
def test_each_error_ends_the_command_line_with_a_code_of_its_family(name: str) -> None:
    kind = getattr(errors, name)
    families = {SettingsError: 2, QueryError: 2, StoreError: 3, TransportError: 4}
    expected = next((code for family, code in families.items() if issubclass(kind, family)), 1)
    assert kind.exit_code == expected


def test_catching_the_root_catches_all() -> None:
    for name in real():
        with pytest.raises(RedriveError, match="what to do"):
            raise getattr(errors, name)("what to do")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("lese", "; did you mean 'lease'?"),
        ("LEASE", "; did you mean 'lease'?"),
        ("zzzzz", ""),
        ("", ""),
        (5, ""),
        (None, ""),
        ("x" * 100_000, ""),
    ],
)
def test_a_hint_names_the_nearest_word_or_nothing(word: object, hint: str) -> None:
    assert did_you_mean(word, ("lease", "poll", "batch")) == hint


def test_where_no_word_is_near_all_are_named() -> None:
    assert use_instead("zzzzz", iter(("lease", "poll"))) == "; use one of lease, poll"
    assert use_instead("pol", iter(("lease", "poll"))) == "; did you mean 'poll'?"


def test_an_error_keeps_the_words_it_was_given() -> None:
    assert str(SettingsError("store.url is missing")) == "store.url is missing"
    assert str(SettingsError("größer als 5 µs … 🦊 'x' \\")) == "größer als 5 µs … 🦊 'x' \\"


@pytest.mark.parametrize("char", [*map(chr, range(32)), "\x7f", "\x85", "\u2028", "\u2029", "\udce9"])
def test_whatever_a_message_quotes_it_stands_on_one_line(char: str) -> None:
    message = str(SettingsError(f"unknown setting 'a{char}b'"))
    assert message.isprintable()
    assert message.encode("unicode_escape").decode().startswith("unknown setting 'a\\\\")
    assert message.endswith("b'")
