"""Which letters would a replay send, and in which order?

A plan is a frozen list: what a dry run shows is what the replay then touches, nothing more, whatever comes into the
store meanwhile. It has the order of its query; by default the oldest letters come first, as they were once sent.
Letters that cannot be replayed as they stand (resolved, failed, archived) are told apart; who wants them asks for
copies, which are new letters that know what they are copies of.
"""

from collections.abc import Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final
from uuid import uuid4

import msgspec

from redrive.clock import Clock
from redrive.errors import SettingsError
from redrive.letters import DeadLetter, LetterHead, LetterState, letter_id
from redrive.letters.letter import storable
from redrive.letters.redrive import unmarked
from redrive.replay.options import KIND, NEWEST, OLDEST, ReplayOptions, pack
from redrive.stores.base import Store
from redrive.stores.many import pages
from redrive.stores.operations import LARGEST_LIST, Operation
from redrive.stores.query import Condition, Op, Query, Sort
from redrive.transports.redriving import attempts_of

REPLAYABLE: Final = (LetterState.PENDING, LetterState.MANUAL)
COPYABLE: Final = (LetterState.FAILED, LetterState.RESOLVED, LetterState.ARCHIVED)
ORDERS: Final = MappingProxyType(
    {OLDEST: Sort("created", descending=False), NEWEST: Sort("created", descending=True)}
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay is about to do."""

    query: str
    letters: tuple[LetterHead, ...]
    left_out: tuple[LetterHead, ...] = ()  # match, but cannot be replayed in their state

    @property
    def ids(self) -> list[str]:
        """The frozen list."""
        return [head.id for head in self.letters]


async def plan(
    store: Store, query: Query, *, words: str = "", limit: int | None = None, copies: bool = False
) -> Plan:
    """The letters that match now; with `copies` also those that only a copy can bring back."""
    letters: list[LetterHead] = []
    left_out: list[LetterHead] = []
    wanted = REPLAYABLE if not copies else (*REPLAYABLE, *COPYABLE)
    most = min(limit or LARGEST_LIST, LARGEST_LIST)
    async for heads in pages(store, query):
        for head in heads:
            (letters if head.state in wanted or head.unconfirmed else left_out).append(head)
        if len(letters) >= most:
            break
    return Plan(query=words, letters=tuple(letters[:most]), left_out=tuple(left_out))


def by_ids(ids: Sequence[str], order: str = OLDEST) -> Query:
    """Exactly these letters."""
    if not ids:
        raise SettingsError("pass at least one letter id")
    return Query((Condition("id", Op.IS, tuple(dict.fromkeys(ids))),), sort=ORDERS[order])


def order_of(query: Query) -> str:
    """The name of a query's order: oldest, newest, or the sort of a filter."""
    for name, sort in ORDERS.items():
        if query.sort == sort:
            return name
    return f"sort:{'-' if query.sort.descending else ''}{query.sort.field}"


def of_broker(query: Query, broker: str) -> Query:
    """The letters of one broker among those that match."""
    return query.narrowed(Condition("broker", Op.IS, (broker,)))


async def begin(store: Store, frozen: Plan, options: ReplayOptions, *, by: str, clock: Clock) -> Operation:
    """Make the plan an operation: durable, and ready to run.

    A plan with copies of closed letters is sent whatever the limit of redrives: that is what the copies are for.
    """
    ids = await _with_copies(store, frozen, by, clock.now())
    if any(head.state in COPYABLE for head in frozen.letters):
        options = msgspec.structs.replace(options, over_limit=True)
    operation = Operation(id=new_id(clock.now()), kind=KIND, by=by, query=frozen.query, options=pack(options))
    await store.begin(operation, ids)
    return await store.operation(operation.id)


def new_id(now: datetime) -> str:
    """A name for an operation; names of one day sort by time."""
    return f"op-{now:%Y%m%d-%H%M%S}-{uuid4().hex[:6]}"


async def _with_copies(store: Store, frozen: Plan, by: str, now: datetime) -> list[str]:
    """The ids to send: of the letters themselves, or of the copies of those that are over."""
    over = [head.id for head in frozen.letters if head.state in COPYABLE]
    copies = {old.id: _copy(old, by, now) for old in await store.load(over)} if over else {}
    if copies:
        await store.add(list(copies.values()))
    return [copies[head.id].id if head.id in copies else head.id for head in frozen.letters]


def _copy(letter: DeadLetter, by: str, now: datetime) -> DeadLetter:
    key = f"{letter.key}@{now.isoformat()}"
    message_id = letter.message.message_id or letter.id  # the one that redrives of the letter had
    return msgspec.structs.replace(
        letter,
        id=letter_id(key, letter.failure.at),
        key=key,
        message=msgspec.structs.replace(
            letter.message, headers=unmarked(letter.message.headers), message_id=message_id
        ),
        message_id=storable(message_id),
        derived_from=letter.id,
        prior_redrives=attempts_of(letter),
        next_retry_at=now,
        tags=(*letter.tags, "copy") if "copy" not in letter.tags else letter.tags,
        assignee=by,
    )
