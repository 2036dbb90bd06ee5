"""The state machine of incidents: when a violated rule gives an alert.

An incident is one rule violated by one subject, from the first measurement that finds it to its end::

                 found                   alert                     fine for a while
    (nothing) ──────────► suspected ────────────────► open ──────────────────────────► over
                 fine │       │ confirmed often enough  │ ▲
                      ▼       └─────────────────────────┘ │ worse, again, escalated: another alert
                  (nothing)                               └────────────────────────────

`stepped` is a pure function: it takes an incident and a measurement, and returns the incident afterwards and the reason
for an alert, if there is one; `told` is the incident after that alert. The rules:

- one alert per incident, however often it is found; another one only with news and after the cool-down;
- a warning that becomes critical gives an alert at once, and must be acknowledged again;
- an incident that is not acknowledged in time is escalated, a few times;
- an acknowledged incident gives an alert only if it becomes worse, or recovers;
- an incident is over when the rule was not violated for a while, so that flapping gives one alert;
- no alerts during a maintenance window; incidents that are still open afterwards are reported then;
- a measurement that could not be taken changes nothing.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from redrive.watch.alerts.alert import Number, Occasion, Severity

_MOST_IDS: Final = 100  # correlation ids that an alert names
_RANK: Final = {Severity.WARNING: 1, Severity.CRITICAL: 2}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and limits of alerts."""

    cool_down: timedelta = timedelta(minutes=15)  # between two alerts of an incident that is as bad as it was
    calm: timedelta = timedelta(minutes=2)  # it has to be fine for so long to be over
    escalate_after: timedelta = timedelta(minutes=30)  # without an acknowledgement
    escalations: int = 3


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A violation of a rule."""

    severity: Severity
    badness: float  # the higher, the worse
    text: str
    component: str
    queue: str | None = None
    error_type: str | None = None
    group: str | None = None
    letter_id: str | None = None
    is_news: bool = False
    next: str = ""  # the end of `text`: what happens now
    counts: dict[str, Number] = {}
    correlation_ids: tuple[str, ...] = ()


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, violated by one subject."""

    id: str
    rule: str
    subject: str
    broker: str | None = None
    server: str | None = None  # the server that it is about, where each server measures itself
    found: Finding  # the latest, with all correlation ids since it was told
    found_by: str | None = None  # the server that finds it, unless all servers measure the same value
    found_at: datetime | None = None  # when that server last found it, to a quarter of its allowed silence
    hits: int = 1  # looks in a row, as long as it is suspected
    has_news: bool = True  # since it was told
    began_at: datetime
    fine_since: datetime | None = None
    raised_at: datetime | None = None
    told_at: datetime | None = None
    told_badness: float = 0.0
    told_severity: Severity | None = None
    awaited_since: datetime | None = None  # an acknowledgement
    escalations: int = 0  # since then
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    over_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether an alert was raised, and it is not over."""
        return self.raised_at is not None and self.over_at is None


def begun(
    incident_id: str,
    rule: str,
    subject: str,
    found: Finding,
    now: datetime,
    *,
    broker: str | None = None,
    server: str | None = None,
) -> Incident:
    """An incident that was just found, without an alert so far: `stepped` says whether to raise one."""
    return Incident(
        id=incident_id,
        rule=rule,
        subject=subject,
        broker=broker,
        server=server,
        found=found,
        hits=0,
        began_at=now,
    )


def stepped(
    incident: Incident,
    look: Finding | None,
    now: datetime,
    policy: Policy,
    *,
    confirm: int = 1,
    quiet: bool = False,
) -> tuple[Incident | None, Occasion | None]:
    """The incident after a measurement, and the reason for an alert. None: it was only suspected, and is dropped."""
    after = _fine(incident, now) if look is None else _found(incident, look)
    if after is None:
        return None, None
    return after, (None if quiet else _occasion(after, now, policy, confirm))


def waited(incident: Incident, now: datetime, policy: Policy, *, quiet: bool = False) -> Occasion | None:
    """The reason for an alert without a measurement: what a window held back, or a missing acknowledgement."""
    if quiet or not incident.is_open or incident.fine_since is not None:
        return None
    if _is_worse(incident):
        return Occasion.WORSE
    return Occasion.ESCALATED if _is_overdue(incident, now, policy) else None


def told(incident: Incident, occasion: Occasion, now: datetime) -> Incident:
    """The incident after an alert."""
    found = incident.found
    after = msgspec.structs.replace(
        incident,
        found=msgspec.structs.replace(found, correlation_ids=(), is_news=False),
        has_news=False,
        raised_at=incident.raised_at or now,
        told_at=now,
        told_badness=found.badness,
        told_severity=max(found.severity, incident.told_severity or found.severity, key=_RANK.__getitem__),
        escalations=incident.escalations + (occasion is Occasion.ESCALATED),
        over_at=now if occasion is Occasion.RECOVERED else None,
    )
    if occasion not in {Occasion.RAISED, Occasion.WORSE}:
        return after
    # What was acknowledged was something lesser.
    return msgspec.structs.replace(
        after, awaited_since=now, escalations=0, acknowledged_at=None, acknowledged_by=None
    )


def is_found_by_another(incident: Incident, server: str, now: datetime, silence: timedelta) -> bool:
    """Whether another server finds it, and has done so within this time."""
    return (
        incident.found_by not in (None, server)
        and incident.fine_since is None
        and not is_silent(incident, now, silence)
    )


def is_silent(incident: Incident, now: datetime, silence: timedelta) -> bool:
    """Whether the server that finds it has not done so for this time."""
    return incident.found_at is None or now - incident.found_at >= silence


def found_by(incident: Incident, server: str, now: datetime, silence: timedelta) -> Incident:
    """The incident after this server has found it; mostly it is the same, so that it need not be stored."""
    if incident.found_by == server and incident.found_at and now - incident.found_at < silence / 4:
        return incident
    return msgspec.structs.replace(incident, found_by=server, found_at=now)


def acknowledged(incident: Incident, by: str, now: datetime) -> Incident:
    """The incident after its acknowledgement."""
    return msgspec.structs.replace(incident, acknowledged_at=now, acknowledged_by=by)


# --- what a look changes ---------------------------------------------------------------------------------------


def _found(incident: Incident, look: Finding) -> Incident:
    ids = tuple(dict.fromkeys((*incident.found.correlation_ids, *look.correlation_ids)))
    return msgspec.structs.replace(
        incident,
        found=msgspec.structs.replace(
            look, correlation_ids=ids[:_MOST_IDS], queue=look.queue or incident.found.queue
        ),
        hits=incident.hits + (incident.raised_at is None),
        has_news=incident.has_news or look.is_news or look.badness > incident.told_badness,
        fine_since=None,
    )


def _fine(incident: Incident, now: datetime) -> Incident | None:
    if incident.raised_at is None:
        return None
    return incident if incident.fine_since is not None else msgspec.structs.replace(incident, fine_since=now)


# --- what is told of it ------------------------------------------------------------------------------------------


def _occasion(incident: Incident, now: datetime, policy: Policy, confirm: int) -> Occasion | None:
    if incident.told_at is None:
        return Occasion.RAISED if incident.hits >= confirm else None
    if incident.fine_since is not None:
        return Occasion.RECOVERED if now - incident.fine_since >= policy.calm else None
    if _is_worse(incident):
        return Occasion.WORSE
    if incident.acknowledged_at is not None:
        return None
    if _is_overdue(incident, now, policy):
        return Occasion.ESCALATED
    if incident.has_news and now - incident.told_at >= policy.cool_down:
        return Occasion.AGAIN
    return None


def _is_worse(incident: Incident) -> bool:
    known = incident.told_severity
    return known is not None and _RANK[incident.found.severity] > _RANK[known]


def _is_overdue(incident: Incident, now: datetime, policy: Policy) -> bool:
    return (
        incident.awaited_since is not None
        and incident.acknowledged_at is None
        and incident.escalations < policy.escalations
        and now - incident.awaited_since >= policy.escalate_after * (incident.escalations + 1)
    )
