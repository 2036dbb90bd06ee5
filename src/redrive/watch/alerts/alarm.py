"""Evaluate measurements: update the incidents, and return the alerts.

The incidents of all rules and subjects are in a `Book`. Measurements go in, alerts come out in the order in which they
are to be sent. There is no clock and no I/O here: time is passed in, and others store the book and send the alerts.

A cause is evaluated before its consequences, and while a cause is found, even if only suspected, consequences at the
same broker are not evaluated. A subject that was not measured stays as it is. Incidents of one broker never touch those
of another: several servers with several brokers may share a book.

Where a server measures itself, each server has separate incidents. Where servers observe something shared, an incident
that one of them finds is not ended by another one. In both cases another server ends it once the finder is silent.

The id of an incident follows from its rule, broker, subject and server. A server that cannot read the stored incidents,
because it was started while the store is unavailable, raises the same incident again and not a second one.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

import msgspec

from redrive.watch.alerts.alert import Alert, Occasion
from redrive.watch.alerts.incidents import (
    Finding,
    Incident,
    Policy,
    acknowledged,
    begun,
    found_by,
    is_found_by_another,
    is_silent,
    stepped,
    told,
    waited,
)
from redrive.watch.alerts.links import see_more
from redrive.watch.alerts.rules import MEASURES, RULES, AlertRule, Measured, Scope, checked
from redrive.watch.alerts.windows import Window

_MAX_INCIDENTS: Final = 1000  # at a time
_MAX_OVER: Final = 200  # incidents that are over


class Book(msgspec.Struct, kw_only=True):
    """The incidents as they are stored."""

    current: dict[str, Incident] = {}  # by `_key`; those that are only suspected included
    over: list[Incident] = []  # the latest that have ended, the last one last

    def open(self) -> list[Incident]:
        """Those for which an alert was raised."""
        return [incident for incident in self.current.values() if incident.is_open]

    def acknowledge(self, incident_id: str, by: str, now: datetime) -> Incident | None:
        """Acknowledge an incident. None: no open incident has this id."""
        for key, incident in self.current.items():
            if incident.id == incident_id and incident.is_open:
                self.current[key] = acknowledged(incident, by, now)
                return self.current[key]
        return None


class Alarm:
    """Turns measurements into incidents and alerts."""

    def __init__(
        self,
        rules: Iterable[AlertRule] = RULES,
        policy: Policy | None = None,
        windows: Iterable[Window] = (),
        *,
        make_id: Callable[[str], str] | None = None,
        server: str = "",
        silence: timedelta = timedelta(minutes=1),
        link: Callable[[Incident], str | None] | None = None,
    ) -> None:
        """`link` gives a URL for an incident, or a command that shows more; by default it is a command.

        `server` is the name of the server that measures: unique among those that share a store, and the same after a
        restart. It ends an incident of another server if that server has not found it for `silence`. `make_id` makes
        the id of an incident from its key.
        """
        self.rules: Mapping[str, AlertRule] = {rule.name: rule for rule in checked(rules)}
        self._policy = policy or Policy()
        self._windows = tuple(windows)
        self._make_id = make_id or _incident_id
        self._server = server
        self._silence = silence
        self._link = link or self._command

    def subjects(self, book: Book, measure: str, broker: str | None = None) -> set[str]:
        """The subjects of current incidents: they must be measured, so that the incidents can end."""
        return {
            incident.subject
            for incident in book.current.values()
            if incident.rule in self.rules
            and self.rules[incident.rule].measure == measure
            and incident.broker in (broker, None)
            and incident.server in (self._server, None)
        }

    def would_alert(self, book: Book, measured: Iterable[Measured], now: datetime) -> bool:
        """Whether `looked` would give an alert for one of these; the book is not changed."""
        for one in measured:
            for rule in self.rules.values():
                if rule.measure != one.measure or (finding := _finding(rule, one)) is None:
                    continue
                incident = book.current.get(self._key_of(rule, one))
                if incident is None:
                    incident = begun("", rule.name, one.subject, finding, now, broker=one.broker)
                _, occasion = stepped(incident, finding, now, self._policy, confirm=rule.confirm)
                if (
                    occasion is not None
                    and not self._is_quiet(incident, now)
                    and _place(one) not in self._hidden(book, rule)
                ):
                    return True
        return False

    def looked(self, book: Book, measured: Iterable[Measured], now: datetime) -> list[Alert]:
        """The alerts after these measurements; the book is brought up to date.

        Subjects that were not measured stay as they are. Incidents of rules that do not exist any more end.
        """
        alerts = list(self._end_obsolete(book, now))
        seen = list(measured)
        looked_at: set[str] = set()
        for rule in sorted(self.rules.values(), key=lambda rule: not rule.hides):
            hidden = self._hidden(book, rule)
            for one in seen:
                if one.measure == rule.measure and _place(one) not in hidden:
                    looked_at.add(self._key_of(rule, one))
                    alerts += self._look(book, rule, one, now)
        for key, incident in list(book.current.items()):
            if key not in looked_at:
                alerts += self._not_measured(book, key, incident, now)
        return alerts

    def _end_obsolete(self, book: Book, now: datetime) -> Iterable[Alert]:
        """End the incidents of rules that were renamed, switched off or removed, so that receivers close them."""
        for key, incident in list(book.current.items()):
            if incident.rule in self.rules and key == _key(
                incident.rule, incident.broker, incident.subject, incident.server
            ):
                continue
            if not incident.is_open:
                del book.current[key]
            elif not self._is_quiet(incident, now):
                yield self._tell(book, key, incident, Occasion.RECOVERED, now)

    def _not_measured(self, book: Book, key: str, incident: Incident, now: datetime) -> Iterable[Alert]:
        """Escalate what nobody acknowledges, and end an incident of a server that no longer measures it."""
        quiet = self._is_quiet(incident, now)
        if self._is_about_another_server(incident) and is_silent(incident, now, self._silence):
            after, occasion = stepped(incident, None, now, self._policy, quiet=quiet)
            return self._update(book, key, after, occasion, now)
        return self._update(book, key, incident, waited(incident, now, self._policy, quiet=quiet), now)

    def _is_about_another_server(self, incident: Incident) -> bool:
        rule = self.rules.get(incident.rule)
        if rule is None or MEASURES[rule.measure].scope is not Scope.SERVER:
            return False
        return incident.server != self._server

    def _look(self, book: Book, rule: AlertRule, one: Measured, now: datetime) -> Iterable[Alert]:
        key = self._key_of(rule, one)
        finding = _finding(rule, one)
        incident = book.current.get(key)
        if incident is None:
            if finding is None or len(book.current) >= _MAX_INCIDENTS:
                return ()
            incident = begun(
                self._make_id(key),
                rule.name,
                one.subject,
                finding,
                now,
                broker=one.broker,
                server=self._server_of(rule),
            )
        after, occasion = stepped(
            incident, finding, now, self._policy, confirm=rule.confirm, quiet=self._is_quiet(incident, now)
        )
        if MEASURES[rule.measure].scope is not Scope.SHARED:
            elsewhere = is_found_by_another(incident, self._server, now, self._silence)
            if finding is None and elsewhere:
                return ()
            if finding is not None and after is not None and not elsewhere:
                after = found_by(after, self._server, now, self._silence)
        return self._update(book, key, after, occasion, now)

    def _update(
        self, book: Book, key: str, after: Incident | None, occasion: Occasion | None, now: datetime
    ) -> Iterable[Alert]:
        if after is None:
            del book.current[key]
            return ()
        book.current[key] = after
        return () if occasion is None else (self._tell(book, key, after, occasion, now),)

    def _key_of(self, rule: AlertRule, one: Measured) -> str:
        return _key(rule.name, one.broker, one.subject, self._server_of(rule))

    def _server_of(self, rule: AlertRule) -> str | None:
        return self._server if MEASURES[rule.measure].scope is Scope.SERVER else None

    def _tell(self, book: Book, key: str, incident: Incident, occasion: Occasion, now: datetime) -> Alert:
        after = told(incident, occasion, now)
        if after.over_at is None:
            book.current[key] = after
        else:
            del book.current[key]
            book.over = [*book.over[1 - _MAX_OVER :], after]
        return alert_of(incident, occasion, now, self._link(incident))

    def _command(self, incident: Incident) -> str:
        rule = self.rules.get(incident.rule)
        return see_more("" if rule is None else rule.measure, incident)

    def _hidden(self, book: Book, rule: AlertRule) -> set[tuple[str | None, str]]:
        """Brokers and components at which violations of this rule would only be consequences."""
        causes = {cause.name for cause in self.rules.values() if rule.name in cause.hides}
        return {
            (incident.broker, incident.found.component)
            for incident in book.current.values()
            if incident.rule in causes and incident.fine_since is None
        }

    def _is_quiet(self, incident: Incident, now: datetime) -> bool:
        return any(window.is_open(now, incident.found.queue) for window in self._windows)


def _key(rule: str, broker: str | None, subject: str, server: str | None) -> str:
    key = f"{rule}:{broker or ''}:{subject}"
    return key if server is None else f"{key}@{server}"


def _incident_id(key: str) -> str:
    return f"i-{sha256(key.encode(errors='surrogatepass')).hexdigest()[:16]}"


def _place(one: Measured) -> tuple[str | None, str]:
    return one.broker, one.component


def alert_of(incident: Incident, occasion: Occasion, now: datetime, link: str | None = None) -> Alert:
    """The alert about an incident."""
    found = incident.found
    is_over = occasion is Occasion.RECOVERED
    return Alert(
        incident=incident.id,
        occasion=occasion,
        severity=(incident.told_severity if is_over else None) or found.severity,
        rule=incident.rule,
        text=found.text.removesuffix(found.next).rstrip() if is_over and found.next else found.text,
        component=found.component,
        broker=incident.broker,
        server=incident.server,
        queue=found.queue,
        error_type=found.error_type,
        group=found.group,
        counts=found.counts,
        correlation_ids=found.correlation_ids,
        link=link,
        escalations=incident.escalations,
        since=incident.began_at,
        time=now,
    )


def _finding(rule: AlertRule, one: Measured) -> Finding | None:
    judged = rule.judged(one.value)
    if judged is None:
        return None
    severity, limit = judged
    return Finding(
        severity=severity,
        badness=float(-one.value if rule.below else one.value),
        text=rule.told(one.subject, one.value, limit, one.queue, one.next),
        component=one.component,
        queue=one.queue,
        error_type=one.error_type,
        group=one.group,
        letter_id=one.letter_id,
        is_news=one.is_news,
        next=one.next,
        counts=one.counts,
        correlation_ids=one.correlation_ids,
    )
