"""`redrive alerts`: list and acknowledge incidents, show the rules, and test the notifiers.

Incidents are read from the store, where servers keep them. Rules and notifiers are those of the settings that this
command reads; a running server has those that it was started with.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import click
import msgspec

from redrive.cli.letter_table import plain, relative_time
from redrive.cli.output import to_json
from redrive.cli.selection import ListByDefault, actor, pluralise, run_with_store, store_options
from redrive.cli.table import Cell, Coloured, table
from redrive.clock import Clock, SystemClock
from redrive.errors import (
    IncidentNotFoundError,
    QueryError,
    RedriveError,
    SettingsError,
    on_one_line,
    use_instead,
)
from redrive.settings import NotifierSettings, Settings, load
from redrive.stores.base import Store
from redrive.stores.checks import check_name
from redrive.watch.alerts.alarm import Book
from redrive.watch.alerts.alert import Alert, Occasion, Severity
from redrive.watch.alerts.delivering import Notifier, attempt
from redrive.watch.alerts.incidents import Incident
from redrive.watch.alerts.links import see_more
from redrive.watch.alerts.rules import MEASURES, RULES, AlertRule, number
from redrive.watch.alerts.written import Document, Written

_COLOURS: Final = {Severity.WARNING: "yellow", Severity.CRITICAL: "red"}
_MAX_ENDED: Final = 20  # in the table; JSON has all
_MAX_NAME_CHARS: Final = 200
_TEST: Final = "TEST: this is a test alert from redrive. No action is required."


@click.group("alerts", cls=ListByDefault)
def command() -> None:
    """Without a command: list.

    \b
    Examples:
      redrive alerts
      redrive alerts --all --json
      redrive alerts ack i-3f9a
      redrive alerts test
    """


# --- incidents -------------------------------------------------------------------------------------------


@command.command("list")
@click.option("--all", "with_ended", is_flag=True, help="Include the latest incidents that have ended.")
@store_options
@click.pass_obj
def list_(
    path: Path | None,
    with_ended: bool,  # noqa: FBT001  click passes flags by name
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """List the open incidents, the most severe and oldest first.

    \b
    Examples:
      redrive alerts list
      redrive alerts list --all
      redrive alerts list --server http://127.0.0.1:8642 --json
    """

    async def work(store: Store, settings: Settings) -> tuple[Book, Settings]:
        return await Written(store).book(), settings

    book, settings = run_with_store(path, server, work)
    is_open = sorted(book.open(), key=lambda one: (_severity(one) is not Severity.CRITICAL, one.began_at))
    ended = book.over[::-1] if with_ended else []
    if as_json:
        measures = _measures(settings)
        click.echo(to_json([_data(one, measures) for one in (*is_open, *ended)]))
        return
    if not is_open:
        click.echo("no open incidents")
    titles = ("id", "severity", "since", *(["ended"] if ended else []), "rule", "acknowledged by", "text")
    if is_open or ended:
        shown = (*is_open, *ended[:_MAX_ENDED])
        click.echo(table(titles, [_row(one, with_ended=bool(ended)) for one in shown]))
    if len(ended) > _MAX_ENDED:
        click.echo(f"{len(ended) - _MAX_ENDED} more have ended; --json lists all")


def _severity(incident: Incident) -> Severity:
    """The severity; of an incident that has ended, the last one."""
    return (incident.told_severity if incident.over_at else None) or incident.found.severity


def _row(incident: Incident, *, with_ended: bool) -> list[Cell]:
    severity = _severity(incident)
    ended = [relative_time(incident.over_at) if incident.over_at else ""] if with_ended else []
    return [
        incident.id,
        Coloured(str(severity), _COLOURS[severity]) if incident.over_at is None else str(severity),
        relative_time(incident.began_at),
        *ended,
        incident.rule,
        incident.acknowledged_by or "",
        incident.found.text,
    ]


def _measures(settings: Settings) -> dict[str, str]:
    """The measure of each rule of the settings."""
    from redrive.watch.alerts.made import rules_of

    return {rule.name: rule.measure for rule in rules_of(settings)}


def _data(incident: Incident, measures: Mapping[str, str]) -> dict[str, Any]:
    """An incident as JSON values."""
    found = incident.found
    measure = measures.get(incident.rule)
    return {
        "id": incident.id,
        "severity": _severity(incident),
        "rule": incident.rule,
        "text": found.text,
        "subject": incident.subject,
        "component": found.component,
        "broker": incident.broker,
        "server": incident.server,
        "queue": found.queue,
        "error_type": found.error_type,
        "group": found.group,
        "counts": found.counts,
        "link": None if measure is None else see_more(measure, incident),
        "since": plain(incident.began_at),
        "told_at": plain(incident.told_at),
        "escalations": incident.escalations,
        "acknowledged_by": incident.acknowledged_by,
        "acknowledged_at": plain(incident.acknowledged_at),
        "over_at": plain(incident.over_at),
    }


@command.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--by", metavar="NAME", help="Who acknowledges; default: the current user.")
@store_options
@click.pass_obj
def ack(
    path: Path | None,
    ids: tuple[str, ...],
    by: str | None,
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Acknowledge open incidents: no more alerts are sent until an incident gets worse or ends.

    \b
    Examples:
      redrive alerts ack i-3f9a
      redrive alerts ack i-3f9a i-07c1 --by anna

    The first characters of an id are enough. If one of several incidents is not open, none is acknowledged.
    """
    name = actor() if by is None else by.strip()
    check_name("the name given by --by", name)
    if len(name) > _MAX_NAME_CHARS:
        raise SettingsError(f"the name given by --by is longer than {_MAX_NAME_CHARS} characters")

    async def work(store: Store, settings: Settings) -> tuple[list[Incident], Settings]:
        now = SystemClock().now()

        def change(document: Document) -> list[Incident]:
            return acknowledged(document.book, ids, name, now)

        return await Written(store).change(change), settings

    done, settings = run_with_store(path, server, work)
    if as_json:
        measures = _measures(settings)
        click.echo(to_json([_data(one, measures) for one in done]))
        return
    click.echo(f"{pluralise(len(done), 'incident')} acknowledged by {on_one_line(name)}")


