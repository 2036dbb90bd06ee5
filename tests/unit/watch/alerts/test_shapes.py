"""Every receiver gets the form that it documents, whatever the queues are called."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings

from redrive.watch.alerts.alert import Alert, Occasion, Severity
from redrive.watch.alerts.shapes import (
    as_alertmanager,
    as_json,
    as_pagerduty,
    as_slack,
    as_teams,
    facts,
    ids,
    key,
    link,
    subject,
)
from tests.unit.watch.alerts.examples import BAD, ORDINARY, SINCE, TIME, alert, alerts, life, worst

KEY = "0123456789abcdef0123456789abcdef"


def to_pagerduty(told: Alert) -> dict[str, Any]:
    return as_pagerduty(told, KEY)


# What the receivers document, as JSON Schema. Slack: section, actions, text objects and their limits.
TEXT = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"enum": ["mrkdwn", "plain_text"]}, "text": {"type": "string", "minLength": 1}},
}
SLACK = {
    "type": "object",
    "required": ["text", "blocks"],
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 4000},
        "blocks": {
            "type": "array",
            "minItems": 1,
            "maxItems": 50,
            "items": {
                "oneOf": [
                    {
                        "required": ["text"],
                        "properties": {
                            "type": {"const": "section"},
                            "text": {**TEXT, "properties": {"text": {"maxLength": 3000}}},
                        },
                        "additionalProperties": False,
                    },
                    {
                        "required": ["fields"],
                        "properties": {
                            "type": {"const": "section"},
                            "fields": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": 10,
                                "items": {**TEXT, "properties": {"text": {"maxLength": 2000}}},
                            },
                        },
                        "additionalProperties": False,
                    },
                    {
                        "required": ["elements"],
                        "properties": {
                            "type": {"const": "actions"},
                            "elements": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": 25,
                                "items": {
                                    "required": ["type", "text", "url"],
                                    "properties": {
                                        "type": {"const": "button"},
                                        "text": {**TEXT, "properties": {"text": {"maxLength": 75}}},
                                        "url": {"type": "string", "maxLength": 3000},
                                    },
                                },
                            },
                        },
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
}
RUN = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {
        "type": {"const": "TextRun"},
        "text": {"type": "string"},
        "weight": {"enum": ["default", "lighter", "bolder"]},
        "size": {"enum": ["default", "small", "medium", "large", "extraLarge"]},
        "color": {"enum": ["default", "dark", "light", "accent", "good", "warning", "attention"]},
        "fontType": {"enum": ["default", "monospace"]},
    },
    "additionalProperties": False,
}
TEAMS = {
    "type": "object",
    "required": ["type", "attachments"],
    "properties": {
        "type": {"const": "message"},
        "attachments": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "required": ["contentType", "content"],
                "properties": {
                    "contentType": {"const": "application/vnd.microsoft.card.adaptive"},
                    "contentUrl": {"type": "null"},
                    "content": {
                        "required": ["type", "version", "body"],
                        "properties": {
                            "type": {"const": "AdaptiveCard"},
                            "version": {"enum": ["1.2", "1.3", "1.4", "1.5"]},
                            "body": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "required": ["type", "inlines"],
                                    "properties": {
                                        "type": {"const": "RichTextBlock"},
                                        "inlines": {"type": "array", "minItems": 1, "items": RUN},
                                    },
                                },
                            },
                            "actions": {
                                "type": "array",
                                "items": {
                                    "required": ["type", "title", "url"],
                                    "properties": {"type": {"const": "Action.OpenUrl"}},
                                },
                            },
                        },
                    },
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
MOMENT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
URI = {"type": "string", "pattern": r"^https?://[!-~]+$"}
PAGERDUTY = {
    "type": "object",
    "required": ["routing_key", "event_action", "dedup_key", "payload"],
    "properties": {
        "routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
        "event_action": {"enum": ["trigger", "resolve"]},
        "dedup_key": {"type": "string", "maxLength": 255},
        "client": {"type": "string"},
        "client_url": URI,
        "links": {"type": "array", "items": {"required": ["href"], "properties": {"href": URI}}},
        "payload": {
            "required": ["summary", "source", "severity", "timestamp"],
            "properties": {
                "summary": {"type": "string", "minLength": 1, "maxLength": 1024},
                "source": {"type": "string", "minLength": 1},
                "severity": {"enum": ["critical", "error", "warning", "info"]},
                "timestamp": MOMENT,
                "component": {"type": "string"},
                "group": {"type": "string"},
                "class": {"type": "string"},
                "custom_details": {"type": "object"},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
LABELS = {
    "type": "object",
    "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
    "additionalProperties": {"type": "string", "minLength": 1},
}
ALERTMANAGER = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "items": {
        "required": ["labels", "startsAt", "endsAt"],
        "properties": {
            "labels": {**LABELS, "required": ["alertname"]},
            "annotations": LABELS,
            "startsAt": MOMENT,
            "endsAt": MOMENT,
            "generatorURL": URI,
        },
        "additionalProperties": False,
    },
}
JSON = {
    "type": "object",
    "required": ["incident", "occasion", "severity", "rule", "text", "component", "since", "time"],
    "properties": {
        "occasion": {"enum": [*Occasion]},
        "severity": {"enum": [*Severity]},
        "counts": {"additionalProperties": {"type": ["number", "null"]}},
        "correlation_ids": {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 100}},
        "link": {"anyOf": [URI, {"type": "string", "pattern": "^redrive .+"}, {"type": "null"}]},
        "since": MOMENT,
        "time": MOMENT,
    },
}
# The shape, its schema, and how many bytes its receiver takes (Slack: characters of its blocks; see below).
SHAPES: dict[str, tuple[Callable[[Alert], Any], dict[str, Any], int]] = {
    "json": (as_json, JSON, 64_000),
    "slack": (as_slack, SLACK, 64_000),
    "teams": (as_teams, TEAMS, 28_000),
    "pagerduty": (to_pagerduty, PAGERDUTY, 512_000),
    "alertmanager": (as_alertmanager, ALERTMANAGER, 64_000),
}
VALIDATORS = {shape: jsonschema.Draft202012Validator(schema) for shape, (_, schema, _) in SHAPES.items()}


def strings(value: Any) -> Iterator[str]:
    """Every text in it, names of fields among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def check(shape: str, told: Alert) -> None:
    """It is JSON, not too large, what the receiver documents, and nothing in it moves a cursor."""
    make, _, most = SHAPES[shape]
    body = msgspec.json.encode(make(told))
    assert len(body) <= most
    parsed = json.loads(body.decode("utf-8"))
    VALIDATORS[shape].validate(parsed)
    for text in strings(parsed):
        assert text.replace("\n", "").isprintable()
        assert shape == "slack" or "\n" not in text


