from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.transports.rabbitmq.url import Endpoint, parse_url


def test_a_url_with_everything_says_everything() -> None:
    url = parse_url(
        "amqps://al%40ice:p%3Aw@one,two:5673,[::1]:99/my%2Fhost?heartbeat=15&connect_timeout=2s"
        "&cacertfile=/ca.pem&certfile=/me.pem&keyfile=/me.key&verify=verify_none"
    )

    assert url.endpoints == (Endpoint("one", 5671), Endpoint("two", 5673), Endpoint("::1", 99))
    assert (url.user, url.password, url.vhost) == ("al@ice", "p:w", "my/host")
    assert (url.heartbeat, url.connect_timeout) == (15, timedelta(seconds=2))
    assert url.tls is not None
    assert (url.tls.cacertfile, url.tls.certfile, url.tls.keyfile) == ("/ca.pem", "/me.pem", "/me.key")
    assert url.tls.verify is False


@pytest.mark.parametrize("text", ["amqp://localhost", "amqp://localhost/", "AMQP://localhost/%2F"])
def test_what_is_left_out_is_as_rabbitmq_has_it(text: str) -> None:
    url = parse_url(text)

    assert url.endpoints == (Endpoint("localhost", 5672),)
    assert (url.user, url.password, url.vhost, url.tls) == ("guest", "guest", "/", None)


def test_a_certificate_without_a_user_is_the_login() -> None:
    assert parse_url("amqps://host/?certfile=me.pem").password is None
    assert parse_url("amqps://me:secret@host/?certfile=me.pem").password == "secret"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://host", "must start with amqp:// or amqps://"),
        ("host:5672", "must start with amqp:// or amqps://"),
        ("amqp://", "a host is missing"),
        ("amqp://one,,two", "a host is missing"),
        ("amqp://host:0", "a port must be an integer from 1 to 65535"),
        ("amqp://host:65536", "a port must be an integer"),
        ("amqp://host:abc", "a port must be an integer"),
        ("amqp://[::1", "in brackets"),
        ("amqp://host/a/b", "write it as %2F"),
        ("amqp://host/?heartbeet=3", "did you mean 'heartbeat'?"),
        ("amqp://host/?heartbeat=often", "heartbeat: 'often' is not a duration"),
        ("amqp://host/?heartbeat=1ms", "must be an integer from 0 to"),
        ("amqp://host/?connect_timeout=0", "must be longer than 0 seconds"),
        ("amqp://host/?connect_timeout", "name=value"),
        ("amqp://host/?cacertfile=a", "start the URL with amqps://"),
        ("amqps://host/?keyfile=a", "requires certfile"),
        ("amqps://host/?verify=verify_pear", "did you mean 'verify_peer'?"),
    ],
)
def test_a_bad_url_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=r"^broker URL: [^\n]*$") as refused:
        parse_url(text)

    assert says in str(refused.value)


def test_a_file_that_is_not_there_is_refused_by_name() -> None:
    tls = parse_url("amqps://host/?cacertfile=/nowhere/ca.pem").tls

    assert tls is not None
    with pytest.raises(SettingsError, match=r"cacertfile '/nowhere/ca.pem' cannot be used"):
        tls.context()


ODD = st.text("@:/?#%&=[],x", max_size=8)


@given(ODD, ODD)
def test_a_password_is_never_shown_however_it_was_written(before: str, behind: str) -> None:
    text = f"amqp://me:{before}hunter2{behind}@host:1/v?heartbeat=1"

    assert "hunter2" not in _shown(text)


def _shown(text: str) -> str:
    try:
        url = parse_url(text)
    except SettingsError as error:
        return str(error)
    return f"{url!r} {url} {url.place} {url.__rich_repr__()}"
