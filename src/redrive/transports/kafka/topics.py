"""What is there on the broker: topics, their partitions, their ends, and what groups have committed?

Asked of the broker's admin API, and remembered for a moment only, because topics come and go. The rule: to ask for a
topic never makes it. It writes nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from redrive.errors import SourceMissingError, TransportError
from redrive.transports.kafka.faults import error_of, translated
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


class Topics:
    """Questions about topics."""

    def __init__(self, url: BrokerUrl, log: logging.Logger) -> None:
        self._url = url
        self._log = log
        self._timeout = url.connect_timeout.total_seconds()
        self._one_try = min(self._timeout, _ONE_TRY)
        self.last_error: KafkaError | None = None
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
            await asyncio.to_thread(self.admin.list_topics, timeout=self._timeout)
        except KafkaException as exception:
            raise self._why(error_of(exception)) from None

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
            raise SourceMissingError(f"no topic is called '{topic}'; run redrive provision")
        self._known[topic] = (now, numbers)
        return numbers

    def forget(self, topic: str) -> None:
        """It may have changed."""
        self._known.pop(topic, None)

    async def ends(self, topic: str, numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one behind its last."""
        first = await self._offsets(topic, numbers, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        last = await self._offsets(topic, numbers, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {number: (first[number], last[number]) for number in numbers}

    async def _offsets(self, topic: str, numbers: Sequence[int], spec: OffsetSpec) -> Mapping[int, int]:
        found = await asyncio.gather(
            *(self._offset(TopicPartition(topic, number), spec) for number in numbers)
        )
        return dict(zip(numbers, found, strict=True))

    async def _offset(self, place: TopicPartition, spec: OffsetSpec) -> int:
        def ask() -> Any:
            return self.admin.list_offsets({place: spec}, request_timeout=self._one_try)[place]

        return int((await self._answer(ask, place.topic)).offset)

    async def committed(self, group: str, topic: str, numbers: Sequence[int]) -> dict[int, TopicPartition]:
        """What a group has committed, with its notes; partitions of which it has not are left out."""
        places = [TopicPartition(topic, number) for number in numbers]
        loop = asyncio.get_running_loop()
        found = await self._answer(lambda: loop.run_in_executor(None, self._committed, group, places), topic)
        return {place.partition: place for place in found if place.offset >= 0}

    def _committed(self, group: str, places: list[TopicPartition]) -> list[TopicPartition]:
        # Not by the admin client: librdkafka crashes in it while a coordinator moves (its issue 5040).
        consumer = Consumer({**self._url.consumer(), "group.id": group}, logger=self._log)
        try:
            return consumer.committed(places, timeout=self._timeout)
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
