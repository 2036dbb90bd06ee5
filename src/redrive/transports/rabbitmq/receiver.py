"""How are the deliveries of a source received for as long as they are wanted?

A receiver follows its queue over lost connections, deleted queues and cancelled consumers: one `Subscription` after the
other. What comes is handed out as it is, but for two kinds: a message that has to wait longer is sent on, and one that
a classic queue hands out again is put back first with a count (T4), because such a queue counts nothing by itself. The
rule (A6): a copy is durable before the delivery it was made of is settled.

It does not know handlers or rules, and it does not open connections.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from datetime import timedelta
from random import Random
from typing import Final, cast

from redrive.amqp import methods as m
from redrive.clock import Clock
from redrive.errors import (
    BrokerUnreachableError,
    PublishError,
    RedriveError,
    SettingsError,
    TransportClosedError,
    TransportError,
)
from redrive.letters.letter import EPOCH
from redrive.transports.base import Death, Delivery, Outcomes, Release, Source
from redrive.transports.rabbitmq.copies import MILLISECOND, copy_of, dead_letter_of, milliseconds
from redrive.transports.rabbitmq.delivery import RabbitDelivery
from redrive.transports.rabbitmq.lifeline import WAITS, Lifeline, Tell
from redrive.transports.rabbitmq.publisher import Outgoing, Publisher, UnroutableError
from redrive.transports.rabbitmq.subscription import Subscription
from redrive.transports.rabbitmq.topology import wanted

# A message that is this early is kept here: a delay queue would make it late.
_ALMOST: Final = timedelta(milliseconds=300)
_A_MOMENT: Final = 2.0  # seconds
_CLOSED: Final = "the receiver was closed"


class RabbitReceiver:
    """The deliveries of one queue."""

    def __init__(
        self, source: Source, lifeline: Lifeline, publisher: Publisher, clock: Clock, tell: Tell
    ) -> None:
        if source.window < 1:
            raise SettingsError(f"source '{source.name}': its window has to be at least 1")
        self.source = source
        self._window = source.window
        self._lifeline = lifeline
        self._publisher = publisher
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
        self._is_stopped = False
        self._is_closed = False

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
        unsealed = delivery.unsealed
        if unsealed.not_before is not None and self._early(delivery) > timedelta(0):
            return True
        return delivery.is_redelivered and unsealed.broker_count is None

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
            elif not _uncounted(delivery) and (early := self._early(delivery)) <= _ALMOST:
                self._start(self._hand_out_later(delivery, early))
            else:
                others.append(delivery)
        copies = [
            self._copy(each, each.delivery_count + _uncounted(each), each.unsealed.not_before)
            for each in others
        ]
        for delivery, error in zip(others, await self._replace(others, copies), strict=True):
            if error is not None and delivery.alive:
                # It cannot be put back, so it is handed out as it is, rather than stay where nobody sees it.
                self._tell(f"a delivery of '{self.source.name}' could not be put back to be counted", error)
                if _uncounted(delivery):
                    delivery.count_once_more()
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
        outcomes: list[RedriveError | None] = [None] * len(releases)
        now = self._clock.now()
        copied: list[tuple[int, RabbitDelivery]] = []
        copies: list[Outgoing] = []
        for index, release in enumerate(releases):
            delivery = cast("RabbitDelivery", release.delivery)
            after = release.after or timedelta(0)
            if delivery.settled:
                continue
            if not delivery.alive:
                outcomes[index] = _too_late()
            elif after <= timedelta(0) and self._counts(delivery):
                delivery.settled = True
                delivery.subscription.reject([delivery.tag], requeue=True)
            else:
                until = milliseconds(now + after) if after > timedelta(0) else None
                copied.append((index, delivery))
                copies.append(self._copy(delivery, delivery.delivery_count + 1, until))
        errors = await self._replace([delivery for _, delivery in copied], copies)
        for (index, _), error in zip(copied, errors, strict=True):
            outcomes[index] = error
        return outcomes

    def _counts(self, delivery: RabbitDelivery) -> bool:
        """Whether the queue counts what is given back. If it does not after all, it comes as one to be cared for."""
        return delivery.unsealed.broker_count is not None or self.source.queue_type == "quorum"

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """Make them dead letters; settled only once those are durable (A6).

        With `dead_letter="reject"` it is the queue's own dead-letter exchange that decides, and nobody hears whether
        there is one: a queue without it drops what is rejected. `redrive doctor` finds such queues.
        """
        self._check_open()
        outcomes: list[RedriveError | None] = [None] * len(deaths)
        letters: list[tuple[int, RabbitDelivery]] = []
        copies: list[Outgoing] = []
        for index, death in enumerate(deaths):
            delivery = cast("RabbitDelivery", death.delivery)
            if delivery.settled:
                continue
            if not delivery.alive:
                outcomes[index] = _too_late()
            elif self.source.dead_letter == "reject":
                delivery.settled = True
                delivery.subscription.reject([delivery.tag], requeue=False)
            else:
                letters.append((index, delivery))
                user, room = self._publisher.user, self._publisher.room
                copies.append(dead_letter_of(delivery, death.letter, self.source, user, room))
        errors = await self._replace([delivery for _, delivery in letters], copies)
        for (index, _), error in zip(letters, errors, strict=True):
            outcomes[index] = error
        return outcomes

    def _copy(self, delivery: RabbitDelivery, deliveries: int, not_before: int | None) -> Outgoing:
        return copy_of(
            delivery,
            self._publisher.user,
            deliveries=deliveries,
            not_before=not_before,
            now=self._clock.now(),
        )

    async def _replace(
        self, deliveries: Sequence[RabbitDelivery], copies: Sequence[Outgoing]
    ) -> Sequence[PublishError | None]:
        """Publish the copies, then settle the deliveries whose copies are durable; the others stay unsettled."""
        if not copies:
            return []
        for delivery in deliveries:
            delivery.settled = True  # nobody else is to settle it meanwhile
        errors: list[PublishError | None] = [PublishError("the transport was closed")] * len(copies)
        try:
            errors = await self._publisher.publish(copies)
            if missing := [at for at, error in enumerate(errors) if _may_be_made(copies[at], error)]:
                await self._make_delay_queues({copies[at].routing_key for at in missing})
                again = await self._publisher.publish([copies[at] for at in missing])
                for at, error in zip(missing, again, strict=True):
                    errors[at] = error
        finally:
            for delivery, error in zip(deliveries, errors, strict=True):
                if error is not None:
                    delivery.settled = False
                elif delivery.subscription.alive:
                    delivery.subscription.accept([delivery.tag])
        return errors

    async def _make_delay_queues(self, names: set[str]) -> None:
        """Delay queues are made by `provision`; a message does not stay behind because nobody has run it."""
        queues = [
            queue for queue in wanted([self.source]).queues if queue.role == "delay" and queue.name in names
        ]
        try:
            link = await self._lifeline.link()
            async with link.channel() as channel:
                for queue in queues:
                    await channel.call(m.QueueDeclare(queue.name, durable=True, arguments=queue.arguments))
        except TransportError as error:
            self._tell(f"the delay queues of '{self.source.name}' could not be made", error)

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
            self._ready = [delivery for delivery in self._ready if delivery.alive]
            self._arrived.set()
            attempt = 0
            while not self._is_stopped and not self._subscription.alive:
                attempt += 1
                self._tell(f"subscribing to '{self.source.name}' again, attempt {attempt}", lost)
                try:
                    await self._clock.sleep(WAITS.delay(attempt, self._random))
                    await self._subscribe()
                except TransportClosedError:
                    return
                except TransportError as error:
                    lost = error
                else:
                    self._tell(f"subscribed to '{self.source.name}' again", None)
            if self._is_stopped:
                return

    def resize(self, window: int) -> None:
        """From now on, so many deliveries may be out and unsettled."""
        if window < 1:
            raise SettingsError(f"source '{self.source.name}': its window has to be at least 1")
        self._window = window
        if self._subscription is not None and not self._is_stopped:
            self._subscription.resize(window)

    async def stop(self) -> None:
        """Let no more deliveries come. What is out can still be settled."""
        if not self._is_stopped:
            self._is_stopped = True
            if self._subscription is not None and self._subscription.alive:
                await self._subscription.stop()
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
            self._tell(f"deliveries of '{self.source.name}' were not handed out", task.exception())


def _uncounted(delivery: RabbitDelivery) -> bool:
    """Whether it was delivered before and nothing about it tells how often."""
    return delivery.is_redelivered and delivery.unsealed.broker_count is None


def _may_be_made(copy: Outgoing, error: PublishError | None) -> bool:
    return isinstance(error, UnroutableError) and not copy.exchange and ".delay." in copy.routing_key


def _too_late() -> TransportError:
    return BrokerUnreachableError("the connection it came by was lost; it will be delivered again")
