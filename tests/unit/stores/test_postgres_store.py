"""What PostgreSQL does beyond the contract: whose clock, how many commits, which index, what stays out of the way."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from random import Random

import asyncpg
import msgspec
import pytest

from redrive.errors import LetterInvalidError, LetterNotFoundError, QueryError
from redrive.letters import ClaimToken, LetterState
from redrive.stores.base import Store
from redrive.stores.changes import Delete, Park, Resolve, Retry, Settlement, Tag
from redrive.stores.postgres import PostgresStore, work
from redrive.stores.postgres.link import _WRITING
from redrive.stores.postgres.search import SEARCH
from redrive.stores.query import Condition, Op, Query, Sort, parse_query
from redrive.testing import a_letter, letters
from redrive.testing.factories import BROKER, a_failure, a_message
from tests.services import Postgres
from tests.services.guard import until

NOW = datetime(2026, 2, 11, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres.url)
    yield store
    await store.close()


# --- time ------------------------------------------------------------------------------------------------


async def test_leases_are_counted_by_the_databases_clock(store: PostgresStore, postgres: Postgres) -> None:
    await store.add(letters(2))
    before = postgres.psql("SELECT clock_timestamp() AT TIME ZONE 'UTC'")
    [head] = await store.claim("w", broker=BROKER, limit=1, lease=timedelta(milliseconds=20))
    assert head.locked_at is not None
    assert head.locked_at.replace(tzinfo=None) >= datetime.fromisoformat(before)
    postgres.psql("SELECT pg_sleep(0.03)")
    assert await store.settle([Settlement(head.claim_token, Resolve())]) == [False]
    assert await store.extend([head.claim_token]) == [False]
    [rescued] = await store.rescue(retry_in=MINUTE)
    assert rescued.id == head.id


async def test_letters_of_two_processes_are_in_order_of_age(store: PostgresStore, postgres: Postgres) -> None:
    other = await PostgresStore.open(postgres.url)
    for number in range(6):
        await (store, other)[number % 2].add([a_letter(f"k{number}")])
    assert [head.correlation_id for head in await store.claim("w", broker=BROKER)] == [
        f"trace-k{n}" for n in range(6)
    ]
    await other.close()


# --- group commit ----------------------------------------------------------------------------------------


async def test_what_many_tasks_add_and_settle_is_committed_in_few_transactions(
    store: PostgresStore, postgres: Postgres
) -> None:
    await asyncio.gather(*(store.add([letter]) for letter in letters(300)))
    heads = await store.claim("w", broker=BROKER, limit=300)
    done = await asyncio.gather(*(store.settle([Settlement(head.claim_token, Resolve())]) for head in heads))
    assert done == [[True]] * 300
    assert int(postgres.psql("SELECT count(*) FROM redrive.commits")) < 20


async def test_looking_for_work_where_there_is_none_writes_nothing(
    store: PostgresStore, postgres: Postgres
) -> None:
    assert await store.claim("w", broker=BROKER) == []
    assert await store.take(["x"], "w") == []
    assert await store.extend([ClaimToken("x", 1)]) == [False]
    assert await store.settle([Settlement(ClaimToken("x", 2**70), Resolve())]) == [False]
    assert postgres.psql("SELECT count(*) FROM redrive.commits") == "0"


async def test_tickets_that_nobody_can_ask_for_any_more_are_forgotten(
    store: PostgresStore, postgres: Postgres
) -> None:
    await store.add([a_letter()])
    postgres.psql("INSERT INTO redrive.commits VALUES (gen_random_uuid(), false, now() - interval '3 hours')")
    await store.rescue(retry_in=MINUTE)
    assert postgres.psql("SELECT count(*) FROM redrive.commits WHERE at < now() - interval '1 hour'") == "0"
    assert postgres.psql("SELECT count(*) FROM redrive.commits") != "0"


async def test_whoever_is_cancelled_leaves_nothing_half_done(
    store: PostgresStore, postgres: Postgres
) -> None:
    await store.add(letters(5))
    other = await asyncpg.connect(postgres.url)
    holding = other.transaction()
    await holding.start()
    await other.execute("LOCK TABLE redrive.states IN ACCESS EXCLUSIVE MODE")
    claiming = asyncio.create_task(store.claim("w", broker=BROKER, limit=5))
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await holding.rollback()
    await other.close()
    await store.close()  # waits for what was begun
    assert postgres.psql("SELECT count(*), min(fence), max(locked_by) FROM redrive.states") == "5|1|w"


async def test_two_who_tag_the_same_letter_at_once_both_have_their_way(
    store: PostgresStore, postgres: Postgres
) -> None:
    letter = a_letter(tags=("old",))
    await store.add([letter])
    other = await asyncpg.connect(postgres.url)
    holding = other.transaction()
    await holding.start()
    await other.execute("SELECT 1 FROM redrive.states FOR UPDATE")
    tagging = [
        asyncio.create_task(store.apply(Tag(add=(tag,)), [letter.id], by="ann")) for tag in ("one", "two")
    ]
    assert await asyncio.to_thread(until, lambda: postgres.psql(WAITING) == "2", 30)
    await holding.rollback()
    await other.close()
    await asyncio.gather(*tagging)
    [now] = await store.load([letter.id])
    assert set(now.tags) == {"old", "one", "two"}
    assert await store.tally("tag") == {"old": 1, "one": 1, "two": 1}


# --- text ------------------------------------------------------------------------------------------------


async def test_names_that_no_index_could_hold_are_kept_and_found(store: PostgresStore) -> None:
    chance = Random(1)
    long = ["".join(chance.choices("abcdefgh", k=30_000)) for _ in range(2)]
    texts = [long[0], long[0] + "!", long[1]]
    lot = [
        a_letter(
            f"k{n}", source=text, correlation_id=text, tags=(text,), failure=a_failure(error_type=text),
            message=a_message(message_id=text),
        )
        for n, text in enumerate(texts)
    ]  # fmt: skip
    assert await store.add(lot) == [True] * 3
    for field in ("source", "error", "correlation", "message", "tag"):
        for letter, text in zip(lot, texts, strict=True):
            page = await store.page(Query((Condition(field, Op.IS, (text,)),)))
            assert [head.id for head in page.heads] == [letter.id], field
        page = await store.page(Query((Condition(field, Op.PREFIX, (long[0],)),)))
        assert len(page.heads) == 2
    assert set(await store.tally("source")) == set(texts)


async def test_an_id_that_no_index_can_hold_is_refused_and_takes_nobody_along(store: PostgresStore) -> None:
    huge = msgspec.structs.replace(a_letter(), id="".join(Random(1).choices("abcdefgh", k=60_000)))
    answers = await asyncio.gather(store.add([huge]), store.add([a_letter("k2")]), return_exceptions=True)
    assert isinstance(answers[0], LetterInvalidError)
    assert "\n" not in str(answers[0])
    assert answers[1] == [True]
    assert await store.count() == 1


async def test_bytes_that_are_no_text_for_postgresql_come_back_as_they_were(store: PostgresStore) -> None:
    odd = a_letter(
        message=a_message(b"\x00\xff", key=b"\x00", message_id="m\x00", correlation_id="c\x00"),
        failure=a_failure("NUL \x00 here", stack="\x00\x01"),
    )
    await store.add([odd])
    [back] = await store.load([odd.id])
    assert (back.message, back.failure) == (odd.message, odd.failure)
    [head] = await store.claim("w", broker=BROKER)
    failure = a_failure("again \x00", error_type="Odd\x00Error")
    assert await store.settle([Settlement(head.claim_token, Park(failure=failure))]) == [True]
    [back] = await store.load([odd.id])
    assert (back.failure, back.error_type) == (failure, "Odd\ufffdError")


@pytest.mark.parametrize("text", ["\x00", "\udcff"])
async def test_text_that_postgresql_refuses_is_found_nowhere(store: PostgresStore, text: str) -> None:
    await store.add([a_letter()])
    for query in (Query((Condition("source", Op.IS, (text,)),)), Query(text=(text,))):
        assert (await store.page(query)).heads == ()
    assert await store.journal(text) == []
    assert await store.take([text], "w") == []
    with pytest.raises(LetterNotFoundError):
        await store.apply(Delete(), [text], by="ann")


async def test_numbers_larger_than_a_column_are_compared_not_refused(store: PostgresStore) -> None:
    await store.add([a_letter()])
    assert await store.count(parse_query(f"priority<{2**62}", now=NOW)) == 1
    assert await store.count(parse_query(f"priority:{2**62},-5 size>=0", now=NOW)) == 0
    assert await store.journal(after=2**80) == []
    with pytest.raises(QueryError):
        await store.page(parse_query("sort:priority", now=NOW), cursor="AAAA")


# --- out of the way --------------------------------------------------------------------------------------


async def test_a_delete_that_waits_holds_up_nobody_else(store: PostgresStore, postgres: Postgres) -> None:
    await store.add(letters(20))
    heads = await store.claim("w", broker=BROKER, limit=10)
    await store.settle([Settlement(head.claim_token, Resolve()) for head in heads])
    other = await asyncpg.connect(postgres.url)
    holding = other.transaction()
    await holding.start()
    await other.execute("SELECT 1 FROM redrive.states ORDER BY number DESC FOR UPDATE")
    deleting = asyncio.create_task(store.apply(Delete(), [head.id for head in heads], by="retention"))
    await asyncio.sleep(0)
    assert await store.add([a_letter("new")]) == [True]
    assert [head.correlation_id for head in await store.claim("w2", broker=BROKER)] == ["trace-new"]
    assert len((await store.page(limit=50)).heads) == 21
    assert not deleting.done()
    await holding.rollback()
    await other.close()
    await deleting
    assert await store.count() == 11


async def test_nothing_of_a_deleted_letter_is_left_but_its_journal(
    store: PostgresStore, postgres: Postgres
) -> None:
    await store.add([a_letter(tags=("vip",))])
    [head] = await store.claim("w", broker=BROKER)
    await store.settle([Settlement(head.claim_token, Resolve())])
    await store.apply(Delete(), [head.id], by="retention")
    tables = ("letters", "states", "bodies", "tags", "attempts", "notes")
    counts = [postgres.psql(f"SELECT count(*) FROM redrive.{table}") for table in tables]
    assert counts == ["0"] * len(tables)
    assert postgres.psql("SELECT count(*) FROM redrive.change_log") == "3"


async def test_damage_is_found(store: PostgresStore, postgres: Postgres) -> None:
    await store.add(letters(3))
    assert await store.damage() is None
    postgres.psql("UPDATE redrive.bodies SET content = set_byte(content, 20, 0) WHERE letter = 2")
    assert "was modified or damaged after it was written" in (await store.damage() or "")
    postgres.psql("DELETE FROM redrive.bodies WHERE letter = 2")
    assert "its message is missing" in (await store.damage() or "")


# --- plans -----------------------------------------------------------------------------------------------


async def many(store: Store) -> None:
    """Enough letters that an index is worth it, most of them waiting or done."""
    lot = [
        a_letter(f"k{n}", source=f"s{n % 50}", priority=n % 4, retry_in=timedelta(days=9000 * (n % 10 > 0)))
        for n in range(4000)
    ]
    await store.add(lot)
    heads = await store.take([letter.id for letter in lot[::3]], "w")
    await store.settle([Settlement(head.claim_token, Resolve()) for head in heads])


async def plan_of(postgres: Postgres, statement: str, *values: object, writing: bool = False) -> str:
    settings = {"search_path": "redrive", **(_WRITING if writing else {})}
    connection = await asyncpg.connect(postgres.url, server_settings=settings)
    if not writing:
        await connection.execute("ANALYZE letters, states")
    rows = await connection.fetch(f"EXPLAIN {statement}", *values)
    await connection.close()
    return "\n".join(row[0] for row in rows)


async def test_a_claim_walks_the_indexes_that_were_made_for_it(
    store: PostgresStore, postgres: Postgres
) -> None:
    plans = [await plan_of(postgres, work.claim_statement(10), None, "w", 1, BROKER, writing=True)]
    await many(store)
    plans.append(await plan_of(postgres, work.claim_statement(10), None, "w", 1, BROKER, writing=True))
    for plan in plans:  # of an empty store that nobody has analysed, and of a full one
        assert "Index Scan using states_ready" in plan
        assert "Index Scan using states_waiting" in plan
        assert re.search(r"Index (Only )?Scan using states_gate", plan)
        assert len(re.findall(r"Index Cond: \(+broker = ", plan)) == 3
        assert "Seq Scan" not in plan
        assert "Hash" not in plan


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        (work.rescue_statement(10), (None, 1, 5), "states_leased"),
        (work.overdue_statement(10), (None, BROKER, 1), "states_sent"),
    ],
    ids=["rescue", "overdue"],
)
async def test_expired_leases_are_found_by_an_index(
    store: PostgresStore, postgres: Postgres, statement: str, values: tuple[object, ...], index: str
) -> None:
    plans = [await plan_of(postgres, statement, *values, writing=True)]
    await many(store)
    plans.append(await plan_of(postgres, statement, *values, writing=True))
    for plan in plans:
        assert f"Index Scan using {index}" in plan
        assert "Seq Scan" not in plan


async def test_rescue_does_not_read_letters_that_wait_for_verdicts(
    store: PostgresStore, postgres: Postgres
) -> None:
    await store.add(letters(200))
    heads = await store.claim("w", broker=BROKER, limit=200)
    await store.extend([head.claim_token for head in heads], lease=timedelta(milliseconds=1), sent=True)
    plan = await plan_of(
        postgres, f"(ANALYZE, COSTS OFF, TIMING OFF) {work.rescue_statement(10)}", None, 1, 5, writing=True
    )
    assert "Rows Removed by Filter" not in plan
    assert await store.rescue(retry_in=MINUTE) == []


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("", "letters_age"), ("state:manual", "states_state"), ("source:s7", "letters_source"),
        ("correlation:trace-k7", "letters_correlation"), ("since:1m", "letters_age"), ("id:x", "letters_id_key"),
        ("unconfirmed:yes", "states_unconfirmed"),
    ],
)  # fmt: skip
async def test_a_page_is_found_by_an_index(
    store: PostgresStore, postgres: Postgres, text: str, index: str
) -> None:
    await many(store)
    statement, values = SEARCH.page(parse_query(text, now=datetime.now(UTC)), None, 50)
    plan = await plan_of(postgres, statement, *values)
    assert index in plan
    assert "Seq Scan on letters" not in plan


async def test_retention_finds_what_is_oldest_by_an_index(store: PostgresStore, postgres: Postgres) -> None:
    await many(store)
    old = Query(
        (
            Condition("state", Op.IS, (LetterState.RESOLVED,)),
            Condition("updated", Op.LESS, (datetime.now(UTC),)),
        ),
        sort=Sort("updated", descending=False),
    )
    statement, values = SEARCH.page(old, None, 50)
    plan = await plan_of(postgres, statement, *values)
    assert "Index Scan using states_done" in plan
    assert "Seq Scan" not in plan


async def test_counting_states_does_not_read_letters(store: PostgresStore, postgres: Postgres) -> None:
    statement, values = SEARCH.tally("state", parse_query("priority>1", now=NOW))
    assert "letters" not in await plan_of(postgres, statement, *values)
    statement, values = SEARCH.tally("broker", parse_query("unconfirmed:yes presumed:no", now=NOW))
    assert "letters" not in await plan_of(postgres, statement, *values)
    statement, values = SEARCH.count(parse_query("source:orders", now=NOW))
    assert "states" not in await plan_of(postgres, statement, *values)


async def test_what_waits_is_let_in_by_portions_and_in_its_place(
    store: PostgresStore,
) -> None:
    await store.add(letters(12, priority=1))
    heads = await store.claim("w", broker=BROKER, limit=12)
    soon = datetime.now(UTC) + timedelta(milliseconds=50)
    await store.settle([Settlement(head.claim_token, Retry(at=soon)) for head in heads])
    await store.add(letters(3, "urgent", priority=2))
    seen: list[str] = []
    async with asyncio.timeout(20):
        while len(seen) < 15:
            seen += [head.correlation_id for head in await store.claim("w", broker=BROKER, limit=5)]
    assert [name.split("/")[0] for name in seen] == ["trace-urgent"] * 3 + ["trace-orders"] * 12
