"""Write dead letters and the offsets of their records in one transaction.

Either the dead letter is durable and the offset of its record is committed, or neither is: a crash between the two
leaves no second dead letter. It costs one or two round trips per batch, and consumers of dead letters must read
committed records only, which librdkafka does by default.

One transaction runs at a time, in a thread, and its member commits nothing else meanwhile. A record that the broker
refuses (too large, invalid) fails the transaction of the others: the refused ones are written again one at a time, the
others together. Every other failure is a failure of the whole batch, and the caller retries the batch: writing its
letters one at a time would wait for the same timeout once per letter.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from secrets import token_hex
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message as Record, Producer

from redrive.errors import PublishError, RedriveError
from redrive.transports.kafka.delivery import KafkaDelivery
from redrive.transports.kafka.faults import RECORD_REFUSALS, error_of, not_durable
from redrive.transports.kafka.headers import Outgoing
from redrive.transports.kafka.ledger import Ledger
from redrive.transports.kafka.url import BrokerUrl

_MAX_ABORT_TIMEOUT: Final = 5.0  # seconds; then the producer is replaced
_MIN_TIMEOUT: Final = 1.0  # seconds for a step, however late it is
_RETRY_DELAY: Final = 0.05  # seconds until a full queue or a late answer is tried again


class _PartitionLostError(PublishError):
    """The partition of a record was assigned to another member, which writes the dead letter."""


class _Result(NamedTuple):
    """The result of one transaction."""

    error: RedriveError | None = None  # None: committed
    refused: frozenset[int] = frozenset()  # indexes of the letters that the broker refused


class Transactions:
    """Writes dead letters together with offsets."""

    def __init__(self, url: BrokerUrl, group: str, log: logging.Logger) -> None:
        self._url = url
        # The same for all producers of this member: a new one ends the transaction that the last one left open.
        self._id = f"redrive.{group}.{token_hex(6)}"
        self._log = log
        self._timeout = url.publish_timeout.total_seconds()
        self._producer: Producer | None = None
        self._one = asyncio.Lock()

    async def write(
        self, ledger: Ledger, letters: Sequence[Outgoing], deliveries: Sequence[KafkaDelivery]
    ) -> Sequence[RedriveError | None]:
        """Return one result per letter; None: it is durable, and the offset of its record is committed."""
        results: list[RedriveError | None] = [None] * len(letters)
        batches = [list(range(len(letters)))]
        async with self._one:
            while batches:
                batch = batches.pop()
                lost = {index for index in batch if not deliveries[index].partition.alive}
                for index in lost:
                    results[index] = _lost()
                batch = [index for index in batch if index not in lost]
                if not batch:
                    continue
                error, refused = await self._written(
                    ledger, [letters[index] for index in batch], [deliveries[index] for index in batch]
                )
                if refused and len(batch) > 1:
                    batches += [[batch[at]] for at in sorted(refused, reverse=True)]
                    batches.append([index for at, index in enumerate(batch) if at not in refused])
                elif isinstance(error, _PartitionLostError) and any(
                    not deliveries[index].partition.alive for index in batch
                ):
                    batches.append(batch)  # without those that are lost
                else:
                    for index in batch:
                        results[index] = error
                    if error is not None and not refused:
                        for index in chain.from_iterable(batches):
                            results[index] = error
                        break
        return results

    async def _written(
        self, ledger: Ledger, letters: Sequence[Outgoing], deliveries: Sequence[KafkaDelivery]
    ) -> _Result:
        with ledger.held() as metadata:
            return await asyncio.to_thread(self._write, ledger, metadata, letters, deliveries)

    def _write(
        self, ledger: Ledger, metadata: Any, letters: Sequence[Outgoing], deliveries: Sequence[KafkaDelivery]
    ) -> _Result:
        deadline = time.monotonic() + self._timeout
        reports: list[KafkaError | None] = [None] * len(letters)
        is_open = False
        try:
            producer = self._connected()
            producer.begin_transaction()
            is_open = True
            self._produce(producer, letters, reports, deadline)
            offsets = ledger.if_settled(deliveries)
            if offsets is None:
                self._abort()
                return _Result(_lost())
            producer.send_offsets_to_transaction(offsets, metadata, _until(deadline))
            is_open = False  # from now on only the broker knows
            self._commit(producer)
        except KafkaException as exception:
            return self._failed(error_of(exception), letters, reports, is_open=is_open)
        return _Result()

    def _connected(self) -> Producer:
        """The producer, which the transaction coordinator knows."""
        producer = self._producer
        if producer is None:
            settings = self._url.producer() | {"transactional.id": self._id}
            settings["transaction.timeout.ms"] = max(1_000, int(self._timeout * 1000))
            producer = Producer(settings, logger=self._log)
            producer.init_transactions(self._timeout)
            self._producer = producer
        return producer

    def _produce(
        self,
        producer: Producer,
        letters: Sequence[Outgoing],
        reports: list[KafkaError | None],
        deadline: float,
    ) -> None:
        """Return when all letters are with the broker; raise the first error otherwise."""
        for index, letter in enumerate(letters):
            self._enqueue(producer, letter, partial(_reported, reports, index), deadline)
        is_late = producer.flush(_until(deadline)) > 0
        if (error := next(filter(None, reports), None)) is not None:
            raise KafkaException(error)
        if is_late:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001

    def _enqueue(
        self, producer: Producer, letter: Outgoing, report: "partial[None]", deadline: float
    ) -> None:
        while True:
            try:
                producer.produce(
                    letter.topic,
                    letter.value,
                    letter.key,
                    headers=letter.headers,  # type: ignore[arg-type]  # null is a value too, which the stub forgets
                    on_delivery=report,
                )
            except BufferError:
                if time.monotonic() >= deadline:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from None  # noqa: SLF001
                producer.poll(_RETRY_DELAY)
            except KafkaException as exception:
                report(error_of(exception))
                raise
            else:
                return

    def _commit(self, producer: Producer) -> None:
        """Commit. A late answer is asked for again, because a transaction of unknown result may be written twice."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                producer.commit_transaction(_until(deadline))
            except KafkaException as exception:
                if not error_of(exception).retriable() or time.monotonic() >= deadline:
                    raise
                producer.poll(_RETRY_DELAY)
            else:
                return

    def _failed(
        self,
        error: KafkaError,
        letters: Sequence[Outgoing],
        reports: Sequence[KafkaError | None],
        *,
        is_open: bool,
    ) -> _Result:
        """Abort the transaction if it is open, and say what failed it."""
        if is_open or error.txn_requires_abort():
            self._abort()
        if any(reports) or not is_open:
            self._producer = None  # the next transaction starts with a new one
        refused = {
            index: report
            for index, report in enumerate(reports)
            if report is not None and report.code() in RECORD_REFUSALS
        }
        reason = next(iter(refused.values()), error)
        return _Result(not_durable(reason, letters[0].topic), frozenset(refused))

    def _abort(self) -> None:
        """Abort the open transaction. A producer that cannot is replaced."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.abort_transaction(min(self._timeout, _MAX_ABORT_TIMEOUT))
            self._producer = producer
        except KafkaException as exception:
            self._log.warning(
                "transaction abort failed, producer replaced reason=%s", error_of(exception).str()
            )

    async def close(self) -> None:
        """Wait for the transaction that is running."""
        async with self._one:
            self._producer = None


def _lost() -> PublishError:
    return _PartitionLostError("the partition of the record was assigned to another member")


def _until(deadline: float) -> float:
    return max(_MIN_TIMEOUT, deadline - time.monotonic())


def _reported(
    reports: list[KafkaError | None], index: int, error: KafkaError | None, _record: Record | None = None
) -> None:
    if error is not None:
        reports[index] = error
