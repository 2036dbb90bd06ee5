"""Is this database fit for us, and of our version?

Everything is kept in a schema of our own, `redrive`, beside whatever else the database holds. Opening a store answers
these questions in order, each with its own error, and changes nothing before all are answered. Then migrations run:
numbered SQL files, each in one transaction that holds a lock, so that any number of processes may start at once.
"""

from datetime import timedelta
from importlib.resources import files
from typing import Any, Final

from redrive.errors import StoreDamagedError, StoreError, StoreVersionError

SCHEMA: Final = "redrive"
_OLDEST_SERVER: Final = 14  # the first whose epochs are exact to the microsecond
_LOCK: Final = 0x52445256  # "RDRV": whoever migrates holds it
PATIENCE: Final = timedelta(minutes=10)  # for whoever migrates a large store before us


def migrations() -> list[tuple[int, str]]:
    """(version, SQL) of every migration, in order."""
    folder = files("redrive.stores") / "sql" / "postgres"
    found = sorted(
        (entry.name, entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql")
    )
    return [(int(name.split("_")[0]), text) for name, text in found]


async def prepare(connection: Any, name: str, *, create: bool) -> None:
    """Make the schema one of this version, or say why it cannot be. `name` is the database's, for people."""
    async with connection.transaction():  # else a pooler might let two connections see to one statement
        await _check_server(connection, name)
        version = await _version(connection, name)
    if version is None and not create:
        raise StoreError(
            f"{name} holds no dead letters; check store.url, or let redrive create them by using it"
        )
    _check_version(version or 0, name)
    for number, script in migrations():
        if number <= (version or 0):
            continue
        async with connection.transaction():
            await connection.execute(
                f"SET LOCAL statement_timeout = '{PATIENCE.total_seconds():.0f}s'; SET LOCAL search_path = {SCHEMA}"
            )
            await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            there = await _version(connection, name) or 0  # another process may have been faster
            _check_version(there, name)
            if number > there:
                await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
                await connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations (version integer PRIMARY KEY)"
                )
                await connection.execute(script)
                await connection.execute("INSERT INTO migrations VALUES ($1)", number)


async def _check_server(connection: Any, name: str) -> None:
    server, encoding = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding')"
    )
    if server < _OLDEST_SERVER:
        raise StoreError(f"{name} is PostgreSQL {server}; redrive needs {_OLDEST_SERVER} or newer")
    if encoding != "UTF8":
        raise StoreError(f"{name} holds text as {encoding}; make a database with ENCODING 'UTF8' for redrive")


async def _version(connection: Any, name: str) -> int | None:
    """The version of what is there; None: nothing is."""
    ours, tables = await connection.fetchrow(
        "SELECT bool_or(relname = 'migrations'), count(*) FROM pg_class"
        f" WHERE relnamespace = to_regnamespace('{SCHEMA}') AND relkind = 'r'"
    )
    if ours:
        return int(await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {SCHEMA}.migrations"))
    if tables:
        raise StoreDamagedError(
            f"{name} has a schema {SCHEMA} of another program; rename that one, or choose another database"
        )
    return None


def _check_version(version: int, name: str) -> None:
    newest = migrations()[-1][0]
    if version > newest:
        raise StoreVersionError(
            f"{name} was written by a newer redrive (schema {version}, this one knows {newest}); upgrade redrive"
        )
