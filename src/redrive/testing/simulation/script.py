"""What a seed decides about a world, apart from its faults.

Which brokers there are, which messages are sent, how often their handlers fail, which messages are forwarded, when a
consumer is down for a long time, and what the operator replays. Everything is drawn from one random generator, so equal
seeds give equal scripts.
"""

from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Final

import msgspec

from redrive.consume import ConsumeOptions
from redrive.letters import LetterState
from redrive.replay.options import ReplayOptions
from redrive.rules import Fixed
from redrive.stores.query import EVERYTHING, Condition, Op, Query
from redrive.transports.base import Source
from redrive.transports.redriving import SendOptions

LIMIT: Final = 3  # redrives of one message
NORTH: Final = "north"
SOUTH: Final = "south"
ORDERS: Final = Source(name="orders", window=4)
AUDIT: Final = Source(name="audit", window=4)  # gets copies of redrives, and forwarded messages
REPUBLISHED: Final = "*"  # ends the name of a message that a handler has published to its own queue
MINUTE: Final = timedelta(minutes=1)
VERDICT_TIMEOUT: Final = 10 * MINUTE
CONSUMING: Final = ConsumeOptions(
    attempts=2,
    max_deliveries=2,
    concurrency=2,
    backoff=Fixed(timedelta(milliseconds=50)),
    breaker=None,
)
CALLS: Final = CONSUMING.attempts * CONSUMING.max_deliveries  # of a handler that fails, until a dead letter
_NEEDS_A_PERSON: Final = Query((Condition("state", Op.IS, (str(LetterState.MANUAL),)),))
_FATES_IN_AUDIT: Final = 5


class Fate(StrEnum):
    """What a handler does with a message."""

    FINE = "fine"
    PASSING = "passing"  # connection errors, some times
    OUTAGE = "outage"  # another service is unavailable, some times
    DENIED = "denied"  # fails always, and no retry helps
    DEADLY = "deadly"  # kills its process, some times


class Forward(StrEnum):
    """Where a handler publishes a message that it has processed, with all its raw headers."""

    NOWHERE = "nowhere"
    AUDIT = "audit"  # to another queue, as it is
    BACK = "back"  # to its own queue, with another body


class Sent(msgspec.Struct, frozen=True):
    """A message that the producer sends."""

    broker: str
    name: str
    fate: Fate
    failures: int  # how often the handler fails before it succeeds
    at: timedelta
    has_id: bool
    forward: Forward


class Errand(msgspec.Struct, frozen=True):
    """A replay that the operator runs."""

    at: timedelta
    broker: str
    query: Query
    options: ReplayOptions
    then: str  # run, stop or cancel
    after: timedelta


class Absence(msgspec.Struct, frozen=True):
    """The consumer of the first broker is down for a long time."""

    at: timedelta
    until: timedelta


class Script(msgspec.Struct, frozen=True):
    """Everything that a seed decides."""

    brokers: tuple[str, ...]
    messages: tuple[Sent, ...]
    errands: tuple[Errand, ...]
    has_audit: bool  # the queue `audit` exists, and gets a copy of every redrive of `orders`
    has_evidence: bool  # the brokers can tell what was taken from their queues
    has_verdicts: bool  # consumers report what they have processed
    absence: Absence | None
    audit_fates: tuple[tuple[Fate, int], ...]


def script_of(random: Random) -> Script:
    """The script of a seed."""
    brokers = (NORTH, SOUTH) if random.random() < 0.3 else (NORTH,)
    has_audit = random.random() < 0.35
    messages = tuple(message for broker in brokers for message in _messages(random, broker, len(brokers)))
    absence = None
    if random.random() < 0.15:
        at = timedelta(seconds=random.choice((20, 60, 150)))
        absence = Absence(at, at + random.choice((15, 30, 60)) * MINUTE)
    return Script(
        brokers=brokers,
        messages=messages,
        errands=tuple(
            _errand(random, number, brokers, has_audit=has_audit)
            for number in range(random.choice((0, 1, 1, 2)))
        ),
        has_audit=has_audit,
        has_evidence=random.random() < 0.8,
        has_verdicts=random.random() < 0.85,
        absence=absence,
        audit_fates=tuple(
            (random.choice((Fate.FINE, Fate.PASSING, Fate.DENIED)), random.choice((CALLS, 2 * CALLS)))
            for _ in range(_FATES_IN_AUDIT)
        ),
    )


def _messages(random: Random, broker: str, brokers: int) -> list[Sent]:
    fates = [Fate.FINE, *[Fate.PASSING] * 4, Fate.OUTAGE, *[Fate.DENIED] * 2, Fate.DEADLY]
    forwards = [*[Forward.NOWHERE] * 6, Forward.AUDIT, Forward.BACK]
    most = CALLS * (LIMIT + 1)
    # Names, ids and bodies are the same on both brokers.
    return [
        Sent(
            broker=broker,
            name=f"m{number}",
            fate=random.choice(fates),
            failures=random.choice((1, CALLS - 1, CALLS, 2 * CALLS, 3 * CALLS + 1, most, 10 * most)),
            at=timedelta(seconds=random.choice((0, 0, 1, 30, 90))),
            has_id=random.random() < 0.7,
            forward=random.choice(forwards),
        )
        for number in range(random.randint(2, 6) if brokers == 1 else random.randint(1, 3))
    ]


def _errand(random: Random, number: int, brokers: tuple[str, ...], *, has_audit: bool) -> Errand:
    sendings = [SendOptions()] * 4
    if has_audit:
        sendings += [SendOptions(to="exchange"), SendOptions(target=AUDIT.name)]
    return Errand(
        at=timedelta(seconds=random.choice((20, 70, 150, 400, 900))) * (number + 1),
        broker=random.choice(brokers),
        query=random.choice((EVERYTHING, _NEEDS_A_PERSON)),
        options=ReplayOptions(
            batch=random.choice((1, 2, 10)),
            canary=random.choice((0, 0, 1)),
            canary_wait=timedelta(seconds=3),
            ramp=random.choice(((), (1, 2))),
            rate=random.choice((None, None, 0.2)),
            stop_at=random.choice((None, 0.5)),
            judge_after=2,
            skip_done=random.random() < 0.3,
            health_check=random.random() < 0.5,
            verdict_timeout=VERDICT_TIMEOUT,
            sending=random.choice(sendings),
        ),
        then=random.choice(("run", "run", "stop", "cancel")),
        after=timedelta(seconds=random.choice((0.1, 1, 5, 20))),
    )
