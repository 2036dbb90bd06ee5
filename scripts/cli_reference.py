"""Write help texts and the default settings into docs/reference/cli.md: `python scripts/cli_reference.py`.

Between `<!-- help: redrive COMMAND -->` and `<!-- end -->` is the help of a command, between `<!-- config show -->` and
`<!-- end -->` the output of `redrive config show` without a settings file. `tests/test_docs.py` fails if the page is
not up to date.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from redrive import __file__ as package
from redrive.cli.root import cli

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
_WIDTH = 100
_BLOCK = re.compile(r"<!-- (help: [^\n]+|config show) -->\n.*?<!-- end -->", re.DOTALL)


def updated(text: str) -> str:
    """The page with current help texts and settings."""
    return _BLOCK.sub(_block, text)


def _block(found: re.Match[str]) -> str:
    name = found[1]
    if name == "config show":
        content = f"```toml\n{_default_settings()}\n```"
    else:
        content = f"```text\n{_help(name.removeprefix('help: redrive ').split())}\n```"
    return f"<!-- {name} -->\n{content}\n<!-- end -->"


def _help(words: list[str]) -> str:
    context = click.Context(
        cli, info_name="redrive", terminal_width=_WIDTH, help_option_names=["-h", "--help"]
    )
    for word in words:
        group = context.command
        command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if command is None:
            raise SystemExit(f"docs/reference/cli.md: no command 'redrive {' '.join(words)}'")
        context = click.Context(command, parent=context, info_name=word, terminal_width=_WIDTH)
    return context.get_help()


def _default_settings() -> str:
    """The output of `redrive config show` in an empty directory."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-m", "redrive", "config", "show"],
            cwd=directory,
            env={**clean, "PYTHONPATH": str(Path(package).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout.strip()


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")
