"""`redrive demo` as a person starts it: every failure arrives, and each ends where it belongs."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.serving import PROGRAM, Process, clean_environment, redrive

pytestmark = pytest.mark.slow
PATIENCE = 120.0
KINDS = {
    "malformed",
    "denied",
    "rate_limited",
    "network",
    "crash",
    "timeout",
    "expired",
    "overflow",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A demo that has run for twenty seconds, and where its temporary files would be."""
    place = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "demo", "--seconds", "20", "--json"],
        cwd=place,
        env={**clean_environment(), "TMPDIR": str(place), "REDRIVE_RECOVER_DELAYS": '["1h"]'},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done, place


@pytest.fixture(scope="module")
def summary(ended: tuple[subprocess.CompletedProcess[str], Path]) -> dict[str, Any]:
    done, _ = ended
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fate(summary: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [each for each in summary["failures"] if each["kind"] == kind]
    return dict(found)


def test_it_ends_by_itself_and_leaves_nothing_behind(
    ended: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, place = ended
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1  # the summary is all it says
    assert list(place.iterdir()) == []


def test_every_kind_of_failure_has_arrived_and_no_other(summary: dict[str, Any]) -> None:
    assert {each["kind"] for each in summary["failures"]} == KINDS
    assert summary["letters"] == sum(each["letters"] for each in summary["failures"])
    assert summary["letters"] < sum(summary["sent"].values()) / 2  # most messages are well


def test_what_passes_by_itself_is_resolved_by_redrives(summary: dict[str, Any]) -> None:
    assert summary["resolved_after_redrive"] >= 3
    for kind in ("network", "rate_limited", "overflow"):
        assert fate(summary, kind)["states"].get("dlq_resolved", 0) >= 1, kind
    assert fate(summary, "overflow")["reasons"] == ["maxlen"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("malformed", "NonRetryableError"),
        ("denied", "NonRetryableError"),
        ("crash", "PoisonMessage"),
        ("expired", "expired"),
    ],
)
def test_what_only_a_person_can_mend_is_parked(summary: dict[str, Any], kind: str, reason: str) -> None:
    found = fate(summary, kind)
    assert set(found["states"]) == {"dlq_manual"}
    assert found["reasons"] == [reason]
    assert found["most_redrives"] == 0


def test_the_poison_message_has_really_killed_its_consumer_twice(summary: dict[str, Any]) -> None:
    assert fate(summary, "crash")["letters"] == 1
    assert summary["deaths"] == {"orders": 2, "payments": 0, "mail": 0}


def test_what_never_passes_fails_for_good_after_three_redrives(summary: dict[str, Any]) -> None:
    found = fate(summary, "timeout")
    assert found["states"].get("dlq_failed") == 1  # on a slow machine others may be timed out as well, once
    assert found["most_redrives"] == 3


# --- the command itself ----------------------------------------------------------------------------------


def test_ctrl_c_closes_the_shop_in_order_and_what_it_kept_can_be_looked_at(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    demo = Process(tmp_path, "demo", "--data", str(shop))
    try:
        demo.until_it_says("parked for a person")
    finally:
        assert demo.end(signal.SIGINT) == 0
    assert demo.errors == []
    listed = redrive(tmp_path, "--config", str(shop / "redrive.toml"), "list", "kind:malformed", "--json")
    assert listed.returncode == 0, listed.stderr
    assert "order-3" in listed.stdout
    again = redrive(tmp_path, "demo", "--data", str(shop))
    assert again.returncode == 2
    assert "not empty" in again.stderr


def test_a_person_can_send_back_what_was_parked_while_the_shop_is_open(tmp_path: Path) -> None:
    demo = Process(tmp_path, "demo")
    try:
        # Given the two codes that have expired
        words = demo.until_it_says("redrive replay").split()
        names = [demo.until_it_says("expired → parked").split(" ", 1)[1].partition(":")[0] for _ in range(2)]

        # When somebody sends them back, by the addresses that were shown
        where = words[words.index("--server") : words.index("state:manual")]
        sent = redrive(tmp_path, "replay", *where, "kind:expired", "--yes", "--force", "--json")

        # Then they are delivered (at once, or when there is room in the queue), and the view tells it
        assert sent.returncode == 0, sent.stderr
        waiting = {f" {name}: " for name in names}
        while waiting:
            line = demo.until_it_says("resolved by the")
            waiting = {name for name in waiting if name not in line}
    finally:
        assert demo.end() == 0
    assert demo.errors == []


def test_a_demo_that_is_killed_takes_its_broker_and_its_consumers_with_it(tmp_path: Path) -> None:
    demo = Process(tmp_path, "demo", "--data", str(tmp_path / "shop"))
    try:
        demo.until_it_says("redrive top")
        children = psutil.Process(demo.process.pid).children(recursive=True)
    finally:
        demo.end(signal.SIGKILL)
    assert len(children) >= 4
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert alive == []


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = redrive(tmp_path, "demo", "--seconds", "1", "--port", port, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("redrive: cannot listen on 127.0.0.1:")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
