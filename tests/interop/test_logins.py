"""Who can log in, by which password hash and by which mechanism?

Every test runs against each broker of `brokers.py`.
"""

import hashlib
import secrets
from base64 import b64encode
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import pika
import pytest

from redrive.errors import ServiceError
from tests.services import RabbitMQ

SALT = b"salt"


def _hash(algorithm: str, password: bytes = b"secret") -> str:
    digest = hashlib.new(algorithm, SALT + password, usedforsecurity=False).digest()
    return b64encode(SALT + digest).decode()


class User:
    """A user of the broker that a test changes, and who may enter the vhost."""

    def __init__(self, broker: RabbitMQ) -> None:
        self.name = f"login-{secrets.token_hex(4)}"
        self._broker = broker

    def put(self, body: Mapping[str, object]) -> None:
        self._broker.api("PUT", f"/users/{self.name}", {"tags": "", **body})
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        self._broker.api("PUT", f"/permissions/{self._broker.vhost}/{self.name}", rights)

    def delete(self) -> None:
        self._broker.api("DELETE", f"/users/{self.name}")

    def logs_in(self, password: str) -> bool:
        address = urlsplit(self._broker.amqp_url)
        parameters = pika.ConnectionParameters(
            address.hostname,
            address.port,
            self._broker.vhost,
            pika.PlainCredentials(self.name, password),
        )
        try:
            pika.BlockingConnection(parameters).close()
        except pika.exceptions.AMQPConnectionError:
            return False
        return True


@pytest.fixture
def user(broker: RabbitMQ) -> Iterator[User]:
    user = User(broker)
    yield user
    try:
        user.delete()
    except ServiceError:
        return


@pytest.mark.parametrize(
    "body",
    [
        {"password": "secret"},
        {"password": "secret", "hashing_algorithm": "rabbit_password_hashing_md5"},
        {"password_hash": _hash("sha256")},
        {"password_hash": _hash("sha512"), "hashing_algorithm": "rabbit_password_hashing_sha512"},
        {"password_hash": _hash("md5"), "hashing_algorithm": "rabbit_password_hashing_md5"},
    ],
)
def test_user_logs_in_with_its_password(user: User, body: Mapping[str, object]) -> None:
    user.put(body)

    assert user.logs_in("secret")
    assert not user.logs_in("wrong")


@pytest.mark.parametrize(
    "body",
    [
        {"password": ""},
        {"password_hash": ""},
        {},
        {"password_hash": "eHk="},
        {"password_hash": _hash("sha512")},
        {"password_hash": _hash("sha256"), "hashing_algorithm": "rabbit_password_hashing_md5"},
        {"password_hash": _hash("sha256"), "hashing_algorithm": "unknown"},
    ],
)
def test_user_with_a_hash_that_cannot_match_exists_and_does_not_log_in(
    user: User, body: Mapping[str, object]
) -> None:
    user.put(body)

    assert not user.logs_in("secret")
    assert not user.logs_in("")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password_hash": "!"}, "not_base64"),
        ({"password": "secret", "password_hash": _hash("sha256")}, "both_password_and_password_hash"),
    ],
)
def test_user_is_refused(user: User, body: Mapping[str, object], reason: str) -> None:
    with pytest.raises(ServiceError, match=reason):
        user.put(body)
