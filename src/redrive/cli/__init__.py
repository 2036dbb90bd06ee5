"""The command line: one file per group of commands, imported when a command is called.

`main` is the console script. A command prints its result on standard output, or one line on standard error and exits
with a code that is not zero. Errors of redrive and closed pipes never print a traceback.
"""

import io
import os
import sys


def main() -> None:
    """Run the command line."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters outside its encoding are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    if (code := _answer(sys.argv[1:])) != 0:
        sys.exit(code)


def _answer(args: list[str]) -> int:
    """The exit code, after the output has been written."""
    try:
        code = _run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:  # else the interpreter writes the rest again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141  # the reader closed the pipe: 128 and the number of SIGPIPE
        print(f"redrive: system error: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    return code


def _run(args: list[str]) -> int:
    if args == ["--version"]:  # before anything else is imported
        from redrive._version import __version__

        print(f"redrive {__version__}")  # noqa: T201
        return 0
    from redrive.cli.root import run

    return run(args)
