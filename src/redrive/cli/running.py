"""Options and signals of commands that run until they are stopped, and loading of user modules."""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from redrive.errors import SettingsError

if TYPE_CHECKING:
    from redrive.app import App

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
PORT: Final = click.IntRange(0, 65535)
_INTERRUPTED: Final = 130  # 128 and the number of SIGINT, as in a shell


def logging_options(command: F) -> F:
    """`--log-level` and `--log-format`."""
    command = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of log lines.",
    )(command)
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Minimum level of log lines.",
    )(command)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine, on uvloop where it is available."""
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def on_signal(stop: Callable[[], None]) -> None:
    """Call `stop` on the first SIGINT or SIGTERM; the second one ends the process."""
    loop = asyncio.get_running_loop()
    requested = False

    def once() -> None:
        nonlocal requested
        if requested:
            os._exit(_INTERRUPTED)
        requested = True
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, once)


def load_user_app(name: str) -> "App":
    """The app that `module:attribute` names. If its module fails, print the traceback of the user's code."""
    from redrive.app import load_app

    try:
        return load_app(name)
    except SettingsError as error:
        cause = error.__cause__
        frames = None if cause is None else _user_frames(cause.__traceback__)
        if cause is None or (frames is None and not isinstance(cause, SyntaxError)):
            raise
        click.echo("".join(traceback.format_exception(type(cause), cause, frames)), err=True, nl=False)
        raise SettingsError(f"{error} ({_position(cause, frames)})") from cause


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that belongs neither to redrive nor to the import system."""
    own = str(Path(__file__).parents[1])
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if not file.startswith((own, "<frozen")) and "importlib" not in Path(file).parts:
            break
        frames = frames.tb_next
    return frames


def _position(error: BaseException, frames: TracebackType | None) -> str:
    """File and line of the user's code that failed."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    last = traceback.extract_tb(frames)[-1]
    return f"{last.filename}, line {last.lineno}"
