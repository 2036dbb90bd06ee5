"""How does what lies in a dead-letter queue come into the store, once and for good?

A batch is read, kept, and then accepted. A letter that is there already, because a crash came between the two, is
recognised by its id. A message that is a redrive of ours (`redrive-id`) returns to its own letter: that attempt has
failed, and the letter is pending again, or has failed for good at the limit (E5, H3).

The rules: durable first, then accepted; one message, one letter; two messages that look alike are two letters.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from redrive.clock import Clock
from redrive.collect.drain import Drain, Read, Trouble
from redrive.collect.reading import Reader
from redrive.errors import LetterNotFoundError
from redrive.formats import told as formats
from redrive.formats.conventions import BUILT_IN, Table
from redrive.letters import DeadLetter, Failure, LetterHead, State, letter_id
from redrive.letters.letter import EPOCH
from redrive.letters.redrive import ID, Redrive, redrive_of
from redrive.rules import Exhausted, StrategyOptions, choose
from redrive.stores.base import Store
from redrive.stores.changes import Annotate, Exhaust, Outcome, Retry, Settlement
from redrive.stores.query import Condition, Op, Query
from redrive.transports.base import Delivery, Source, Transport
from redrive.transports.redriving import attempts_of

ACTOR: Final = "collector"
POSSIBLE_DUPLICATE: Final = "possible-duplicate"  # a tag: this letter may be of the same death as another one
_OPEN: Final = (State.PENDING, State.PROCESSING, State.MANUAL)
_OF_TIME: Final = 9  # letters of an id that tell nothing but its time
_AT_ONCE: Final = 500  # messages asked for in one question


class Counts(msgspec.Struct):
    """What a collector has done since it began."""

    collected: int = 0  # new letters
    known: int = 0  # were there already
    returned: int = 0  # redrives that died again
    late: int = 0  # of these, whose claim was over
    exhausted: int = 0  # of these, that had died often enough


class Collector:
    """Drains one dead-letter queue into a store."""

    def __init__(
        self,
        transport: Transport,
        store: Store,
        queue: str,
        *,
        reader: Reader,
        options: StrategyOptions,
        clock: Clock,
        trouble: Trouble,
        batch: int = 500,
        conventions: Table = BUILT_IN,
        died_again: Callable[[str, Failure], None] = lambda _source, _failure: None,
        collected: Callable[[Sequence[DeadLetter]], None] = lambda _letters: None,
    ) -> None:
        """`died_again` hears of redrives that failed, by the source they were sent to; `collected` of new letters."""
        self._transport = transport
        self._store = store
        self._queue = queue
        self._reader = reader
        self._options = options
        self._clock = clock
        self._trouble = trouble
        self._batch = batch
        self._conventions = conventions
        self._died_again = died_again
        self._collected = collected
        self.name = f"collector of {queue}"
        self.counts = Counts()
        self._in_doubt: set[str] = set()  # letters of an add whose answer we have not heard

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until `stop` is set."""
        # One batch is on its way while one is being kept.
        source = Source(name=self._queue, window=2 * self._batch, counts_deliveries=False)
        receiver = await self._transport.receiver(source)
        await Drain(receiver, self._read, self._write, self._trouble, self._clock).run(stop)

    async def keep(self, batch: Sequence[Delivery]) -> None:
        """Make these dead letters durable."""
        await self._write(list(map(Read, batch, self._read(batch))))

    def _read(self, batch: Sequence[Delivery]) -> list[DeadLetter]:
        now = self._clock.now()
        return [self._read_one(delivery, now) for delivery in batch]

    def _read_one(self, delivery: Delivery, now: datetime) -> DeadLetter:
        told, original = formats.opened(delivery.message, self._queue, self._conventions)
        return self._reader.letter(
            original,
            told,
            found=delivery.origin,
            route=delivery.remembered_route,
            key=told.key or delivery.key,
            now=now,
        )

    async def _write(self, batch: Sequence[Read[DeadLetter]]) -> None:
        fresh: list[Read[DeadLetter]] = []
        again: list[tuple[Redrive, Read[DeadLetter]]] = []
        for one in batch:
            if (redrive := _redrive_of(one)) is None:
                fresh.append(one)
            else:
                again.append((redrive, one))
        for redrive, one in again:
            if not await self._returned(redrive, one.value):
                fresh.append(one)
        if fresh:
            await self._add(fresh)

    # --- new letters -------------------------------------------------------------------------------------------

    async def _add(self, fresh: Sequence[Read[DeadLetter]]) -> None:
        fresh = await self._without_those_that_died_twice(fresh)
        added: list[DeadLetter] = []
        doubted = frozenset(self._in_doubt)
        alike: Counter[str] = Counter()  # id: how many letters of this batch have asked for it
        while fresh:
            letters: list[DeadLetter] = []
            for delivery, letter in fresh:  # two that look alike are two
                alike[letter.id] += 1
                is_certain = delivery.delivery_count is not None
                letters.append(_another(letter, alike[letter.id], is_certain=is_certain))
            self._in_doubt.update(letter.id for letter in letters)  # until we hear that they are there
            answers = await self._store.add(letters)
            added += [letter for letter, new in zip(letters, answers, strict=True) if new]
            # No answer to an add of it was lost, so it may be another message that only looks like the one we have.
            others = [
                pair
                for pair, letter, new in zip(fresh, letters, answers, strict=True)
                if not new and letter.id not in doubted and _may_be_another(pair)
            ]
            self.counts.known += len(fresh) - sum(answers) - len(others)
            fresh = others
        self._in_doubt.clear()
        self.counts.collected += len(added)
        if added:
            self._collected(added)

    async def _without_those_that_died_twice(
        self, fresh: Sequence[Read[DeadLetter]]
    ) -> Sequence[Read[DeadLetter]]:
        """A consumer that crashed between dead letter and acknowledgement made a second one: the same message (A7)."""
        named = sorted({letter.message_id for _, letter in fresh if letter.message_id})
        heads = [head for head in await self._with_these_messages(named) if head.state in _OPEN]
        if not heads:
            return fresh
        there = {
            (each.source, each.message_id): each for each in await self._store.load([h.id for h in heads])
        }
        left: list[Read[DeadLetter]] = []
        for delivery, letter in fresh:
            other = there.get((letter.source, letter.message_id))
            redrive = _redrive_of(Read(delivery, letter))
            own = None if redrive is None else redrive.hold.id  # it could not be told, and will be presumed
            if (
                other is not None
                and other.id not in {letter.id, own}
                and other.message.body == letter.message.body
            ):
                self.counts.known += 1
                continue
            left.append(Read(delivery, letter))
        return left

    async def _with_these_messages(self, named: Sequence[str]) -> list[LetterHead]:
        """The letters of these messages, open or not.

        Asked for the state as well, a store may walk through all open letters instead, a million or more.
        """
        heads: list[LetterHead] = []
        for start in range(0, len(named), _AT_ONCE):
            query = Query((Condition("message", Op.IS, tuple(named[start : start + _AT_ONCE])),))
            cursor: str | None = None
            while True:
                page = await self._store.page(query, limit=_AT_ONCE, cursor=cursor)
                heads += page.heads
                if (cursor := page.cursor) is None:
                    break
        return heads

    # --- those that came back ----------------------------------------------------------------------------------

    async def _returned(self, redrive: Redrive, letter: DeadLetter) -> bool:
        """Tell the letter that its redrive has died; False if there is no such letter, or it cannot be told."""
        try:
            (own,) = await self._store.load([redrive.hold.id])
        except LetterNotFoundError:
            return False
        if any(one.fence == redrive.hold.fence and one.result == "failed" for one in own.attempts):
            self.counts.known += 1  # told already: a crash came before it was accepted
            return True
        self.counts.returned += 1
        now = self._clock.now()
        outcome = self._outcome(own, letter.failure, now)
        (told,) = await self._store.settle([Settlement(redrive.hold, outcome)])
        if told:
            self.counts.exhausted += isinstance(outcome, Exhaust)
            self._died_again(own.source, letter.failure)
            return True
        self.counts.late += 1
        (own,) = await self._store.load([own.id])  # as it is after the answer, not before the question
        waits = own.state is State.PROCESSING and own.sent_at is not None and own.fence == redrive.hold.fence
        if own.state is State.RESOLVED or waits:
            # Presumed too early, or about to be, now that its quiet time is over: it becomes a letter of its own,
            # which knows its number of attempts.
            return False
        if own.fence == redrive.hold.fence and own.state in _OPEN:
            note = Annotate(
                f"redrive {redrive.attempt} died after its lease had ended: {letter.failure.text:.500}"
            )
            await self._store.apply(note, [own.id], by=ACTOR)
        return True

    def _outcome(self, own: DeadLetter, failure: Failure, now: datetime) -> Outcome:
        redrives = attempts_of(own) + 1
        plan = choose(failure.kind, redrives, now, failure.retry_after, self._options, failure=failure)
        detail = f"died again: {failure.text:.300}"
        if isinstance(plan, Exhausted):
            return Exhaust(failure=failure, strategy=own.strategy, detail=detail)
        # What only a person can decide is due at once: the worker that claims it parks it.
        return Retry(at=plan.due or now, failure=failure, strategy=own.strategy, detail=detail)


