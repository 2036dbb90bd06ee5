"""The command line: one file per group of verbs, each imported only when it is called.

`main` is what the console script runs. It keeps one rule: whoever calls gets either an answer on standard
output, or one line on standard error and an exit code that is not zero; never a traceback for something that
redrive itself refused, nor for an output that nobody takes.
"""

import io
import os
import sys


def main() -> None:
    """Run the command line."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what its encoding does not have is shown as its escape
        sys.stdout.reconfigure(errors="backslashreplace")
    if (code := _answer(sys.argv[1:])) != 0:
        sys.exit(code)


def _answer(args: list[str]) -> int:
    """The exit code, after the answer has been written."""
    try:
        code = _run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:  # the interpreter would try to write the rest of it once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141  # whoever read it went away
        print(f"redrive: the system refused: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    return code


def _run(args: list[str]) -> int:
    if args == ["--version"]:  # answered before anything else is imported
        from redrive._version import __version__

        print(f"redrive {__version__}")  # noqa: T201  this is the answer
        return 0
    from redrive.cli.root import run

    return run(args)
