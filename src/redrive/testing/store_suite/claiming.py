"""S6 to S13: claiming."""

import asyncio
from datetime import timedelta

import pytest

from redrive.letters import (
    ClaimToken,
    DeadLetter,
    LetterHead,
    LetterState,
)
from redrive.stores.base import Store
from redrive.stores.changes import (
    Resolve,
    Settlement,
    Unclaim,
)
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, a_letter, letters
from redrive.testing.store_suite.ground import MINUTE, Ground


class Claiming(Ground):
    """S6 to S13: claiming."""

    async def test_s06_the_order_of_claims_is_priority_then_age(
        self, store: Store, clock: ManualClock
    ) -> None:
        for key, priority in [("old", 0), ("older-urgent", 5), ("new", 0), ("urgent", 5), ("least", -1)]:
            await store.add([a_letter(key, priority=priority)])
            clock.advance(MINUTE)
        claimed = [
            head.correlation_id for _ in range(5) for head in await store.claim("w", broker=BROKER, limit=1)
        ]
        assert claimed == ["trace-older-urgent", "trace-urgent", "trace-old", "trace-new", "trace-least"]

    async def test_s06_a_batch_is_in_the_same_order(self, store: Store) -> None:
        await store.add([a_letter(f"k{n}", priority=n % 3) for n in range(30)])
        heads = await store.claim("w", broker=BROKER, limit=20)
        assert [head.priority for head in heads] == [2] * 10 + [1] * 10
        assert heads == sorted(heads, key=lambda head: (-head.priority, head.created_at))

    async def test_s06_what_is_not_due_is_not_claimed(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter(retry_in=timedelta(hours=1) + MINUTE)])  # it failed an hour ago
        assert await store.claim("w", broker=BROKER) == []
        clock.advance(MINUTE - timedelta(microseconds=1))
        assert await store.claim("w", broker=BROKER) == []
        clock.advance(timedelta(microseconds=1))
        assert len(await store.claim("w", broker=BROKER)) == 1

    async def test_s06_what_fell_due_later_takes_its_place_by_priority_and_age(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter("waiting", retry_in=timedelta(hours=2))])
        await store.add([a_letter("due")])
        clock.advance(timedelta(hours=2))
        assert [h.correlation_id for h in await store.claim("w", broker=BROKER)] == [
            "trace-waiting",
            "trace-due",
        ]

    async def test_s06_nothing_is_claimed_where_nothing_is(self, store: Store) -> None:
        assert await store.claim("w", broker=BROKER) == []

    async def test_s06_claim_gives_letters_of_its_broker_only(self, store: Store) -> None:
        lot = [
            a_letter(f"k{n}", broker=["shop", "events", "shop-eu"][n % 3], priority=n % 2) for n in range(30)
        ]
        await store.add(lot)
        heads = await store.claim("w", broker="shop", limit=100)
        assert {head.id for head in heads} == {letter.id for letter in lot if letter.broker == "shop"}
        assert heads == sorted(heads, key=lambda head: (-head.priority, head.created_at))
        assert await store.claim("w", broker="shop") == []
        assert await store.claim("w", broker="sho") == []
        assert len(await store.claim("w", broker="events", limit=3)) == 3

    async def test_s06_letters_fall_due_for_each_broker(self, store: Store, clock: ManualClock) -> None:
        await store.add(
            [a_letter(name, broker=name, retry_in=timedelta(hours=2)) for name in ("shop", "events")]
        )
        clock.advance(timedelta(hours=2))
        assert [head.broker for head in await store.claim("w", broker="events")] == ["events"]
        assert [head.broker for head in await store.claim("w", broker="shop")] == ["shop"]

    async def test_s07_two_workers_never_hold_the_same_letter(self, store: Store) -> None:
        await store.add(letters(100))
        claims = await asyncio.gather(*(store.claim(f"w{n}", broker=BROKER, limit=7) for n in range(20)))
        claimed = [head.id for heads in claims for head in heads]
        assert len(claimed) == len(set(claimed)) == 100

    async def test_s08_the_fence_only_grows(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter()])
        fences = []
        for _ in range(5):
            [head] = await store.claim("w", broker=BROKER)
            fences.append(head.fence)
            await store.settle([Settlement(head.claim_token, Unclaim())])
        [head] = await store.claim("w", broker=BROKER, lease=MINUTE)
        clock.advance(MINUTE)
        await store.rescue(retry_in=timedelta(0))
        [again] = await store.claim("w", broker=BROKER)
        assert [*fences, head.fence, again.fence] == [1, 2, 3, 4, 5, 6, 7]

    async def test_s09_a_claimed_letter_says_who_holds_it_and_until_when(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("worker_node_2", broker=BROKER, lease=timedelta(minutes=5))
        assert (head.state, head.locked_by, head.locked_at) == (
            LetterState.PROCESSING,
            "worker_node_2",
            clock.now(),
        )
        assert head.lease_until == clock.now() + timedelta(minutes=5)
        [letter] = await store.load([head.id])
        assert _head(letter) == head

    async def test_s10_chosen_letters_can_be_taken_due_or_not(self, store: Store) -> None:
        await store.add([a_letter("a"), a_letter("b", retry_in=timedelta(days=9)), a_letter("c")])
        wanted = [a_letter("b").id, "no such letter", a_letter("a").id, a_letter("b").id]
        taken = await store.take(wanted, "w")
        assert [head.correlation_id for head in taken] == ["trace-b", "trace-a"]
        assert {head.state for head in taken} == {LetterState.PROCESSING}

    async def test_s10_manual_letters_can_be_taken(self, store: Store) -> None:
        letter = await self.parked(store)
        [head] = await store.take([letter.id], "person")
        assert (head.state, head.fence, head.locked_by) == (LetterState.PROCESSING, 2, "person")

    async def test_s10_letters_in_any_other_state_are_left_out(self, store: Store) -> None:
        everywhere = await self.one_in_each_state(store)
        ids = [everywhere[state] for state in LetterState]
        taken = await store.take(ids, "w")
        assert {head.id for head in taken} == {
            everywhere[LetterState.PENDING],
            everywhere[LetterState.MANUAL],
        }

    async def test_s10_take_leaves_out_letters_of_other_brokers(self, store: Store) -> None:
        lot = [a_letter(name, broker=name) for name in ("shop", "events", "mail")]
        await store.add(lot)
        ids = [letter.id for letter in lot]
        assert await store.take(ids, "w", brokers=[]) == []
        taken = await store.take(ids, "w", brokers=["mail", "shop", "other"])
        assert [head.broker for head in taken] == ["shop", "mail"]
        assert [head.broker for head in await store.take(ids, "w", brokers=None)] == ["events"]

    @pytest.mark.parametrize("passed", [MINUTE / 2, MINUTE * 2], ids=["lease runs", "lease expired"])
    async def test_s10_reclaim_claims_unsent_letters_of_the_same_worker_again(
        self, store: Store, clock: ManualClock, passed: timedelta
    ) -> None:
        # Given letters of one worker, one of them sent, and a letter of another worker
        await store.add(letters(4))
        ids = [head.id for head in (await store.page()).heads]
        own = await store.take(ids[:2], "w", lease=MINUTE)
        sent = await store.take(ids[2:3], "w", lease=MINUTE)
        await store.extend([head.claim_token for head in sent], lease=MINUTE, sent=True)
        await store.take(ids[3:], "other", lease=MINUTE)
        clock.advance(passed)
        # When the worker takes all of them, without and with `reclaim`
        assert await store.take(ids, "w", lease=MINUTE) == []
        again = await store.take(ids, "w", lease=MINUTE, reclaim=True)
        # Then it has its own that were not sent, under a new fence, and no redrive is counted
        assert [(head.id, head.fence) for head in again] == [(head.id, head.fence + 1) for head in own]
        assert {(head.state, head.locked_by, head.dlq_retry_count) for head in again} == {
            (LetterState.PROCESSING, "w", 0)
        }
        assert {head.lease_until for head in again} == {clock.now() + MINUTE}
        # And the claims of before are over
        assert await store.extend([head.claim_token for head in own], lease=MINUTE) == [False, False]
        assert await store.extend([head.claim_token for head in again], lease=MINUTE, sent=True) == [
            True,
            True,
        ]

    async def test_s10_a_reclaim_is_a_release_and_a_claim_in_the_change_log(self, store: Store) -> None:
        await store.add([a_letter()])
        await store.take([a_letter().id], "w", lease=MINUTE)
        await store.take([a_letter().id], "w", lease=MINUTE, reclaim=True)
        steps = [(line.action, line.before, line.after) for line in await store.journal()]
        claim = ("claim", LetterState.PENDING, LetterState.PROCESSING)
        assert steps == [claim, ("release", LetterState.PROCESSING, LetterState.PENDING), claim]

    async def test_s11_a_running_lease_can_be_extended(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("w", broker=BROKER, lease=MINUTE)
        clock.advance(MINUTE / 2)
        assert await store.extend([head.claim_token], lease=MINUTE) == [True]
        clock.advance(MINUTE * 3 / 4)
        assert await store.rescue(retry_in=timedelta(0)) == []
        assert await store.settle([Settlement(head.claim_token, Resolve())]) == [True]

    async def test_s11_a_lost_lease_cannot_be_extended(self, store: Store, clock: ManualClock) -> None:
        await store.add(letters(2))
        one, two = await store.claim("w", broker=BROKER, lease=MINUTE)
        await store.settle([Settlement(one.claim_token, Unclaim())])
        holds = [
            one.claim_token,
            two.claim_token,
            ClaimToken("no such letter", 1),
            ClaimToken(two.id, two.fence + 1),
        ]
        assert await store.extend(holds, lease=MINUTE) == [False, True, False, False]
        clock.advance(MINUTE)
        assert await store.extend([two.claim_token], lease=MINUTE) == [False]

    async def test_s12_a_letter_that_was_sent_says_so(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("w", broker=BROKER)
        sent_at = clock.now()
        assert await store.extend([head.claim_token], lease=timedelta(hours=1), sent=True) == [True]
        clock.advance(MINUTE)
        assert await store.extend([head.claim_token], lease=timedelta(hours=1), sent=True) == [True]
        [letter] = await store.load([head.id])
        assert (letter.sent_at, letter.state) == (sent_at, LetterState.PROCESSING)
        assert letter.lease_until == clock.now() + timedelta(hours=1)

    async def test_s13_a_crowd_that_falls_due_at_once_is_let_in_whole(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter(f"k{n}", retry_in=timedelta(hours=2), priority=n % 2) for n in range(500)])
        clock.advance(timedelta(hours=2))
        heads = await store.claim("w", broker=BROKER, limit=300)
        assert [head.priority for head in heads] == [1] * 250 + [0] * 50


def _head(letter: DeadLetter) -> LetterHead:
    return LetterHead(**{name: getattr(letter, name) for name in LetterHead.__struct_fields__})
