import re
from pathlib import Path

import pytest

from redrive.transports.rabbitmq.delivery_counts import TABLE, counts_of, counts_of_version

REFERENCE = Path(__file__).parents[4] / "docs/reference/transport-rabbitmq.md"


@pytest.mark.parametrize(
    ("version", "versions"),
    [
        ("3.7.28", "3.8 to 3.13"),
        ("3.8.0", "3.8 to 3.13"),
        ("3.10.8", "3.8 to 3.13"),
        ("3.13.7", "3.8 to 3.13"),
        ("4.0.5", "4.0 to 4.2"),
        ("4.2.9", "4.0 to 4.2"),
        ("4.3.0-beta.1", "4.3 and later"),
        ("4.3.6", "4.3 and later"),
        ("4.10.0", "4.3 and later"),
        ("5.0.0", "4.3 and later"),
    ],
)
def test_counts_of_a_server_are_those_of_its_version(version: str, versions: str) -> None:
    assert counts_of({"product": "RabbitMQ", "version": version}).versions == versions
    assert counts_of({"product": "RabbitMQ", "version": version.encode()}).versions == versions


@pytest.mark.parametrize("version", [None, "", "unknown", "v4"])
def test_counts_of_an_unknown_version_assume_that_looking_counts_and_that_there_is_a_limit(
    version: object,
) -> None:
    for counts in (counts_of({"version": version, "platform": "Erlang/OTP 27"}), counts_of_version(None)):
        assert counts.looking_counts
        assert counts.default_limit == 20


def test_counts_of_the_embedded_broker_are_the_newest_whatever_it_announces() -> None:
    assert counts_of({"platform": "redrive 0.1", "version": "4.0.0"}) is TABLE[-1]


def test_limit_in_force_depends_on_the_version() -> None:
    old, four, newest = TABLE
    assert [row.limit_in_force(None) for row in TABLE] == [None, 20, 20]
    assert [row.limit_in_force(7) for row in TABLE] == [7, 7, 7]
    assert (four.limit_in_force(-1), newest.limit_in_force(-1)) == (None, None)
    assert old.limit_in_force(-1) == -1  # the first return exceeds it


def test_documentation_has_the_table() -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    found = re.search(r"<!-- table: delivery counts -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == markdown_table()


def markdown_table() -> str:
    """The table for the documentation: one column per generation."""
    rows: list[tuple[str, list[str]]] = [
        ("RabbitMQ", [row.versions for row in TABLE]),
        ("`basic.reject` with requeue, channel closed, connection lost", ["counts" for _ in TABLE]),
        (
            "`basic.nack` with requeue, `basic.recover`; also after `basic.get`",
            ["counts" if row.nack_counts else "does not count" for row in TABLE],
        ),
        ("`x-delivery-count` holds", [row.delivery_count_holds for row in TABLE]),
        ("`x-acquired-count` holds", ["every delivery" if row.has_acquired_count else "–" for row in TABLE]),
        ("the delivery limit is compared with", [row.limit_compared_with for row in TABLE]),
        ("limit of a queue that sets none", [str(row.default_limit or "none") for row in TABLE]),
        (
            "a limit of -1",
            ["no limit" if row.can_be_unlimited else "the first return is too many" for row in TABLE],
        ),
        (
            "a dead letter in a quorum queue begins with",
            ["counts of the queue before" if row.carries_counts else "no count" for row in TABLE],
        ),
        (
            "a dead letter in a classic queue may begin as `redelivered`",
            ["yes" if row.carries_flag else "no" for row in TABLE],
        ),
    ]
    lines = ["| " + " | ".join([name, *values]) + " |" for name, values in rows]
    return "\n".join([lines[0], "|" + " --- |" * (len(TABLE) + 1), *lines[1:]])
