"""A consumer reports dead letters that it cannot publish, for as long as it cannot."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from redrive.errors import PublishError
from redrive.letters.event import DeadLettered
from redrive.letters.report import INTERVAL, PublishReport, decode_report
from redrive.letters.verdict import QUEUE
from redrive.testing import ManualClock, a_letter
from redrive.transports.base import Outcomes, Publication
from redrive.watch.publish_report import PublishReporter


class Broker:
    """Takes reports, unless it is told not to."""

    def __init__(self) -> None:
        self.reports: list[PublishReport] = []
        self.fails = False

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        if self.fails:
            raise PublishError("blocked")
        for publication in publications:
            assert publication.target.name == QUEUE
            assert publication.message.properties.get("expiration") == "30000"
            self.reports.append(decode_report(publication.message.body))
        return [None] * len(publications)


def an_event(clock: ManualClock, error: str | None) -> DeadLettered:
    return DeadLettered.of(
        a_letter(source="orders"),
        at=clock.now(),
        description="",
        dead_letter_queue="orders.dlq",
        delivery_count=1,
        error=error,
    )


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_failure_is_reported_at_once_repeated_and_taken_back() -> None:
    clock, broker = ManualClock(), Broker()
    async with PublishReporter(broker.publish, clock) as reporter:
        reporter.dead_lettered(an_event(clock, None))
        await turns()
        assert broker.reports == []  # nothing is sent while all is well
        reporter.dead_lettered(an_event(clock, "no exchange"))
        await turns()
        [first] = broker.reports
        assert (first.source, first.failures, first.error) == ("orders", 1, "no exchange")
        for _ in range(5):
            reporter.dead_lettered(an_event(clock, "no exchange"))
        await turns()
        assert len(broker.reports) == 1  # one report every interval, however many fail
        clock.advance(INTERVAL)
        await turns()
        assert [report.failures for report in broker.reports] == [1, 6]
        reporter.dead_lettered(an_event(clock, None))
        await turns()
        assert broker.reports[-1].failures == 0
        clock.advance(10 * INTERVAL)
        await turns()
        assert len(broker.reports) == 3


async def test_report_that_cannot_be_published_is_followed_by_the_next() -> None:
    clock, broker = ManualClock(), Broker()
    broker.fails = True
    async with PublishReporter(broker.publish, clock) as reporter:
        reporter.dead_lettered(an_event(clock, "blocked"))
        await turns()
        broker.fails = False
        clock.advance(INTERVAL + timedelta(milliseconds=1))
        await turns()
        assert [report.failures for report in broker.reports] == [1]
