"""Tell up to which time everything sent to a queue has been taken from it.

Messages wait in the queue of a source, or in one of its delay queues (`names`), from which they come back to it. The
queues are asked one after the other, and messages move meanwhile: out of a delay queue into the source, and from there,
by a consumer, into a delay queue. So the source is asked first and last, and the delay queues between, the longest
delay first. What is missed in spite of that was out with a consumer, and AMQP shows no such message.

RabbitMQ says that a queue is empty although it is not

- while a quorum queue has no leader, as when a node has just stopped: no messages, no consumers;
- while a message is on its way from a quorum queue with the strategy at-least-once, such as a delay queue, to its
  source: neither of the two counts it.

So one answer proves nothing: an empty queue is believed when it is found empty again after `_CONFIRMED_AFTER`, and then
up to the earlier of the two. A source that had consumers is believed only while it has some: without a leader
it would have none. The embedded broker has neither of the two gaps and is believed at once.
"""

from collections import deque
from datetime import timedelta
from typing import Final

from redrive.amqp import methods as m
from redrive.clock import Clock
from redrive.errors import BrokerRefusedError, SourceMissingError
from redrive.transports.rabbitmq.link import Link
from redrive.transports.rabbitmq.names import STEPS, delay_queue

# Longer than the election of a leader takes. An answer that took so long may be that of a leader that timed out.
_CONFIRMED_AFTER: Final = timedelta(seconds=2)


class Backlogs:
    """Whether messages wait at sources, as far as the broker's answers can be believed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By source: when it was asked for and found empty, in order, since it was last found not to be empty.
        self._empty: dict[str, deque[timedelta]] = {}
        self._consumed: set[str] = set()  # sources that had consumers

    async def taken_until(self, link: Link, source: str) -> timedelta | None:
        """The moment before which everything sent to this queue was taken; None: not known, or no such queue."""
        asked_at = self._clock.monotonic()
        if not await self._is_empty(link, source):
            self._empty.pop(source, None)
            return None
        if link.is_embedded:
            return asked_at
        if self._clock.monotonic() - asked_at >= _CONFIRMED_AFTER:
            return None
        return self._confirmed(source, asked_at)

    def _confirmed(self, source: str, asked_at: timedelta) -> timedelta | None:
        """The latest moment at which it was found empty and that is long enough before this one."""
        earlier = self._empty.setdefault(source, deque())
        earlier.append(asked_at)
        latest = asked_at - _CONFIRMED_AFTER
        while len(earlier) > 1 and earlier[1] <= latest:
            earlier.popleft()
        return earlier[0] if earlier[0] <= latest else None

    async def _is_empty(self, link: Link, source: str) -> bool:
        """Whether the broker says that nothing waits in the queue and its delay queues."""
        delays = [delay_queue(source, step) for step in sorted(STEPS, reverse=True)]
        queues = deque((source, *delays, source))
        while queues:
            try:
                # Asking for a queue that does not exist ends the channel, so it is one that nothing else uses.
                async with link.channel() as channel:
                    while queues:
                        found = await channel.call(m.QueueDeclare(queues[0], passive=True), m.QueueDeclareOk)
                        if self._lacks_consumers(link, source, found) or found.message_count:
                            return False
                        queues.popleft()
            except SourceMissingError:
                if queues.popleft() == source:
                    return False
            except BrokerRefusedError:  # from RabbitMQ 4.3 on, for a user without any permission on the queue
                return False
        return True

    def _lacks_consumers(self, link: Link, source: str, found: m.QueueDeclareOk) -> bool:
        """Whether this source had consumers and has none now: gone, or not shown because there is no leader."""
        if found.queue != source or link.is_embedded:
            return False
        if found.consumer_count:
            self._consumed.add(source)
        return source in self._consumed and not found.consumer_count
