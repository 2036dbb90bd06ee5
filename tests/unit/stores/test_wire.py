"""The names of outcomes and changes on the wire belong to the protocol and stay the same when a class is renamed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from redrive.letters import ClaimToken
from redrive.stores import wire
from redrive.stores.changes import (
    Annotate,
    Archive,
    Assign,
    Change,
    Delete,
    Discard,
    Fail,
    Outcome,
    Park,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    SetBroker,
    Settlement,
    Tag,
    Unclaim,
    action_of,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)


def sent(verb: str, **arguments: Any) -> Any:
    return msgspec.msgpack.decode(wire.ask(verb, arguments))


@pytest.mark.parametrize(
    ("outcome", "name", "action"),
    [
        (Resolve(), "Resolve", "resolve"),
        (Retry(at=AT), "Retry", "retry"),
        (Fail(), "Exhaust", "exhaust"),
        (Park(), "Park", "park"),
        (Unclaim(), "Release", "release"),
    ],
)
def test_outcome_keeps_its_name_on_the_wire_and_in_the_change_log(
    outcome: Outcome, name: str, action: str
) -> None:
    [[hold, [kind, _]]] = sent("settle", settlements=[Settlement(ClaimToken("a", 7), outcome)])["settlements"]
    assert (hold, kind, action_of(outcome)) == (["a", 7], name, action)


@pytest.mark.parametrize(
    ("change", "name", "action"),
    [
        (Schedule(AT), "Schedule", "schedule"),
        (Discard(), "Discard", "discard"),
        (Archive(), "Archive", "archive"),
        (Delete(), "Delete", "delete"),
        (Assign("ann"), "Assign", "assign"),
        (Tag(("a",)), "Tag", "tag"),
        (Prioritise(1), "Prioritise", "prioritise"),
        (Annotate("n"), "Annotate", "annotate"),
        (SetBroker("b"), "SetBroker", "set_broker"),
    ],
)
def test_change_keeps_its_name_on_the_wire_and_in_the_change_log(
    change: Change, name: str, action: str
) -> None:
    [kind, _] = sent("apply", change=change, ids=["a"], by="ann")["change"]
    assert (kind, action_of(change)) == (name, action)


def test_arguments_of_extend_keep_their_names() -> None:
    assert sent("extend", holds=[ClaimToken("a", 7)], lease=timedelta(seconds=1), sent=False) == {
        "holds": [["a", 7]],
        "lease": "PT1S",
        "sent": False,
    }
