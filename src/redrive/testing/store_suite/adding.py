"""S1 to S5: adding."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from redrive.errors import (
    LetterInvalidError,
)
from redrive.letters import (
    Headers,
    LetterState,
    Message,
    Origin,
    SystemState,
    TypedValue,
)
from redrive.stores.base import Store
from redrive.stores.changes import (
    Resolve,
    Settlement,
)
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, a_failure, a_letter, a_message, letters
from redrive.testing.store_suite.ground import MINUTE, Ground

STORED_BY_THE_STORE = {
    "created_at": datetime(1970, 1, 1, tzinfo=UTC),
    "updated_at": datetime(1970, 1, 1, tzinfo=UTC),
}


class Adding(Ground):
    """S1 to S5: adding."""

    async def test_s01_what_was_added_is_there_after_reopening(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        if not self.durable:
            pytest.skip("this store keeps nothing beyond close")
        store = await self.open_store(tmp_path, clock)
        await store.add(letters(3))
        before = await store.load([letter.id for letter in letters(3)])
        await store.close()
        again = await self.open_store(tmp_path, clock)
        assert await again.load([letter.id for letter in letters(3)]) == before
        await again.close()

    async def test_s02_an_add_repeated_after_a_crash_changes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        letter = a_letter()
        assert await store.add([letter]) == [True]
        [head] = await store.claim("w1", broker=BROKER)
        before = await store.load([letter.id])
        clock.advance(MINUTE)
        assert await store.add([letter, a_letter("orders/2")]) == [False, True]
        assert await store.load([letter.id]) == before
        assert await store.settle([Settlement(head.claim_token, Resolve())]) == [True]

    async def test_s02_the_same_letter_twice_in_one_add_is_added_once(self, store: Store) -> None:
        assert await store.add([a_letter(), a_letter()]) == [True, False]
        assert await store.count() == 1

    async def test_s02_the_same_letter_added_by_many_at_once_is_new_for_one_of_them(
        self, store: Store
    ) -> None:
        answers = await asyncio.gather(*(store.add([a_letter()]) for _ in range(20)))
        assert sum(fresh for [fresh] in answers) == 1
        assert await store.count() == 1

    @pytest.mark.parametrize(
        "body", [b"", bytes(range(256)), b"\x00" * 10_000, "πß🙂".encode(), b"\xff\xfe", None], ids=repr
    )
    async def test_s03_a_body_comes_back_bit_exact(self, store: Store, body: bytes | None) -> None:
        letter = a_letter(message=a_message(body, key=body))
        await store.add([letter])
        [back] = await store.load([letter.id])
        assert back.message == letter.message
        assert type(back.message.body) is type(body)

    async def test_s03_a_large_body_comes_back_bit_exact(self, store: Store) -> None:
        body = (bytes(range(256)) * (self.largest_body // 256 + 1))[: self.largest_body]
        letter = a_letter(message=a_message(body))
        await store.add([letter])
        [back] = await store.load([letter.id])
        assert back.message.body == body
        assert back.size == self.largest_body

    async def test_s03_headers_keep_order_duplicates_and_types(self, store: Store) -> None:
        headers = Headers(
            [
                ("a", 1), ("a", True), ("a", 1.0), ("A", "1"), ("a", b"1"), ("empty", ""), ("none", None),
                ("", "no name"), ("big", 2**70), ("negative", -(2**63)), ("decimal", Decimal("1.50")),
                ("when", datetime(2026, 2, 11, 12, 0, 0, 123456, tzinfo=UTC)), ("uuid", UUID(int=7)),
                ("int16", TypedValue("int16", -5)), ("float32", TypedValue("float32", 0.5)), ("nan", float("nan")),
                ("text that is not UTF-8", TypedValue("text", b"\xff")), ("list", (1, "x", (None, b"\x00"))),
                ("table", Headers([("x", 1), ("x", Headers([("deep", TypedValue("uint8", 255))]))])), ("π", "🙂"),
            ]
        )  # fmt: skip
        letter = a_letter(message=a_message(headers=headers, properties=Headers({"delivery_mode": 2})))
        await store.add([letter])
        [back] = await store.load([letter.id])
        assert back.message.headers == headers
        assert back.message == letter.message

    async def test_s03_everything_known_about_a_letter_comes_back(self, store: Store) -> None:
        message = Message(
            body=b"x", key=b"k", headers=Headers({"h": 1}), content_type="text/plain", content_encoding="gzip",
            message_id="m", correlation_id="c", sent_at=datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
            properties=Headers({"reply_to": "r"}),
        )  # fmt: skip
        origin = Origin(
            transport="kafka", source="t", exchange="e", routing_key="r", partition=3, offset=42, consumer_group="g",
            endpoint="b", dead_letter_source="t.dlq",
        )  # fmt: skip
        letter = a_letter(
            message=message, origin=origin, failure=a_failure(stack="Traceback …\x00"), priority=-7,
            tags=("payment", "critical"), system_state=SystemState(0.75, 0.6),
        )  # fmt: skip
        letter = msgspec.structs.replace(
            letter, strategy="immediate", assignee="ops", derived_from="x", prior_redrives=3, broker="events"
        )
        await store.add([letter])
        [back] = await store.load([letter.id])
        assert msgspec.structs.replace(back, **STORED_BY_THE_STORE) == letter

    async def test_s04_a_new_letter_is_pending_whatever_its_copy_says(
        self, store: Store, clock: ManualClock
    ) -> None:
        claimed = msgspec.structs.replace(
            a_letter(), state=LetterState.FAILED, fence=9, locked_by="w", lease_until=clock.now(), dlq_retry_count=4,
            presumed=True, unconfirmed=True,
        )  # fmt: skip
        await store.add([claimed])
        [back] = await store.load([claimed.id])
        assert (back.state, back.fence, back.locked_by, back.lease_until) == (
            LetterState.PENDING,
            0,
            None,
            None,
        )
        assert (back.dlq_retry_count, back.presumed, back.unconfirmed) == (0, False, False)
        assert back.created_at == clock.now()

    async def test_s05_one_letter_that_cannot_be_stored_keeps_its_whole_add_out(self, store: Store) -> None:
        bad = msgspec.structs.replace(a_letter("orders/2"), correlation_id="")
        with pytest.raises(LetterInvalidError, match="correlation_id"):
            await store.add([a_letter(), bad])
        assert await store.count() == 0
