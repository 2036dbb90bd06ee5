"""Drain one dead-letter queue into the store.

A batch is read, stored, and then accepted. A dead letter that is stored already, because a crash came between the
two, is recognised by its id. A message whose headers claim that it is the redrive of a letter is matched first:
broker, place of death and content must agree with what was sent. If they do, that redrive has failed, and the letter
is pending again or has failed for good at the limit. If they do not, the headers were copied by an exchange or a
handler: the message becomes a letter of its own without them, linked to the other one.

Durable first, then accepted. One death is one letter; deaths of distinct messages are never merged, however equal the
messages are. Where a broker cannot tell a second death of one message from the death of an equal one, both are kept
and the second is tagged.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from redrive.clock import Clock
from redrive.collect.drain import Drain, Read, Trouble
from redrive.collect.reading import Reader
from redrive.errors import RedriveError
from redrive.formats import told as formats
from redrive.formats.conventions import BUILT_IN, Table
from redrive.letters import DeadLetter, Failure, LetterHead, LetterState, letter_id
from redrive.letters.letter import EPOCH
from redrive.letters.redrive import CORRELATION_ID, ID, Redrive, content_digest, redrive_of, unmarked
from redrive.rules import Exhausted, StrategyOptions, choose
from redrive.stores.base import Store
from redrive.stores.changes import Annotate, Fail, Outcome, Retry, Settlement
from redrive.stores.many import load_those_there
from redrive.stores.query import Condition, Op, Query
from redrive.transports.base import Delivery, Source, Transport
from redrive.transports.redriving import attempts_of

ACTOR: Final = "collector"
POSSIBLE_DUPLICATE: Final = "possible-duplicate"  # a tag: this letter may be of the same death as another one
_VALUE_GONE: Final = (
    "redrive-value-gone"  # Kafka: the value was too large to be copied, and its record is gone
)
_OPEN: Final = (LetterState.PENDING, LetterState.PROCESSING, LetterState.MANUAL)
_ID_TIME_CHARS: Final = 9  # characters of an id that encode nothing but its time
_BATCH_SIZE: Final = 500  # messages asked for in one query


class Counts(msgspec.Struct):
    """What a collector has done since it began."""

    collected: int = 0  # new letters
    known: int = 0  # were there already
    returned: int = 0  # redrives that died again
    late: int = 0  # of these, whose claim was over
    exhausted: int = 0  # of these, that had died often enough
    replays: int = 0  # of these, that a replay had sent
    separated: int = 0  # carried the headers of a redrive that they were not


class Parsed(NamedTuple):
    """A dead letter as it was read."""

    letter: DeadLetter
    is_exact: bool = False  # its key names this one death: an equal id is the same death
    is_native: bool = False  # moved by the broker itself, which does not move one message twice
    deliveries: int | None = None  # how often the message had been delivered when it died


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
        broker: str | None = None,
        batch: int = 500,
        conventions: Table = BUILT_IN,
        died_again: Callable[[str, Failure], None] = lambda _source, _failure: None,
        collected: Callable[[Sequence[DeadLetter]], None] = lambda _letters: None,
        kept: Callable[[RedriveError | None], None] = lambda _error: None,
    ) -> None:
        """`broker` is the name that is stamped on every letter; the default is the kind of the broker.

        `died_again` is called with redrives that failed, by the source they were sent to; `collected` with new letters;
        `kept` with the error while the store does not take them, and with None when it does again.
        """
        self._transport = transport
        self._store = store
        self._queue = queue
        self._reader = reader
        self._options = options
        self._clock = clock
        self._trouble = trouble
        self._broker = broker or transport.kind
        self._batch = batch
        self._conventions = conventions
        self._died_again = died_again
        self._collected = collected
        self._kept = kept
        self.name = f"{self._broker}/{queue}"
        self.counts = Counts()
        self._in_doubt: set[str] = set()  # letters of an add whose answer was lost

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until `stop` is set."""
        # One batch is on its way while one is being kept.
        source = Source(name=self._queue, window=2 * self._batch, counts_deliveries=False)
        receiver = await self._transport.receiver(source)
        await Drain(receiver, self._read, self._write, self._trouble, self._clock, self._kept).run(stop)

    async def keep(self, batch: Sequence[Delivery]) -> None:
        """Make these dead letters durable."""
        await self._write(list(map(Read, batch, self._read(batch))))

    def _read(self, batch: Sequence[Delivery]) -> list[Parsed]:
        now = self._clock.now()
        return [self._read_one(delivery, now) for delivery in batch]

    def _read_one(self, delivery: Delivery, now: datetime) -> Parsed:
        told, original = formats.opened(delivery.message, self._queue, self._conventions)
        letter = self._reader.letter(
            original,
            told,
            found=delivery.origin,
            route=delivery.remembered_route,
            key=told.key or delivery.key,
            now=now,
            broker=self._broker,
        )
        is_native = told.convention == formats.RABBITMQ
        return Parsed(letter, told.is_exact, is_native, told.delivery_count)

    async def _write(self, batch: Sequence[Read[Parsed]]) -> None:
        fresh: list[Read[Parsed]] = []
        returned: list[tuple[Redrive, Read[Parsed]]] = []
        for one in batch:
            if (redrive := _redrive_of(one)) is None:
                fresh.append(one)
            else:
                returned.append((redrive, one))
        if returned:
            fresh += await self._match_redrives(returned)
        if fresh:
            await self._add(fresh)

    # --- new letters -------------------------------------------------------------------------------------------

    async def _add(self, fresh: Sequence[Read[Parsed]]) -> None:
        fresh = await self._without_second_deaths(fresh)
        added: list[DeadLetter] = []
        doubted = frozenset(self._in_doubt)
        alike: Counter[str] = Counter()  # id: how many letters of this batch have asked for it
        while fresh:
            letters: list[DeadLetter] = []
            for delivery, parsed in fresh:
                letter = parsed.letter
                alike[letter.id] += 1
                if parsed.is_exact:  # the same death twice; numbered only where another broker has its id
                    letters.append(letter)
                else:
                    is_certain = delivery.delivery_count is not None
                    letters.append(_numbered(letter, alike[letter.id], is_certain=is_certain))
            self._in_doubt.update(letter.id for letter in letters)  # until their add is confirmed
            answers = await self._store.add(letters)
            added += [letter for letter, new in zip(letters, answers, strict=True) if new]
            there = [
                (read, letter) for read, letter, new in zip(fresh, letters, answers, strict=True) if not new
            ]
            foreign = await self._of_other_brokers([letter.id for _, letter in there])
            again: list[Read[Parsed]] = []
            for read, letter in there:
                if letter.id in foreign:
                    again.append(_renamed(read, letter, self._broker))
                elif letter.id not in doubted and _may_be_another(read):
                    again.append(read)
                else:
                    self.counts.known += 1
            fresh = again
        self._in_doubt.clear()
        self.counts.collected += len(added)
        if added:
            self._collected(added)

    async def _of_other_brokers(self, ids: Sequence[str]) -> set[str]:
        """Which of these ids belong to letters of another broker."""
        return {head.id for head in await self._heads("id", sorted(set(ids))) if head.broker != self._broker}

    async def _without_second_deaths(self, fresh: Sequence[Read[Parsed]]) -> Sequence[Read[Parsed]]:
        """Drop second deaths of one message, and tag those that only may be one.

        A consumer that crashes between dead letter and acknowledgement gets the message again and dead-letters it a
        second time. Where a key names one message (Kafka, memory), the second letter has the same key. On RabbitMQ
        equal messages look alike: a first delivery is certainly another message, a later one may be either.
        """
        names = {one.value.letter.message_id for one in fresh if not one.value.is_native}
        heads = await self._heads("message", sorted(name for name in names if name))
        traces = {
            one.value.letter.correlation_id
            for one in fresh
            if one.value.is_exact and one.delivery.has_exact_key and not one.value.letter.message_id
        }
        heads += await self._heads("correlation", sorted(traces))
        open_ids = [head.id for head in heads if head.state in _OPEN and head.broker == self._broker]
        if not open_ids and _are_distinct(fresh):
            return fresh
        by_key: dict[tuple[str, bytes | None], set[str]] = {}
        by_message: dict[tuple[str, str | None, str | None, bytes | None], set[str]] = {}
        for letter in await load_those_there(self._store, open_ids):
            by_key.setdefault(_key_of(letter), set()).add(letter.id)
            by_message.setdefault(_message_of(letter), set()).add(letter.id)
        kept: list[Read[Parsed]] = []
        for one in fresh:
            parsed, letter = one.value, one.value.letter
            if (
                parsed.is_exact
                and one.delivery.has_exact_key
                and by_key.get(_key_of(letter), set()) - {letter.id}
            ):
                self.counts.known += 1
                continue
            alike = by_message.get(_message_of(letter), set()) - {letter.id}
            if alike and letter.message_id and not parsed.is_native and parsed.deliveries != 1:
                letter = _tagged(letter)
            by_key.setdefault(_key_of(letter), set()).add(letter.id)  # those of this batch as well
            if letter.message_id:
                by_message.setdefault(_message_of(letter), set()).add(letter.id)
            kept.append(Read(one.delivery, parsed._replace(letter=letter)))
        return kept

    async def _heads(self, field: str, values: Sequence[str]) -> list[LetterHead]:
        """The letters with these values, open or not.

        Asked for the state as well, a store may walk through all open letters instead, a million or more.
        """
        heads: list[LetterHead] = []
        for start in range(0, len(values), _BATCH_SIZE):
            query = Query((Condition(field, Op.IS, tuple(values[start : start + _BATCH_SIZE])),))
            cursor: str | None = None
            while True:
                page = await self._store.page(query, limit=_BATCH_SIZE, cursor=cursor)
                heads += page.heads
                if (cursor := page.cursor) is None:
                    break
        return heads

    # --- redrives that died again ------------------------------------------------------------------------------

    async def _match_redrives(self, returned: Sequence[tuple[Redrive, Read[Parsed]]]) -> list[Read[Parsed]]:
        """Settle the letters whose redrives died; give those back that become letters of their own."""
        letters = await self._load(redrive.hold.id for redrive, _ in returned)
        fresh: list[Read[Parsed]] = []
        matched: list[tuple[Redrive, Read[Parsed]]] = []
        for redrive, one in returned:
            letter = letters.get(redrive.hold.id)
            if letter is not None and self._is_redrive(redrive, letter, one.value.letter):
                matched.append((redrive, one))
            else:
                self.counts.separated += 1
                was_there = self._has_place(redrive, letter, one.value.letter)
                fresh.append(_separate(one, redrive, letter, counts=was_there))
        now = self._clock.now()
        outcomes = [
            self._outcome(letters[redrive.hold.id], one.value.letter.failure, now) for redrive, one in matched
        ]
        settlements = [
            Settlement(redrive.hold, outcome) for (redrive, _), outcome in zip(matched, outcomes, strict=True)
        ]
        settled = await self._store.settle(settlements) if settlements else []
        late: list[tuple[Redrive, Read[Parsed]]] = []
        for (redrive, one), outcome, done in zip(matched, outcomes, settled, strict=True):
            if not done:
                late.append((redrive, one))
                continue
            self.counts.returned += 1
            self.counts.replays += redrive.operation is not None
            self.counts.exhausted += isinstance(outcome, Fail)
            self._died_again(letters[redrive.hold.id].source, one.value.letter.failure)
        if late:
            fresh += await self._match_late(late)
        return fresh

    async def _match_late(self, late: Sequence[tuple[Redrive, Read[Parsed]]]) -> list[Read[Parsed]]:
        """Deaths whose claim had ended already: recorded before, noted, or letters of their own."""
        letters = await self._load(redrive.hold.id for redrive, _ in late)  # as they are after the answer
        fresh: list[Read[Parsed]] = []
        for redrive, one in late:
            letter = letters.get(redrive.hold.id)
            if letter is None:
                fresh.append(_separate(one, redrive, None, counts=True))
                continue
            results = {each.result for each in letter.attempts if each.fence == redrive.hold.fence}
            if (
                "failed" in results
            ):  # recorded already: a crash came before it was accepted, or it was sent twice
                self.counts.known += 1
                continue
            self.counts.returned += 1
            self.counts.late += 1
            if letter.state is LetterState.RESOLVED:
                # Presumed too early, or a second copy of it was processed. It keeps its number of redrives.
                fresh.append(_separate(one, redrive, letter, counts=True))
            elif letter.fence == redrive.hold.fence and letter.state in _OPEN:
                text = one.value.letter.failure.text
                note = Annotate(
                    f"redrive {redrive.attempt} was dead-lettered after its lease had expired: {text:.500}"
                )
                await self._store.apply(note, [letter.id], by=ACTOR)
        return fresh

    async def _load(self, ids: Iterable[str]) -> dict[str, DeadLetter]:
        found = await load_those_there(self._store, list(dict.fromkeys(ids)))
        return {letter.id: letter for letter in found}

    def _is_redrive(self, redrive: Redrive, letter: DeadLetter, dead: DeadLetter) -> bool:
        """Whether what died is what was sent for this letter: broker, place and content agree."""
        if not self._has_place(redrive, letter, dead):
            return False
        if _VALUE_GONE in dead.message.headers.by_name:
            return True
        if redrive.digest is None:  # version 1
            return content_digest(letter.message) == content_digest(dead.message)
        return redrive.has_content(dead.message)

    def _has_place(self, redrive: Redrive, letter: DeadLetter | None, dead: DeadLetter) -> bool:
        """Whether it died at the consumer that the redrive was sent to."""
        if redrive.to is not None:
            broker, source, group = redrive.to
        elif letter is not None:  # version 1 named no consumer: letters went to their own source
            broker, source, group = letter.broker, letter.source, letter.consumer_group or ""
        else:
            return True  # it is not known; then the redrives count on
        same_group = dead.consumer_group is None or not group or dead.consumer_group == group
        return broker == self._broker and source == dead.source and same_group

    def _outcome(self, letter: DeadLetter, failure: Failure, now: datetime) -> Outcome:
        redrives = attempts_of(letter) + 1
        plan = choose(failure.kind, redrives, now, failure.retry_after, self._options, failure=failure)
        detail = f"dead-lettered again: {failure.text:.300}"
        if isinstance(plan, Exhausted):
            return Fail(failure=failure, strategy=letter.strategy, detail=detail)
        # What only a person can decide is due at once: the worker that claims it parks it.
        return Retry(at=plan.due or now, failure=failure, strategy=letter.strategy, detail=detail)


