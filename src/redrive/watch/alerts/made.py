"""Make alert rules, maintenance windows and notifiers from the settings.

An `[[alert_rules]]` table with the name of a built-in rule changes the keys that it gives and leaves the rest; with
another name it is a new rule. `[[notifiers]]` configures notifiers and which alerts they get,
`[[maintenance_windows]]` when no alerts are sent.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from redrive.errors import SettingsError, use_instead
from redrive.settings import AlertRuleSettings, NotifierSettings, Settings, resolve
from redrive.watch.alerts.alert import Alert, Occasion, Severity
from redrive.watch.alerts.delivering import Notifier
from redrive.watch.alerts.incidents import Policy
from redrive.watch.alerts.mail import MailNotifier
from redrive.watch.alerts.rules import RENAMED_RULES, RULES, AlertRule, checked
from redrive.watch.alerts.webhook import WebhookNotifier
from redrive.watch.alerts.windows import Window

_PROBED: Final = ("probe_failures", "dead_letter_ratio", "recent_dead_letter_ratio", "stalled")
_RATIOS: Final = ("dead_letter_ratio", "recent_dead_letter_ratio")
RESOLUTION_SPAN: Final = timedelta(days=2)  # letters up to this age are counted by the measure `resolution`


def check(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise `SettingsError` if one of them cannot be made."""
    rules_of(settings)
    windows_of(settings)
    notifiers_of(settings, environ)


def rules_of(settings: Settings) -> tuple[AlertRule, ...]:
    """The built-in rules as they were changed, and the added ones."""
    shipped = {rule.name: rule for rule in RULES}
    for asked in settings.alert_rules:
        if asked.name in RENAMED_RULES:
            raise SettingsError(
                f"alert rule '{asked.name}' was renamed; did you mean '{RENAMED_RULES[asked.name]}'?"
            )
        if not asked.enabled:
            if asked.name not in shipped:
                raise SettingsError(
                    f"alert rule '{asked.name:.60}' cannot be disabled: there is no such built-in rule"
                    f"{use_instead(asked.name, shipped)}"
                )
            del shipped[asked.name]
        else:
            shipped[asked.name] = _rule(asked, shipped.get(asked.name))
    return checked(shipped.values())


def _rule(asked: AlertRuleSettings, shipped: AlertRule | None) -> AlertRule:
    fields: dict[str, Any] = {
        "measure": asked.measure,
        "warning": asked.warning,
        "critical": asked.critical,
        "below": asked.below,
        "confirm": asked.confirmations,
        "text": asked.message,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    if shipped is not None:
        return msgspec.structs.replace(shipped, **given)
    for name in ("measure", "message"):
        if getattr(asked, name) is None:
            raise SettingsError(
                f"alert rule '{asked.name:.60}' is not a built-in rule, so it needs a '{name}'"
                f"{use_instead(asked.name, [rule.name for rule in RULES])}"
            )
    return AlertRule(name=asked.name, **given)


def unmeasured(settings: Settings, broker_kind: str) -> dict[str, str]:
    """Measures that are never taken with these settings, each with the reason.

    `broker_kind` is "embedded" or the kind that the URL of the broker names.
    """
    reasons: dict[str, str] = {}
    if broker_kind == "rabbitmq" and settings.broker.management_url is None:
        reasons |= dict.fromkeys(_PROBED, "broker.management_url is not set")
    elif not settings.sources:
        reasons |= dict.fromkeys(_RATIOS, "no [[sources]] are configured")
    if broker_kind != "kafka":
        reasons["undeliverable"] = "only Kafka has consumer groups that can be missing"
    if settings.retention.resolved < RESOLUTION_SPAN:
        reasons["resolution"] = "retention.resolved deletes resolved letters before they are 2 days old"
    return reasons


def policy_of(settings: Settings) -> Policy:
    """Intervals and limits of alerts."""
    alerts = settings.alerts
    return Policy(
        cool_down=alerts.cooldown,
        calm=alerts.resolve_after,
        escalate_after=alerts.escalate_after,
        escalations=alerts.max_escalations,
    )


def windows_of(settings: Settings) -> tuple[Window, ...]:
    """The maintenance windows."""
    return tuple(
        Window(
            lasts=one.duration, begins=one.start, cron=one.cron, zone=one.time_zone, queues=one.queue_pattern
        )
        for one in settings.maintenance_windows
    )


# --- who is told -----------------------------------------------------------------------------------------------


def notifiers_of(settings: Settings, environ: Mapping[str, str]) -> list[Notifier]:
    """All notifiers; secrets that are given as `env:NAME` are read from `environ`."""
    return [_notifier(one, environ) for one in settings.notifiers]


def _notifier(one: NotifierSettings, environ: Mapping[str, str]) -> Notifier:
    where = f"notifier '{one.name:.60}'"
    try:
        if one.type == "mail":
            for key, value in (("host", one.host), ("from", one.from_), ("to", one.to)):
                if not value:
                    raise SettingsError(f"a mail needs '{key}'")  # noqa: TRY301  the name of the notifier is added
            return MailNotifier(
                name=one.name,
                host=one.host or "",
                port=one.port,
                tls=one.tls,  # type: ignore[arg-type]  # checked there
                user=one.user,
                password=_secret(one.password, environ),
                sender=one.from_ or "",
                recipients=one.to,
                timeout=one.timeout,
            )
        if one.url is None:
            raise SettingsError("needs a 'url'")  # noqa: TRY301  likewise
        secret = _secret(one.secret, environ)
        return WebhookNotifier(
            _secret(one.url, environ) or "",
            one.type,
            name=one.name,
            timeout=one.timeout,
            secret=secret if one.type == "json" else None,
            routing_key=secret if one.type == "pagerduty" else None,
        )
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def _secret(text: str | None, environ: Mapping[str, str]) -> str | None:
    return None if text is None else resolve(text, environ)


def told_to(alert: Alert, notifiers: Iterable[NotifierSettings]) -> Sequence[str]:
    """The names of the notifiers that get an alert."""
    return [one.name for one in notifiers if _wants(one, alert)]


def _wants(one: NotifierSettings, alert: Alert) -> bool:
    if alert.severity is Severity.WARNING and one.min_severity == Severity.CRITICAL:
        return False
    if one.queue_pattern != "*" and not (
        alert.queue is not None and fnmatchcase(alert.queue, one.queue_pattern)
    ):
        return False
    return not one.escalations_only or alert.occasion is Occasion.ESCALATED or alert.escalations > 0
