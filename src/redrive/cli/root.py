"""Find the command, and turn errors into one line and an exit code."""

import copy
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click
from click.shell_completion import CompletionItem

from redrive._version import __version__
from redrive.errors import RedriveError, did_you_mean, on_one_line

# Command → its module (`command` in it, or the name after the colon), imported when the command is called, and the
# first line of its help. The docstring of the command has the rest.
_COMMANDS: Final = {
    "alerts": ("redrive.cli.alerts", "List and acknowledge incidents; send test alerts."),
    "assign": ("redrive.cli.triage:assign", "Assign dead letters to a person."),
    "broker": ("redrive.cli.broker", "Run the embedded AMQP 0-9-1 broker."),
    "brokers": ("redrive.cli.brokers", "List the registered brokers; release a broker name."),
    "completion": ("redrive.cli.completion", "Print the completion script for a shell."),
    "config": ("redrive.cli.config", "Check and show the settings."),
    "consume": ("redrive.cli.consume", "Run the handlers of a module."),
    "demo": ("redrive.cli.demo", "Run a sample shop whose consumers fail in many ways."),
    "discard": ("redrive.cli.triage:discard", "Archive dead letters without redriving them."),
    "doctor": ("redrive.cli.doctor", "Check a broker for configurations that lose messages."),
    "edit": ("redrive.cli.edit", "Edit dead letters before they are redriven."),
    "explain": ("redrive.cli.explain", "Show how an error is classified, and which rule matched."),
    "export": ("redrive.cli.transfer:export", "Write dead letters as JSON lines, CSV or an archive."),
    "groups": ("redrive.cli.groups", "Group dead letters by the cause of their failure."),
    "import": ("redrive.cli.transfer:import_", "Add the letters of archive files to the store."),
    "list": ("redrive.cli.list_", "List dead letters."),
    "note": ("redrive.cli.triage:note", "Add a note to dead letters."),
    "operations": ("redrive.cli.operations", "List replays and their results."),
    "priority": ("redrive.cli.triage:priority", "Set the priority of dead letters."),
    "provision": ("redrive.cli.provision", "Create missing queues, exchanges, bindings and topics."),
    "publish": ("redrive.cli.publish", "Publish a message and wait until the broker confirms it."),
    "replay": ("redrive.cli.replay", "Send dead letters back to their queues."),
    "resolve": (
        "redrive.cli.triage:resolve",
        "Confirm that the messages of unconfirmed letters were processed.",
    ),
    "serve": ("redrive.cli.serve", "Run the server: collect, redrive, alert, answer over HTTP."),
    "set-broker": ("redrive.cli.brokers:set_broker", "Assign dead letters to a broker."),
    "show": ("redrive.cli.show", "Show one dead letter with its message and history."),
    "stats": ("redrive.cli.stats", "Count dead letters by state, broker, source, error, kind and reason."),
    "store": ("redrive.cli.store", "Check the dead-letter store."),
    "tag": ("redrive.cli.triage:tag", "Add tags to dead letters, or remove them."),
    "top": ("redrive.cli.stats:top", "Watch the numbers of dead letters change."),
}
# Options of earlier versions, by command.
_RENAMED_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "alerts list": {"--over": "--all"},
        "discard": {"--why": "--reason"},
        "edit": {"--copies": "--include-closed"},
        "export": {"--to": "--output"},
        "replay": {
            "--batch": "--batch-size",
            "--canary-wait": "--canary-timeout",
            "--copies": "--include-closed",
            "--new-id": "--new-message-id",
            "--skip-done": "--skip-processed",
            "--stop-at": "--max-failure-rate",
            "--to-exchange": "--broadcast",
            "--to-partition": "--same-partition",
        },
        "top": {"--times": "--count"},
    }
)


class _Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's interface
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        place, line = _COMMANDS[cmd_name]
        module, _, name = place.partition(":")
        command: click.Command = copy.copy(getattr(importlib.import_module(module), name or "command"))
        command.help = f"{line}\n\n{command.help or ''}"
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands from the table, without importing them."""
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
    help="The settings file; default: redrive.toml in the current directory.",
)
@click.pass_context
def cli(ctx: click.Context, path: Path | None) -> None:
    """The dead-letter system for Python: collect, inspect, edit and redrive messages that could not be processed.

    \b
    Examples:
      redrive serve
      redrive consume shop:app
      redrive list source:orders
      redrive replay source:orders error:TimeoutError

    Exit codes: 0 success, 1 failure, 2 wrong settings, filter or usage, 3 store error, 4 broker error. NO_COLOR=1 turns
    colours off, FORCE_COLOR=1 turns them on in pipes.
    """
    ctx.obj = path
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    elif os.environ.get("FORCE_COLOR"):
        ctx.color = True


def run(args: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        cli.main(list(args), prog_name="redrive", standalone_mode=False)
    except RedriveError as error:
        return _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.NoSuchOption as error:
        return _fail(_describe_unknown_option(error), error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except click.exceptions.Exit as end:
        return end.exit_code
    except SystemExit as end:  # by click: completion is done (0), or the reader closed the pipe (1)
        return 141 if end.code else 0
    return 0


def _fail(message: str, code: int) -> int:
    click.echo(f"redrive: {on_one_line(' '.join(message.split()))}", err=True)
    return code


def _describe_unknown_option(error: click.NoSuchOption) -> str:
    """The message for an option that does not exist, or no longer exists."""
    option = error.option_name
    command = "" if error.ctx is None else error.ctx.command_path.removeprefix("redrive ")
    if option == "--where":
        return f"no option '--where': filters are positional now: redrive {command} 'source:orders'"
    new = _RENAMED_OPTIONS.get(command, {}).get(option)
    return error.format_message() if new is None else f"no option '{option}'; did you mean '{new}'?"
