"""The alarm of a server: written down first, then told; by one server of several, and never lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.errors import BrokerUnreachableError, SourceMissingError, StoreError
from redrive.letters import DeadLetter, Origin
from redrive.letters.redact import Redactor
from redrive.serve.alarms import Alarms
from redrive.serve.measures import Measures
from redrive.serve.prober import Prober
from redrive.serve.watched import Watched
from redrive.stores.base import Store
from redrive.stores.changes import Park, Resolve, Settlement
from redrive.stores.memory import MemoryStore
from redrive.stores.query import EVERYTHING, Query
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock, a_letter, letters
from redrive.transports.probing import Probe, Probed
from redrive.watch.alerts.alarm import Alarm
from redrive.watch.alerts.alert import Alert, Occasion
from redrive.watch.alerts.rules import RULES
from redrive.watch.alerts.written import NAME, Document

MINUTE = timedelta(minutes=1)
RAISED, WORSE, AGAIN, ESCALATED, RECOVERED = Occasion


class Broker:
    """As much of a transport as is measured."""

    kind = "memory"

    def __init__(self) -> None:
        self.depths: dict[str, int] = {}
        self.missing: set[str] = set()
        self.is_away = False

    async def depth(self, queue: str) -> int:
        if self.is_away:
            raise BrokerUnreachableError("nobody answers")
        if queue in self.missing:
            raise SourceMissingError(f"no queue is called '{queue}'")
        return self.depths.get(queue, 0)


class Place:
    """A server's alarm, and what it has told."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        *names: str,
        prefix: str = "i",
        server: str | None = None,
        broker: str = "rabbitmq",
        probe: Probe | None = None,
        is_store_available: Callable[[], bool] | None = None,
        dead_letter_queues: Mapping[str, str] = {"orders": "orders.dlq"},
    ) -> None:
        self.broker = Broker()
        self.collected = {"orders.dlq": 0}  # queue → what its collector has done
        self.publish_failures: dict[str, int] = {}
        self.told: list[tuple[Alert, Sequence[str]]] = []
        self.troubles: list[str] = []
        self.services: list[Watched] = []
        self._numbers = iter(range(1, 1000))
        measures = Measures(
            store,
            self.broker,  # type: ignore[arg-type]  # nothing else is asked of it
            lambda: self.services,
            lambda: self.collected,
            clock,
            component="RabbitMQ",
            dead_letter_queues=dead_letter_queues,
            clean=Redactor().clean,
            broker=broker,
            publish_failures=lambda: self.publish_failures,
            is_store_available=is_store_available or (lambda: True),
            prober=None
            if probe is None
            else Prober(
                probe,
                dict,
                clock,
                every=MINUTE,
                component="RabbitMQ",
                trouble=lambda what, _error: self.troubles.append(what),
                broker=broker,
            ),
        )
        self.alarms = Alarms(
            store,
            Alarm(RULES, make_id=lambda _key: f"{prefix}-{next(self._numbers)}")
            if server is None
            else Alarm(RULES, server=server),
            measures,
            clock,
            every=timedelta(seconds=15),
            chosen=lambda _alert: names or ("mail",),
            tell=lambda alert, to: self.told.append((alert, to)),
            trouble=lambda what, _error: self.troubles.append(what),
            is_store_available=is_store_available,
        )

    @property
    def occasions(self) -> list[tuple[str, str]]:
        return [(alert.rule, alert.occasion) for alert, _ in self.told]

    async def turn(self) -> None:
        """What `run` does when it is woken."""
        await self.alarms.turn()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


async def died(
    store: Store, place: Place, count: int, *, tell: bool = True, start: int = 0
) -> list[DeadLetter]:
    """Letters come into the store, and the alarm hears of them if this server has collected them."""
    new = [
        msgspec.structs.replace(letter, source="orders", correlation_id=f"c-{start + number}")
        for number, letter in enumerate(letters(start + count)[start:])
    ]
    assert all(await store.add(new))
    if tell:
        place.alarms.collected("orders.dlq", new)
    return new


