"""S46 to S48: memos."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.stores.base import Store
from redrive.stores.memos import LARGEST_BODY, LONGEST_NAME, NOTHING, Memo
from redrive.testing.clock import ManualClock
from redrive.testing.factories import a_letter, letters
from redrive.testing.store_suite.ground import Ground

NAME = "alarm"
LAST_VERSION = 2**63 - 1
BODIES = {
    "empty": b"",
    "NUL": b"\x00",
    "every byte": bytes(range(256)),
    "no text": b"\xff\xfe\x80",
    "JSON": b'{"open": ["depth"]}',
    "like SQL": b"'; DROP TABLE memos; --",
    "one below the limit": random.Random(1).randbytes(LARGEST_BODY - 1),
    "at the limit": random.Random(2).randbytes(LARGEST_BODY),
}
# Names that some database might take for one another, cut or misread.
NAMES = (
    "a", "A", "a ", " a", "a\n", "\u00e9", "e\u0301", "quote ' and \" and \\", "%", "_", "a/b", "a.b", "$a", "0",
    "x" * (LONGEST_NAME - 1), "x" * LONGEST_NAME, "🙂" * LONGEST_NAME,
)  # fmt: skip
BAD_NAMES = ("", " ", "a\x00b", "\udc80", "x" * (LONGEST_NAME + 1), "é" * (LONGEST_NAME + 1))


class Remembering(Ground):
    """S46 to S48: memos."""

    # --- writing -----------------------------------------------------------------------------------------

    async def test_s46_a_memo_is_written_by_who_shows_its_version(self, store: Store) -> None:
        assert await store.remember(NAME, b"first", version=0)
        assert await store.remember(NAME, b"second", version=1)
        assert await store.recall(NAME) == Memo(2, b"second")

    @pytest.mark.parametrize("version", [0, 1, 3, 4, LAST_VERSION])
    async def test_s46_with_another_version_nothing_is_written(self, store: Store, version: int) -> None:
        await store.remember(NAME, b"first", version=0)
        await store.remember(NAME, b"second", version=1)
        assert not await store.remember(NAME, b"third", version=version)
        assert await store.recall(NAME) == Memo(2, b"second")

    @pytest.mark.parametrize("version", [1, 2, LAST_VERSION])
    async def test_s46_what_is_not_there_has_no_version_but_0(self, store: Store, version: int) -> None:
        assert not await store.remember(NAME, b"first", version=version)
        assert await store.recall(NAME) == NOTHING
        assert await store.remember(NAME, b"first", version=0)

    async def test_s46_of_many_that_write_first_one_does(self, store: Store) -> None:
        answers = await asyncio.gather(*(store.remember(NAME, b"%d" % n, version=0) for n in range(20)))
        assert answers.count(True) == 1
        assert await store.recall(NAME) == Memo(1, b"%d" % answers.index(True))

    async def test_s46_of_two_that_race_again_and_again_one_writes_each_time(self, store: Store) -> None:
        for version in range(100):
            answers = await asyncio.gather(
                store.remember(NAME, b"one %d" % version, version=version),
                store.remember(NAME, b"two %d" % version, version=version),
            )
            assert sorted(answers) == [False, True]
            winner = b"one %d" if answers[0] else b"two %d"
            assert await store.recall(NAME) == Memo(version + 1, winner % version)

    async def test_s46_who_recalls_before_each_write_overwrites_nobody(self, store: Store) -> None:
        async def count(times: int) -> None:
            while times:
                memo = await store.recall(NAME)
                times -= await store.remember(NAME, b"%d" % (int(memo.body or 0) + 1), version=memo.version)

        await asyncio.gather(*(count(10) for _ in range(5)))
        assert await store.recall(NAME) == Memo(50, b"50")

    async def test_s46_the_same_body_again_is_a_write_like_any_other(self, store: Store) -> None:
        assert await store.remember(NAME, b"quiet", version=0)
        assert not await store.remember(NAME, b"quiet", version=0)
        assert await store.remember(NAME, b"quiet", version=1)
        assert await store.recall(NAME) == Memo(2, b"quiet")

    # --- durable -----------------------------------------------------------------------------------------

    async def test_s47_memos_are_there_after_reopening(self, tmp_path: Path, clock: ManualClock) -> None:
        if not self.durable:
            pytest.skip("this store keeps nothing beyond close")
        store = await self.open_store(tmp_path, clock)
        for version in range(3):
            await store.remember(NAME, b"%d" % version, version=version)
        for name, body in BODIES.items():
            await store.remember(name, body, version=0)
        await store.close()
        again = await self.open_store(tmp_path, clock)
        assert await again.recall(NAME) == Memo(3, b"2")
        for name, body in BODIES.items():
            assert await again.recall(name) == Memo(1, body)
        assert not await again.remember(NAME, b"late", version=2)
        assert await again.remember(NAME, b"next", version=3)
        await again.close()

    async def test_s47_each_write_makes_the_version_one_higher(self, store: Store) -> None:
        for version in range(30):
            assert (await store.recall(NAME)).version == version
            assert await store.remember(NAME, bytes(version % 3), version=version)

    async def test_s32_what_was_to_be_remembered_before_closing_is_done(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = await self.open_store(tmp_path, clock)
        asked = [asyncio.ensure_future(store.remember(f"memo-{n}", b"", version=0)) for n in range(5)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*asked) == [True] * 5

    # --- recalling ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
    async def test_s48_a_memo_comes_back_bit_exact(self, store: Store, body: bytes) -> None:
        assert await store.remember(NAME, body, version=0)
        assert await store.recall(NAME) == Memo(1, body)
        assert await store.remember(NAME, body[::-1], version=1)
        memo = await store.recall(NAME)
        assert (type(memo.body), memo) == (bytes, Memo(2, body[::-1]))

    async def test_s48_a_name_never_written_has_version_0_and_no_body(self, store: Store) -> None:
        await store.remember("another", b"", version=0)
        assert await store.recall(NAME) == Memo(version=0, body=None)
        assert await store.recall("another") == Memo(version=1, body=b"")

    async def test_s48_each_name_has_a_memo_of_its_own(self, store: Store) -> None:
        for number, name in enumerate(NAMES):
            assert await store.recall(name) == NOTHING
            assert await store.remember(name, b"%d" % number, version=0)
        for number, name in enumerate(NAMES):
            assert await store.recall(name) == Memo(1, b"%d" % number)

    async def test_s48_memos_and_letters_do_not_touch_each_other(self, store: Store) -> None:
        await store.add([a_letter()])
        before = await store.load([a_letter().id])
        await store.remember(a_letter().id, b"quiet", version=0)
        assert await store.load([a_letter().id]) == before
        assert await store.count() == 1
        assert await store.journal() == []
        assert await store.damage() is None

    async def test_s30_memos_are_recalled_while_much_is_written(self, store: Store) -> None:
        await store.remember(NAME, b"quiet", version=0)
        writing = asyncio.gather(*(store.add(letters(50, f"more{n}")) for n in range(20)))
        assert [await store.recall(NAME) for _ in range(10)] == [Memo(1, b"quiet")] * 10
        await writing

    # --- what is refused ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:20])
    async def test_s33_names_that_no_memo_can_have_are_refused(self, store: Store, name: str) -> None:
        verbs: list[Any] = [store.recall(name), store.remember(name, b"", version=0)]
        for verb in verbs:
            with pytest.raises(SettingsError, match="the document name") as caught:
                await verb
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("body", "version", "says"),
        [
            (bytes(LARGEST_BODY + 1), 1, "the document has 16777217 bytes; the limit is 16777216 bytes"),
            (b"", -1, "version must be between 0 and 2^63, not -1"),
            (b"", 2**63, "version must be between 0 and 2^63, not 9223372036854775808"),
            (b"", True, "version must be between 0 and 2^63, not True"),
        ],
        ids=["large", "below 0", "beyond what databases count", "no number"],
    )  # fmt: skip
    async def test_s33_memos_that_cannot_be_stored_are_refused(
        self, store: Store, body: bytes, version: int, says: str
    ) -> None:
        await store.remember(NAME, b"as it was", version=0)
        with pytest.raises(SettingsError) as caught:
            await store.remember(NAME, body, version=version)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
        assert await store.recall(NAME) == Memo(1, b"as it was")
