"""The crash log: what ran when a process ended is known to the next one, and what did not run is forgiven."""

import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.consume.crash_log import CrashLog, folder_name, state_directory
from redrive.testing import ManualClock
from tests.unit.watch.deliveries import ADelivery

HOUR = timedelta(hours=1)


def delivery(number: int) -> ADelivery:
    return ADelivery(key=f"orders/{number}", count=2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Process:
    """A consumer that may crash: its lock is gone, and its file stays."""

    def __init__(self, folder: Path, clock: ManualClock, slots: int = 3) -> None:
        self.log = CrashLog.open(folder, slots, clock)

    def runs(self, slot: int, number: int) -> None:
        delivery(number).write_trace(self.log.records, CrashLog.offset_of(slot))

    def runs_alone(self, number: int) -> None:
        self.log.put_on_trial(delivery(number))
        self.log.begin_alone(0, delivery(number))

    def crash(self) -> None:
        self.log._close_file()


def suspects(log: CrashLog, *numbers: int) -> list[int]:
    return [number for number in numbers if log.is_suspect(delivery(number))]


def test_first_consumer_of_a_source_remembers_nothing(tmp_path: Path, clock: ManualClock) -> None:
    log = CrashLog.open(tmp_path / "orders", 2, clock)
    assert (log.remembers, log.crashes, log.is_alert) == (False, 0, False)
    log.close()


def test_orderly_end_leaves_no_suspects_but_is_remembered(tmp_path: Path, clock: ManualClock) -> None:
    first = Process(tmp_path, clock)
    first.runs(0, 1)
    first.log.close()
    second = CrashLog.open(tmp_path, 3, clock)
    assert (second.remembers, second.crashes, second.is_alert) == (True, 0, False)
    second.close()


def test_what_ran_when_a_process_ended_is_suspect_and_nothing_else(
    tmp_path: Path, clock: ManualClock
) -> None:
    first = Process(tmp_path, clock)
    for slot, number in ((0, 1), (1, 2), (2, 3)):
        first.runs(slot, number)
    first.log.end(1)
    first.runs(2, 4)  # the next message in that slot
    first.crash()
    log = CrashLog.open(tmp_path, 3, clock)
    assert suspects(log, 1, 2, 3, 4, 5) == [1, 4]
    assert log.crashes == 1
    log.close()


def test_only_what_crashed_alone_is_convicted(tmp_path: Path, clock: ManualClock) -> None:
    first = Process(tmp_path, clock)
    first.runs(0, 1)
    first.runs(1, 2)
    first.crash()
    second = Process(tmp_path, clock)
    assert second.log.put_on_trial(delivery(2)).crashes == 0, "it may have been the other one"
    second.log.clear(delivery(2))
    second.runs_alone(1)
    second.crash()
    third = Process(tmp_path, clock)
    assert suspects(third.log, 1, 2) == [1]
    assert third.log.put_on_trial(delivery(1)).crashes == 2
    third.log.begin_alone(0, delivery(1))
    third.crash()
    log = CrashLog.open(tmp_path, 3, clock)
    assert log.put_on_trial(delivery(1)).crashes == 3
    log.clear(delivery(1))
    assert not log.is_alert
    assert log.crashes == 3
    log.close()


def test_processes_of_one_source_do_not_clash_and_see_each_others_crashes(
    tmp_path: Path, clock: ManualClock
) -> None:
    first, second = Process(tmp_path, clock), Process(tmp_path, clock)
    first.runs(0, 1)
    second.runs(0, 2)
    third = CrashLog.open(tmp_path, 3, clock)
    assert not third.is_alert, "both live"
    first.crash()
    clock.advance(timedelta(seconds=1))
    third.look()
    assert suspects(third, 1, 2) == [1]
    clock.advance(timedelta(seconds=1))
    second.log.look()
    assert suspects(second.log, 1, 2) == [1], "who looks later learns it from the ledger"
    third.close()
    second.log.close()


def test_suspects_expire_and_so_do_crashes(tmp_path: Path, clock: ManualClock) -> None:
    first = Process(tmp_path, clock)
    first.runs(0, 1)
    first.crash()
    second = CrashLog.open(tmp_path, 3, clock)
    assert second.is_alert
    second.close()
    clock.advance(2 * HOUR)
    third = CrashLog.open(tmp_path, 3, clock)
    assert (third.is_alert, third.crashes) == (False, 1)
    third.close()
    clock.advance(24 * HOUR)
    fourth = CrashLog.open(tmp_path, 3, clock)
    assert fourth.crashes == 0
    fourth.close()


@pytest.mark.parametrize("octets", [b"", b"nonsense", b"redrive-slots/1\n", b"\xff" * 4096])
def test_damaged_files_hold_less_and_do_not_stop_a_consumer(
    tmp_path: Path, clock: ManualClock, octets: bytes
) -> None:
    (tmp_path / "slots-1").write_bytes(octets)
    (tmp_path / "ledger.json").write_bytes(octets)
    log = CrashLog.open(tmp_path, 3, clock)
    assert not log.is_alert
    log.close()


def test_files_are_for_their_owner_only(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "state" / "consume" / "orders"
    before = os.umask(0)
    try:
        log = CrashLog.open(folder, 3, clock)
    finally:
        os.umask(before)
    for each in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700, each
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    log.close()


def test_process_that_a_handler_forks_does_not_keep_the_lock(tmp_path: Path, clock: ManualClock) -> None:
    first = Process(tmp_path, clock)
    first.runs(0, 1)
    (reader, writer), (is_there, forked) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.write(forked, b"x")
        os.read(reader, 1)  # lives until the test is over
        os._exit(0)
    os.close(reader)
    try:
        assert os.read(is_there, 1) == b"x"
        first.crash()
        log = CrashLog.open(tmp_path, 3, clock)
        assert suspects(log, 1) == [1]
        log.close()
    finally:
        for end in (writer, is_there, forked):
            os.close(end)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("setting", "environment", "found"),
    [
        (None, {"HOME": "/home/anna"}, "/home/anna/.local/state/redrive"),
        (None, {"HOME": "/home/anna", "XDG_STATE_HOME": "/state"}, "/state/redrive"),
        (
            None,
            {"XDG_STATE_HOME": "/state", "STATE_DIRECTORY": "/var/lib/shop:/var/lib/other"},
            "/var/lib/shop",
        ),
        ("/data", {"STATE_DIRECTORY": "/var/lib/shop"}, "/data"),
        ("none", {"HOME": "/home/anna"}, None),
        (None, {}, None),
    ],
)
def test_state_directory_is_as_set_or_as_the_system_says(
    setting: str | None, environment: dict[str, str], found: str | None
) -> None:
    assert state_directory(setting, environment) == (None if found is None else Path(found))


def test_sources_have_folders_of_their_own_by_broker_and_group() -> None:
    names = {
        folder_name("amqp://a/", "orders", ""),
        folder_name("amqp://b/", "orders", ""),
        folder_name("kafka://a/", "orders", "shop"),
        folder_name("kafka://a/", "orders", "audit"),
        folder_name("amqp://a/", "../../etc/passwd", ""),
    }
    assert len(names) == 5
    assert not any("/" in name for name in names)
