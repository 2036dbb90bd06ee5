"""Which policy applies to a queue or an exchange, and what does it change there?

The rule: at most one policy applies, the matching one with the highest priority; a policy that holds a key which the
queue's type does not have does not match it at all. What a policy sets and an argument sets too is settled key by key:
the argument wins for dead-lettering and, on classic queues, overflow; the smaller number for times and lengths.

A policy is checked when it is put, with the texts of RabbitMQ's management API. An operator policy is one that takes
fewer keys; `combined` says what it leaves of a policy.
This module does not know the live queues: whoever holds them asks `effective` again after every change.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

from redrive.broker.arguments import (
    ALL_ON,
    Features,
    Kind,
    QueueOptions,
    QueueType,
)
from redrive.broker.erlang import erlang_binary, erlang_string
from redrive.broker.patterns import NamePattern, PatternError
from redrive.errors import RedriveError

_Valid: TypeAlias = Callable[[Any], bool]

APPLY_TO: Final = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")
# A policy with one of these keys passes by a queue of that type.
_UNSUPPORTED: Final[Mapping[str, frozenset[str]]] = {
    "classic": frozenset(
        {
            "max-age",
            "stream-max-segment-size-bytes",
            "initial-cluster-size",
            "delivery-limit",
            "dead-letter-strategy",
            "max-in-memory-length",
            "max-in-memory-bytes",
            "target-group-size",
        }
    ),
    "quorum": frozenset({"queue-mode", "max-age", "stream-max-segment-size-bytes", "initial-cluster-size"}),
}


class PolicyError(RedriveError):
    """A policy is not valid. `reason` is what the management API answers as the reason of its 400."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.reason = "Validation failed\n\n" + "".join(f"{problem}\n" for problem in problems)
        super().__init__(self.reason)


@dataclass(frozen=True)
class Policy:
    """One policy as it was put."""

    vhost: str
    name: str
    pattern: str
    apply_to: str = "all"
    priority: int = 0
    definition: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Collection[str]:
        """The keys that the definition may have."""
        return _SETTINGS

    def to_json(self) -> dict[str, Any]:
        """The policy as it stands in RabbitMQ's definitions and in the answers of its API."""
        return {
            "vhost": self.vhost,
            "name": self.name,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }

    @classmethod
    def from_json(
        cls,
        row: Mapping[str, Any],
        vhost: str | None = None,
        name: str | None = None,
        *,
        is_stored: bool = False,
    ) -> "Policy":
        """The policy of a row of definitions, or of the body of a PUT whose path says vhost and name.

        It is checked, unless it `is_stored`: a policy that was accepted once does not keep the broker from starting.
        """
        missing = [key for key in ("pattern", "definition") if key not in row]
        if missing:
            raise PolicyError([f'Key "{key}" not found in {name or row.get("name", "")}' for key in missing])
        policy = cls(
            vhost=row["vhost"] if vhost is None else vhost,
            name=row["name"] if name is None else name,
            pattern=row["pattern"],
            apply_to=row.get("apply-to", "all"),
            priority=row.get("priority", 0),
            definition=row["definition"],
        )
        if not is_stored:
            policy.check()
        return policy

    def check(self) -> None:
        """Raises a `PolicyError` that names everything that is wrong; of the definition only the first."""
        found = (
            _definition_problem(self.name, self.definition, self.settings),
            _apply_to_problem(self.apply_to),
            _pattern_problem(self.pattern),
            _priority_problem(self.priority),
        )
        if problems := [problem for problem in found if problem]:
            raise PolicyError(problems)

    def matches(self, kind: Kind, name: str, queue_type: QueueType | None = None) -> bool:
        """Whether it is meant for this queue or exchange; a queue without a type is a classic one."""
        queue_type = queue_type or "classic"
        if kind == "exchange":
            wanted = self.apply_to in {"exchanges", "all"}
        else:
            wanted = self.apply_to in {"queues", "all", f"{queue_type}_queues"}
            wanted = wanted and not _UNSUPPORTED[queue_type] & self.definition.keys()
        return wanted and self._name_pattern.search(name)

    @cached_property
    def _name_pattern(self) -> NamePattern:
        return NamePattern.stored(self.pattern, f"policy {self.name} in vhost {self.vhost}")


class OperatorPolicy(Policy):
    """A policy of the operator, which limits what policies of users can do."""

    @property
    def settings(self) -> Collection[str]:
        """The keys that the definition may have: those that can be combined with the value of a policy."""
        return _COMBINED


