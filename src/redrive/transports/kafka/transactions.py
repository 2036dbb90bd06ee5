"""How are a dead letter and the offset of its record written as one?

A transaction holds both: either the dead letter is there and its record is done, or neither is. So a crash between
the two leaves no second dead letter. The price is a round trip or two for each batch, and consumers of dead letters
have to read committed records only, as librdkafka's do.

The rules: one transaction at a time, and no other commit of the same member meanwhile; one record that is refused
does not take the others with it, and is written without a transaction. It runs beside the loop, in a thread for each.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message as Record, Producer

from redrive.errors import PublishError, RedriveError
from redrive.transports.kafka.delivery import KafkaDelivery
from redrive.transports.kafka.faults import error_of, not_durable
from redrive.transports.kafka.headers import Outgoing
from redrive.transports.kafka.ledger import Ledger
from redrive.transports.kafka.url import BrokerUrl

_UNDONE: Final = "a record was refused, and the transaction undone"
_NOT_OURS: Final = "the partition of the record was given to another member meanwhile"


class RefusedError(PublishError):
    """A record was refused, and the transaction with it; librdkafka does not say which, nor why."""


class Transactions:
    """Writes dead letters together with offsets."""

    def __init__(self, url: BrokerUrl, group: str, log: logging.Logger) -> None:
        self._url = url
        self._group = group
        self._log = log
        self._timeout = url.publish_timeout.total_seconds()
        self._producer: Producer | None = None
        self._one = asyncio.Lock()

    async def write(
        self, ledger: Ledger, letters: Sequence[Outgoing], deliveries: Sequence[KafkaDelivery]
    ) -> Sequence[RedriveError | None]:
        """One answer for each letter; None: it is there, and its record is done."""
        if not letters:
            return []
        async with self._one:
            answers = await self._written(ledger, letters, deliveries)
            if len(letters) > 1 and any(answers):
                # One of them was refused, or its partition is gone: the others are innocent.
                for at, (letter, delivery) in enumerate(zip(letters, deliveries, strict=True)):
                    [answers[at]] = await self._written(ledger, [letter], [delivery])
        return answers

    async def _written(
        self, ledger: Ledger, letters: Sequence[Outgoing], deliveries: Sequence[KafkaDelivery]
    ) -> list[RedriveError | None]:
        with ledger.held() as metadata:
            return await asyncio.to_thread(self._write, ledger, metadata, letters, deliveries)

    def _write(
        self, ledger: Ledger, metadata: Any, letters: Sequence[Outgoing], deliveries: Sequence[KafkaDelivery]
    ) -> list[RedriveError | None]:
        answers: list[RedriveError | None] = [None] * len(letters)
        try:
            producer = self._begun()
            for at, letter in enumerate(letters):
                producer.produce(
                    letter.topic,
                    letter.value,
                    letter.key,
                    headers=letter.headers,  # type: ignore[arg-type]  # null is a value too, which the stub forgets
                    on_delivery=partial(_answered, answers, at, letter.topic),
                )
            producer.flush(self._timeout)
            if any(answers):
                self._producer = None  # the next one begins without its past
                producer.abort_transaction(self._timeout)
                return [RefusedError(_UNDONE)] * len(letters)
            offsets = ledger.if_settled(deliveries)
            if offsets is None:  # whoever has the partition now gets the record, and writes its dead letter
                producer.abort_transaction(self._timeout)
                return [PublishError(_NOT_OURS)] * len(letters)
            producer.send_offsets_to_transaction(offsets, metadata, self._timeout)
            producer.commit_transaction(self._timeout)
        except (KafkaException, BufferError) as exception:
            return [self._undone(exception, letters[0].topic)] * len(letters)
        return answers

    def _begun(self) -> Producer:
        producer = self._producer
        if producer is None:
            settings = self._url.producer() | {"transactional.id": f"redrive.{self._group}.{token_hex(6)}"}
            settings["transaction.timeout.ms"] = max(1_000, int(self._timeout * 1000))
            producer = Producer(settings, logger=self._log)
            producer.init_transactions(self._timeout)
            self._producer = producer
        producer.begin_transaction()
        return producer

    def _undone(self, exception: Exception, topic: str) -> PublishError:
        """Take it back. A producer that cannot even do that is of no more use."""
        error = (
            error_of(exception)
            if isinstance(exception, KafkaException)
            else KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001
        )
        producer, self._producer = self._producer, None
        if producer is not None and error.txn_requires_abort():
            try:
                producer.abort_transaction(self._timeout)
                self._producer = producer
            except KafkaException:
                self._log.warning("transaction abort failed, producer replaced")
        return not_durable(error, topic)

    async def close(self) -> None:
        """Wait for what is under way."""
        async with self._one:
            self._producer = None


def _answered(
    answers: list[RedriveError | None],
    at: int,
    topic: str,
    error: KafkaError | None,
    _record: Record | None = None,
) -> None:
    if error is not None:
        answers[at] = not_durable(error, topic)
