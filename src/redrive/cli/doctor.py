"""`redrive doctor`: what would be lost on this broker, who else can read the files, and how is that corrected?"""

import asyncio
import os
from collections.abc import Sequence

import click
import msgspec

from redrive.cli.file_permissions import permission_findings
from redrive.cli.output import as_json
from redrive.cli.sources import Place, place_of, place_options
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
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Look for what loses messages on the broker, say what would be lost, and how it is mended.

    Also reports files of redrive on this machine that other users can read. Nothing is changed.
    Exit code 0: no fault, or only information; 1: warnings or errors.

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
    if for_programs:
        click.echo(as_json({"broker": place.broker.place, **diagnosis.as_table()}, indent=2))
    else:
        _tell(place, diagnosis)
    if not diagnosis.healthy:
        raise RedriveError(_summary(place, diagnosis))


def _tell(place: Place, diagnosis: Diagnosis) -> None:
    for finding in diagnosis.findings:
        click.echo(on_one_line(f"{finding.severity}: {finding.text}  [{finding.rule}]"))
        click.echo(on_one_line(f"    lost: {finding.loss}"))
        click.echo(on_one_line(f"    mend: {finding.mend}"))
    if diagnosis.unseen:
        click.echo(on_one_line(f"could not see: {'; '.join(diagnosis.unseen)}"))
    if diagnosis.healthy:
        click.echo(on_one_line(_summary(place, diagnosis)))


def _summary(place: Place, diagnosis: Diagnosis) -> str:
    count = len(place.sources)
    told = f"{count} source{'s' if count != 1 else ''} on {place.broker.place}"
    numbers = {
        kind: sum(finding.severity == kind for finding in diagnosis.findings) for kind in ("error", "warning")
    }
    faults = [f"{number} {kind}{'s' if number != 1 else ''}" for kind, number in numbers.items() if number]
    return f"{told}: {', '.join(faults) or 'no fault found'}"
