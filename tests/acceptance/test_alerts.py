"""A message dies, and people are told: the whole way, from a producer to a mailbox and a webhook (C7)."""

import asyncio
import re
import shlex
import signal
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest
from aiohttp import web
from confluent_kafka import Consumer, Producer, TopicPartition

from redrive.stores.remote import RemoteStore
from redrive.watch.alerts.written import NAME, Document
from tests.acceptance.serving import PATIENCE, QUICK, Process, Serving, channel, redrive, serving, until
from tests.services import Kafka, RabbitMQ
from tests.services.server import free_ports
from tests.unit.watch.alerts.servers import Box, Hook, mail_server, web_server

SECRET = "4111-PATIENT-SMITH"
SHOP = """
    import msgspec
    from redrive import App

    class Order(msgspec.Struct):
        id: int

    app = App({url!r})

    @app.consume("orders")
    async def handle(order: Order) -> None:
        raise PermissionError("no")
"""
ALERTS = """
    [alerts]
    interval = "1s"
    resolve_after = "1s"

    [[notifiers]]
    name = "ops"
    type = "mail"
    host = "127.0.0.1"
    port = {port}
    tls = "none"
    from = "redrive@example.org"
    to = ["ops@example.org"]

    [[notifiers]]
    name = "hook"
    type = "json"
    url = "{url}/xXsecretXx"
    secret = "s3cret"
"""


@asynccontextmanager
async def receivers() -> AsyncIterator[tuple[Box, Hook, str]]:
    """A mail server, a webhook, and the settings that name them."""
    box, hook = Box(), Hook()
    async with mail_server(box) as port, web_server(hook) as url:
        yield box, hook, QUICK + ALERTS.format(port=port, url=url)


async def come(box: Box, hook: Hook, count: int) -> None:
    """So many mails and calls have come."""
    async with asyncio.timeout(PATIENCE):
        while len(box.mails) < count or len(hook.requests) < count:  # noqa: ASYNC110  others send them
            await asyncio.sleep(0.005)


async def written_down(server: Serving, not_told: list[str]) -> None:
    """The store says that only these have not been told."""
    store = await RemoteStore.open(server.http)
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                memo = await store.recall(NAME)
                document = msgspec.msgpack.decode(memo.body or b"\x80", type=Document)
                if document.book.open() and [name for one in document.unsent for name in one.to] == not_told:
                    return
                await asyncio.sleep(0.05)
    finally:
        await store.close()


@asynccontextmanager
async def a_shop(place: Path, url: str) -> AsyncIterator[None]:
    """A consumer that runs."""
    (place / "shop.py").write_text(textwrap.dedent(SHOP.format(url=url)))
    consumer = Process(place, "consume", "shop")
    try:
        await asyncio.to_thread(consumer.until_it_says, "redrive consume")
        yield
    finally:
        assert await asyncio.to_thread(consumer.end) == 0


def publish(url: str, *bodies: bytes, queue: str = "orders") -> None:
    with channel(url) as amqp:
        for number, body in enumerate(bodies):
            properties = pika.BasicProperties(correlation_id=f"corr-{number}", delivery_mode=2)
            amqp.basic_publish("", queue, body, properties)


async def poison(server: Serving, place: Path, box: Box, hook: Hook) -> float:
    """A malformed message is given up, collected and told of; how long that took, in seconds."""
    async with a_shop(place, server.broker):
        began = time.monotonic()
        await asyncio.to_thread(publish, server.broker, b'{"id": "%s"' % SECRET.encode())
        await come(box, hook, 1)
        took = time.monotonic() - began
    [mail], [told] = box.mails, hook.bodies
    assert told["text"] == (
        "1 or more messages found in Dead-Letter Queue orders.dlq. Manual intervention required."
    )
    assert (told["occasion"], told["severity"], told["rule"]) == ("raised", "critical", "dead-letter")
    assert (told["queue"], told["counts"]) == ("orders.dlq", {"open": 1, "new": 1})
    assert told["correlation_ids"] == ["corr-0"]
    assert told["error_type"] == "DecodeError"
    assert mail["Subject"] == f"[RAISED] CRITICAL: {told['text']}"
    assert mail["X-Redrive-Incident"] == told["incident"]
    request, _ = hook.requests[0]
    assert request.headers["X-Redrive-Signature"].startswith("sha256=")
    # Nothing that was in the message has left the house.
    for sent in (mail.as_string(), repr(hook.bodies)):
        assert SECRET not in sent
        assert "id" not in told["text"]
    return took


