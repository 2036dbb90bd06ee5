"""Data directories that earlier versions of the embedded broker left are read completely."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.golden.broker import content, running
from tests.golden.plain import check, read_json
from tests.golden.reading import unpack_directory

V1 = Path(__file__).parent / "v1"


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_broker_directory_of_version_1_is_read_completely(end: str, restart: bool, tmp_path: Path) -> None:
    recorded = read_json(V1 / f"broker-{end}.json.zst")
    unpack_directory((V1 / f"broker-{end}.tar.zst").read_bytes(), tmp_path / "data")
    if restart:  # what the current version has written again
        with running(tmp_path / "data") as broker:
            broker.end(signal.SIGTERM)
        # The flag says how the process before ended, which was another one.
        for one in (
            one for queues in recorded["messages"].values() for queue in queues.values() for one in queue
        ):
            one.pop("redelivered", None)
    with running(tmp_path / "data") as broker:
        current = content(broker)
    for each in (recorded, current):
        _sort_returned(each["messages"]["shop"]["orders.quorum"])
    check(recorded, current)


def _sort_returned(messages: list[Any]) -> None:
    """Version 1 wrote the unacknowledged messages of a connection in reverse, so they return in another order."""
    messages[:2] = sorted(messages[:2], key=lambda one: str(one["message"]["message_id"]))


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_broker_recording_has_every_kind_of_message(end: str) -> None:
    queues = read_json(V1 / f"broker-{end}.json.zst")["messages"]["shop"]
    bodies = {name: [one["message"]["body"].get("bytes") for one in queue] for name, queue in queues.items()}
    assert bodies["orders"][:2] == ["order 1", "order 2"]  # were unacknowledged
    assert "transient" not in bodies["orders"]
    assert "transient" in bodies["orders.quorum"]
    reasons = {
        dict(pair for pair in death["headers"])["reason"]
        for name in ("dead.letters", "dead.quorum")
        for one in queues[name]
        for header, deaths in one["message"]["headers"]["headers"]
        if header == "x-death"
        for death in deaths
    }
    assert reasons == {"rejected", "expired", "maxlen", "delivery_limit"}


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_broker_directory_of_version_1_gets_a_cluster_name_and_keeps_it(end: str, tmp_path: Path) -> None:
    unpack_directory((V1 / f"broker-{end}.tar.zst").read_bytes(), tmp_path / "data")
    names = []
    for _ in range(3):
        with running(tmp_path / "data") as broker:
            names.append(broker.api("GET", "/cluster-name")["name"])
            broker.end(signal.SIGKILL)
    assert names[0].startswith("redrive@")
    assert names[0] != "redrive@localhost"
    assert set(names) == {names[0]}
