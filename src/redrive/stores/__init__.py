"""Where dead letters are kept: the contract (`base`), the filter language (`query`) and one adapter per database.

`open_store` is the one place that knows which adapter a URL means; adapters are imported when they are asked for.
"""

from pathlib import Path

from redrive.clock import Clock
from redrive.errors import SettingsError, did_you_mean
from redrive.settings import StoreSettings
from redrive.stores.base import Store

_SCHEMES = ("sqlite", "memory", "http")


async def open_store(settings: StoreSettings, clock: Clock | None = None, *, create: bool = True) -> Store:
    """The store that the settings name, open and checked; `create=False`: only if it is there already."""
    scheme, _, rest = settings.url.partition(":")
    if scheme == "memory" and not rest:
        from redrive.stores.memory import MemoryStore  # noqa: PLC0415  loaded when asked for

        return MemoryStore(clock)
    if scheme == "sqlite" and rest:
        from redrive.stores.sqlite import SqliteOptions, SqliteStore  # noqa: PLC0415

        options = SqliteOptions(
            busy_timeout=settings.busy_timeout,
            check_for=settings.check_for,
            max_bytes=settings.max_bytes,
            create=create,
        )
        return await SqliteStore.open(Path(rest), options, clock)
    if scheme == "http" and rest:
        from redrive.stores.remote import RemoteStore  # noqa: PLC0415

        return await RemoteStore.open(settings.url)
    hint = did_you_mean(scheme, _SCHEMES) if scheme not in _SCHEMES else ""
    raise SettingsError(
        f"store.url = '{settings.url:.60}' is not a store; write sqlite:FILE or memory:{hint}"
    )