def _redrive_of(one: Read[DeadLetter]) -> Redrive | None:
    """Which letter it is a redrive of. A record that holds the message within has the marks in there."""
    if (redrive := one.delivery.redrive) is not None:
        return redrive
    headers = one.value.message.headers
    return None if headers.get(ID) is None else redrive_of(headers)


def _may_be_another(one: Read[DeadLetter]) -> bool:
    """Whether a letter that is in the store already may be that of another, equal message.

    So it is if the queue has never delivered this one before. Where a broker cannot tell that, a message with an id is
    the same as the one with that id; one without is kept, because a duplicate can be discarded, and a lost message not.
    """
    count = one.delivery.delivery_count
    return count == 1 or (count is None and not one.value.message_id)


def _another(letter: DeadLetter, number: int, *, is_certain: bool) -> DeadLetter:
    """The letter of a message that cannot be told from others: the one with this number."""
    if number == 1:
        return letter
    key = f"{letter.key}#{number}"
    # Its time is that of the first one's id, which is the same whenever it is read; the failure's may be our own.
    return msgspec.structs.replace(
        letter,
        key=key,
        id=letter.id[:_OF_TIME] + letter_id(key, EPOCH)[_OF_TIME:],
        tags=letter.tags if is_certain else (*letter.tags, POSSIBLE_DUPLICATE),
    )
