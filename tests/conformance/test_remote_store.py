"""The store of a server, asked over a real socket: the same contract, with SQLite behind it.

One sentence is not tested here because it cannot hold over a wire: that a verb which raises has changed nothing (S31)
when it is the connection that broke. What the suite asks of S31, refusals, holds.
"""

from pathlib import Path

from starlette.applications import Starlette

from redrive.clock import Clock
from redrive.listening import Listening
from redrive.serve.web import listen, store_routes
from redrive.stores.base import Store
from redrive.stores.remote import RemoteStore
from redrive.stores.server_key import StoreAccess
from redrive.stores.sqlite import SqliteStore
from redrive.testing.store_suite import StoreSuite


class Served(RemoteStore):
    """A remote store that takes its server with it when it is closed."""

    behind: Store
    web: Listening

    @classmethod
    async def on(cls, behind: Store) -> "Served":
        access = StoreAccess("the-key-of-this-test", None)
        web = await listen(Starlette(routes=store_routes(behind, access)), "127.0.0.1", 0)
        store = await cls.open(web.url, access.key)
        store.behind, store.web = behind, web
        return store

    async def close(self) -> None:
        await super().close()
        await self.web.close()
        await self.behind.close()


class TestRemoteSqliteStore(StoreSuite):
    async def open_store(self, place: Path, clock: Clock) -> Served:
        return await Served.on(await SqliteStore.open(place / "redrive.db", clock=clock))
