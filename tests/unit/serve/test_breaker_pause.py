"""A server's breakers pause first for as long as `recover.recheck_interval` says."""

from datetime import timedelta
from pathlib import Path

import pytest

from redrive.serve.crew import Crew
from redrive.settings import read
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock
from redrive.transports.memory import MemoryTransport


@pytest.mark.parametrize(
    ("recover", "pause"),
    [
        ({}, timedelta(minutes=1)),
        ({"recheck_interval": "2s"}, timedelta(seconds=2)),
        ({"recheck_interval": "2h"}, timedelta(hours=2)),
    ],
)  # fmt: skip
def test_an_open_breaker_lets_one_letter_through_after_the_time_between_two_looks(
    tmp_path: Path, recover: dict[str, object], pause: timedelta
) -> None:
    clock = ManualClock()
    settings = read({"recover": recover, "server": {"data_directory": str(tmp_path)}})
    crew = Crew(settings, MemoryStore(clock), MemoryTransport(clock), clock, lambda _what, _error: None)
    for _ in range(5):
        crew.breakers.died("orders")
    clock.advance(pause - timedelta(milliseconds=1))
    assert not crew.breakers.admits("orders")
    clock.advance(timedelta(milliseconds=1))
    assert crew.breakers.admits("orders")
