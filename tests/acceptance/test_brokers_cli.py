"""Letters of several brokers in one store, on the command line: each is shown, assigned and sent as its broker's.

Each command is a process of its own. What is sent goes to the embedded broker, to RabbitMQ and to Kafka.
"""

import asyncio
import json
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from redrive.clock import SystemClock
from redrive.letters import DeadLetter, LetterState, Message, Origin
from redrive.settings import StoreOptions
from redrive.stores import open_store
from redrive.stores.base import Store
from redrive.stores.brokers import KnownBroker, known_brokers, register
from redrive.stores.changes import Retry, Settlement
from redrive.testing import a_letter, letters
from redrive.testing.factories import a_message
from redrive.transports import open_transport
from tests.acceptance.serving import QUICK, serving, until
from tests.acceptance.shop import Queue, Shop, ids_of, sending
from tests.services import Kafka, Postgres, RabbitMQ

MINUTE = timedelta(minutes=1)
EVENTS = KnownBroker(kind="kafka", cluster_id="k-1", endpoint="kafka://k1:9092")
OLD_FILE = Path(__file__).parents[1] / "golden" / "v1" / "export" / "all-states.jsonl.zst"
QUIET = QUICK.replace("[recover]", "[recover]\n    workers = 0")  # nothing is sent but what a test sends


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


def cluster_at(url: str) -> KnownBroker:
    async def find() -> KnownBroker:
        async with open_transport(url) as transport:
            return KnownBroker(
                kind=transport.kind, cluster_id=transport.cluster_id, endpoint=transport.endpoint
            )

    return asyncio.run(find())


def registered(shop: Shop, /, served: timedelta = MINUTE, **brokers: KnownBroker) -> None:
    """Register brokers as servers do, which serve them for this long."""

    async def work(store: Store) -> None:
        now = SystemClock().now()
        for name, broker in brokers.items():
            await register(store, name, broker, server="host/1", until=now + served, now=now)

    shop.store(work)


def unconfirmed(shop: Shop, *given: DeadLetter) -> None:
    """Letters that were redriven, and of which nothing was heard in time."""

    async def work(store: Store) -> None:
        await store.add(given)
        ids = [letter.id for letter in given]
        held = await store.take(ids, "worker-1")
        await store.extend([head.claim_token for head in held], lease=timedelta(milliseconds=1), sent=True)
        await asyncio.sleep(0.01)
        assert len(await store.overdue(broker=given[0].broker, lease=MINUTE)) == len(given)

    shop.store(work)


# --- replay ----------------------------------------------------------------------------------------------


def test_replay_sends_the_letters_of_one_broker_and_reports_the_others(
    shop: Shop, orders: Queue, url: str
) -> None:
    # Given letters of the broker that is sent to, and of two others
    own = letters(3)
    shop.add(*own, *letters(2, "events", broker="events"), a_letter("old", broker="old"))
    registered(shop, events=EVENTS)
    # When all are replayed
    done = shop.run(*sending(url, "source:orders"))
    # Then its own are sent, and the others are reported with their names and addresses
    assert done.returncode == 0, done.stderr
    assert "3 sent of 3" in done.stdout
    assert (
        "3 letters were excluded: they belong to broker 'events' (kafka at kafka://k1:9092, cluster k-1, 2 letters) "
        "and broker 'old' (not registered, 1 letter), and this replay sends to broker 'rabbitmq'; pass the URL"
    ) in done.stderr
    assert {headers["redrive-id"] for headers, _ in orders.got()} == {letter.id for letter in own}
    assert shop.states() == {"pending": 3, "processing": 3}


def test_replay_counts_letters_of_other_brokers_as_json(shop: Shop, orders: Queue, url: str) -> None:
    shop.add(*letters(2), *letters(3, "events", broker="events"))
    answer = shop.json(*sending(url, "source:orders"))
    assert (answer["total"], answer["outcomes"], answer["other_brokers"]) == (2, {"sent": 2}, {"events": 3})
    assert len(orders.got()) == 2


def test_replay_of_letters_of_other_brokers_only_is_refused_and_sends_nothing(
    shop: Shop, orders: Queue, url: str
) -> None:
    shop.add(*letters(2, "events", broker="events"))
    registered(shop, events=EVENTS)
    said = shop.fails(2, *sending(url, "source:orders"))
    for part in (
        "nothing was sent: the 2 letters belong to broker 'events' (kafka at kafka://k1:9092, cluster k-1)",
        "this replay sends to broker 'rabbitmq' (rabbitmq at amqp://127.0.0.1:",
        "pass the URL of their broker with --broker",
    ):
        assert part in said
    assert (orders.got(), shop.json("operations"), shop.states()) == ([], [], {"pending": 2})


