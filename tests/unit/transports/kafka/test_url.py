from datetime import timedelta

import pytest

from redrive.errors import SettingsError
from redrive.transports import open_transport
from redrive.transports.base import Source
from redrive.transports.kafka.url import parse_url


def test_several_brokers_and_options_are_read() -> None:
    url = parse_url(
        "kafka://one,two:9093,[::1]:9094/?group=shop&order=key&commit_interval=250ms&count_deliveries=false"
    )
    assert url.servers == ("one:9092", "two:9093", "[::1]:9094")
    assert (url.group, url.order, url.count_deliveries) == ("shop", "key", False)
    assert url.commit_interval == timedelta(milliseconds=250)
    assert url.place == "kafka://one:9092,two:9093,[::1]:9094"


def test_tls_and_a_user_are_told_to_librdkafka() -> None:
    url = parse_url(
        "kafkas://me:p%40ss%3Aword@host/?sasl.mechanism=SCRAM-SHA-512&ssl.ca.location=ca.pem&linger.ms=7"
    )
    told = url.client()
    assert told["security.protocol"] == "SASL_SSL"
    assert (told["sasl.username"], told["sasl.password"]) == ("me", "p@ss:word")
    assert (told["sasl.mechanism"], told["ssl.ca.location"]) == ("SCRAM-SHA-512", "ca.pem")
    assert "linger.ms" not in told  # a consumer would warn of it
    assert url.producer()["linger.ms"] == "7"
    assert "linger.ms" not in url.consumer()
    assert "p@ss" not in f"{url!r}{url.place}{url.__rich_repr__()}"


def test_what_keeps_the_guarantees_is_always_set() -> None:
    url = parse_url("kafka://host/?session.timeout.ms=9000")
    assert (url.producer()["acks"], url.producer()["enable.idempotence"]) == ("all", True)
    assert url.consumer()["enable.auto.commit"] is False
    assert url.consumer()["partition.assignment.strategy"] == "cooperative-sticky"
    assert url.consumer()["session.timeout.ms"] == "9000"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "must start with kafka://"),
        ("kafka://", "a host is missing"),
        ("kafka://host:99999", "a port must be an integer"),
        ("kafka://::1:9092", "brackets"),
        ("kafka://host/vhost", "no vhosts"),
        ("kafka://u:p@ss/word@host", "write @ : /"),
        ("kafka://host/?group", "name=value"),
        ("kafka://host/?ordr=key", "did you mean 'order'"),
        ("kafka://host/?order=keys", "did you mean 'key'"),
        ("kafka://host/?group=", "must not be empty"),
        ("kafka://host/?max_offset_gap=0", "must be an integer between 1 and 1000000"),
        ("kafka://host/?publish_timeout=soon", "publish_timeout"),
        ("kafka://host/?transactions=yes", "must be one of true, false, not 'yes'"),
        ("kafka://host/?sesion.timeout.ms=6000", "did you mean 'session.timeout.ms'"),
        ("kafka://host/?session.timeout.ms=long", "session.timeout.ms cannot be 'long'"),
        ("kafka://host/?acks=1", "all in-sync replicas"),
        ("kafka://host/?enable.auto.commit=true", "when its record is settled"),
        ("kafka://host/?retry=place", "must be one of memory, topics, not 'place'; did you mean 'memory'?"),
        ("kafka://host/?counts=false", "unknown option 'counts'; did you mean 'count_deliveries'?"),
        ("kafka://host/?gap=600", "unknown option 'gap'; did you mean 'max_offset_gap'?"),
        ("kafka://host/?format=onex", "unknown option 'format'; did you mean 'dead_letter_format'?"),
        ("kafka://host/?order=key&retry=topics", "order=key requires retry=memory"),
    ],
)
def test_anything_odd_is_said_in_one_line(url: str, words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_url(url)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "ss/word" not in str(raised.value)


def test_a_source_has_the_group_that_is_named_nearest_to_it() -> None:
    assert parse_url("kafka://host").group_of("orders", None) == "redrive.orders"
    assert parse_url("kafka://host/?group=shop").group_of("orders", None) == "shop"
    assert parse_url("kafka://host/?group=shop").group_of("orders", "other") == "other"


def test_dead_letters_lie_with_the_group_where_a_source_names_one() -> None:
    assert Source(name="orders").dlq == "orders.dlq"
    assert Source(name="orders", consumer_group="shop").dlq == "shop.dlq"
    assert Source(name="orders", consumer_group="shop", dead_letter_queue="graves").dlq == "graves"


async def test_a_url_finds_its_transport() -> None:
    assert repr(open_transport("kafka://me:secret@host/")) == "KafkaTransport('kafka://host:9092')"
    with pytest.raises(SettingsError, match="did you mean 'kafka'"):
        open_transport("kafk://host")
