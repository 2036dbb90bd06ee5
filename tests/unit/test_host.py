"""How busy the machine is, measured once in a while."""

from datetime import timedelta

import psutil
import pytest

from redrive.host import Host, Load
from redrive.testing import ManualClock


def test_shares_are_fractions_of_one() -> None:
    load = Host(ManualClock())()
    assert load is not None
    assert 0 <= load.cpu <= 1
    assert 0 < load.memory < 1


def test_it_is_measured_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.0, 25.0, 75.0])
    monkeypatch.setattr(psutil, "cpu_percent", lambda _interval: next(shares))
    clock = ManualClock()
    host = Host(clock)
    first = host()
    clock.advance(timedelta(seconds=4))
    assert host() is first
    clock.advance(timedelta(seconds=2))
    found = host()
    assert isinstance(found, Load)
    assert found.cpu == 0.75


def test_what_cannot_be_measured_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(ManualClock())

    def refuse(_interval: float | None) -> float:
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_percent", refuse)
    assert host() is None
