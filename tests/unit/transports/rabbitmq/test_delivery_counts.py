import pytest

from redrive.transports.rabbitmq.delivery_counts import TABLE, counts_of, counts_of_version


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
