"""How are the deliveries of a topic received for as long as they are wanted?

The thread of the `Intake` brings records; here, on the loop, they wait in a line and are handed out as the window has
room, without a way back to the thread. What is released comes again from memory, at once or when its time has come,
while its partition's mark waits for it. With `order=key` a record waits until the one before it of the same key is
settled.

The rules: nothing is handed out twice at a time; what belongs to a partition that is gone is forgotten, because
somebody else has it. How deliveries become dead letters is `settling`'s.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, Final, TypeAlias, cast

from confluent_kafka import Message as Record

from redrive.clock import Clock
from redrive.errors import RedriveError, SettingsError, TransportClosedError, TransportError
from redrive.transports.base import Death, Delivery, Outcomes, Release, Source
from redrive.transports.kafka.delivery import KafkaDelivery, Place, WaitedDelivery, delivery_of
from redrive.transports.kafka.intake import Intake
from redrive.transports.kafka.journey import Journey, milliseconds, wait_until
from redrive.transports.kafka.partitions import Partition
from redrive.transports.kafka.settling import Settler, too_late
from redrive.transports.kafka.turns import Turns
from redrive.transports.kafka.url import BrokerUrl
from redrive.transports.telling import Tell

_NOTHING: Final = timedelta(0)
_CLOSED: Final = "the receiver was closed"
_Turns: TypeAlias = Turns[tuple[Partition, bytes], tuple[Partition, Record]]


class KafkaReceiver:
    """The deliveries of one topic, as a member of a group."""

    def __init__(
        self,
        source: Source,
        group: str,
        topics: Mapping[str, timedelta],
        url: BrokerUrl,
        settler: Settler,
        clock: Clock,
        tell: Tell,
        log: logging.Logger,
    ) -> None:
        self.source = source
        self.group = group
        self._window = _checked(source, source.window)
        self._clock = clock
        self._settler = settler
        self._loop = asyncio.get_running_loop()
        self._place = Place(source.name, group, url.place)
        self._line: deque[tuple[Partition, Sequence[Record]]] = deque()
        self._waiting = 0  # records in the line
        self._sent = self._came = 0  # records from the thread of the intake to the loop
        self._out = 0
        self._again: deque[KafkaDelivery] = deque()  # released, and due
        self._later: list[tuple[timedelta, int, KafkaDelivery]] = []  # a heap of those that are not
        self._number = 0
        self._timer: asyncio.Task[None] | None = None
        self._turns: _Turns | None = Turns() if url.order == "key" else None
        self._changed = asyncio.Event()
        self._is_stopped = self._is_closed = False
        self._error: TransportError | None = None
        self._ended = asyncio.Event()
        self._steps = dict(topics)  # retry topics, and how long records wait in them
        # Where one delivery is all there may be, a record that was only claimed must not be poison unseen.
        forgives = source.max_deliveries == 1
        self.intake = Intake(url, group, [source.name, *topics], self, tell, log, forgives=forgives)
        self._lock = self.intake.holdings.lock
        self.intake.start()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    # --- what the intake says, in its thread ---------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether enough records wait in the line: while one batch is handed out, the next one is on its way."""
        return self._waiting >= max(2 * self.intake.batch, self._window)

    def room(self) -> int:
        """How many records could be handed out at once.

        Read in this order, while the loop goes on: a record on its way from one place to the next is counted twice
        rather than not at all. One too many would be claimed, and blamed for a crash that it has not seen.
        """
        return self._window - (self._sent - self._came) - self._waiting - len(self._again) - self._out

    def arrived(self, partition: Partition, records: Sequence[Record]) -> None:
        """These may be handed out."""
        self._sent += len(records)
        self._on_loop(self._arrived, partition, records)

    def gone(self, partitions: Sequence[Partition]) -> None:
        """These are no longer ours."""
        if partitions:
            self._on_loop(self._gone, partitions)

    def failed(self, error: TransportError) -> None:
        """Nothing will come any more."""
        self._on_loop(self._failed, error)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            self._loop.call_soon_threadsafe(call, *args)

    # --- and on the loop -----------------------------------------------------------------------------------------

    def _arrived(self, partition: Partition, records: Sequence[Record]) -> None:
        if partition.alive:
            self._line.append((partition, records))
            self._waiting += len(records)
            self._changed.set()
        self._came += len(records)

    def _gone(self, partitions: Sequence[Partition]) -> None:
        lost = set(partitions)
        for partition in lost:
            self._out -= partition.out
            partition.out = 0
        self._line = deque(entry for entry in self._line if entry[0] not in lost)
        self._waiting = sum(len(records) for _, records in self._line)
        self._again = deque(delivery for delivery in self._again if delivery.partition not in lost)
        if self._turns is not None:
            self._turns.forget(lambda key: key[0] in lost)
        self._changed.set()

    def _failed(self, error: TransportError) -> None:
        self._error = error
        self._changed.set()

    # --- receiving -----------------------------------------------------------------------------------------------

    async def receive(self) -> Sequence[KafkaDelivery]:
        """Wait for deliveries and give all that are there."""
        while not self._is_closed and not self._is_stopped:
            if self._error is not None:
                raise self._error
            room = self._window - self._out
            if room > 0 and (self._line or self._again) and (batch := self._taken(room)):
                return batch
            self._changed.clear()
            await self._changed.wait()
        raise TransportClosedError(_CLOSED)

    def _taken(self, room: int) -> list[KafkaDelivery]:
        batch: list[KafkaDelivery] = []
        self._out += room  # more than it may become, so that the intake sees no room where there is none
        while self._again and len(batch) < room:
            batch.append(self._once_more(self._again.popleft()))
        while self._line and len(batch) < room:
            partition, records = self._line.popleft()
            some = records[: room - len(batch)]
            self._waiting -= len(some)
            if len(some) < len(records):
                self._line.appendleft((partition, records[len(some) :]))
            if partition.alive:
                batch += self._handed_out(partition, some)
        self._out -= room - len(batch)
        if self._waiting < self.intake.batch:
            self.intake.wake()
        return batch

    def _handed_out(self, partition: Partition, records: Sequence[Record]) -> list[KafkaDelivery]:
        place = self._place
        kind = KafkaDelivery if partition.topic == place.source else WaitedDelivery
        with self._lock:
            partition.handed_out(records[-1].offset() or 0)
            if kind is WaitedDelivery:
                records = self._due(records, partition)
            if self._turns is not None:
                records = self._in_turn(self._turns, partition, records)
            if partition.is_unheard_of:  # as a rule: then none of them needs to be looked up
                offsets = cast("Iterable[int]", map(Record.offset, records))
                values = map(Record.value, records)
                batch = list(map(kind, records, repeat(partition), repeat(place), offsets, repeat(1), values))
            else:
                batch = [delivery_of(record, partition, place) for record in records]
        partition.out += len(batch)
        return batch

    def _in_turn(self, turns: _Turns, partition: Partition, records: Sequence[Record]) -> list[Record]:
        """Those whose turn it is; the others wait."""
        going: list[Record] = []
        for record in records:
            key = record.key()
            if key is None or turns.may_go((partition, key), (partition, record)):
                going.append(record)
            else:
                partition.put_aside(record.offset() or 0, counts=False)
        return going

    def _once_more(self, delivery: KafkaDelivery) -> KafkaDelivery:
        """The same record as a new delivery."""
        partition, offset = delivery.partition, delivery.offset
        with self._lock:
            partition.take_up(offset)
            again = delivery_of(delivery.record, partition, self._place)
        partition.out += 1
        return again

    # --- settling ------------------------------------------------------------------------------------------------

    def accept(self, deliveries: Iterable[Delivery]) -> int:
        """They are done. How many of them were too late: those will be delivered again."""
        done: dict[Partition, list[int]] = {}
        keyed = self._turns is not None
        last, offsets = None, list[int]()
        for delivery in cast("Iterable[KafkaDelivery]", deliveries):
            if delivery.settled:
                continue
            delivery.settled = True
            partition = delivery.partition
            if partition is not last:
                last, offsets = partition, done.setdefault(partition, [])
            offsets.append(delivery.offset)
            if keyed:
                self._next_of(delivery)
        return self._done(done)

    def _done(self, done: dict[Partition, list[int]]) -> int:
        """Settle these offsets; how many were too late."""
        late = 0
        with self._lock:
            for partition, offsets in done.items():
                if partition.alive:
                    partition.settle(offsets)
                    partition.out -= len(offsets)
                    self._out -= len(offsets)
                else:
                    late += len(offsets)
        self._there_is_room()
        return late

    def settled(self, delivery: KafkaDelivery) -> None:
        """Its copy is durable: it is done."""
        self._next_of(delivery)
        if delivery.partition.is_aside(delivery.offset):  # it was kept here, and was with nobody
            delivery.partition.out += 1
            self._out += 1
        self._done({delivery.partition: [delivery.offset]})

    def _next_of(self, delivery: KafkaDelivery) -> None:
        """It is the turn of the next record of its key."""
        if self._turns is None or (key := delivery.record.key()) is None:
            return
        partition = delivery.partition
        waiting = self._turns.next((partition, key))
        if waiting is not None and partition.alive:
            self._again.append(delivery_of(waiting[1], partition, self._place))
            self._changed.set()

    async def release(self, releases: Sequence[Release]) -> Outcomes:
        """Let them come again, from memory or by way of a retry topic."""
        self._check_open()
        outcomes: list[RedriveError | None] = [None] * len(releases)
        elsewhere: list[tuple[KafkaDelivery, Release, str]] = []
        for index, release in enumerate(releases):
            delivery = cast("KafkaDelivery", release.delivery)
            if delivery.settled:
                continue
            if not delivery.alive:
                outcomes[index] = too_late()
            elif topic := self._settler.topic_for(release.after or _NOTHING):
                elsewhere.append((delivery, release, topic))
            else:
                self._put_aside(delivery, release.after or _NOTHING, counts=release.counts)
        if elsewhere:
            await self._send_to_wait(elsewhere)
        self._there_is_room()
        return outcomes

    async def _send_to_wait(self, elsewhere: Sequence[tuple[KafkaDelivery, Release, str]]) -> None:
        """Let them wait in retry topics; those that cannot be written there wait here."""
        now = self._clock.now()
        waits = [
            (each, _journey(each, release.counts, now + (release.after or _NOTHING)), topic)
            for each, release, topic in elsewhere
        ]
        for (delivery, release, _), done in zip(
            elsewhere, await self._settler.send_to_wait(self, waits), strict=True
        ):
            if not done and delivery.alive:
                self._put_aside(delivery, release.after or _NOTHING, counts=release.counts)

    def _put_aside(self, delivery: KafkaDelivery, after: timedelta, *, counts: bool) -> None:
        """Keep it here until it comes again."""
        delivery.settled = True
        partition = delivery.partition
        with self._lock:
            if not partition.alive:
                return
            partition.put_aside(delivery.offset, counts=counts)
        partition.out -= 1
        self._out -= 1
        if after <= _NOTHING:
            self._again.append(delivery)
        else:
            self._keep(delivery, after)

    def _keep(self, delivery: KafkaDelivery, after: timedelta) -> None:
        self._number += 1
        heappush(self._later, (self._clock.monotonic() + after, self._number, delivery))
        if self._later[0][2] is delivery:
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.create_task(self._bring_back())

    async def _bring_back(self) -> None:
        """Those whose time has come go back into the line."""
        while self._later:
            wait = self._later[0][0] - self._clock.monotonic()
            if wait > _NOTHING:
                await self._clock.sleep(wait)
                continue
            delivery = heappop(self._later)[2]
            if not delivery.partition.alive:
                continue
            if isinstance(delivery, WaitedDelivery) and (early := self._early(delivery)) > _NOTHING:
                await self._send_on(delivery, early)
            else:
                self._again.append(delivery)
                self._changed.set()

    # --- records that have waited elsewhere ------------------------------------------------------------------------

    def _due(self, records: Sequence[Record], partition: Partition) -> list[Record]:
        """Those that may be handed out; the others are kept until the time of their topic is over."""
        due: list[Record] = []
        for record in records:
            delivery = delivery_of(record, partition, self._place)
            early = self._early(delivery) if isinstance(delivery, WaitedDelivery) else _NOTHING
            if early <= _NOTHING:
                due.append(record)
                continue
            partition.put_aside(delivery.offset, counts=False)
            delivery.settled = True
            _, written = record.timestamp()
            step = self._steps.get(partition.topic, _NOTHING)
            left = wait_until(written, self._clock.now()) + step
            self._keep(delivery, min(early, max(left, _NOTHING)))
        return due

    def _early(self, delivery: WaitedDelivery) -> timedelta:
        not_before = delivery.journey.not_before
        return _NOTHING if not_before is None else wait_until(not_before, self._clock.now())

    async def _send_on(self, delivery: WaitedDelivery, early: timedelta) -> None:
        """Its time in this topic is over, but it has to wait longer: in another topic, or here."""
        topic = self._settler.topic_for(early)
        if topic is not None:
            journey = delivery.journey._replace(
                partition=delivery.born[0], offset=delivery.born[1], deliveries=delivery.delivery_count - 1
            )
            [done] = await self._settler.send_to_wait(self, [(delivery, journey, topic)])
            if done:
                return
        self._keep(delivery, early)

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """Make them dead letters; settled only once those are durable."""
        self._check_open()
        return await self._settler.dead_letter(self, deaths)

    def _there_is_room(self) -> None:
        self._changed.set()
        if self.intake.waits_for_room:
            self.intake.wake()
        if self._is_stopped and self._out <= 0:
            self.intake.leave()  # nothing is out: others need not wait for our end

    # --- ending --------------------------------------------------------------------------------------------------

    def resize(self, window: int) -> None:
        """From now on, so many deliveries may be out and unsettled."""
        self._window = _checked(self.source, window)
        self._there_is_room()

    async def stop(self) -> None:
        """Let no more deliveries come. What is out can still be settled."""
        if not self._is_stopped:
            self._is_stopped = True
            self.intake.be_quiet()
            self._there_is_room()

    async def close(self) -> None:
        """Give back what is unsettled."""
        self._is_stopped = self._is_closed = True
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
        self.intake.leave()
        await asyncio.to_thread(self.intake.thread.join)
        await self._settler.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransportClosedError(_CLOSED)


def _journey(delivery: KafkaDelivery, counts: bool, not_before: datetime) -> Journey:  # noqa: FBT001  # as it was asked
    partition, offset = delivery.born
    return Journey(partition, offset, delivery.delivery_count - (not counts), milliseconds(not_before))


def _checked(source: Source, window: int) -> int:
    if window < 1:
        raise SettingsError(f"source '{source.name}': prefetch must be at least 1")
    return window
