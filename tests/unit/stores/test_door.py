"""Is there one door for all stores, and is it as wide as the contract?"""

import inspect

import pytest

from redrive.stores.base import Store
from redrive.stores.door import Door
from redrive.stores.memory import MemoryStore
from redrive.stores.postgres import PostgresStore
from redrive.stores.remote import RemoteStore
from redrive.stores.sqlite import SqliteStore

OWN = {"add", "damage", "close"}


def verbs_of(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_the_door_has_all_verbs_of_the_contract_but_those_that_are_each_stores_own() -> None:
    assert verbs_of(Door) | OWN == verbs_of(Store)
    assert not verbs_of(Door) & OWN


@pytest.mark.parametrize("verb", sorted(verbs_of(Door)))
def test_a_verb_is_asked_as_the_contract_says(verb: str) -> None:
    assert inspect.signature(getattr(Door, verb)) == inspect.signature(getattr(Store, verb))


@pytest.mark.parametrize("store", [MemoryStore, SqliteStore, PostgresStore, RemoteStore])
def test_no_store_lets_anybody_in_by_another_door(store: type[Door]) -> None:
    assert not verbs_of(Door) & set(vars(store))
    assert not inspect.isabstract(store)
