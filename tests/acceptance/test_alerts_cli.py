"""Alerts on the command line, each command a process: incidents of a real server, receivers that are really there."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest
from aiohttp import web

from redrive.clock import SystemClock
from redrive.stores.base import Store
from redrive.watch.alerts.alarm import Book
from redrive.watch.alerts.alert import Severity
from redrive.watch.alerts.incidents import Finding, Incident
from redrive.watch.alerts.written import NAME, Document, Written
from tests.acceptance.serving import QUICK, channel, serving, until
from tests.acceptance.shop import Done, Shop
from tests.unit.watch.alerts.servers import Box, Hook, forever, mail_server, raw_server, web_server


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def notifier(name: str, kind: str, **keys: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"name": name, "type": kind, **keys}.items()]
    return "\n".join(["[[notifiers]]", *lines, ""])


def by_mail(port: int, **keys: Any) -> str:
    fields = {"host": "127.0.0.1", "port": port, "tls": "none", "from": "redrive@example.org"}
    return notifier("mail", "mail", **fields, to=["ops@example.org"], **keys)


async def run(shop: Shop, settings: str, *words: str, **variables: str) -> Done:
    """A command beside servers that run in this process."""
    (shop.place / "redrive.toml").write_text(settings)
    return await asyncio.to_thread(shop.run, "alerts", *words, env=variables)


# --- incidents -------------------------------------------------------------------------------------------


def test_an_incident_of_a_running_server_is_seen_and_acknowledged(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with serving(tmp_path, settings=QUICK) as server:
        at = ("--server", server.http)
        assert shop.ok("alerts", *at) == "no open incidents\n"
        # When a message dies
        with channel(server.broker) as amqp:
            amqp.basic_publish("", "orders.dlq", b"17", pika.BasicProperties(delivery_mode=2))
        until(lambda: shop.json("alerts", *at), "there is an incident")
        # Then it is seen, in the server and in its store
        (found,) = shop.json("alerts", *at)
        assert (found["rule"], found["severity"], found["acknowledged_by"]) == (
            "dead-letter",
            "critical",
            None,
        )
        assert "Dead-Letter Queue orders.dlq" in found["text"]
        here = {"REDRIVE_STORE_URL": server.store_url}
        assert shop.json("alerts", env=here) == [found]
        # When somebody takes care, the server knows
        assert shop.ok("alerts", "ack", found["id"][:6], *at) == "1 incident acknowledged by anna\n"
        assert [one["acknowledged_by"] for one in shop.json("alerts", env=here)] == ["anna"]
        title, row = shop.ok("alerts", "list", *at).splitlines()
        assert title.split()[0] == "id"
        assert row.split()[:2] == [found["id"], "critical"]
        assert "  anna  " in row
        assert "no open incident" in shop.fails(3, "alerts", "ack", "i-none", *at)
        assert server.end() == 0
        assert not [line for line in server.errors if "Traceback" in line]


def test_a_server_that_is_not_there_is_one_line(shop: Shop) -> None:
    assert "127.0.0.1:1" in shop.fails(3, "alerts", "--server", "http://127.0.0.1:1")


def test_people_who_acknowledge_at_the_same_time_do_not_undo_each_other(shop: Shop) -> None:
    now = SystemClock().now()
    found = Finding(severity=Severity.WARNING, badness=1.0, text="not well", component="RabbitMQ")
    told: dict[str, Any] = {
        "found": found,
        "began_at": now,
        "raised_at": now,
        "told_at": now - timedelta(hours=1),
    }
    names = ("anna", "berta", "carla")
    incidents = {name: Incident(id=f"i-{name}", rule="backlog", subject=name, **told) for name in names}

    async def fill(store: Store) -> None:
        document = Document(book=Book(current=dict(incidents)))
        assert await store.remember(NAME, msgspec.msgpack.encode(document), version=0)

    async def book(store: Store) -> Book:
        return await Written(store).book()

    shop.store(fill)
    at_work = [shop.process("alerts", "ack", f"i-{name}", "--by", name, stdout=-1) for name in names]
    assert [each.communicate(timeout=60)[0] for each in at_work] == [
        f"1 incident acknowledged by {name}\n" for name in names
    ]
    assert [one.acknowledged_by for one in shop.store(book).open()] == [*names]


# --- who is told -----------------------------------------------------------------------------------------


async def test_a_test_alert_arrives_everywhere_and_is_marked_as_one(shop: Shop) -> None:
    box, hook = Box(), Hook()
    async with mail_server(box) as port, web_server(hook) as address:
        # A test reaches also those who want to hear of little else.
        settings = by_mail(port, min_severity="critical", queue_pattern="orders.*") + notifier(
            "chat", "slack", url="env:CHAT", escalations_only=True
        )
        done = await run(shop, settings, "test", CHAT=f"{address}/T0/secret-path")
    assert (done.returncode, done.stderr) == (0, "")
    title, *rows = done.stdout.splitlines()
    assert title.split() == ["notifier", "kind", "seconds", "result"]
    assert [(row.split()[0], row.split()[3:]) for row in rows] == [
        ("mail", ["accepted"]),
        ("chat", ["accepted"]),
    ]
    assert "secret-path" not in done.stdout
    (mail,), (body,) = box.mails, hook.bodies
    assert mail["Subject"].startswith("[RAISED] WARNING: TEST: this is a test alert from redrive.")
    assert "TEST: this is a test alert" in json.dumps(body)


async def test_those_who_do_not_take_it_are_named_and_nobody_is_asked_twice(shop: Shop) -> None:
    box, hook = Box(), Hook(web.Response(status=503, text="no /T0/secret-path today"))
    async with mail_server(box) as port, web_server(hook) as address:
        settings = by_mail(port) + notifier("chat", "slack", url=f"{address}/T0/secret-path")
        done = await run(shop, settings, "test", "--json")
        only = await run(shop, settings, "test", "mail", "mail", "--json")
    assert (done.returncode, done.stderr) == (1, "redrive: 1 of 2 notifiers did not accept the test alert\n")
    mail, chat = json.loads(done.stdout)
    assert (mail["name"], mail["kind"], mail["taken"], mail["error"]) == ("mail", "mail", True, None)
    assert (chat["name"], chat["taken"]) == ("chat", False)
    assert chat["error"] == f"{address} answered 503: no … today"
    assert chat["seconds"] >= 0
    assert len(hook.requests) == 1
    # And those who are not named hear nothing.
    assert only.returncode == 0
    assert [one["name"] for one in json.loads(only.stdout)] == ["mail"]
    assert len(box.mails) == 2


class Together(Hook):
    """Answers nobody before so many have come."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._all = asyncio.Barrier(count)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Take it down, and wait for the others."""
        answer = await super().answer(request)
        await self._all.wait()
        return answer


