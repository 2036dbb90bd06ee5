"""Show login attempts, and hash passwords for definitions."""

from functools import partial
from typing import Final

from redrive.broker.management.answers import NO_CONTENT, Answer, Json
from redrive.broker.management.ask import Ask
from redrive.broker.management.lists import Row, listed
from redrive.broker.management.nodes import check_node
from redrive.broker.users import hash_password

_PROTOCOLS: Final = ("amqp091", "http")


def attempts(ask: Ask) -> Answer:
    """Count the login attempts by protocol, since the start or since they were reset."""
    check_node(ask)
    logins = ask.broker.logins
    used = [name for name in _PROTOCOLS if logins[name, True] + logins[name, False]]
    return listed(ask, [Row((name,), name, partial(_attempts, ask, name)) for name in used])


def attempts_by_source(ask: Ask) -> Answer:
    """Attempts are not counted by address and user, as in RabbitMQ unless it is switched on."""
    check_node(ask)
    return listed(ask, [])


def reset_attempts(ask: Ask) -> Answer:
    """Start counting again."""
    check_node(ask)
    ask.need("administrator")
    ask.broker.logins.clear()
    return NO_CONTENT


def hashed_password(ask: Ask) -> Answer:
    """Hash a password with a fresh salt, for `password_hash` in definitions."""
    ask.need("administrator")
    return Answer(body={"ok": hash_password(ask.name)})


def _attempts(ask: Ask, protocol: str) -> Json:
    good, bad = ask.broker.logins[protocol, True], ask.broker.logins[protocol, False]
    return {
        "protocol": protocol,
        "auth_attempts": good + bad,
        "auth_attempts_failed": bad,
        "auth_attempts_succeeded": good,
    }
