"""What goes wrong, and when?

A seed gives a schedule: at the n-th step of input and output, whoever takes it, this fault. A fault that does not fit
that step waits for the next one that it fits. After the last one, or when the time for faults is over, nothing goes
wrong any more and the world has to come to rest.

It does not know what the steps are about; `edges` carries the faults out.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Final

import msgspec


class Kind(StrEnum):
    """What can go wrong at a step."""

    CRASH_BEFORE = "crash before"  # the process is killed, and nothing was done
    CRASH_AFTER = "crash after"  # it was done, and the process is killed before it hears so
    LOST_REPLY = "lost reply"  # it was done, and the caller is told an error
    REFUSE = "refuse"  # an error, and nothing was done
    PAUSE_BEFORE = "pause before"  # the process stands still for longer than a lease, then does it
    PAUSE_AFTER = "pause after"  # it was done; the process stands still before it hears so
    JUMP = "clock jump"  # the time of day is set, for all or for this process
    DUPLICATE = "duplicate"  # a message is there twice
    REORDER = "reorder"  # deliveries come in another order
    CUT = "cut"  # the connection of a receiver is lost, and back at once
    TORN = "torn"  # the dead letter is durable, the delivery is not settled, and the process is killed


ANYWHERE: Final = frozenset(
    {Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.LOST_REPLY, Kind.REFUSE, Kind.PAUSE_BEFORE, Kind.PAUSE_AFTER, Kind.JUMP}
)  # fmt: skip
SENDING: Final = ANYWHERE | {Kind.DUPLICATE}
RECEIVING: Final = frozenset(
    {Kind.CRASH_AFTER, Kind.PAUSE_AFTER, Kind.REORDER, Kind.CUT, Kind.DUPLICATE, Kind.JUMP}
)
BURYING: Final = ANYWHERE | {Kind.TORN, Kind.CUT, Kind.DUPLICATE}
ACCEPTING: Final = frozenset({Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.CUT})
_MOST: Final = 5
_STEPS: Final = 110
_TIME: Final = timedelta(minutes=40)


class Fault(msgspec.Struct, frozen=True):
    """At this step, this."""

    step: int
    kind: Kind


class Faults:
    """The faults of one seed."""

    def __init__(self, random: Random, clock: Callable[[], timedelta]) -> None:
        self._random = random
        self._clock = clock
        count = random.randint(0, _MOST)
        # Not evenly: most of what can go wrong goes wrong while letters are under way, early.
        steps = sorted(int(random.triangular(1, _STEPS, 12)) for _ in range(count))
        self._waiting = [Fault(step, random.choice(list(Kind))) for step in steps]
        self.scheduled = tuple(self._waiting)
        self.applied: Counter[Kind] = Counter()
        self.step = 0

    @property
    def over(self) -> bool:
        """Whether nothing goes wrong any more."""
        return not self._waiting or self._clock() > _TIME

    def at_this_step(self, fitting: frozenset[Kind]) -> Kind | None:
        """What goes wrong at the step that is taken now."""
        self.step += 1
        if not self._waiting or self._waiting[0].step > self.step or self.over:
            return None
        for place, fault in enumerate(self._waiting):
            if fault.step > self.step:
                break
            if fault.kind in fitting:
                del self._waiting[place]
                self.applied[fault.kind] += 1
                return fault.kind
        return None

    # --- how long, how much -----------------------------------------------------------------------------------

    def latency(self) -> float:
        """Seconds until a step happens, or until its answer is there; often none."""
        return self._random.random() * 0.2 if self._random.random() < 0.25 else 0.0

    def pause(self) -> timedelta:
        """How long a process stands still: beyond a lease, at times beyond the quiet time."""
        return timedelta(seconds=self._random.choice((150, 200, 300, 900)))

    def jump(self) -> timedelta:
        """By how much the time of day is set."""
        return timedelta(seconds=self._random.choice((-600, -90, -5, 5, 90, 240, 600)))

    def restart(self) -> timedelta:
        """How long a process takes to be there again."""
        return timedelta(seconds=self._random.choice((1, 5, 30, 150)))

    def coin(self) -> bool:
        """Heads or tails."""
        return self._random.random() < 0.5

    def shuffled(self, count: int) -> list[int]:
        """The numbers below `count` in another order."""
        order = list(range(count))
        self._random.shuffle(order)
        return order
