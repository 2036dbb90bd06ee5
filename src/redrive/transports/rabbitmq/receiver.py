"""How are the deliveries of a source received for as long as they are wanted?

A receiver follows its queue over lost connections, deleted queues and cancelled consumers: one `Subscription` after the
other. What comes is handed out as it is, but for two kinds: a message that has to wait longer is sent on, and one whose
number of deliveries cannot be told is put back first as a copy with a count (T4): a classic queue counts nothing, and a
dead-lettered message may bring the counts of another queue. The rule: what is out of the window is handed out or
settled, never forgotten.

How deliveries are released and given up is `settling`'s. It does not know handlers or rules, and it does not open
connections.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from random import Random
from typing import Final, cast

from redrive.clock import Clock
from redrive.errors import (
    ConsumerTimeoutError,
    SettingsError,
    TransportClosedError,
    TransportError,
)
from redrive.letters.letter import EPOCH
from redrive.transports.base import Death, Delivery, Outcomes, Release, Source
from redrive.transports.rabbitmq.copies import MILLISECOND
from redrive.transports.rabbitmq.delivery import RabbitDelivery
from redrive.transports.rabbitmq.lifeline import WAITS, Lifeline
from redrive.transports.rabbitmq.peeks import Peeks
from redrive.transports.rabbitmq.publisher import Publisher
from redrive.transports.rabbitmq.settling import Settler
from redrive.transports.rabbitmq.subscription import Subscription
from redrive.transports.telling import Tell

# A message that is this early is kept here: a delay queue would make it late.
_ALMOST: Final = timedelta(milliseconds=300)
_A_MOMENT: Final = 2.0  # seconds
_CLOSED: Final = "the receiver was closed"


class RabbitReceiver:
    """The deliveries of one queue."""

    def __init__(
        self, source: Source, lifeline: Lifeline, publisher: Publisher, peeks: Peeks, clock: Clock, tell: Tell
    ) -> None:
        if source.window < 1:
            raise SettingsError(f"source '{source.name}': prefetch must be at least 1")
        self.source = source
        self._window = source.window
        self._lifeline = lifeline
        self._settler = Settler(source, lifeline, publisher, clock, tell)
        self._peeks = peeks
        self._clock = clock
        self._tell = tell
        self._random = Random()  # noqa: S311  # spreads waits, hides nothing
        self._subscription: Subscription | None = None
        self._ready: list[RabbitDelivery] = []
        self._arrived = asyncio.Event()
        self._odd: list[RabbitDelivery] = []  # not handed out yet: they are to be sent on or put back
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower: asyncio.Task[None] | None = None
        self._is_caring = False
        self._recounts_left = source.most_recounted
        self._is_stopped = False
        self._is_closed = False
        self.on_consumer_timeout: Callable[[ConsumerTimeoutError], None] = lambda _error: None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    async def open(self) -> None:
        """Subscribe, and stay subscribed; raises if that cannot be."""
        await self._subscribe()
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    # --- receiving -------------------------------------------------------------------------------------------

    async def receive(self) -> Sequence[RabbitDelivery]:
        """Wait for deliveries and give all that are there."""
        while not self._is_closed:
            if self._ready:
                batch, self._ready = self._ready, []
                return batch
            if self._is_stopped and not self._tasks:
                break
            self._arrived.clear()
            await self._arrived.wait()
        raise TransportClosedError(_CLOSED)

    def _take(self, delivery: RabbitDelivery, is_odd: bool) -> None:  # noqa: FBT001  # once per delivery
        if is_odd and (self._is_caring or self._needs_care(delivery)):
            self._odd.append(delivery)
            if not self._is_caring:
                self._is_caring = True
                self._start(self._care())
            return
        self._ready.append(delivery)
        if len(self._ready) == 1:
            self._arrived.set()

    def _needs_care(self, delivery: RabbitDelivery) -> bool:
        if not delivery.is_judged and delivery.is_redelivered:
            delivery.subscription.learn_type(counts=delivery.broker_count is not None)
            if self._peeks:
                self._forgive(delivery)
            if self._recounts_left == 0 and delivery.broker_count is None and not delivery.has_foreign_counts:
                delivery.count(0)  # whether it was handed out here before, nobody knows
        if delivery.unsealed.not_before is not None and self._early(delivery) > timedelta(0):
            return True
        return delivery.is_uncounted

    def _forgive(self, delivery: RabbitDelivery) -> None:
        """Take looks off the count: they were no deliveries."""
        name, key = self.source.name, delivery.key
        looks, broker_count = self._peeks.of(name, key), delivery.broker_count
        if not looks:
            return
        if broker_count is None:
            self._peeks.forget(name, key)  # the next time it is redelivered, it was for another reason
            delivery.count(0)
        elif delivery.subscription.counts.looking_counts:
            delivery.count(-min(looks, broker_count))

    def _early(self, delivery: RabbitDelivery) -> timedelta:
        not_before = delivery.unsealed.not_before
        return (not_before or 0) * MILLISECOND - (self._clock.now() - EPOCH)

    async def _care(self) -> None:
        """Put back, with a count, what nobody counts; send on what comes too early; hand out the rest.

        A copy is not handed out before its original is gone for certain: a message that kills its worker at once
        would otherwise leave both behind, and be twice as many after every crash.
        """
        try:
            await asyncio.sleep(0)  # all that came with it
            while self._odd:
                odd, self._odd = self._odd, []
                await self._care_for(odd)
        finally:
            self._is_caring = False

    async def _care_for(self, odd: Sequence[RabbitDelivery]) -> None:
        others: list[RabbitDelivery] = []
        for delivery in odd:
            if not delivery.alive:
                continue
            if not self._needs_care(delivery):
                self._hand_out(delivery)
            elif not delivery.is_uncounted and (early := self._early(delivery)) <= _ALMOST:
                self._start(self._hand_out_later(delivery, early))
            else:
                others.append(delivery)
        copies = [
            self._settler.copy(
                each,
                each.presumed_count if each.is_uncounted else each.known_count,
                each.unsealed.not_before,
            )
            for each in others
        ]
        if self._recounts_left is not None:
            self._recounts_left = max(0, self._recounts_left - sum(each.is_uncounted for each in others))
        for delivery, error in zip(others, await self._settler.replace(others, copies), strict=True):
            if error is not None and delivery.alive:
                # It cannot be put back, so it is handed out as it is, rather than stay where nobody sees it.
                self._tell(f"delivery count not stored source={self.source.name}", error)
                if delivery.is_uncounted:
                    delivery.count(delivery.presumed_count - delivery.known_count)
                self._hand_out(delivery)
        for subscription in {delivery.subscription for delivery in others}:
            with contextlib.suppress(TransportError):  # its deliveries come again, and so do we
                await subscription.settled()

    async def _hand_out_later(self, delivery: RabbitDelivery, early: timedelta) -> None:
        await self._clock.sleep(early)
        self._hand_out(delivery)

    def _hand_out(self, delivery: RabbitDelivery) -> None:
        self._ready.append(delivery)
        self._arrived.set()

    # --- settling --------------------------------------------------------------------------------------------

    def accept(self, deliveries: Iterable[Delivery]) -> int:
        """They are done. How many of them were too late: those will be delivered again."""
        subscription = self._subscription
        tags: list[int] = []
        late = 0
        for delivery in cast("Iterable[RabbitDelivery]", deliveries):
            if delivery.settled:
                continue
            delivery.settled = True
            if delivery.subscription is subscription:
                tags.append(delivery.tag)
            elif delivery.subscription.alive:
                delivery.subscription.accept([delivery.tag])
            else:
                late += 1
        if subscription is None or not subscription.alive:
            return late + len(tags)
        if tags:
            subscription.accept(tags)
        return late

    async def release(self, releases: Sequence[Release]) -> Outcomes:
        """Let them come again; settled only once that is certain."""
        self._check_open()
        return await self._settler.release(releases)

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """Make them dead letters; settled only once those are durable."""
        self._check_open()
        return await self._settler.dead_letter(deaths)

    # --- following the queue -----------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        link = await self._lifeline.link()
        self._subscription = await Subscription.open(
            link, self.source, self._window, self._lifeline.url.place, self._take
        )

    async def _follow(self) -> None:
        """When a subscription ends, begin another, for as long as the receiver is wanted."""
        while self._subscription is not None:
            lost = await asyncio.shield(self._subscription.ended)
            if isinstance(lost, ConsumerTimeoutError):
                self.on_consumer_timeout(lost)
            self._ready = [delivery for delivery in self._ready if delivery.alive]
            self._arrived.set()
            attempt = 0
            while not self._is_stopped and not self._subscription.alive:
                attempt += 1
                self._tell(f"subscription lost source={self.source.name} attempt={attempt}", lost)
                try:
                    await self._clock.sleep(WAITS.delay(attempt, self._random))
                    await self._subscribe()
                except TransportClosedError:
                    return
                except TransportError as error:
                    lost = error
                else:
                    self._tell(f"subscription restored source={self.source.name}", None)
            if self._is_stopped:
                return

    def resize(self, window: int) -> None:
        """From now on, so many deliveries may be out and unsettled."""
        if window < 1:
            raise SettingsError(f"source '{self.source.name}': prefetch must be at least 1")
        self._window = window
        if self._subscription is not None and not self._is_stopped:
            self._subscription.resize(window)

    async def narrowed(self) -> None:
        """Wait until no more deliveries are under way than the window has room for."""
        if self._subscription is not None and not self._is_stopped:
            await self._subscription.narrowed()

    async def stop(self) -> None:
        """Let no more deliveries come. What is out can still be settled."""
        if not self._is_stopped:
            self._is_stopped = True
            if self._subscription is not None and self._subscription.alive:
                await self._subscription.stop()
            elif self._follower is not None:
                self._follower.cancel()  # it is just looking for the queue
        self._arrived.set()

    async def close(self) -> None:
        """Give back what is unsettled."""
        self._is_stopped = True
        if self._is_caring and self._lifeline.current is not None:
            # A copy that is under way would stay beside its original.
            await asyncio.wait(self._tasks, timeout=_A_MOMENT)
        self._is_closed = True
        self._arrived.set()
        tasks = [*self._tasks, *([self._follower] if self._follower is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._ready.clear()
        if self._subscription is not None:
            await self._subscription.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransportClosedError(_CLOSED)

    def _start(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._arrived.set()
        if not task.cancelled() and task.exception() is not None:
            self._tell(f"deliveries not handed out source={self.source.name}", task.exception())
