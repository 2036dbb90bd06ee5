"""The management API of a real RabbitMQ and of ours, as the probe sees it."""

import asyncio
from datetime import timedelta

import pika
import pytest
from aiohttp import web
from confluent_kafka import Consumer, Producer, TopicPartition

from redrive.errors import BrokerRefusedError, BrokerUnreachableError, SettingsError, TransportError
from redrive.transports.kafka.probe import KafkaProbe
from redrive.transports.probing import probe_of
from tests.services import Kafka, RabbitMQ
from tests.services.server import free_ports
from tests.unit.watch.alerts.servers import Hook, forever, raw_server, web_server

PATIENCE = 30.0  # RabbitMQ takes its statistics every five seconds


def traffic(url: str) -> None:
    """Of five messages four are delivered, one of them twice: three are done, one dies, and one still lies there."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.queue_declare("orders.dlq", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
        channel.queue_declare("orders", durable=True, arguments=arguments)
        for number in range(5):
            channel.basic_publish("", "orders", b"%d" % number)
        for settle in ("ack", "requeue", "ack", "reject", "ack"):
            method, _, _ = got(channel)
            if settle == "ack":
                channel.basic_ack(method.delivery_tag)
            else:
                channel.basic_reject(method.delivery_tag, requeue=settle == "requeue")
    finally:
        connection.close()


def got(
    channel: pika.adapters.blocking_connection.BlockingChannel,
) -> tuple[pika.spec.Basic.GetOk, object, object]:
    for _ in range(1000):
        method, properties, body = channel.basic_get("orders")
        if method is not None:
            return method, properties, body
    raise AssertionError("nothing comes")


async def test_it_sees_what_lies_in_queues_and_what_went_through_them(broker: RabbitMQ) -> None:
    await asyncio.to_thread(traffic, broker.amqp_url)
    probe = probe_of(broker.amqp_url, broker.management_url)
    assert probe is not None
    async with asyncio.timeout(PATIENCE):
        while True:
            found = {each.queue: each for each in await probe.look(["orders", "orders.dlq", "nowhere"])}
            assert set(found) == {"orders", "orders.dlq"}
            orders, dead = found["orders"], found["orders.dlq"]
            if (orders.messages, orders.delivered, dead.messages, dead.arrived) == (1, 4, 1, 1):
                break
            await asyncio.sleep(0.1)
    assert (orders.arrived, orders.unacknowledged, orders.consumers) == (5, 0, 0)


async def test_a_user_that_is_refused_is_told_without_the_password(broker: RabbitMQ) -> None:
    scheme, _, place = broker.management_url.partition("://")
    wrong = f"{scheme}://nobody:wr0ng@{place.rpartition('@')[2]}"
    probe = probe_of(broker.amqp_url, wrong)
    assert probe is not None
    with pytest.raises(BrokerRefusedError, match="refused the user 'nobody'") as error:
        await probe.look(["orders"])
    assert "wr0ng" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "text", "why"),
    [
        (500, "boom", "answered exchanges/%2F/amq.direct with 500: boom"),
        (503, "", "answered exchanges/%2F/amq.direct with 503"),
        (404, "", "does not show the virtual host '/' to the user"),
        (200, "<html>", "gave an unexpected answer"),
        (200, "", "gave an unexpected answer"),
    ],
)
async def test_an_answer_that_is_none_is_told_in_one_line(status: int, text: str, why: str) -> None:
    async with web_server(Hook(web.Response(status=status, text=text))) as url:
        probe = probe_of("amqp://127.0.0.1", url)
        assert probe is not None
        with pytest.raises(TransportError) as error:
            await probe.look(["orders"])
    assert why in str(error.value)
    assert "\n" not in str(error.value)


async def test_figures_that_are_none_are_told() -> None:
    answers = Hook(web.Response(text="{}"), web.Response(text='{"messages": "many"}'))
    async with web_server(answers) as url:
        probe = probe_of("amqp://127.0.0.1", url)
        assert probe is not None
        with pytest.raises(TransportError, match="gave an unexpected answer"):
            await probe.look(["orders"])
    assert [request.raw_path for request, _ in answers.requests] == [
        "/api/exchanges/%2F/amq.direct",
        "/api/queues/%2F/orders",
    ]


async def test_an_api_that_hangs_or_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.transports.rabbitmq.probe.TIMEOUT", timedelta(milliseconds=200))
    async with raw_server(forever) as port:
        probe = probe_of("amqp://127.0.0.1", f"http://127.0.0.1:{port}")
        assert probe is not None
        with pytest.raises(BrokerUnreachableError, match=r"did not answer within 0\.2 s"):
            await probe.look(["orders"])
    [free] = free_ports(1)
    probe = probe_of("amqp://127.0.0.1", f"http://127.0.0.1:{free}")
    assert probe is not None
    with pytest.raises(BrokerUnreachableError, match="cannot be reached"):
        await probe.look(["orders"])


def test_only_brokers_with_such_an_api_are_probed() -> None:
    assert probe_of("memory:", "http://127.0.0.1:15672") is None
    assert probe_of("amqp://127.0.0.1", None) is None
    assert isinstance(probe_of("kafka://127.0.0.1:9092", None), KafkaProbe)
    for wrong in ("", "ftp://127.0.0.1", "http://", "15672"):
        with pytest.raises(SettingsError):
            probe_of("amqp://127.0.0.1", wrong)


@pytest.mark.service("kafka")
async def test_kafka_probe_counts_offsets_of_the_group_and_leaves_out_missing_topics(kafka: Kafka) -> None:
    orders, missing, group = kafka.topic("orders", 2), kafka.name("missing"), kafka.name("shop")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    for number in range(10):
        producer.produce(orders, b"x", partition=number % 2)
    assert producer.flush(30) == 0
    probe = KafkaProbe(kafka.url, {orders: group})
    [before] = await probe.look([orders, missing])
    assert (before.delivered, before.messages, before.arrived) == (0, 10, 10)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(orders, 0, 3)], asynchronous=False)
    consumer.close()
    [after] = await probe.look([orders, missing])
    assert (after.queue, after.delivered, after.deliveries, after.ready, after.arrived) == (
        orders,
        3,
        3,
        7,
        10,
    )


async def test_kafka_that_does_not_answer_is_an_error_of_the_probe() -> None:
    [free] = free_ports(1)
    with pytest.raises(TransportError):
        await KafkaProbe(f"kafka://127.0.0.1:{free}/?connect_timeout=1s", {}).look(["orders"])
