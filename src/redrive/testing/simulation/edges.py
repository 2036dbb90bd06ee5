"""Where does a process touch the outside, and what can go wrong there?

Every verb of store, transport and receiver is a step at the edge of its process: it may take a while, and it may meet a
fault of the schedule. What a verb has really done is shown to the `Watch`, whether its caller hears of it or not. The
rule: a fault that may lead to something being there or being sent twice, in a system that is right, is noted there.

It does not know which verbs there are (`faulty_store`, `faulty_transport`), nor who calls, nor what is right.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from redrive.errors import RedriveError
from redrive.testing.simulation.faults import ANYWHERE, Faults, Kind
from redrive.testing.simulation.lives import Life
from redrive.testing.simulation.virtual import VirtualClock
from redrive.testing.simulation.watch import Watch

T = TypeVar("T")
_SAYS_NO: Final = (Kind.REFUSE, Kind.LOST_REPLY)
_COMES_AGAIN: Final = (Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.CUT)
# Verbs at which an error, true or not, must never lead to anything being there or being sent twice.
_REPEATABLE: Final = frozenset(
    {"add", "load", "page", "claim", "take", "settle", "rescue", "apply", "begin", "operation", "operations",
     "remaining", "items", "record", "run_operation", "end_operation", "recall", "remember", "depth", "receiver",
     "overdue", "taken_until"}
)  # fmt: skip


class Edge:
    """What the edges of one life share."""

    def __init__(
        self,
        life: Life,
        faults: Faults,
        watch: Watch,
        clock: VirtualClock,
        trace: Callable[[str, str], None] | None,
    ) -> None:
        self.life = life
        self.faults = faults
        self.watch = watch
        self._clock = clock
        self._trace = trace

    async def step(
        self,
        verb: str,
        call: Callable[[], Awaitable[T]],
        error: Callable[[str], RedriveError],
        fitting: frozenset[Kind] = ANYWHERE,
        about: object = "",
    ) -> T:
        """Do this, unless something goes wrong."""
        await self.life.gate()
        await self._late()
        fault = self.meet(verb, fitting, about)
        match fault:
            case Kind.CRASH_BEFORE:
                raise self.killed()
            case Kind.REFUSE:
                raise error(f"{verb} is refused")
            case Kind.PAUSE_BEFORE:
                await self.stand_still()
            case Kind.JUMP:
                self.jump()
        answer = await call()
        match fault:
            case Kind.CRASH_AFTER:
                raise self.killed()
            case Kind.LOST_REPLY:
                raise error(f"the answer to {verb} was lost")
            case Kind.PAUSE_AFTER:
                await self.stand_still()
        await self._late()
        await self.life.gate()
        return answer

    def meet(self, verb: str, fitting: frozenset[Kind], about: object = "") -> Kind | None:
        """What goes wrong at this step."""
        fault = self.faults.at_this_step(fitting)
        if fault is not None:
            self._excuse(verb, fault)
        if self._trace is not None:
            told = f"{verb} {about}".rstrip()
            self._trace(self.life.name, told if fault is None else f"{told}  *** {fault}")
        return fault

    def _excuse(self, verb: str, fault: Kind) -> None:
        """What this fault may lead to, in a system that is right."""
        if fault is Kind.REORDER or (fault in _SAYS_NO and verb in _REPEATABLE):
            return
        if fault is Kind.REFUSE and verb == "publish":
            # It was not sent, and the caller knows; a consumer goes on without its verdict.
            self.watch.setbacks += self.life.consumes
            return
        if self.life.consumes and fault in _COMES_AGAIN:
            self.watch.setbacks += 1
        elif fault is not Kind.CUT:  # what a collector gets again, it knows
            self.watch.excuses += 1

    def killed(self) -> asyncio.CancelledError:
        """The process dies here."""
        self.life.die()
        return asyncio.CancelledError()

    async def stand_still(self) -> None:
        """The process stands still for a while."""
        self.life.freeze(self.faults.pause())
        await self.life.gate()

    def jump(self) -> None:
        """Somebody sets a clock."""
        if self.faults.coin():
            self._clock.jump(self.faults.jump())
        else:
            self.life.clock.wrong_by += self.faults.jump()

    async def _late(self) -> None:
        if wait := self.faults.latency():
            await asyncio.sleep(wait)
            await self.life.gate()