async def test_a_poison_message_is_told_by_mail_and_webhook_on_the_embedded_broker(tmp_path: Path) -> None:
    async with receivers() as (box, hook, settings):
        with serving(tmp_path, settings=settings) as server:
            assert await poison(server, tmp_path, box, hook) < PATIENCE
            assert server.metric('redrive_alerts_total{notifier="ops",outcome="sent"}') == 1
            assert server.metric('redrive_incidents_open{severity="critical"}') == 1
            assert await asyncio.to_thread(server.end) == 0
            assert not any("xXsecretXx" in line or SECRET in line for line in server.errors)


async def test_a_poison_message_is_told_by_mail_and_webhook_on_a_rabbitmq(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    async with receivers() as (box, hook, settings):
        with serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings) as server:
            server.broker = rabbitmq.amqp_url
            assert await poison(server, tmp_path, box, hook) < PATIENCE
            assert hook.bodies[0]["component"] == "RabbitMQ"


async def test_what_is_resolved_is_told_to_be_over(tmp_path: Path) -> None:
    async with receivers() as (box, hook, settings):
        with serving(tmp_path, settings=settings) as server:
            await poison(server, tmp_path, box, hook)
            [head] = await server.heads()
            done = await asyncio.to_thread(
                redrive, tmp_path, "discard", head.id, "--yes", "--server", server.http
            )
            assert done.returncode == 0, done.stderr
            await come(box, hook, 2)
    assert [told["occasion"] for told in hook.bodies] == ["raised", "recovered"]
    assert hook.bodies[0]["incident"] == hook.bodies[1]["incident"]
    assert box.mails[0]["Message-ID"] in box.mails[1]["References"]


async def test_a_thousand_dead_letters_are_one_alert(tmp_path: Path) -> None:
    async with receivers() as (box, hook, settings):
        with serving(tmp_path, settings=settings) as server:
            await asyncio.to_thread(publish, server.broker, *[b"no JSON"] * 1000, queue="orders.dlq")
            await asyncio.to_thread(
                until, lambda: server.metric("redrive_letters_collected_total") == 1000, "all are collected"
            )
            await come(box, hook, 1)
            await asyncio.sleep(2)  # two looks
            rules = [told["rule"] for told in hook.bodies]
            assert rules.count("dead-letter") == 1
            assert set(rules) <= {"dead-letter", "ingestion-rate", "error-spike", "dlq-depth"}
            assert len(rules) == len(set(rules))


@pytest.mark.parametrize("when", ["before it was told", "after it was told"])
async def test_a_server_that_is_killed_loses_no_alert_and_repeats_none(tmp_path: Path, when: str) -> None:
    box, hook = Box(), Hook()
    if when == "before it was told":
        hook.answers = [web.Response(status=503)] * 1000
    async with mail_server(box) as port, web_server(hook) as url:
        settings = QUICK + ALERTS.format(port=port, url=url)
        with serving(tmp_path, settings=settings) as server:
            async with a_shop(tmp_path, server.broker):
                await asyncio.to_thread(publish, server.broker, b"no JSON")
                await come(box, hook, 1)
                await written_down(server, ["hook"] if when == "before it was told" else [])
                server.end(signal.SIGKILL)
        seen = len(hook.requests)
        hook.answers = []
        with serving(tmp_path, settings=settings) as server:
            if when == "before it was told":
                async with asyncio.timeout(PATIENCE):
                    while len(hook.requests) == seen:  # noqa: ASYNC110  the server sends it
                        await asyncio.sleep(0.05)
            await asyncio.sleep(7)  # longer than what another server has begun is left alone
            told = [(each["incident"], each["occasion"]) for each in hook.bodies]
            assert len(set(told)) == 1, "it is the same alert"
            assert len(hook.requests) == seen + (when == "before it was told")
            assert len(box.mails) == 1, "who was told is not told again"
            assert await asyncio.to_thread(server.end) == 0


