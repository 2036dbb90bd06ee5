"""Remember over a crash which messages were being handled.

A process that is killed, out of memory or ended by a segmentation fault cannot say which message did it, and the
broker counts every message that the process held. So each slot writes the trace of its message into a memory-mapped
file before the handler starts, which is no system call and survives the process. The next consumer of the source finds
the file and knows:

- what no slot held was only prefetched: its redelivery is no evidence against it (`crashes` are forgiven);
- what a slot held is a *suspect*. Suspects run one at a time, with nothing beside them;
- what was running alone when the process ended is *convicted*. Only this counts towards poison.

Files of one source lie in one folder, mode 0600 in 0700:

    slots-1, slots-2, …   one for each process that consumes the source, locked for as long as the process lives
    ledger.json           suspects, trials and the times of crashes, of all processes
    lock                  held while one of them is read or written

A file of slots without a lock belongs to a process that has crashed: an orderly end removes it. Suspects expire after
an hour, trials and crashes after a day. Nothing here raises because of a damaged file: it says less then.
"""

import contextlib
import mmap
import os
import re
import sys
import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from redrive.clock import Clock
from redrive.transports.base import RUNNING, TRACE_SIZE, Delivery

if sys.platform != "win32":
    import fcntl

_MAGIC: Final = b"redrive-slots/1\n"
_HEADER_SIZE: Final = 64
_ALONE: Final = 2  # kind of a record: this message runs with nothing beside it
_SUSPECTS_EXPIRE: Final = 3600.0  # seconds
_TRIALS_EXPIRE: Final = 86_400.0
_MOST_SUSPECTS: Final = 10_000
_MOST_CRASHES: Final = 1_000
_LOOK_INTERVAL: Final = timedelta(milliseconds=100)
_LEDGER: Final = "ledger.json"


class Suspect(msgspec.Struct, frozen=True):
    """A message that ran beside others when its process ended."""

    trace: bytes
    at: float


class Trial(msgspec.Struct, frozen=True):
    """A message that is run alone because it may end its process, and what is known against it."""

    at: float
    beside: int = 0  # crashes while others ran, too
    alone: int = 0  # crashes while nothing else ran

    @property
    def crashes(self) -> int:
        """How many crashes are its doing; none as long as it might have been another."""
        return self.alone + self.beside if self.alone else 0


class Ledger(msgspec.Struct):
    """What the consumers of one source know of its crashes."""

    crashes: list[float] = []
    suspects: list[Suspect] = []
    trials: dict[str, Trial] = {}

    def expire(self, now: float) -> None:
        """Forget what is too old to matter."""
        self.crashes = [at for at in self.crashes if now - at < _TRIALS_EXPIRE][-_MOST_CRASHES:]
        self.suspects = [one for one in self.suspects if now - one.at < _SUSPECTS_EXPIRE][-_MOST_SUSPECTS:]
        self.trials = {name: trial for name, trial in self.trials.items() if now - trial.at < _TRIALS_EXPIRE}


def state_directory(setting: str | None, environment: Mapping[str, str]) -> Path | None:
    """Where consumers keep their files: as set, else as systemd or the XDG rules say; None: nowhere."""
    if setting == "none":
        return None
    if setting:
        return Path(setting)
    if folders := environment.get("STATE_DIRECTORY", ""):
        return Path(folders.split(":")[0])
    if state := environment.get("XDG_STATE_HOME", ""):
        return Path(state, "redrive")
    return Path(environment["HOME"], ".local", "state", "redrive") if environment.get("HOME") else None


def folder_name(endpoint: str, source: str, group: str) -> str:
    """The name of the folder of one source of one broker, for people and for certain."""
    digest = blake2b(f"{endpoint}\0{source}\0{group}".encode("utf-8", "replace"), digest_size=8)
    readable = re.sub(r"[^\w.-]", "_", source, flags=re.ASCII)[:40]
    return f"{readable}-{digest.hexdigest()}"


