"""How do many tasks write durably without each waiting for its own disk flush?

One thread owns the writing connection. Jobs that are handed over in one turn of the event loop travel together;
the thread takes all that have come, runs them in one transaction and commits once (group commit). While the disk
works on one group, the next one gathers. A job's future is done only after the commit, so whoever awaited it can
rely on it.

A job that raises changes nothing and disturbs no other: it runs behind a savepoint. Where the database itself
fails (disk full, damaged file), the whole group is rolled back and every job in it is told.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar

from redrive.errors import RedriveError, StoreClosedError
from redrive.stores.sqlite.schema import translate

T = TypeVar("T")
_ENOUGH: Final = (
    250  # jobs to hand over before the turn ends, so that the thread has work while the loop makes more
)
_LARGEST_GROUP: Final = 5000  # jobs in one transaction, give or take one hand-over


class Job(Generic[T]):
    """Work for the writer: `work(connection)` runs inside a transaction, `future` is done after its commit."""

    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        self.work = work
        self.future: asyncio.Future[T]


Result: TypeAlias = tuple[Job[Any], Any, BaseException | None]
# Jobs, and the work that gives one answer for each of them.
Bundle: TypeAlias = tuple[list[Job[Any]], Callable[[sqlite3.Connection], list[Any]]]


class Writer:
    """The thread and its connection. It serves the event loop it was made in.

    `bundle` folds the jobs of a group into fewer pieces of work (many adds into one).
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path, bundle: Callable[[list[Job[Any]]], Iterable[Bundle]]
    ) -> None:
        self._connection = connection
        self._path = path
        self._bundle = bundle
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Job[Any]] = []
        self._handed_over: SimpleQueue[list[Job[Any]] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="redrive-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[T]) -> asyncio.Future[T]:
        """Hand over a job."""
        if self._closed:
            raise StoreClosedError(f"the store {self._path} is closed")
        if not self._gathered:
            self._loop.call_soon(self._hand_over)  # after everything else that this turn has to do
        self._gathered.append(job)
        job.future = self._loop.create_future()
        if len(self._gathered) >= _ENOUGH:
            self._hand_over()
        return job.future

    async def close(self) -> None:
        """Run what was handed over, then end."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._handed_over.put(None)
        await asyncio.to_thread(self._thread.join)

    def _hand_over(self) -> None:
        if self._gathered:
            self._handed_over.put(self._gathered)
            self._gathered = []

    def _deliver(self, results: list[Result]) -> None:
        for job, answer, error in results:
            if job.future.done():
                continue  # cancelled meanwhile; the work itself is done
            if error is None:
                job.future.set_result(answer)
            else:
                job.future.set_exception(error)

    # --- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (group := self._handed_over.get()) is not None:
            more: list[Job[Any]] | None = group
            with suppress(Empty):
                while len(group) < _LARGEST_GROUP and (more := self._handed_over.get_nowait()) is not None:
                    group = group + more
            results = self._commit(group)
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver, results)
            if more is None:
                break
        with suppress(sqlite3.Error):  # a hint to the planner, never worth an error
            self._connection.execute("PRAGMA analysis_limit = 400")
            self._connection.execute("PRAGMA optimize")
        self._connection.close()

    def _commit(self, group: list[Job[Any]]) -> list[Result]:
        """The results of the group, after its commit."""
        results: list[Result] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for jobs, work in self._bundle(group):
                results += self._guarded(jobs, work)
            self._connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001  whoever waits must hear of it, whatever it is
            self._roll_back()
            told = translate(error, self._path) if isinstance(error, sqlite3.Error) else error
            return [(job, None, told) for job in group]
        return results

    def _guarded(self, jobs: list[Job[Any]], work: Callable[[sqlite3.Connection], list[Any]]) -> list[Result]:
        """Run one piece of work; if it refuses, undo what it did and nothing else."""
        execute = self._connection.execute
        execute("SAVEPOINT job")
        try:
            answers = work(self._connection)
        except (RedriveError, ValueError, TypeError, OverflowError, sqlite3.IntegrityError) as error:
            execute("ROLLBACK TO job")
            execute("RELEASE job")
            if len(jobs) == 1:
                return [(jobs[0], None, error)]
            return [result for job in jobs for result in self._guarded([job], alone(job))]
        execute("RELEASE job")
        return [(job, answer, None) for job, answer in zip(jobs, answers, strict=True)]

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def alone(job: Job[Any]) -> Callable[[sqlite3.Connection], list[Any]]:
    """The work of one job, as that of a bundle of one."""
    return lambda connection: [job.work(connection)]
