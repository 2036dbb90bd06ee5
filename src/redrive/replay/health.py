"""Check the targets of a replay before anything is sent.

The check looks at what receives the letters, never at the machine it runs on: does the broker accept messages, how many
wait in each target, does anything consume them, and did the redrives of the last minutes die again? Each problem names
the value, the limit and the setting. What cannot be seen is no problem; a target that does not exist is an error.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from redrive.errors import BrokerRefusedError
from redrive.letters import LetterHead, LetterState
from redrive.replay.options import ReplayOptions
from redrive.rules import format_duration
from redrive.settings import ReplaySettings
from redrive.stores.base import Store
from redrive.stores.query import Condition, Op, Query
from redrive.transports.base import TargetState, Transport

_RECENT: Final = timedelta(minutes=15)
_MIN_DEATHS: Final = 5  # fewer redrives that died again say nothing


async def find_problems(
    store: Store,
    transport: Transport,
    letters: Iterable[LetterHead],
    options: ReplayOptions,
    limits: ReplaySettings,
    *,
    now: datetime,
) -> list[str]:
    """What speaks against sending these letters now; a `SourceMissingError` if a target does not exist."""
    problems: list[str] = []
    alarms: dict[str, None] = {}
    sending = options.sending
    targets = Counter(
        (
            head.broker,
            head.source,
            sending.target or sending.redirects.get(head.source),
            head.consumer_group or "",
        )
        for head in letters
    )
    seen: set[tuple[str, str]] = set()
    for broker, source, elsewhere, own_group in sorted(targets, key=str):
        name, group = (source, own_group) if elsewhere is None else (elsewhere, "")
        if (name, group) not in seen:
            seen.add((name, group))
            with contextlib.suppress(BrokerRefusedError):  # a user may be allowed to publish and nothing else
                state = await transport.target_state(name, group)
                problems += _problems_of(name, state, limits)
                if state.alarm is not None:
                    alarms[state.alarm] = None
        if elsewhere is None and not options.canary:  # canaries find out by themselves
            problems += await _recent_deaths(store, broker, source, limits, now)
    return [f"the broker blocks publishers: {alarm}" for alarm in alarms] + list(dict.fromkeys(problems))


def _problems_of(name: str, state: TargetState, limits: ReplaySettings) -> list[str]:
    problems: list[str] = []
    if state.depth is not None and state.depth > limits.max_depth:
        problems.append(
            f"{name}: {state.depth:,} messages waiting, limit {limits.max_depth:,}, replay.max_depth"
        )
    if state.consumers is not None and state.consumers < limits.min_consumers:
        problems.append(
            f"{name}: {state.consumers} consumers, at least {limits.min_consumers}, replay.min_consumers"
        )
    return problems


async def _recent_deaths(
    store: Store, broker: str, source: str, limits: ReplaySettings, now: datetime
) -> list[str]:
    """The share of redrives to a source that died again lately: what opens the breaker of the workers."""
    since = now - _RECENT
    here = (Condition("broker", Op.IS, (broker,)), Condition("source", Op.IS, (source,)))
    died = await store.count(
        Query(
            (*here, Condition("failed", Op.AT_LEAST, (since,)), Condition("redrives", Op.AT_LEAST, (1,))),
        )
    )
    if died < _MIN_DEATHS:
        return []
    resolved = await store.count(
        Query(
            (
                *here,
                Condition("state", Op.IS, (str(LetterState.RESOLVED),)),
                Condition("updated", Op.AT_LEAST, (since,)),
            )
        )
    )
    if died <= limits.max_failure_rate * (died + resolved):
        return []
    problem = (
        f"{source}: {died} of {died + resolved} redrives failed again in the last "
        f"{format_duration(_RECENT)}, limit {limits.max_failure_rate * 100:g} %, "
        "replay.max_failure_rate; --canary 5 tries a few first"
    )
    return [problem]
