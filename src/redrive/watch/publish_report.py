"""Report to the server that dead letters cannot be published.

The first failed attempt is reported at once, and the failures of each source every few seconds for as long as they go
on; when a dead letter was published again, that is reported as well. The reports go through the broker, to the queue
that the server reads anyway (`letters.report`). A report that cannot be published is dropped: the next one follows, and
metrics and log of the consumer say the same.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeAlias

from redrive.clock import Clock, until_first
from redrive.errors import RedriveError
from redrive.letters.event import DeadLettered
from redrive.letters.report import INTERVAL, PublishReport, encode_report
from redrive.letters.verdict import QUEUE
from redrive.transports.base import Outcomes, Publication, Target
from redrive.watch.silent import Silent

Publish: TypeAlias = Callable[[Sequence[Publication]], Awaitable[Outcomes]]


class PublishReporter(Silent):
    """An observer that reports failures to publish dead letters, inside an `async with` block."""

    def __init__(self, publish: Publish, clock: Clock) -> None:
        self._publish = publish
        self._clock = clock
        self._consumer = f"{socket.gethostname()}/{os.getpid()}"
        self._reports: dict[str, PublishReport] = {}  # by source: failing, or just recovered
        self._wake = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    def dead_lettered(self, event: DeadLettered) -> None:
        """Count an attempt that failed, or note that attempts succeed again."""
        report = self._reports.get(event.source)
        if event.durable:
            if report is not None and report.failures:
                self._report(event, 0)
        else:
            self._report(event, 1 if report is None else report.failures + 1)

    def _report(self, event: DeadLettered, failures: int) -> None:
        before = self._reports.get(event.source)
        self._reports[event.source] = PublishReport(
            consumer=self._consumer,
            source=event.source,
            failures=failures,
            at=event.at,
            dead_letter_queue=event.dead_letter_queue,
            error=event.error or "",
        )
        if before is None or not failures:
            self._wake.set()
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        while True:
            self._wake.clear()
            for source, report in list(self._reports.items()):
                await self._send(report)
                if not report.failures and self._reports.get(source) is report:
                    del self._reports[source]
            if self._reports:
                await until_first(self._wake.wait(), self._clock.sleep(INTERVAL))
            else:
                await self._wake.wait()

    async def _send(self, report: PublishReport) -> None:
        try:
            await self._publish([Publication(encode_report(report), Target(name=QUEUE))])
        except RedriveError:
            return  # what keeps dead letters from being published may keep this one, too

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