@settings(max_examples=60)
@given(told=alerts)
def test_whatever_the_names_are_each_receiver_gets_what_it_documents(told: Alert) -> None:
    for shape in SHAPES:
        check(shape, told)


@pytest.mark.parametrize("char", ["&", "<", "😀", "`", "\x00", "\udcff", '"', "\n"])
def test_the_largest_alert_is_not_too_large_for_any_receiver(char: str) -> None:
    for shape in SHAPES:
        check(shape, worst(char))
    assert sum(map(len, strings(as_slack(worst(char))["blocks"]))) < 13_000


@settings(max_examples=60)
@given(told=alerts)
def test_nobody_is_mentioned_and_nothing_is_linked_in_slack_by_a_name(told: Alert) -> None:
    message = as_slack(told)
    shown = [message["text"]]
    for block in message["blocks"]:
        shown += [each["text"] for each in ([block["text"]] if "text" in block else block.get("fields", []))]
        assert all(each["verbatim"] for each in block.get("fields", []))
    for text in shown:
        assert not re.search("[<>]", text)
        assert not re.search("&(?!amp;|lt;|gt;)", text)
        assert text.count("`") % 2 == 0
    assert not {"link_names", "parse"} & set(message)


def test_what_slack_escapes_is_shown_as_it_was_meant() -> None:
    message = as_slack(alert(text="a<b & c>d", queue="<!channel>"))
    assert message["text"] == "[RAISED] CRITICAL: a&lt;b &amp; c&gt;d"
    fields = [each["text"] for each in message["blocks"][1]["fields"]]
    assert "*queue*\n`&lt;!channel&gt;`" in fields


def test_a_text_for_slack_is_never_cut_inside_of_an_escape() -> None:
    for length in range(295, 310):
        message = as_slack(alert(queue="x" * (length % 7) + "&" * length))
        for each in message["blocks"][1]["fields"]:
            assert re.fullmatch(r"(?:[^&]|&amp;)*", each["text"])


def test_slack_shows_the_line_the_facts_the_ids_and_a_button() -> None:
    message = as_slack(ORDINARY)
    head, first, second, correlated, actions = message["blocks"]
    assert head["text"]["text"] == message["text"] == "[RAISED] CRITICAL: orders.dlq holds 12 dead letters"
    assert [each["text"] for each in (*first["fields"], *second["fields"])] == [
        f"*{name}*\n`{value}`" for name, value in facts(ORDINARY)
    ]
    assert correlated["text"]["text"] == "*correlation ids*\n`c-1`\n`c-2`"
    assert actions["elements"][0]["url"] == ORDINARY.link
    assert len(as_slack(alert(link=None, correlation_ids=()))["blocks"]) == 3


