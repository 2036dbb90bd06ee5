"""Reaching a server: what is refused, in which words, and what is never shown."""

from datetime import timedelta

import asyncpg
import pytest

from redrive.clock import SystemClock
from redrive.errors import (
    LetterInvalidError,
    RedriveError,
    SettingsError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
    StoreVersionError,
)
from redrive.settings import StoreOptions
from redrive.stores import open_store
from redrive.stores.postgres import PostgresOptions, PostgresStore, name_of, schema
from redrive.stores.postgres.link import Link
from redrive.testing.clock import ManualClock
from tests.services import Postgres
from tests.services.server import free_ports

SECRET = "hunter2"


# --- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pool_size", 1), ("pool_size", 1001), ("pool_size", True), ("statement_timeout", timedelta(0)),
        ("statement_timeout", timedelta(days=2)), ("busy_timeout", timedelta(seconds=-1)),
        ("busy_timeout", timedelta(hours=2)),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        PostgresOptions(**{field: value})  # type: ignore[arg-type]  # any of them


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"postgresql://bob:{SECRET}@db.example:5433/shop", "postgresql://db.example:5433/shop"),
        (f"postgres://bob:{SECRET}@[::1]/shop?sslmode=require&password={SECRET}", "postgresql://[::1]/shop"),
        ("postgresql:///shop", "postgresql://localhost/shop"),
        (f"postgresql://bob:{SECRET}@one:1,two:2/shop", "postgresql://one:1,two:2/shop"),
    ],
)
def test_a_database_is_shown_without_user_and_password(url: str, name: str) -> None:
    assert name_of(url) == name


@pytest.mark.parametrize("url", ["postgresql://bob:{}@db:port/shop", "postgresql://bob:{}@[::1/shop"])
async def test_a_url_that_is_none_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(SettingsError, match=r"store\.url") as caught:
        await PostgresStore.open(url.format(SECRET))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (asyncpg.DiskFullError("no space"), StoreFullError, "free disk space"),
        (asyncpg.TooManyConnectionsError("sorry"), StoreBusyError, "lower store.pool_size"),
        (asyncpg.QueryCanceledError("statement timeout"), StoreBusyError, "raise store.statement_timeout"),
        (asyncpg.InsufficientPrivilegeError("denied"), StoreReadOnlyError, "grant"),
        (asyncpg.ReadOnlySQLTransactionError("standby"), StoreReadOnlyError, "primary"),
        (asyncpg.DataCorruptedError("page"), StoreDamagedError, "backup"),
        (asyncpg.UndefinedTableError("letters"), StoreDamagedError, "backup"),
        (asyncpg.ProgramLimitExceededError("index row"), LetterInvalidError, "too long"),
        (asyncpg.AdminShutdownError("bye"), StoreUnreachableError, "is unreachable"),
        (ConnectionRefusedError("refused"), StoreUnreachableError, "is unreachable"),
        (TimeoutError(), StoreBusyError, "in time"),
        (asyncpg.PostgresSyntaxError("at or near\nsomething"), StoreError, "refused the statement"),
        (ZeroDivisionError(), StoreError, "ZeroDivisionError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_of_the_server_leave_as_ours_in_one_line(
    error: Exception, kind: type[RedriveError], says: str
) -> None:
    link = Link(f"postgresql://bob:{SECRET}@db/shop", PostgresOptions())
    told = link.translated(error)
    assert type(told) is kind
    assert says in str(told)
    assert str(told).startswith("postgresql://db/shop ")
    assert "\n" not in str(told)
    assert SECRET not in str(told)


# --- opening ---------------------------------------------------------------------------------------------


async def refused(url: str, kind: type[RedriveError], **options: object) -> str:
    with pytest.raises(kind) as caught:
        await PostgresStore.open(url, PostgresOptions(**options))  # type: ignore[arg-type]  # any of them
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_where_no_server_is_that_is_said_at_once() -> None:
    (port,) = free_ports(1)
    said = await refused(f"postgresql://bob:{SECRET}@127.0.0.1:{port}/shop", StoreError)
    assert said.startswith(
        f"postgresql://127.0.0.1:{port}/shop is unreachable; check that the server is running"
    )


async def test_a_wrong_password_and_a_database_that_is_not_there_are_told_apart(postgres: Postgres) -> None:
    before, _, after = postgres.url.partition("@")
    user = before.rpartition(":")[0]
    said = await refused(f"{user}:{SECRET}@{after}", StoreError)
    assert "check user and password" in said
    assert SECRET not in said
    assert "does not exist: create it" in await refused(f"{postgres.url}_not_there", StoreError)


async def test_looking_at_a_database_without_letters_makes_no_tables(postgres: Postgres) -> None:
    assert "has no redrive schema" in await refused(postgres.url, StoreError, create=False)
    assert postgres.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'redrive'") == "0"
    await (await PostgresStore.open(postgres.url)).close()
    await (await PostgresStore.open(postgres.url, PostgresOptions(create=False))).close()


async def test_a_newer_schema_is_refused_and_left_alone(postgres: Postgres) -> None:
    await (await PostgresStore.open(postgres.url)).close()
    postgres.psql("INSERT INTO redrive.migrations VALUES (999)")
    said = await refused(postgres.url, StoreVersionError)
    assert "written by a newer redrive (schema 999" in said
    assert "upgrade redrive" in said


async def test_a_schema_of_another_program_is_refused_and_left_alone(postgres: Postgres) -> None:
    postgres.psql("CREATE SCHEMA redrive; CREATE TABLE redrive.letters (mine int)")
    assert "belongs to another program" in await refused(postgres.url, StoreDamagedError)
    assert postgres.psql("SELECT count(*) FROM pg_tables WHERE schemaname = 'redrive'") == "1"


async def test_tables_of_others_in_the_same_database_are_no_matter(postgres: Postgres) -> None:
    postgres.psql("CREATE TABLE letters (mine int); CREATE TABLE journal (mine int)")
    store = await PostgresStore.open(postgres.url)
    assert await store.count() == 0
    await store.close()
    assert postgres.psql("SELECT count(*) FROM public.letters") == "0"


async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Postgres) -> None:
    name = "redrive_latin1_" + postgres.url.rpartition("_")[2]
    postgres.psql(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        said = await refused(f"{postgres.url.rpartition('/')[0]}/{name}", StoreError)
        assert "has the encoding LATIN1; create a database with ENCODING 'UTF8'" in said
    finally:
        postgres.psql(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_user_without_the_right_is_told_which_right_to_grant(postgres: Postgres) -> None:
    user = "redrive_guest_" + postgres.url.rpartition("_")[2]
    postgres.psql(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")
    try:
        said = await refused(
            f"postgresql://{user}:{SECRET}@{postgres.url.partition('@')[2]}", StoreReadOnlyError
        )
        assert "grant the user CREATE on the database" in said
    finally:
        postgres.psql(f"DROP ROLE {user}")


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [number for number, _ in schema.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


# --- by its URL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
async def test_the_settings_name_a_database_and_real_time_is_the_databases_own(
    postgres: Postgres, scheme: str
) -> None:
    url = scheme + postgres.url.removeprefix("postgresql")
    store = await open_store(StoreOptions(url=url, pool_size=2), SystemClock())
    assert isinstance(store, PostgresStore)
    assert store._now() is None
    await store.close()


async def test_a_clock_that_somebody_made_takes_the_place_of_the_databases(postgres: Postgres) -> None:
    store = await open_store(StoreOptions(url=postgres.url), ManualClock())
    assert isinstance(store, PostgresStore)
    assert store._now() is not None
    await store.close()