def test_replay_limit_counts_the_letters_of_its_own_broker(shop: Shop, orders: Queue, url: str) -> None:
    shop.add(*letters(3))
    shop.add(*letters(5, "events", broker="events"))
    where = "source:orders sort:-created"
    assert {head["broker"] for head in shop.json("list", "source:orders", "--limit", "2")["letters"]} == {
        "events"
    }
    assert shop.json(*sending(url, where, "--limit", "2"))["outcomes"] == {"sent": 2}
    assert len(orders.got()) == 2


def test_replay_uses_the_name_under_which_the_cluster_is_registered(
    shop: Shop, orders: Queue, url: str
) -> None:
    # Given a cluster that is registered under another name than its kind
    registered(shop, shop=cluster_at(url))
    shop.add(a_letter("mine", broker="shop"), a_letter("other", broker="rabbitmq"))
    # When letters are replayed to its URL
    answer = shop.json(*sending(url, "source:orders"))
    # Then those with the registered name are sent, and their redrives name it
    assert (answer["outcomes"], answer["other_brokers"]) == ({"sent": 1}, {"rabbitmq": 1})
    ((headers, _),) = orders.got()
    assert headers["redrive-to"] == "shop/orders/"


def test_replay_to_a_cluster_whose_name_belongs_to_another_is_refused(
    shop: Shop, orders: Queue, url: str
) -> None:
    registered(
        shop, rabbitmq=KnownBroker(kind="rabbitmq", cluster_id="rabbit@far/%2F", endpoint="amqp://far")
    )
    shop.add(a_letter())
    said = shop.fails(4, *sending(url, "source:orders"))
    assert said.startswith(
        "nothing was sent: broker name 'rabbitmq' belongs to rabbitmq at amqp://far, cluster"
    )
    assert "redrive brokers forget rabbitmq" in said
    assert (orders.got(), shop.json("operations")) == ([], [])


def test_replay_takes_the_name_of_the_broker_of_the_settings(shop: Shop, orders: Queue, url: str) -> None:
    (shop.place / "redrive.toml").write_text(f'[broker]\nname = "shop"\nurl = "{url}"\n')
    shop.add(a_letter("mine", broker="shop"), a_letter("other"))
    registered(shop, events=EVENTS)
    named = ("replay", "--yes", "--force", "source:orders")
    assert "no URL for this broker (kafka at kafka://k1:9092" in shop.fails(2, *named, "--broker", "events")
    assert "did you mean 'events'?" in shop.fails(2, *named, "--broker", "event")
    assert shop.json(*named, "--broker", "shop")["outcomes"] == {"sent": 1}
    assert len(orders.got()) == 1


def test_replay_is_not_resumed_on_another_broker(shop: Shop, orders: Queue, url: str) -> None:
    # Given a replay that was stopped, because its queue did not exist
    shop.add(*letters(2, source="gone"))
    shop.fails(4, *sending(url, "source:gone"))
    (operation,) = shop.json("operations")
    # When it is resumed after its letters went to another broker
    shop.ok("set-broker", "events", "source:gone", "--yes")
    said = shop.fails(2, *sending(url, "--resume", operation["id"]))
    # Then nothing is recorded, so that it can be resumed on the right one
    assert "the 2 letters belong to broker 'events' (not registered)" in said
    assert shop.json("operations", operation["id"])["outcomes"] == {}
    Queue(url, "gone").connection.close()
    shop.ok("set-broker", "rabbitmq", "source:gone", "--yes")
    assert shop.json(*sending(url, "--resume", operation["id"]))["outcomes"] == {"sent": 2}


def test_dry_run_names_the_brokers_of_the_letters(shop: Shop) -> None:
    shop.add(*letters(2))
    assert shop.ok("replay", "source:orders", "--dry-run").endswith(
        "2 letters would be sent, oldest first, to broker 'rabbitmq'\n"
    )
    shop.add(a_letter("events/1", broker="events"))
    assert shop.ok("replay", "source:orders", "--dry-run").endswith(
        "3 letters match: 2 of broker 'rabbitmq', 1 of broker 'events'\n"
        "a replay sends the letters of one broker; choose it with --broker\n"
    )


