"""A table fits the screen, keeps what names its rows, and shows what a terminal would act upon."""

import re

import click
import pytest
from hypothesis import given, strategies as st

from redrive.cli.table import Coloured, cut, table, width
from redrive.errors import on_one_line

TITLES = ("id", "source", "text")


def plain(text: str) -> list[str]:
    return click.unstyle(text).splitlines()


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    shown = plain(table(TITLES, [["a", "orders", "x"], ["bcd", "pay", "longer text"]], room=80))
    assert shown == ["id   source  text", "a    orders  x", "bcd  pay     longer text"]


def test_the_last_column_is_cut_first_and_says_so() -> None:
    shown = plain(table(TITLES, [["abc", "orders", "a text that is far too long"]], room=30))
    assert shown[1] == "abc  orders  a text that is f…"
    assert width(shown[1]) == 30


def test_then_the_widest_of_the_others_is_cut_and_never_the_first() -> None:
    row = ["06e4rpx3g35851gw", "a.very.long.name.of.a.queue", "a text that is far too long"]
    shown = plain(table(TITLES, [row], room=40))
    assert shown[1].startswith("06e4rpx3g35851gw  a.very")
    assert width(shown[1]) <= 40
    narrow = plain(table(TITLES, [row], room=5))
    assert narrow[1] == "06e4rpx3g35851gw  a.very…  a text…"


def test_in_a_pipe_the_last_column_is_not_cut_below_5000_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert "y" * 5000 in table(TITLES, [["x", "orders", "y" * 5000]])
    assert "y" * 4999 + "…" in table(TITLES, [["x", "orders", "y" * 5001]])


@pytest.mark.parametrize("char", ["y", "注", "\x1b", "\u202e"])
def test_a_long_name_does_not_widen_every_row(char: str) -> None:
    rows = [[char * 60_000, "error" * 20_000, char * 100_000], *([["a", "b", "c"]] * 200)]
    shown = table(TITLES, rows, room=10**9)
    assert len(shown) < 200 * 600
    assert max(width(line) for line in plain(shown)) <= 255 + 2 + 255 + 2 + 5000


@pytest.mark.parametrize("size", [254, 255, 256])
def test_a_cell_is_cut_at_255_columns(size: int) -> None:
    (_, line) = plain(table(TITLES, [["x" * size, "orders", "text"]], room=10**9))
    assert line.split()[0] == ("x" * size if size <= 255 else "x" * 254 + "…")


CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u200e\u200f\u061c"]
CONTROLS += [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u2028", "\u2029", "\ufeff"]


@pytest.mark.parametrize("char", CONTROLS, ids=[f"U+{ord(char):04X}" for char in CONTROLS])
def test_control_characters_are_shown_and_not_acted_upon(char: str) -> None:
    shown = table(TITLES, [[f"a{char}b", Coloured(f"c{char}d", "red"), f"e{char}f"]], room=200)
    assert char not in click.unstyle(shown).replace("\n", "", 1)


def test_colours_are_ours_and_escapes_of_others_are_shown() -> None:
    shown = table(TITLES, [["a", Coloured("red\x1b[2J", "red"), "b\x1b[31m\r\nc"]], room=80)
    assert re.findall(r"\x1b\[[0-9;]*[A-Za-z]", shown.splitlines()[1]) == ["\x1b[31m", "\x1b[0m"]
    assert plain(shown)[1] == r"a   red\x1b[2J  b\x1b[31m\r\nc"


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    assert width("注文") == 4
    assert width("é") == 1
    assert cut("注文書類", 6) == "注文… "
    shown = plain(table(("a", "b"), [["注文", "x"], ["ab", "y"]], room=80))
    assert [width(line[: line.index(char)]) for line, char in zip(shown[1:], "xy", strict=True)] == [6, 6]


def test_no_rows_are_a_line_of_titles() -> None:
    assert plain(table(TITLES, [], room=80)) == ["id  source  text"]


@given(
    rows=st.lists(st.lists(st.text(max_size=40), min_size=3, max_size=3), max_size=5),
    room=st.integers(1, 200),
)
def test_no_line_is_wider_than_the_screen_unless_it_cannot_be_narrower(
    rows: list[list[str]], room: int
) -> None:
    first = max([2, *(width(on_one_line(row[0])) for row in rows)])
    narrowest = first + 2 + 8 + 2 + 8
    lines = click.unstyle(table(TITLES, rows, room=room)).split("\n")
    assert len(lines) == len(rows) + 1
    assert max(map(width, lines)) <= max(room, narrowest)


@given(text=st.text(max_size=30), wide=st.integers(1, 40))
def test_a_cell_is_exactly_as_wide_as_its_column(text: str, wide: int) -> None:
    assert width(cut(on_one_line(text), wide)) == wide