async def test_a_management_api_that_does_not_answer_is_told(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    [free] = free_ports(1)
    async with receivers() as (box, hook, alerts):
        settings = alerts + f'\n    [broker]\n    management_url = "http://guest:s3cret@127.0.0.1:{free}"\n'
        with serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings) as server:
            await come(box, hook, 1)
            assert await asyncio.to_thread(server.end) == 0
            assert any("probe failed" in line for line in server.errors)
            assert not any("s3cret" in line for line in server.errors)
    [told] = hook.bodies
    assert (told["rule"], told["severity"], told["component"]) == ("probe-failed", "critical", "RabbitMQ")
    assert told["text"] == f"Probe of http://127.0.0.1:{free} failed: no usable answer."


async def test_the_share_of_messages_that_die_is_read_from_the_broker(tmp_path: Path) -> None:
    async with receivers() as (_, hook, alerts):
        settings = alerts.replace('resolve_after = "1s"', 'resolve_after = "1s"\n    probe_interval = "1s"')
        with serving(tmp_path, settings=settings) as server:
            with channel(server.broker) as amqp:
                for number in range(100):
                    amqp.basic_publish("", "orders", b"%d" % number)
                done = 0
                while done < 100:
                    method, _, _ = amqp.basic_get("orders", auto_ack=True)
                    done += method is not None
                for number in range(11):
                    amqp.basic_publish("", "orders.dlq", b"%d" % number)
            async with asyncio.timeout(PATIENCE):
                while "dead-letter-ratio" not in [told["rule"] for told in hook.bodies]:  # noqa: ASYNC110  the server tells
                    await asyncio.sleep(0.05)
    [told] = [told for told in hook.bodies if told["rule"] == "dead-letter-ratio"]
    assert told["text"] == "orders: 11 % of messages were dead-lettered (threshold 10 %)"
    assert told["counts"] == {"delivered": 100, "dead": 11}


@pytest.mark.parametrize(
    "where", ["embedded", pytest.param("rabbitmq", marks=pytest.mark.service("rabbitmq"))]
)
async def test_queue_that_nobody_drains_raises_an_alert_that_ends_with_the_queue(
    tmp_path: Path, request: pytest.FixtureRequest, where: str
) -> None:
    rule = '\n    [[alert_rules]]\n    name = "queue-stalled"\n    warning = 1\n'
    options: list[str] = []
    rabbitmq_url = ""
    async with receivers() as (_, hook, alerts):
        settings = (
            alerts.replace('resolve_after = "1s"', 'resolve_after = "1s"\n    probe_interval = "1s"') + rule
        )
        if where == "rabbitmq":
            rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
            rabbitmq_url = rabbitmq.amqp_url
            options = ["--broker", rabbitmq_url]
            settings += f'\n    [broker]\n    management_url = "{rabbitmq.management_url}"\n'
        with serving(tmp_path, *options, settings=settings) as server:
            url = rabbitmq_url or server.broker
            await asyncio.to_thread(publish, url, b"1", b"2", b"3")
            for occasion in ("raised", "recovered"):
                async with asyncio.timeout(PATIENCE):
                    while occasion not in [each["occasion"] for each in hook.bodies]:  # noqa: ASYNC110  the server tells
                        await asyncio.sleep(0.05)
                told = [each for each in hook.bodies if each["occasion"] == occasion]
                assert [(each["rule"], each["severity"], each["queue"]) for each in told] == [
                    ("queue-stalled", "warning", "orders.dlq")
                ]
                if occasion == "raised":
                    assert re.fullmatch(
                        r"orders: messages are ready, but none was delivered for [0-9.]+ s "
                        r"\(threshold 1 s\)",
                        told[0]["text"],
                    )
                    assert told[0]["counts"] == {"ready": 3, "consumers": 0}
                    with channel(url) as amqp:
                        amqp.queue_purge("orders")


