"""The store is healthy when its last write succeeded and is not old; a missing queue is its collector's problem."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from redrive.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    PublishError,
    RedriveError,
    SourceConflictError,
    SourceMissingError,
    StoreDamagedError,
    StoreFullError,
    StoreUnreachableError,
    TransportClosedError,
    TransportError,
)
from redrive.letters.report import LIFETIME, PublishReport
from redrive.serve.checks import DOCUMENT, BrokerCheck, StoreCheck
from redrive.serve.connection import BrokerConnection, LateStore
from redrive.serve.consumer_reports import ConsumerReports
from redrive.serve.prerequisite import DependentService, Prerequisite
from redrive.serve.watched import Watched
from redrive.settings import StoreOptions
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock
from redrive.transports.base import Source
from redrive.transports.memory import MemoryTransport

SECOND = timedelta(seconds=1)


class FailingStore(MemoryStore):
    """Answers every question, and writes only while it has room."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.is_full = False

    async def remember(self, name: str, body: bytes, *, version: int) -> bool:
        if self.is_full:
            raise StoreFullError("the disk is full")
        return await super().remember(name, body, version=version)


def store_check(store: Store, clock: ManualClock) -> StoreCheck:
    return StoreCheck(store, clock, server="host/1", interval=10 * SECOND, max_age=30 * SECOND)


def problem(check: StoreCheck) -> str | None:
    """Its problem now, which may be another one a moment later."""
    return check.problem


async def until(clock: ManualClock, holds: Callable[[], bool], step: timedelta = SECOND) -> None:
    """Let time pass until it holds."""
    for _ in range(200):
        for _ in range(20):
            await asyncio.sleep(0)
        if holds():
            return
        clock.advance(step)
    pytest.fail("it never held")


async def test_store_that_can_be_read_but_not_written_is_failing() -> None:
    clock = ManualClock()
    store = FailingStore(clock)
    check = store_check(store, clock)
    await check.check()
    assert problem(check) is None
    store.is_full = True
    await check.check()
    assert problem(check) == "StoreFullError: the disk is full"
    store.is_full = False
    await check.check()
    assert problem(check) is None
    assert (await store.recall(DOCUMENT)).version == 2


async def test_store_is_failing_when_the_last_success_is_too_old() -> None:
    clock = ManualClock()
    check = store_check(MemoryStore(clock), clock)
    await check.check()
    clock.advance(30 * SECOND)
    assert problem(check) is None
    clock.advance(SECOND)
    assert problem(check) == "the last successful write was 31 s ago (limit 30 s)"


async def test_store_is_written_every_interval_and_at_once_when_a_collector_fails() -> None:
    clock, stop = ManualClock(), asyncio.Event()
    store = FailingStore(clock)
    check = store_check(store, clock)
    running = asyncio.create_task(check.run(stop))
    await until(clock, lambda: store._memos[DOCUMENT].version == 3 if DOCUMENT in store._memos else False)
    # When a collector cannot write, then that counts at once, whatever the small write says
    check.wrote("shop/orders.dlq", StoreFullError("no room for 1 MB"))
    assert problem(check) == "StoreFullError: no room for 1 MB"
    failing = check.failing("shop/orders.dlq")
    assert failing is not None
    assert failing.cause == "store"
    await until(clock, lambda: store._memos[DOCUMENT].version == 4, timedelta(0))
    assert problem(check) == "StoreFullError: no room for 1 MB"
    # And until it can
    check.wrote("shop/orders.dlq", None)
    assert problem(check) is None
    stop.set()
    await running


async def test_error_of_one_letter_is_not_a_failing_store() -> None:
    clock = ManualClock()
    check = store_check(MemoryStore(clock), clock)
    check.wrote("shop/orders.dlq", SourceMissingError("not the store's"))
    assert problem(check) is None


async def test_missing_queue_is_a_problem_until_it_is_there() -> None:
    clock = ManualClock()
    transport = MemoryTransport(clock)
    await transport.open()
    check = BrokerCheck(transport, lambda: ["orders.dlq"], clock, interval=10 * SECOND)
    await check.check()
    missing = check.missing("orders.dlq")
    assert missing is not None
    assert missing.text.startswith("SourceMissingError")
    transport.broker.leave()
    await check.check()
    assert check.missing("orders.dlq") == missing  # what cannot be asked keeps its state
    transport.broker.come_back()
    await transport.ensure_queue("orders.dlq")
    await check.check()
    assert check.missing("orders.dlq") is None


# --- reaching broker and store ---------------------------------------------------------------------------------


