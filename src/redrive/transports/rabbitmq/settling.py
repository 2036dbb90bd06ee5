"""How is a delivery released or given up without being lost?

The one rule: a copy is durable before the delivery it was made of is settled. What could not be made durable stays
unsettled, and the answer says why. Where the queue itself can do what is asked, it is simply told.

It does not know how deliveries come.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, cast

from redrive.amqp import methods as m
from redrive.amqp.errors import FrameSyntaxError
from redrive.clock import Clock
from redrive.errors import BrokerUnreachableError, PublishError, RedriveError, TransportError
from redrive.transports.base import Death, Outcomes, Release, Source
from redrive.transports.rabbitmq.copies import copy_of, dead_letter_of, milliseconds
from redrive.transports.rabbitmq.delivery import RabbitDelivery
from redrive.transports.rabbitmq.lifeline import Lifeline
from redrive.transports.rabbitmq.publisher import Outgoing, Publisher, UnroutableError
from redrive.transports.rabbitmq.subscription import Subscription
from redrive.transports.rabbitmq.topology import wanted
from redrive.transports.telling import Tell

_NOTHING: Final = timedelta(0)
_TOO_LATE: Final = "the connection of this delivery was lost; it will be delivered again"
_CUT_SHORT: Final = "dead-lettering was cancelled; the message stays in its queue"


class Settler:
    """Settles the deliveries of one source."""

    def __init__(
        self, source: Source, lifeline: Lifeline, publisher: Publisher, clock: Clock, tell: Tell
    ) -> None:
        self._source = source
        self._lifeline = lifeline
        self._publisher = publisher
        self._clock = clock
        self._tell = tell

    async def release(self, releases: Sequence[Release]) -> Outcomes:
        """Let them come again, at once or by way of a delay queue."""
        outcomes: list[RedriveError | None] = [None] * len(releases)
        now = self._clock.now()
        untouched: dict[Subscription, list[int]] = {}  # whose deliveries go back as if they had not been made
        copies: dict[int, tuple[RabbitDelivery, Outgoing | RedriveError]] = {}
        for index, release in enumerate(releases):
            delivery, after = cast("RabbitDelivery", release.delivery), release.after or _NOTHING
            if delivery.settled:
                continue
            if not delivery.alive:
                outcomes[index] = BrokerUnreachableError(_TOO_LATE)
            elif after <= _NOTHING and release.counts and self._counts(delivery):
                delivery.settled = True
                delivery.subscription.reject([delivery.tag])
            elif after <= _NOTHING and not release.counts and await self._goes_back_untouched(delivery):
                delivery.settled = True
                untouched.setdefault(delivery.subscription, []).append(delivery.tag)
            else:
                until = milliseconds(now + after) if after > _NOTHING else None
                known = delivery.delivery_count
                count = (delivery.presumed_count if known is None else known) + release.counts
                copies[index] = (delivery, self.copy(delivery, count, until))
        for subscription, tags in untouched.items():
            subscription.give_back(sorted(tags))
        await self._replace_some(copies, outcomes)
        return outcomes

    async def _goes_back_untouched(self, delivery: RabbitDelivery) -> bool:
        """Whether the queue can take it back without counting it.

        Not if its counts are another queue's: a delivery limit would be compared with those.
        """
        return await delivery.subscription.gives_back_uncounted() and not delivery.has_foreign_counts

    def _counts(self, delivery: RabbitDelivery) -> bool:
        """Whether the queue counts what it gets back. If it does not after all, the receiver will see to it."""
        return delivery.broker_count is not None or self._source.queue_type == "quorum"

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """Publish their dead letters, all in one batch, and settle those that are durable.

        With `dead_letter="native"` the queue's own dead-letter exchange decides, and nobody hears whether there is
        one: a queue without it drops what is rejected. `redrive doctor` finds such queues.
        """
        outcomes: list[RedriveError | None] = [None] * len(deaths)
        letters: dict[int, tuple[RabbitDelivery, Outgoing | RedriveError]] = {}
        user, room = self._publisher.user, self._publisher.room
        for index, death in enumerate(deaths):
            delivery = cast("RabbitDelivery", death.delivery)
            if delivery.settled:
                continue
            if not delivery.alive:
                outcomes[index] = BrokerUnreachableError(_TOO_LATE)
            elif self._source.dead_letter == "native":
                delivery.settled = True
                delivery.subscription.give_up([delivery.tag])
            else:
                letters[index] = (delivery, dead_letter_of(delivery, death.letter, self._source, user, room))
        await self._replace_some(letters, outcomes)
        return outcomes

    async def _replace_some(
        self,
        copies: dict[int, tuple[RabbitDelivery, Outgoing | RedriveError]],
        outcomes: list[RedriveError | None],
    ) -> None:
        if copies:
            deliveries, outgoing = zip(*copies.values(), strict=True)
            for index, error in zip(copies, await self.replace(deliveries, outgoing), strict=True):
                outcomes[index] = error

    def copy(
        self, delivery: RabbitDelivery, deliveries: int, not_before: int | None
    ) -> Outgoing | RedriveError:
        """The copy by which it comes again; why there is none where its headers cannot be read and hold no count."""
        user, now = self._publisher.user, self._clock.now()
        try:
            return copy_of(delivery, user, deliveries=deliveries, not_before=not_before, now=now)
        except FrameSyntaxError as error:
            return error

    async def replace(
        self, deliveries: Sequence[RabbitDelivery], copies: Sequence[Outgoing | RedriveError]
    ) -> Sequence[RedriveError | None]:
        """Publish the copies, then settle the deliveries whose copies are durable; the others stay unsettled."""
        for delivery in deliveries:
            delivery.settled = True  # nobody else is to settle it meanwhile
        errors: list[RedriveError | None] = [
            PublishError(_CUT_SHORT) if isinstance(copy, Outgoing) else copy for copy in copies
        ]
        try:
            await self._publish(copies, errors)
        finally:
            durable: dict[Subscription, list[int]] = {}
            for delivery, error in zip(deliveries, errors, strict=True):
                if error is not None:
                    delivery.settled = False
                else:
                    durable.setdefault(delivery.subscription, []).append(delivery.tag)
            for subscription, tags in durable.items():
                if subscription.alive:
                    subscription.accept(tags)
        return errors

    async def _publish(
        self, copies: Sequence[Outgoing | RedriveError], errors: list[RedriveError | None]
    ) -> None:
        going = {at: copy for at, copy in enumerate(copies) if isinstance(copy, Outgoing)}
        for attempt in (1, 2):
            answers = await self._publisher.publish(list(going.values()))
            for at, error in zip(going, answers, strict=True):
                errors[at] = error
            going = {at: copy for at, copy in going.items() if _may_be_made(copy, errors[at])}
            if not going or attempt == 2:
                return
            await self._make_delay_queues({copy.routing_key for copy in going.values()})

    async def _make_delay_queues(self, names: set[str]) -> None:
        """Delay queues are made by `provision`; a message does not stay behind because nobody has run it."""
        queues = [
            queue for queue in wanted([self._source]).queues if queue.role == "delay" and queue.name in names
        ]
        try:
            link = await self._lifeline.link()
            async with link.channel() as channel:
                for queue in queues:
                    await channel.call(m.QueueDeclare(queue.name, durable=True, arguments=queue.arguments))
        except TransportError as error:
            self._tell(f"delay queues not created source={self._source.name}", error)


def _may_be_made(copy: Outgoing, error: RedriveError | None) -> bool:
    return isinstance(error, UnroutableError) and not copy.exchange and ".delay." in copy.routing_key
