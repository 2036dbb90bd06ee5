"""Decide which letters may be redriven now, before any of them is claimed.

Everything that can hold letters back becomes a gate of the claim (`redrive.stores.gates`):

    condition:NAME         a configured check fails (`conditions`); letters of its sources and failure kinds
    cpu, memory, database  the machine is too busy, or a database is unreachable; letters with the conditional strategy
    breaker:SOURCE         redrives to the source die again (`breaker`); one letter passes as a probe after each pause
    send:SOURCE            the broker does not accept redrives to the source; likewise
    consumer:SOURCE/GROUP  no consumer of the group would receive the redrive
    rate:SOURCE            the source has a rate limit (`rates`); as many letters pass as there are tokens

Letters that a gate stops are left alone by the store: they are neither claimed nor written. Probes and tokens are
reserved before the claim, so that several workers do not use them twice, and returned if no letter needed them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from redrive.clock import Clock
from redrive.letters import LetterHead
from redrive.recover.breaker import Breakers, HoldBackOptions
from redrive.recover.health import Measure
from redrive.recover.rates import RateLimits
from redrive.rules import Check, Health, Strategy, StrategyOptions, unmet_conditions
from redrive.stores.gates import Gate, gate_name

_CONDITIONAL: Final = (str(Strategy.CONDITIONAL),)
_HEALTH_GATES: Final[Mapping[Check, str]] = {
    Check.CPU_LOW: "cpu",
    Check.MEMORY_LOW: "memory",
    Check.DATABASE_REACHABLE: "database",
}
# A source whose redrives the broker does not accept is tried again with one letter. This is less than the time after
# which the refused letters are due again, so that the next try is made with another letter, if there is one.
_SEND_PAUSE: Final = timedelta(seconds=30)
_SEND_OPTIONS: Final = HoldBackOptions(failure_rate=1.0, window=1, pause=_SEND_PAUSE, max_pause=_SEND_PAUSE)
_SHORTEST_PAUSE: Final = timedelta(milliseconds=50)


class FailingConditions(Protocol):
    """The configured checks that fail now."""

    def gates(self) -> Sequence[Gate]:
        """A gate for each of them."""


class Reservation(msgspec.Struct, frozen=True):
    """The gates of one claim, and what was reserved for it."""

    gates: tuple[Gate, ...]
    probes: tuple[tuple[Breakers, str], ...] = ()  # sources for which one letter may go as a probe
    tokens: Mapping[str, int] = msgspec.field(default_factory=dict)  # source → tokens that were taken


class Admission:
    """Makes the gates of the workers of one broker."""

    def __init__(
        self,
        clock: Clock,
        strategy: StrategyOptions,
        breakers: Breakers,
        *,
        measure: Measure = Health,
        conditions: FailingConditions | None = None,
        rates: RateLimits | None = None,
    ) -> None:
        self._strategy = strategy
        self._breakers = breakers
        self._measure = measure
        self._conditions = conditions
        self._rates = rates or RateLimits(clock)
        self._sends = Breakers(clock, _SEND_OPTIONS)
        self._exhausted: set[str] = set()  # sources whose tokens the last claims have used up
        self.unreachable: dict[
            tuple[str, str], str
        ] = {}  # source and group → why it would receive no redrive

    def reserve(self, limit: int) -> Reservation:
        """The gates for a claim of at most `limit` letters."""
        gates = [
            *self._condition_gates(),
            *(
                Gate(name=gate_name("consumer", f"{source}/{group}"), sources=(source,), groups=(group,))
                for source, group in self.unreachable
            ),
        ]
        probes: list[tuple[Breakers, str]] = []
        for kind, breakers in (("breaker", self._breakers), ("send", self._sends)):
            for source in breakers.open_sources():
                passes = int(breakers.admits(source))
                if passes:
                    probes.append((breakers, source))
                gates.append(Gate(name=gate_name(kind, source), sources=(source,), passes=passes))
        tokens: dict[str, int] = {}
        for source in self._rates.sources():
            tokens[source] = self._rates.reserve(source, limit)
            if tokens[source] < limit:
                gates.append(Gate(name=gate_name("rate", source), sources=(source,), passes=tokens[source]))
        return Reservation(tuple(gates), tuple(probes), tokens)

    def settle(self, reservation: Reservation, heads: Sequence[LetterHead]) -> None:
        """Return what was reserved and not used by the letters that were claimed."""
        used = Counter(head.source for head in heads)
        for breakers, source in reservation.probes:
            if not used[source]:
                breakers.no_probe(source)
        for source in {*used, *reservation.tokens}:
            reserved = reservation.tokens.get(source, 0)
            self._rates.spend(source, used[source] - reserved)
            if source in reservation.tokens and used[source] >= reserved:
                self._exhausted.add(source)
            else:
                self._exhausted.discard(source)

    def pause(self, longest: timedelta) -> timedelta:
        """How long a worker that found nothing waits before it looks again."""
        waits = [self._rates.wait(source) for source in self._exhausted]
        return max(min([longest, *waits]), min(longest, _SHORTEST_PAUSE))

    def holds_back(self, strategy: Strategy) -> str | None:
        """The gate that stops a letter whose strategy is another one than the store knows; None: it may go."""
        if strategy is not Strategy.CONDITIONAL:
            return None
        return next((gate.name for gate in self._condition_gates() if gate.strategies == _CONDITIONAL), None)

    def published(self, sent: Mapping[str, bool]) -> None:
        """Record for each source in a batch whether the broker has accepted at least one redrive to it."""
        for source, accepted in sent.items():
            (self._sends.succeeded if accepted else self._sends.died)(source)

    def _condition_gates(self) -> list[Gate]:
        gates = list(self._conditions.gates()) if self._conditions is not None else []
        unmet = unmet_conditions(self._measure(), self._strategy)
        gates += [
            Gate(name=name, strategies=_CONDITIONAL)
            for check, name in _HEALTH_GATES.items()
            if check in unmet
        ]
        return gates
