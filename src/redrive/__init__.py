"""Redrive: the dead-letter system for Python services.

These are the public names. Each is imported from its package on first use, so that a program loads only the parts it
uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from redrive._version import __version__

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.clock import Clock, SystemClock
    from redrive.consume import ConsumeBreakerOptions, ConsumeOptions, Context
    from redrive.errors import RedriveError
    from redrive.letters import (
        ClaimToken,
        DeadLetter,
        Failure,
        FailureKind,
        Headers,
        LetterHead,
        LetterState,
        Message,
        Note,
        Origin,
        RedriveAttempt,
        TypedValue,
    )
    from redrive.letters.event import DeadLettered
    from redrive.letters.redact import Redactor
    from redrive.publisher import publish
    from redrive.rules import (
        Classification,
        Classifier,
        DelayList,
        Exponential,
        Fixed,
        Rule,
        decide,
        failure_from_error,
    )
    from redrive.settings import Settings, StoreOptions
    from redrive.stores import open_store
    from redrive.stores.base import Store
    from redrive.stores.changes import Fail, Park, Resolve, Retry, Settlement, Unclaim
    from redrive.stores.query import Query, parse_query
    from redrive.transports import Publication, Target, open_transport

_ROOMS = {
    "redrive.app": ("App",),
    "redrive.clock": ("Clock", "SystemClock"),
    "redrive.consume": ("ConsumeBreakerOptions", "ConsumeOptions", "Context"),
    "redrive.errors": ("RedriveError",),
    "redrive.letters": (
        "ClaimToken", "DeadLetter", "Failure", "FailureKind", "Headers", "LetterHead", "LetterState",
        "Message", "Note", "Origin", "RedriveAttempt", "TypedValue",
    ),
    "redrive.letters.event": ("DeadLettered",),
    "redrive.letters.redact": ("Redactor",),
    "redrive.publisher": ("publish",),
    "redrive.rules": (
        "Classification", "Classifier", "DelayList", "Exponential", "Fixed", "Rule", "decide",
        "failure_from_error",
    ),
    "redrive.settings": ("Settings", "StoreOptions"),
    "redrive.stores": ("open_store",),
    "redrive.stores.base": ("Store",),
    "redrive.stores.changes": ("Fail", "Park", "Resolve", "Retry", "Settlement", "Unclaim"),
    "redrive.stores.query": ("Query", "parse_query"),
    "redrive.transports": ("Publication", "Target", "open_transport"),
}  # fmt: skip
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "App", "ClaimToken", "Classification", "Classifier", "Clock", "ConsumeBreakerOptions", "ConsumeOptions",
    "Context", "DeadLetter", "DeadLettered", "DelayList", "Exponential", "Fail", "Failure", "FailureKind",
    "Fixed", "Headers", "LetterHead", "LetterState", "Message", "Note", "Origin", "Park", "Publication",
    "Query", "Redactor", "RedriveAttempt", "RedriveError", "Resolve", "Retry", "Rule", "Settings",
    "Settlement", "Store", "StoreOptions", "SystemClock", "Target", "TypedValue", "Unclaim", "__version__",
    "decide", "failure_from_error", "open_store", "open_transport", "parse_query", "publish",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        return getattr(import_module(_ROOM_OF[name]), name)
    raise AttributeError(f"module 'redrive' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
