"""Where dead letters are kept: the contract (`base`), the filter language (`query`) and one adapter per database.

`open_store` is the one place that knows which adapter a URL means; adapters are imported when they are asked for.
"""

import os
from pathlib import Path

import msgspec

from redrive.clock import Clock, SystemClock
from redrive.errors import SettingsError, StoreError, did_you_mean
from redrive.settings import StoreOptions, hide_secrets, resolve
from redrive.stores.base import Store

_SCHEMES = ("sqlite", "postgresql", "postgres", "memory", "http")


async def open_store(
    settings: StoreOptions,
    clock: Clock | None = None,
    *,
    create: bool = True,
    server_key: str | None = None,
) -> Store:
    """The store that the settings name, open and checked; `create=False`: only if it is there already.

    `server_key` is the key of the server whose store it is; without it, the key is read from the server's key file.
    """
    settings = check_url(settings)
    scheme, _, rest = settings.url.partition(":")
    if scheme == "memory":
        from redrive.stores.memory import MemoryStore  # noqa: PLC0415  loaded when asked for

        return MemoryStore(clock)
    if scheme == "sqlite":
        from redrive.stores.sqlite import SqliteOptions, SqliteStore  # noqa: PLC0415

        options = SqliteOptions(
            busy_timeout=settings.busy_timeout,
            integrity_check_timeout=settings.integrity_check_timeout,
            max_bytes=settings.max_bytes,
            create=create,
        )
        return await SqliteStore.open(Path(rest), options, clock)
    if scheme in {"postgresql", "postgres"}:
        return await _open_postgres(settings, clock, create=create)
    from redrive.stores.remote import RemoteStore  # noqa: PLC0415

    return await RemoteStore.open(settings.url, server_key)


def check_url(settings: StoreOptions) -> StoreOptions:
    """The settings with the URL itself, also if it is kept elsewhere; a `SettingsError` if it names no store."""
    try:
        url = resolve(settings.url, os.environ)
    except SettingsError as error:
        raise SettingsError(f"store.url = '{settings.url:.60}' cannot be used: {error}") from None
    scheme, _, rest = url.partition(":")
    if scheme not in _SCHEMES or bool(rest) is (scheme == "memory"):
        hint = did_you_mean(scheme, _SCHEMES) if scheme not in _SCHEMES else ""
        raise SettingsError(
            f"store.url = '{hide_secrets(url):.60}' is not a store; "
            f"write sqlite:FILE, postgresql://… or memory:{hint}"
        )
    return settings if url == settings.url else msgspec.structs.replace(settings, url=url)


async def _open_postgres(settings: StoreOptions, clock: Clock | None, *, create: bool) -> Store:
    try:
        from redrive.stores.postgres import PostgresOptions, PostgresStore  # noqa: PLC0415  loaded when asked for
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreError("a PostgreSQL store needs asyncpg; install redrive[postgres]") from None
    options = PostgresOptions(
        pool_size=settings.pool_size,
        statement_timeout=settings.statement_timeout,
        busy_timeout=settings.busy_timeout,
        create=create,
    )
    # Real time is the database's own, the same for all machines; only a clock that somebody made takes its place.
    own = None if isinstance(clock, SystemClock) else clock
    return await PostgresStore.open(settings.url, options, own)
