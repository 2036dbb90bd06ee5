"""What becomes of one seed?

A loop and a world are made of it, the world runs until the faults are over and nothing moves any more, and the end is
judged. The same seed gives the same world, step by step.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import msgspec

from redrive.letters import LetterState
from redrive.testing.simulation.lives import Tasks, adopt
from redrive.testing.simulation.script import CALLS, LIMIT, ORDERS, Fate
from redrive.testing.simulation.virtual import StuckError, VirtualLoop
from redrive.testing.simulation.watch import BrokenError
from redrive.testing.simulation.world import World, letters_now

_LOOK: Final = timedelta(minutes=2)
_LONGEST: Final = timedelta(hours=8)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a seed."""

    seed: int
    broken: str | None  # the rule that was broken; None: all were kept
    faults: dict[str, int]
    steps: int
    virtual: timedelta
    letters: int
    sent: int
    sent_again: int
    stale: int
    presumed: int
    states: dict[str, int]


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed; with `trace`, each step is told."""
    loop = VirtualLoop()
    strange: list[str] = []
    loop.set_exception_handler(lambda _loop, context: _heard(context, strange))
    tasks = adopt(loop)
    try:
        return loop.run_until_complete(_simulated(seed, trace, strange, tasks))
    finally:
        loop.close()


def _heard(context: dict[str, Any], strange: list[str]) -> None:
    """Something that nobody was there to hear: an error in a callback is a fault, a forgotten task is told."""
    error = context.get("exception")
    if error is not None and "handle" in context:
        strange.append(f"{context['message']}: {error!r}")


async def _simulated(
    seed: int, trace: Callable[[str], None] | None, strange: list[str], tasks: Tasks
) -> Outcome:
    world = World(seed, trace)
    await world.open()
    world.told(
        "simulation", f"faults: {', '.join(f'{one.step} {one.kind}' for one in world.faults.scheduled)}"
    )
    begun = [asyncio.create_task(process.run()) for process in world.processes]
    begun += [asyncio.create_task(world.produce()), asyncio.create_task(world.keep_the_consumer_away())]
    broken: str | None = None
    try:
        await _until_rest(world)
        if not world.watch.broken:
            world.watch.judge()
            _judge_the_calm(world)
            world.watch.rule(not strange, f"an unhandled error: {strange}")
    except (BrokenError, StuckError) as error:
        broken = str(error)
    finally:
        world.end()
        await _ended(tasks)
    broken = world.watch.broken[0] if world.watch.broken else broken
    world.told("simulation", f"ends: {broken or 'all rules were kept'}\n{letters_now(world)}")
    letters = world.store.letters.values()
    return Outcome(
        seed=seed,
        broken=broken,
        faults={str(kind): count for kind, count in world.faults.applied.items()},
        steps=world.faults.step,
        virtual=world.clock.monotonic(),
        letters=len(letters),
        sent=len(world.watch.sent),
        sent_again=world.watch.sent_again,
        stale=world.watch.stale,
        presumed=world.watch.presumed,
        states=dict(Counter(str(letter.state) for letter in letters)),
    )


async def _until_rest(world: World) -> None:
    """Let time pass until nothing happens from one look to the next."""
    last: tuple[int, ...] | None = None
    while not world.watch.broken:
        await world.clock.sleep(_LOOK)
        now = world.traffic() if world.at_rest() else None
        if now is not None and now == last:
            return
        last = now
        world.watch.rule(
            world.clock.monotonic() < _LONGEST,
            f"the world does not come to rest within {_LONGEST}:\n{letters_now(world)}",
        )


def _judge_the_calm(world: World) -> None:
    """Where nothing at all went wrong, the end is known exactly."""
    if world.faults.applied or world.watch.setbacks or world.watch.excuses:
        return
    if any(errand.options.sending.target is not None for errand in world.script.errands):
        return  # handlers of another queue decide
    letters = {
        (letter.broker, letter.message.body): letter
        for letter in world.store.letters.values()
        if letter.source == ORDERS.name
    }
    for message in world.script.messages:
        letter = letters.get((message.broker, message.name.encode()))
        found = None if letter is None else (letter.state, letter.dlq_retry_count)
        cycles = message.failures // CALLS
        wanted: tuple[tuple[LetterState, int] | None, ...]
        if message.fate is Fate.FINE or (message.fate is not Fate.DENIED and not cycles):
            wanted = (None,)
        elif message.fate is Fate.DENIED:
            wanted = (*((LetterState.MANUAL, count) for count in range(LIMIT)), (LetterState.FAILED, LIMIT))
        elif letter is not None and letter.unconfirmed and letter.claim_token in world.watch.verdicts:
            # It was processed, and there is neither a verdict nor evidence: that redrive is not counted yet.
            wanted = ((LetterState.PROCESSING, cycles - 1),)
        elif cycles <= LIMIT:
            wanted = ((LetterState.RESOLVED, cycles),)
        else:
            wanted = ((LetterState.FAILED, LIMIT),)
        world.watch.rule(found in wanted, f"nothing went wrong, and {message} ended as {found}, not {wanted}")


async def _ended(tasks: Tasks) -> None:
    """End everything that still runs."""
    this = asyncio.current_task()
    for _ in range(20):
        left = [task for task in tasks.running() if task is not this]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=60)