class Policies:
    """All policies of a broker."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        self._policies: dict[tuple[str, str], Policy] = {}
        self._ranked: list[Policy] | None = None  # the highest priority first; None: to be sorted again
        for policy in policies:
            self.put(policy)

    def put(self, policy: Policy, *, is_stored: bool = False) -> None:
        """Adds a policy, or replaces the one of its name; one that is not valid changes nothing."""
        if not is_stored:
            policy.check()
        self._policies[policy.vhost, policy.name] = policy
        self._ranked = None

    def delete(self, vhost: str, name: str) -> bool:
        """Removes a policy; says whether there was one."""
        self._ranked = None
        return self._policies.pop((vhost, name), None) is not None

    def delete_vhost(self, vhost: str) -> None:
        """Removes all policies of a vhost that is gone."""
        for key in [key for key in self._policies if key[0] == vhost]:
            del self._policies[key]
        self._ranked = None

    def get(self, vhost: str, name: str) -> Policy | None:
        """The policy of that name."""
        return self._policies.get((vhost, name))

    def list(self, vhost: str | None = None) -> tuple[Policy, ...]:
        """The policies of a vhost, or all, in the order of their names."""
        return tuple(policy for key, policy in sorted(self._policies.items()) if vhost in {None, key[0]})

    def effective(
        self, kind: Kind, name: str, queue_type: QueueType | None = None, vhost: str | None = None
    ) -> Policy | None:
        """The one that applies, in `vhost` if several share the collection.

        Among equal priorities RabbitMQ promises nothing; here the first name wins.
        """
        if self._ranked is None:
            self._ranked = sorted(self.list(), key=lambda policy: -policy.priority)
        for policy in self._ranked:
            if vhost in {None, policy.vhost} and policy.matches(kind, name, queue_type):
                return policy
        return None

    def to_json(self, vhost: str | None = None) -> tuple[dict[str, Any], ...]:
        """What stands under `policies` in RabbitMQ's definitions."""
        return tuple(policy.to_json() for policy in self.list(vhost))

    def load(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Puts the `policies` of RabbitMQ's definitions: all of them, or none if one is not valid."""
        for policy in [Policy.from_json(row) for row in rows]:
            self.put(policy)


# --- What a policy changes --------------------------------------------------------------------------------


def merge(options: QueueOptions, definition: Mapping[str, Any], features: Features = ALL_ON) -> QueueOptions:
    """What a queue is under a policy: its own arguments and the policy's definition together."""
    ours: dict[str, Any] = {name: getattr(options, name) for name in options.given}
    changes: dict[str, Any] = {}
    for key, value in definition.items():
        name = key.replace("-", "_")
        if features.switch_off_of(key) or name not in _MERGES:
            continue
        if name == "overflow" and value == "reject-publish-dlx" and options.queue_type == "quorum":
            continue  # a quorum queue does not know it and keeps what it has
        if name == "delivery_limit" and options.queue_type != "quorum":
            continue
        if name == "overflow" and options.queue_type == "quorum":
            changes[name] = value  # of a classic queue the argument wins
            continue
        changes[name] = _MERGES[name](ours[name], value) if name in ours else value
    return replace(options, **changes)


def combined(policy: Policy | None, operator: Policy | None) -> Mapping[str, Any]:
    """The definition in force where a policy and an operator policy apply: of two values mostly the stricter one."""
    definition = dict(policy.definition) if policy else {}
    for key, value in operator.definition.items() if operator else ():
        definition[key] = _COMBINED[key](definition[key], value) if key in definition else value
    return definition


def alternate_exchange(argument: str | None, definition: Mapping[str, Any]) -> str | None:
    """Where an exchange sends what it cannot route: the argument wins over the policy."""
    return definition.get("alternate-exchange") if argument is None else argument


def _argument_wins(argument: Any, _policy: Any) -> Any:
    return argument


def _policy_wins(_argument: Any, policy: Any) -> Any:
    """The second value: that of a policy over an argument, or that of an operator policy over a policy."""
    return policy


def _limit(argument: int, policy: int) -> int:
    """Below zero is unlimited, so that the other one is the stricter."""
    return max(argument, policy) if min(argument, policy) < 0 else min(argument, policy)


_MERGES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "dead_letter_exchange": _argument_wins,
    "dead_letter_routing_key": _argument_wins,
    "dead_letter_strategy": _argument_wins,
    "overflow": _argument_wins,
    "message_ttl": min,
    "expires": min,
    "max_length": min,
    "max_length_bytes": min,
    "delivery_limit": _limit,
    "consumer_timeout": min,
    "delayed_retry_type": _policy_wins,
    "delayed_retry_min": min,
    "delayed_retry_max": min,
}


# How the value of a policy and that of an operator policy become one.
_COMBINED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "expires": min,
    "message-ttl": min,
    "max-length": min,
    "max-length-bytes": min,
    "max-in-memory-length": min,
    "max-in-memory-bytes": min,
    "delivery-limit": _limit,
    "queue-version": _policy_wins,
    "overflow": _policy_wins,
    "target-group-size": max,
    "delayed-retry-type": _policy_wins,
    "delayed-retry-min": max,
    "delayed-retry-max": min,
}


