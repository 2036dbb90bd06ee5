"""The finer ways of sending letters back, and the same commands on the store of a running server.

On the embedded broker and SQLite, each command a process of its own.
"""

import asyncio
import json
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from confluent_kafka import Consumer

from redrive.letters import DeadLetter, LetterState, Message, Origin
from redrive.stores.base import Store
from redrive.stores.changes import Resolve, Settlement
from redrive.stores.remote import RemoteStore
from redrive.testing import a_letter, letters
from redrive.testing.factories import a_message
from tests.acceptance.serving import QUICK, Process, Serving, channel, serving, until
from tests.acceptance.shop import Queue, Shop, ids_of, sending
from tests.services import Kafka, RabbitMQ

QUIET = QUICK.replace("[recover]", "[recover]\n    workers = 0")  # nothing is sent but what a test sends
CONSUMER = """
    from redrive import App

    app = App({url!r})

    @app.consume("orders")
    async def handle(body: dict[str, int]) -> None:
        if body["order"] in {refused!r}:
            raise PermissionError("the bank refuses it")
"""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def url(embedded: RabbitMQ) -> str:
    return embedded.amqp_url


@pytest.fixture
def orders(url: str) -> Iterator[Queue]:
    queue = Queue(url)
    yield queue
    queue.connection.close()


# --- --broadcast ---------------------------------------------------------------------------------------


def test_through_the_exchange_everybody_bound_to_it_gets_the_letters(
    shop: Shop, orders: Queue, url: str
) -> None:
    # Given letters that came through an exchange to which another queue is bound as well
    audit = Queue(url, "audit")
    orders.channel.exchange_declare("shop", "topic", durable=True)
    orders.channel.queue_bind("orders", "shop", "orders")
    audit.channel.queue_bind("audit", "shop", "#")
    shop.add(*letters(3))
    # When they are sent through it
    answer = shop.json(*sending(url, "source:orders", "--broadcast"))
    # Then both have them, and without the option only the queue in which they died has
    assert answer["outcomes"] == {"sent": 3}
    ids = {headers["redrive-id"] for headers, _ in orders.got()}
    assert len(ids) == 3
    assert {headers["redrive-id"] for headers, _ in audit.got()} == ids
    shop.add(a_letter("orders/late"))
    shop.json(*sending(url, "state:pending"))
    assert (len(orders.got()), len(audit.got())) == (1, 0)
    audit.connection.close()


def test_a_letter_that_came_through_no_exchange_goes_to_its_queue(
    shop: Shop, orders: Queue, url: str
) -> None:
    shop.add(a_letter(origin=Origin(transport="rabbitmq", source="orders")))
    shop.json(*sending(url, "source:orders", "--broadcast"))
    assert len(orders.got()) == 1


@pytest.mark.parametrize("there", [False, True], ids=["no exchange", "nobody bound"])
def test_what_an_exchange_does_not_take_is_told_and_stays_where_it_is(
    shop: Shop, orders: Queue, url: str, *, there: bool
) -> None:
    if there:
        orders.channel.exchange_declare("shop", "topic", durable=True)
    shop.add(*letters(2))
    said = shop.fails(1, *sending(url, "source:orders", "--broadcast", "--json"))
    assert "2 failed of 2" in said
    (operation,) = shop.json("operations")
    details = {item["detail"] for item in shop.json("operations", operation["id"])["items"]}
    assert all("shop" in detail for detail in details), details
    assert shop.states() == {"pending": 2}
    assert shop.json(*sending(url, "source:orders"))["outcomes"] == {"sent": 2}


@pytest.mark.parametrize("more", [("--to", "audit"), ("--redirect", "orders=audit")])
def test_an_exchange_and_a_queue_are_two_places_and_refused(shop: Shop, more: tuple[str, ...]) -> None:
    shop.add(a_letter())
    words = sending("amqp://127.0.0.1:1", "source:orders", "--broadcast", *more)
    assert shop.fails(2, *words) == "--broadcast cannot be combined with --to or --redirect"


