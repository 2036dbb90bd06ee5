"""`redrive completion`: what a shell needs to complete command lines."""

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print the script by which a shell completes commands and options.

    \b
    Examples:
      redrive completion bash >> ~/.bashrc
      redrive completion zsh >> ~/.zshrc
      redrive completion fish > ~/.config/fish/completions/redrive.fish

    It is what _REDRIVE_COMPLETE=bash_source redrive prints.
    """
    from redrive.cli.root import cli

    kind = get_completion_class(shell)
    if kind is None:  # the choice above names only shells that click knows
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(cli, {}, "redrive", "_REDRIVE_COMPLETE").source().rstrip("\n"))
