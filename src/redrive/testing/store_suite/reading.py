"""S26 to S30: reading."""

import asyncio
from datetime import timedelta

import pytest

from redrive.errors import (
    LetterNotFoundError,
    QueryError,
)
from redrive.letters import (
    LetterHead,
)
from redrive.stores.base import Store
from redrive.stores.query import parse_query
from redrive.testing.clock import ManualClock
from redrive.testing.factories import a_letter, letters
from redrive.testing.store_suite.ground import Ground


class Reading(Ground):
    """S26 to S30: reading."""

    @pytest.mark.parametrize(
        "text",
        [
            "", "state:pending", "state:dlq_pending,dlq_processing", "-state:pending", "state:p*", "source:orders",
            "source:orders,payments", "source:ord*", "source:ord*,ma*", "-source:ord*",
            'source:"ord*"', "error:ValueError", "kind:timeout",
            "tag:vip", "tag:vip,eu", "-tag:vip", "tag:v*", "-tag:v*", "priority>=2", "priority:1,3", "priority<2",
            "-priority:0", "size>20", "assignee:ann", "-assignee:ann", "assignee:*", "-assignee:*", "worker:w*",
            "message:message-k3", "-message:message-k3", "broker:kafka", "broker:rab*,kaf*", "-broker:kafka",
            "consumer_group:billing", "-consumer_group:*", "unconfirmed:yes", "unconfirmed:no", "-unconfirmed:yes",
            "unconfirmed:yes,no", "presumed:yes", "presumed:no", "redrives:0", "retries:3",
            "created>=2026-02-11T12:03:00Z created<2026-02-11T12:08:00Z", "since:5m", "until:5m", "due<=2026-02-12",
            "due<+24h",
            "failed>2026-01-01", "first_failed<2026-01-01", "updated>=2026-02-11T12:00:00Z",
            '"card declined"', "DECLINED", "declined card", "trace-k7", '"100%"', '"a_b"', '"[x]*"', "source:x[*]*",
            "state:pending source:orders tag:vip priority>0", "sort:-priority", "sort:size", "sort:-failed", "sort:due",
            "sort:created", "sort:redrives state:pending", "correlation:trace-k1", "group:*", "reason:Poison*",
        ],
    )  # fmt: skip
    async def test_s26_a_page_is_what_the_query_means(
        self, store: Store, clock: ManualClock, text: str
    ) -> None:
        everything = await self.a_mixed_lot(store, clock)
        query = parse_query(text, now=clock.now())
        found = await self.all_pages(store, query, limit=3)
        assert {head.id for head in found} == {head.id for head in everything if query.matches(head)}
        assert found == self.in_order(found, query)
        assert all(type(head) is LetterHead for head in found)

    async def test_s26_there_is_a_cursor_only_where_there_is_more(self, store: Store) -> None:
        await store.add(letters(4))
        whole = await store.page(limit=4)
        assert (len(whole.heads), whole.cursor) == (4, None)
        half = await store.page(limit=3)
        assert half.cursor is not None
        rest = await store.page(limit=3, cursor=half.cursor)
        assert (len(rest.heads), rest.cursor) == (1, None)

    async def test_s26_a_cursor_of_another_query_or_of_nothing_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.add(letters(4))
        cursor = (await store.page(limit=2)).cursor
        with pytest.raises(QueryError, match="another filter"):
            await store.page(parse_query("state:pending", now=clock.now()), cursor=cursor)
        for garbage in ("", "x", "!!!", "AAAA", "ÿ" * 9):
            with pytest.raises(QueryError, match="cursor"):
                await store.page(cursor=garbage)

    @pytest.mark.parametrize("text", ["", "sort:created", "sort:-priority", "sort:priority", "source:orders"])
    async def test_s27_paging_neither_skips_nor_repeats_while_rows_are_added(
        self, store: Store, clock: ManualClock, text: str
    ) -> None:
        there = [a_letter(f"k{n}", priority=n % 4) for n in range(40)]
        await store.add(there)
        query = parse_query(text, now=clock.now())
        seen: list[str] = []
        cursor: str | None = None
        for turn in range(100):
            page = await store.page(query, limit=3, cursor=cursor)
            seen += [head.id for head in page.heads]
            clock.advance(timedelta(seconds=1))
            if turn < 30:
                await store.add([a_letter(f"new{turn}/{n}", priority=n) for n in range(4)])
            cursor = page.cursor
            if cursor is None:
                break
        assert cursor is None
        assert len(seen) == len(set(seen))
        assert {letter.id for letter in there} <= set(seen)

    async def test_s28_letters_are_loaded_in_the_order_asked(self, store: Store) -> None:
        lot = letters(5)
        await store.add(lot)
        wanted = [lot[3].id, lot[0].id, lot[3].id]
        assert [letter.id for letter in await store.load(wanted)] == wanted
        assert await store.load([]) == []

    @pytest.mark.parametrize("unknown", ["", "x", "no such letter", "' OR 1=1 --", "\x00", "🙂", "\udcff"])
    async def test_s28_an_unknown_id_is_an_error(self, store: Store, unknown: str) -> None:
        await store.add([a_letter()])
        with pytest.raises(LetterNotFoundError, match="no letter has the id"):
            await store.load([a_letter().id, unknown])

    @pytest.mark.parametrize(
        "by", ["state", "source", "error", "tag", "assignee", "group", "kind", "broker", "consumer_group"]
    )
    async def test_s29_counts_agree_with_pages(self, store: Store, clock: ManualClock, by: str) -> None:
        await self.a_mixed_lot(store, clock)
        for text in ("", "source:orders", "tag:vip", "-tag:vip", "declined", "priority>=1"):
            query = parse_query(text, now=clock.now())
            found = await self.all_pages(store, query, limit=50)
            assert await store.count(query) == len(found)
            expected: dict[str, int] = {}
            for head in found:
                value = {"error": head.error_type, "tag": head.tags}.get(by) or getattr(head, by, None)
                for one in value if isinstance(value, tuple) else [value]:
                    if one is not None and one != ():
                        expected[str(one)] = expected.get(str(one), 0) + 1
            assert await store.tally(by, query) == expected

    async def test_s29_counting_by_a_number_is_refused(self, store: Store) -> None:
        with pytest.raises(QueryError, match="did you mean 'source'"):
            await store.tally("sorce")
        with pytest.raises(QueryError, match="cannot count by 'priority'"):
            await store.tally("priority")
        with pytest.raises(QueryError, match="cannot count by 'unconfirmed'"):
            await store.tally("unconfirmed")

    async def test_s30_reading_goes_on_while_much_is_written(self, store: Store) -> None:
        await store.add(letters(50))
        writing = asyncio.gather(*(store.add(letters(50, f"more{n}")) for n in range(20)))
        pages = [await store.page(limit=50) for _ in range(10)]
        assert all(len(page.heads) == 50 for page in pages)
        await writing
        assert await store.count() == 50 * 21
