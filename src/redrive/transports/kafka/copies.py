"""Which record is the dead letter of a delivery?

The record as it was, with its key, its value and its own headers, and beside them everything there is to tell
(`formats.own`); or, on demand, the payload and headers of ONEX (`formats.onex`). The rule: nothing that we add
may be why a record cannot be kept. One that is too large for its topic is written again with less: first the long
texts go, then the value, in whose stead the dead letter says where it lies.
"""

from enum import Enum
from typing import Final
from uuid import uuid4

from redrive.clock import Clock
from redrive.formats import onex, own
from redrive.formats.onex import OnexSender
from redrive.letters import DeadLetter, Headers
from redrive.transports.base import Source
from redrive.transports.kafka.delivery import KafkaDelivery
from redrive.transports.kafka.headers import PROPERTY, Outgoing, Pair, outgoing, pairs_from, properties_of
from redrive.transports.kafka.journey import WAY, Journey, pairs_for
from redrive.transports.kafka.references import reference_to
from redrive.transports.kafka.url import BrokerUrl

_SHORTENED: Final = {"redrive-description": slice(0, 256), "redrive-stack": slice(-256, None)}


class Level(Enum):
    """How much of a dead letter is written."""

    WHOLE = 1
    SHORT = 2  # with the long texts cut
    REFERENCE = 3  # and without the value


class Writer:
    """Makes the dead letters of one source."""

    def __init__(self, source: Source, group: str, url: BrokerUrl, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._onex = (
            OnexSender(environment=url.environment, group=group, max_retries=source.max_deliveries)
            if url.dead_letter_format == "onex"
            else None
        )
        # ONEX has no word for a value that lies elsewhere: what is too large for it is told our way.
        self.levels: Final = tuple(Level)

    def dead_letter(self, delivery: KafkaDelivery, letter: DeadLetter, level: Level) -> Outgoing:
        """The record to write."""
        if self._onex is not None and level is Level.WHOLE:
            return self._in_onex(self._onex, letter)
        told = own.write(letter, delivery.delivery_count)
        if level is not Level.WHOLE:
            told = _shortened(told)
        if letter.message is delivery.message:
            pairs = _own_pairs(delivery)
            key, value = delivery.record.key(), delivery.body
        else:
            sent = outgoing(letter.message, self._source.dlq)
            pairs, key, value = sent.headers, sent.key, sent.value
        pairs = pairs_from(own.strip(Headers(pairs))) + pairs_from(told)
        if level is Level.REFERENCE:
            pairs += reference_to(delivery.partition.topic, delivery.partition.number, delivery.offset)
            value = None
        return Outgoing(self._source.dlq, key, value, pairs)

    def copy(self, delivery: KafkaDelivery, journey: Journey, topic: str) -> Outgoing:
        """The copy of a delivery that waits in another topic, and tells where it came from."""
        pairs = [pair for pair in delivery.pairs if pair[0] not in WAY and not pair[0].startswith(PROPERTY)]
        headers = pairs + properties_of(delivery.message) + pairs_for(journey)
        return Outgoing(topic, delivery.record.key(), delivery.body, headers)

    def _in_onex(self, sender: OnexSender, letter: DeadLetter) -> Outgoing:
        record = onex.write(
            letter.message,
            letter.origin,
            letter.failure,
            sender,
            correlation_id=letter.correlation_id,
            retry_count=letter.retry_count,
            message_id=str(uuid4()),
            now=self._clock.now(),
        )
        return Outgoing(self._source.dlq, letter.message.key, record.value, pairs_from(record.headers))


def _own_pairs(delivery: KafkaDelivery) -> list[Pair]:
    """The headers that it came with, but for those that were added on the way; the time it was sent beside them."""
    pairs = [pair for pair in delivery.pairs if not pair[0].startswith(PROPERTY)]
    return pairs + properties_of(delivery.message)


def _shortened(told: Headers) -> Headers:
    return Headers(
        (name, value[_SHORTENED[name]] if name in _SHORTENED and isinstance(value, str) else value)
        for name, value in told
    )
