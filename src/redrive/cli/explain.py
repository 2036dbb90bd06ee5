"""`redrive explain`: how an error is classified."""

import os
from datetime import timedelta
from pathlib import Path

import click

from redrive.cli.output import to_json
from redrive.clock import SystemClock
from redrive.errors import on_one_line
from redrive.rules import Exhausted, choose, format_duration
from redrive.settings import load


@click.command("explain")
@click.argument("text")
@click.option("--type", "error_type", default="", help="The type of the error, such as TimeoutError.")
@click.option("--status", type=click.IntRange(100, 599), help="The HTTP status of the error.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def command(path: Path | None, text: str, error_type: str, status: int | None, as_json: bool) -> None:  # noqa: FBT001
    """Also shows what the consumer and the recovery would do with the message.

    \b
    Examples:
      redrive explain "External API timeout after 5000ms"
      redrive explain --type ValueError "duplicate invoice 4711"
      redrive explain --status 503 "upstream said no" --json
    """
    settings = load(path, os.environ)
    now = SystemClock().now()
    classifier = settings.classifier()
    found = classifier.classify_text(error_type, text, status, now)
    plan = choose(found.kind, 0, now, found.retry_after, settings.strategy_options())
    due = None if isinstance(plan, Exhausted) or plan.due is None else plan.due - now
    answer = {
        "kind": str(found.kind),
        "retryable": found.retryable,
        "rule": found.rule,
        "strategy": None if isinstance(plan, Exhausted) else str(plan.strategy),
        "redrive_in": None if due is None else format_duration(timedelta(seconds=round(due.total_seconds()))),
        "shown_as": settings.redactor().clean_error(error_type or "Error", text),
    }
    if as_json:
        click.echo(to_json(answer))
        return
    click.echo(f"kind       {answer['kind']}")
    consumer = "retries the message" if found.retryable else "dead-letters the message immediately"
    click.echo(f"consumer   {consumer} (rule: {found.rule})")
    when = "by a person" if due is None else f"after {answer['redrive_in']}"
    click.echo(f"recovery   {answer['strategy']}, {when}")
    click.echo(on_one_line(f"shown as   {answer['shown_as']}"))
