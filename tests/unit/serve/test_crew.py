"""The services of a server hear of each other: on memory, with a clock turned by hand."""

import asyncio
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.letters import FailureKind, Message
from redrive.letters.redrive import redrive_of
from redrive.letters.verdict import QUEUE, resolved, to_messages
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, plan
from redrive.replay.run import Replay
from redrive.serve.condition import Condition
from redrive.serve.crew import Crew
from redrive.serve.figures import Figures
from redrive.settings import Settings, read
from redrive.stores.changes import Resolve, Settlement
from redrive.stores.memory import MemoryStore
from redrive.stores.query import parse_query
from redrive.testing import ManualClock
from redrive.testing.factories import a_failure, a_letter
from redrive.transports import Publication, Source, Target
from redrive.transports.memory import MemoryTransport

ORDERS = Source(name="orders")


class Place:
    def __init__(self, tmp_path: Path, **sections: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.transport = MemoryTransport(self.clock)
        self.troubles: list[str] = []
        settings: Settings = read({**sections, "server": {"data_directory": str(tmp_path)}})
        self.crew = Crew(settings, self.store, self.transport, self.clock, self._trouble, [ORDERS])

    def _trouble(self, what: str, error: Exception) -> None:
        self.troubles.append(f"{what}: {error}")

    async def open(self) -> None:
        await self.transport.open()
        await self.transport.provision([ORDERS])
        await self.transport.ensure_queue(QUEUE)


def test_every_queue_has_one_collector_and_every_worker_a_name_of_its_own(tmp_path: Path) -> None:
    place = Place(
        tmp_path, broker={"dead_letter_queues": ["legacy.dead", "orders.dlq"]}, recover={"workers": 3}
    )
    assert list(place.crew.collectors) == ["orders.dlq", "legacy.dead"]
    names = [service.name for service in place.crew.services]
    assert names == [
        "memory/connection", "alerts", "notifications", "store-check", "memory/check",
        "memory/registration", "rescuer", "retention", "change-log", "breaker-recovery",
        "memory/orders.dlq", "memory/legacy.dead", "memory/verdicts", "memory/confirmer",
        "memory/worker-1", "memory/worker-2", "memory/worker-3",
    ]  # fmt: skip
    assert len({worker.name for worker in place.crew.workers}) == 3


async def test_a_source_that_works_again_gets_its_letters_at_once(tmp_path: Path) -> None:
    # Given a source whose redrives die, and a letter that waits for it
    place = Place(tmp_path)
    await place.open()
    due = place.clock.now() + timedelta(minutes=1)
    letter = msgspec.structs.replace(a_letter(source="orders"), strategy="conditional", next_retry_at=due)
    await place.store.add([letter])
    for _ in range(5):
        place.crew.breakers.died("orders")
    assert place.crew.breakers.open_sources() == ("orders",)
    text = (await Figures(place.store, place.crew, place.clock).text()).decode()
    assert 'redrive_breaker_open{broker="memory",source="orders"} 1.0' in text
    # When one of them was processed
    place.crew.breakers.succeeded("orders")
    await place.crew.awakening.turn()
    # Then the letter is due
    assert [head.id for head in await place.store.claim("w", broker="rabbitmq")] == [letter.id]
    text = (await Figures(place.store, place.crew, place.clock).text()).decode()
    assert 'redrive_breaker_open{broker="memory",source="orders"} 0.0' in text
    assert 'redrive_letters_rescheduled_total{broker="memory"} 1.0' in text


async def test_what_was_collected_and_parked_is_counted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    messages = [Publication(Message(body=b"%d" % number), Target(name="orders.dlq")) for number in range(3)]
    assert not any(await place.transport.publish(messages))
    receiver = await place.transport.receiver(Source(name="orders.dlq", window=10))
    await place.crew.collectors["orders.dlq"].keep(await receiver.receive())
    await receiver.close()
    await place.crew.workers[0].turn()
    figures = Figures(place.store, place.crew, place.clock)
    text = (await figures.text()).decode()
    for line in (
        'redrive_letters_collected_total{broker="memory",dead_letter_queue="orders.dlq",source="orders"} 3.0',
        'redrive_letters_parked_total{broker="memory"} 3.0',
        'redrive_backlog{state="dlq_manual"} 3.0',
        'redrive_backlog{state="dlq_pending"} 0.0',
        'redrive_backlog_by_error_type{error_type="Unknown"} 3.0',
    ):
        assert line in text.splitlines(), text
    assert "\nredrive_time_in_dlq" not in text  # nothing was resolved yet


async def replayed(place: Place, broker: str, key: str) -> None:
    """A replay of three letters, in another process for all that the server knows."""
    await place.store.add([a_letter(f"{key}{number}", transport="memory") for number in range(3)])
    options = ReplayOptions(broker=broker)
    frozen = await plan(place.store, parse_query("state:pending", now=place.clock.now()))
    operation = await begin(place.store, frozen, options, by="anna", clock=place.clock)
    replay = Replay(place.store, place.transport, operation, runner="anna", clock=place.clock)
    assert (await replay.run(asyncio.Event())).outcomes == {"sent": 3}


async def test_letters_of_replays_are_counted_as_redriven_and_by_their_results(tmp_path: Path) -> None:
    # Given a replay from before the server began, one to its broker, and one to another broker
    place = Place(tmp_path)
    await place.open()
    await replayed(place, "memory", "early")
    place.clock.advance(timedelta(minutes=1))
    figures = Figures(place.store, place.crew, place.clock)
    await replayed(place, "memory", "a")
    await replayed(place, "elsewhere", "b")
    # When one of the letters was processed and another one has died again
    (message, *_) = await place.transport.peek("orders", 1)
    redrive = redrive_of(message.headers)
    assert redrive is not None
    await place.transport.publish(
        [
            Publication(verdict, Target(name=QUEUE))
            for verdict in to_messages([resolved(redrive, "orders", place.clock.now())])
        ]
    )
    receiver = await place.transport.receiver(Source(name=QUEUE, window=10))
    await place.crew.verdicts.keep(await receiver.receive())
    await receiver.close()
    place.crew.collectors["orders.dlq"].counts.replays += 1
    # Then replays to this broker are counted, each letter once
    for _ in range(2):
        lines = (await figures.text()).decode().splitlines()
        assert 'redrive_redrives_sent_total{broker="memory"} 3.0' in lines
        assert 'redrive_letters_replayed_total{broker="memory"} 3.0' in lines
        assert 'redrive_replay_results_total{broker="memory",result="resolved"} 1.0' in lines
        assert 'redrive_replay_results_total{broker="memory",result="failed"} 1.0' in lines
        assert 'redrive_replay_success_ratio{broker="memory"} 0.5' in lines
        place.clock.advance(timedelta(minutes=1))


async def test_the_time_in_the_dead_letter_queue_is_that_of_resolved_letters(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.store.add([a_letter(f"k{number}") for number in range(20)])
    for head in await place.store.claim("w", broker="rabbitmq", limit=20):
        place.clock.advance(timedelta(seconds=1))
        await place.store.settle([Settlement(head.claim_token, Resolve())])
    text = (await Figures(place.store, place.crew, place.clock).text()).decode()
    found = dict(line.split() for line in text.splitlines() if line.startswith("redrive_time_in_dlq"))
    assert float(found["redrive_time_in_dlq_mean_seconds"]) == pytest.approx(10.5, abs=0.001)
    assert float(found["redrive_time_in_dlq_p95_seconds"]) == pytest.approx(20, abs=0.001)


async def test_resolution_ratio_is_that_of_letters_by_their_day_of_arrival(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    figures = Figures(place.store, place.crew, place.clock)
    assert "redrive_resolution_ratio{" not in (await figures.text()).decode()
    for day, count in (("a", 4), ("b", 2)):
        await place.store.add([a_letter(f"{day}{number}") for number in range(count)])
        [oldest] = await place.store.claim("w", broker="rabbitmq", limit=1)
        await place.store.settle([Settlement(oldest.claim_token, Resolve())])
        place.clock.advance(timedelta(hours=23))
    await place.crew.alarms.look()
    lines = (await figures.text()).decode().splitlines()
    assert 'redrive_resolution_ratio{arrived="last_day"} 0.0' in lines
    assert 'redrive_resolution_ratio{arrived="previous_day"} 0.5' in lines


async def test_discovered_queue_is_measured_for_as_long_as_it_exists(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    there = ["mail.dlq"]
    await place.transport.ensure_queue("mail.dlq")

    async def discover() -> list[str]:
        return there

    crew = Crew(
        read(
            {"server": {"data_directory": str(tmp_path)}, "broker": {"dead_letter_queues": ["legacy.dead"]}}
        ),
        place.store,
        place.transport,
        place.clock,
        lambda _what, _error: None,
        [ORDERS],
        discover,
    )
    assert crew.discovery is not None

    async def missing() -> dict[str, float]:
        """Which dead-letter queues are measured, and which of them do not exist."""
        [look] = [each for each in crew.measures.looks if each.name == "queues"]
        return {
            one.subject: one.value
            for one in await look.take(lambda _measure: ())
            if one.measure == "queue_missing"
        }

    await crew.discovery.turn()
    assert await missing() == {"orders.dlq": 0, "legacy.dead": 1, "mail.dlq": 0}
    there.clear()
    await crew.discovery.turn()
    assert await missing() == {"orders.dlq": 0, "legacy.dead": 1}


# --- is it well? -------------------------------------------------------------------------------------------


async def test_a_store_or_a_broker_that_does_not_answer_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    condition = Condition(place.store, place.transport, lambda: (), place.clock)
    assert (await condition.report())["status"] == "ok"
    place.transport.broker.leave()
    report = await condition.report()
    assert report["status"] == "failing"
    assert report["store"] == "ok"
    assert report["broker"].startswith("BrokerUnreachableError: ")
    place.transport.broker.come_back()
    assert (await condition.report())["status"] == "ok"
    await place.store.close()
    report = await condition.report()
    assert (report["status"], report["broker"]) == ("failing", "ok")
    assert report["store"].startswith("StoreClosedError: ")


async def test_a_service_that_does_not_run_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    report = await Condition(place.store, place.transport, lambda: place.crew.services, place.clock).report()
    assert report["status"] == "failing"
    assert set(report["services"].values()) == {"not running"}


async def test_settings_of_conditions_and_rates_reach_the_workers(tmp_path: Path) -> None:
    # Given a database that does not listen, a limit of one letter per second, and letters of two kinds
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    condition = {"name": "db", "url": f"tcp://127.0.0.1:{port}", "kinds": ["database"]}
    # Not the conditional strategy: the machine that runs the tests may be busy.
    strategies = {"database": "immediate"}
    place = Place(tmp_path, recover={"rate": 1}, conditions=[condition], strategies=strategies)
    await place.open()
    [worker, *_] = place.crew.workers
    for kind in (FailureKind.NETWORK, FailureKind.DATABASE):
        failure = a_failure(kind=kind)
        lot = [
            a_letter(f"{kind}/{n}", source="orders", broker=place.crew.broker, failure=failure)
            for n in range(20)
        ]
        await place.store.add(lot)
    # When the check fails
    stop = asyncio.Event()
    checking = asyncio.create_task(place.crew.conditions.run(stop))
    async with asyncio.timeout(60):
        while "ConnectionRefusedError" not in place.crew.conditions.failing["db"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for _ in range(50):
        await worker.turn()
        place.clock.advance(timedelta(seconds=1))
    # Then only the others were sent, and metrics say what the rest waits for
    assert await place.transport.depth("orders") == 20
    assert await place.store.tally("waits_for") == {"condition:db": 20}
    text = (await Figures(place.store, place.crew, place.clock).text()).decode()
    assert 'redrive_letters_waiting{waits_for="condition:db"} 20.0' in text
    # When the database listens, the rest goes
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", port)
    async with asyncio.timeout(60):
        while place.crew.conditions.failing:
            place.clock.advance(timedelta(seconds=15))
            await asyncio.sleep(0.01)
    stop.set()
    await checking
    server.close()
    for _ in range(10):
        await worker.turn()
        place.clock.advance(timedelta(seconds=1))
    assert await place.transport.depth("orders") > 25


async def test_change_log_is_trimmed_by_the_settings(tmp_path: Path) -> None:
    place = Place(tmp_path, retention={"change_log": "1d"})
    await place.store.add([a_letter()])
    [head] = await place.store.claim("w", broker="rabbitmq")
    await place.store.settle([Settlement(head.claim_token, Resolve())])
    place.clock.advance(timedelta(days=2))
    await place.crew.change_log.turn()
    assert await place.store.journal() == []
    text = (await Figures(place.store, place.crew, place.clock).text()).decode()
    assert "redrive_change_log_deleted_total 2.0" in text
