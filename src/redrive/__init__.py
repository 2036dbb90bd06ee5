"""Redrive: the dead-letter system for Python services.

These are the public names. Each is imported from its room when it is first asked for, so that a program pays for
what it uses, and `redrive --version` for nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from redrive._version import __version__

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.clock import Clock, SystemClock
    from redrive.consume import ConsumeOptions, Context, FloodOptions
    from redrive.errors import RedriveError
    from redrive.letters import (
        Attempt,
        DeadLetter,
        Failure,
        Headers,
        Hold,
        Kind,
        LetterHead,
        Message,
        Note,
        Origin,
        State,
        Typed,
    )
    from redrive.letters.event import DeadLetterEvent
    from redrive.letters.redact import Redactor
    from redrive.publisher import publish
    from redrive.rules import Classification, Classifier, Exponential, Fixed, Listed, Rule, decide, failure_of
    from redrive.settings import Settings, StoreSettings
    from redrive.stores import open_store
    from redrive.stores.base import Store
    from redrive.stores.changes import Exhaust, Park, Release, Resolve, Retry, Settlement
    from redrive.stores.query import Query, parse

_ROOMS = {
    "redrive.app": ("App",),
    "redrive.clock": ("Clock", "SystemClock"),
    "redrive.consume": ("ConsumeOptions", "Context", "FloodOptions"),
    "redrive.errors": ("RedriveError",),
    "redrive.letters": (
        "Attempt", "DeadLetter", "Failure", "Headers", "Hold", "Kind", "LetterHead", "Message", "Note", "Origin",
        "State", "Typed",
    ),
    "redrive.letters.event": ("DeadLetterEvent",),
    "redrive.letters.redact": ("Redactor",),
    "redrive.publisher": ("publish",),
    "redrive.rules": ("Classification", "Classifier", "Exponential", "Fixed", "Listed", "Rule", "decide", "failure_of"),
    "redrive.settings": ("Settings", "StoreSettings"),
    "redrive.stores": ("open_store",),
    "redrive.stores.base": ("Store",),
    "redrive.stores.changes": ("Exhaust", "Park", "Release", "Resolve", "Retry", "Settlement"),
    "redrive.stores.query": ("Query", "parse"),
}  # fmt: skip
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "App", "Attempt", "Classification", "Classifier", "Clock", "ConsumeOptions", "Context", "DeadLetter",
    "DeadLetterEvent", "Exhaust", "Exponential", "Failure", "Fixed", "FloodOptions", "Headers", "Hold",
    "Kind", "LetterHead", "Listed", "Message", "Note", "Origin", "Park", "Query", "Redactor",
    "RedriveError", "Release", "Resolve", "Retry", "Rule", "Settings", "Settlement", "State", "Store",
    "StoreSettings", "SystemClock", "Typed", "__version__", "decide", "failure_of", "open_store", "parse",
    "publish",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        return getattr(import_module(_ROOM_OF[name]), name)
    raise AttributeError(f"module 'redrive' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