class Moody(MemoryTransport):
    """Raises what it is told to, when it is opened."""

    def __init__(self, clock: ManualClock, *errors: RedriveError) -> None:
        super().__init__(clock)
        self.errors = list(errors)

    async def open(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        await super().open()


async def test_broker_connection_tries_again_after_every_error_that_may_pass() -> None:
    clock, stop = ManualClock(), asyncio.Event()
    errors = [
        BrokerUnreachableError("away"),
        TransportError("closed"),
        TransportClosedError("x"),
        PublishError("y"),
    ]
    refused: list[RedriveError] = []
    connection = BrokerConnection(
        Moody(clock, *errors),
        [Source(name="orders")],
        clock,
        trouble=lambda _what, _error: None,
        refused=refused.append,
    )
    assert [connection.problem] == ["not connected yet"]
    running = asyncio.create_task(connection.run(stop))
    await until(clock, lambda: connection.problem == "BrokerUnreachableError: away", timedelta(0))
    await until(clock, lambda: connection.reached.is_met)
    assert [connection.problem, *refused] == [None]
    stop.set()
    await running


@pytest.mark.parametrize("error", [BrokerRefusedError("who are you?"), SourceConflictError("it is classic")])
async def test_broker_connection_gives_up_when_it_is_refused(error: RedriveError) -> None:
    clock, stop = ManualClock(), asyncio.Event()
    refused: list[RedriveError] = []
    connection = BrokerConnection(
        Moody(clock, error), [], clock, trouble=lambda _what, _error: None, refused=refused.append
    )
    running = asyncio.create_task(connection.run(stop))
    await until(clock, lambda: refused == [error], timedelta(0))
    stop.set()
    await running


async def test_late_store_raises_until_it_is_open() -> None:
    clock, stop = ManualClock(), asyncio.Event()
    errors: list[RedriveError] = [StoreUnreachableError("away"), StoreFullError("full")]

    async def opener(_settings: StoreOptions, _clock: object) -> Store:
        if errors:
            raise errors.pop(0)
        return MemoryStore(clock)

    late = LateStore(
        StoreOptions(),
        clock,
        trouble=lambda _what, _error: None,
        refused=lambda _error: None,
        opener=opener,
    )
    await late.open()
    assert [late.problem] == ["StoreUnreachableError: away"]
    with pytest.raises(StoreUnreachableError, match="not open yet: StoreUnreachableError: away"):
        await late.verbs.count()
    running = asyncio.create_task(late.run(stop))
    await until(clock, lambda: late.reached.is_met)
    assert [late.problem] == [None]
    assert await late.verbs.count() == 0
    stop.set()
    await running
    await late.close()


async def test_late_store_refuses_what_no_waiting_repairs() -> None:
    async def opener(_settings: StoreOptions, _clock: object) -> Store:
        raise StoreDamagedError("torn")

    late = LateStore(
        StoreOptions(),
        ManualClock(),
        trouble=lambda _what, _error: None,
        refused=lambda _error: None,
        opener=opener,
    )
    with pytest.raises(StoreDamagedError):
        await late.open()


async def test_dependent_service_says_what_it_waits_for() -> None:
    class Counter:
        name = "counter"
        runs = 0

        async def run(self, stop: asyncio.Event) -> None:
            self.runs += 1
            await stop.wait()

    stop, service = asyncio.Event(), Counter()
    store, broker = Prerequisite("the store", "store"), Prerequisite("the broker", "broker")
    dependent = DependentService(service, [store, broker])
    watched = Watched(dependent, ManualClock(), checks=[dependent.waiting])
    running = asyncio.create_task(watched.run(stop))
    await asyncio.sleep(0)
    assert [watched.trouble] == ["waiting for the store"]
    store.meet()
    assert [watched.trouble] == ["waiting for the broker"]
    broker.meet()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [watched.trouble, service.runs] == [None, 1]
    store.lose()  # it has started
    assert [watched.trouble] == [None]
    stop.set()
    await running


# --- reports of consumers --------------------------------------------------------------------------------------


def a_report(clock: ManualClock, failures: int, consumer: str = "host/7") -> PublishReport:
    return PublishReport(
        consumer=consumer, source="orders", failures=failures, at=clock.now(), error="no exchange"
    )


def test_report_counts_until_it_is_taken_back_or_not_repeated() -> None:
    clock = ManualClock()
    reports = ConsumerReports(clock)
    reports.received(a_report(clock, 2))
    reports.received(a_report(clock, 3))
    reports.received(a_report(clock, 1, "host/8"))
    assert reports.failures() == {"orders": 4}
    assert "cannot publish dead letters" in reports.problems()["orders"]
    reports.received(a_report(clock, 0))
    assert reports.failures() == {"orders": 1}
    clock.advance(LIFETIME + SECOND)
    assert (reports.failures(), reports.problems()) == ({}, {})


def test_report_that_was_sent_long_ago_is_ignored() -> None:
    clock = ManualClock()
    old = a_report(clock, 2, "host/7")
    clock.advance(timedelta(hours=1))
    late = a_report(clock, 1, "host/8")
    clock.advance(LIFETIME)
    reports = ConsumerReports(clock)
    reports.received(old)
    reports.received(late)
    assert reports.failures() == {"orders": 1}
