"""S31 to S33: failing."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.errors import (
    LetterInvalidError,
    LetterNotFoundError,
    SettingsError,
    StoreClosedError,
)
from redrive.letters import ClaimToken
from redrive.stores.base import Store
from redrive.stores.changes import (
    Fail,
    Outcome,
    Park,
    Prioritise,
    Resolve,
    Retry,
    SetBroker,
    Settlement,
    Unclaim,
)
from redrive.stores.operations import Operation, OperationState
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, LONG_AGO, a_failure, a_letter, a_message, letters
from redrive.testing.store_suite.ground import MINUTE, Ground


class Failing(Ground):
    """S31 to S33: failing."""

    async def test_s31_a_verb_that_raises_has_changed_nothing(self, store: Store) -> None:
        await store.add(letters(2))
        before = await store.load([letter.id for letter in letters(2)])
        with pytest.raises(SettingsError):
            await store.claim("", broker=BROKER, limit=1)
        with pytest.raises(SettingsError):
            await store.claim("w", broker=BROKER, lease=timedelta(0))
        with pytest.raises(LetterNotFoundError):
            await store.apply(Prioritise(1), [before[0].id, "?"], by="ann")
        assert await store.load([letter.id for letter in letters(2)]) == before
        assert await store.journal() == []

    async def test_s32_a_closed_store_says_so(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter()])
        await store.close()
        verbs: list[Any] = [
            store.add([a_letter()]), store.load([]), store.page(), store.count(), store.tally("state"),
            store.claim("w", broker=BROKER), store.take([], "w"), store.extend([]), store.journal(),
            store.settle([]), store.settle([Settlement(ClaimToken(a_letter().id, 1), Resolve())]),
            store.rescue(retry_in=MINUTE), store.overdue(broker=BROKER, lease=MINUTE),
            store.apply(Prioritise(1), [], by="ann"),
            store.begin(Operation(id="op-1", kind="replay", by="ann"), []), store.operation("op-1"),
            store.operations(), store.remaining("op-1", limit=1), store.items("op-1", limit=1),
            store.record("op-1", []), store.run_operation("op-1", "r"),
            store.end_operation("op-1", OperationState.DONE, by="ann"), store.groups(), store.damage(),
            store.recall("alarm"), store.remember("alarm", b"quiet", version=0),
        ]  # fmt: skip
        for verb in verbs:
            with pytest.raises(StoreClosedError, match="closed"):
                await verb
        await store.close()

    async def test_s32_what_was_asked_before_closing_is_done(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = await self.open_store(tmp_path, clock)
        adding = [asyncio.ensure_future(store.add([letter])) for letter in letters(20)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*adding) == [[True]] * 20

    @pytest.mark.parametrize(
        "lease", [timedelta(0), timedelta(seconds=-1), timedelta(days=31), timedelta.max], ids=str
    )
    async def test_s33_absurd_leases_are_refused(self, store: Store, lease: timedelta) -> None:
        for verb in (
            store.claim("w", broker=BROKER, lease=lease),
            store.take([], "w", lease=lease),
            store.extend([], lease=lease),
            store.overdue(broker=BROKER, lease=lease),
        ):
            with pytest.raises(SettingsError, match="lease"):
                await verb

    @pytest.mark.parametrize(
        "broker", ["", " ", "a\x00b", "\udc80", "x" * 70_000], ids=lambda name: ascii(name)[:9]
    )
    async def test_s33_broker_names_that_cannot_be_stored_are_refused(
        self, store: Store, broker: str
    ) -> None:
        await store.add([a_letter()])
        verbs: list[Any] = [
            store.claim("w", broker=broker), store.take([a_letter().id], "w", brokers=[BROKER, broker]),
            store.overdue(broker=broker, lease=MINUTE), store.apply(SetBroker(broker), [a_letter().id], by="ann"),
        ]  # fmt: skip
        for verb in verbs:
            with pytest.raises(SettingsError, match="the broker's name") as caught:
                await verb
            assert "\n" not in str(caught.value)
        assert [head.broker for head in await store.claim("w", broker=BROKER)] == [BROKER]

    @pytest.mark.parametrize("limit", [0, -1, 10**9, True])
    async def test_s33_absurd_limits_are_refused(self, store: Store, limit: int) -> None:
        for verb in (
            store.claim("w", broker=BROKER, limit=limit), store.page(limit=limit), store.journal(limit=limit),
            store.rescue(retry_in=MINUTE, limit=limit), store.overdue(broker=BROKER, lease=MINUTE, limit=limit),
        ):  # fmt: skip
            with pytest.raises(SettingsError, match="limit"):
                await verb

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("id", ""), ("key", ""), ("broker", ""), ("broker", "a\x00b"), ("consumer_group", "\udc80"),
            ("source", ""), ("source", "a\x00b"), ("correlation_id", "\udc80"),
            ("error_text", "x" * 70_000), ("message_id", "\x00"), ("retry_count", -1), ("retry_count", 2**31),
            ("prior_redrives", -1), ("prior_redrives", 2**31),
            ("priority", 2**31), ("priority", -(2**31) - 1), ("tags", ("a", "a")), ("tags", ("",)),
            ("next_retry_at", datetime(2026, 1, 1)),  # noqa: DTZ001  that is the point
        ],
    )  # fmt: skip
    async def test_s33_letters_that_cannot_be_stored_are_refused(
        self, store: Store, field: str, value: Any
    ) -> None:
        bad = msgspec.structs.replace(a_letter(), **{field: value})
        with pytest.raises((LetterInvalidError, SettingsError)) as caught:
            await store.add([bad])
        assert "\n" not in str(caught.value)
        assert await store.count() == 0

    @pytest.mark.parametrize(
        "outcome",
        [
            Retry(at=datetime(2026, 1, 1)),  # noqa: DTZ001  that is the point
            Unclaim(at=datetime(2026, 1, 1)),  # noqa: DTZ001
            Park(failure=a_failure(at=datetime(2026, 1, 1))),  # noqa: DTZ001
            Fail(failure=a_failure(error_type="x" * 70_000)), Resolve(strategy=""), Resolve(strategy="\udc80"),
            Resolve(detail="a\x00b"), Retry(at=LONG_AGO, result="lost"), Park(detail="\udc80"),
            Fail(detail="x" * 70_000),
        ],
        ids=lambda outcome: type(outcome).__name__,
    )  # fmt: skip
    async def test_s33_outcomes_that_cannot_be_stored_are_refused(
        self, store: Store, outcome: Outcome
    ) -> None:
        await store.add(letters(2))
        good, bad = await store.claim("w", broker=BROKER)
        before = await store.load([good.id, bad.id])
        with pytest.raises(SettingsError) as caught:
            await store.settle(
                [Settlement(good.claim_token, Resolve()), Settlement(bad.claim_token, outcome)]
            )
        assert "\n" not in str(caught.value)
        assert await store.load([good.id, bad.id]) == before
        assert await store.settle([Settlement(good.claim_token, Resolve())]) == [True]

    async def test_s33_what_brokers_and_errors_really_contain_is_storable(self, store: Store) -> None:
        odd = a_letter(
            failure=a_failure("NUL \x00 and a lone surrogate \udcff " + "x" * 100_000, stack="\udcff"),
            correlation_id="trace \x00",
            message=a_message(message_id="m\x00"),
        )
        await store.add([odd])
        [back] = await store.load([odd.id])
        assert back.correlation_id == "trace \ufffd"
        assert back.message.message_id == "m\x00"
