"""How do the deliveries of one queue come in over one channel, and how are they settled?

A subscription lives as long as its channel. Deliveries are made of what a read of the socket brings and are given to
the receiver in the order they came; what is done is gathered and told once per turn (`acks`). The rule: no more than
the window is out and unsettled. A prefetch belongs to a consumer for good, so a larger window is one more consumer on
the same channel, and a smaller one begins when enough of what is out has been settled.

It does not know how a subscription follows another; that is `receiver`'s.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.hot import nack_frame, reject_frame
from redrive.errors import ConsumerTimeoutError, SourceMissingError, TransportError
from redrive.transports.base import Source
from redrive.transports.rabbitmq.acks import Ledger
from redrive.transports.rabbitmq.channel import AFTER_A_TIMEOUT, Channel
from redrive.transports.rabbitmq.delivery import Header, RabbitDelivery
from redrive.transports.rabbitmq.envelope import DELIVERIES
from redrive.transports.rabbitmq.link import Link
from redrive.transports.rabbitmq.queue_type import queue_type

_TAG: Final = struct.Struct(">Q")
_MARK: Final = DELIVERIES.encode()  # what a copy that comes again has on it
_REQUEUE: Final = 2  # a flag of basic.nack
_LARGEST_WINDOW: Final = 65535
_MOST_CONSUMERS: Final = 4  # a window that grew often is put together again


class Subscription:
    """The deliveries of one queue on one channel."""

    def __init__(
        self, channel: Channel, source: Source, place: str, take: Callable[[RabbitDelivery, bool], None]
    ) -> None:
        self.source = source
        self.place = place
        self.alive = True
        self.counts = channel.link.counts
        self._queue_type: str | None = None  # as far as it is known: a source only says what was asked for
        self.ended: asyncio.Future[TransportError] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._take = take
        self._last: Header | None = None
        self._ledger = Ledger(channel.number)
        self._loop = asyncio.get_running_loop()
        self._is_flushing = False
        self._consumers: dict[str, int] = {}  # tag: prefetch
        self._names = count(1)
        self._window = 0
        self._cut = 0  # deliveries up to this tag belong to consumers that were cancelled
        self._resizing: asyncio.Task[None] | None = None
        self._settled_some = asyncio.Event()
        self._cancelled = asyncio.Event()
        channel.on_delivery = self._delivered
        channel.on_method = self._heard
        channel.on_end = self._end

    @classmethod
    async def open(
        cls, link: Link, source: Source, window: int, place: str, take: Callable[[RabbitDelivery, bool], None]
    ) -> "Subscription":
        """Subscribe; `SourceMissingError` where there is no such queue. `take` gets each delivery."""
        channel = link.new_channel()
        await channel.call(m.ChannelOpen())
        subscription = cls(channel, source, place, take)
        subscription._window = min(window, _LARGEST_WINDOW)
        try:
            await subscription._consume(subscription._window)
        except BaseException:
            await channel.close()
            raise
        return subscription

    async def _consume(self, prefetch: int) -> None:
        name = f"redrive-{next(self._names)}"
        self._consumers[name] = prefetch
        await self._channel.call(m.BasicQos(prefetch_count=prefetch))
        await self._channel.call(m.BasicConsume(self.source.name, name))

    # --- the hot path ----------------------------------------------------------------------------------------

    def _delivered(self, method: bytes, header: bytes, body: bytes) -> None:
        """A delivery has come. It is odd if the queue has handed it out before, or if it went through our hands."""
        at = 5 + method[4]
        tag: int = _TAG.unpack_from(method, at)[0]
        self._ledger.delivered = tag
        self._take(RabbitDelivery(self, tag, method, header, body), method[at + 8] != 0 or _MARK in header)

    def header(self, raw: bytes) -> Header:
        """What there is to know of a content header; the last one is kept, since the next is often the same."""
        last = self._last
        if last is None or (raw is not last.raw and raw != last.raw):
            last = self._last = Header(raw, self.source.name)
        return last

    def accept(self, tags: list[int]) -> None:
        """These are done; the broker is told at the end of this turn."""
        self._ledger.done(tags)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Tell the broker what is done, now."""
        self._is_flushing = False
        if self._ledger.is_due:
            self._channel.write(self._ledger.flush())
            if self._resizing is not None:
                self._settled_some.set()

    async def settled(self) -> None:
        """Wait until the broker has heard of everything that is done; raises if it may not have."""
        self.flush()
        await self._channel.call(
            m.ChannelFlow(active=True)
        )  # it changes nothing, but it is answered in order

    # --- settling otherwise ----------------------------------------------------------------------------------

    def reject(self, tags: Iterable[int]) -> None:
        """Give them back to the queue as failures, which a quorum queue counts."""
        self._settle(tags, lambda tag: reject_frame(self._channel.number, tag, requeue=True))

    def give_back(self, tags: Iterable[int]) -> None:
        """Give them back to the queue in this order, untouched; see `gives_back_uncounted`."""
        self._settle(tags, lambda tag: nack_frame(self._channel.number, tag, _REQUEUE))

    def give_up(self, tags: Iterable[int]) -> None:
        """Let the queue dead-letter them.

        By a nack: from RabbitMQ 4.3 on, a reject is one more failure, which the dead letter carries along, and which
        the delivery limits of all queues on its way are compared with.
        """
        self._settle(tags, lambda tag: nack_frame(self._channel.number, tag, 0))

    def _settle(self, tags: Iterable[int], frame: Callable[[int], bytes]) -> None:
        frames = []
        for tag in tags:
            self._ledger.told(tag)
            frames.append(frame(tag))
        self._channel.write(b"".join(frames))
        self._settled_some.set()

    def learn_type(self, *, counts: bool) -> None:
        """A delivery came again, with or without a count: only quorum queues count."""
        self._queue_type = "quorum" if counts else "classic"

    async def gives_back_uncounted(self) -> bool:
        """Whether `give_back` keeps place, headers and count of a message: in a quorum queue from RabbitMQ 4.3 on.

        In any other queue, it is one delivery more: by the queue's own count, or by `redelivered` alone.
        """
        if self.counts.nack_counts or self.source.queue_type != "quorum":
            return False
        if self._queue_type is None:
            self._queue_type = await queue_type(self._channel.link, self.source)
        return self._queue_type == "quorum"

    # --- the window ------------------------------------------------------------------------------------------

    def resize(self, window: int) -> None:
        """From now on, so many may be out and unsettled."""
        self._window = min(window, _LARGEST_WINDOW)
        self._cancelled.set()  # whoever waits for a smaller window looks again
        if self._resizing is None and self.alive:
            self._resizing = self._loop.create_task(self._resize())
        self._settled_some.set()

    async def narrowed(self) -> None:
        """Wait until the consumers that made the window too large are cancelled."""
        while self.alive and sum(self._consumers.values()) > self._window:
            self._cancelled.clear()
            await self._cancelled.wait()

    async def _resize(self) -> None:
        try:
            while self.alive and (free := self._window - sum(self._consumers.values())):
                old = self._ledger.outstanding(self._cut)
                if free < 0 or len(self._consumers) >= _MOST_CONSUMERS:
                    await self._cancel_all()
                elif free > old and (not old or not self._consumers):
                    await self._consume(free - old)
                else:
                    self._settled_some.clear()
                    await self._settled_some.wait()
        except TransportError:
            pass  # the channel is over; the next one begins with the window that is wanted then
        finally:
            self._resizing = None

    async def _cancel_all(self) -> None:
        # Asked for at once: what is acknowledged from here on must not make room for more.
        cancelled = [(name, self._channel.begin(m.BasicCancel(name))) for name in self._consumers]
        for name, answer in cancelled:
            await answer
            self._consumers.pop(name, None)
        self._cut = self._ledger.delivered
        self._cancelled.set()

    # --- the end ---------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Let no more deliveries come; what is out can still be settled."""
        if self._resizing is not None:
            self._resizing.cancel()
        with contextlib.suppress(TransportError):  # then nothing comes either
            await self._cancel_all()

    async def close(self) -> None:
        """Tell what is done; everything else goes back to the queue."""
        if self._resizing is not None:
            self._resizing.cancel()
        self.flush()
        self.alive = False
        await self._channel.close()

    def _heard(self, method: m.Method, _content: Content | None) -> None:
        if isinstance(method, m.BasicCancel) and self.alive:
            # Nothing more comes this way, so begin anew, once it is known why.
            self._stop_settling()
            self._closing = self._loop.create_task(self._end_cancelled())

    async def _end_cancelled(self) -> None:
        """The broker cancels a consumer without a reason, so look for it."""
        name = self.source.name
        error: TransportError = SourceMissingError(f"the queue '{name}' was deleted, or its node is down")
        try:
            async with self._channel.link.channel() as channel:
                await channel.call(m.QueueDeclare(name, passive=True))
        except SourceMissingError:
            pass
        except TransportError as why:
            error = why
        else:
            if self._ledger.outstanding(self._ledger.delivered):
                error = ConsumerTimeoutError(
                    f"the broker cancelled the consumer of '{name}': a delivery was not acknowledged "
                    f"within the consumer timeout of the queue (default: 30 minutes); {AFTER_A_TIMEOUT} "
                    "(x-consumer-timeout, or the policy consumer-timeout)"
                )
            else:
                error = TransportError(f"the broker cancelled the consumer of '{name}'")
        self._end(error)
        await self._channel.close()

    def _stop_settling(self) -> None:
        if self.alive:
            self.flush()
        self.alive = False
        self._settled_some.set()
        self._cancelled.set()

    def _end(self, error: TransportError) -> None:
        self._stop_settling()
        if not self.ended.done():
            self.ended.set_result(error)
