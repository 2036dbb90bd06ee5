"""The formats of notifications.

    as_json          any program: every field, under its own name
    as_slack         Slack's incoming webhooks: a line, and blocks
    as_teams         Teams' workflow webhooks: an Adaptive Card
    as_pagerduty     PagerDuty's Events API v2
    as_alertmanager  POST /api/v2/alerts

Names come from outside, so each is shortened, put on one line, and stripped of anything that the receiver would
interpret: mentions, links, headings. Every part of a format is limited, so no notification is too large for its
receiver.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from html import escape
from typing import Any, Final
from urllib.parse import quote, urlsplit

from redrive.errors import on_one_line
from redrive.watch.alerts.alert import Alert, Severity

MOST_IDS: Final = 20  # correlation ids that people are shown
_MOST_IDS_IN_JSON: Final = 100
_MOST_COUNTS: Final = 10
_SUBJECT: Final = 400  # characters; PagerDuty takes 1,024
_NAME: Final = 200
_ID: Final = 100
_LONGEST_LINK: Final = 2000  # Slack takes 3,000

# Slack takes 3,000 characters in a section and 2,000 in each of its ten fields, but only about 13,000 in all blocks.
_SLACK_HEAD: Final = 1000
_SLACK_NAME: Final = 80
_SLACK_VALUE: Final = 300
_SLACK_FIELDS: Final = 10

_FAR: Final = timedelta(days=30)
_COMMAND: Final = "redrive "


def subject(alert: Alert) -> str:
    """The subject of an alert as one short line."""
    return _short(alert.subject, _SUBJECT)


def facts(alert: Alert) -> list[tuple[str, str]]:
    """The fields of an alert for people, without subject, correlation ids and link."""
    named = [
        ("severity", alert.severity),
        ("occasion", alert.occasion),
        ("rule", alert.rule),
        ("component", alert.component),
        ("broker", alert.broker),
        ("server", alert.server),
        ("queue", alert.queue),
        ("error type", alert.error_type),
        ("group", alert.group),
        *_counts(alert),
        ("since", _rfc3339(alert.since)),
        ("time", _rfc3339(alert.time)),
        ("incident", key(alert.incident)),
        ("see more", command(alert)),
    ]
    return [(_short(name, _ID), _short(value)) for name, value in named if value]


def ids(alert: Alert, most: int = MOST_IDS) -> list[str]:
    """The correlation ids, a bounded number of them, for people."""
    shown = [_short(each, _ID) for each in alert.correlation_ids[:most]]
    left = len(alert.correlation_ids) - len(shown)
    return [*shown, f"and {left} more"] if left else shown


def link(alert: Alert) -> str | None:
    """The link as every receiver takes it, or None if there is none or it is not one."""
    if not alert.link:
        return None
    found = quote(alert.link, safe="%/:?#[]@!$&'()*+,;=~", errors="surrogatepass")
    found = re.sub("%(?![0-9A-Fa-f]{2})", "%25", found)
    return found if is_web_address(found) and len(found) <= _LONGEST_LINK else None


def command(alert: Alert) -> str | None:
    """The command that shows more, where there is no web address."""
    return _short(alert.link, _SUBJECT) if alert.link and alert.link.startswith(_COMMAND) else None


def key(incident: str) -> str:
    """The id of an incident as every receiver takes it; no two become the same."""
    if incident.isprintable() and len(incident) <= _NAME:
        return incident
    return f"{_short(incident, _ID)}-{sha256(incident.encode(errors='surrogatepass')).hexdigest()[:32]}"


def is_web_address(url: str) -> bool:
    """Whether it is one that every receiver takes, as it is written."""
    try:
        parts = urlsplit(url)
        found = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return found and url.isascii() and url.isprintable() and " " not in url


def as_json(alert: Alert) -> dict[str, Any]:
    """Every field under its own name; times as RFC 3339 in UTC."""
    return {
        "incident": key(alert.incident),
        "occasion": alert.occasion.value,
        "severity": alert.severity.value,
        "rule": _short(alert.rule),
        "text": _short(alert.text, _SUBJECT),
        "component": _short(alert.component),
        "broker": _maybe(alert.broker),
        "server": _maybe(alert.server),
        "queue": _maybe(alert.queue),
        "error_type": _maybe(alert.error_type),
        "group": _maybe(alert.group),
        "counts": {_short(name, _ID): n for name, n in list(alert.counts.items())[:_MOST_COUNTS]},
        "correlation_ids": [_short(each, _ID) for each in alert.correlation_ids[:_MOST_IDS_IN_JSON]],
        "correlation_ids_left_out": max(0, len(alert.correlation_ids) - _MOST_IDS_IN_JSON),
        "link": link(alert) or command(alert),
        "escalations": alert.escalations,
        "since": _rfc3339(alert.since),
        "time": _rfc3339(alert.time),
    }


def as_slack(alert: Alert) -> dict[str, Any]:
    """A line for notifications, and blocks for the channel."""
    head = _mrkdwn(subject(alert), _SLACK_HEAD)
    blocks: list[dict[str, Any]] = [{"type": "section", "text": _slack_text(head)}]
    fields = [
        _slack_text(f"*{_mrkdwn(name, _SLACK_NAME)}*\n{_slack_code(value, _SLACK_VALUE)}")
        for name, value in facts(alert)
    ]
    blocks += (
        {"type": "section", "fields": fields[start : start + _SLACK_FIELDS]}
        for start in range(0, len(fields), _SLACK_FIELDS)
    )
    if alert.correlation_ids:
        lines = "\n".join(_slack_code(each, _ID) for each in ids(alert))
        blocks.append({"type": "section", "text": _slack_text(f"*correlation ids*\n{lines}")})
    if url := link(alert):
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open the console"}, "url": url}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": head, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def as_teams(alert: Alert) -> dict[str, Any]:
    """An Adaptive Card. Its names stand in text runs, the only text of a card that is not read as Markdown."""
    color = "good" if alert.is_over else "attention" if alert.severity is Severity.CRITICAL else "warning"
    body = [
        _teams_line({"text": subject(alert), "weight": "bolder", "size": "medium", "color": color}),
        *(
            _teams_line({"text": f"{name}: ", "weight": "bolder"}, {"text": value})
            for name, value in facts(alert)
        ),
    ]
    if alert.correlation_ids:
        body.append(_teams_line({"text": "correlation ids:", "weight": "bolder"}))
        body += (_teams_line({"text": each, "fontType": "monospace"}) for each in ids(alert))
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
    }
    if url := link(alert):
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open the console", "url": url}]
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}


def as_pagerduty(alert: Alert, routing_key: str) -> dict[str, Any]:
    """An event: all alerts of an incident are one alert of PagerDuty, and the last one resolves it."""
    payload = {
        "summary": subject(alert),
        "source": _short(alert.queue or alert.component) or "redrive",
        "severity": alert.severity.value,
        "timestamp": _rfc3339(alert.time),
        "component": _short(alert.component),
        "group": _maybe(alert.group),
        "class": _short(alert.rule),
        "custom_details": as_json(alert),
    }
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if alert.is_over else "trigger",
        "dedup_key": key(alert.incident),
        "client": "redrive",
        "payload": {name: value for name, value in payload.items() if value},
    }
    if url := link(alert):
        event |= {"client_url": url, "links": [{"href": url, "text": "Open the console"}]}
    return event


def as_alertmanager(alert: Alert) -> list[dict[str, Any]]:
    """One alert from raised to recovered.

    Labels say which alert it is, so only what never changes is one. The severity can become worse: it is an annotation,
    and so is everything else. Who routes by severity lets redrive do it, or routes by `alertname`, the rule.

    It has an end even while it goes on. Without one Alertmanager ends it by itself a few minutes later.
    """
    labels = {
        "alertname": _short(alert.rule) or "redrive",
        "incident": key(alert.incident),
        "component": _short(alert.component),
        "broker": _maybe(alert.broker),
        "server": _maybe(alert.server),
        "queue": _maybe(alert.queue),
    }
    annotations = {
        "summary": subject(alert),
        "severity": alert.severity.value,
        "occasion": alert.occasion.value,
        "error_type": _maybe(alert.error_type),
        "group": _maybe(alert.group),
        "counts": ", ".join(f"{name} {number}" for name, number in _counts(alert)),
        "correlation_ids": ", ".join(ids(alert)),
        "see_more": command(alert),
    }
    end = alert.time if alert.is_over else alert.time + _FAR
    told: dict[str, Any] = {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": _rfc3339(alert.since),
        "endsAt": _rfc3339(max(alert.since, end)),  # an end before the start is refused
    }
    if url := link(alert):
        told["generatorURL"] = url
    return [told]


def _counts(alert: Alert) -> Iterator[tuple[str, str]]:
    for name, number in list(alert.counts.items())[:_MOST_COUNTS]:
        yield _short(name, _ID), f"{number:.15g}"


def _short(text: str, most: int = _NAME) -> str:
    line = on_one_line(text[: most + 1])
    return line if len(line) <= most else line[: most - 1] + "…"


def _maybe(text: str | None) -> str | None:
    return None if text is None else _short(text)


def _rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _slack_text(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text, "verbatim": True}  # verbatim: nothing in it becomes a link


def _mrkdwn(text: str, most: int) -> str:
    """Text that is nothing but text to Slack, and is not cut inside of an escape."""
    escaped = escape(text.replace("`", "'"), quote=False)
    return escaped if len(escaped) <= most else re.sub("&[^;]*$", "", escaped[: most - 1]) + "…"


def _slack_code(text: str, most: int) -> str:
    return f"`{_mrkdwn(text, most)}`"


def _teams_line(*runs: dict[str, str]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run} for run in runs]}