def acknowledged(book: Book, beginnings: Sequence[str], by: str, now: datetime) -> list[Incident]:
    """Acknowledge the open incidents whose ids begin with these characters: all of them, or none and an error."""
    ids = dict.fromkeys([_open_id(book, beginning) for beginning in beginnings])
    return [found for each in ids if (found := book.acknowledge(each, by, now)) is not None]


def _open_id(book: Book, beginning: str) -> str:
    if not beginning:
        raise QueryError("the id is empty; pass at least its first characters")
    said = beginning.lower()
    found = [incident.id for incident in book.open() if incident.id.startswith(said)]
    if said in found or len(found) == 1:
        return said if said in found else found[0]
    if found:
        raise QueryError(
            f"several open incidents have ids that begin with '{beginning:.60}'; pass more characters"
        )
    if any(incident.id.startswith(said) for incident in book.over):
        raise IncidentNotFoundError(
            f"incident '{beginning:.60}' has ended; only open incidents can be acknowledged"
        )
    raise IncidentNotFoundError(f"no open incident has an id that begins with '{beginning:.60}'")


# --- notifiers -------------------------------------------------------------------------------------------


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a test alert at one notifier."""

    name: str
    kind: str
    taken: bool
    seconds: float
    error: str | None


@command.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def test(
    path: Path | None,
    names: tuple[str, ...],
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Send a test alert to all notifiers of the settings, or to those named.

    \b
    Examples:
      redrive alerts test
      redrive alerts test mail chat
      redrive alerts test --json

    Each notifier is tried once. Exit code 1 if one of them did not accept the alert.
    """
    from redrive.watch.alerts.made import notifiers_of

    settings = load(path, os.environ)
    chosen = _chosen(settings, names)
    notifiers = notifiers_of(msgspec.structs.replace(settings, notifiers=chosen), os.environ)
    clock = SystemClock()
    tried = asyncio.run(_tried(chosen, notifiers, _test_alert(clock.now()), clock))
    if as_json:
        click.echo(to_json(plain(tried)))
    else:
        click.echo(table(("notifier", "kind", "seconds", "result"), [_result(one) for one in tried]))
    if failed := sum(not one.taken for one in tried):
        raise RedriveError(f"{failed} of {pluralise(len(tried), 'notifier')} did not accept the test alert")