async def unsent(store: Store) -> list[tuple[str, tuple[str, ...]]]:
    memo = await store.recall(NAME)
    assert memo.body is not None
    document = msgspec.msgpack.decode(memo.body, type=Document)
    return [(one.alert.occasion, one.to) for one in document.unsent]


async def test_a_letter_that_was_collected_is_told_without_a_look_at_the_store(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    await died(store, place, 2)
    await place.turn()
    [(alert, to)] = place.told
    assert (
        alert.text
        == "1 or more messages found in Dead-Letter Queue orders.dlq. Manual intervention required."
    )
    assert (alert.occasion, alert.queue, alert.component, to) == (RAISED, "orders.dlq", "RabbitMQ", ("mail",))
    assert alert.counts == {"open": 2, "new": 2}
    assert alert.correlation_ids == ("c-0", "c-1")


async def test_an_id_that_is_somebodys_address_is_not_told(store: MemoryStore, clock: ManualClock) -> None:
    place = Place(store, clock)
    [letter] = await died(store, place, 1, tell=False)
    named = msgspec.structs.replace(letter, correlation_id="mary.smith@example.org")
    place.alarms.collected("orders.dlq", [named])
    await place.turn()
    [(alert, _)] = place.told
    assert len(alert.correlation_ids) == 1
    assert "mary" not in repr(alert)


async def test_it_is_written_down_before_it_is_told(store: MemoryStore, clock: ManualClock) -> None:
    place = Place(store, clock)
    seen: list[Any] = []

    async def remember(name: str, body: bytes, *, version: int) -> bool:
        seen.append((len(place.told), version))
        return await MemoryStore.remember(store, name, body, version=version)

    store.remember = remember  # type: ignore[method-assign]
    await died(store, place, 1)
    await place.turn()
    assert seen == [(0, 0)]
    assert len(place.told) == 1
    assert await unsent(store) == [("raised", ("mail",))]


async def test_what_could_not_be_written_down_is_not_told_and_not_forgotten(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)

    async def remember(name: str, body: bytes, *, version: int) -> bool:
        raise StoreError("the disk is full")

    store.remember = remember  # type: ignore[method-assign]
    await died(store, place, 1)
    with pytest.raises(StoreError):
        await place.turn()
    assert place.told == []
    del store.remember
    await place.turn()
    assert place.occasions == [("dead-letter", RAISED)]
    assert place.told[0][0].correlation_ids == ("c-0",)


async def test_who_was_told_is_struck_out(store: MemoryStore, clock: ManualClock) -> None:
    place = Place(store, clock, "mail", "chat")
    await died(store, place, 1)
    await place.turn()
    place.alarms.ended(place.told[0][0], "chat")
    await place.turn()
    assert await unsent(store) == [("raised", ("mail",))]
    place.alarms.ended(place.told[0][0], "mail")
    await place.turn()
    assert await unsent(store) == []
    assert len(place.told) == 1


async def test_nothing_is_written_where_nothing_has_changed(store: MemoryStore, clock: ManualClock) -> None:
    place = Place(store, clock)
    await died(store, place, 1)
    await place.turn()
    place.alarms.ended(place.told[0][0], "mail")
    await place.alarms.look()
    version = (await store.recall(NAME)).version
    for _ in range(5):
        clock.advance(timedelta(seconds=15))
        await place.alarms.look()
    assert (await store.recall(NAME)).version == version


# --- crashes ---------------------------------------------------------------------------------------------------------


async def test_what_a_server_could_not_tell_before_its_end_is_told_when_it_is_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    # Given a server that has written an alert down, and is killed before it has told it
    store = await SqliteStore.open(tmp_path / "redrive.db", clock=clock)
    before = Place(store, clock)
    await died(store, before, 1)
    await before.turn()
    await store.close()
    # When another one is there
    store = await SqliteStore.open(tmp_path / "redrive.db", clock=clock)
    after = Place(store, clock)
    await after.alarms.look()
    assert after.told == [], "the first one may still be at it"
    clock.advance(MINUTE)
    await after.alarms.look()
    # Then it tells the same alert
    assert [alert for alert, _ in after.told] == [before.told[0][0]]
    # And once
    clock.advance(timedelta(seconds=45))
    await after.alarms.look()
    assert len(after.told) == 1
    await store.close()


async def test_what_somebody_tells_is_left_to_them_for_as_long_as_they_try(
    store: MemoryStore, clock: ManualClock
) -> None:
    one, other = Place(store, clock), Place(store, clock)
    await died(store, one, 1)
    await one.turn()
    for _ in range(20):  # its receiver is down, and it tries again and again
        clock.advance(timedelta(seconds=15))
        await one.alarms.look()
        await other.alarms.look()
    assert len(one.told) == 1
    assert other.told == []


async def test_a_letter_whose_server_was_killed_before_it_could_say_a_word_is_told_by_the_next_look(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    await died(store, place, 3, tell=False)
    await place.alarms.look()
    [(alert, _)] = place.told
    assert alert.rule == "dead-letter"
    assert sorted(alert.correlation_ids) == ["c-0", "c-1", "c-2"]


async def test_a_server_that_comes_back_does_not_tell_again_what_was_told(
    store: MemoryStore, clock: ManualClock
) -> None:
    before = Place(store, clock)
    await died(store, before, 3)
    await before.turn()
    before.alarms.ended(before.told[0][0], "mail")
    await before.turn()
    after = Place(store, clock)
    clock.advance(20 * MINUTE)  # longer than the cool-down
    await after.alarms.look()
    assert after.told == []
    await died(store, after, 1, tell=False, start=3)
    await after.alarms.look()
    assert after.occasions == [("dead-letter", AGAIN)]
    assert after.told[0][0].correlation_ids == ("c-3",)


async def test_what_cannot_be_read_is_said_and_begun_anew(store: MemoryStore, clock: ManualClock) -> None:
    assert await store.remember(NAME, b"\xc1 no document", version=0)
    place = Place(store, clock)
    await died(store, place, 1)
    await place.turn()
    assert place.occasions == [("dead-letter", RAISED)]
    assert place.troubles == ["alert state unreadable, replaced by an empty one"]


# --- several servers -------------------------------------------------------------------------------------------------


async def test_of_several_servers_that_find_the_same_one_tells_it(
    store: MemoryStore, clock: ManualClock
) -> None:
    places = [Place(store, clock, prefix=f"server{number}") for number in range(5)]
    await died(store, places[0], 1, tell=False)
    await asyncio.gather(*(place.alarms.look() for place in places))
    assert sum(len(place.told) for place in places) == 1


async def test_no_news_of_any_server_is_lost_when_all_write_at_once(
    store: MemoryStore, clock: ManualClock
) -> None:
    places = [Place(store, clock, prefix=f"server{number}") for number in range(8)]
    for number, place in enumerate(places):
        [letter] = await died(store, place, 1, tell=False, start=number)
        place.alarms.collected(f"q{number}.dlq", [msgspec.structs.replace(letter, source=f"q{number}")])
    await asyncio.gather(*(place.turn() for place in places))
    told = {alert.queue for place in places for alert, _ in place.told}
    assert told == {f"q{number}.dlq" for number in range(8)}


async def test_letters_that_several_servers_collect_count_together(
    store: MemoryStore, clock: ManualClock
) -> None:
    one, two = Place(store, clock, server="one"), Place(store, clock, server="two")
    await died(store, one, 60)
    await died(store, two, 41, start=60)
    await one.alarms.look()
    await two.alarms.look()
    raised = [alert for place in (one, two) for alert, _ in place.told]
    assert [alert.counts for alert in raised if alert.rule == "ingestion-rate"] == [{"collected": 101}]
    assert [alert.counts["collected"] for alert in raised if alert.rule == "error-spike"] == [101]


async def test_server_started_while_the_store_is_unavailable_raises_the_same_incident(
    store: MemoryStore, clock: ManualClock
) -> None:
    # Given a server that has raised an incident, stored it, and was killed
    before = Place(store, clock, server="host:8642")
    before.broker.is_away = True
    await looks(before, clock, 2)
    [(raised, _)] = before.told
    # When it is started again while the store is unavailable
    is_available = False
    after = Place(store, clock, server="host:8642", is_store_available=lambda: is_available)
    after.broker.is_away = True
    await looks(after, clock, 2)
    assert set(after.occasions) == {("broker-unreachable", RAISED), ("store-unavailable", RAISED)}
    # And the store and the broker come back
    is_available, after.broker.is_away = True, False
    await looks(after, clock, 12)
    # Then every incident that was raised has recovered
    told = [alert for alert, _ in (*before.told, *after.told)]
    assert raised.incident in {alert.incident for alert, _ in after.told}
    assert {alert.incident for alert in told if alert.occasion == RAISED} == {
        alert.incident for alert in told if alert.occasion == RECOVERED
    }
    assert (await after.alarms.book()).current == {}


async def test_store_outage_that_two_servers_report_recovers_for_both(
    store: MemoryStore, clock: ManualClock
) -> None:
    is_available = False
    places = [
        Place(store, clock, server=name, is_store_available=lambda: is_available)
        for name in ("host:8642", "host:8643")
    ]
    for place in places:
        assert await looks(place, clock, 1) == ["store-unavailable"]
    is_available = True
    for _ in range(12):
        for place in places:
            await place.alarms.look()
        clock.advance(timedelta(seconds=15))
    told = sorted((alert.server, alert.occasion) for place in places for alert, _ in place.told)
    assert told == [
        ("host:8642", RAISED),
        ("host:8642", RECOVERED),
        ("host:8643", RAISED),
        ("host:8643", RECOVERED),
    ]


# --- people ----------------------------------------------------------------------------------------------------------


async def test_an_incident_that_is_acknowledged_is_not_escalated(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    await died(store, place, 1)
    await place.turn()
    [incident] = (await place.alarms.book()).open()
    assert not await place.alarms.acknowledge("i-99", "somebody")
    assert await place.alarms.acknowledge(incident.id, "somebody")
    clock.advance(60 * MINUTE)
    await place.alarms.look()
    assert place.occasions == [("dead-letter", RAISED)]


async def test_it_is_over_when_nobody_has_anything_to_do_any_more(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    new = await died(store, place, 2)
    await place.turn()
    held = await store.claim("worker", broker="rabbitmq", limit=len(new))
    assert all(await store.settle([Settlement(head.claim_token, Resolve()) for head in held]))
    await place.alarms.look()
    assert place.occasions == [("dead-letter", RAISED)]
    clock.advance(2 * MINUTE)
    await place.alarms.look()
    assert place.occasions == [("dead-letter", RAISED), ("dead-letter", RECOVERED)]


# --- what is measured ------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_away_is_told_when_it_was_seen_twice_and_hides_its_queues(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    place.broker.depths["orders.dlq"] = 101
    await place.alarms.look()
    assert place.occasions == [("dlq-depth", RAISED)]
    place.broker.is_away = True
    for _ in range(3):
        clock.advance(timedelta(seconds=15))
        await place.alarms.look()
    assert place.occasions == [("dlq-depth", RAISED), ("broker-unreachable", RAISED)]
    place.broker.is_away = False
    place.broker.depths.clear()
    for _ in range(10):
        clock.advance(timedelta(seconds=15))
        await place.alarms.look()
    assert place.occasions[2:] == [("broker-unreachable", RECOVERED), ("dlq-depth", RECOVERED)]


async def test_more_than_a_hundred_letters_in_a_minute_are_a_warning(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    await died(store, place, 100)
    await place.alarms.look()
    assert ("ingestion-rate", RAISED) not in place.occasions
    clock.advance(timedelta(seconds=59))
    await died(store, place, 1, start=100)
    await place.alarms.look()
    assert ("ingestion-rate", RAISED) in place.occasions


async def test_an_error_type_that_comes_more_often_than_usual_is_a_warning(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    number = 0
    for _ in range(12):  # two in five minutes are usual
        await died(store, place, 2, start=number)
        number += 2
        clock.advance(5 * MINUTE + timedelta(seconds=1))
    await died(store, place, 10, start=number)
    await place.alarms.look()
    assert ("error-spike", RAISED) not in place.occasions, "five times as often is still fine"
    await died(store, place, 1, start=number + 10)
    await place.alarms.look()
    assert ("error-spike", RAISED) in place.occasions
    clock.advance(10 * MINUTE)
    await place.alarms.look()
    clock.advance(2 * MINUTE)
    await place.alarms.look()
    assert ("error-spike", RECOVERED) in place.occasions


@pytest.mark.parametrize("count", [19, 20])
async def test_resolution_rate_is_evaluated_for_letters_that_had_a_day(
    store: MemoryStore, clock: ManualClock, count: int
) -> None:
    place = Place(store, clock)
    await died(store, place, count)
    for hours, is_raised in ((0, False), (23, False), (2, count >= 20)):
        clock.advance(timedelta(hours=hours))
        for _ in range(2):
            await place.alarms.look()
        assert (("resolution-rate", RAISED) in place.occasions) is is_raised
    if count >= 20:
        [alert] = [alert for alert, _ in place.told if alert.rule == "resolution-rate"]
        assert alert.text == "0 % of the dead letters of the previous day are resolved (threshold 50 %)"
        assert alert.counts == {"resolved": 0, "of": 20}


async def test_a_store_that_takes_long_to_count_is_asked_less_often(
    store: MemoryStore, clock: ManualClock
) -> None:
    place, asked = Place(store, clock), list[str]()

    async def tally(by: str, query: Query = EVERYTHING) -> dict[str, int]:
        asked.append(by)
        clock.advance(timedelta(seconds=1))
        return await MemoryStore.tally(store, by, query)

    store.tally = tally  # type: ignore[method-assign]
    for _ in range(9):  # five seconds of counting are followed by a hundred of rest
        await place.alarms.look()
        clock.advance(timedelta(seconds=15))
    assert [by for by in asked if by != "error"] == ["source", "state", "state", "source", "broker"] * 2
    assert asked.count("error") == 5, "the rates take one second, and rest for twenty"


async def test_a_service_that_does_not_run_is_told(store: MemoryStore, clock: ManualClock) -> None:
    class Failing:
        name = "retention"

        async def run(self, stop: asyncio.Event) -> None:
            raise OSError("no room")

    place = Place(store, clock)
    service = Watched(Failing(), clock)
    place.services.append(service)
    with pytest.raises(OSError, match="no room"):
        await service.run(asyncio.Event())
    for _ in range(2):
        await place.alarms.look()
    assert place.occasions == [("service-failed", RAISED)]
    assert place.told[0][0].text == "retention failed and is being restarted."


# --- running ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(place: Place) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = asyncio.create_task(place.alarms.run(stop))
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


async def until(place: Place, count: int) -> None:
    async with asyncio.timeout(60):
        while len(place.told) < count:  # noqa: ASYNC110  it runs beside us
            await asyncio.sleep(0.005)


async def test_it_looks_by_itself_and_is_woken_by_a_letter(store: MemoryStore, clock: ManualClock) -> None:
    place = Place(store, clock)
    await died(store, place, 1, tell=False)
    async with running(place):
        await until(place, 1)
        clock.advance(timedelta(seconds=1))  # its breath
        place.broker.depths["orders.dlq"] = 2000
        new = await died(store, place, 1, tell=False, start=1)
        place.alarms.collected("mail.dlq", [msgspec.structs.replace(new[0], source="mail")])
        await until(place, 2)
        clock.advance(timedelta(seconds=15))
        await until(place, 3)
    assert [alert.queue for alert, _ in place.told] == ["orders.dlq", "mail.dlq", "orders.dlq"]


async def test_who_was_told_last_is_written_down_on_stopping(store: MemoryStore, clock: ManualClock) -> None:
    place = Place(store, clock)
    await died(store, place, 1)
    async with running(place):
        await until(place, 1)
        place.alarms.ended(place.told[0][0], "mail")
    assert await unsent(store) == []


# --- promptness ------------------------------------------------------------------------------------------------------


class Hanging:
    """A management API that accepts a request and never answers."""

    place = "http://127.0.0.1:15672"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def look(self, queues: Sequence[str]) -> list[Probed]:
        self.asked.set()
        await asyncio.Event().wait()
        return []


async def test_alert_leaves_in_the_turn_of_its_letter_while_probe_broker_and_count_hang(
    store: MemoryStore, clock: ManualClock
) -> None:
    probe = Hanging()
    place = Place(store, clock, probe=probe)
    hanging = [asyncio.Event(), asyncio.Event()]

    async def depth(queue: str) -> int:
        hanging[0].set()
        await asyncio.Event().wait()
        return 0

    async def tally(by: str, query: Query = EVERYTHING) -> dict[str, int]:
        hanging[1].set()
        await asyncio.Event().wait()
        return {}

    place.broker.depth = depth  # type: ignore[method-assign]
    store.tally = tally  # type: ignore[method-assign]
    began = clock.now()
    async with running(place):
        async with asyncio.timeout(60):
            for asked in (probe.asked, *hanging):
                await asked.wait()
        await died(store, place, 1)
        await until(place, 1)
    assert clock.now() == began, "no time has passed"
    assert place.occasions == [("dead-letter", RAISED)]


async def test_alert_does_not_wait_for_the_turn_of_another_one(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    began = clock.now()
    async with running(place):
        for number in range(5):
            [letter] = await died(store, place, 1, tell=False, start=number)
            place.alarms.collected("q.dlq", [msgspec.structs.replace(letter, source=f"q{number}")])
            await until(place, number + 1)
            place.alarms.ended(place.told[-1][0], "mail")
    assert clock.now() == began


async def test_letters_that_raise_no_alert_are_stored_together(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    async with running(place):
        await died(store, place, 1)
        await until(place, 1)
        for _ in range(10):  # until everything that was measured at the start is stored
            clock.advance(timedelta(milliseconds=200))
            for _ in range(50):
                await asyncio.sleep(0)
        version = (await store.recall(NAME)).version
        for number in range(1, 50):
            await died(store, place, 1, start=number)
            await asyncio.sleep(0)
        assert (await store.recall(NAME)).version == version
        clock.advance(timedelta(milliseconds=200))
        async with asyncio.timeout(60):
            while (await store.recall(NAME)).version == version:  # noqa: ASYNC110  it runs beside us
                await asyncio.sleep(0.005)
        assert (await store.recall(NAME)).version == version + 1


async def test_measurement_that_fails_is_reported_and_taken_again(
    store: MemoryStore, clock: ManualClock
) -> None:
    place, asked = Place(store, clock), list[str]()

    async def depth(queue: str) -> int:
        asked.append(queue)
        raise ZeroDivisionError

    place.broker.depth = depth  # type: ignore[method-assign]
    async with running(place):
        for number in (1, 2):
            async with asyncio.timeout(60):
                while len(asked) < number:  # noqa: ASYNC110  it runs beside us
                    await asyncio.sleep(0.005)
            clock.advance(timedelta(seconds=15))
    assert "measurement failed measure=queues" in place.troubles


# --- what the sentence says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategies", "ends"),
    [
        (["manual"], "Manual intervention required."),
        (["immediate"], "No intervention required: automatic redrive is pending."),
        (["immediate", "scheduled"], "No intervention required: automatic redrive is pending."),
        (
            ["conditional", "manual", "manual"],
            "Manual intervention required for 2; 1 are redriven automatically.",
        ),
        ([None], "Manual intervention required."),
    ],
)
@pytest.mark.parametrize("tell", [True, False])
async def test_sentence_says_what_happens_to_the_letters(
    store: MemoryStore, clock: ManualClock, strategies: Sequence[str | None], ends: str, tell: bool
) -> None:
    place = Place(store, clock)
    new = [
        msgspec.structs.replace(letter, source="orders", strategy=strategy)
        for letter, strategy in zip(letters(len(strategies)), strategies, strict=True)
    ]
    assert all(await store.add(new))
    if tell:
        place.alarms.collected("orders.dlq", new)
        await place.turn()
    else:
        await place.alarms.look()
    [(alert, _)] = place.told
    assert alert.text == f"1 or more messages found in Dead-Letter Queue orders.dlq. {ends}"


async def test_letter_that_becomes_manual_is_news(store: MemoryStore, clock: ManualClock) -> None:
    place = Place(store, clock)
    [letter] = letters(1)
    letter = msgspec.structs.replace(letter, source="orders", strategy="immediate")
    assert all(await store.add([letter]))
    await place.alarms.look()
    held = await store.claim("worker", broker="rabbitmq")
    assert all(await store.settle([Settlement(head.claim_token, Park(strategy="manual")) for head in held]))
    clock.advance(20 * MINUTE)
    await place.alarms.look()
    assert [alert.text.rpartition(". ")[2] for alert, _ in place.told] == [
        "No intervention required: automatic redrive is pending.",
        "Manual intervention required.",
    ]


async def test_alert_has_integer_counts_and_a_command_that_shows_more(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    [letter] = await died(store, place, 1)
    await place.turn()
    [(alert, _)] = place.told
    assert repr(alert.counts) == "{'open': 1, 'new': 1}"
    assert alert.link == f"redrive show {letter.id}"
    clock.advance(20 * MINUTE)
    await died(store, place, 2, start=1)
    await place.turn()
    assert place.told[-1][0].link is not None
    assert place.told[-1][0].link.startswith("redrive list 'broker:rabbitmq source:orders state:")


# --- which queue, which broker ---------------------------------------------------------------------------------------


async def test_queue_of_a_letter_is_known_after_a_restart(store: MemoryStore, clock: ManualClock) -> None:
    # Given letters of a queue that only their collector knows, stored before the restart
    origin = Origin(transport="rabbitmq", source="orders", dead_letter_source="orders.dead")
    assert all(await store.add([a_letter(origin=origin)]))
    # When the server is started again
    place = Place(store, clock, dead_letter_queues={})
    await place.alarms.look()
    [(alert, _)] = place.told
    # Then the alert names that queue
    assert alert.queue == "orders.dead"
    assert "Dead-Letter Queue orders.dead." in alert.text


async def test_letters_of_another_broker_are_reported_by_its_server_alone(
    store: MemoryStore, clock: ManualClock
) -> None:
    rabbitmq, kafka = Place(store, clock), Place(store, clock, broker="kafka")
    assert all(await store.add([a_letter(broker="kafka", source="orders")]))
    await rabbitmq.alarms.look()
    assert rabbitmq.told == []
    await kafka.alarms.look()
    assert [(alert.rule, alert.broker) for alert, _ in kafka.told] == [("dead-letter", "kafka")]
    kafka.alarms.ended(kafka.told[0][0], "mail")
    await kafka.turn()
    for _ in range(4):  # one that has no such letter does not end the incident of the other
        clock.advance(MINUTE)
        await rabbitmq.alarms.look()
    assert "dead-letter" not in [alert.rule for alert, _ in rabbitmq.told]
    assert "dead-letter" in [incident.rule for incident in (await rabbitmq.alarms.book()).open()]


# --- dead-letter queues ----------------------------------------------------------------------------------------------


async def test_depth_of_a_dead_letter_queue_includes_open_letters_collected_from_it(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    await died(store, place, 99)
    place.broker.depths["orders.dlq"] = 1
    await place.alarms.look()
    assert ("dlq-depth", RAISED) not in place.occasions
    place.broker.depths["orders.dlq"] = 2
    await place.alarms.look()
    [alert] = [alert for alert, _ in place.told if alert.rule == "dlq-depth"]
    assert alert.text == "orders.dlq: 101 dead letters in queue and store (threshold 100)"
    assert alert.counts == {"messages": 2, "open_letters": 99}


async def looks(place: Place, clock: ManualClock, count: int) -> list[str]:
    """Look every 15 seconds; the rules that were raised."""
    for _ in range(count):
        await place.alarms.look()
        clock.advance(timedelta(seconds=15))
    return [rule for rule, occasion in place.occasions if occasion == RAISED]


async def test_message_that_no_collector_takes_for_a_minute_raises_an_alert(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    place.broker.depths["orders.dlq"] = 3
    assert await looks(place, clock, 5) == []
    assert await looks(place, clock, 1) == ["dlq-uncollected"]
    [(alert, _)] = place.told
    assert (alert.queue, alert.counts) == ("orders.dlq", {"messages": 3})
    assert alert.text.startswith("orders.dlq: dead letters are waiting and no collector took one for 75 s")
    place.broker.depths.clear()
    await looks(place, clock, 10)
    assert place.occasions[-1] == ("dlq-uncollected", RECOVERED)


@pytest.mark.parametrize("taken_by", ["this server", "another server"])
async def test_queue_that_is_drained_slowly_raises_no_alert(
    store: MemoryStore, clock: ManualClock, taken_by: str
) -> None:
    place = Place(store, clock)
    for number in range(20):
        if taken_by == "this server":
            place.collected["orders.dlq"] += number % 4 == 0
            place.broker.depths["orders.dlq"] = 50
        else:
            place.broker.depths["orders.dlq"] = 50 - number % 4
        assert await looks(place, clock, 1) == []


async def test_missing_dead_letter_queue_raises_an_alert_until_it_exists(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    place.broker.missing.add("orders.dlq")
    assert await looks(place, clock, 1) == [], "it may be deleted and created anew"
    assert await looks(place, clock, 1) == ["queue-missing"]
    assert place.told[0][0].queue == "orders.dlq"
    place.broker.missing.clear()
    await looks(place, clock, 10)
    assert place.occasions[-1] == ("queue-missing", RECOVERED)


async def test_queue_that_is_no_longer_collected_may_be_missing(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    place.broker.missing.add("orders.dlq")
    await looks(place, clock, 2)
    place.collected.clear()
    await looks(place, clock, 10)
    assert place.occasions == [("queue-missing", RAISED), ("queue-missing", RECOVERED)]


async def test_dead_letters_that_consumers_cannot_publish_raise_an_alert(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)
    place.publish_failures["orders"] = 6
    await place.alarms.look()
    [(alert, _)] = place.told
    assert (alert.rule, alert.severity, alert.queue) == (
        "dead-letter-publish-failed",
        "critical",
        "orders.dlq",
    )
    assert (alert.counts, alert.broker) == ({"failures": 6}, "rabbitmq")
    place.publish_failures.clear()
    await looks(place, clock, 10)
    assert place.occasions[-1] == ("dead-letter-publish-failed", RECOVERED)


class Refusing(Hanging):
    async def look(self, queues: Sequence[str]) -> list[Probed]:
        raise BrokerUnreachableError("connection refused")


async def test_probe_that_fails_with_its_broker_is_not_reported_by_itself(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock, probe=Refusing())
    place.broker.is_away = True
    async with running(place):
        async with asyncio.timeout(60):
            while not place.told:
                clock.advance(timedelta(seconds=1))
                await asyncio.sleep(0.001)
    assert place.occasions == [("broker-unreachable", RAISED)]
    assert place.told[0][0].text == "Broker rabbitmq is unreachable."


async def test_no_measurement_piles_up_while_the_store_cannot_be_written(
    store: MemoryStore, clock: ManualClock
) -> None:
    place = Place(store, clock)

    async def remember(name: str, body: bytes, *, version: int) -> bool:
        raise StoreError("the disk is full")

    await place.alarms.look()
    store.remember = remember  # type: ignore[method-assign]
    place.broker.is_away = True
    for _ in range(5):
        with pytest.raises(StoreError):
            await place.alarms.look()
    del store.remember
    await place.turn()
    assert place.told == [], "five looks that were not stored are one"
    await place.alarms.look()
    assert place.occasions == [("broker-unreachable", RAISED)]
