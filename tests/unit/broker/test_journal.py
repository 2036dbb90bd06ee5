"""The journal gives back what it was told, whatever happened to its files in between."""

import copy
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from redrive.broker import segments
from redrive.broker.journal import Journal
from redrive.broker.journal_errors import (
    JournalBusyError,
    JournalDamagedError,
    JournalError,
    JournalReplacedError,
    JournalVersionError,
)
from redrive.broker.journal_recovery import Recovered
from redrive.broker.message import PROPERTIES_AT
from redrive.broker.records import DELIVERED, DELIVERED_HEAD, ENQUEUE_HEAD, StoredMessage

MEMORY = Path("/dev/shm")
FAST = str(MEMORY) if MEMORY.is_dir() else None  # thousands of syncs: on a disk they would be the whole test


class State(NamedTuple):
    """What a journal has to give back: a model that is nothing but dictionaries."""

    definitions: dict[str, bytes]
    queues: dict[
        int, dict[int, tuple[int, int, int, int, bool]]
    ]  # queue → number → place, expiry, acquired, failures, checked out
    messages: dict[int, StoredMessage]
    held: dict[tuple[int, int], tuple[int, int]] = {}  # noqa: RUF012  queue, number → why, at


def state_of(journal: Journal, recovered: Recovered) -> State:
    queues = {}
    messages = {}
    held = {}
    for queue_id, queue in recovered.queues.items():
        entries = list(queue)
        assert len(entries) == len(queue)
        assert [entry.number for entry in entries] == sorted(entry.number for entry in entries)
        queues[queue_id] = {
            entry.number: (
                entry.place,
                entry.expires_at,
                entry.acquired,
                entry.failures,
                entry.checked_out,
            )
            for entry in entries
        }
        for entry in entries:
            if entry.held is not None:
                held[queue_id, entry.number] = entry.held
            messages[entry.place] = journal.read_message(entry.place)
            assert entry.size == len(messages[entry.place].body)
            header = messages[entry.place].header
            assert entry.header_size == len(header)
            assert entry.flags == (header[PROPERTIES_AT] if len(header) > PROPERTIES_AT else 0)
            assert recovered.next_place > entry.place
    return State(recovered.definitions, queues, messages, held)


def visible(state: State) -> State:
    """A model without what nobody can see: empty queues, messages in no queue."""
    queues = {queue_id: entries for queue_id, entries in state.queues.items() if entries}
    used = {entry[0] for entries in queues.values() for entry in entries.values()}
    messages = {place: message for place, message in state.messages.items() if place in used}
    held = {key: why for key, why in state.held.items() if key[1] in queues.get(key[0], ())}
    return State(state.definitions, queues, messages, held)


def abandon(journal: Journal) -> None:
    """What `kill -9` leaves: the files as they are, and the lock gone."""
    journal._writing.close()
    for file in journal._files.values():
        os.close(file)
    os.close(journal._lock)


def opened(directory: Path, *, salvage: bool = False) -> tuple[State, Recovered]:
    journal, recovered = Journal.open(directory, salvage=salvage)
    state = state_of(journal, recovered)
    journal.close()
    return state, recovered


