"""Decide which due letters a claim leaves out.

A worker evaluates its conditions (breakers, load, reachability, rates) before it claims, and passes those that do not
hold as *gates*. A letter that a gate stops is not claimed: it stays pending and due, and the store records in
`waits_for` at which gate it waits. It leaves the index that claims walk, so letters that wait cost nothing: no claim
looks at them again before their gate is open.

A gate that no claim names any more is open. Nothing has to open it: whichever server claims next finds the letters that
wait there, also if the server that stopped them is gone. This module knows no database; every store asks `Gatekeeper`.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from redrive.errors import SettingsError

MAX_GATES: Final = 10_000
MAX_NAME: Final = 200  # characters; an index holds them


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that stops letters; None for a field: whatever the letter has there."""

    name: str
    passes: int = 0  # letters that one claim may take nevertheless
    sources: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None  # consumer groups; empty for a letter without one
    kinds: tuple[str, ...] | None = None  # failure kinds
    strategies: tuple[str, ...] | None = None

    def concerns(self, source: str, group: str | None, kind: str, strategy: str | None) -> bool:
        """Whether a letter with these values has to pass this gate."""
        return (
            (self.sources is None or source in self.sources)
            and (self.groups is None or (group or "") in self.groups)
            and (self.kinds is None or kind in self.kinds)
            and (self.strategies is None or strategy in self.strategies)
        )


def gate_name(kind: str, subject: str) -> str:
    """The name of the gate of one source, condition or consumer; a long one is cut and stays distinct."""
    name = f"{kind}:{subject}"
    if len(name) <= MAX_NAME:
        return name
    digest = blake2b(subject.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{name[: MAX_NAME - len(digest) - 1]}…{digest}"


def check_gates(gates: Sequence[Gate]) -> None:
    """Gates have short names, each once."""
    if len(gates) > MAX_GATES:
        raise SettingsError(f"a claim can name at most {MAX_GATES} gates, not {len(gates)}")
    if len({gate.name for gate in gates}) != len(gates):
        raise SettingsError("two gates of a claim have the same name")
    for gate in gates:
        if not 0 < len(gate.name) <= MAX_NAME or not gate.name.isprintable():
            raise SettingsError(f"the name of a gate must have 1 to {MAX_NAME} printable characters")
        if isinstance(gate.passes, bool) or gate.passes < 0:
            raise SettingsError(f"gate '{gate.name}' cannot let {gate.passes} letters pass")


class Gatekeeper:
    """Decides about the letters of one claim, one by one in the order of the claim."""

    def __init__(self, gates: Sequence[Gate], limit: int) -> None:
        self._gates = gates
        self._limit = limit
        self._left = {gate.name: gate.passes for gate in gates}
        self._of_source: dict[str, list[Gate]] = {}  # there may be a gate for each source

    def stop(self, source: str, group: str | None, kind: str, strategy: str | None) -> str | None:
        """The name of the gate that stops this letter; None: it passes, and that is counted."""
        gates = self._of_source.get(source)
        if gates is None:
            gates = [gate for gate in self._gates if gate.sources is None or source in gate.sources]
            self._of_source[source] = gates
        concerned = [gate.name for gate in gates if gate.concerns(source, group, kind, strategy)]
        for name in concerned:
            if self._left[name] == 0:
                return name
        for name in concerned:
            self._left[name] -= 1
        return None

    def let_in(self, name: str) -> int:
        """How many of the letters that wait at this gate the claim has to look at."""
        return min(self._left.get(name, self._limit), self._limit)