def _chosen(settings: Settings, names: Sequence[str]) -> tuple[NotifierSettings, ...]:
    known = {one.name: one for one in settings.notifiers}
    if not known:
        raise SettingsError("no notifiers are configured; add a [[notifiers]] table to the settings")
    for name in names:
        if name not in known:
            raise SettingsError(f"no notifier has the name '{name:.60}'{use_instead(name, known)}")
    return tuple(known[name] for name in dict.fromkeys(names or known))


def _test_alert(now: datetime) -> Alert:
    return Alert(
        incident=f"test-{token_hex(8)}",
        occasion=Occasion.RAISED,
        severity=Severity.WARNING,
        rule="test",
        text=_TEST,
        component="redrive",
        since=now,
        time=now,
    )


async def _tried(
    settings: Sequence[NotifierSettings], notifiers: Sequence[Notifier], alert: Alert, clock: Clock
) -> list[Tried]:
    async def one(asked: NotifierSettings, notifier: Notifier) -> Tried:
        began = clock.monotonic()
        try:
            error = await attempt(notifier, alert)
            lasted = clock.monotonic() - began
        finally:
            await notifier.close()
        return Tried(
            name=asked.name,
            kind=asked.type,
            taken=error is None,
            seconds=round(lasted.total_seconds(), 3),
            error=None if error is None else str(error),
        )

    return await asyncio.gather(*map(one, settings, notifiers))


def _result(tried: Tried) -> list[Cell]:
    result = Coloured("accepted", "green") if tried.taken else Coloured(f"failed: {tried.error}", "red")
    return [tried.name, tried.kind, f"{tried.seconds:.3f}", result]


# --- rules -----------------------------------------------------------------------------------------------


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def rules(path: Path | None, as_json: bool) -> None:  # noqa: FBT001  click passes flags by name
    """Show the alert rules with their thresholds and measures.

    \b
    Examples:
      redrive alerts rules
      redrive --config production.toml alerts rules --json

    Rules that cannot be evaluated with these settings are listed with the reason.
    """
    from redrive.transports import kind_of
    from redrive.watch.alerts.made import rules_of, unmeasured

    settings = load(path, os.environ)
    found = rules_of(settings)
    url = settings.broker.url
    reasons = unmeasured(settings, "embedded" if url is None else kind_of(url))
    if as_json:
        click.echo(to_json([_rule_data(rule, reasons.get(rule.measure)) for rule in found]))
        return
    if not found:
        click.echo("all alert rules are disabled; no alerts are sent")
        return
    rows: list[list[Cell]] = [
        [
            rule.name,
            _limit(rule, rule.warning),
            _limit(rule, rule.critical),
            str(rule.confirm),
            _origin(rule),
            Coloured("no", "yellow") if rule.measure in reasons else "yes",
            MEASURES[rule.measure].meaning,
        ]
        for rule in found
    ]
    click.echo(table(("rule", "warning", "critical", "confirm", "origin", "measured", "measure"), rows))
    for rule in found:
        if rule.measure in reasons:
            click.echo(f"not measured: {rule.name}: {reasons[rule.measure]}")


def _limit(rule: AlertRule, limit: float | None) -> str:
    return "" if limit is None else f"{'<' if rule.below else '>'} {number(limit, rule.measure)}"


def _origin(rule: AlertRule) -> str:
    shipped = {each.name: each for each in RULES}
    if rule.name not in shipped:
        return "own"
    return "shipped" if rule == shipped[rule.name] else "changed"


def _rule_data(rule: AlertRule, reason: str | None) -> dict[str, Any]:
    """A rule as JSON values."""
    fields = plain(rule)
    return {
        **fields,
        "hides": sorted(rule.hides),
        "measures": MEASURES[rule.measure].meaning,
        "measured": reason is None,
        "not_measured_because": reason,
        "origin": _origin(rule),
    }