def test_edit_sends_nothing_and_edits_nothing_if_the_letters_belong_to_another_broker(
    shop: Shop, orders: Queue, url: str
) -> None:
    shop.add(a_letter("events/1", broker="events"))
    words = ("edit", "source:orders", "--merge", '{"order": 5}', "--replay", "--force", "--yes")
    said = shop.fails(2, *words, "--json", "--broker", url)
    assert said.startswith(
        "nothing was edited or sent: the letter belongs to broker 'events' (not registered)"
    )
    assert (shop.states(), orders.got()) == ({"pending": 1}, [])
    # And with a letter of this broker beside it, both are edited and one is sent
    shop.add(a_letter())
    answer = shop.json(*words, "--broker", url)
    assert (len(answer["edited"]), answer["other_brokers"]) == (2, {"events": 1})
    assert answer["operation"]["outcomes"] == {"sent": 1}
    assert len(orders.got()) == 1


def test_unnamed_letters_are_sent_after_a_person_or_the_registration_has_named_them(
    shop: Shop, orders: Queue, url: str
) -> None:
    # Given letters of an earlier version, and no server that has registered a broker
    shop.add(*letters(2, broker="unnamed:rabbitmq"))
    said = shop.fails(2, *sending(url, "source:orders"))
    assert said.endswith("redrive set-broker NAME broker:unnamed:rabbitmq")
    # When a person names their broker, or it is the only one of its kind, they are sent
    done = shop.run("set-broker", "rabbitmq", ids_of(shop.json("list"))[0], "--yes")
    assert done.stdout == "1 letter assigned to broker 'rabbitmq'\n"
    assert "warning: no broker is registered as 'rabbitmq'; its letters wait until a server" in done.stderr
    assert shop.json(*sending(url, "source:orders"))["outcomes"] == {"sent": 1}
    registered(shop, rabbitmq=cluster_at(url))
    assert shop.json(*sending(url, "source:orders state:pending"))["outcomes"] == {"sent": 1}
    assert len(orders.got()) == 2


# --- brokers and set-broker ------------------------------------------------------------------------------


def test_brokers_are_listed_with_servers_and_open_letters(shop: Shop) -> None:
    shop.add(*letters(2, "events", broker="events"), a_letter("old", broker="unnamed:kafka"))
    assert shop.json("brokers", "list")[0]["registered"] is False
    registered(shop, events=EVENTS)
    lines = shop.ok("brokers").splitlines()
    assert lines[0].split("  ")[0] == "name"
    assert lines[1].split() == ["events", "kafka", "k-1", "kafka://k1:9092", "host/1", "2"]
    assert lines[2].split() == ["unnamed:kafka", "not", "registered", "no", "server", "1"]
    first, second = shop.json("brokers")
    assert first == {
        "name": "events",
        "registered": True,
        "kind": "kafka",
        "cluster_id": "k-1",
        "endpoint": "kafka://k1:9092",
        "served_by": ["host/1"],
        "open_letters": 2,
    }
    assert (second["name"], second["registered"], second["served_by"]) == ("unnamed:kafka", False, [])


def test_broker_name_is_released_when_no_server_serves_it(shop: Shop) -> None:
    shop.add(a_letter(broker="events"))
    registered(shop, events=EVENTS)
    assert shop.fails(2, "brokers", "forget", "events", "--yes") == (
        "broker 'events' is served by host/1; stop that server first"
    )
    registered(shop, served=timedelta(0), events=EVENTS)
    assert "pass --yes" in shop.fails(2, "brokers", "forget", "events")
    said = shop.ok("brokers", "forget", "events", "--yes").splitlines()
    assert said[0] == ("broker name 'events' released; it belonged to kafka at kafka://k1:9092, cluster k-1")
    assert said[1].startswith("1 open letter still carries the name")
    assert shop.store(known_brokers) == {}
    assert "no broker is registered as 'events'" in shop.fails(2, "brokers", "forget", "events", "--yes")


