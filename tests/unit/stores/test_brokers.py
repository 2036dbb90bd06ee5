"""Which cluster a broker's name stands for."""

from datetime import timedelta

import pytest

from redrive.errors import BrokerConflictError, SettingsError
from redrive.letters import Origin
from redrive.stores.brokers import (
    KnownBroker,
    adopt_unnamed,
    forget,
    known_brokers,
    name_of,
    register,
    withdraw,
)
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock, a_letter

SHOP = KnownBroker(kind="rabbitmq", cluster_id="rabbit@one//", endpoint="one:5672")
OTHER = KnownBroker(kind="rabbitmq", cluster_id="rabbit@two//", endpoint="two:5672")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


async def registered(
    store: MemoryStore, clock: ManualClock, name: str, broker: KnownBroker, server: str
) -> None:
    now = clock.now()
    await register(store, name, broker, server=server, until=now + 2 * MINUTE, now=now)


async def test_name_stands_for_one_cluster(store: MemoryStore, clock: ManualClock) -> None:
    await registered(store, clock, "shop", SHOP, "a")
    await registered(store, clock, "shop", SHOP, "b")
    assert set((await known_brokers(store))["shop"].servers) == {"a", "b"}
    with pytest.raises(BrokerConflictError, match=r"rabbit@one.*rabbit@two.*redrive brokers forget shop"):
        await registered(store, clock, "shop", OTHER, "c")
    kafka = KnownBroker(kind="kafka", cluster_id="rabbit@one//")
    with pytest.raises(BrokerConflictError, match="belongs to rabbitmq"):
        await registered(store, clock, "shop", kafka, "c")


async def test_cluster_without_an_id_is_compared_by_kind_and_keeps_the_known_id(
    store: MemoryStore, clock: ManualClock
) -> None:
    await registered(store, clock, "shop", SHOP, "a")
    await registered(store, clock, "shop", KnownBroker(kind="rabbitmq", endpoint="one"), "b")
    assert (await known_brokers(store))["shop"].cluster_id == SHOP.cluster_id


async def test_cluster_is_served_under_one_name(store: MemoryStore, clock: ManualClock) -> None:
    await registered(store, clock, "shop", SHOP, "a")
    with pytest.raises(BrokerConflictError, match=r'broker\.name = "shop"'):
        await registered(store, clock, "store", SHOP, "b")
    await withdraw(store, "shop", server="a")
    await registered(store, clock, "store", SHOP, "b")
    assert name_of(await known_brokers(store), "rabbitmq", SHOP.cluster_id) is None, (
        "two names: nobody can say which"
    )


async def test_name_is_released_only_while_no_server_serves_it(
    store: MemoryStore, clock: ManualClock
) -> None:
    await registered(store, clock, "shop", SHOP, "a")
    assert name_of(await known_brokers(store), "rabbitmq", SHOP.cluster_id) == "shop"
    with pytest.raises(SettingsError, match="served by a"):
        await forget(store, "shop", now=clock.now())
    clock.advance(3 * MINUTE)
    assert (await forget(store, "shop", now=clock.now())).cluster_id == SHOP.cluster_id
    await registered(store, clock, "shop", OTHER, "b")
    with pytest.raises(SettingsError, match="use one of shop"):
        await forget(store, "elsewhere", now=clock.now())


async def test_unnamed_letters_belong_to_the_only_broker_of_their_kind(
    store: MemoryStore, clock: ManualClock
) -> None:
    await registered(store, clock, "shop", SHOP, "a")
    await store.add([a_letter("1", broker="unnamed:rabbitmq"), a_letter("2", broker="unnamed:kafka")])
    assert await adopt_unnamed(store, "shop", SHOP) == 1
    assert await store.tally("broker") == {"shop": 1, "unnamed:kafka": 1}


async def test_unnamed_letters_are_assigned_by_endpoint_if_there_are_two_brokers_of_their_kind(
    store: MemoryStore, clock: ManualClock
) -> None:
    await registered(store, clock, "shop", SHOP, "a")
    await registered(store, clock, "other", OTHER, "b")
    for number, endpoint in enumerate(("one:5672", "two:5672", None, "three:5672")):
        origin = Origin(transport="rabbitmq", source="orders", endpoint=endpoint)
        await store.add([a_letter(f"{number}", origin=origin, broker="unnamed:rabbitmq")])
    assert await adopt_unnamed(store, "shop", SHOP) == 1
    assert await adopt_unnamed(store, "other", OTHER) == 1
    assert await store.tally("broker") == {"shop": 1, "other": 1, "unnamed:rabbitmq": 2}
