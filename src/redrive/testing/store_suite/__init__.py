"""One test per sentence of the contract in `redrive.stores.base`.

Make a file of tests for a store by subclassing::

    class TestMyStore(StoreSuite):
        async def open_store(self, place: Path, clock: Clock) -> Store:
            return await MyStore.open(place / "letters", clock=clock)

The numbers in the names are those of the contract. Tests are coroutines: use pytest-asyncio in auto mode.
"""

from redrive.testing.store_suite.adding import Adding
from redrive.testing.store_suite.changing import Changing
from redrive.testing.store_suite.claiming import Claiming
from redrive.testing.store_suite.failing import Failing
from redrive.testing.store_suite.operating import Operating
from redrive.testing.store_suite.reading import Reading
from redrive.testing.store_suite.remembering import Remembering
from redrive.testing.store_suite.settling import Settling
from redrive.testing.store_suite.waiting import Waiting

__all__ = [
    "Adding",
    "Changing",
    "Claiming",
    "Failing",
    "Operating",
    "Reading",
    "Remembering",
    "Settling",
    "StoreSuite",
    "Waiting",
]


class StoreSuite(Adding, Claiming, Settling, Changing, Reading, Failing, Operating, Remembering, Waiting):
    """The whole contract as tests."""
