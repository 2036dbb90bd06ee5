"""S34 to S45: operations and groups."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.errors import LetterNotFoundError, OperationNotFoundError, SettingsError
from redrive.letters import DeadLetter, LetterState
from redrive.stores.base import Store
from redrive.stores.changes import Delete, Fail, Resolve, Settlement
from redrive.stores.operations import LARGEST_OPTIONS, Item, Operation, OperationState
from redrive.stores.query import EVERYTHING, parse_query
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, a_failure, a_letter, letters
from redrive.testing.store_suite.ground import MINUTE, Ground

RUNNING, STOPPED = OperationState.RUNNING, OperationState.STOPPED
CANCELLED, DONE = OperationState.CANCELLED, OperationState.DONE
LIST = ["c", "a", "d", "b"]
ENDS = [DONE, CANCELLED, STOPPED]


def an_operation(operation_id: str = "op-1", **fields: Any) -> Operation:
    """A replay that somebody asked for."""
    fields.setdefault("kind", "replay")
    fields.setdefault("by", "ann")
    return Operation(id=operation_id, **fields)


class Operating(Ground):
    """S34 to S45: operations and groups."""

    # --- beginning ---------------------------------------------------------------------------------------

    async def test_s34_an_operation_and_its_list_are_there_after_reopening(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        if not self.durable:
            pytest.skip("this store keeps nothing beyond close")
        store = await self.open_store(tmp_path, clock)
        await store.begin(an_operation(query="state:failed", options=b"\x00\xff"), LIST)
        await store.record("op-1", [("a", "sent", "to orders")])
        await store.run_operation("op-1", "r1")
        before = await store.operation("op-1"), await store.items("op-1", limit=10)
        await store.close()
        again = await self.open_store(tmp_path, clock)
        assert (await again.operation("op-1"), await again.items("op-1", limit=10)) == before
        assert await again.remaining("op-1", limit=10) == ["c", "d", "b"]
        await again.close()

    async def test_s34_a_list_keeps_its_order_and_names_each_letter_once(self, store: Store) -> None:
        assert await store.begin(an_operation(), ["c", "a", "c", "d", "b", "a"])
        assert [item.letter_id for item in await store.items("op-1", limit=10)] == LIST
        assert await store.remaining("op-1", limit=10) == LIST
        assert (await store.operation("op-1")).total == 4

    async def test_s34_ids_of_any_text_come_back_as_they_were(self, store: Store) -> None:
        odd = ['quote " and \\', "π🙂", "new\nline", "17", "null", " x ", "[1]", "a\u2028b"]
        await store.begin(an_operation(), odd)
        assert await store.remaining("op-1", limit=10) == odd
        await store.record("op-1", [(letter_id, "sent", letter_id) for letter_id in odd])
        assert [item.detail for item in await store.items("op-1", limit=10)] == odd

    async def test_s34_a_list_of_nothing_is_a_list(self, store: Store) -> None:
        assert await store.begin(an_operation(), [])
        assert (await store.operation("op-1")).total == 0
        assert await store.remaining("op-1", limit=10) == []
        assert await store.items("op-1", limit=10) == []

    async def test_s35_a_new_operation_runs_for_nobody_whatever_its_copy_says(
        self, store: Store, clock: ManualClock
    ) -> None:
        as_begun = an_operation(query="tag:vip", options=b'{"rate": 5}')
        copy = msgspec.structs.replace(
            as_begun, state=DONE, note="said before", total=9, outcomes={"sent": 9}, ended_at=clock.now(),
            ended_by="bob", runner="r9", lease_until=clock.now() + MINUTE,
        )  # fmt: skip
        await store.begin(copy, LIST)
        expected = msgspec.structs.replace(as_begun, total=4, created_at=clock.now())
        assert await store.operation("op-1") == expected
        assert await store.run_operation("op-1", "r1")

    async def test_s36_beginning_again_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        await store.begin(an_operation(), LIST)
        await store.record("op-1", [("a", "sent", "")])
        before = await store.operation("op-1"), await store.items("op-1", limit=10)
        clock.advance(MINUTE)
        assert not await store.begin(an_operation(kind="discard", by="bob"), ["x", "y"])
        assert (await store.operation("op-1"), await store.items("op-1", limit=10)) == before

    async def test_s36_of_many_that_begin_the_same_one_begins(self, store: Store) -> None:
        answers = await asyncio.gather(*(store.begin(an_operation(), [f"l{n}"]) for n in range(20)))
        assert answers.count(True) == 1
        assert await store.remaining("op-1", limit=10) == [f"l{answers.index(True)}"]

    # --- reading -----------------------------------------------------------------------------------------

    async def test_s37_operations_are_listed_the_newest_first(self, store: Store, clock: ManualClock) -> None:
        for number in range(5):
            await store.begin(an_operation(f"op-{number}"), LIST[:number])
        clock.jump(timedelta(hours=-1))  # somebody sets the clock back: the order stays that of beginning
        await store.begin(an_operation("op-5"), LIST)
        await store.record("op-3", [("a", "sent", ""), ("c", "dead", "")])
        listed = await store.operations(limit=4)
        assert [each.id for each in listed] == ["op-5", "op-4", "op-3", "op-2"]
        assert listed == [await store.operation(each.id) for each in listed]
        assert listed[2].outcomes == {"sent": 1, "dead": 1}
        assert len(await store.operations()) == 6

    @pytest.mark.parametrize("unknown", ["op-2", "", "op\x001", "\udc80"], ids=ascii)
    async def test_s37_an_unknown_operation_is_told_by_whatever_verb(
        self, store: Store, unknown: str
    ) -> None:
        await store.begin(an_operation(), LIST)
        verbs: list[Any] = [
            store.operation(unknown), store.remaining(unknown, limit=1), store.items(unknown, limit=1),
            store.record(unknown, []), store.record(unknown, [("a", "sent", "")]),
            store.run_operation(unknown, "r1"), store.end_operation(unknown, DONE, by="ann"),
        ]  # fmt: skip
        for verb in verbs:
            with pytest.raises(OperationNotFoundError, match="no operation has the id"):
                await verb

    async def test_s38_what_remains_is_in_the_order_of_the_list(self, store: Store) -> None:
        await store.begin(an_operation(), LIST)
        await store.begin(an_operation("op-2"), ["b", "a"])
        await store.record("op-1", [("d", "sent", ""), ("c", "sent", "")])
        assert await store.remaining("op-1", limit=10) == ["a", "b"]
        assert await store.remaining("op-1", limit=1) == ["a"]
        assert await store.remaining("op-2", limit=10) == ["b", "a"]

    async def test_s38_items_are_paged_by_position(self, store: Store, clock: ManualClock) -> None:
        await store.begin(an_operation(), LIST)
        clock.advance(MINUTE)
        await store.record("op-1", [("a", "sent", "to orders"), ("d", "dead", "")])
        everything = [
            Item("c"),
            Item("a", "sent", "to orders", clock.now()),
            Item("d", "dead", "", clock.now()),
            Item("b"),
        ]
        assert await store.items("op-1", limit=10) == everything
        for after in range(6):
            assert await store.items("op-1", after=after, limit=2) == everything[after : after + 2]

    # --- recording ---------------------------------------------------------------------------------------

    async def test_s39_the_first_outcome_of_a_letter_stands(self, store: Store, clock: ManualClock) -> None:
        await store.begin(an_operation(), LIST)
        await store.record("op-1", [("a", "sent", "first"), ("a", "dead", "second"), ("b", "sent", "")])
        before = await store.items("op-1", limit=10)
        assert before[1] == Item("a", "sent", "first", clock.now())
        clock.advance(MINUTE)
        await store.record("op-1", [("b", "dead", "later"), ("a", "sent", "again")])
        assert await store.items("op-1", limit=10) == before
        assert (await store.operation("op-1")).outcomes == {"sent": 2}

    async def test_s39_counts_agree_with_the_items_whoever_records(self, store: Store) -> None:
        ids = [f"l{n}" for n in range(40)]
        await store.begin(an_operation(), ids)
        await asyncio.gather(
            *(store.record("op-1", [(each, f"by {n % 3}", "") for each in ids[n : n + 5]]) for n in range(35))
        )
        items = await store.items("op-1", limit=100)
        told = [item.outcome for item in items if item.outcome is not None]
        operation = await store.operation("op-1")
        assert operation.outcomes == {outcome: told.count(outcome) for outcome in set(told)}
        assert operation.recorded == len(told) == 39
        assert await store.remaining("op-1", limit=100) == ["l39"]

    @pytest.mark.parametrize("end", ENDS)
    async def test_s39_what_happened_is_recorded_after_the_end_as_well(
        self, store: Store, end: OperationState
    ) -> None:
        await store.begin(an_operation(), LIST)
        await store.end_operation("op-1", end, by="ann")
        await store.record("op-1", [("a", "sent", "")])
        operation = await store.operation("op-1")
        assert (operation.state, operation.outcomes) == (end, {"sent": 1})

    async def test_s40_a_letter_that_is_not_listed_keeps_its_whole_record_out(self, store: Store) -> None:
        await store.add([a_letter()])
        await store.begin(an_operation(), LIST)
        await store.begin(an_operation("op-2"), [a_letter().id])
        with pytest.raises(LetterNotFoundError, match="does not list"):
            await store.record("op-1", [("a", "sent", ""), (a_letter().id, "sent", "")])
        assert await store.remaining("op-1", limit=10) == LIST
        assert (await store.operation("op-1")).outcomes == {}

    # --- running and ending ------------------------------------------------------------------------------

    async def test_s41_one_runner_has_an_operation_until_its_lease_ends(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.begin(an_operation(), LIST)
        assert await store.run_operation("op-1", "r1", lease=MINUTE)
        held = await store.operation("op-1")
        assert (held.runner, held.lease_until) == ("r1", clock.now() + MINUTE)
        assert not await store.run_operation("op-1", "r2", lease=MINUTE)
        assert await store.operation("op-1") == held
        clock.advance(MINUTE - timedelta(microseconds=1))
        assert not await store.run_operation("op-1", "r2", lease=MINUTE)
        clock.advance(timedelta(microseconds=1))
        assert await store.run_operation("op-1", "r2", lease=MINUTE)
        assert not await store.run_operation("op-1", "r1", lease=MINUTE)
        assert (await store.operation("op-1")).runner == "r2"

    async def test_s41_a_runner_that_has_ended_is_replaced_at_once(self, store: Store) -> None:
        await store.begin(an_operation(), LIST)
        assert await store.run_operation("op-1", "r1", lease=MINUTE)
        assert not await store.run_operation("op-1", "r3", lease=MINUTE, replaces="r2")
        assert await store.run_operation("op-1", "r2", lease=MINUTE, replaces="r1")
        assert (await store.operation("op-1")).runner == "r2"
        assert not await store.run_operation("op-1", "r3", lease=MINUTE, replaces="r1")
        assert not await store.run_operation("op-1", "r1", lease=MINUTE, resume=False)

    async def test_s41_asking_again_moves_the_end_of_the_lease(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.begin(an_operation(), LIST)
        for _ in range(3):
            assert await store.run_operation("op-1", "r1", lease=MINUTE)
            clock.advance(MINUTE / 2)
        assert not await store.run_operation("op-1", "r2", lease=MINUTE)
        assert (await store.operation("op-1")).lease_until == clock.now() + MINUTE / 2

    async def test_s41_of_many_runners_at_once_one_has_it(self, store: Store) -> None:
        await store.begin(an_operation(), LIST)
        answers = await asyncio.gather(*(store.run_operation("op-1", f"r{n}") for n in range(20)))
        assert answers.count(True) == 1
        assert (await store.operation("op-1")).runner == f"r{answers.index(True)}"

    async def test_s42_a_stopped_operation_runs_again_for_whoever_asks(self, store: Store) -> None:
        await store.begin(an_operation(), LIST)
        await store.run_operation("op-1", "r1")
        await store.record("op-1", [("c", "dead", "")])
        await store.end_operation("op-1", STOPPED, by="r1", note="1 of 1 died again")
        assert await store.run_operation("op-1", "r2")
        again = await store.operation("op-1")
        assert (again.state, again.note, again.ended_at, again.ended_by) == (RUNNING, "", None, None)
        assert again.runner == "r2"
        assert await store.remaining("op-1", limit=10) == ["a", "d", "b"]

    async def test_s42_what_a_person_stopped_stays_stopped_for_a_runner_that_does_not_resume(
        self, store: Store
    ) -> None:
        await store.begin(an_operation(), LIST)
        assert await store.run_operation("op-1", "r1", resume=False)
        await store.end_operation("op-1", STOPPED, by="ann", note="lunch")
        stopped = await store.operation("op-1")
        assert not await store.run_operation("op-1", "r1", resume=False)
        assert await store.operation("op-1") == stopped

    @pytest.mark.parametrize("end", ENDS)
    async def test_s43_an_end_is_kept_with_its_actor_and_note(
        self, store: Store, clock: ManualClock, end: OperationState
    ) -> None:
        await store.begin(an_operation(), LIST)
        await store.run_operation("op-1", "r1")
        clock.advance(MINUTE)
        assert await store.end_operation("op-1", end, by="bob", note="enough")
        ended = await store.operation("op-1")
        assert (ended.state, ended.by, ended.ended_by, ended.note) == (end, "ann", "bob", "enough")
        assert ended.ended_at == clock.now()
        assert (ended.runner, ended.lease_until) == (None, None)

    @pytest.mark.parametrize("end", [DONE, CANCELLED])
    async def test_s43_done_and_cancelled_are_for_good(
        self, store: Store, clock: ManualClock, end: OperationState
    ) -> None:
        await store.begin(an_operation(), LIST)
        await store.end_operation("op-1", end, by="ann", note="first")
        before = await store.operation("op-1")
        clock.advance(MINUTE)
        assert not await store.run_operation("op-1", "r1")
        for other in ENDS:
            assert not await store.end_operation("op-1", other, by="bob", note="second")
        assert await store.operation("op-1") == before

    async def test_s43_a_stopped_operation_can_be_ended(self, store: Store) -> None:
        await store.begin(an_operation(), LIST)
        assert await store.end_operation("op-1", STOPPED, by="ann", note="first")
        assert await store.end_operation("op-1", STOPPED, by="bob", note="second")
        assert await store.end_operation("op-1", CANCELLED, by="eve", note="third")
        ended = await store.operation("op-1")
        assert (ended.state, ended.ended_by, ended.note) == (CANCELLED, "eve", "third")

    async def test_s44_an_operation_outlives_its_letters(self, store: Store) -> None:
        lot = letters(3)
        await store.add(lot)
        await store.begin(an_operation(), [letter.id for letter in lot])
        await store.record("op-1", [(lot[0].id, "sent", "")])
        before = await store.operation("op-1"), await store.items("op-1", limit=10)
        held = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Resolve()) for head in held])
        await store.apply(Delete(), [letter.id for letter in lot], by="retention")
        assert (await store.operation("op-1"), await store.items("op-1", limit=10)) == before
        await store.record("op-1", [(lot[1].id, "missing", "deleted meanwhile")])
        assert await store.remaining("op-1", limit=10) == [lot[2].id]

    # --- groups ------------------------------------------------------------------------------------------

    async def test_s45_groups_are_the_largest_first_with_all_that_is_asked(
        self, store: Store, clock: ManualClock
    ) -> None:
        # Given two causes, of which one failed in two queues and with two texts
        def died(key: str, text: str, hour: int, **fields: Any) -> str:
            failure = a_failure(text, error_type="PaymentError", at=datetime(2026, 1, 1, hour, tzinfo=UTC))
            letter = a_letter(key, failure=failure, **fields)
            lot.append(letter)
            return letter.id

        lot: list[DeadLetter] = []
        early = datetime(2025, 12, 24, tzinfo=UTC)
        first = died("a", "order 17 declined", 5, source="payments")
        died("b", "order 18 declined", 9, source="orders", first_failed_at=early)
        died("c", "order 19 declined", 7, source="payments")
        died("d", "host not found", 8)
        await store.add(lot)
        # When one of the first is resolved
        [head] = await store.take([first], "w")
        await store.settle([Settlement(head.claim_token, Resolve())])
        large, small = await store.groups()
        # Then the larger group comes first and tells of all its letters, with the words of the last.
        assert (large.group, large.count) == (lot[0].group, 3)
        assert (large.error_type, large.error_text) == ("PaymentError", "order 19 declined")
        assert large.sources == ("orders", "payments")
        assert (large.first_seen, large.last_seen) == (early, datetime(2026, 1, 1, 9, tzinfo=UTC))
        assert large.states == {LetterState.PENDING: 2, LetterState.RESOLVED: 1}
        assert (small.group, small.count, small.states) == (lot[3].group, 1, {LetterState.PENDING: 1})
        assert await store.groups(limit=1) == [large]

    async def test_s45_groups_of_one_size_are_in_order_of_their_names(self, store: Store) -> None:
        words = ["declined", "refused", "not found", "too late", "unreadable"]
        await store.add([a_letter(word, failure=a_failure(word)) for word in words])
        names = [group.group for group in await store.groups()]
        assert len(names) == 5
        assert names == sorted(names)
        assert [group.group for group in await store.groups(limit=2)] == names[:2]

    @pytest.mark.parametrize(
        "text",
        [
            "", "state:pending", "-state:pending", "source:ord*", "tag:vip", "-tag:vip", "priority>=2", "declined",
            "source:orders,payments declined", "error:ValueError", "sort:-size", "source:nowhere",
            "created<2026-02-11T12:05:00Z",
        ],
    )  # fmt: skip
    async def test_s45_groups_agree_with_tally(self, store: Store, clock: ManualClock, text: str) -> None:
        everything = await self.a_mixed_lot(store, clock)
        query = parse_query(text, now=clock.now())
        groups = await store.groups(query)
        assert {group.group: group.count for group in groups} == await store.tally("group", query)
        for group in groups:
            its = [head for head in everything if head.group == group.group and query.matches(head)]
            newest = max(its, key=lambda head: head.created_at)
            assert (group.error_type, group.error_text) == (newest.error_type, newest.error_text)
            assert sum(group.states.values()) == group.count
            assert group.states == {
                state: [h.state for h in its].count(state) for state in {h.state for h in its}
            }
            assert group.sources == tuple(sorted({head.source for head in its}))
            assert group.first_seen == min(head.first_failed_at for head in its)
            assert group.last_seen == max(head.last_failed_at for head in its)

    async def test_s45_a_letter_that_fails_for_another_cause_changes_its_group(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("w", broker=BROKER)
        other = a_failure("no such customer", error_type="LookupError", at=clock.now())
        await store.settle([Settlement(head.claim_token, Fail(failure=other))])
        [group] = await store.groups()
        assert (group.error_type, group.error_text) == ("LookupError", "no such customer")
        assert group.group == other.fingerprint
        assert (group.last_seen, group.states) == (clock.now(), {LetterState.FAILED: 1})

    async def test_s45_an_empty_store_has_no_groups(self, store: Store) -> None:
        assert await store.groups(EVERYTHING) == []

    # --- what is refused ---------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("operation", "ids"),
        [
            (an_operation(""), LIST), (an_operation(kind=" "), LIST), (an_operation(by=""), LIST),
            (an_operation("\udc80"), LIST), (an_operation(query="a\x00"), LIST), (an_operation(), ["a", ""]),
            (an_operation(), ["a\x00"]), (an_operation(), ["\udc80"]), (an_operation(), ["x" * 70_000]),
            (an_operation(options=bytes(LARGEST_OPTIONS + 1)), LIST), (an_operation(), ["a"] * 1_000_001),
        ],
        ids=[
            "no id", "no kind", "no actor", "surrogate", "NUL", "empty letter", "letter with NUL",
            "letter with surrogate", "long letter", "large options", "long list",
        ],
    )  # fmt: skip
    async def test_s33_operations_that_cannot_be_stored_are_refused(
        self, store: Store, operation: Operation, ids: list[str]
    ) -> None:
        with pytest.raises(SettingsError) as caught:
            await store.begin(operation, ids)
        assert "\n" not in str(caught.value)
        assert await store.operations() == []

    async def test_s33_what_is_said_about_an_operation_is_checked(self, store: Store) -> None:
        await store.begin(an_operation(), LIST)
        before = await store.operation("op-1"), await store.items("op-1", limit=10)
        verbs: list[Any] = [
            store.record("op-1", [("a", "sent", ""), ("b", "", "")]), store.record("op-1", [("a", "x", "\x00")]),
            store.record("op-1", [("", "sent", "")]), store.record("op-1", [("a", "\udc80", "")]),
            store.run_operation("op-1", ""), store.run_operation("op-1", "r", lease=timedelta(0)),
            store.run_operation("op-1", "r", lease=timedelta(days=31)),
            store.end_operation("op-1", RUNNING, by="ann"), store.end_operation("op-1", DONE, by=""),
            store.end_operation("op-1", DONE, by="ann", note="\x00"),
            store.remaining("op-1", limit=0), store.remaining("op-1", limit=10_001),
            store.items("op-1", limit=0), store.items("op-1", after=-1, limit=1),
            store.items("op-1", after=2**63, limit=1), store.operations(limit=0), store.operations(limit=1001),
            store.groups(limit=0), store.groups(limit=1001),
        ]  # fmt: skip
        for verb in verbs:
            with pytest.raises(SettingsError) as caught:
                await verb
            assert "\n" not in str(caught.value)
        assert (await store.operation("op-1"), await store.items("op-1", limit=10)) == before
