"""How is a batch of records made durable, and how does one know?

An idempotent producer sends them; each is durable when all replicas in sync have it. librdkafka tells so in a thread
of ours, and when it has told of all, the one who waits is woken once. The rules: one answer for each record, in
order; a topic that does not exist is not made by writing to it. It does not know what the records are.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message as Record, Producer

from redrive.errors import PublishError, RedriveError, TransportClosedError, TransportError
from redrive.transports.kafka.faults import TooLargeError, error_of, not_durable
from redrive.transports.kafka.headers import Outgoing
from redrive.transports.kafka.topics import Topics
from redrive.transports.kafka.url import BrokerUrl

_TICK: Final = 0.2  # seconds after which the thread looks whether it is still wanted
_FULL: Final = 0.01  # seconds to wait when librdkafka's queue is full
_SPARE: Final = 5.0  # seconds beyond the time-out of librdkafka, which answers as a rule


class _Batch:
    """The records of one call, and what became of them. Answers come in the publisher's thread."""

    __slots__ = ("_left", "_loop", "_reason", "done", "outcomes", "topics")

    def __init__(self, records: Sequence[Outgoing], reason: Callable[[KafkaError], KafkaError]) -> None:
        self._reason = reason  # what is behind an error
        self._loop = asyncio.get_running_loop()
        self._left = len(records)
        self.topics = [record.topic for record in records]
        self.outcomes: list[RedriveError | None] = [_UNKNOWN] * len(records)
        self.done: asyncio.Future[None] = self._loop.create_future()

    def answered(self, index: int, error: KafkaError | None, _record: Record | None = None) -> None:
        self.settle(index, None if error is None else not_durable(self._reason(error), self.topics[index]))

    def settle(self, index: int, error: RedriveError | None) -> None:
        if self.outcomes[index] is not _UNKNOWN:
            return
        self.outcomes[index] = error
        self._left -= 1
        if not self._left:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


_PURGED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # noqa: SLF001
_UNKNOWN: Final = PublishError("the broker did not answer in time; the record may be written twice")


class Publisher:
    """Sends records, over a producer that is replaced when it has failed for good."""

    def __init__(self, url: BrokerUrl, topics: Topics, log: logging.Logger) -> None:
        self._url = url
        self._topics = topics
        self._log = log
        self._past: KafkaError | None = None  # what the producer before this one has failed of
        self._producer = self._made()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="redrive-kafka-publisher", daemon=True)
        self._thread.start()

    def _made(self) -> Producer:
        return Producer(self._url.producer(), logger=self._log)

    def _reason(self, error: KafkaError) -> KafkaError:
        return self._past if error.code() in _PURGED and self._past is not None else error

    async def publish(self, records: Sequence[Outgoing]) -> list[RedriveError | None]:
        """Send them; one answer for each, in order."""
        if self._ending.is_set():
            raise TransportClosedError("the transport was closed")
        if not records:
            return []
        outcomes = await self._sent(records)
        if len(records) > 1:
            await self._singly(records, outcomes)
        return outcomes

    async def _sent(self, records: Sequence[Outgoing]) -> list[RedriveError | None]:
        batch = _Batch(records, self._reason)
        seconds = self._url.publish_timeout.total_seconds()
        missing = await self._missing({record.topic for record in records})
        try:
            async with asyncio.timeout(seconds + _SPARE):
                for index, record in enumerate(records):
                    if (error := missing.get(record.topic)) is not None:
                        batch.settle(index, error)
                    else:
                        await self._send(record, batch, index)
                await batch.done
        except TimeoutError:
            pass  # those that are still unknown say so
        return list(batch.outcomes)

    async def _singly(self, records: Sequence[Outgoing], outcomes: list[RedriveError | None]) -> None:
        """Send those again that were too large, each by itself: a topic's limit is for all that comes at once."""
        refused = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, TooLargeError)]
        if not refused:
            return
        batch = _Batch([records[at] for at in refused], self._reason)
        producer = Producer({**self._url.producer(), "batch.num.messages": 1}, logger=self._log)
        for index, at in enumerate(refused):
            await self._send(records[at], batch, index, producer)
        await asyncio.to_thread(producer.flush, self._url.publish_timeout.total_seconds())
        for at, outcome in zip(refused, batch.outcomes, strict=True):
            outcomes[at] = outcome

    async def _missing(self, topics: set[str]) -> dict[str, RedriveError]:
        """Those of the topics that cannot be written to, and why."""
        found: dict[str, RedriveError] = {}
        for topic in topics:
            try:
                await self._topics.partitions(topic)
            except TransportError as error:
                found[topic] = PublishError(str(error))
        return found

    async def _send(
        self, record: Outgoing, batch: _Batch, index: int, producer: Producer | None = None
    ) -> None:
        place: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
        for _ in range(10_000):  # of 10 ms: the time-out around it ends it sooner
            try:
                (producer or self._producer).produce(
                    record.topic,
                    record.value,
                    record.key,
                    headers=record.headers,  # type: ignore[arg-type]  # null is a value too, which the stub forgets
                    on_delivery=partial(batch.answered, index),
                    **place,
                )
            except BufferError:
                await asyncio.sleep(_FULL)
            except KafkaException as exception:
                batch.answered(index, error_of(exception))
                return
            else:
                return

    def _listen(self) -> None:
        while not self._ending.is_set():
            try:
                self._producer.poll(_TICK)
            except KafkaException as exception:  # it has failed for good, and is of no more use
                self._past = error_of(exception)
                failed, self._producer = self._producer, self._made()
                with contextlib.suppress(KafkaException):
                    failed.purge()
                    failed.flush(1)  # answers for what it has left

    async def close(self) -> None:
        """Take no more; what is under way may take a moment to end."""
        if not self._ending.is_set():
            self._ending.set()
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._thread.join()
        with contextlib.suppress(KafkaException):
            self._producer.flush(1)
            self._producer.purge()
            self._producer.flush(0)
