"""S52 to S59: waiting at gates, and trimming the change log."""

from datetime import timedelta

import pytest

from redrive.errors import SettingsError
from redrive.letters import DeadLetter, FailureKind, LetterState, Origin
from redrive.stores.base import Store
from redrive.stores.changes import Delete, Resolve, Schedule, Settlement
from redrive.stores.gates import Gate
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, a_failure, a_letter
from redrive.testing.store_suite.ground import MINUTE, Ground

_ORDERS = Gate(name="breaker:orders", sources=("orders",))
_EVERYTHING = Gate(name="all")


def _of(source: str, key: str, priority: int = 0) -> DeadLetter:
    return a_letter(key, source=source, priority=priority)


class Waiting(Ground):
    """S52 to S59: waiting at gates, and trimming the change log."""

    async def test_s52_letter_that_a_gate_stops_is_not_claimed_and_names_the_gate(self, store: Store) -> None:
        await store.add([_of("orders", "a"), _of("mail", "b")])
        [head] = await store.claim("w", broker=BROKER, gates=[_ORDERS])
        assert head.source == "mail"
        [waiting] = (await store.page()).heads[1:]
        assert (waiting.source, waiting.state, waiting.waits_for) == (
            "orders",
            LetterState.PENDING,
            "breaker:orders",
        )

    @pytest.mark.parametrize(
        "gate",
        [
            Gate(name="g", sources=("orders",), groups=("billing",)),
            Gate(name="g", kinds=("database",)),
            Gate(name="g", strategies=("conditional",)),
            Gate(name="g", sources=("orders", "mail"), kinds=("database",), strategies=("conditional",)),
        ],
        ids=["group", "kind", "strategy", "all of them"],
    )
    async def test_s52_gate_stops_letters_with_all_of_its_values(self, store: Store, gate: Gate) -> None:
        origin = Origin(transport="kafka", source="orders", consumer_group="billing")
        failure = a_failure(kind=FailureKind.DATABASE)
        fields = {"broker": BROKER, "strategy": "conditional"}
        stopped = a_letter("stopped", origin=origin, failure=failure, **fields)
        passes = a_letter("passes", origin=Origin(transport="kafka", source="orders"), broker=BROKER)
        await store.add([stopped, passes])
        assert [head.id for head in await store.claim("w", broker=BROKER, gates=[gate])] == [passes.id]

    async def test_s52_gate_for_the_empty_group_stops_letters_without_a_group(self, store: Store) -> None:
        await store.add([_of("orders", "a")])
        gate = Gate(name="g", sources=("orders",), groups=("",))
        assert await store.claim("w", broker=BROKER, gates=[gate]) == []

    async def test_s52_first_gate_that_stops_a_letter_is_named(self, store: Store) -> None:
        await store.add([_of("orders", "a")])
        gates = [Gate(name="open", passes=5), _ORDERS, _EVERYTHING]
        assert await store.claim("w", broker=BROKER, gates=gates) == []
        assert [head.waits_for for head in (await store.page()).heads] == ["breaker:orders"]

    async def test_s52_letters_behind_a_crowd_that_waits_are_claimed(self, store: Store) -> None:
        await store.add([_of("orders", f"k{n}", priority=1) for n in range(2500)])
        await store.add([_of("mail", "last")])
        heads = await store.claim("w", broker=BROKER, limit=5, gates=[_ORDERS])
        assert [head.source for head in heads] == ["mail"]
        assert await store.tally("waits_for") == {"breaker:orders": 2500}

    async def test_s53_gate_lets_the_first_letters_pass(self, store: Store) -> None:
        await store.add([_of("orders", f"k{n}", priority=n) for n in range(6)])
        gate = Gate(name="breaker:orders", sources=("orders",), passes=2)
        claimed = [await store.claim("w", broker=BROKER, gates=[gate]) for _ in range(3)]
        assert [[head.priority for head in heads] for heads in claimed] == [[5, 4], [3, 2], [1, 0]]

    async def test_s53_passes_are_used_up_only_by_letters_that_pass_every_gate(self, store: Store) -> None:
        await store.add([_of("orders", "a"), _of("mail", "b"), _of("mail", "c")])
        gates = [Gate(name="one", passes=1), _ORDERS]
        [head] = await store.claim("w", broker=BROKER, gates=gates)
        assert head.correlation_id == "trace-b"

    async def test_s54_letters_are_claimed_in_their_order_when_the_gate_is_open(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([_of("orders", "old"), _of("orders", "urgent", priority=5)])
        assert await store.claim("w", broker=BROKER, gates=[_ORDERS]) == []
        clock.advance(MINUTE)
        await store.add([_of("mail", "new"), _of("mail", "newer-urgent", priority=5)])
        heads = await store.claim("w", broker=BROKER)
        assert [head.correlation_id for head in heads] == [
            "trace-urgent",
            "trace-newer-urgent",
            "trace-old",
            "trace-new",
        ]
        assert {head.waits_for for head in heads} == {None}

    async def test_s54_letters_of_several_gates_are_claimed_one_by_one(self, store: Store) -> None:
        await store.add([_of(f"s{n % 5}", f"k{n}") for n in range(40)])
        gates = [Gate(name=f"breaker:s{n}", sources=(f"s{n}",)) for n in range(5)]
        assert await store.claim("w", broker=BROKER, gates=gates) == []
        heads = [head for _ in range(14) for head in await store.claim("w", broker=BROKER, limit=3)]
        assert [head.correlation_id for head in heads] == [f"trace-k{n}" for n in range(40)]

    async def test_s54_gate_of_one_broker_does_not_concern_another(self, store: Store) -> None:
        await store.add([a_letter("a", broker="shop"), a_letter("b", broker="events")])
        assert await store.claim("w", broker="shop", gates=[_EVERYTHING]) == []
        assert len(await store.claim("w", broker="events")) == 1

    async def test_s55_waiting_leaves_no_trace_but_the_name_of_the_gate(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([_of("orders", "a")])
        [before] = (await store.page()).heads
        clock.advance(MINUTE)
        for _ in range(3):
            assert await store.claim("w", broker=BROKER, gates=[_ORDERS]) == []
            clock.advance(MINUTE)
        [after] = (await store.page()).heads
        assert after.waits_for == "breaker:orders"
        fields = [name for name in before.__struct_fields__ if name != "waits_for"]
        assert [getattr(after, name) for name in fields] == [getattr(before, name) for name in fields]
        assert await store.journal() == []

    async def test_s56_letter_that_waits_can_be_taken(self, store: Store) -> None:
        await store.add([_of("orders", "a")])
        await store.claim("w", broker=BROKER, gates=[_ORDERS])
        [head] = await store.take([_of("orders", "a").id], "ann")
        assert (head.state, head.waits_for) == (LetterState.PROCESSING, None)
        assert await store.claim("w", broker=BROKER) == []

    async def test_s56_letter_that_is_scheduled_waits_no_longer(
        self, store: Store, clock: ManualClock
    ) -> None:
        letter = _of("orders", "a")
        await store.add([letter])
        await store.claim("w", broker=BROKER, gates=[_ORDERS])
        await store.apply(Schedule(clock.now() + MINUTE), [letter.id], by="ann")
        assert [head.waits_for for head in (await store.page()).heads] == [None]
        assert await store.claim("w", broker=BROKER) == []
        clock.advance(MINUTE)
        assert len(await store.claim("w", broker=BROKER)) == 1

    @pytest.mark.parametrize(
        "gates",
        [
            [Gate(name="")],
            [Gate(name="x" * 201)],
            [Gate(name="a\nb")],
            [_ORDERS, _ORDERS],
            [Gate(name="a", passes=-1)],
        ],
        ids=["no name", "long name", "control character", "twice", "less than none"],
    )
    async def test_s33_gates_that_cannot_be_are_refused(self, store: Store, gates: list[Gate]) -> None:
        with pytest.raises(SettingsError, match="gate"):
            await store.claim("w", broker=BROKER, gates=gates)

    # --- the change log ----------------------------------------------------------------------------------

    async def test_s57_the_change_log_is_measured_in_steps(self, store: Store) -> None:
        assert (await store.measure_change_log()).bytes == 0
        await store.add([a_letter(f"k{n}") for n in range(5)])
        await store.claim("worker-ä", broker=BROKER)
        whole = await store.measure_change_log()
        line = 100 + len("worker-ä".encode()) + 26 + len("claim") + len("dlq_pending") + len("dlq_processing")
        assert whole.bytes == 5 * line
        first = await store.measure_change_log(limit=2)
        rest = await store.measure_change_log(after=first.last)
        assert (first.bytes, rest.bytes, rest.last) == (2 * line, 3 * line, whole.last)
        end = await store.measure_change_log(after=whole.last)
        assert (end.last, end.bytes) == (whole.last, 0)

    async def test_s58_old_lines_are_deleted_and_those_of_open_letters_stay(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter("open"), a_letter("done"), a_letter("gone")])
        heads = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Resolve()) for head in heads[1:]])
        await store.apply(Delete(), [heads[2].id], by="retention")
        clock.advance(MINUTE)
        trimmed = await store.trim_change_log(before=clock.now())
        assert (trimmed.deleted, trimmed.done) == (5, True)
        assert [line.letter_id for line in await store.journal()] == [heads[0].id]

    async def test_s58_lines_that_are_not_old_stay(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter("a"), a_letter("b")])
        heads = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(heads[0].claim_token, Resolve())])
        clock.advance(MINUTE)
        await store.settle([Settlement(heads[1].claim_token, Resolve())])
        trimmed = await store.trim_change_log(before=clock.now())
        assert (trimmed.deleted, trimmed.done) == (3, True)
        assert [line.action for line in await store.journal()] == ["resolve"]

    async def test_s58_lines_up_to_a_number_are_deleted_in_steps(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter(f"k{n}") for n in range(6)])
        heads = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Resolve()) for head in heads[1:]])
        lines = await store.journal()
        after, deleted = 0, []
        while True:
            trimmed = await store.trim_change_log(
                before=clock.now() - timedelta(days=1), up_to=lines[7].number, after=after, limit=3
            )
            deleted.append(trimmed.deleted)
            after = trimmed.last
            if trimmed.done:
                break
        assert deleted == [2, 3, 2]
        assert await store.journal() == [lines[0], *lines[8:]]

    async def test_s59_numbers_of_deleted_lines_are_not_given_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter("a"), a_letter("b")])
        [first] = await store.claim("w", broker=BROKER, limit=1)
        await store.settle([Settlement(first.claim_token, Resolve())])
        last = (await store.journal())[-1].number
        clock.advance(MINUTE)
        assert (await store.trim_change_log(before=clock.now())).deleted == 2
        await store.claim("w", broker=BROKER)
        assert (await store.journal())[0].number > last
