"""What a client says to log in, for the mechanisms that RabbitMQ's clients use.

The rule: a response that cannot be read is a clear error (502), and no error text
ever repeats a part of the response, because a part of it is a password. Whether the credentials are good
is not for this module to know.
"""

from typing import Final

from msgspec import Struct

from redrive.amqp.errors import FrameSyntaxError, HardError, MisuseError, ReplyCode
from redrive.amqp.table import decode_bare_table, encode_bare_table
from redrive.amqp.values import RawStr

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"
ANONYMOUS: Final = "ANONYMOUS"  # its response is a trace for people, which names nobody


class Credentials(Struct, frozen=True):
    """Who somebody says to be. The password is None where the mechanism has none (EXTERNAL)."""

    username: str
    password: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r}, password=…)"


def encode_response(mechanism: str, credentials: Credentials) -> bytes:
    """The response for a `connection.start-ok`."""
    if mechanism == PLAIN:
        user, password = credentials.username, credentials.password or ""
        if "\x00" in user or "\x00" in password:
            raise MisuseError("a user name or password with a zero octet cannot be sent by PLAIN")
        return f"\x00{user}\x00{password}".encode()
    if mechanism == AMQPLAIN:
        return encode_bare_table({"LOGIN": credentials.username, "PASSWORD": credentials.password or ""})
    if mechanism == EXTERNAL:
        return credentials.username.encode()
    if mechanism == ANONYMOUS:
        return b""
    raise MisuseError(
        f"the login mechanism {mechanism!r} is not known; use PLAIN, AMQPLAIN, EXTERNAL or ANONYMOUS"
    )


def decode_response(mechanism: str, response: bytes) -> Credentials:
    """Whom the response of a `connection.start-ok` names."""
    if mechanism == PLAIN:
        parts = response.split(b"\x00")
        if len(parts) != 3:
            raise _unreadable("a PLAIN response must hold two zero octets: identity, user, password")
        return Credentials(_text(mechanism, parts[1]), _text(mechanism, parts[2]))
    if mechanism == AMQPLAIN:
        try:
            table = decode_bare_table(response)
        except FrameSyntaxError:
            raise _unreadable("an AMQPLAIN response must be a field table") from None
        login, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(login, str | RawStr) or not isinstance(password, str | RawStr):
            raise _unreadable("an AMQPLAIN response must hold the strings LOGIN and PASSWORD")
        return Credentials(_text(mechanism, login), _text(mechanism, password))
    if mechanism == EXTERNAL:
        return Credentials(_text(mechanism, response))
    raise _unreadable("the login mechanism is not one of PLAIN, AMQPLAIN, EXTERNAL")


def _unreadable(text: str) -> HardError:
    return HardError(ReplyCode.SYNTAX_ERROR, text)


def _text(mechanism: str, raw: bytes | str) -> str:
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # No cause is kept: a UnicodeDecodeError carries the octets it choked on.
        raise _unreadable(f"the {mechanism} response is not UTF-8") from None