def duplicate(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Path(name) / "journal"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
QUEUES = st.integers(1, 3)


class JournalMachine(RuleBasedStateMachine):
    """Random histories on tiny segments, with crashes, restarts and compaction anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Path(tempfile.mkdtemp(dir=FAST))
        self.path = self.room / "journal"
        self.now = State({}, {}, {}, {})
        self.safe = copy.deepcopy(self.now)
        self.place = self.number = 0
        self.open()

    def open(self) -> None:
        self.journal, recovered = Journal.open(self.path, segment_bytes=300, compact_above=1)
        assert recovered.torn is None
        assert state_of(self.journal, recovered) == visible(self.safe)

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.room)

    @rule(key=st.sampled_from(["a", "b", "ü"]), value=st.binary(max_size=30))
    def define(self, key: str, value: bytes) -> None:
        self.journal.put_definition(key, value)
        self.now.definitions[key] = value

    @rule(key=st.sampled_from(["a", "b", "ü"]))
    def undefine(self, key: str) -> None:
        self.journal.delete_definition(key)
        self.now.definitions.pop(key, None)

    def message(self, exchange: str, keys: tuple[str, ...], header: bytes, body: bytes) -> StoredMessage:
        self.place += 1
        message = StoredMessage(exchange, keys, header, body)
        self.now.messages[self.place] = message
        return message

    def entry(self, queue_id: int, expires_at: int, place: int) -> int:
        self.number += 1
        self.now.queues.setdefault(queue_id, {})[self.number] = (place, expires_at, 0, 0, False)
        return self.number

    @rule(
        queue_id=QUEUES,
        expires_at=st.sampled_from([0, 1, 1 << 45]),
        exchange=TEXTS,
        keys=st.lists(TEXTS, max_size=3).map(tuple),
        header=st.binary(max_size=20),
        body=st.binary(max_size=200),
    )
    def publish(
        self,
        queue_id: int,
        expires_at: int,
        exchange: str,
        keys: tuple[str, ...],
        header: bytes,
        body: bytes,
    ) -> None:
        message = self.message(exchange, keys, header, body)
        number = self.entry(queue_id, expires_at, self.place)
        self.journal.publish(self.place, queue_id, number, expires_at, *message)

    @rule(
        queues=st.lists(QUEUES, min_size=1, max_size=4),
        expires_at=st.sampled_from([0, 7]),
        body=st.binary(max_size=50),
        settled_at_once=st.sets(st.integers(0, 2)),
    )
    def publish_to_many(
        self, queues: list[int], expires_at: int, body: bytes, settled_at_once: set[int]
    ) -> None:
        message = self.message("fan", ("k",), b"h", body)
        self.journal.add_message(self.place, *message)
        for index, queue_id in enumerate(queues):
            number = self.entry(queue_id, expires_at, self.place)
            self.journal.enqueue(self.place, queue_id, number, expires_at)
            if index in settled_at_once:
                self.settle_entry(queue_id, number)

    @rule(queue_id=QUEUES, part=st.floats(0, 0.99))
    def enqueue_once_more(self, queue_id: int, part: float) -> None:
        places = sorted(visible(self.now).messages)
        if places:
            place = places[int(part * len(places))]
            assert self.journal.holds(place)
            self.journal.enqueue(place, queue_id, self.entry(queue_id, 0, place), 0)

    def settle_entry(self, queue_id: int, number: int) -> None:
        self.journal.settle(queue_id, number)
        del self.now.queues[queue_id][number]

    @rule(queue_id=QUEUES, part=st.floats(0, 1), several=st.integers(1, 8))
    def settle(self, queue_id: int, part: float, several: int) -> None:
        numbers = sorted(self.now.queues.get(queue_id, {}))
        start = int(part * len(numbers))
        for number in numbers[start : start + several]:
            self.settle_entry(queue_id, number)

    @rule(queue_id=QUEUES, part=st.floats(0, 0.99), acquired=st.integers(0, 9), failures=st.integers(0, 9))
    def count(self, queue_id: int, part: float, acquired: int, failures: int) -> None:
        numbers = sorted(self.now.queues.get(queue_id, {}))
        if numbers:
            number = numbers[int(part * len(numbers))]
            self.journal.count(queue_id, number, acquired, failures)
            place, expires_at, *_ = self.now.queues[queue_id][number]
            self.now.queues[queue_id][number] = (place, expires_at, acquired, failures, False)

    @rule(queue_id=QUEUES, part=st.floats(0, 0.99), several=st.integers(1, 8))
    def check_out(self, queue_id: int, part: float, several: int) -> None:
        numbers = sorted(self.now.queues.get(queue_id, {}))
        if numbers:
            first = numbers[int(part * len(numbers))]
            self.journal.check_out(queue_id, first, first + several - 1)
            for number in numbers:
                if first <= number < first + several:
                    *known, _ = self.now.queues[queue_id][number]
                    self.now.queues[queue_id][number] = (*known, True)  # type: ignore[assignment]
                    self.now.held.pop((queue_id, number), None)

    @rule(queue_id=QUEUES, part=st.floats(0, 0.99), why=st.integers(0, 4), at=st.integers(0, 1 << 42))
    def hold(self, queue_id: int, part: float, why: int, at: int) -> None:
        numbers = sorted(self.now.queues.get(queue_id, {}))
        if numbers:
            number = numbers[int(part * len(numbers))]
            self.journal.hold(queue_id, number, why, at)
            self.now.held[queue_id, number] = (why, at)

    @rule(queue_id=QUEUES)
    def settle_what_never_was(self, queue_id: int) -> None:
        self.journal.settle(queue_id, 1 << 40)
        self.journal.count(queue_id, 1 << 40, 1, 1)
        self.journal.check_out(queue_id, 1 << 40, (1 << 40) + 1)
        self.journal.hold(queue_id, 1 << 40, 1, 1)

    @rule(queue_id=QUEUES)
    def purge(self, queue_id: int) -> None:
        self.journal.purge_queue(queue_id)
        self.now.queues.pop(queue_id, None)

    @rule()
    def flush(self) -> None:
        wanted = self.journal.position()
        assert self.journal.flush() >= wanted
        self.safe = copy.deepcopy(self.now)

    @rule(budget=st.integers(1, 400))
    def compact(self, budget: int) -> None:
        self.journal.compact_step(budget)

    @rule()
    def compact_to_the_end(self) -> None:
        while self.journal.compact_step(100):
            self.flush()

    @rule()
    def look_at_the_disk_as_a_crash_would_leave_it(self) -> None:
        state, recovered = opened(duplicate(self.path, self.room / "copy"))
        assert state == visible(self.safe)
        assert recovered.torn is None

    @rule()
    def crash(self) -> None:
        abandon(self.journal)
        self.now = copy.deepcopy(self.safe)
        self.open()

    @rule()
    def restart(self) -> None:
        self.journal.close()
        self.safe = copy.deepcopy(self.now)
        self.open()

    @precondition(lambda self: not self.journal.dirty)
    @invariant()
    def every_live_message_can_be_read_back(self) -> None:
        for place, message in visible(self.now).messages.items():
            assert self.journal.is_readable(place)
            assert self.journal.read_message(place) == message

    @invariant()
    def what_is_alive_is_counted_right(self) -> None:
        live = visible(self.now).messages
        lingering = self.journal._adding in self.journal._places and self.journal._adding not in live
        counted = sum(segment.live for segment in self.journal._segments.values())
        assert counted == len(live) + lingering
        assert sum(segment.live_bytes for segment in self.journal._segments.values()) == (
            sum((where >> 32 & 0xFFFFFF) + (where & 0xFFFFFFFF) for where in self.journal._places.values())
            + sum(len(entries) // 3 * ENQUEUE_HEAD.size for entries in self.journal._shared.values())
            + sum(len(key) + len(value) for key, value in self.now.definitions.items())
        )


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(
    max_examples=120, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def write_history(directory: Path, *, segment_bytes: int = 1 << 20) -> list[State]:
    """A small journal, a block per step; the state after each of them."""
    journal, _ = Journal.open(directory, segment_bytes=segment_bytes)
    state = State({}, {}, {})
    history = [copy.deepcopy(state)]

    def publish(place: int, queue_id: int, body: bytes) -> None:
        journal.publish(place, queue_id, place, 5, "ex", ("key", "cc"), b"header", body)
        state.messages[place] = StoredMessage("ex", ("key", "cc"), b"header", body)
        state.queues.setdefault(queue_id, {})[place] = (place, 5, 0, 0, False)

    def done() -> None:
        journal.flush()
        history.append(copy.deepcopy(state))

    journal.put_definition("queue/one", b"durable")
    state.definitions["queue/one"] = b"durable"
    done()
    for place in range(1, 4):
        publish(place, 1, b"body %d" % place)
        done()
    journal.add_message(4, "fan", (), b"h", b"shared")
    state.messages[4] = StoredMessage("fan", (), b"h", b"shared")
    for queue_id in (1, 2):
        journal.enqueue(4, queue_id, 4, 0)
        state.queues.setdefault(queue_id, {})[4] = (4, 0, 0, 0, False)
    done()
    journal.settle(1, 2)
    del state.queues[1][2]
    journal.count(1, 3, 4, 2)
    state.queues[1][3] = (3, 5, 4, 2, False)
    done()
    publish(5, 2, b"last")
    done()
    journal.close()
    return [visible(one) for one in history]


def test_a_journal_that_is_cut_anywhere_gives_back_a_prefix_and_says_what_was_dropped(
    directory: Path,
) -> None:
    history = write_history(directory)
    (file,) = directory.glob("*.journal")
    whole = file.stat().st_size
    seen = []

    for length in range(whole):
        damaged = duplicate(directory, directory.parent / "cut")
        os.truncate(damaged / file.name, length)
        state, recovered = opened(damaged)
        assert state in history
        seen.append(history.index(state))
        if recovered.torn is not None:
            assert file.name in recovered.torn
            assert f"{recovered.dropped} bytes" in recovered.torn
        assert opened(damaged)[1].torn is None, "a torn tail is cut off once"

    assert seen == sorted(seen)
    assert set(seen) == set(range(len(history) - 1))
    assert opened(directory)[0] == history[-1]


def test_a_cut_between_two_segments_gives_back_a_prefix_too(directory: Path) -> None:
    history = write_history(directory, segment_bytes=100)
    *_, newest = sorted(directory.glob("*.journal"))
    assert newest.name > "000000000002"

    for length in range(newest.stat().st_size):
        damaged = duplicate(directory, directory.parent / "cut")
        os.truncate(damaged / newest.name, length)
        assert opened(damaged)[0] in history


def test_a_journal_goes_on_behind_a_torn_tail(directory: Path) -> None:
    write_history(directory)
    (file,) = directory.glob("*.journal")
    os.truncate(file, file.stat().st_size - 1)

    journal, recovered = Journal.open(directory)
    assert recovered.torn
    journal.publish(9, 9, 9, 0, "", ("new",), b"", b"new")
    journal.close()

    state, recovered = opened(directory)
    assert state.messages[9].body == b"new"
    assert recovered.torn is None


@pytest.mark.parametrize("segment_bytes", [1 << 20, 150])
@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_no_byte_can_change_without_being_noticed(directory: Path, segment_bytes: int, bits: int) -> None:
    history = write_history(directory, segment_bytes=segment_bytes)
    files = sorted(path.name for path in directory.glob("*.journal"))
    refused = torn = 0

    for name in files:
        content = bytearray((directory / name).read_bytes())
        for at in range(len(content)):
            damaged = duplicate(directory, directory.parent / "flipped")
            content[at] ^= bits
            (damaged / name).write_bytes(content)
            content[at] ^= bits
            try:
                state, recovered = opened(damaged)
            except (JournalDamagedError, JournalVersionError):
                refused += 1
                continue
            assert recovered.torn is not None
            assert name == files[-1]
            assert state == history[-2], "only the last block can be taken for a torn one"
            torn += 1

    assert refused
    assert torn


def test_salvage_keeps_everything_but_the_damaged_block_and_the_file_as_it_was(directory: Path) -> None:
    history = write_history(directory, segment_bytes=150)
    known = {place: message for state in history for place, message in state.messages.items()}
    for name in sorted(path.name for path in directory.glob("*.journal")):
        content = bytearray((directory / name).read_bytes())
        for at in [at for at in range(len(content)) if not 8 <= at < 10]:  # another version is another thing
            damaged = duplicate(directory, directory.parent / "flipped")
            content[at] ^= 0xFF
            (damaged / name).write_bytes(content)

            state, recovered = opened(damaged, salvage=True)

            assert recovered.damage or recovered.torn
            assert all(known[place] == message for place, message in state.messages.items())
            assert len(state.messages) >= 2
            if recovered.damage:
                assert (damaged / f"{name}.damaged").read_bytes() == content
            again, healed = opened(damaged)
            assert again == state
            assert healed.torn is None
            content[at] ^= 0xFF


def test_a_missing_segment_is_damage_and_salvage_goes_on_behind_it(directory: Path) -> None:
    write_history(directory, segment_bytes=100)
    _, second, *_ = sorted(directory.glob("*.journal"))
    second.unlink()

    with pytest.raises(JournalDamagedError, match="was expected"):
        Journal.open(directory)

    state, recovered = opened(directory, salvage=True)
    assert "are lost" in recovered.damage[0]
    assert state.messages[5].body == b"last"
    assert opened(directory)[0] == state


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("segment_bytes", [100, 1 << 20])
def test_flush_fails_when_the_newest_segment_was_removed_or_replaced(
    directory: Path, segment_bytes: int, *, replaced: bool
) -> None:
    journal, _ = Journal.open(directory, segment_bytes=segment_bytes)
    journal.publish(2, 1, 1, 0, "", ("q",), b"header", b"kept")
    journal.flush()
    newest = max(directory.glob("*.journal"))
    newest.rename(directory.parent / "moved")
    if replaced:
        shutil.copy(directory.parent / "moved", newest)

    journal.publish(4, 1, 2, 0, "", ("q",), b"header", b"x" * 200)  # more than one small segment holds
    with pytest.raises(JournalReplacedError, match="removed or replaced while it was in use") as caught:
        journal.flush()

    error = caught.value
    assert [error.is_restored] == [False]
    with pytest.raises(JournalError, match="the journal stopped"):
        journal.flush()
    (directory.parent / "moved").replace(newest)
    assert [error.is_restored] == [True]
    journal.close()
    state, _ = opened(directory)
    assert state.messages[2].body == b"kept"


def test_flush_fails_when_the_directory_was_removed(directory: Path) -> None:
    journal, _ = Journal.open(directory)
    shutil.rmtree(directory)
    journal.put_definition("key", b"value")
    with pytest.raises(JournalReplacedError):
        journal.flush()
    journal.close()


def test_a_journal_of_another_version_is_refused(directory: Path) -> None:
    write_history(directory)
    (file,) = directory.glob("*.journal")
    content = bytearray(file.read_bytes())
    content[8] = 2
    file.write_bytes(content)
    with pytest.raises(JournalVersionError, match="has format 2, but this version of redrive reads format 1"):
        Journal.open(directory)
    with pytest.raises(JournalVersionError):
        Journal.open(directory, salvage=True)


def test_a_directory_with_other_things_in_it_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.txt").write_text("years of work")
    with pytest.raises(JournalError, match=r"contains 'thesis\.txt', which is not part of a journal"):
        Journal.open(directory)
    assert (directory / "thesis.txt").read_text() == "years of work"


def test_a_file_in_the_place_of_the_directory_is_refused(directory: Path) -> None:
    directory.write_text("")
    with pytest.raises(JournalError, match="cannot open"):
        Journal.open(directory)


def test_what_an_interrupted_step_left_behind_is_cleaned_away(directory: Path) -> None:
    history = write_history(directory)
    (directory / "000000000002.journal.tmp").write_bytes(b"redr")
    assert opened(directory)[0] == history[-1]
    assert not list(directory.glob("*.tmp"))


def test_a_second_broker_on_the_same_directory_is_refused_in_one_line(directory: Path) -> None:
    journal, _ = Journal.open(directory)
    with pytest.raises(JournalBusyError, match="another broker uses the journal") as caught:
        Journal.open(directory)
    assert "\n" not in str(caught.value)

    code = "import sys, pathlib; from redrive.broker.journal import Journal; Journal.open(pathlib.Path(sys.argv[1]))"
    other = subprocess.run(
        [sys.executable, "-c", code, directory], capture_output=True, text=True, check=False
    )
    assert "JournalBusyError" in other.stderr

    journal.close()
    Journal.open(directory)[0].close()


def test_a_body_that_looks_like_the_journal_itself_is_only_a_body(directory: Path) -> None:
    write_history(directory)
    (file,) = directory.glob("*.journal")
    forged = file.read_bytes()
    journal, _ = Journal.open(directory)
    journal.publish(50, 5, 50, 0, "", ("k",), b"", forged)
    journal.close()
    assert opened(directory)[0].messages[50].body == forged

    for missing in (1, len(forged) // 2):  # torn inside the forgery: no later block is seen in it
        torn = duplicate(directory, directory.parent / "torn")
        os.truncate(torn / file.name, file.stat().st_size - missing)
        state, recovered = opened(torn)
        assert 50 not in state.messages
        assert recovered.torn


@pytest.mark.parametrize("size", [0, 1, segments.LARGEST_BLOCK, 3 * segments.LARGEST_BLOCK])
def test_messages_of_any_size_are_read_back_at_once_and_after_a_restart(directory: Path, size: int) -> None:
    body = os.urandom(size)
    journal, _ = Journal.open(directory, segment_bytes=1 << 20)
    for place in range(1, 4):
        journal.publish(place, 1, place, 0, "", ("k",), b"h", body)
    assert not journal.is_readable(1)
    with pytest.raises(JournalError, match="not on disk yet"):
        journal.read_body(1)
    journal.flush()
    assert [journal.read_body(place) for place in (3, 1, 2)] == [body] * 3
    journal.close()

    journal, recovered = Journal.open(directory)
    assert [entry.size for entry in recovered.queues[1]] == [size] * 3
    assert journal.read_body(2) == body
    journal.close()


def test_a_message_that_was_settled_cannot_be_read_or_enqueued(directory: Path) -> None:
    journal, _ = Journal.open(directory)
    journal.publish(1, 1, 1, 0, "", ("k",), b"", b"body")
    journal.flush()
    journal.settle(1, 1)
    assert not journal.holds(1)
    assert not journal.is_readable(1)
    with pytest.raises(JournalError, match="settled or never added"):
        journal.read_body(1)
    with pytest.raises(JournalError, match="add it before"):
        journal.enqueue(1, 2, 1, 0)
    journal.close()


def test_appending_while_another_thread_flushes_loses_and_reorders_nothing(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=20_000, compact_above=2)
    finished = threading.Event()
    durable: list[int] = []

    def flush() -> None:
        while not finished.is_set():
            durable.append(journal.flush())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for place in range(1, 30_001):
            journal.publish(place, 1, place, 0, "", ("k",), b"h", b"%d" % place)
            if place % 10:
                journal.settle(1, place)
            if not place % 50:
                journal.compact_step(1000)
    finally:
        finished.set()
        thread.join()
        sys.setswitchinterval(interval)
    journal.close()

    assert durable == sorted(durable)
    state, recovered = opened(directory)
    assert recovered.torn is None
    assert {place: int(message.body) for place, message in state.messages.items()} == {
        place: place for place in range(10, 30_001, 10)
    }


def test_segments_without_live_messages_are_deleted_and_definitions_outlive_them(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=2_000)
    journal.put_definition("queue", b"here")
    for place in range(1, 1_001):
        journal.publish(place, 1, place, 0, "", ("k",), b"h", b"x" * 100)
        journal.settle(1, place)
        journal.compact_step()
        journal.flush()
    assert len(list(directory.glob("*.journal"))) <= 2
    journal.close()
    assert opened(directory)[0] == State({"queue": b"here"}, {}, {})


def test_one_old_message_does_not_keep_the_whole_log(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=2_000, compact_above=4)
    journal.publish(1, 1, 1, 9, "old", ("k",), b"h", b"stays")
    journal.count(1, 1, 4, 3)
    for place in range(2, 1_001):
        journal.publish(place, 1, place, 0, "", ("k",), b"h", b"x" * 100)
        journal.settle(1, place)
        journal.compact_step()
        journal.flush()
    assert len(list(directory.glob("*.journal"))) <= 6
    assert journal.read_message(1) == StoredMessage("old", ("k",), b"h", b"stays")
    journal.close()
    assert opened(directory)[0].queues == {1: {1: (1, 9, 4, 3, False)}}


def test_delivery_counts_of_older_versions_are_read(directory: Path) -> None:
    journal, _ = Journal.open(directory)
    for place in (1, 2):
        journal.publish(place, 1, place, 0, "", ("k",), b"h", b"x")
    for number, deliveries in ((1, 0), (2, 3)):
        journal._append(DELIVERED_HEAD.pack(DELIVERED, 1, number, deliveries))
    journal.close()
    assert opened(directory)[0].queues == {1: {1: (1, 0, 1, 0, False), 2: (2, 0, 3, 3, False)}}


def test_returned_entries_are_read_in_the_order_of_their_last_return(directory: Path) -> None:
    journal, _ = Journal.open(directory)
    for place in (1, 2, 3):
        journal.publish(place, 1, place, 0, "", ("k",), b"h", b"x")
    for number, acquired in ((3, 1), (1, 1), (2, 0), (3, 2)):
        journal.count(1, number, acquired, 1)
    journal.close()
    _, recovered = Journal.open(directory)
    assert recovered.queues[1].returned == [1, 3]


def test_a_message_that_only_later_queues_still_hold_is_copied_for_those_alone(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=300, compact_above=1)
    journal.publish(1, 1, 1, 5, "ex", ("k",), b"h", b"body")
    journal.enqueue(1, 2, 1, 6)
    journal.count(2, 1, 5, 4)
    journal.settle(1, 1)
    for place in range(2, 40):
        journal.publish(place, 3, place, 0, "", ("k",), b"h", b"x" * 100)
        journal.settle(3, place)
    journal.flush()
    while journal.compact_step():
        journal.flush()
    journal.close()
    assert min(directory.glob("*.journal")).name > "000000000001.journal"
    assert opened(directory)[0] == State(
        {}, {2: {1: (1, 6, 5, 4, False)}}, {1: StoredMessage("ex", ("k",), b"h", b"body")}
    )


def test_a_segment_stays_until_what_made_it_useless_is_durable(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=100)
    journal.publish(1, 1, 1, 0, "", ("k",), b"h", b"x" * 100)
    journal._write()  # the first half of a flush; while it waits for the disk, the event loop goes on:
    journal.publish(2, 2, 1, 0, "dlx", ("k",), b"h", b"the dead letter of the first")
    journal.settle(1, 1)
    journal.compact_step()
    journal._delete_retired()  # the second half
    assert 1 in opened(duplicate(directory, directory.parent / "copy"))[0].messages

    journal.flush()
    assert set(opened(duplicate(directory, directory.parent / "copy"))[0].messages) == {2}
    assert not (directory / "000000000001.journal").exists()
    journal.close()


def test_segments_that_are_not_written_yet_are_left_alone(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=300, compact_above=1)
    for place in range(1, 40):
        journal.publish(place, 1, place, 0, "", ("k",), b"h", b"x" * 100)
        if place > 1:
            journal.settle(1, place)
    assert journal.compact_step() is False
    journal.flush()
    assert journal.compact_step(1) is True
    journal.close()
    assert set(opened(directory)[0].messages) == {1}


def test_compaction_comes_to_an_end_where_everything_is_alive(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=500, compact_above=1)
    for place in range(1, 101):
        journal.add_message(place, "", (), b"", b"")
        for queue_id in range(5):
            journal.enqueue(place, queue_id, place, 0)
            journal.count(queue_id, place, 1, 1)
        journal.put_definition(f"d{place}", b"")
    journal.flush()
    steps = 0
    while journal.compact_step():
        journal.flush()
        steps += 1
        assert steps < 1_000
    journal.close()
    assert len(opened(directory)[0].messages) == 100


def test_a_copy_is_never_made_of_damaged_data(directory: Path) -> None:
    journal, _ = Journal.open(directory, segment_bytes=1_000, compact_above=1)
    for place in range(1, 101):
        journal.publish(place, 1, place, 0, "", ("k",), b"h", b"x" * 100)
        if place > 2:
            journal.settle(1, place)
    journal.flush()
    oldest = min(directory.glob("*.journal"))
    content = bytearray(oldest.read_bytes())
    content[-300] ^= 1
    oldest.write_bytes(content)

    with pytest.raises(JournalDamagedError, match="checksum mismatch"):
        journal.compact_step()
    assert journal.compact_step() is False
    assert oldest.exists()
    journal.close()


def test_the_index_of_a_long_queue_stays_small(directory: Path) -> None:
    messages = 50_000
    journal, _ = Journal.open(directory)
    for place in range(1, messages + 1):
        journal.publish(place, 1, place, 0, "ex", ("key",), b"h" * 40, b"x" * 1000)
        if place % 1000 == 0:
            journal.flush()
    journal.close()
    del journal
    gc.collect()

    tracemalloc.start()
    journal, recovered = Journal.open(directory)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert recovered.messages == messages
    assert used / messages < 300
    assert journal.read_body(messages) == b"x" * 1000
    journal.close()


def test_a_closed_journal_says_so(directory: Path) -> None:
    journal, _ = Journal.open(directory)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.flush()
