"""Which failures of a transaction are failures of one letter, and which of the whole batch."""

import logging
from collections.abc import Callable
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Message as Record

from redrive.errors import RedriveError
from redrive.transports.kafka import transactions
from redrive.transports.kafka.delivery import KafkaDelivery, Place
from redrive.transports.kafka.faults import TooLargeError
from redrive.transports.kafka.headers import Outgoing
from redrive.transports.kafka.holdings import Holdings
from redrive.transports.kafka.ledger import Ledger
from redrive.transports.kafka.partitions import Partition
from redrive.transports.kafka.transactions import Transactions
from redrive.transports.kafka.url import parse_url

LETTERS: Final = 50
LARGE: Final = b"large"
LATE: Final = KafkaError(KafkaError._TIMED_OUT, "no coordinator", retriable=True)
FENCED: Final = KafkaError(KafkaError._FENCED, "fenced", fatal=True)
STALE: Final = KafkaError(KafkaError.ILLEGAL_GENERATION, "rebalanced", txn_requires_abort=True)
TOO_LARGE: Final = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
NONE: Final = KafkaError(KafkaError.NO_ERROR)
PURGED: Final = KafkaError(KafkaError._PURGE_QUEUE)


class Broker:
    """A cluster of which each step of a transaction can fail."""

    def __init__(self) -> None:
        self.failing: dict[
            str, list[KafkaError]
        ] = {}  # step → errors of its calls, the last one from then on
        self.calls: list[str] = []
        self.attempts: list[int] = []  # letters of each transaction that was begun
        self.committed: list[bytes] = []
        self.on_flush: Callable[[], None] = lambda: None

    def fail(self, step: str, *errors: KafkaError) -> None:
        self.failing[step] = list(errors)

    def step(self, name: str) -> KafkaError | None:
        self.calls.append(name)
        errors = self.failing.get(name)
        if not errors:
            return None
        return errors[0] if len(errors) == 1 else errors.pop(0)

    def producer(self, _settings: object, logger: object) -> "FakeProducer":
        return FakeProducer(self)


class FakeProducer:
    """A producer of `Broker`, which refuses letters whose value is `LARGE`, and purges the others of the batch."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queue: list[tuple[bytes, Callable[[KafkaError | None, Record | None], None]]] = []

    def _step(self, name: str) -> None:
        error = self._broker.step(name)
        if error is not None and error.code() != KafkaError.NO_ERROR:
            raise KafkaException(error)

    def init_transactions(self, _timeout: float) -> None:
        self._step("init")

    def begin_transaction(self) -> None:
        self._queue.clear()
        self._broker.attempts.append(0)
        self._step("begin")

    def produce(self, _topic: str, value: bytes, _key: object, *, headers: object, on_delivery: Any) -> None:
        self._broker.attempts[-1] += 1
        self._step("produce")
        self._queue.append((value, on_delivery))

    def poll(self, _timeout: float) -> int:
        return 0

    def flush(self, _timeout: float) -> int:
        self._broker.on_flush()
        error = self._broker.step("flush")
        is_refused = any(value == LARGE for value, _ in self._queue)
        for value, report in self._queue:
            report(error or ((TOO_LARGE if value == LARGE else PURGED) if is_refused else None), None)
        return 0

    def send_offsets_to_transaction(self, _offsets: object, _metadata: object, _timeout: float) -> None:
        self._step("offsets")

    def commit_transaction(self, _timeout: float) -> None:
        self._step("commit")
        self._broker.committed += [value for value, _ in self._queue]

    def abort_transaction(self, _timeout: float) -> None:
        self._step("abort")


class World:
    """Transactions of a member that has two partitions."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        url = parse_url("kafka://127.0.0.1:1/?publish_timeout=100ms")
        self._transactions = Transactions(url, "shop", logging.getLogger("test"))
        self.holdings = Holdings()
        self.partitions = [Partition("orders", number, 0) for number in range(2)]
        for partition in self.partitions:
            partition.take(range(LETTERS))
            self.holdings.partitions[partition.topic, partition.number] = partition
        consumer: Any = None  # it is not asked
        self._ledger = Ledger(consumer, self.holdings, "shop", lambda _what, _error: None, transactions=True)

    async def write(self, *values: bytes) -> list[RedriveError | None]:
        """Dead letters with these values, of records of both partitions in turn."""
        place = Place("orders", "shop", "kafka://127.0.0.1:1")
        letters = [Outgoing("orders.dlq", None, value, []) for value in values]
        deliveries = [
            KafkaDelivery(Record(value=b"x"), self.partitions[index % 2], place, index // 2, 1, b"x")
            for index in range(len(values))
        ]
        return list(await self._transactions.write(self._ledger, letters, deliveries))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    broker = Broker()
    monkeypatch.setattr(transactions, "Producer", broker.producer)
    return World(broker)


VALUES: Final = [b"%d" % number for number in range(LETTERS)]


@pytest.mark.parametrize(
    ("step", "error", "begun"),
    [
        ("init", LATE, 0),
        ("begin", FENCED, 1),
        ("produce", KafkaError(KafkaError._STATE), 1),
        ("flush", KafkaError(KafkaError._MSG_TIMED_OUT), 1),
        ("flush", KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION), 1),
        ("offsets", LATE, 1),
        ("offsets", STALE, 1),
        ("commit", FENCED, 1),
        ("commit", LATE, 1),
    ],
)
async def test_failure_of_a_transaction_is_one_failure_of_its_batch(
    world: World, step: str, error: KafkaError, begun: int
) -> None:
    world.broker.fail(step, error)

    results = await world.write(*VALUES)

    assert len(world.broker.attempts) == begun, "no letter was tried alone"
    assert world.broker.calls.count("init") == 1
    assert all(result is not None and not isinstance(result, TooLargeError) for result in results)
    assert len({str(result) for result in results}) == 1


