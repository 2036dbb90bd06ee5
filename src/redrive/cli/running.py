"""What do the commands have in common that run until somebody stops them?

They log as their caller asks, run on the fastest event loop there is, and end in order at the first signal, at once at
the second.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import click

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
PORT: Final = click.IntRange(0, 65535)
_INTERRUPTED: Final = 130  # as a shell has it: 128 and the number of SIGINT


def logging_options(command: F) -> F:
    """`--log-level` and `--log-format`."""
    command = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How it is logged.",
    )(command)
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="What is logged.",
    )(command)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do the work on uvloop where that exists."""
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def on_signal(stop: Callable[[], None]) -> None:
    """SIGINT and SIGTERM stop in order; a second one ends the process, whatever it is doing."""
    loop = asyncio.get_running_loop()
    asked = False

    def once() -> None:
        nonlocal asked
        if asked:
            os._exit(_INTERRUPTED)
        asked = True
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, once)
