"""S22 to S25 and S51: changing."""

from datetime import timedelta

import pytest

from redrive.errors import (
    LetterNotFoundError,
    LifecycleError,
)
from redrive.letters import (
    LetterState,
)
from redrive.stores.base import Store
from redrive.stores.changes import (
    Annotate,
    Archive,
    Assign,
    Delete,
    Discard,
    Park,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    SetBroker,
    Settlement,
    Tag,
    Unclaim,
)
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, a_letter, letters
from redrive.testing.store_suite.ground import MINUTE, Ground


class Changing(Ground):
    """S22 to S25 and S51: changing."""

    async def test_s22_a_change_on_many_letters_happens_on_all_or_none(self, store: Store) -> None:
        parked = await self.parked(store)
        pending = a_letter("pending")
        await store.add([pending])
        before = await store.load([parked.id, pending.id])
        with pytest.raises(LifecycleError, match="cannot discard"):
            await store.apply(Discard("junk"), [parked.id, pending.id], by="ann")
        with pytest.raises(LetterNotFoundError, match="no such letter"):
            await store.apply(Assign("ann"), [parked.id, "no such letter"], by="ann")
        assert await store.load([parked.id, pending.id]) == before
        await store.apply(Discard("junk"), [parked.id], by="ann")
        assert (await store.load([parked.id]))[0].state is LetterState.ARCHIVED

    async def test_s22_people_can_assign_tag_prioritise_note_and_schedule(
        self, store: Store, clock: ManualClock
    ) -> None:
        letter = a_letter(tags=("payment",))
        await store.add([letter])
        await store.apply(Assign("ann"), [letter.id], by="bob")
        await store.apply(Tag(add=("vip", "payment", "eu"), remove=("us",)), [letter.id], by="bob")
        await store.apply(Tag(remove=("eu",)), [letter.id], by="bob")
        await store.apply(Prioritise(9), [letter.id], by="bob")
        await store.apply(Annotate("called the bank"), [letter.id], by="bob")
        await store.apply(Schedule(clock.now() + MINUTE), [letter.id], by="bob")
        [now] = await store.load([letter.id])
        assert (now.assignee, now.tags, now.priority) == ("ann", ("payment", "vip"), 9)
        assert [(note.author, note.text, note.at) for note in now.notes] == [
            ("bob", "called the bank", clock.now())
        ]
        assert await store.claim("w", broker=BROKER) == []
        clock.advance(MINUTE)
        assert len(await store.claim("w", broker=BROKER)) == 1

    async def test_s23_only_steps_of_the_lifecycle_happen(self, store: Store, clock: ManualClock) -> None:
        everywhere = await self.one_in_each_state(store)
        legal = {
            Schedule: {LetterState.PENDING}, Discard: {LetterState.MANUAL}, Archive: {LetterState.FAILED},
            Delete: {LetterState.RESOLVED, LetterState.ARCHIVED},
        }  # fmt: skip
        for change in (Schedule(clock.now()), Discard(), Archive(), Delete()):
            for state, letter_id in everywhere.items():
                if state not in legal[type(change)]:
                    with pytest.raises(LifecycleError, match="cannot"):
                        await store.apply(change, [letter_id], by="ann")
                    assert (await store.load([letter_id]))[0].state is state

    async def test_s24_a_deleted_letter_is_gone_and_its_journal_stays(self, store: Store) -> None:
        letter = a_letter(tags=("t",))
        await store.add([letter])
        [head] = await store.claim("w", broker=BROKER)
        await store.apply(Annotate("note"), [letter.id], by="ann")
        await store.settle([Settlement(head.claim_token, Resolve())])
        await store.apply(Delete(), [letter.id], by="retention")
        assert await store.count() == 0
        assert await store.tally("tag") == {}
        with pytest.raises(LetterNotFoundError):
            await store.load([letter.id])
        assert [line.action for line in await store.journal(letter.id)] == [
            "claim",
            "annotate",
            "resolve",
            "delete",
        ]
        assert await store.add([letter]) == [True]
        [back] = await store.load([letter.id])
        assert (back.attempts, back.notes, back.fence) == ((), (), 0)

    async def test_s25_every_change_leaves_a_line_with_its_actor(
        self, store: Store, clock: ManualClock
    ) -> None:
        letter = a_letter()
        await store.add([letter])
        [head] = await store.claim("w1", broker=BROKER)
        await store.settle([Settlement(head.claim_token, Park(detail="unknown error"))])
        [head] = await store.take([letter.id], "ann")
        await store.extend([head.claim_token], sent=True)
        await store.settle([Settlement(head.claim_token, Retry(at=clock.now()))])
        [head] = await store.claim("w2", broker=BROKER, lease=MINUTE)
        clock.advance(MINUTE)
        await store.rescue(retry_in=timedelta(0), max_redrives=2)
        await store.apply(Archive(), [letter.id], by="retention")
        lines = await store.journal(letter.id)
        assert [(line.actor, line.action, line.before, line.after, line.detail) for line in lines] == [
            ("w1", "claim", LetterState.PENDING, LetterState.PROCESSING, ""),
            ("w1", "park", LetterState.PROCESSING, LetterState.MANUAL, "unknown error"),
            ("ann", "replay", LetterState.MANUAL, LetterState.PROCESSING, ""),
            ("ann", "sent", LetterState.PROCESSING, LetterState.PROCESSING, ""),
            ("ann", "retry", LetterState.PROCESSING, LetterState.PENDING, ""),
            ("w2", "claim", LetterState.PENDING, LetterState.PROCESSING, ""),
            ("rescuer", "exhaust", LetterState.PROCESSING, LetterState.FAILED, "crashed"),
            ("retention", "archive", LetterState.FAILED, LetterState.ARCHIVED, ""),
        ]
        assert lines[-1].at == clock.now()

    async def test_s25_the_journal_is_read_in_order_and_in_pieces(self, store: Store) -> None:
        await store.add(letters(3))
        await store.claim("w", broker=BROKER)
        first = await store.journal(limit=2)
        rest = await store.journal(after=first[-1].number)
        assert [line.letter_id for line in [*first, *rest]] == [letter.id for letter in letters(3)]
        assert [line.number for line in [*first, *rest]] == sorted(line.number for line in [*first, *rest])

    async def test_s25_lines_of_one_call_stand_in_the_order_of_its_letters(self, store: Store) -> None:
        await store.add(letters(4))
        holds = [head.claim_token for head in await store.claim("w", broker=BROKER)]
        [one, two, three, four] = holds
        await store.extend([three, one, three, four], sent=True)
        await store.settle([Settlement(hold, Resolve()) for hold in (four, two, one)])
        named = [line.letter_id for line in await store.journal(after=4)]
        assert named == [hold.id for hold in (three, one, four, four, two, one)]

    async def test_s51_letters_can_be_moved_to_another_broker(self, store: Store, clock: ManualClock) -> None:
        everywhere = await self.one_in_each_state(store)
        await store.add([a_letter("waiting", retry_in=timedelta(hours=2))])
        everyone = [head for head in (await store.page()).heads if head.state is not LetterState.PROCESSING]
        await store.apply(SetBroker("events"), [head.id for head in everyone], by="ann")
        moved = await store.load([head.id for head in everyone])
        assert [letter.state for letter in moved] == [head.state for head in everyone]
        assert {letter.broker for letter in moved} == {"events"}
        assert {letter.origin.transport for letter in moved} == {"rabbitmq"}
        [line] = (await store.journal(everywhere[LetterState.MANUAL]))[-1:]
        assert (line.actor, line.action, line.before, line.after, line.detail) == (
            "ann", "set_broker", LetterState.MANUAL, LetterState.MANUAL, "events",
        )  # fmt: skip
        clock.advance(timedelta(hours=2))
        assert await store.claim("w", broker=BROKER) == []
        claimed = await store.claim("w", broker="events")
        assert {head.id for head in claimed} == {everywhere[LetterState.PENDING], a_letter("waiting").id}

    async def test_s51_a_letter_that_is_being_redriven_keeps_its_broker(self, store: Store) -> None:
        await store.add(letters(2))
        [held] = await store.claim("w", broker=BROKER, limit=1)
        before = await store.load([letter.id for letter in letters(2)])
        with pytest.raises(LifecycleError, match="cannot change its broker: it is being redriven"):
            await store.apply(SetBroker("events"), [letter.id for letter in letters(2)], by="ann")
        assert await store.load([letter.id for letter in letters(2)]) == before
        await store.settle([Settlement(held.claim_token, Unclaim())])
        await store.apply(SetBroker("events"), [held.id], by="ann")
        assert [head.id for head in await store.claim("w", broker="events")] == [held.id]
