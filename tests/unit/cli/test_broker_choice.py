"""Letters are sent to their own broker: which one a command connects to, what it is called, and what is refused."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from redrive.cli.broker_choice import BrokerChoice, choose_broker, connect, find_broker, identify
from redrive.clock import SystemClock
from redrive.errors import BrokerConflictError, BrokerUnreachableError, SettingsError
from redrive.letters import LetterHead
from redrive.settings import Settings, read
from redrive.stores.brokers import KnownBroker, register
from redrive.stores.memory import MemoryStore
from redrive.testing import letters

KAFKA = KnownBroker(kind="kafka", cluster_id="k-1", endpoint="kafka://k1:9092")
SHOP = KnownBroker(kind="rabbitmq", cluster_id="rabbit@a/%2F", endpoint="amqp://a:5672")
MEMORY = KnownBroker(kind="memory", cluster_id="memory", endpoint="memory:")
REGISTERED = {"events": KAFKA, "shop": SHOP}


def settings_of(**broker: str) -> Settings:
    return read({"broker": broker} if broker else {})


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    opened = MemoryStore(SystemClock())
    yield opened
    await opened.close()


async def registered_in(store: MemoryStore, **brokers: KnownBroker) -> None:
    now = SystemClock().now()
    for name, broker in brokers.items():
        until = now + timedelta(minutes=1)
        await register(store, name.replace("_", "-"), broker, server="host/1", until=until, now=now)


async def stored(store: MemoryStore, count: int, broker: str) -> list[LetterHead]:
    made = letters(count, broker, broker=broker)
    await store.add(made)
    return list(made)


# --- which URL, and which name ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "given", "url", "name"),
    [
        ({}, None, "amqp://127.0.0.1:5672", "embedded"),
        ({"name": "shop"}, None, "amqp://127.0.0.1:5672", "shop"),
        ({"url": "kafka://k1"}, None, "kafka://k1", "kafka"),
        ({"url": "kafka://k1", "name": "events"}, None, "kafka://k1", "events"),
        ({"url": "kafka://k1", "name": "events"}, "events", "kafka://k1", "events"),
        ({"url": "kafka://k1"}, "kafka", "kafka://k1", "kafka"),
        ({}, "embedded", "amqp://127.0.0.1:5672", "embedded"),
        ({}, "amqp://a", "amqp://a", "rabbitmq"),
        ({"url": "amqp://b", "name": "shop"}, "amqps://a", "amqps://a", "shop"),
        ({"url": "amqp://b", "name": "shop"}, "kafka://k1", "kafka://k1", "kafka"),
    ],
)
def test_choice_takes_url_and_name_of_the_option_then_of_the_settings(
    broker: dict[str, str], given: str | None, url: str, name: str
) -> None:
    choice = choose_broker(settings_of(**broker), {}, given)
    assert (choice.url, choice.name) == (url, name)


def test_choice_assumes_the_port_of_the_embedded_broker() -> None:
    assert choose_broker(read({"embedded": {"port": 5700}}), {}, None).url == "amqp://127.0.0.1:5700"
    assert choose_broker(read({"embedded": {"port": 0}}), {}, None).url == "amqp://127.0.0.1:5672"


def test_registered_name_without_url_asks_for_the_url() -> None:
    with pytest.raises(
        SettingsError, match=r"no URL for this broker \(kafka at kafka://k1:9092.*--broker URL"
    ):
        choose_broker(settings_of(), REGISTERED, "events")


def test_unknown_name_is_refused_with_the_closest_one() -> None:
    with pytest.raises(SettingsError, match="no broker has this name; did you mean 'events'"):
        choose_broker(settings_of(), REGISTERED, "event")


# --- what the cluster is called --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (SHOP, "shop"),
        (KnownBroker(kind="rabbitmq", cluster_id="rabbit@b/%2F"), "configured"),
        (KnownBroker(kind="rabbitmq", cluster_id="rabbit@a/other"), "configured"),
        (KnownBroker(kind="kafka", cluster_id="rabbit@a/%2F"), "configured"),
        (KnownBroker(kind="rabbitmq"), "configured"),
    ],
)
def test_cluster_has_its_registered_name_else_the_configured_one(found: KnownBroker, name: str) -> None:
    assert identify(BrokerChoice(url="amqp://a", name="configured"), REGISTERED, found) == name


def test_cluster_with_two_names_has_the_configured_one() -> None:
    twice = {"shop": SHOP, "shop-2": SHOP}
    assert identify(BrokerChoice(url="amqp://a", name="shop-2"), twice, SHOP) == "shop-2"


def test_name_of_another_cluster_is_a_conflict() -> None:
    other = KnownBroker(kind="rabbitmq", cluster_id="rabbit@b/%2F", endpoint="amqp://b:5672")
    with pytest.raises(
        BrokerConflictError, match=r"'shop' belongs to rabbitmq at amqp://a:5672.*amqp://b:5672"
    ):
        identify(BrokerChoice(url="amqp://b", name="shop"), REGISTERED, other)


def test_broker_with_another_name_than_the_one_given_is_a_conflict() -> None:
    choice = BrokerChoice(url="amqp://a", name="store", is_named=True)
    with pytest.raises(BrokerConflictError, match="is registered as broker 'shop', not as 'store'"):
        identify(choice, REGISTERED, SHOP)


# --- which letters ---------------------------------------------------------------------------------------


async def test_letters_of_other_brokers_are_counted_by_name(store: MemoryStore) -> None:
    await registered_in(store, shop=MEMORY, events=KAFKA)
    given = [
        *await stored(store, 2, "shop"),
        *await stored(store, 3, "events"),
        *await stored(store, 1, "old"),
    ]
    found = await find_broker(store, settings_of(), "memory:", given)
    assert (found.name, found.others) == ("shop", {"events": 3, "old": 1})
    assert found.describe_others() == (
        "4 letters were excluded: they belong to broker 'events' (kafka at kafka://k1:9092, cluster k-1, 3 letters) "
        "and broker 'old' (not registered, 1 letter), and this replay sends to broker 'shop'; pass the URL of their "
        "broker with --broker, or assign them to another one with redrive set-broker"
    )


async def test_letters_that_all_belong_to_other_brokers_are_an_error(store: MemoryStore) -> None:
    await registered_in(store, shop=MEMORY, events=KAFKA)
    with pytest.raises(SettingsError) as refused:
        await find_broker(store, settings_of(), "memory:", await stored(store, 2, "events"))
    assert str(refused.value) == (
        "nothing was sent: the 2 letters belong to broker 'events' (kafka at kafka://k1:9092, cluster k-1), and this "
        "replay sends to broker 'shop' (memory at memory:, cluster memory); pass the URL of their broker with "
        "--broker, or assign them to another one with redrive set-broker"
    )
    assert refused.value.exit_code == 2


async def test_conflict_is_raised_before_anything_is_sent(store: MemoryStore) -> None:
    await registered_in(store, memory=SHOP)
    with pytest.raises(
        BrokerConflictError, match="nothing was sent: broker name 'memory' belongs to rabbitmq"
    ):
        await find_broker(store, settings_of(), "memory:", await stored(store, 1, "memory"))


async def test_default_broker_that_is_not_there_names_the_brokers_of_the_letters(store: MemoryStore) -> None:
    await registered_in(store, events=KAFKA)
    nobody_listens = read({"embedded": {"port": 1}})
    with pytest.raises(SettingsError) as refused:
        await find_broker(store, nobody_listens, None, await stored(store, 2, "events"))
    for part in (
        "neither --broker nor broker.url",
        "belong to broker 'events' (kafka at",
        "pass --broker URL",
    ):
        assert part in str(refused.value)
    with pytest.raises(BrokerUnreachableError, match=r"^nothing was sent: 127\.0\.0\.1:1 cannot"):
        await find_broker(store, settings_of(), "amqp://127.0.0.1:1", [])


async def names_of(store: MemoryStore) -> set[str]:
    return {head.broker for head in (await store.page(limit=100)).heads}


async def test_unnamed_letters_are_assigned_to_the_only_registered_broker_of_their_kind(
    store: MemoryStore,
) -> None:
    await registered_in(store, shop=MEMORY, events=KAFKA)
    given = await stored(store, 2, "unnamed:memory")
    found = await find_broker(store, settings_of(), "memory:", given)
    assert (found.name, found.others) == ("shop", {})
    assert await names_of(store) == {"shop"}


@pytest.mark.parametrize(
    "brokers",
    [{}, {"shop": MEMORY, "other": KnownBroker(kind="memory", cluster_id="m-2")}],
    ids=["not registered", "two brokers of this kind"],
)
async def test_unnamed_letters_wait_for_a_person_where_several_brokers_could_own_them(
    store: MemoryStore, brokers: dict[str, Any]
) -> None:
    await registered_in(store, **brokers)
    given = await stored(store, 2, "unnamed:memory")
    hint = r"redrive set-broker NAME broker:unnamed:memory$"
    with pytest.raises(SettingsError, match=hint):
        await find_broker(store, settings_of(), "memory:", given)
    assert await names_of(store) == {"unnamed:memory"}


async def test_connection_to_another_cluster_than_the_one_found_is_refused(store: MemoryStore) -> None:
    found = await find_broker(store, settings_of(), "memory:", await stored(store, 1, "memory"))
    async with connect(found) as transport:
        assert transport.cluster_id == "memory"
    moved = type(found)(
        name=found.name,
        url=found.url,
        known=KnownBroker(kind="memory", cluster_id="another"),
        others={},
        registered={},
    )
    with pytest.raises(BrokerConflictError):
        async with connect(moved):
            pass
