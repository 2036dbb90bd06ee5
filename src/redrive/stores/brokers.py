"""Which cluster a broker's name stands for, for all servers that share a store.

Letters carry the name of their broker. Two servers must not use one name for two clusters, or letters of the one would
be sent to the other. So each server registers its broker in a shared document: name, kind, cluster id, endpoint, and
until when it serves the broker. Kind and cluster id decide whether it is the same broker; the endpoint is for people.

A name stays registered after its servers are gone, because its letters stay. `forget` releases it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from redrive.errors import BrokerConflictError, SettingsError, StoreError, use_instead
from redrive.letters import LetterHead
from redrive.stores.base import Store
from redrive.stores.changes import SetBroker
from redrive.stores.many import change_those_that_can, load_those_there, pages
from redrive.stores.query import Condition, Op, Query

NAME: Final = "brokers"
UNNAMED: Final = "unnamed:"  # in front of a kind: letters of a version that did not record which broker
_MAX_TRIES: Final = 50
_ACTOR: Final = "server"


class KnownBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that some server has registered."""

    kind: str
    cluster_id: str | None = None
    endpoint: str = ""  # URL without credentials
    servers: dict[str, datetime] = {}  # who serves it, and until when unless that is renewed

    def is_served(self, now: datetime) -> bool:
        """Whether a server serves it now."""
        return any(until > now for until in self.servers.values())

    def describe(self) -> str:
        """The broker for people."""
        cluster = f", cluster {self.cluster_id}" if self.cluster_id else ""
        return f"{self.kind} at {self.endpoint or 'an unknown address'}{cluster}"


Brokers: TypeAlias = Mapping[str, KnownBroker]
_decode: Final = msgspec.json.Decoder(dict[str, KnownBroker]).decode


async def known_brokers(store: Store) -> Brokers:
    """All registered brokers by name."""
    return (await _read(store))[0]


async def register(
    store: Store, name: str, broker: KnownBroker, *, server: str, until: datetime, now: datetime
) -> None:
    """Record that `server` serves this broker until then; a `BrokerConflictError` if the name is another broker's."""
    for _ in range(_MAX_TRIES):
        brokers, version = await _read(store)
        old = brokers.get(name)
        if old is not None:
            check_same(name, old, broker)
        check_one_name(name, broker, brokers, now)
        servers = {} if old is None else {each: end for each, end in old.servers.items() if end > now}
        cluster_id = broker.cluster_id or (None if old is None else old.cluster_id)
        new = msgspec.structs.replace(broker, cluster_id=cluster_id, servers={**servers, server: until})
        if await _write(store, {**brokers, name: new}, version):
            return
    raise StoreError("the list of brokers could not be written: too many servers write it at once; try again")


async def withdraw(store: Store, name: str, *, server: str) -> None:
    """Record that `server` serves this broker no longer."""
    for _ in range(_MAX_TRIES):
        brokers, version = await _read(store)
        old = brokers.get(name)
        if old is None or server not in old.servers:
            return
        servers = {each: until for each, until in old.servers.items() if each != server}
        if await _write(store, {**brokers, name: msgspec.structs.replace(old, servers=servers)}, version):
            return


async def forget(store: Store, name: str, *, now: datetime) -> KnownBroker:
    """Release a name, so that another cluster can have it; refused while a server serves it."""
    for _ in range(_MAX_TRIES):
        brokers, version = await _read(store)
        if name not in brokers:
            raise SettingsError(
                f"no broker is registered as '{name}'{use_instead(name, brokers) if brokers else ''}"
            )
        if brokers[name].is_served(now):
            servers = ", ".join(each for each, until in brokers[name].servers.items() if until > now)
            raise SettingsError(f"broker '{name}' is served by {servers}; stop that server first")
        if await _write(store, {each: it for each, it in brokers.items() if each != name}, version):
            return brokers[name]
    raise StoreError("the list of brokers could not be written: too many servers write it at once; try again")


def check_same(name: str, known: KnownBroker, found: KnownBroker) -> None:
    """Raise a `BrokerConflictError` if these two are not one broker."""
    same_cluster = None in (known.cluster_id, found.cluster_id) or known.cluster_id == found.cluster_id
    if known.kind == found.kind and same_cluster:
        return
    raise BrokerConflictError(
        f"broker name '{name}' belongs to {known.describe()}, but this is {found.describe()}; set "
        f"another broker.name, or release the name with: redrive brokers forget {name}"
    )


def check_one_name(name: str, found: KnownBroker, brokers: Brokers, now: datetime) -> None:
    """Raise a `BrokerConflictError` if another server serves this cluster under another name.

    Both would collect the same dead letters and verdicts, each for letters of its own name.
    """
    for other, known in brokers.items():
        same = found.cluster_id is not None and (known.kind, known.cluster_id) == (
            found.kind,
            found.cluster_id,
        )
        if other != name and same and known.is_served(now):
            raise BrokerConflictError(
                f"this broker ({found.describe()}) is served as '{other}' by another server, but is named "
                f"'{name}' here; use one name on all servers of a cluster: broker.name = \"{other}\""
            )


def name_of(brokers: Brokers, kind: str, cluster_id: str | None) -> str | None:
    """The name under which this cluster is registered; None if it is not, or under several names."""
    names = [
        name
        for name, known in brokers.items()
        if cluster_id is not None and (known.kind, known.cluster_id) == (kind, cluster_id)
    ]
    return names[0] if len(names) == 1 else None


async def adopt_unnamed(store: Store, name: str, broker: KnownBroker) -> int:
    """Assign letters that do not say which broker they belong to; how many were assigned.

    If this is the only registered broker of its kind, they are all its own. Otherwise the endpoint decides, and letters
    of no known endpoint stay unnamed until a person runs `redrive set-broker`.
    """
    brokers = await known_brokers(store)
    is_only = not any(known.kind == broker.kind for other, known in brokers.items() if other != name)
    assigned = 0
    unnamed = Query((Condition("broker", Op.IS, (f"{UNNAMED}{broker.kind}",)),))
    async for heads in pages(store, unnamed):
        ids = [head.id for head in heads] if is_only else await _with_endpoint(store, heads, broker.endpoint)
        assigned += await change_those_that_can(store, SetBroker(name), ids, by=_ACTOR)
    return assigned


async def _with_endpoint(store: Store, heads: Sequence[LetterHead], endpoint: str) -> list[str]:
    letters = await load_those_there(store, [head.id for head in heads])
    return [letter.id for letter in letters if letter.origin.endpoint == endpoint]


async def _read(store: Store) -> tuple[dict[str, KnownBroker], int]:
    memo = await store.recall(NAME)
    try:
        return (_decode(memo.body) if memo.body else {}), memo.version
    except msgspec.MsgspecError as error:
        raise StoreError(f"the list of brokers in the store cannot be read: {error}") from error


async def _write(store: Store, brokers: Brokers, version: int) -> bool:
    return await store.remember(NAME, msgspec.json.encode(brokers), version=version)
