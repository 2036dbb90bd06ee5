"""`redrive doctor`: configurations that lose messages, and files that other users can read."""

import asyncio
import os
from collections.abc import Sequence

import click
import msgspec

from redrive.cli.file_permissions import permission_findings
from redrive.cli.output import to_json
from redrive.cli.sources import AdminTarget, place_of, place_options
from redrive.errors import RedriveError, on_one_line
from redrive.settings import load
from redrive.transports.upkeep import Diagnosis


@click.command("doctor")
@place_options
@click.pass_context
def command(
    ctx: click.Context,
    app: str | None,
    names: Sequence[str],
    broker: str | None,
    management_url: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Reports what would be lost and how to fix it, and files of redrive that other users of this machine can read.

    Nothing is changed. Exit codes: 0 no findings, or only information; 1 warnings or errors.

    \b
    Examples:
      redrive doctor --source orders --broker amqp://guest:guest@localhost/
      redrive doctor --source orders --broker kafka://localhost:9092
      redrive doctor shop.consumers:app --json
      redrive doctor --source orders --broker amqp://localhost/ --management-url http://admin:secret@localhost:15672
    """
    place = place_of(ctx.obj, app, names, broker, management_url)
    diagnosis = asyncio.run(place.broker.diagnose(place.sources))
    files = permission_findings(load(ctx.obj, os.environ))
    diagnosis = msgspec.structs.replace(diagnosis, findings=(*diagnosis.findings, *files))
    if as_json:
        click.echo(to_json({"broker": place.broker.place, **diagnosis.as_table()}, indent=2))
    else:
        _print_findings(place, diagnosis)
    if not diagnosis.healthy:
        raise RedriveError(_summary(place, diagnosis))


def _print_findings(place: AdminTarget, diagnosis: Diagnosis) -> None:
    for finding in diagnosis.findings:
        click.echo(on_one_line(f"{finding.severity}: {finding.text}  [{finding.rule}]"))
        click.echo(on_one_line(f"    impact: {finding.loss}"))
        click.echo(on_one_line(f"    fix: {finding.mend}"))
    if diagnosis.unseen:
        click.echo(on_one_line(f"not checked: {'; '.join(diagnosis.unseen)}"))
    if diagnosis.healthy:
        click.echo(on_one_line(_summary(place, diagnosis)))


def _summary(place: AdminTarget, diagnosis: Diagnosis) -> str:
    count = len(place.sources)
    subject = f"{count} source{'s' if count != 1 else ''} on {place.broker.place}"
    numbers = {
        kind: sum(finding.severity == kind for finding in diagnosis.findings) for kind in ("error", "warning")
    }
    counts = [f"{number} {kind}{'s' if number != 1 else ''}" for kind, number in numbers.items() if number]
    return f"{subject}: {', '.join(counts) or 'no problems found'}"
