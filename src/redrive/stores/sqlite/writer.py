"""How do many tasks write durably without each waiting for its own disk flush?

One thread owns the writing connection. Jobs that are handed over in one turn of the event loop travel together;
the thread takes all that have come, runs them in one transaction and commits once (group commit). While the disk
works on one group, the next one gathers. A job's future is done only after the commit, so whoever awaited it can rely
on it.

Where very many come in one turn, loop and thread work side by side: jobs are handed over in portions, the thread
commits when it has enough of them, and the loop, which has Python's global lock as long as it is busy, pauses now and
then for a moment, in which the thread can have it.

A job that raises, whatever it raises, changes nothing and disturbs no other: the group is rolled back and done again,
each job behind a savepoint. So jobs do nothing but read and write the database. Where the database itself fails (disk
full, damaged file), the whole group is rolled back and every job in it is told. The same holds where `check` finds
after a commit that the file is no longer the one at its path: a commit into a removed file is not durable.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, NamedTuple, TypeVar

from redrive.errors import StoreClosedError, StoreReplacedError
from redrive.stores.sqlite.schema import translate

T = TypeVar("T")
# SQLite's errors that are about a statement or its values, and so about one job; all others are about the database.
_OF_A_JOB: Final = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)
_LARGEST_GROUP: Final = 5000  # jobs in one transaction, give or take one hand-over
_ENOUGH: Final = 500  # jobs that are committed without waiting for more of the same turn
_PORTION: Final = 250  # jobs that are handed over before the turn is over
_BREATH: Final = 25  # jobs between two pauses of a loop that has more of them, while the thread is at work
_PAUSE_S: Final = 20e-6  # as short as can be: it gives the lock away, which a pause of zero does not
_PATIENCE_S: Final = 0.05  # a turn that takes longer must not keep others from the file


class Job(Generic[T]):
    """Work for the writer: `work(connection)` runs inside a transaction, `future` is done after its commit."""

    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        self.work = work
        self.future: asyncio.Future[T]


class Bundle(NamedTuple):
    """Jobs, and the work that gives one answer for each of them."""

    jobs: Sequence[Job[Any]]
    work: Callable[[sqlite3.Connection], list[Any]]

    @classmethod
    def of(cls, job: Job[Any]) -> "Bundle":
        """The bundle of one job."""
        return cls([job], lambda db: [job.work(db)])


class Portion(NamedTuple):
    """Jobs that were handed over, and whether the same turn of the event loop has more."""

    jobs: list[Job[Any]]
    more: bool


class Results(NamedTuple):
    """What became of jobs: those that are done, with their answers, and those that failed."""

    done: list[tuple[Sequence[Job[Any]], list[Any]]]  # by bundles
    failed: list[tuple[Job[Any], BaseException]]


class Writer:
    """The thread and its connection. It serves the event loop it was made in.

    `bundle` folds the jobs of a group into fewer pieces of work (many adds into one). `check` raises
    `StoreReplacedError` while the file is not the one that was opened.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        bundle: Callable[[list[Job[Any]]], Iterable[Bundle]],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._path = path
        self._bundle = bundle
        self._check = check
        self._is_replaced = False  # the last check has failed
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Job[Any]] = []
        self._is_gathering = False
        self._handed_over: SimpleQueue[Portion | None] = SimpleQueue()
        self._is_ending = False  # the thread has seen the last portion
        self._is_busy = False  # the thread is at work
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="redrive-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[T]) -> asyncio.Future[T]:
        """Hand over a job."""
        if self._closed:
            raise StoreClosedError(f"the store {self._path} is closed")
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._hand_over)  # after everything else that this turn has to do
        job.future = future = self._loop.create_future()
        gathered = self._gathered
        gathered.append(job)
        if not len(gathered) % _BREATH:
            if len(gathered) == _PORTION:
                self._handed_over.put(Portion(gathered, more=True))
                self._gathered = []
            if self._is_busy:
                time.sleep(_PAUSE_S)
        return future

    async def close(self) -> None:
        """Run what was handed over, then end."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._handed_over.put(None)
        await asyncio.to_thread(self._thread.join)

    def _hand_over(self) -> None:
        if self._is_gathering:
            self._is_gathering = False
            self._handed_over.put(Portion(self._gathered, more=False))
            self._gathered = []

    def _deliver(self, results: Results) -> None:
        for jobs, answers in results.done:
            for job, answer in zip(jobs, answers, strict=True):
                future = job.future
                if not future.done():  # else cancelled meanwhile; the work itself is done
                    future.set_result(answer)
        for job, error in results.failed:
            if not job.future.done():
                job.future.set_exception(error)

    # --- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._serve():  # which forgets what it has done, before it waits for more
            pass
        with suppress(sqlite3.Error):  # a hint to the planner, never worth an error
            self._connection.execute("PRAGMA analysis_limit = 400")
            self._connection.execute("PRAGMA optimize")
        self._connection.close()

    def _serve(self) -> bool:
        """Commit what comes next and tell whoever waits for it; False at the end."""
        portion = self._take()
        if portion is None:
            return False
        if portion.jobs:  # else it is the end of a turn whose jobs are done already
            self._is_busy = True
            results = self._commit(portion)
            self._is_busy = False
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver, results)
        return True

    def _take(self, timeout: float | None = None) -> Portion | None:
        """All that was handed over, as one portion; None at the end, or if nothing comes in time."""
        if self._is_ending:
            return None
        portion: Portion | None = None
        with suppress(Empty):
            portion = self._handed_over.get(timeout=timeout)
            while portion is not None and len(portion.jobs) < _LARGEST_GROUP:
                following = self._handed_over.get_nowait()
                if following is None:
                    self._is_ending = True
                    break
                portion = Portion(portion.jobs + following.jobs, following.more)
        return portion

    def _commit(self, portion: Portion) -> Results:
        """The results of the portion, and of what the same turn has besides, after their commit."""
        group: list[Job[Any]] = []
        results = Results([], [])
        try:
            if self._is_replaced:
                self._verify()  # nothing more is written to a file that nobody will find
            self._connection.execute("BEGIN IMMEDIATE")
            this: Portion | None = portion
            while this is not None:
                group += this.jobs
                for bundle in self._bundle(this.jobs):
                    results.done.append((bundle.jobs, bundle.work(self._connection)))
                this = self._take(_PATIENCE_S) if this.more and len(group) < _ENOUGH else None
            self._connection.execute("COMMIT")
            self._verify()
        except BaseException as error:  # noqa: BLE001  whoever waits must hear of it, whatever it is
            self._roll_back()
            if len(group) > 1 and not _concerns_all(error):
                return self._commit_guarded(group)
            return self._all_failed(group or portion.jobs, error)
        return results

    def _verify(self) -> None:
        self._is_replaced = True
        self._check()
        self._is_replaced = False

    def _commit_guarded(self, group: list[Job[Any]]) -> Results:
        """The results of a group in which a job raises, after the commit of all the others."""
        results = Results([], [])
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for bundle in self._bundle(group):
                self._run_guarded(bundle, results)
            self._connection.execute("COMMIT")
            self._verify()
        except BaseException as error:  # noqa: BLE001  as above
            self._roll_back()
            return self._all_failed(group, error)
        return results

    def _run_guarded(self, bundle: Bundle, results: Results) -> None:
        """Run one bundle of several; if it raises, undo what it did and nothing else."""
        execute = self._connection.execute
        execute("SAVEPOINT bundle")
        try:
            answers = bundle.work(self._connection)
        except Exception as error:
            if _concerns_all(error):
                raise
            execute("ROLLBACK TO bundle")
            execute("RELEASE bundle")
            if len(bundle.jobs) == 1:
                results.failed.append((bundle.jobs[0], error))
            else:
                for job in bundle.jobs:
                    for alone in self._bundle([job]):
                        self._run_guarded(alone, results)
        else:
            execute("RELEASE bundle")
            results.done.append((bundle.jobs, answers))

    def _all_failed(self, jobs: list[Job[Any]], error: BaseException) -> Results:
        told = (
            translate(error, self._path)
            if isinstance(error, sqlite3.Error) and _concerns_all(error)
            else error
        )
        return Results([], [(job, told) for job in jobs])

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _concerns_all(error: BaseException) -> bool:
    """Whether the error is the database's, or the interpreter's, and no matter of one job."""
    if isinstance(error, sqlite3.Error):
        return not isinstance(error, _OF_A_JOB)
    return isinstance(error, StoreReplacedError) or not isinstance(error, Exception)
