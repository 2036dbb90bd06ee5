"""The child of test_transaction_killed: a consumer that stands still in the middle of a transaction.

`python transaction_child.py URL TOPIC DEAD_LETTERS STAGE`. It takes three records, gives up the first two as one
transaction, says `here` when it has come to the stage, and then waits to be killed:

    written     the dead letters are with the broker, the offsets are not
    offered     so are the offsets; nothing is committed
    committed   the transaction is committed, and nobody here has heard of it
"""

import asyncio
import os
import sys
from typing import Any

from confluent_kafka import Producer

from redrive.clock import SystemClock
from redrive.testing.transport_suite.ground import death_of
from redrive.transports import Delivery, Source
from redrive.transports.kafka import KafkaTransport, transactions

STAGE = sys.argv[4]


def here(stage: str) -> None:
    """Stand still, if this is the stage."""
    if stage == STAGE:
        os.write(1, b"here\n")
        sys.stdin.readline()


class Stopping(Producer):
    """A producer that stands still at a stage of its transaction."""

    def send_offsets_to_transaction(self, *args: Any) -> None:
        here("written")
        super().send_offsets_to_transaction(*args)

    def commit_transaction(self, *args: Any) -> None:
        here("offered")
        super().commit_transaction(*args)
        here("committed")


async def main(url: str, topic: str, dead_letters: str) -> None:
    transactions.Producer = Stopping  # type: ignore[attr-defined]  # the one difference to a consumer that is not to be killed
    async with KafkaTransport(url, SystemClock()) as transport:
        receiver = await transport.receiver(Source(name=topic, dead_letter_queue=dead_letters))
        out: list[Delivery] = []
        while len(out) < 3:
            out += await receiver.receive()
        await receiver.dead_letter([death_of(each) for each in out[:2]])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))