def test_set_broker_leaves_letters_alone_that_are_being_redriven(shop: Shop) -> None:
    given = letters(4)
    shop.add(*given)
    shop.store(lambda store: store.take([given[0].id], "worker-1"))
    answer = shop.json("set-broker", "shop", "source:orders", "--yes")
    assert answer == {"letters": 3, "left_alone": 1, "registered": False}
    assert shop.json("stats")["broker"] == {"rabbitmq": 1, "shop": 3}
    told = shop.ok("set-broker", "shop", "source:orders", "--yes")
    assert told == "0 letters assigned to broker 'shop', 1 unchanged (being redriven)\n"
    journal = shop.json("show", given[1].id)["journal"]
    assert [(line["action"], line["actor"], line["detail"]) for line in journal] == [
        ("set_broker", "anna", "shop")
    ]


@pytest.mark.parametrize("name", ["Shop", "unnamed:kafka", "a b", "", "x" * 64])
def test_set_broker_and_import_refuse_an_invalid_name(shop: Shop, name: str) -> None:
    shop.add(a_letter())
    for words in (("set-broker", name, "source:orders"), ("import", ".", "--broker", name)):
        assert "is not a valid broker name: it must be 1 to 63 lowercase letters" in shop.fails(
            2, *words, "--json"
        )


# --- resolve ---------------------------------------------------------------------------------------------


def test_unconfirmed_letters_are_shown_and_resolved_by_a_person(shop: Shop) -> None:
    first, second = given = letters(2)
    unconfirmed(shop, *given)
    assert "  unconfirmed  " in shop.ok("list", "unconfirmed:yes")
    assert "2 letters unconfirmed: redriven, but no verdict or dead letter arrived" in shop.ok("stats")
    assert shop.json("stats")["unconfirmed"] == 2
    assert "processing (unconfirmed: redriven" in shop.ok("show", first.id)
    assert shop.ok("resolve", first.id, "--reason", "seen in the shop", "--yes") == "1 letter resolved\n"
    letter, other = shop.whole(first.id, second.id)
    assert (letter.state, letter.presumed, letter.unconfirmed) == (LetterState.RESOLVED, False, False)
    assert letter.attempts[-1].detail == "confirmed by anna: seen in the shop"
    assert other.unconfirmed
    answer = shop.json("resolve", "unconfirmed:yes", "--reason", "so was it", "--yes")
    assert answer == {"letters": 1, "refused": []}
    assert shop.states() == {"resolved": 2}


def test_resolve_refuses_letters_that_are_not_unconfirmed_and_says_why(shop: Shop) -> None:
    pending, claimed, sent, lost = given = letters(4)
    shop.add(*given[:3])
    unconfirmed(shop, lost)

    async def work(store: Store) -> None:
        await store.take([claimed.id], "worker-7")
        (head,) = await store.take([sent.id], "worker-1")
        await store.extend([head.claim_token], sent=True)

    shop.store(work)
    done = shop.run("resolve", "source:orders", "--reason", "seen", "--yes")
    assert (done.returncode, done.stdout) == (1, "1 letter resolved\n")
    assert f"letter {pending.id} was not resolved: it is pending, so no redrive" in done.stderr
    assert (
        f"letter {claimed.id} was not resolved: it is claimed by worker-7 and was not sent yet" in done.stderr
    )
    assert f"letter {sent.id} was not resolved: it waits for its verdict until 20" in done.stderr
    assert done.stderr.endswith("redrive: 3 letters could not be resolved\n")
    done = shop.run("resolve", lost.id, "--reason", "seen", "--json")
    assert json.loads(done.stdout)["refused"] == [{"id": lost.id, "why": "it is already resolved"}]
    assert "--reason is empty" in shop.fails(2, "resolve", lost.id, "--reason", " ")


# --- list, show and stats --------------------------------------------------------------------------------


def test_letters_are_listed_and_counted_with_broker_and_consumer_group(shop: Shop) -> None:
    origin = Origin(transport="kafka", source="orders", consumer_group="billing", endpoint="kafka://k1:9092")
    shop.add(a_letter("events/1", broker="events", origin=origin), a_letter("old", broker="unnamed:rabbitmq"))
    registered(shop, events=EVENTS)
    (line,) = shop.ok("list", "broker:events").splitlines()[1:]
    assert "pending  orders (group billing)  " in line
    assert "broker" in shop.ok("list").splitlines()[0].split()
    (head,) = shop.json("list", "consumer_group:billing")["letters"]
    assert (head["broker"], head["consumer_group"]) == ("events", "billing")
    shown = shop.ok("show", head["id"]).splitlines()
    assert "broker         events (kafka at kafka://k1:9092)" in shown
    assert "consumer group billing" in shown
    figures = shop.json("stats")
    assert figures["broker"] == {"events": 1, "unnamed:rabbitmq": 1}
    assert (figures["unnamed"], figures["unserved"]) == (1, {"unnamed:rabbitmq": 1})
    told = shop.ok("stats")
    assert "1 letter without a broker name; assign them with: redrive set-broker" in told
    assert "1 pending letter of brokers that no server serves: unnamed:rabbitmq 1" in told