class CrashLog:
    """The crash log of one source, as one of its consumers sees it."""

    def __init__(self, clock: Clock, slots: int) -> None:
        """Without a file: nothing outlives the process. See `open`."""
        self._clock = clock
        self._folder: Path | None = None
        self._file = -1
        self._path: Path | None = None
        self._ledger = Ledger()
        self._stamp: tuple[int, int] | None = None
        self._next_look = clock.monotonic()
        self._map: mmap.mmap | None = None
        self.records = memoryview(bytearray(self.offset_of(slots)))  # of the slots; see `offset_of`
        self.remembers = False  # an earlier consumer has left its files: what they do not name did not crash

    @classmethod
    def open(cls, folder: Path, slots: int, clock: Clock) -> "CrashLog":
        """The log in this folder, with a file for so many slots; raises `OSError`."""
        if sys.platform == "win32":
            raise OSError("crash logs require the file locks of a Unix system")
        log = cls(clock, slots)
        for each in (folder.parent.parent, folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        log._folder = folder
        with log._locked():
            log.remembers = (folder / _LEDGER).exists()
            log._load()
            log._reap()
            log._take_file()
            log._save()
        return log

    def close(self) -> None:
        """The consumer ends in order: nothing is suspected."""
        if self._path is None:
            return
        with contextlib.suppress(OSError), self._locked():
            self._path.unlink(missing_ok=True)
        self._close_file()

    def _close_file(self) -> None:
        if self._map is not None:
            records, self.records = self.records, memoryview(bytearray(len(self.records)))
            records.release()
            self._map.close()  # it has a descriptor of its own, which holds the lock as well
            self._map = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # --- records of slots ----------------------------------------------------------------------------------

    @staticmethod
    def offset_of(slot: int) -> int:
        """Where the record of a slot begins. Its first octet is 0 while nothing runs."""
        return _HEADER_SIZE + slot * TRACE_SIZE

    def begin_alone(self, slot: int, delivery: Delivery) -> None:
        """This message is about to run with nothing beside it."""
        at = self.offset_of(slot)
        self.records[at + 1 : at + 17] = _digest(delivery)
        self.records[at] = _ALONE

    def end(self, slot: int) -> None:
        """What ran in this slot has ended."""
        self.records[self.offset_of(slot)] = 0

    def running(self, delivery: Delivery) -> int:
        """In how many slots of this process this message runs, by an earlier delivery whose connection is gone."""
        found = 0
        for at in range(_HEADER_SIZE, len(self.records), TRACE_SIZE):
            kind = self.records[at]
            if kind == RUNNING:
                found += delivery.has_trace(bytes(self.records[at : at + TRACE_SIZE]))
            elif kind == _ALONE:
                found += bytes(self.records[at + 1 : at + 17]) == _digest(delivery)
        return found

    # --- what is known -------------------------------------------------------------------------------------

    @property
    def crashes(self) -> int:
        """How many crashes are known that may have raised the delivery count of any message."""
        return len(self._ledger.crashes)

    @property
    def is_alert(self) -> bool:
        """Whether some message is suspected or on trial."""
        return bool(self._ledger.suspects or self._ledger.trials)

    def is_suspect(self, delivery: Delivery) -> bool:
        """Whether this message may have ended a process."""
        ledger = self._ledger
        if ledger.suspects and any(delivery.has_trace(one.trace) for one in ledger.suspects):
            return True
        return bool(ledger.trials) and _name(delivery) in ledger.trials

    def look(self) -> None:
        """Look for other consumers of the source that have crashed, at most ten times a second."""
        if self._folder is None or (now := self._clock.monotonic()) < self._next_look:
            return
        self._next_look = now + _LOOK_INTERVAL
        with contextlib.suppress(OSError), self._locked():
            changed = self._load()
            if self._reap() or changed:
                self._save()

    def put_on_trial(self, delivery: Delivery) -> Trial:
        """This message is going to run alone; what is known against it."""
        name = _name(delivery)
        now = self._now()
        matched = [one for one in self._ledger.suspects if delivery.has_trace(one.trace)]
        with self._updating():
            trial = self._ledger.trials.get(name, Trial(now))
            trial = Trial(now, trial.beside + bool(matched), trial.alone)
            self._ledger.trials[name] = trial
            self._ledger.suspects = [one for one in self._ledger.suspects if one not in matched]
        return trial

    def clear(self, delivery: Delivery) -> None:
        """This message has ended no process, or is a dead letter now."""
        name = _name(delivery)
        if name in self._ledger.trials:
            with self._updating():
                self._ledger.trials.pop(name, None)

    # --- files ---------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self._folder is None:
            yield
            return
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for a moment only
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _updating(self) -> Iterator[None]:
        """Change the ledger as the other consumers have left it. Without a file, it is changed in memory."""
        if self._folder is None:
            yield
            return
        with contextlib.suppress(OSError), self._locked():
            self._load()
            yield
            self._save()

    def _load(self) -> bool:
        """Read the ledger if another consumer has written it; whether something has expired since."""
        assert self._folder is not None  # noqa: S101  callers hold the lock of a folder
        path = self._folder / _LEDGER
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found = path.stat()
            if (stamp := (found.st_mtime_ns, found.st_ino)) != self._stamp:
                self._ledger = msgspec.json.decode(path.read_bytes(), type=Ledger)
                self._stamp = stamp
        before = (len(self._ledger.suspects), len(self._ledger.trials), len(self._ledger.crashes))
        self._ledger.expire(self._now())
        return before != (len(self._ledger.suspects), len(self._ledger.trials), len(self._ledger.crashes))

    def _save(self) -> None:
        assert self._folder is not None  # noqa: S101  likewise
        path, new = self._folder / _LEDGER, self._folder / f"{_LEDGER}.new"
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, msgspec.json.encode(self._ledger))
        finally:
            os.close(file)
        new.replace(path)
        found = path.stat()
        self._stamp = (found.st_mtime_ns, found.st_ino)

    def _take_file(self) -> None:
        assert self._folder is not None  # noqa: S101  likewise
        taken = {path.name for path in self._folder.glob("slots-*")}  # of other consumers, which live
        number = next(number for number in count(1) if f"slots-{number}" not in taken)
        self._path = self._folder / f"slots-{number}"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, len(self.records))
        self._map = mmap.mmap(self._file, len(self.records))
        self.records = memoryview(self._map)
        self.records[: len(_MAGIC)] = _MAGIC
        # A process that a handler forks must not hold the lock after its parent has crashed.
        log = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _let_go(log))

    def _reap(self) -> bool:
        """Take over what processes that have crashed were doing; whether there were any."""
        assert self._folder is not None  # noqa: S101  likewise
        found = False
        for path in self._folder.glob("slots-*"):
            if path == self._path:
                continue
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._note_crash(path.read_bytes())
                path.unlink(missing_ok=True)
                found = True
            except OSError:
                continue  # its process lives
            finally:
                os.close(file)
        return found

    def _note_crash(self, octets: bytes) -> None:
        now = self._now()
        ledger = self._ledger
        ledger.crashes = [*ledger.crashes, now]
        if not octets.startswith(_MAGIC):
            return
        for at in range(_HEADER_SIZE, len(octets) - TRACE_SIZE + 1, TRACE_SIZE):
            if octets[at] == RUNNING:
                ledger.suspects = [*ledger.suspects, Suspect(octets[at : at + TRACE_SIZE], now)]
            elif octets[at] == _ALONE:
                name = octets[at + 1 : at + 17].hex()
                trial = ledger.trials.get(name, Trial(now))
                ledger.trials = {**ledger.trials, name: Trial(now, trial.beside, trial.alone + 1)}


def _let_go(log: "weakref.ref[CrashLog]") -> None:
    found = log()
    if found is not None:
        found._close_file()  # noqa: SLF001  its own


def _digest(delivery: Delivery) -> bytes:
    return blake2b(delivery.key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _name(delivery: Delivery) -> str:
    return _digest(delivery).hex()
