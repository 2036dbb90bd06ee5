"""The command line: one file per group of verbs, each imported only when it is called.

`main` is what the console script runs. It keeps one rule: whoever calls gets either an answer on standard
output, or one line on standard error and an exit code that is not zero; never a traceback for something that
redrive itself refused.
"""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:  # answered before anything else is imported
        from redrive._version import __version__

        print(f"redrive {__version__}")  # noqa: T201  this is the answer
        return
    from redrive.cli.root import run

    sys.exit(run(sys.argv[1:]))
