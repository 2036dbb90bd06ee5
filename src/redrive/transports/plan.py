"""What has to be made on a broker, what is there already, and what is there but otherwise than wanted?

A plan is a value, the same for every broker; each broker's own `plan` makes it. `show` tells it to people, `as_table`
to programs. The rule: only what is missing is ever made. What differs is told with the way to mend it, and left alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from redrive.errors import TransportError

State: TypeAlias = Literal["same", "missing", "differs", "unseen"]


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be wanted on a broker: a queue, a binding, a topic."""

    kind: ClassVar[str]
    harmless_again: ClassVar[bool] = False  # to make it where it is already changes nothing

    @property
    def title(self) -> str:
        """What it is called."""
        raise NotImplementedError

    @property
    def details(self) -> tuple[str, ...]:
        """What is worth telling of it when it will be made."""
        raise NotImplementedError


class Difference(msgspec.Struct, frozen=True):
    """What is otherwise: None where there is nothing, or should be nothing."""

    what: str
    found: object
    wanted: object


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wanted, and how it stands."""

    wanted: Thing
    state: State
    differences: tuple[Difference, ...] = ()
    mend: str = ""

    @property
    def kind(self) -> str:
        """`queue`, `exchange`, `binding`, `topic`."""
        return self.wanted.kind

    @property
    def name(self) -> str:
        """What it is called."""
        return self.wanted.title


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wanted, in the order in which it can be made, and what could not be seen."""

    items: tuple[Item, ...]
    unseen: tuple[str, ...] = ()
    about: Mapping[str, object] = {}  # what programs are told of the broker besides

    def of(self, *states: State) -> tuple[Item, ...]:
        """The items that stand so."""
        return tuple(item for item in self.items if item.state in states)

    @property
    def to_make(self) -> tuple[Item, ...]:
        """What is missing, and what cannot be seen but may be made again."""
        return tuple(
            item
            for item in self.items
            if item.state == "missing" or (item.state == "unseen" and item.wanted.harmless_again)
        )


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an item of a plan."""

    item: Item
    result: Literal["made", "there", "failed"]  # there: somebody else has made it in the meantime
    error: TransportError | None = None


def raise_failed(done: list[Applied]) -> None:
    """Raises what a failed item failed with."""
    for step in done:
        if step.error is not None:
            raise type(step.error)(f"{step.item.kind} {step.item.name} cannot be created: {step.error}")


# --- told ---------------------------------------------------------------------------------------------------

_MARKS: Final[dict[State, str]] = {"same": "=", "missing": "+", "differs": "~", "unseen": "?"}


def show(plan: Plan) -> Iterator[str]:
    """The plan in lines for people: `+` will be made, `~` differs, `=` is as wanted, `?` exists and is not seen."""
    for item in plan.items:
        yield f"{_MARKS[item.state]} {item.kind:<9}{item.name}{_details(item)}"
        for each in item.differences:
            yield f"    {each.what} is {told(each.found)}, expected {told(each.wanted)}"
        if item.mend:
            yield f"    fix: {item.mend}"


def _details(item: Item) -> str:
    if item.state == "unseen" and item.wanted.harmless_again:
        return "  (unknown; created again, which changes nothing if it exists)"
    return f"  ({', '.join(item.wanted.details)})" if item.state == "missing" else ""


def told(value: object) -> str:
    """A setting's value in a sentence."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) and (not value or " " in value) else str(value)


def as_table(plan: Plan) -> dict[str, Any]:
    """The plan as plain values, for programs."""
    return {
        **plan.about,
        "missing": len(plan.of("missing")),
        "differs": len(plan.of("differs")),
        "items": [
            {
                "kind": item.kind,
                "name": item.name,
                "state": item.state,
                "wanted": msgspec.to_builtins(item.wanted),
                "differences": [msgspec.to_builtins(each) for each in item.differences],
                "mend": item.mend,
            }
            for item in plan.items
        ],
        "unseen": list(plan.unseen),
    }
