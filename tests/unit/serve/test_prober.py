from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from redrive.errors import BrokerUnreachableError
from redrive.serve.prober import Prober
from redrive.testing import ManualClock
from redrive.transports.probing import Probed

MINUTE = timedelta(minutes=1)


class Broker:
    """What a broker's management would say."""

    place = "http://127.0.0.1:15672"

    def __init__(self) -> None:
        self.delivered, self.dead = 0, 0
        self.ready, self.deliveries = 0, 0
        self.head_at: datetime | None = None
        self.is_away = False
        self.queues = ["orders", "orders.dlq"]
        self.asked: list[Sequence[str]] = []

    async def look(self, queues: Sequence[str]) -> list[Probed]:
        self.asked.append(queues)
        if self.is_away:
            raise BrokerUnreachableError("nobody answers")
        return [
            Probed(
                queue=queue,
                messages=self.ready if queue == "orders" else 0,
                unacknowledged=0,
                consumers=1,
                delivered=self.delivered if queue == "orders" else self.dead,
                deliveries=self.deliveries if queue == "orders" else self.dead,
                head_at=self.head_at if queue == "orders" else None,
            )
            for queue in self.queues
        ]


class Place:
    def __init__(self) -> None:
        self.broker, self.clock, self.troubles = Broker(), ManualClock(), list[str]()
        self.prober = Prober(
            self.broker,
            lambda: {"orders": "orders.dlq"},
            self.clock,
            every=MINUTE,
            component="RabbitMQ",
            broker="shop",
            collected=lambda: ["orders.dlq", "legacy.dead"],
            trouble=lambda what, error: self.troubles.append(f"{what}: {error}"),
        )

    async def look(self, delivered: int = 0, dead: int = 0) -> dict[str, float]:
        """So many were delivered and died in a minute; what is measured then."""
        self.broker.delivered += delivered
        self.broker.dead += dead
        others = {"stalled", "queue_missing"}
        found = {one.measure: one.value for one in await self.prober.measured() if one.measure not in others}
        self.clock.advance(MINUTE)
        return found

    async def drains(self) -> dict[str, float]:
        """What a look shows of the source's draining, a minute before the next one."""
        found = await self.prober.measured()
        self.clock.advance(MINUTE)
        return {
            one.measure: one.value for one in found if one.measure == "stalled" and one.subject == "orders"
        }


async def test_probe_asks_for_sources_their_dead_letter_queues_and_all_collected_queues() -> None:
    place = Place()
    await place.prober.measured()
    assert place.broker.asked == [["orders", "orders.dlq", "legacy.dead"]]


async def test_collected_queue_without_a_source_is_probed_for_draining() -> None:
    place = Place()
    place.broker.queues.append("legacy.dead")
    found = [one for one in await place.prober.measured() if one.subject == "legacy.dead"]
    assert [(one.measure, one.queue, one.broker) for one in found] == [("stalled", "legacy.dead", "shop")]


async def test_source_that_does_not_exist_is_measured() -> None:
    place = Place()
    place.broker.queues = ["orders.dlq"]
    missing = [one for one in await place.prober.measured() if one.measure == "queue_missing"]
    assert [(one.subject, one.value) for one in missing] == [("orders", 1)]


async def test_an_answer_that_is_missing_is_counted_until_there_is_one() -> None:
    place = Place()
    place.broker.is_away = True
    assert [await place.look(), await place.look()] == [{"probe_failures": 1}, {"probe_failures": 2}]
    assert place.troubles == [
        f"probe failed place=http://127.0.0.1:15672 failures={number}: nobody answers" for number in (1, 2)
    ]
    place.broker.is_away = False
    assert await place.look() == {"probe_failures": 0}


@pytest.mark.parametrize(("delivered", "measured"), [(99, None), (100, 0.1), (1000, 0.01)])
async def test_the_share_of_all_is_measured_from_a_hundred_on(delivered: int, measured: float | None) -> None:
    assert (await Place().look(delivered, 10)).get("dead_letter_ratio") == measured


@pytest.mark.parametrize(("delivered", "measured"), [(0, None), (19, None), (20, 0.25), (500, 0.01)])
async def test_the_share_of_the_latest_is_measured_from_twenty_on(
    delivered: int, measured: float | None
) -> None:
    place = Place()
    assert "recent_dead_letter_ratio" not in await place.look(1000, 1), "there is nothing to compare it with"
    assert (await place.look(delivered, 5)).get("recent_dead_letter_ratio") == measured