async def test_all_are_told_at_the_same_time(shop: Shop) -> None:
    async with web_server(Together(5)) as address:
        names = [f"hook-{number}" for number in range(5)]
        done = await run(
            shop, "".join(notifier(name, "json", url=f"{address}/hook") for name in names), "test", "--json"
        )
    assert done.returncode == 0, done.stdout
    assert [one["name"] for one in json.loads(done.stdout)] == names


async def test_those_who_never_answer_are_not_waited_for_longer_than_they_may_take(shop: Shop) -> None:
    async with raw_server(forever) as port:
        hook = notifier("hook", "json", url=f"http://127.0.0.1:{port}/hook", timeout="300ms")
        done = await run(shop, hook + by_mail(port, timeout="200ms"), "test", "--json")
    assert done.returncode == 1
    assert [one["error"].partition(" did ")[2] for one in json.loads(done.stdout)] == [
        "not answer within 0.3 s",
        "not answer within 0.2 s",
    ]


# --- settings that cannot be made ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("[[alert_rules]]\nname = 'dlq-dept'\nenabled = false\n", "did you mean 'dlq-depth'?"),
        (notifier("chat", "slack", url="env:NOT_SET"), "notifier 'chat': the variable NOT_SET is not set"),
        (
            "[[maintenance_windows]]\nduration = '1h'\ncron = 'at night'\n",
            "cron 'at night' is not valid",
        ),
    ],
    ids=["rule", "notifier", "window"],
)
def test_settings_that_cannot_be_made_are_refused_before_anything_is_opened(
    shop: Shop, settings: str, says: str
) -> None:
    (shop.place / "redrive.toml").write_text(settings)
    assert says in shop.fails(2, "config", "check")
    assert says in shop.fails(2, "serve", "--port", "0", "--broker-port", "0", "--data", "data")
    assert [each.name for each in shop.place.iterdir()] == ["redrive.toml"]
