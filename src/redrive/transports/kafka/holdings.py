"""Which partitions are ours, and how were they left by whoever had them before?

A partition that is given to us goes on from what was committed last. Where nobody can tell that yet, because a
transaction of a member that was killed is still open, it is asked again when the first records come. A partition that
we lost and got back before anybody else had it goes on from what we know ourselves.

The rule: a partition that is gone is not `alive` before anybody else can have it. Whoever reads or changes partitions
from two threads holds the lock.
"""

import contextlib
import threading
from collections.abc import Sequence
from secrets import token_hex
from typing import Final, TypeAlias

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, TopicPartition

from redrive.transports.kafka import commits
from redrive.transports.kafka.partitions import Partition

Where: TypeAlias = tuple[str, int]
_PATIENCE: Final = 3.0  # seconds that the broker may take to tell what was committed


class Holdings:
    """The partitions of one member."""

    def __init__(self, *, forgives: bool = False) -> None:
        self.lock = threading.Lock()
        self.partitions: dict[Where, Partition] = {}
        self.owner: Final = token_hex(3)  # our name in notes
        self._forgives = forgives
        self._former: dict[Where, Partition] = {}  # lost, and perhaps ours again before anybody else had them
        self._unread: set[Where] = set()  # ours, but the broker has not told yet what was committed

    def of(self, topic: str) -> list[Partition]:
        """Those of a topic; to be asked for under the lock."""
        return [partition for partition in self.partitions.values() if partition.topic == topic]

    # --- they come -----------------------------------------------------------------------------------------------

    def assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """These are ours from now on."""
        known = _committed(consumer, places)
        begin: list[TopicPartition] = []
        with self.lock:
            for place in places:
                where = (place.topic, place.partition)
                if where in known:
                    partition = self._begun(where, known[where])
                else:
                    partition = Partition(*where, None, forgives=self._forgives)
                    self._unread.add(where)
                self.partitions[where] = partition
                mark = partition.mark
                begin.append(TopicPartition(*where, OFFSET_STORED if mark is None else mark))
        consumer.incremental_assign(begin)
        consumer.resume(begin)  # librdkafka remembers that a partition was paused when it was ours before

    def is_unread(self, where: Where) -> bool:
        """Whether it is not known what was committed: nothing of it may be handed out yet."""
        return where in self._unread

    def read(self, consumer: Consumer, where: Where, first: int) -> None:
        """Records have come, so that what was committed can be told by now. Ask, and let them come again."""
        place = _committed(consumer, [TopicPartition(*where)]).get(where)
        if place is not None:
            partition = self._begun(where, place)
            with self.lock:
                self.partitions[where] = partition
            self._unread.discard(where)
            first = first if partition.mark is None else partition.mark
        consumer.seek(TopicPartition(*where, first))

    def _begun(self, where: Where, place: TopicPartition) -> Partition:
        """A partition as it was left: by whoever had it, or by ourselves if nobody had it since."""
        former = self._former.pop(where, None)
        if place.offset < 0:
            return Partition(*where, None, forgives=self._forgives)
        note = commits.read(place.metadata)
        if former is not None and note.owner == self.owner:
            mark = former.exact(counting=True)
            if mark is not None:
                partition = Partition(*where, mark.offset, mark.runs)  # here nothing is in doubt
                partition.is_changed = True  # we know more than was committed
                return partition
        return Partition(*where, place.offset, note.runs, forgives=self._forgives)

    # --- and go --------------------------------------------------------------------------------------------------

    def take_away(self, places: Sequence[TopicPartition]) -> list[Partition]:
        """These are ours no longer; those of them that were."""
        gone: list[Partition] = []
        with self.lock:
            for place in places:
                where = (place.topic, place.partition)
                partition = self.partitions.pop(where, None)
                self._unread.discard(where)
                if partition is not None:
                    partition.alive = False
                    gone.append(partition)
        return gone

    def take_all_away(self) -> list[Partition]:
        """None is ours any longer."""
        return self.take_away([TopicPartition(*where) for where in list(self.partitions)])

    def may_return(self, gone: Sequence[Partition]) -> None:
        """Nothing could be committed for these, and perhaps nobody else gets them: keep what we know of them."""
        for partition in gone:
            self._former[partition.topic, partition.number] = partition


def _committed(consumer: Consumer, places: list[TopicPartition]) -> dict[Where, TopicPartition]:
    """What was committed for them, as far as it can be told: not while a transaction over it is open."""
    with contextlib.suppress(KafkaException):
        found = consumer.committed(places, timeout=_PATIENCE)
        return {(place.topic, place.partition): place for place in found if place.error is None}
    return {}