def _redrive_of(one: Read[Parsed]) -> Redrive | None:
    """Which letter it claims to be a redrive of. A record that contains the message has the headers inside."""
    if (redrive := one.delivery.redrive) is not None:
        return redrive
    headers = one.value.letter.message.headers
    return None if headers.get(ID) is None else redrive_of(headers)


def _separate(one: Read[Parsed], redrive: Redrive, other: DeadLetter | None, *, counts: bool) -> Read[Parsed]:
    """A letter of its own: without the headers of the redrive, linked to the letter they name.

    With `counts`, the redrives of that letter count on, so that the limit of redrives holds for the message.
    """
    letter = one.value.letter
    headers = unmarked(letter.message.headers).without(CORRELATION_ID)
    changed = msgspec.structs.replace(
        letter,
        message=msgspec.structs.replace(letter.message, headers=headers),
        derived_from=None if other is None else other.id,
        prior_redrives=redrive.attempt if counts else 0,
    )
    return Read(one.delivery, one.value._replace(letter=changed))


def _are_distinct(fresh: Sequence[Read[Parsed]]) -> bool:
    """Whether no two of them have a key or a message id in common."""
    keys = {one.value.letter.key for one in fresh}
    named = [message_id for one in fresh if (message_id := one.value.letter.message_id)]
    return len(keys) == len(fresh) and len(set(named)) == len(named)