async def told_of(hook: Hook, rule: str, occasion: str = "raised") -> dict[str, Any]:
    """The first alert of a rule, once it has come."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for told in hook.bodies:
                if (told["rule"], told["occasion"]) == (rule, occasion):
                    return dict(told)
            await asyncio.sleep(0.05)


async def test_alert_names_the_queue_after_a_restart_and_that_it_is_missing(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    url = rabbitmq.amqp_url
    with channel(url) as amqp:
        amqp.queue_declare("orders.dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"}
        amqp.queue_declare("orders", durable=True, arguments=arguments)
    async with receivers() as (_, hook, alerts):
        settings = alerts.replace('resolve_after = "1s"', 'resolve_after = "1s"\n    cooldown = "0s"')
        settings = settings.replace(
            '[[sources]]\n    name = "orders"', '[broker]\n    dead_letter_queues = ["orders.dead"]'
        )
        with serving(tmp_path, "--broker", url, settings=settings) as server:
            with channel(url) as amqp:
                amqp.basic_publish("", "orders", b"no JSON", pika.BasicProperties(delivery_mode=2))
                amqp.basic_reject(next(amqp.consume("orders"))[0].delivery_tag, requeue=False)
            told = await told_of(hook, "dead-letter")
            [head] = await server.heads()
            assert (told["queue"], head.source) == ("orders.dead", "orders")
            assert told["link"] == f"redrive show {head.id}"
            shown = await asyncio.to_thread(
                redrive, tmp_path, *shlex.split(told["link"])[1:], "--server", server.http
            )
            assert shown.returncode == 0, shown.stderr
            await written_down(server, [])
            server.end(signal.SIGKILL)
        # When only the store knows where the letter came from, and it is over
        with serving(tmp_path, "--broker", url, settings=settings) as server:
            done = await asyncio.to_thread(
                redrive, tmp_path, "discard", head.id, "--yes", "--server", server.http
            )
            assert done.returncode == 0, done.stderr
            assert (await told_of(hook, "dead-letter", "recovered"))["queue"] == "orders.dead"
            # And when the queue is deleted
            with channel(url) as amqp:
                amqp.queue_delete("orders.dead")
            told = await told_of(hook, "queue-missing")
            assert (told["queue"], told["component"]) == ("orders.dead", "RabbitMQ")


@pytest.mark.service("kafka")
async def test_ratio_of_dead_letters_is_measured_on_kafka(tmp_path: Path, kafka: Kafka) -> None:
    orders, dead, group = kafka.topic("orders", 2), kafka.topic("orders.dlq"), kafka.name("shop")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    for number in range(120):
        producer.produce(orders, b"%d" % number, partition=number % 2)
    for number in range(12):
        producer.produce(dead, b"%d" % number)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    passed = [TopicPartition(orders, 0, 60), TopicPartition(orders, 1, 40)]
    consumer.commit(offsets=passed, asynchronous=False)
    consumer.close()
    async with receivers() as (_, hook, alerts):
        settings = alerts.replace(
            'resolve_after = "1s"', 'resolve_after = "1s"\n    probe_interval = "1s"'
        ).replace(
            'name = "orders"',
            f'name = "{orders}"\n    consumer_group = "{group}"\n    dead_letter_queue = "{dead}"',
        )
        with serving(tmp_path, "--broker", kafka.url, settings=settings) as server:
            told = await told_of(hook, "dead-letter-ratio")
            assert await asyncio.to_thread(server.end) == 0
    assert told["text"] == f"{orders}: 12 % of messages were dead-lettered (threshold 10 %)"
    assert told["counts"] == {"delivered": 100, "dead": 12}
    assert (told["component"], told["broker"], told["queue"]) == ("Kafka", "kafka", dead)


async def test_dead_letters_that_no_collector_takes_raise_an_alert_until_they_are_collected(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    rule = '\n    [[alert_rules]]\n    name = "dlq-uncollected"\n    critical = 1\n'
    async with receivers() as (_, hook, alerts):
        with channel(rabbitmq.amqp_url) as amqp:
            # Given a client that has the dead-letter queue for itself, and takes one message of three
            amqp.queue_declare("legacy.dead", durable=True)
            for number in range(3):
                amqp.basic_publish("", "legacy.dead", b"%d" % number)
            amqp.basic_qos(prefetch_count=1)
            next(amqp.consume("legacy.dead", exclusive=True))
            settings = alerts.replace(
                '[[sources]]\n    name = "orders"', '[broker]\n    dead_letter_queues = ["legacy.dead"]'
            )
            with serving(tmp_path, "--broker", rabbitmq.amqp_url, settings=settings + rule) as server:
                told = await told_of(hook, "dlq-uncollected")
                assert (told["queue"], told["counts"]) == ("legacy.dead", {"messages": 2})
                assert server.metric("redrive_letters_collected_total") == 0
                amqp.close()
                await told_of(hook, "dlq-uncollected", "recovered")
                assert server.metric("redrive_letters_collected_total") == 3
