"""What is a memo, what is refused as one, and how does a store from before there were memos get them?"""

from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.errors import RedriveError, SettingsError
from redrive.stores.memos import LARGEST_BODY, LONGEST_NAME, NOTHING, Memo, check_memo, check_memo_name
from redrive.stores.sqlite import SqliteStore, schema


def refused(check: Callable[[], None], says: str) -> None:
    with pytest.raises(SettingsError) as problem:
        check()
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


# --- the value and its limits ----------------------------------------------------------------------------


def test_nothing_is_version_0_without_a_body() -> None:
    assert Memo(version=0, body=None) == NOTHING
    assert Memo(1, b"") != NOTHING


@pytest.mark.parametrize("length", [1, LONGEST_NAME - 1, LONGEST_NAME])
@pytest.mark.parametrize("letter", ["x", "é", "🙂"])
def test_a_name_within_the_limits_is_fine(length: int, letter: str) -> None:
    check_memo_name(letter * length)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "the document name is empty"),
        (" \n", "the document name is empty"),
        ("a\x00", "the document name contains a NUL character"),
        ("\ud800", "the document name is not valid Unicode"),
        ("x" * 201, "the document name has 201 characters; the limit is 200"),
        ("🙂" * 201, "the document name has 201 characters; the limit is 200"),
    ],
    ids=["empty", "blank", "NUL", "surrogate", "long", "long in any alphabet"],
)
def test_another_name_is_refused_with_the_reason(name: str, says: str) -> None:
    refused(lambda: check_memo_name(name), says)
    refused(lambda: check_memo(name, b"", 0), says)


@pytest.mark.parametrize("size", [0, 1, LARGEST_BODY - 1, LARGEST_BODY])
@pytest.mark.parametrize("version", [0, 1, 2**63 - 1])
def test_a_memo_within_the_limits_is_fine(size: int, version: int) -> None:
    check_memo("alarm", bytes(size), version)


@pytest.mark.parametrize("version", [-1, -(2**63), 2**63, 2**64, True, False])
def test_a_version_that_no_memo_has_is_refused(version: int) -> None:
    refused(lambda: check_memo("alarm", b"", version), f"version must be between 0 and 2^63, not {version}")


def test_a_body_beyond_the_limit_is_refused() -> None:
    refused(
        lambda: check_memo("alarm", bytes(LARGEST_BODY + 1), 0), "has 16777217 bytes; the limit is 16777216"
    )


# --- stores from before there were memos -----------------------------------------------------------------


async def test_a_redrive_from_before_memos_refuses_a_file_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, two = tmp_path / "redrive.db", schema.migrations()[:2]
    store = await SqliteStore.open(path)
    await store.remember("alarm", b"quiet", version=0)
    await store.close()
    with monkeypatch.context() as before_memos:
        before_memos.setattr(schema, "migrations", lambda: two)
        with pytest.raises(
            RedriveError, match=r"written by a newer redrive \(schema \d+, this version supports 2\)"
        ):
            await SqliteStore.open(path)
    store = await SqliteStore.open(path)
    assert await store.recall("alarm") == Memo(1, b"quiet")
    await store.close()