@pytest.mark.parametrize("step", ["produce", "flush", "offsets"])
async def test_transaction_that_failed_before_its_commit_is_aborted(world: World, step: str) -> None:
    world.broker.fail(step, KafkaError(KafkaError._TIMED_OUT, retriable=True))
    await world.write(*VALUES)
    assert world.broker.calls.count("abort") == 1


async def test_next_batch_is_written_after_a_failure(world: World) -> None:
    world.broker.fail("init", LATE, NONE)
    assert all(await world.write(*VALUES))
    assert not any(await world.write(*VALUES))
    assert world.broker.committed == VALUES


async def test_refused_letters_are_tried_alone_and_the_others_as_one_batch(world: World) -> None:
    values = [*VALUES[:20], LARGE, *VALUES[20:40], LARGE, *VALUES[40:48]]

    results = await world.write(*values)

    assert [isinstance(result, TooLargeError) for result in results] == [value == LARGE for value in values]
    assert [result for result in results if not isinstance(result, TooLargeError)] == [None] * 48
    assert world.broker.attempts == [50, 48, 1, 1]
    assert sorted(world.broker.committed) == sorted(VALUES[:48])


async def test_refused_letters_are_not_tried_alone_once_the_transaction_itself_fails(world: World) -> None:
    # Each refusal ends a producer; the third one finds no coordinator.
    world.broker.fail("init", NONE, NONE, LATE)

    results = await world.write(*[LARGE] * 30, *VALUES[:20])

    assert world.broker.attempts == [50, 20, 1]
    assert results[30:] == [None] * 20
    assert isinstance(results[0], TooLargeError)
    assert all("in time" in str(result) for result in results[1:30])


async def test_commit_whose_answer_is_late_is_repeated(world: World) -> None:
    world.broker.fail("commit", LATE, LATE, NONE)
    assert not any(await world.write(*VALUES))
    assert world.broker.attempts == [LETTERS]
    assert world.broker.committed == VALUES


async def test_letters_of_lost_partitions_fail_and_the_others_are_written_as_one_batch(world: World) -> None:
    lost = world.partitions[1]

    def rebalance() -> None:
        world.holdings.partitions.pop((lost.topic, lost.number), None)
        lost.alive = False

    world.broker.on_flush = rebalance

    results = await world.write(*VALUES)

    assert world.broker.attempts == [50, 25]
    assert results[::2] == [None] * 25
    assert all("another member" in str(result) for result in results[1::2])
    assert world.broker.committed == VALUES[::2]
