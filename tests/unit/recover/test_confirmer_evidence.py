"""A redrive without verdict is presumed resolved only while the broker says that it was taken."""

from datetime import timedelta

from redrive.letters import LetterState
from redrive.recover.confirmer import Confirmer
from redrive.testing import letters
from redrive.transports import Source
from tests.unit.recover.cycle import World

TIMEOUT = timedelta(hours=1)


async def a_world_with_an_unconfirmed_letter() -> tuple[World, Confirmer]:
    world = World(verdict_timeout=TIMEOUT)
    await world.open()
    await world.store.add(letters(1, transport="memory"))
    world.clock.advance(timedelta(days=1))
    assert await world.worker.turn() == 1
    confirmer = Confirmer(
        world.store,
        world.transport,
        clock=world.clock,
        verdict_timeout=TIMEOUT,
        retry_in=timedelta(minutes=1),
    )
    return world, confirmer


async def after_the_timeout(world: World, confirmer: Confirmer) -> None:
    world.clock.advance(TIMEOUT)
    await confirmer.turn()


async def test_letter_stays_unconfirmed_while_its_redrive_waits_in_the_queue() -> None:
    world, confirmer = await a_world_with_an_unconfirmed_letter()
    for _ in range(5):
        await after_the_timeout(world, confirmer)
    letter = await world.the_letter()
    assert (letter.state, letter.unconfirmed) == (LetterState.PROCESSING, True)
    assert confirmer.counts.unconfirmed == 1


async def test_letter_is_presumed_resolved_a_timeout_after_its_redrive_was_taken() -> None:
    world, confirmer = await a_world_with_an_unconfirmed_letter()
    receiver = await world.transport.receiver(Source(name="orders"))
    receiver.accept(await receiver.receive())
    await after_the_timeout(world, confirmer)
    assert (await world.the_letter()).state is LetterState.PROCESSING
    await after_the_timeout(world, confirmer)
    letter = await world.the_letter()
    assert (letter.state, letter.presumed) == (LetterState.RESOLVED, True)


async def test_letter_is_not_presumed_resolved_when_its_redrive_was_given_back() -> None:
    world, confirmer = await a_world_with_an_unconfirmed_letter()
    receiver = await world.transport.receiver(Source(name="orders"))
    await receiver.receive()
    await after_the_timeout(world, confirmer)
    await receiver.close()  # the consumer crashes
    await after_the_timeout(world, confirmer)
    await after_the_timeout(world, confirmer)
    letter = await world.the_letter()
    assert (letter.state, letter.unconfirmed) == (LetterState.PROCESSING, True)