def test_letter_shows_how_often_it_came_back_over_all_cycles(shop: Shop) -> None:
    # Given a letter that came back twice
    old = a_letter()

    async def work(store: Store) -> None:
        await store.add([old])
        for _ in range(2):
            (head,) = await store.take([old.id], "worker-1")
            await store.settle([Settlement(head.claim_token, Retry(at=SystemClock().now()))])

    shop.store(work)
    assert "failed again   2 times" in shop.ok("show", old.id).splitlines()
    # When it is edited, the copy goes on counting
    (made,) = shop.json("edit", old.id, "--merge", '{"order": 5}', "--yes")["edited"]
    told = shop.ok("show", made["copy"])
    assert f"failed again   2 times in total, also as {old.id}, from which this letter is derived" in told
    answer = shop.json("show", made["copy"])
    assert (answer["came_back"], answer["prior_redrives"], answer["dlq_retry_count"]) == (2, 2, 0)


# --- export and import -----------------------------------------------------------------------------------


def test_import_keeps_the_broker_of_letters_or_takes_the_one_given(shop: Shop) -> None:
    shop.add(a_letter(broker="events"), a_letter("old", broker="unnamed:kafka"))
    shop.ok("export", "--all", "--output", "kept.jsonl.zst")
    for name, words, brokers in (
        ("same.db", (), {"events": 1, "unnamed:kafka": 1}),
        ("other.db", ("--broker", "shop"), {"shop": 2}),
    ):
        env = {"REDRIVE_STORE_URL": f"sqlite:{name}"}
        answer = shop.json("import", "kept.jsonl.zst", *words, env=env)
        assert (answer["added"], answer["unnamed"]) == (2, brokers.get("unnamed:kafka", 0))
        assert shop.json("stats", env=env)["broker"] == brokers
    told = shop.ok("import", "kept.jsonl.zst", env={"REDRIVE_STORE_URL": "sqlite:third.db"})
    assert "1 letter without a broker name" in told


def test_import_of_a_file_of_version_1_leaves_letters_unnamed(shop: Shop) -> None:
    answer = shop.json("import", str(OLD_FILE))
    assert answer["unnamed"] == answer["added"] > 0
    assert set(shop.json("stats", "--all")["broker"]) == {"unnamed:rabbitmq", "unnamed:kafka"}


# --- on servers ------------------------------------------------------------------------------------------


def test_replay_on_a_server_without_broker_never_uses_the_default_for_letters_of_kafka(
    shop: Shop, tmp_path: Path, kafka: Kafka
) -> None:
    # Given a server of a Kafka with letters, and a folder without settings
    topic = kafka.topic("orders")
    place = tmp_path / "server"
    place.mkdir()
    with serving(place, "--broker", kafka.url, settings=QUIET.replace('"orders"', f'"{topic}"')) as server:
        origin = Origin(transport="kafka", source=topic)
        given = [a_letter(f"k/{number}", origin=origin, message=Message(body=b"k")) for number in range(2)]
        _in_store(server.http, given)
        there = ("replay", "--server", server.http, f"source:{topic}", "--yes", "--force")
        # When they are replayed without --broker, nothing is sent
        said = shop.fails(2, *there)
        assert "letters belong to broker 'kafka' (kafka at kafka://" in said
        assert "--broker" in said
        assert shop.json("operations", "--server", server.http) == []
        # And with the URL they go
        assert shop.json(*there, "--broker", kafka.url)["outcomes"] == {"sent": 2}
        assert len(_records(kafka, topic, 2)) == 2


def test_replay_on_a_server_finds_the_name_of_its_embedded_broker(shop: Shop, tmp_path: Path) -> None:
    place = tmp_path / "server"
    place.mkdir()
    with serving(place, settings=QUIET) as server:
        _in_store(server.http, [a_letter(broker="embedded"), a_letter("other")])
        words = sending(server.broker, "source:orders", "--server", server.http)
        answer = shop.json(*words)
        assert (answer["outcomes"], answer["other_brokers"]) == ({"sent": 1}, {"rabbitmq": 1})
        (broker, other) = shop.json("brokers", "--server", server.http)
        assert (broker["name"], broker["kind"], len(broker["served_by"])) == ("embedded", "rabbitmq", 1)
        assert (other["name"], other["registered"], other["open_letters"]) == ("rabbitmq", False, 1)


