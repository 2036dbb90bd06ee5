"""What is there on the broker: topics, their partitions, their ends, and what groups have committed?

Asked of the broker's admin API, and remembered for a moment only, because topics come and go. The rule: to ask for a
topic never makes it. It writes nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from redrive.errors import SourceMissingError, TransportError
from redrive.transports.kafka.faults import error_of, topic_missing, translated
from redrive.transports.kafka.url import BrokerUrl

_REMEMBERED: Final = 1.0  # seconds
_AGAIN: Final = 0.1  # seconds
_ONE_TRY: Final = 3.0  # seconds, at most
_NOT_YET: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
_WITHOUT_MEMBERS: Final = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
Where: TypeAlias = tuple[str, int]  # topic and partition


class Topics:
    """Questions about topics."""

    def __init__(self, url: BrokerUrl, log: logging.Logger) -> None:
        self._url = url
        self._log = log
        self._timeout = url.connect_timeout.total_seconds()
        self._one_try = min(self._timeout, _ONE_TRY)
        self.last_error: KafkaError | None = None
        self.cluster_id: str | None = None  # known once it was reached
        settings: dict[str, Any] = {**url.client(), "error_cb": self._failed}
        self.admin = AdminClient(settings, logger=log)
        self._known: dict[str, tuple[float, tuple[int, ...]]] = {}

    def _failed(self, error: KafkaError) -> None:
        # That all brokers are down follows from what was heard before, and says less.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last_error is None:  # noqa: SLF001
            self.last_error = error

    async def reach(self) -> None:
        """Whether somebody answers; raises what is wrong if not."""
        self.last_error = None
        try:
            found = await asyncio.to_thread(self.admin.list_topics, timeout=self._timeout)
        except KafkaException as exception:
            raise self._why(error_of(exception)) from None
        self.cluster_id = found.cluster_id

    def _why(self, error: KafkaError) -> TransportError:
        self.admin.poll(0)  # tells what it has heard: `_failed` is called here, and nowhere else
        # What the connection died of says more than that there is none.
        if error.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT) and self.last_error is not None:  # noqa: SLF001
            error = self.last_error
        found = translated(error)
        return type(found)(f"{self._url.place}: {found}")

    async def partitions(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic; `SourceMissingError` if there is none of this name."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and now - known[0] < _REMEMBERED:
            return known[1]
        self._known.pop(topic, None)
        found = await self._answer(
            lambda: self.admin.describe_topics(TopicCollection([topic]), request_timeout=self._one_try)[
                topic
            ],
            topic,
        )
        numbers = tuple(sorted(partition.id for partition in found.partitions))
        if not numbers:
            raise topic_missing(topic)
        self._known[topic] = (now, numbers)
        return numbers

    async def existing(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Those of these topics that exist now, with their partitions."""

        async def ask(name: str) -> tuple[int, ...]:
            self.forget(name)
            with contextlib.suppress(SourceMissingError):
                return await self.partitions(name)
            return ()

        asked = list(names)
        found = await asyncio.gather(*map(ask, asked))
        return {name: numbers for name, numbers in zip(asked, found, strict=True) if numbers}

    def forget(self, topic: str) -> None:
        """It may have changed."""
        self._known.pop(topic, None)

    async def ends(self, topic: str, numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one behind its last."""
        first = await self._offsets(topic, numbers, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        last = await self._offsets(topic, numbers, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {number: (first[number], last[number]) for number in numbers}

    async def last_offsets(self, topics: Mapping[str, Sequence[int]]) -> dict[Where, int]:
        """The offset behind the last record of each partition of these topics, open transactions included."""
        found = await asyncio.gather(
            *(self._offsets(topic, numbers, OffsetSpec.latest()) for topic, numbers in topics.items())  # type: ignore[no-untyped-call]
        )
        return {
            (topic, number): offset
            for topic, offsets in zip(topics, found, strict=True)
            for number, offset in offsets.items()
        }

    async def _offsets(self, topic: str, numbers: Sequence[int], spec: OffsetSpec) -> Mapping[int, int]:
        if not numbers:
            return {}
        places = {TopicPartition(topic, number): spec for number in numbers}

        def ask() -> Any:
            answers = self.admin.list_offsets(places, request_timeout=self._one_try)
            return asyncio.gather(*(asyncio.wrap_future(answers[place]) for place in places))

        found = await self._answer(ask, topic)
        return dict(zip(numbers, (int(each.offset) for each in found), strict=True))

    async def committed(self, group: str, topic: str, numbers: Sequence[int]) -> dict[int, TopicPartition]:
        """What a group has committed, with its notes; partitions of which it has not are left out."""
        found = await self.committed_in(group, {topic: numbers})
        return {number: place for (_, number), place in found.items()}

    async def committed_in(
        self, group: str, topics: Mapping[str, Sequence[int]]
    ) -> dict[Where, TopicPartition]:
        """The same for several topics, read at one time."""
        places = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
        loop = asyncio.get_running_loop()
        found = await self._answer(lambda: loop.run_in_executor(None, self._committed, group, places), group)
        return {(place.topic, place.partition): place for place in found if place.offset >= 0}

    async def active_groups(self) -> frozenset[str]:
        """The consumer groups that have members. Groups that this user may not describe are left out."""
        # Not by describing them: librdkafka may abort the process when a connection is lost meanwhile (its issue 4605).
        found = await self._answer(
            lambda: self.admin.list_consumer_groups(request_timeout=self._one_try), "consumer groups"
        )
        if found.errors:
            raise translated(error_of(found.errors[0]))
        return frozenset(group.group_id for group in found.valid if group.state not in _WITHOUT_MEMBERS)

    def _committed(self, group: str, places: list[TopicPartition]) -> list[TopicPartition]:
        # Not by the admin client: librdkafka crashes in it while a coordinator moves (its issue 5040).
        consumer = Consumer({**self._url.consumer(), "group.id": group}, logger=self._log)
        try:
            return consumer.committed(places, timeout=self._one_try)
        except KafkaException:
            # A group that this user may not use has no coordinator, and librdkafka waits for one. The poll says why.
            heard = consumer.poll(0)
            error = None if heard is None else heard.error()
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error) from None
            raise
        finally:
            consumer.close()

    async def _answer(self, ask: Callable[[], Any], topic: str) -> Any:
        """The broker's answer; one that has just begun, or is gone, is asked again for as long as we wait for one."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            try:
                return await asyncio.wrap_future(ask())
            except KafkaException as exception:
                error = error_of(exception)
                is_late = error.code() == KafkaError._TIMED_OUT  # noqa: SLF001
                may_pass = is_late or error.code() in _NOT_YET
                if not may_pass or asyncio.get_running_loop().time() >= deadline:
                    raise translated(error, topic) from None
            if is_late:
                await self._look_around()
            await asyncio.sleep(_AGAIN)

    async def _look_around(self) -> None:
        """The broker that is asked may be gone. librdkafka waits for it, and looks for another only when it is told."""
        with contextlib.suppress(KafkaException):
            await asyncio.to_thread(self.admin.list_topics, timeout=self._one_try)
