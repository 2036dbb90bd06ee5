"""Remember which consumers have reported that they cannot publish dead letters.

A report is in force until the consumer reports success, or until it has not been repeated for a while: the consumer may
have stopped. A report that was sent long ago is ignored. Reports do not expire on Kafka, so a server that starts may
read old ones.
"""

from datetime import timedelta
from typing import Final

from redrive.clock import Clock
from redrive.letters.report import LIFETIME, PublishReport

_MAX_CONSUMERS: Final = 1000
_MAX_AGE: Final = 10 * LIFETIME  # longer than its lifetime, because clocks of machines differ


class ConsumerReports:
    """The reports in force."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports: dict[tuple[str, str], tuple[timedelta, PublishReport]] = {}

    def received(self, report: PublishReport) -> None:
        """A consumer has reported."""
        if self._clock.now() - report.at > _MAX_AGE:
            return
        key = (report.source, report.consumer)
        self._reports.pop(key, None)
        if report.failures > 0:
            self._reports[key] = (self._clock.monotonic(), report)
            if len(self._reports) > _MAX_CONSUMERS:
                del self._reports[next(iter(self._reports))]

    def failures(self) -> dict[str, int]:
        """Source → attempts to publish a dead letter that have failed, of all its consumers."""
        counts: dict[str, int] = {}
        for report in self._current():
            counts[report.source] = counts.get(report.source, 0) + report.failures
        return counts

    def problems(self) -> dict[str, str]:
        """Source → what its consumers cannot do."""
        return {
            report.source: (
                f"{report.consumer} cannot publish dead letters to {report.dead_letter_queue or 'their queue'} "
                f"({report.failures} failed attempts): {report.error}"
            )
            for report in self._current()
        }

    def _current(self) -> list[PublishReport]:
        oldest = self._clock.monotonic() - LIFETIME
        self._reports = {key: entry for key, entry in self._reports.items() if entry[0] >= oldest}
        return [report for _, report in self._reports.values()]
