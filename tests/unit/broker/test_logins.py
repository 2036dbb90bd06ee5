"""How does a client log in, and what is it told if it may not?"""

from collections.abc import Callable

import pytest

from redrive.amqp import methods as m
from redrive.amqp.codec import decode, encode
from redrive.amqp.frames import METHOD, PROTOCOL_HEADER, FrameSplitter, method_frame
from redrive.amqp.sasl import ANONYMOUS, Credentials, encode_response
from redrive.broker.core import Broker
from redrive.broker.session import Session


def _log_in(
    broker: Broker, mechanism: str, *, peer_address: str = "127.0.0.1"
) -> tuple[Session, list[m.Method]]:
    """The session of a client that does not wait for the answers, and what it is told."""
    session = Session(broker, "client", peer_address=peer_address)
    response = encode_response(mechanism, Credentials("guest", "guest"))
    methods = (
        m.ConnectionStartOk({"capabilities": {"authentication_failure_close": True}}, mechanism, response),
        m.ConnectionTuneOk(2047, 131072, 60),
        m.ConnectionOpen("/"),
    )
    session.receive(PROTOCOL_HEADER + b"".join(method_frame(0, encode(method)) for method in methods), 0)
    frames = FrameSplitter(0).feed(session.take())
    return session, [decode(payload) for kind, _, payload in frames if kind == METHOD]


@pytest.mark.parametrize("peer_address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_anonymous_client_logs_in_as_guest(peer_address: str) -> None:
    session, told = _log_in(Broker().with_defaults(), ANONYMOUS, peer_address=peer_address)

    assert isinstance(told[-1], m.ConnectionOpenOk)
    assert (session.user, session.mechanism) == ("guest", ANONYMOUS)
    assert session.tags == ("administrator",)


def test_anonymous_client_logs_in_as_the_configured_user() -> None:
    broker = Broker(anonymous=Credentials("reader", "secret")).with_defaults()
    broker.users.add("reader", "secret")
    broker.users.set_permission("reader", "/", "", "", ".*")

    session, told = _log_in(broker, ANONYMOUS)

    assert isinstance(told[-1], m.ConnectionOpenOk)
    assert session.user == "reader"


def _changed(broker: Broker) -> None:
    broker.users.add("guest", "changed")


def _without_password(broker: Broker) -> None:
    broker.users.add("guest", password_hash="")


def _deleted(broker: Broker) -> None:
    broker.users.delete("guest")


@pytest.mark.parametrize("change", [_changed, _without_password, _deleted])
def test_anonymous_client_is_refused_when_guest_is_not_what_it_was(
    change: Callable[[Broker], None],
) -> None:
    broker = Broker().with_defaults()
    change(broker)

    _, told = _log_in(broker, ANONYMOUS)

    assert isinstance(told[-1], m.ConnectionClose)
    assert told[-1].reply_code == 403
    assert told[-1].reply_text.startswith(
        "ACCESS_REFUSED - Login was refused using authentication mechanism ANONYMOUS."
    )


@pytest.mark.parametrize(
    ("anonymous", "peer_address"),
    [
        (None, "127.0.0.1"),
        (Credentials("guest", "guest"), "192.0.2.1"),
        (Credentials("reader", "secret"), "192.0.2.1"),
        (Credentials("reader", "secret"), "not an address"),
    ],
)
def test_anonymous_is_neither_offered_nor_accepted_when_off_or_from_elsewhere(
    anonymous: Credentials | None, peer_address: str
) -> None:
    broker = Broker(anonymous=anonymous).with_defaults()
    broker.users.add("reader", "secret")
    broker.users.set_permission("reader", "/", "", "", ".*")

    session, told = _log_in(broker, ANONYMOUS, peer_address=peer_address)

    assert isinstance(told[0], m.ConnectionStart)
    assert told[0].mechanisms == b"AMQPLAIN PLAIN"
    assert len(told) == 1
    assert session.is_done
    assert session.user == ""


def test_mechanisms_are_those_of_rabbitmq_in_its_order() -> None:
    _, told = _log_in(Broker().with_defaults(), "PLAIN")

    assert isinstance(told[0], m.ConnectionStart)
    assert told[0].mechanisms == b"AMQPLAIN ANONYMOUS PLAIN"