def partitions_of(kafka: Kafka, topic: str, bodies: int) -> dict[bytes, int]:
    """Where the records of a topic lie, by their bodies."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": kafka.name("look"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: dict[bytes, int] = {}
    deadline = time.monotonic() + 60
    try:
        while len(found) < bodies and time.monotonic() < deadline:
            record = consumer.poll(1)
            if record is not None and record.error() is None:
                found[record.value() or b""] = record.partition() or 0
    finally:
        consumer.close()
    return found


def test_letters_of_kafka_go_to_the_very_partition_they_came_from(shop: Shop, kafka: Kafka) -> None:
    topic = kafka.topic("orders", partitions=4)
    for partition in (3, 1, 2):
        origin = Origin(transport="kafka", source=topic, partition=partition, offset=7)
        message = Message(body=b"%d" % partition, key=b"the same for all")
        shop.add(a_letter(f"orders/{partition}", message=message, origin=origin))
    answer = shop.json(*sending(kafka.url, f"source:{topic}", "--same-partition"))
    assert answer["outcomes"] == {"sent": 3}
    assert partitions_of(kafka, topic, 3) == {b"1": 1, b"2": 2, b"3": 3}


@pytest.mark.parametrize("more", [("--to", "audit"), ("--redirect", "orders=audit"), ("--broadcast",)])
def test_a_partition_and_another_place_are_two_places_and_refused(shop: Shop, more: tuple[str, ...]) -> None:
    shop.add(a_letter())
    words = sending("kafka://127.0.0.1:1", "source:orders", "--same-partition", *more)
    assert shop.fails(2, *words) == "--same-partition cannot be combined with --to, --broadcast or --redirect"


# --- --skip-processed -----------------------------------------------------------------------------------------


def test_letters_whose_message_was_processed_already_are_left_out(
    shop: Shop, orders: Queue, url: str
) -> None:
    # Given a message that died three times, under three letters, one of which is resolved, and one that died once
    thrice = [_of_message(f"thrice/{number}", "m-1") for number in range(3)]
    once = _of_message("once", "m-2")
    nameless = a_letter("nameless", message=a_message(b"{}"))

    async def fill(store: Store) -> None:
        await store.add([*thrice, once, nameless])
        (head,) = await store.take([thrice[0].id], "worker-1")
        await store.settle([Settlement(head.claim_token, Resolve())])

    shop.store(fill)
    # When those that are open are sent, but for what is done
    answer = shop.json(*sending(url, "state:pending", "--skip-processed"))
    # Then neither of its letters goes, and both stay as they were
    assert answer["outcomes"] == {"sent": 2, "skipped": 2}
    assert {headers["redrive-id"] for headers, _ in orders.got()} == {once.id, nameless.id}
    left = shop.whole(thrice[1].id, thrice[2].id)
    assert [letter.state for letter in left] == [LetterState.PENDING] * 2
    items = shop.json("operations", answer["id"])["items"]
    assert {item["detail"] for item in items if item["outcome"] == "skipped"} == {
        "its message was already processed"
    }
    # And without the option they go
    assert shop.json(*sending(url, "state:pending"))["outcomes"] == {"sent": 2}


def _of_message(key: str, message_id: str) -> DeadLetter:
    return a_letter(key, message=a_message(message_id=message_id))


# --- --limit ---------------------------------------------------------------------------------------------


def test_a_limit_sends_the_first_that_a_dry_run_lists_and_the_next_run_goes_on(
    shop: Shop, orders: Queue, url: str
) -> None:
    shop.add(*letters(5))
    every = "source:orders state:pending"
    listed = ids_of(shop.json(*sending(url, every, "--dry-run")))
    assert ids_of(shop.json(*sending(url, every, "--limit", "2", "--dry-run"))) == listed[:2]
    assert shop.json(*sending(url, every, "--limit", "2"))["outcomes"] == {"sent": 2}
    assert [headers["redrive-id"] for headers, _ in orders.got()] == listed[:2]
    assert shop.json(*sending(url, every, "--limit", "10"))["outcomes"] == {"sent": 3}
    assert [headers["redrive-id"] for headers, _ in orders.got()] == listed[2:]


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_that_is_none_is_refused(shop: Shop, limit: str) -> None:
    shop.add(a_letter())
    assert "--limit" in shop.fails(2, *sending("amqp://127.0.0.1:1", "x:y", "--limit", limit))


# --- on a running server ---------------------------------------------------------------------------------


@contextmanager
def _a_server_with(place: Path, *given: DeadLetter) -> Iterator[Serving]:
    with serving(place, settings=QUIET) as server:
        _on(server, lambda store: store.add(given))
        yield server


def _on(server: Serving, work: Any) -> Any:
    async def run() -> Any:
        store = await RemoteStore.open(server.http)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


@contextmanager
def _consuming(place: Path, server: Serving, refused: list[int]) -> Iterator[None]:
    """A consumer that refuses these orders, and processes all others."""
    (place / "shop.py").write_text(textwrap.dedent(CONSUMER.format(url=server.broker, refused=refused)))
    consumer = Process(place, "consume", "shop")
    try:
        consumer.until_it_says("redrive consume")
        yield
    finally:
        assert consumer.end() == 0


def _ten_orders() -> list[DeadLetter]:
    return [
        a_letter(f"orders/{number}", message=a_message(b'{"order": %d}' % number), broker="embedded")
        for number in range(10)
    ]


def _in_the_order_of_a_replay(shop: Shop, server: Serving) -> list[DeadLetter]:
    listed = ids_of(shop.json("replay", "--server", server.http, "source:orders", "--dry-run"))
    found: list[DeadLetter] = _on(server, lambda store: store.load(listed))
    return found


def _number(letter: DeadLetter) -> int:
    return int(json.loads(letter.message.body or b"")["order"])


def test_a_replay_stops_when_as_many_die_again_as_were_named(shop: Shop, tmp_path: Path) -> None:
    with _a_server_with(tmp_path, *_ten_orders()) as server:
        # Given five canaries, two of which die again, and 40 % that are too many
        listed = _in_the_order_of_a_replay(shop, server)
        with _consuming(tmp_path, server, [_number(letter) for letter in listed[:2]]):
            said = shop.fails(1, *_with_canaries(server, "--max-failure-rate", "40", "--json"))
        # Then the rest is left alone
        assert "5 sent of 10, oldest first (2 of 5 failed again)" in said
        (operation,) = shop.json("operations", "--server", server.http)
        assert operation["state"] == "stopped"
        assert f"continue with: redrive replay --resume {operation['id']}" in said
        left = _on(server, lambda store: store.load([letter.id for letter in listed[5:]]))
        assert {(letter.state, letter.dlq_retry_count) for letter in left} == {(LetterState.PENDING, 0)}


def test_a_replay_goes_on_while_fewer_die_again_than_were_named(shop: Shop, tmp_path: Path) -> None:
    with _a_server_with(tmp_path, *_ten_orders()) as server:
        listed = _in_the_order_of_a_replay(shop, server)
        with _consuming(tmp_path, server, [_number(letter) for letter in listed[:2]]):
            assert shop.json(*_with_canaries(server, "--max-failure-rate", "41"))["outcomes"] == {"sent": 10}
            until(lambda: server.metric("redrive_letters_resolved_total") == 8, "eight are processed")


def _with_canaries(server: Serving, *more: str) -> tuple[str, ...]:
    careful = ("--canary", "5", "--canary-timeout", "30s", "--server", server.http)
    return sending(server.broker, "source:orders", *careful, *more)


def test_on_a_server_letters_are_sent_back_and_its_operations_told(shop: Shop, tmp_path: Path) -> None:
    with _a_server_with(tmp_path, *letters(3, broker="embedded")) as server:
        there = ("--server", server.http)
        answer = shop.json(*sending(server.broker, "source:orders", *there))
        assert answer["outcomes"] == {"sent": 3}
        assert shop.json(*sending(server.broker, "source:orders", *there))["left_out"] == 3
        (listed,) = shop.json("operations", *there)
        assert (listed["id"], listed["by"], listed["state"]) == (answer["id"], "anna", "done")
        items = shop.json("operations", answer["id"], *there)["items"]
        assert [item["outcome"] for item in items] == ["sent"] * 3
        assert "is already done" in shop.fails(1, "operations", answer["id"], "--cancel", *there)
        resumed = shop.json("replay", "--resume", answer["id"], "--broker", server.broker, *there)
        assert resumed["outcomes"] == {"sent": 3}
        with channel(server.broker) as amqp:
            assert amqp.queue_declare("orders", passive=True).method.message_count == 3


def test_on_a_server_letters_are_edited_and_sent_at_once(shop: Shop, tmp_path: Path) -> None:
    with _a_server_with(tmp_path, a_letter(broker="embedded")) as server:
        there = ("--server", server.http)
        (old,) = ids_of(shop.json("list", *there))
        words = ("edit", old, "--merge", '{"order": 7}', "--yes", *there)
        answer = shop.json(*words, "--replay", "--force", "--broker", server.broker)
        (made,) = answer["edited"]
        assert answer["operation"]["outcomes"] == {"sent": 1}
        original, copy = _on(server, lambda store: store.load([old, made["copy"]]))
        assert (original.state, original.message.body) == (LetterState.ARCHIVED, b'{"order": 12345}')
        assert (copy.state, copy.message.body) == (LetterState.PROCESSING, b'{"order":7}')
        with channel(server.broker) as amqp:
            _, properties, body = amqp.basic_get("orders", auto_ack=True)
        assert isinstance(properties, pika.BasicProperties)
        assert (properties.headers["redrive-id"], body) == (made["copy"], b'{"order":7}')


def test_on_a_server_letters_are_exported_as_they_are(shop: Shop, tmp_path: Path) -> None:
    given = letters(3)
    with _a_server_with(tmp_path, *given) as server:
        shop.ok("export", "--output", "kept.jsonl.zst", "--server", server.http)
    shop.ok("import", "kept.jsonl.zst", env={"REDRIVE_STORE_URL": "sqlite:other.db"})
    ids = [letter.id for letter in given]
    assert [letter.message for letter in shop.whole(*ids, name="other.db")] == [
        letter.message for letter in given
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "source:orders", "--yes", "--force"),
        ("edit", "source:orders", "--merge", "{}", "--yes"),
        ("export", "--output", "kept.jsonl.zst"),
        ("operations",),
    ],
    ids=lambda words: words[0],
)
def test_a_server_that_is_not_there_is_one_line_and_no_local_store_is_touched(
    shop: Shop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    said = shop.fails(3, *words, "--server", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1" in said
    assert list(tmp_path.iterdir()) == []
