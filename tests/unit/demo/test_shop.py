"""The shop's surroundings: the bank, the mail host, the plan of mishaps, and a consumer that cannot start."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.clock import SystemClock
from redrive.demo.outside import STOLEN, WHOLESALE, Outside, Quota
from redrive.demo.run import Options, write_settings
from redrive.demo.shop import AnswerError, Mail, Payment, ask
from redrive.demo.traffic import PLAN, ROUND, Mishap, mishaps
from redrive.errors import SettingsError
from redrive.letters import FailureKind
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, judged
from redrive.settings import load
from redrive.testing import ManualClock


async def kind_of(url: str, path: str, what: object) -> tuple[FailureKind, timedelta | None]:
    """What the error of a handler that asks for this is taken for."""
    with pytest.raises(Exception) as raised:
        await asyncio.to_thread(ask, url, path, what)
    assert isinstance(raised.value, Exception)
    failure, _ = judged(raised.value, at=SystemClock().now(), classifier=Classifier(()), redactor=Redactor())
    return failure.kind, failure.retry_after


async def test_the_bank_fails_in_every_way_a_bank_can() -> None:
    outside = Outside(SystemClock())
    await outside.open()
    try:
        good = Payment(1, "somebody", "good", 1.0)
        await asyncio.to_thread(ask, outside.bank_url, "/charge", good)
        stolen = Payment(2, "somebody", STOLEN, 1.0)
        assert await kind_of(outside.bank_url, "/charge", stolen) == (FailureKind.DENIED, None)
        many = Payment(3, WHOLESALE, "good", 1.0)
        for _ in range(2):
            await asyncio.to_thread(ask, outside.bank_url, "/charge", many)
        kind, wait = await kind_of(outside.bank_url, "/charge", many)
        assert kind is FailureKind.RATE_LIMITED
        assert wait is not None
        assert timedelta(0) < wait <= timedelta(seconds=2)
        await outside.bank_goes_down()
        assert await kind_of(outside.bank_url, "/charge", good) == (FailureKind.NETWORK, None)
        await outside.bank_comes_back()
        await asyncio.to_thread(ask, outside.bank_url, "/charge", good)
    finally:
        await outside.close()


async def test_a_mailbox_that_never_answers_is_a_timeout() -> None:
    outside = Outside(SystemClock())
    await outside.open()
    try:
        await asyncio.to_thread(ask, outside.mail_url, "/deliver", Mail(1, "a@example.org", "Hello"))
        silent = Mail(2, "nobody@silent.example", "Hello")
        assert await kind_of(outside.mail_url, "/deliver", silent) == (FailureKind.TIMEOUT, None)
    finally:
        await outside.close()


def test_a_quota_says_how_long_to_wait_and_keeps_its_word() -> None:
    clock = ManualClock()
    quota = Quota(clock, most=1, window=timedelta(seconds=4))
    assert quota.take() is None
    clock.advance(timedelta(seconds=1))
    assert quota.take() == timedelta(seconds=3)
    clock.advance(timedelta(seconds=3))
    assert quota.take() is None


def test_an_answer_shows_its_status_and_its_headers() -> None:
    error = AnswerError(429, {"Retry-After": "2"}, "too many")
    assert (error.status, error.headers["Retry-After"], str(error)) == (429, "2", "HTTP 429: too many")


def test_each_mishap_happens_once_in_each_round_however_time_is_cut() -> None:
    wanted = [mishap for _ in range(3) for _, mishap in PLAN]
    for step in (timedelta(milliseconds=300), timedelta(seconds=7), 3 * ROUND):
        found: list[Mishap] = []
        at = timedelta(0)
        while at < 3 * ROUND:
            found += mishaps(at, min(at + step, 3 * ROUND))
            at += step
        assert found == wanted, step
    assert {mishap for _, mishap in PLAN} == set(Mishap)


def test_the_settings_are_valid_and_all_within_the_directory(tmp_path: Path) -> None:
    place = tmp_path / 'a "shop"'
    settings = load(write_settings(Options(directory=place, port=1234)), {})
    assert (settings.server.data_directory, settings.server.port) == (str(place), 1234)
    assert settings.store.url == f"sqlite:{place}/redrive.db"
    with pytest.raises(SettingsError, match="not empty"):
        write_settings(Options(directory=place))
