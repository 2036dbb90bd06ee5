"""Release and dead-letter deliveries without losing them.

A copy is durable before the record that it was made from is settled. A delivery whose copy could not be made durable
stays unsettled, and its outcome gives the reason.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from redrive.errors import BrokerUnreachableError, FormatError, PublishError, RedriveError
from redrive.transports.base import Death, Outcomes, Source
from redrive.transports.kafka.copies import Writer
from redrive.transports.kafka.delivery import KafkaDelivery
from redrive.transports.kafka.faults import TooLargeError
from redrive.transports.kafka.headers import Outgoing
from redrive.transports.kafka.journey import Journey
from redrive.transports.kafka.names import retry_topic, step_for
from redrive.transports.kafka.publisher import Publisher
from redrive.transports.kafka.transactions import Transactions
from redrive.transports.kafka.url import BrokerUrl

if TYPE_CHECKING:
    from redrive.transports.kafka.receiver import KafkaReceiver

_CANCELLED: Final = "dead-lettering was cancelled; the record stays in its topic"


def too_late() -> RedriveError:
    """The error of a delivery whose partition was lost."""
    return BrokerUnreachableError(
        "the partition was assigned to another consumer; the record will be delivered again"
    )


class Settler:
    """Settles the deliveries of one source."""

    def __init__(
        self,
        source: Source,
        url: BrokerUrl,
        writer: Writer,
        publisher: Publisher,
        transactions: Transactions | None,
    ) -> None:
        self._source = source
        self._url = url
        self._writer = writer
        self._publisher = publisher
        self._transactions = transactions

    # --- release ---------------------------------------------------------------------------------------------------

    def topic_for(self, wait: timedelta) -> str | None:
        """The retry topic that delays a record by `wait`; None where it waits in memory."""
        step = step_for(wait) if self._url.retry == "topics" else None
        return None if step is None else retry_topic(self._source, step)

    async def send_to_wait(
        self, receiver: "KafkaReceiver", waits: Sequence[tuple[KafkaDelivery, Journey, str]]
    ) -> list[bool]:
        """Copy deliveries to retry topics and settle those whose copy is durable; return which of them are."""
        for delivery, _, _ in waits:
            delivery.settled = True  # so that no other caller settles it meanwhile
        copies = [self._writer.copy(*wait) for wait in waits]
        durable = [False] * len(waits)
        try:
            durable = [answer is None for answer in await self._publisher.publish(copies)]
        finally:
            for (delivery, _, _), done in zip(waits, durable, strict=True):
                if done:
                    receiver.settled(delivery)
                else:
                    delivery.settled = False
        return durable

    # --- dead-letter -----------------------------------------------------------------------------------------------

    async def dead_letter(self, receiver: "KafkaReceiver", deaths: Sequence[Death]) -> Outcomes:
        """Publish the dead letters in one batch, and settle the deliveries whose letter is durable."""
        outcomes: list[RedriveError | None] = [None] * len(deaths)
        going: dict[int, Death] = {}
        for index, death in enumerate(deaths):
            delivery = cast("KafkaDelivery", death.delivery)
            if delivery.settled:
                continue
            if delivery.alive:
                delivery.settled = True  # so that no other caller settles it meanwhile
                going[index] = death
                outcomes[index] = PublishError(_CANCELLED)
            else:
                outcomes[index] = too_late()
        try:
            await self._bury(receiver, going, outcomes)
        finally:
            for index, death in going.items():
                delivery = cast("KafkaDelivery", death.delivery)
                if outcomes[index] is None:
                    receiver.settled(delivery)
                else:
                    delivery.settled = False
        return outcomes

    async def _bury(
        self, receiver: "KafkaReceiver", going: dict[int, Death], outcomes: list[RedriveError | None]
    ) -> None:
        """Write the letters; those that are too large for their topic are written again with less content."""
        left = dict(going)
        for level in self._writer.levels:
            letters: dict[int, Outgoing] = {}
            for index, death in left.items():
                try:
                    letters[index] = self._writer.dead_letter(
                        cast("KafkaDelivery", death.delivery), death.letter, level
                    )
                except FormatError as error:
                    outcomes[index] = PublishError(str(error))
            deliveries = [cast("KafkaDelivery", going[index].delivery) for index in letters]
            answers = await self._publish(receiver, list(letters.values()), deliveries)
            for index, answer in zip(letters, answers, strict=True):
                outcomes[index] = answer
            left = {
                index: death for index, death in left.items() if isinstance(outcomes[index], TooLargeError)
            }
            if not left:
                return

    async def _publish(
        self, receiver: "KafkaReceiver", letters: Sequence[Outgoing], deliveries: Sequence[KafkaDelivery]
    ) -> Sequence[RedriveError | None]:
        if self._transactions is None:
            return await self._publisher.publish(letters)
        return await self._transactions.write(receiver.intake.ledger, letters, deliveries)

    async def close(self) -> None:
        """Wait for the transaction that is running."""
        if self._transactions is not None:
            await self._transactions.close()