def test_two_servers_on_one_store_with_equal_names_send_each_letter_to_its_own_broker(
    shop: Shop, tmp_path: Path, rabbitmq: RabbitMQ, kafka: Kafka, postgres: Postgres
) -> None:
    # Given a RabbitMQ and a Kafka with a queue and a topic of one name, their servers, and one store
    topic = kafka.topic("orders")
    queue = Queue(rabbitmq.amqp_url, topic)
    text = QUICK.replace('"orders"', f'"{topic}"') + f'\n[store]\nurl = "{postgres.url}"\n'
    places = [tmp_path / "rabbitmq", tmp_path / "kafka"]
    for place in places:
        place.mkdir()
    with (
        serving(places[0], "--broker", rabbitmq.amqp_url, settings=textwrap.dedent(text)) as first,
        serving(places[1], "--broker", kafka.url, settings=textwrap.dedent(text)) as second,
    ):
        until(lambda: len(shop.json("brokers", "--server", first.http)) == 2, "both brokers are registered")
        # When letters of both are due, and others are replayed through the server of the other broker
        due = {name: _letters_of(name, topic, 6, "due") for name in ("rabbitmq", "kafka")}
        later = {name: _letters_of(name, topic, 3, "later", retry_in=timedelta(days=3650)) for name in due}
        for given in (*due.values(), *later.values()):
            _in_store(postgres.url, given)
        where = f"source:{topic} due>+1d"
        wrong = sending(rabbitmq.amqp_url, f"source:{topic} due>+1d broker:kafka")
        assert "belong to broker 'kafka' (kafka at" in shop.fails(2, *wrong, "--server", first.http)
        answer = shop.json(*sending(rabbitmq.amqp_url, where, "--server", second.http))
        assert (answer["outcomes"], answer["other_brokers"]) == ({"sent": 3}, {"kafka": 3})
        assert shop.json(*sending(kafka.url, where, "--server", first.http))["outcomes"] == {"sent": 3}
        # Then each broker receives its own letters and no other
        expected = {name: {letter.id for letter in (*due[name], *later[name])} for name in due}
        records = _records(kafka, topic, 9)
        assert {headers["redrive-id"] for headers in records} == expected["kafka"]
        got: set[str] = set()

        def all_arrived() -> bool:
            got.update(headers["redrive-id"] for headers, _ in queue.got())
            return len(got) >= 9

        until(all_arrived, "nine redrives in the queue")
        assert got == expected["rabbitmq"]
    queue.connection.close()


def test_broadcast_on_kafka_is_addressed_to_all_groups_of_the_topic(shop: Shop, kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    shop.add(a_letter(origin=Origin(transport="kafka", source=topic, partition=0, offset=3)))
    answer = shop.json(*sending(kafka.url, f"source:{topic}", "--broadcast"))
    assert answer["outcomes"] == {"sent": 1}
    (headers,) = _records(kafka, topic, 1)
    assert (headers["redrive-scope"], headers["redrive-to"]) == ("all", f"kafka/{topic}/")


def _letters_of(name: str, source: str, count: int, prefix: str, **fields: Any) -> list[DeadLetter]:
    origin = Origin(transport=name, source=source)
    return [
        a_letter(f"{name}/{prefix}/{number}", origin=origin, message=a_message(message_id=None), **fields)
        for number in range(count)
    ]


def _in_store(url: str, given: list[DeadLetter]) -> None:
    async def work() -> None:
        store = await open_store(StoreOptions(url=url))
        try:
            await store.add(given)
        finally:
            await store.close()

    asyncio.run(work())


def _records(kafka: Kafka, topic: str, count: int) -> list[dict[str, str]]:
    """The headers of the records of a topic, once there are so many, and of those that come soon after."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": kafka.name("look"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[dict[str, str]] = []
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            record = consumer.poll(1)
            if record is None:
                if len(found) >= count:
                    break
            elif record.error() is None:
                headers: Any = record.headers() or []
                found.append({name: value.decode() for name, value in headers})
    finally:
        consumer.close()
    return found
