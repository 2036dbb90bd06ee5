"""What every part of the suite stands on: a store, a clock, and letters in every state."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from redrive.clock import Clock
from redrive.letters import (
    DeadLetter,
    FailureKind,
    LetterHead,
    LetterState,
    Origin,
)
from redrive.stores.base import Store
from redrive.stores.changes import (
    Archive,
    Assign,
    Fail,
    Park,
    Resolve,
    Settlement,
)
from redrive.stores.query import Query
from redrive.testing.clock import ManualClock
from redrive.testing.factories import BROKER, a_failure, a_letter, a_message

MINUTE = timedelta(minutes=1)


class Ground:
    """A store to be tested. Subclasses say how it is opened."""

    #: False for a store that keeps nothing beyond `close`.
    durable = True
    #: The largest body that is tried, in bytes.
    largest_body = 50_000_000

    async def open_store(self, place: Path, clock: Clock) -> Store:
        """A store in `place`, new or as it was left there."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock the store is given."""
        return ManualClock()

    @pytest.fixture
    async def store(self, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
        """A new store."""
        store = await self.open_store(tmp_path, clock)
        yield store
        await store.close()

    # --- letters -----------------------------------------------------------------------------------------

    async def parked(self, store: Store) -> DeadLetter:
        letter = a_letter("parked")
        await store.add([letter])
        [head] = await store.take([letter.id], "w")
        await store.settle([Settlement(head.claim_token, Park())])
        return letter

    async def one_in_each_state(self, store: Store) -> dict[LetterState, str]:
        await store.add([a_letter(state) for state in LetterState])
        ids = {state: a_letter(state).id for state in LetterState}
        for state in LetterState:
            if state is LetterState.PENDING:
                continue
            [head] = await store.take([ids[state]], "w")
            if state is LetterState.MANUAL:
                await store.settle([Settlement(head.claim_token, Park())])
            elif state is LetterState.RESOLVED:
                await store.settle([Settlement(head.claim_token, Resolve())])
            elif state in {LetterState.FAILED, LetterState.ARCHIVED}:
                await store.settle([Settlement(head.claim_token, Fail())])
        await store.apply(Archive(), [ids[LetterState.ARCHIVED]], by="retention")
        return ids

    async def a_mixed_lot(self, store: Store, clock: ManualClock) -> list[LetterHead]:
        """Letters that differ in everything a query can ask for."""
        for n in range(12):
            letter = a_letter(
                f"k{n}",
                origin=Origin(
                    transport=["rabbitmq", "kafka"][n % 2],
                    source=["orders", "payments", "x[*]y", "mail"][n % 4],
                    consumer_group=[None, "billing", None, "mailer"][n % 4],
                ),
                message=a_message(
                    b"x" * n * 5, message_id=f"message-k{n}" if n % 3 else None, correlation_id=f"trace-k{n}"
                ),
                failure=a_failure(
                    ["card declined", "Card DECLINED by bank", "100% [x]* a_b", "host not found"][n % 4],
                    error_type=["ValueError", "TimeoutError", "OSError"][n % 3],
                    kind=[FailureKind.BUSINESS, FailureKind.TIMEOUT][n % 2],
                    at=datetime(2026, 1, 1, n, tzinfo=UTC),
                ),
                first_failed_at=datetime(2025, 12, 25 + n % 3, tzinfo=UTC),
                reason=["PoisonMessage", "NonRetryableError"][n % 2],
                priority=n % 4,
                tags=[(), ("vip",), ("vip", "eu"), ("violet",)][n % 4],
                retry_in=timedelta(days=n),
            )  # fmt: skip
            await store.add([letter])
            if n % 5 == 0:
                await store.apply(Assign(["ann", "bob"][n % 2]), [letter.id], by="ann")
            clock.advance(MINUTE)
        one, two = await store.claim("w1", broker=BROKER, limit=2)
        await store.settle([Settlement(one.claim_token, Resolve(presumed=True))])
        [three] = await store.claim("w1", broker="kafka", limit=1, lease=MINUTE)
        await store.extend([two.claim_token, three.claim_token], lease=MINUTE, sent=True)
        clock.advance(MINUTE)
        await store.overdue(broker="kafka", lease=MINUTE)
        return await self.all_pages(store, Query(), limit=50)

    async def all_pages(self, store: Store, query: Query, limit: int) -> list[LetterHead]:
        heads: list[LetterHead] = []
        cursor: str | None = None
        while True:
            page = await store.page(query, limit=limit, cursor=cursor)
            heads += page.heads
            cursor = page.cursor
            if cursor is None:
                return heads

    def in_order(self, heads: list[LetterHead], query: Query) -> list[LetterHead]:
        attribute = {
            "created": "created_at", "failed": "last_failed_at", "due": "next_retry_at", "redrives": "dlq_retry_count",
        }.get(query.sort.field, query.sort.field)  # fmt: skip
        return sorted(
            heads, key=lambda head: (getattr(head, attribute), head.id), reverse=query.sort.descending
        )
