"""One server for each store, and the kernel lets go of the lock."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.errors import StoreBusyError, StoreReadOnlyError
from redrive.serve.lock import ServeLock

HOLDING = """
import pathlib, sys
from redrive.serve.lock import ServeLock
lock = ServeLock.take(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_one_is_told_which_process_it_met(tmp_path: Path) -> None:
    lock = ServeLock.take(tmp_path / "redrive.db")
    with pytest.raises(StoreBusyError, match=rf"\(process {os.getpid()}\) is using .*redrive\.db; stop it"):
        ServeLock.take(tmp_path / "redrive.db")
    (tmp_path / "alias.db").symlink_to(tmp_path / "redrive.db")
    with pytest.raises(StoreBusyError, match=r"alias\.db"):
        ServeLock.take(tmp_path / "alias.db")
    ServeLock.take(tmp_path / "other.db").release()
    lock.release()
    lock.release()
    ServeLock.take(tmp_path / "redrive.db").release()


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    # Given another process that serves the store
    store = tmp_path / "redrive.db"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreBusyError, match=rf"\(process {other.pid}\)"):
            ServeLock.take(store)
        # When it is killed
        other.send_signal(signal.SIGKILL)
    # Then its store is free, and the file tells of us
    lock = ServeLock.take(store)
    assert lock.path.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreReadOnlyError, match="cannot be written: "):
        ServeLock.take(tmp_path / "file" / "redrive.db")