# --- What is wrong with a policy --------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _at_least(low: int, high: int | None = None) -> _Valid:
    return lambda value: type(value) is int and value >= low and (high is None or value <= high)


def _among(*values: object) -> _Valid:
    return lambda value: type(value) is not bool and value in values


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_age(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"0*[1-9][0-9]*[YMDhms]$", value) is not None


_SETTINGS: Final[Mapping[str, tuple[_Valid, str]]] = {
    "alternate-exchange": (_is_text, "alternate exchange name"),
    "consumer-disconnected-timeout": (_at_least(0), "consumer disconnected timeout"),
    "consumer-timeout": (_at_least(0), "consumer timeout"),
    "dead-letter-exchange": (_is_text, "dead letter exchange name"),
    "dead-letter-routing-key": (_is_text, "dead letter routing key"),
    "dead-letter-strategy": (_among("at-most-once", "at-least-once"), "dead letter strategy"),
    "message-ttl": (_at_least(0), "message TTL"),
    "expires": (_at_least(1), "queue expiry"),
    "max-length": (_at_least(0), "maximum length"),
    "max-length-bytes": (_at_least(0), "maximum length in bytes"),
    "max-in-memory-length": (_at_least(0), "maximum memory in bytes"),
    "max-in-memory-bytes": (_at_least(0), "maximum memory in bytes"),
    "queue-mode": (_among("default", "lazy"), "queue-mode value"),
    "queue-version": (_among(1, 2), "queue-version value"),
    "overflow": (_among("drop-head", "reject-publish", "reject-publish-dlx"), "overflow value"),
    "delivery-limit": (_is_int, "delivery limit"),
    "max-age": (_is_age, "max age"),
    "queue-leader-locator": (
        _among("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "initial-cluster-size": (_at_least(0), "cluster size"),
    "target-group-size": (_at_least(1), "qq target count value"),
    "delayed-retry-type": (
        _among("all", "failed", "returned", "disabled"),
        "delayed retry type. Must be one of: all, failed, returned, disabled",
    ),
    "delayed-retry-min": (_at_least(1), "delayed retry minimum delay. Must be a positive integer"),
    "delayed-retry-max": (_at_least(1), "delayed retry maximum delay. Must be a positive integer"),
}
# RabbitMQ looks at these after all others.
_CHECKED_LAST: Final = frozenset(
    {"target-group-size", "delayed-retry-type", "delayed-retry-min", "delayed-retry-max"}
)


def _definition_problem(name: str, definition: Any, settings: Collection[str]) -> str | None:
    if not isinstance(definition, Mapping):
        return f"parse error while reading policy {name}: {_term(definition)}. Validator: policy_validator."
    if not definition:
        return "no policy provided"
    for key in sorted(definition.keys() & set(settings), key=lambda key: (key in _CHECKED_LAST, key)):
        valid, what = _SETTINGS[key]
        if not valid(definition[key]):
            return f"{_term(definition[key])} is not a valid {what}"
    if problem := _delay_problem(definition):
        return problem
    unknown = [
        f"{{{_term(key)},{_term(definition[key])}}}" for key in sorted(definition.keys() - set(settings))
    ]
    return f"[{','.join(unknown)}] are not recognised policy settings" if unknown else None


def _delay_problem(definition: Mapping[str, Any]) -> str | None:
    """What is wrong with delays that are each valid, together."""
    kind, low, high = (definition.get(f"delayed-retry-{part}") for part in ("type", "min", "max"))
    if kind not in (None, "disabled") and low is None:
        return f"delayed-retry-min is required when delayed-retry-type is {kind}"
    if low is not None and high is not None and high < low:
        return f"delayed-retry-max ({high}) must not be smaller than delayed-retry-min ({low})"
    return None


def _apply_to_problem(apply_to: Any) -> str | None:
    if apply_to in APPLY_TO:
        return None
    return (
        f"apply-to '{apply_to}' unrecognised; should be one of: 'queues', 'classic_queues', "
        " 'quorum_queues', 'streams', 'exchanges', or 'all'"
    )


def _pattern_problem(pattern: Any) -> str | None:
    if not isinstance(pattern, str):
        return f"pattern should be a binary but was {_term(pattern)}"
    try:
        NamePattern(pattern)
    except PatternError as error:
        # As Erlang prints the error of PCRE2: its text, and how many octets had been read.
        found = f"{{{erlang_string(error.text)},{error.position}}}"
        return f"pattern should be regular expression but is invalid: {found}"
    return None


def _priority_problem(priority: Any) -> str | None:
    return None if type(priority) is int else f"priority should be a number, actually was {_term(priority)}"


def _term(value: Any) -> str:
    """A JSON value as Erlang prints it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return erlang_binary(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return "#{" + ",".join(f"{_term(key)} => {_term(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_term, value)) + "]"
    return repr(value)