async def test_what_the_latest_share_is_made_of_is_told() -> None:
    place = Place()
    await place.look(1000, 0)
    place.broker.delivered, place.broker.dead = 1100, 7
    [rate] = [one for one in await place.prober.measured() if one.measure == "recent_dead_letter_ratio"]
    assert (rate.subject, rate.queue, rate.component) == ("orders", "orders.dlq", "RabbitMQ")
    assert rate.counts == {"delivered": 100, "dead": 7}


async def test_nothing_is_concluded_from_counters_that_have_begun_anew() -> None:
    place = Place()
    await place.look(5000, 100)
    place.broker.delivered, place.broker.dead = 0, 0
    assert "recent_dead_letter_ratio" not in await place.look(200, 1)
    assert (await place.look(100, 2))["recent_dead_letter_ratio"] == pytest.approx(0.02)


async def test_ratio_counts_from_the_moment_that_a_queue_was_made_anew() -> None:
    place = Place()
    await place.look(5000, 100)
    place.broker.delivered = 0  # the source was deleted and made anew, its dead-letter queue was not
    assert "dead_letter_ratio" not in await place.look(50, 0)
    assert (await place.look(100, 3))["dead_letter_ratio"] == pytest.approx(3 / 150)
    place.broker.dead = 0  # now the other one
    await place.look(10, 1)
    assert (await place.look(200, 2))["dead_letter_ratio"] == pytest.approx(3 / 210)


async def test_counts_are_integers() -> None:
    place = Place()
    place.broker.ready = 3
    place.broker.head_at = place.clock.now() - timedelta(seconds=1.5)
    await place.look(1000, 10)
    place.broker.delivered += 100
    found = await place.prober.measured()
    assert {type(number) for one in found for number in one.counts.values()} == {int}


async def test_a_share_is_never_more_than_everything() -> None:
    assert (await Place().look(100, 250))["dead_letter_ratio"] == 1.0


async def test_a_queue_that_is_not_there_is_not_measured() -> None:
    place = Place()
    place.broker.queues = []
    assert await place.look(1000, 500) == {"probe_failures": 0}


# --- draining ------------------------------------------------------------------------------------------------------


async def test_queue_with_ready_messages_and_no_deliveries_is_stalled_from_the_first_look_on() -> None:
    place = Place()
    place.broker.ready = 3
    assert [(await place.drains())["stalled"] for _ in range(4)] == [0, 60, 120, 180]


async def test_queue_is_not_stalled_while_it_is_delivered_from() -> None:
    place = Place()
    place.broker.ready = 3
    stalled = []
    for deliveries in (5, 5, 6, 6, 0):  # the last: the broker counts anew
        place.broker.deliveries = deliveries
        stalled.append((await place.drains())["stalled"])
    assert stalled == [0, 60, 0, 60, 0]


async def test_empty_queue_is_not_stalled_and_begins_anew_when_messages_come() -> None:
    place = Place()
    stalled = []
    for ready in (0, 0, 2, 2, 0, 2):
        place.broker.ready = ready
        stalled.append((await place.drains())["stalled"])
    assert stalled == [0, 0, 0, 60, 0, 0]


async def test_look_that_fails_does_not_end_a_stall() -> None:
    place = Place()
    place.broker.ready = 1
    await place.drains()
    place.broker.is_away = True
    assert await place.drains() == {}
    place.broker.is_away = False
    assert (await place.drains())["stalled"] == 120


async def test_queue_that_was_deleted_is_not_stalled() -> None:
    place = Place()
    place.broker.ready = 1
    await place.drains()
    place.broker.queues = []
    assert await place.drains() == {"stalled": 0}


@pytest.mark.parametrize(("age", "measured"), [(MINUTE, 60.0), (-MINUTE, 0.0), (None, None)])
async def test_age_of_the_head_is_counted_where_the_broker_reports_it(
    age: timedelta | None, measured: float | None
) -> None:
    place = Place()
    place.broker.ready = 1
    place.broker.head_at = None if age is None else place.clock.now() - age
    [stall] = [
        one for one in await place.prober.measured() if (one.measure, one.subject) == ("stalled", "orders")
    ]
    assert stall.counts.get("head_age") == measured


async def test_stall_names_the_queue_its_ready_messages_and_consumers() -> None:
    place = Place()
    place.broker.ready = 4
    [stall] = [
        one for one in await place.prober.measured() if (one.measure, one.subject) == ("stalled", "orders")
    ]
    assert (stall.queue, stall.component, stall.counts) == (
        "orders.dlq",
        "RabbitMQ",
        {"ready": 4, "consumers": 1},
    )
