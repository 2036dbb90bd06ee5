"""S14 to S21, S49 and S50: settling, rescuing and waiting for verdicts."""

from datetime import timedelta

import pytest

from redrive.letters import (
    ClaimToken,
    FailureKind,
    LetterHead,
    LetterState,
)
from redrive.stores.base import Store
from redrive.stores.changes import (
    Fail,
    Outcome,
    Park,
    Resolve,
    Retry,
    Settlement,
    Unclaim,
)
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, a_failure, a_letter, letters
from redrive.testing.store_suite.ground import MINUTE, Ground


class Settling(Ground):
    """S14 to S21, S49 and S50: settling, rescuing and waiting for verdicts."""

    async def test_s14_each_outcome_leads_to_its_state(self, store: Store, clock: ManualClock) -> None:
        outcomes: list[tuple[Outcome, LetterState]] = [
            (Resolve(), LetterState.RESOLVED), (Retry(at=clock.now()), LetterState.PENDING),
            (Fail(), LetterState.FAILED), (Park(), LetterState.MANUAL), (Unclaim(), LetterState.PENDING),
        ]  # fmt: skip
        await store.add(letters(len(outcomes)))
        heads = await store.claim("w", broker=BROKER)
        settlements = [
            Settlement(h.claim_token, outcome) for h, (outcome, _) in zip(heads, outcomes, strict=True)
        ]
        assert await store.settle(settlements) == [True] * len(outcomes)
        states = [letter.state for letter in await store.load([head.id for head in heads])]
        assert states == [state for _, state in outcomes]

    async def test_s15_a_worker_whose_lease_ended_can_finish_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("slow", broker=BROKER, lease=MINUTE)
        clock.advance(MINUTE)
        before = await store.load([head.id])
        assert await store.settle([Settlement(head.claim_token, Resolve())]) == [False]
        assert await store.load([head.id]) == before

    async def test_s15_a_worker_that_was_overtaken_can_finish_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        [old] = await store.claim("slow", broker=BROKER, lease=MINUTE)
        clock.advance(MINUTE)
        await store.rescue(retry_in=timedelta(0))
        [new] = await store.claim("quick", broker=BROKER)
        for outcome in (Resolve(), Retry(at=clock.now()), Fail(), Park(), Unclaim()):
            assert await store.settle([Settlement(old.claim_token, outcome)]) == [False]
        assert await store.settle([Settlement(new.claim_token, Resolve())]) == [True]

    async def test_s15_nothing_can_be_finished_twice(self, store: Store) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("w", broker=BROKER)
        both = [Settlement(head.claim_token, Resolve()), Settlement(head.claim_token, Fail())]
        assert await store.settle(both) == [True, False]
        assert await store.settle(both) == [False, False]
        [letter] = await store.load([head.id])
        assert (letter.state, letter.dlq_retry_count) == (LetterState.RESOLVED, 1)

    async def test_s15_nothing_can_be_finished_without_a_claim(self, store: Store) -> None:
        await store.add([a_letter()])
        unclaimed = [
            ClaimToken(a_letter().id, 0),
            ClaimToken(a_letter().id, 1),
            ClaimToken("no such letter", 1),
        ]
        assert await store.settle([Settlement(hold, Resolve()) for hold in unclaimed]) == [False] * 3

    @pytest.mark.parametrize("renewed", [False, True])
    async def test_s14_a_letter_that_was_sent_is_settled_after_its_lease(
        self,
        store: Store,
        clock: ManualClock,
        renewed: bool,  # noqa: FBT001
    ) -> None:
        outcomes: list[tuple[Outcome, LetterState]] = [
            (Resolve(), LetterState.RESOLVED), (Retry(at=clock.now()), LetterState.PENDING),
            (Fail(), LetterState.FAILED), (Park(), LetterState.MANUAL), (Unclaim(), LetterState.PENDING),
        ]  # fmt: skip
        await store.add(letters(len(outcomes)))
        heads = await store.claim("w", broker=BROKER)
        await store.extend([head.claim_token for head in heads], lease=MINUTE, sent=True)
        clock.advance(MINUTE)
        if renewed:
            await store.overdue(broker=BROKER, lease=MINUTE)
            clock.advance(MINUTE)
        assert await store.extend([heads[0].claim_token], lease=MINUTE) == [False]
        settlements = [
            Settlement(h.claim_token, outcome) for h, (outcome, _) in zip(heads, outcomes, strict=True)
        ]
        assert await store.settle(settlements) == [True] * len(outcomes)
        found = await store.load([head.id for head in heads])
        assert [letter.state for letter in found] == [state for _, state in outcomes]
        assert await store.settle(settlements) == [False] * len(outcomes)

    async def test_s15_a_sent_letter_that_was_claimed_again_keeps_the_new_claim(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        [old] = await store.claim("slow", broker=BROKER)
        await store.extend([old.claim_token], lease=MINUTE, sent=True)
        clock.advance(MINUTE)
        assert await store.settle([Settlement(old.claim_token, Retry(at=clock.now()))]) == [True]
        [new] = await store.claim("quick", broker=BROKER)
        assert await store.settle([Settlement(old.claim_token, Resolve())]) == [False]
        assert await store.settle([Settlement(new.claim_token, Resolve())]) == [True]

    async def test_s16_attempt_has_the_strategy_of_the_letter(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter(strategy="immediate")])
        [head] = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Retry(at=clock.now(), strategy="scheduled"))])
        [head] = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Resolve())])
        [letter] = await store.load([head.id])
        assert [attempt.strategy for attempt in letter.attempts] == ["immediate", "scheduled"]

    async def test_s16_redrives_are_counted_and_kept(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter()])
        for number in (1, 2):
            [head] = await store.claim(f"w{number}", broker=BROKER)
            clock.advance(MINUTE)
            retry = Retry(at=clock.now(), strategy="immediate", detail=f"failure {number}")
            await store.settle([Settlement(head.claim_token, retry)])
        [head] = await store.claim("w3", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Resolve(presumed=True, strategy="manual"))])
        [letter] = await store.load([head.id])
        assert letter.dlq_retry_count == 3
        assert [(a.number, a.worker, a.strategy, a.result, a.fence, a.detail) for a in letter.attempts] == [
            (1, "w1", "immediate", "failed", 1, "failure 1"),
            (2, "w2", "immediate", "failed", 2, "failure 2"),
            (3, "w3", "manual", "presumed", 3, ""),
        ]
        assert letter.attempts[0].ended_at - letter.attempts[0].started_at == MINUTE
        assert letter.presumed

    async def test_s16_the_result_of_a_retry_is_kept_with_its_attempt(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add(letters(2))
        one, two = await store.claim("w", broker=BROKER)
        await store.settle(
            [
                Settlement(one.claim_token, Retry(at=clock.now(), result="unconfirmed", detail="no verdict")),
                Settlement(two.claim_token, Retry(at=clock.now())),
            ]
        )
        found = await store.load([one.id, two.id])
        assert [attempt.result for letter in found for attempt in letter.attempts] == [
            "unconfirmed",
            "failed",
        ]
        assert [letter.dlq_retry_count for letter in found] == [1, 1]

    async def test_s16_parking_and_releasing_are_not_redrives(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Unclaim(at=clock.now() + MINUTE))])
        assert await store.claim("w", broker=BROKER) == []
        clock.advance(MINUTE)
        [head] = await store.claim("w", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Park())])
        [letter] = await store.load([head.id])
        assert (letter.dlq_retry_count, letter.attempts) == (0, ())

    async def test_s17_a_new_failure_replaces_the_old_one_and_leaves_the_message(
        self, store: Store, clock: ManualClock
    ) -> None:
        original = a_letter()
        await store.add([original])
        failure = a_failure(
            "no such customer",
            error_type="LookupError",
            kind=FailureKind.NOT_FOUND,
            at=clock.now(),
            stack="at x",
        )
        for outcome in (
            Retry(at=clock.now(), failure=failure),
            Park(failure=failure),
            Fail(failure=failure),
        ):
            [head] = await store.take([original.id], "w")
            await store.settle([Settlement(head.claim_token, outcome)])
            [letter] = await store.load([original.id])
            assert letter.failure == failure
            assert (letter.error_type, letter.error_text, letter.kind) == (
                "LookupError",
                failure.text,
                FailureKind.NOT_FOUND,
            )
            assert (letter.group, letter.last_failed_at) == (failure.fingerprint, clock.now())
            assert (letter.message, letter.first_failed_at) == (original.message, original.first_failed_at)

    async def test_s18_a_settled_letter_is_held_by_nobody(self, store: Store, clock: ManualClock) -> None:
        await store.add(letters(4))
        heads = await store.claim("w", broker=BROKER)
        await store.extend([head.claim_token for head in heads], sent=True)
        outcomes: list[Outcome] = [Resolve(), Retry(at=clock.now()), Fail(), Park()]
        await store.settle([Settlement(h.claim_token, o) for h, o in zip(heads, outcomes, strict=True)])
        for letter in await store.load([head.id for head in heads]):
            assert (letter.locked_by, letter.locked_at, letter.lease_until, letter.sent_at) == (None,) * 4

    async def test_s18_a_settled_letter_is_no_longer_unconfirmed(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add(letters(5))
        heads = await self.unconfirmed(store, clock)
        outcomes: list[Outcome] = [Resolve(), Retry(at=clock.now()), Fail(), Park(), Unclaim()]
        await store.settle([Settlement(h.claim_token, o) for h, o in zip(heads, outcomes, strict=True)])
        assert not any(letter.unconfirmed for letter in await store.load([head.id for head in heads]))

    async def test_s19_a_crash_counts_as_a_redrive(self, store: Store, clock: ManualClock) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("crashed", broker=BROKER, lease=MINUTE)
        assert await store.rescue(retry_in=MINUTE) == []
        clock.advance(MINUTE)
        [rescued] = await store.rescue(retry_in=MINUTE)
        assert (rescued.id, rescued.worker, rescued.state) == (head.id, "crashed", LetterState.PENDING)
        [letter] = await store.load([head.id])
        assert letter.dlq_retry_count == 1
        assert [(a.worker, a.result, a.fence) for a in letter.attempts] == [("crashed", "crashed", 1)]

    async def test_s20_a_rescued_letter_waits_and_can_be_claimed_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        await store.claim("crashed", broker=BROKER, lease=MINUTE)
        clock.advance(MINUTE)
        await store.rescue(retry_in=MINUTE)
        assert await store.claim("w", broker=BROKER) == []
        clock.advance(MINUTE)
        assert [head.fence for head in await store.claim("w", broker=BROKER)] == [2]

    async def test_s20_a_letter_that_keeps_killing_workers_ends_as_failed(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        states = []
        for _ in range(5):
            assert len(await store.claim("doomed", broker=BROKER, lease=MINUTE)) == 1
            clock.advance(MINUTE)
            [rescued] = await store.rescue(retry_in=timedelta(0), max_redrives=5)
            states.append(rescued.state)
        assert states == [LetterState.PENDING] * 4 + [LetterState.FAILED]
        [letter] = await store.load([a_letter().id])
        assert (letter.dlq_retry_count, len(letter.attempts)) == (5, 5)
        assert await store.claim("w", broker=BROKER) == []

    async def test_s20_a_rescue_takes_no_more_than_its_limit_oldest_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add(letters(3))
        for lease in (3, 1, 2):
            await store.claim(f"lease-{lease}", broker=BROKER, limit=1, lease=MINUTE * lease)
        clock.advance(MINUTE * 3)
        workers = [r.worker for _ in range(2) for r in await store.rescue(retry_in=MINUTE, limit=2)]
        assert workers == ["lease-1", "lease-2", "lease-3"]

    async def test_s21_a_letter_without_a_verdict_is_never_presumed_by_the_store(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add(letters(2))
        sent, crashed = await store.claim("w", broker=BROKER, lease=MINUTE)
        await store.extend([sent.claim_token], lease=MINUTE, sent=True)
        clock.advance(timedelta(days=3))
        before = await store.load([sent.id])
        assert [one.id for one in await store.rescue(retry_in=MINUTE)] == [crashed.id]
        assert await store.rescue(retry_in=MINUTE) == []
        [letter] = await store.load([sent.id])
        assert [letter] == before
        assert (letter.state, letter.presumed, letter.attempts) == (LetterState.PROCESSING, False, ())

    # --- waiting for verdicts ----------------------------------------------------------------------------

    async def unconfirmed(self, store: Store, clock: ManualClock) -> list[LetterHead]:
        """All due letters, sent, and without a verdict in time."""
        heads = await store.claim("w", broker=BROKER, limit=100)
        await store.extend([head.claim_token for head in heads], lease=MINUTE, sent=True)
        clock.advance(MINUTE)
        return await store.overdue(broker=BROKER, lease=MINUTE)

    async def test_s49_a_sent_letter_without_a_verdict_becomes_unconfirmed(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        [head] = await store.claim("w", broker=BROKER)
        sent_at = clock.now()
        await store.extend([head.claim_token], lease=timedelta(hours=1), sent=True)
        clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
        assert await store.overdue(broker=BROKER, lease=MINUTE) == []
        clock.advance(timedelta(microseconds=1))
        [found] = await store.overdue(broker=BROKER, lease=MINUTE)
        assert (found.state, found.claim_token, found.unconfirmed) == (
            LetterState.PROCESSING,
            head.claim_token,
            True,
        )
        assert (found.locked_by, found.sent_at) == ("w", sent_at)
        assert (found.lease_until, found.updated_at) == (clock.now() + MINUTE, clock.now())
        assert (await store.page()).heads == (found,)
        assert await store.overdue(broker=BROKER, lease=MINUTE) == []
        assert await store.extend([found.claim_token], lease=MINUTE) == [True]

    async def test_s49_overdue_gives_letters_of_its_broker_only(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter(name, broker=name) for name in ("shop", "events")])
        for name in ("shop", "events"):
            [head] = await store.claim("w", broker=name)
            await store.extend([head.claim_token], lease=MINUTE, sent=True)
        clock.advance(MINUTE)
        assert [head.broker for head in await store.overdue(broker="events", lease=MINUTE)] == ["events"]
        assert await store.overdue(broker="other", lease=MINUTE) == []
        assert [head.broker for head in await store.overdue(broker="shop", lease=MINUTE)] == ["shop"]

    async def test_s49_overdue_leaves_letters_that_were_not_sent_to_rescue(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        await store.claim("w", broker=BROKER, lease=MINUTE)
        clock.advance(MINUTE)
        assert await store.overdue(broker=BROKER, lease=MINUTE) == []
        assert len(await store.rescue(retry_in=MINUTE)) == 1

    async def test_s49_overdue_takes_no_more_than_its_limit_oldest_lease_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add(letters(5))
        for lease in (3, 1, 2, 2, 1):
            [head] = await store.claim(f"lease-{lease}", broker=BROKER, limit=1)
            await store.extend([head.claim_token], lease=MINUTE * lease, sent=True)
        clock.advance(MINUTE * 3)
        first = await store.overdue(broker=BROKER, lease=MINUTE, limit=3)
        assert [head.locked_by for head in first] == ["lease-1", "lease-1", "lease-2"]
        assert first[0].id < first[1].id
        rest = await store.overdue(broker=BROKER, lease=MINUTE, limit=3)
        assert [head.locked_by for head in rest] == ["lease-2", "lease-3"]

    async def test_s50_the_change_log_says_once_that_a_letter_is_unconfirmed(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        [head] = await self.unconfirmed(store, clock)
        first = clock.now()
        for _ in range(3):
            clock.advance(MINUTE)
            [again] = await store.overdue(broker=BROKER, lease=MINUTE)
            assert (again.unconfirmed, again.lease_until) == (True, clock.now() + MINUTE)
        lines = [line for line in await store.journal(head.id) if line.action == "unconfirmed"]
        assert [(line.actor, line.before, line.after, line.detail, line.at) for line in lines] == [
            ("rescuer", LetterState.PROCESSING, LetterState.PROCESSING, "", first)
        ]

    async def test_s50_the_change_log_has_a_line_for_each_redrive_without_a_verdict(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add([a_letter()])
        for _ in range(2):
            [head] = await self.unconfirmed(store, clock)
            await store.settle([Settlement(head.claim_token, Retry(at=clock.now(), result="unconfirmed"))])
        actions = [line.action for line in await store.journal(a_letter().id)]
        assert actions == ["claim", "sent", "unconfirmed", "retry"] * 2
