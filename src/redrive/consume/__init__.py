"""Delivery → handler → decision → settlement: the runtime that a service author touches first.

`pipe` is the life of one delivery, `runner` consumes one source, `consumer` several of them. `handler` and `decoding`
know how a user's function is called, `context` what it may know and ask for; `settling`, `slots` and `callbacks`
each do one thing beside the pipe, `crash_log` remembers what ran when a process ended, and `observer` says what can be
heard of it all.
"""

from redrive.consume.callbacks import Callback
from redrive.consume.consumer import Consumer, Subscription
from redrive.consume.context import Context
from redrive.consume.crash_log import state_directory
from redrive.consume.handler import Handler
from redrive.consume.observer import Observer
from redrive.consume.options import ConsumeBreakerOptions, ConsumeOptions

__all__ = [
    "Callback",
    "ConsumeBreakerOptions",
    "ConsumeOptions",
    "Consumer",
    "Context",
    "Handler",
    "Observer",
    "Subscription",
    "state_directory",
]