def test_the_generic_shape_has_every_field_under_its_name() -> None:
    assert as_json(ORDINARY) == {
        "incident": "inc-1",
        "occasion": "raised",
        "severity": "critical",
        "rule": "dead-letters",
        "text": "orders.dlq holds 12 dead letters",
        "component": "RabbitMQ",
        "broker": "shop",
        "server": None,
        "queue": "orders.dlq",
        "error_type": "ValidationError",
        "group": "f00d",
        "counts": {"dead": 12, "rate": 0.25},
        "correlation_ids": ["c-1", "c-2"],
        "correlation_ids_left_out": 0,
        "link": "https://console.example.org/groups/f00d?queue=orders.dlq",
        "escalations": 0,
        "since": "2026-02-11T11:58:30.000Z",
        "time": "2026-02-11T12:00:00.250Z",
    }
    assert set(as_json(ORDINARY)) == {*Alert.__struct_fields__, "correlation_ids_left_out"}


def test_command_that_shows_more_is_in_every_shape() -> None:
    command = "redrive list 'source:orders state:pending'"
    told = alert(link=command)
    assert as_json(told)["link"] == command
    assert ("see more", command) in facts(told)
    assert command in json.dumps(as_slack(told), ensure_ascii=False)
    assert command in json.dumps(as_teams(told), ensure_ascii=False)
    assert to_pagerduty(told)["payload"]["custom_details"]["link"] == command
    assert as_alertmanager(told)[0]["annotations"]["see_more"] == command
    assert link(told) is None, "it is no web address"


def test_the_generic_shape_says_how_many_ids_it_leaves_out() -> None:
    told = as_json(alert(correlation_ids=tuple(map(str, range(130)))))
    assert told["correlation_ids"] == [str(n) for n in range(100)]
    assert told["correlation_ids_left_out"] == 30


def test_people_are_shown_a_bounded_number_of_ids() -> None:
    many = alert(correlation_ids=tuple(map(str, range(25))))
    assert ids(many) == [*map(str, range(20)), "and 5 more"]
    assert ids(many, 25) == [*map(str, range(25))]
    assert ids(alert(correlation_ids=())) == []


def test_facts_name_what_there_is_and_nothing_else() -> None:
    assert facts(ORDINARY) == [
        ("severity", "critical"),
        ("occasion", "raised"),
        ("rule", "dead-letters"),
        ("component", "RabbitMQ"),
        ("broker", "shop"),
        ("queue", "orders.dlq"),
        ("error type", "ValidationError"),
        ("group", "f00d"),
        ("dead", "12"),
        ("rate", "0.25"),
        ("since", "2026-02-11T11:58:30.000Z"),
        ("time", "2026-02-11T12:00:00.250Z"),
        ("incident", "inc-1"),
    ]
    few = dict(
        facts(alert(queue=None, error_type=None, group=None, counts={"dead": 0.0, "large": 12345678.0}))
    )
    assert not {"queue", "error type", "group"} & set(few)
    assert (few["dead"], few["large"]) == ("0", "12345678")


def test_the_subject_is_one_line_and_not_a_long_one() -> None:
    assert subject(alert(text="a\r\nb")) == r"[RAISED] CRITICAL: a\r\nb"
    long = subject(alert(text="x" * 10_000))
    assert len(long) == 400
    assert long.endswith("x…")


def test_teams_gets_names_as_runs_of_text_which_are_not_markdown() -> None:
    bad = "[click](https://evil.example) **x** <at>all</at>"
    card = as_teams(alert(queue=bad))["attachments"][0]["content"]
    assert {"type": "TextRun", "text": bad} in [run for line in card["body"] for run in line["inlines"]]
    assert "entities" not in card["msteams"]  # without which nobody is mentioned
    assert {line["type"] for line in card["body"]} == {"RichTextBlock"}


def test_teams_shows_by_color_how_it_stands() -> None:
    def color(told: Alert) -> str:
        return str(as_teams(told)["attachments"][0]["content"]["body"][0]["inlines"][0]["color"])

    assert [color(each) for each in life()] == ["warning", "attention", "attention", "attention", "good"]


def test_teams_has_a_button_only_if_there_is_a_link() -> None:
    assert as_teams(ORDINARY)["attachments"][0]["content"]["actions"][0]["url"] == ORDINARY.link
    assert "actions" not in as_teams(alert(link=None))["attachments"][0]["content"]