def _key_of(letter: DeadLetter) -> tuple[str, bytes | None]:
    return letter.key, letter.message.body


def _message_of(letter: DeadLetter) -> tuple[str, str | None, str | None, bytes | None]:
    """What two deaths of one message have in common."""
    return letter.source, letter.consumer_group, letter.message_id, letter.message.body


def _may_be_another(one: Read[Parsed]) -> bool:
    """Whether a letter that is in the store already may be that of another, equal message.

    So it is if the queue has never delivered this one before. Where a broker cannot tell that, a message with an id is
    the same as the one with that id; one without is kept, because a duplicate can be discarded, and a lost message not.
    """
    if one.value.is_exact:
        return False
    count = one.delivery.delivery_count
    return count == 1 or (count is None and not one.value.letter.message_id)


def _numbered(letter: DeadLetter, number: int, *, is_certain: bool) -> DeadLetter:
    """The letter of a message that cannot be told from others: the one with this number."""
    if number == 1:
        return letter
    other = _with_key(letter, f"{letter.key}#{number}")
    return other if is_certain else _tagged(other)


def _renamed(one: Read[Parsed], letter: DeadLetter, broker: str) -> Read[Parsed]:
    """The same letter with an id of its own, because a letter of another broker has that id."""
    return Read(one.delivery, one.value._replace(letter=_with_key(letter, f"{letter.key}@{broker}")))


def _with_key(letter: DeadLetter, key: str) -> DeadLetter:
    # Its time is that of the first one's id, which is the same whenever it is read; the failure's may be our own.
    other = letter.id[:_ID_TIME_CHARS] + letter_id(key, EPOCH)[_ID_TIME_CHARS:]
    return msgspec.structs.replace(letter, key=key, id=other)


def _tagged(letter: DeadLetter) -> DeadLetter:
    if POSSIBLE_DUPLICATE in letter.tags:
        return letter
    return msgspec.structs.replace(letter, tags=(*letter.tags, POSSIBLE_DUPLICATE))
