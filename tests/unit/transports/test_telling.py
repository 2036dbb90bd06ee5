"""What nobody has asked for goes to the log, and trouble can be told from news there."""

import logging

import pytest

from redrive.transports.telling import to_log

LOG = logging.getLogger("redrive.transports.some")


def test_news_is_information(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOG.name):
        to_log(LOG)("reconnected", None)

    assert caplog.record_tuples == [(LOG.name, logging.INFO, "reconnected")]


def test_trouble_is_a_warning_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOG.name):
        to_log(LOG)("connection lost", OSError("nobody is there"))

    assert caplog.record_tuples == [(LOG.name, logging.WARNING, "connection lost: nobody is there")]