def test_an_incident_is_one_alert_of_pagerduty_which_its_recovery_resolves() -> None:
    events = [to_pagerduty(each) for each in life("inc-7")]
    assert {each["dedup_key"] for each in events} == {"inc-7"}
    assert [each["event_action"] for each in events] == ["trigger"] * 4 + ["resolve"]
    assert [each["payload"]["severity"] for each in events] == ["warning"] + ["critical"] * 4
    assert {each["routing_key"] for each in events} == {KEY}


def test_pagerduty_is_told_what_where_and_since_when() -> None:
    event = to_pagerduty(ORDINARY)
    assert event["payload"] == {
        "summary": "[RAISED] CRITICAL: orders.dlq holds 12 dead letters",
        "source": "orders.dlq",
        "severity": "critical",
        "timestamp": "2026-02-11T12:00:00.250Z",
        "component": "RabbitMQ",
        "group": "f00d",
        "class": "dead-letters",
        "custom_details": as_json(ORDINARY),
    }
    assert event["links"] == [{"href": ORDINARY.link, "text": "Open the console"}]
    bare = to_pagerduty(alert(queue=None, group=None, link=None))
    assert bare["payload"]["source"] == "RabbitMQ"
    assert "group" not in bare["payload"]
    assert not {"links", "client_url"} & set(bare)


def test_an_incident_is_one_alert_of_alertmanager_however_it_changes() -> None:
    told = [as_alertmanager(each)[0] for each in life()]
    assert [each["labels"] for each in told] == [
        {
            "alertname": "dead-letters",
            "incident": "inc-1",
            "component": "RabbitMQ",
            "broker": "shop",
            "queue": "orders.dlq",
        }
    ] * 5
    assert [each["annotations"]["severity"] for each in told] == ["warning"] + ["critical"] * 4
    assert {each["startsAt"] for each in told} == {"2026-02-11T11:58:30.000Z"}


def test_alertmanager_ends_an_alert_when_it_is_over_and_not_before() -> None:
    *going_on, over = life()
    for each in going_on:
        end = datetime.fromisoformat(as_alertmanager(each)[0]["endsAt"])
        assert end - each.time >= timedelta(days=7)
    assert as_alertmanager(over)[0]["endsAt"] == "2026-02-11T12:04:00.250Z"


def test_an_alert_never_ends_before_it_began_even_if_the_clock_was_set_back() -> None:
    back = alert(occasion=Occasion.RECOVERED, time=SINCE - timedelta(hours=1))
    told = as_alertmanager(back)[0]
    assert told["endsAt"] == told["startsAt"] == "2026-02-11T11:58:30.000Z"


def test_two_incidents_of_one_rule_are_two_alerts() -> None:
    one, two = (as_alertmanager(alert(incident=each))[0]["labels"] for each in ("a", "b"))
    assert one != two
    assert as_alertmanager(ORDINARY)[0]["generatorURL"] == ORDINARY.link


def test_times_are_told_in_utc() -> None:
    elsewhere = TIME.astimezone(datetime.strptime("+05:30", "%z").tzinfo)
    assert as_json(alert(time=elsewhere))["time"] == "2026-02-11T12:00:00.250Z"
    assert TIME.tzinfo is UTC


def test_no_two_incidents_have_the_same_key() -> None:
    incidents = [*BAD, "a\n", r"a\n", "x" * 201, "x" * 202, "x" * 200 + "…"]
    keys = [key(each) for each in incidents]
    assert len(set(keys)) == len(incidents)
    assert all(each.isprintable() and len(each) <= 255 for each in keys)
    assert key("inc-1") == "inc-1"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("https://console.example.org/a?b=c#d", "https://console.example.org/a?b=c#d"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a"),
        ('https://x.example/größe <b>|"', "https://x.example/gr%C3%B6%C3%9Fe%20%3Cb%3E%7C%22"),
        ("https://x.example/%41%zz%", "https://x.example/%41%25zz%25"),
        ("https://x.example/a\r\nb", "https://x.example/a%0D%0Ab"),
        ("https://x.example/\udcff", "https://x.example/%ED%B3%BF"),
        ("https://x.example/" + "a" * 2000, None),
        ("javascript:alert(1)", None),
        ("https://", None),
        ("https://x:port/", None),
        ("http://[::1/", None),
        ("", None),
        (None, None),
    ],
)  # fmt: skip
def test_a_link_is_one_that_every_receiver_takes_or_there_is_none(
    written: str | None, found: str | None
) -> None:
    assert link(alert(link=written)) == found
