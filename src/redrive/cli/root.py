"""Which command is meant, and how do errors reach people and programs?"""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from redrive._version import __version__
from redrive.errors import RedriveError, did_you_mean, on_one_line

# Command → the module that holds it (as `command`, or by a name of its own), imported when the command is called, and
# its line in --help.
_COMMANDS: Final = {
    "alerts": ("redrive.cli.alerts", "See and acknowledge incidents; try how alerts are told."),
    "assign": ("redrive.cli.changing:assign", "Give letters to somebody to look after."),
    "broker": ("redrive.cli.broker", "Run the embedded AMQP broker."),
    "brokers": ("redrive.cli.brokers", "List the registered brokers; release a name."),
    "completion": ("redrive.cli.completion", "Print what a shell needs to complete commands."),
    "config": ("redrive.cli.config", "Check and show the settings."),
    "consume": ("redrive.cli.consume", "Run the handlers of a module."),
    "demo": ("redrive.cli.demo", "Open a small shop in which everything goes wrong."),
    "discard": ("redrive.cli.changing:discard", "Archive letters that nobody is to send back."),
    "doctor": ("redrive.cli.doctor", "Find what would lose messages."),
    "edit": ("redrive.cli.edit", "Change letters before they are sent back."),
    "explain": ("redrive.cli.explain", "Tell what an error is taken for, and why."),
    "export": ("redrive.cli.moving:export", "Write letters to files."),
    "groups": ("redrive.cli.groups", "Group letters by the cause of their failure."),
    "import": ("redrive.cli.moving:import_", "Add the letters of files to the store."),
    "list": ("redrive.cli.list_", "List dead letters."),
    "note": ("redrive.cli.changing:note", "Write a note beside a letter."),
    "operations": ("redrive.cli.replay:operations", "List replays and what became of their letters."),
    "priority": ("redrive.cli.changing:priority", "Set the priority of letters."),
    "provision": ("redrive.cli.provision", "Make queues, exchanges and bindings."),
    "publish": ("redrive.cli.publish", "Publish a message and wait until the broker confirms it."),
    "replay": ("redrive.cli.replay", "Send dead letters back."),
    "resolve": ("redrive.cli.changing:resolve", "Confirm that unconfirmed letters were processed."),
    "set-broker": ("redrive.cli.brokers:set_broker", "Assign letters to a broker."),
    "show": ("redrive.cli.show", "Show a letter and its journey."),
    "serve": ("redrive.cli.serve", "Run everything: collect, send back, answer over HTTP."),
    "stats": ("redrive.cli.stats", "Count dead letters."),
    "store": ("redrive.cli.store", "Look after the dead-letter store."),
    "tag": ("redrive.cli.changing:tag", "Add tags to letters, or remove them."),
    "top": ("redrive.cli.stats:top", "Watch the figures change."),
}


class _Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's interface
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands by the table, so that a key press imports none of them."""
        known = [
            CompletionItem(name, help=line)
            for name, (_, line) in sorted(_COMMANDS.items())
            if name.startswith(incomplete)
        ]
        return known + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS:
            raise click.UsageError(f"no command '{args[0]}'{did_you_mean(args[0], _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(_COMMANDS.items())])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="redrive", message="%(prog)s %(version)s")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="The settings file; without it redrive.toml here.",
)
@click.pass_context
def cli(ctx: click.Context, path: Path | None) -> None:
    """The dead-letter system: keep, explain and send back what could not be processed.

    \b
    Examples:
      redrive consume orders:app
      redrive doctor orders:app
      redrive explain "External API timeout after 5000ms"

    Exit codes: 0 done, 1 failed, 2 wrong settings, filter or usage, 3 the store cannot do it, 4 the broker cannot.
    """
    ctx.obj = path
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def run(args: Sequence[str]) -> int:
    """Run a command line and give its exit code."""
    try:
        cli.main(list(args), prog_name="redrive", standalone_mode=False)
    except RedriveError as error:
        return _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except click.exceptions.Exit as end:
        return end.exit_code
    except SystemExit as end:  # click's own ends: the shell was answered (0), or whoever read went away (1)
        return 141 if end.code else 0
    return 0


def _fail(message: str, code: int) -> int:
    click.echo(f"redrive: {on_one_line(' '.join(message.split()))}", err=True)
    return code
