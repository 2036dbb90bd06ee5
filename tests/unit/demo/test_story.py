"""The demo's story is what the store says, in the words of the shop."""

from datetime import timedelta

import pytest

from redrive.demo.story import Story, ordinal
from redrive.demo.view import Lines, summary_in_words
from redrive.letters import DeadLetter, Failure, FailureKind, LetterState, Message, Origin
from redrive.stores.changes import Fail, Park, Resolve, Retry, Settlement, Unclaim
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock


def dead(clock: ManualClock, name: str, kind: FailureKind = FailureKind.NETWORK) -> DeadLetter:
    failure = Failure(error_type="ConnectionRefusedError", text="refused", at=clock.now(), kind=kind)
    message = Message(body=b"{}", message_id=name)
    origin = Origin(transport="rabbitmq", source="payments")
    return DeadLetter.create(message, origin, failure, key=name, reason="NonRetryableError")


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.story = Story()

    async def told(self) -> list[str]:
        return [event.text for event in await self.story.look(self.store)]

    async def settle(self, outcome: Fail | Park | Unclaim | Resolve | Retry) -> None:
        self.clock.advance(timedelta(seconds=1))
        [head] = await self.store.claim("worker", broker="rabbitmq", limit=1)
        self.clock.advance(timedelta(seconds=1))
        assert await self.store.settle([Settlement(head.claim_token, outcome)]) == [True]


async def test_a_letter_that_comes_dies_again_and_is_resolved_is_told_in_this_order() -> None:
    world = World()
    await world.store.add([dead(world.clock, "payment-4")])
    assert await world.told() == ["payment 4: dead letter, dependency down: refused"]
    await world.settle(Retry(at=world.clock.now()))
    await world.settle(Resolve())
    assert await world.told() == [
        "payment 4: dead-lettered again after the 1st redrive",
        "payment 4: resolved by the 2nd redrive",
    ]
    assert await world.told() == []


@pytest.mark.parametrize(
    ("outcome", "text", "state"),
    [
        (Park(), "ConnectionRefusedError → parked for a person", LetterState.MANUAL),
        (Fail(), "failed permanently after the 1st redrive", LetterState.FAILED),
    ],
)
async def test_what_is_over_is_told_with_its_state(
    outcome: Park | Fail, text: str, state: LetterState
) -> None:
    world = World()
    await world.store.add([dead(world.clock, "payment-4")])
    await world.settle(outcome)
    events = await world.story.look(world.store)
    assert [(event.text, event.state) for event in events][1:] == [(f"payment 4: {text}", state)]


async def test_one_that_waits_is_told_once() -> None:
    world = World()
    await world.store.add([dead(world.clock, "payment-4")])
    for _ in range(3):
        await world.settle(Unclaim(at=world.clock.now(), detail="waits until: breaker closed"))
    assert (await world.told())[1:] == ["payment 4: waits until: breaker closed"]


async def test_a_letter_is_counted_under_what_it_first_died_of() -> None:
    world = World()
    await world.store.add([dead(world.clock, "payment-4")])
    await world.told()
    later = Failure(error_type="AnswerError", text="403", at=world.clock.now(), kind=FailureKind.DENIED)
    await world.settle(Retry(at=world.clock.now(), failure=later))
    await world.told()
    summary = world.story.summary(1, {"payments": 3}, {"payments": 1})
    [fate] = summary.failures
    assert (fate.kind, fate.errors, fate.most_redrives) == ("network", ("AnswerError",), 1)
    assert summary.states == {"dlq_pending": 1}


async def test_only_a_verdict_counts_as_resolved_after_a_redrive() -> None:
    world = World()
    await world.store.add([dead(world.clock, "payment-4"), dead(world.clock, "payment-5")])
    await world.settle(Resolve())
    await world.settle(Resolve(presumed=True))
    told = await world.told()
    assert "payment 5: no verdict arrived: presumed resolved" in told
    assert world.story.summary(1, {}, {}).resolved_after_redrive == 1


async def test_more_letters_than_fit_into_a_page_are_all_seen() -> None:
    world = World()
    await world.store.add([dead(world.clock, f"payment-{number}") for number in range(1200)])
    assert len(await world.told()) == 1200
    assert world.story.summary(1, {}, {}).letters == 1200


async def test_a_message_id_cannot_act_on_the_screen() -> None:
    world = World()
    await world.store.add([dead(world.clock, "order\x1b[2J\n1")])
    said: list[str] = []
    Lines(said.append).show(await world.story.look(world.store), world.story, open_for=timedelta(seconds=1))
    assert len(said) == 1
    assert "\x1b" not in said[0]
    assert "\n" not in said[0]


async def test_the_end_is_told_with_what_became_of_each_failure() -> None:
    world = World()
    await world.store.add([dead(world.clock, "payment-4")])
    await world.settle(Resolve())
    await world.told()
    text = summary_in_words(world.story.summary(20, {"payments": 9}, {"orders": 2, "mail": 0}))
    assert "received 9 payments" in text
    assert "dependency down         1  1 resolved" in text
    assert "restarted: orders 2 times." in text


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_numbers_have_their_endings(number: int, word: str) -> None:
    assert ordinal(number) == word
