"""What are the queues beside a source called, and which delays are there?

The rule: a delay is kept by a queue of its own whose messages all wait equally long, because RabbitMQ expires at
the head only. So there is a ladder of steps; any other delay is waited for in several of them.
"""

from datetime import timedelta
from typing import Final

from redrive.rules import format_duration

STEPS: Final[tuple[timedelta, ...]] = (
    timedelta(seconds=1),
    timedelta(seconds=5),
    timedelta(seconds=15),
    timedelta(seconds=30),
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=15),
    timedelta(minutes=30),
    timedelta(hours=1),
    timedelta(hours=6),
    timedelta(days=1),
)
# A wait that is this much too short for a step is waited for in it all the same.
_NEARLY: Final = timedelta(milliseconds=200)


def delay_queue(source: str, step: timedelta) -> str:
    """The queue in which messages of `source` wait for `step`: `orders.delay.5m`."""
    return f"{source}.delay.{format_duration(step)}"


def step_for(wait: timedelta) -> timedelta:
    """The step to wait for: the longest that is not too long; the shortest where all are.

    What is left of a wait is a little less than a step as a rule, for the time it took on the way: one that is too
    long by a fiftieth is better than a dozen shorter ones.
    """
    return max((step for step in STEPS if step <= wait * 1.02 + _NEARLY), default=STEPS[0])
