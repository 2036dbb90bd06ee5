"""What does the URL of a RabbitMQ say?

    amqp://user:password@host1:5672,host2:5673/vhost?heartbeat=30s&connect_timeout=10s
    amqps://user:password@host/vhost?cacertfile=ca.pem
    amqps://host/vhost?certfile=me.pem&keyfile=me.key          (the certificate is the login)

Several hosts are brokers of one cluster: any of them will do. The rule: a password stands in no repr, no error and no
log, not even a piece of one that was not escaped; so an error quotes only what cannot be part of it.
This file opens no connection.
"""

import ssl
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from redrive.errors import SettingsError, use_instead
from redrive.rules.durations import parse_duration

T = TypeVar("T")
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_LONGEST_HEARTBEAT: Final = 65535  # seconds: two octets on the wire


class Endpoint(NamedTuple):
    """One broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """How the connection is encrypted. Without `cacertfile` the system's authorities count."""

    cacertfile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """What Python needs to connect; a file that cannot be read is a `SettingsError`."""
        try:
            context = ssl.create_default_context(cafile=self.cacertfile)
        except OSError as error:  # also ssl.SSLError
            raise SettingsError(
                f"broker URL: cacertfile '{self.cacertfile}' cannot be used: {error}"
            ) from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certfile is not None:
            try:
                context.load_cert_chain(self.certfile, self.keyfile)
            except OSError as error:
                names = " and ".join(filter(None, (self.certfile, self.keyfile)))
                raise SettingsError(
                    f"broker URL: '{names}' cannot be used as a certificate: {error}"
                ) from error
        return context


class BrokerUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where the brokers are, and who we are. `password` None: the client's certificate is the login."""

    endpoints: tuple[Endpoint, ...]
    vhost: str = "/"
    user: str = "guest"
    password: str | None = None
    tls: Tls | None = None
    heartbeat: int = 30  # seconds; 0: none
    connect_timeout: timedelta = timedelta(seconds=10)

    @property
    def place(self) -> str:
        """The URL without credentials and options: what may be shown, and stands in a letter's origin."""
        vhost = "" if self.vhost == "/" else f"/{self.vhost}"
        return f"{'amqps' if self.tls else 'amqp'}://{','.join(map(str, self.endpoints))}{vhost}"

    def __repr__(self) -> str:
        return f"BrokerUrl({self.place!r}, user={self.user!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("place", self.place), ("user", self.user)]


def parse_url(url: str) -> BrokerUrl:
    """The URL as a value; anything odd is a `SettingsError` in one line."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _PORTS:
        raise SettingsError("broker URL: must start with amqp:// or amqps://")
    end = next((at for at, char in enumerate(rest) if char in "/?"), len(rest))
    authority, tail = rest[:end], rest[end:]
    if "@" in tail or "#" in rest:
        # Whatever stands there may be the end of a password: nothing of it is quoted.
        raise SettingsError(
            "broker URL: write @ : / ? # % in a user, password or vhost as %40 %3A %2F %3F %23 %25"
        )
    path, _, query = tail.partition("?")
    if "/" in path[1:]:
        raise SettingsError("broker URL: the vhost contains a /; write it as %2F")
    login, _, hosts = authority.rpartition("@")
    options = _options(query)
    tls = _tls(scheme, options)
    user, colon, password = login.partition(":")
    if not login and tls is not None and tls.certfile is not None:
        who: tuple[str, str | None] = ("", None)
    else:
        who = (unquote(user) or "guest", unquote(password) if colon else "guest" if not login else "")
    return BrokerUrl(
        endpoints=tuple(_endpoint(host, _PORTS[scheme]) for host in hosts.split(",")),
        vhost=unquote(path[1:]) or "/",
        user=who[0],
        password=who[1],
        tls=tls,
        heartbeat=_option(options, "heartbeat", _heartbeat, 30),
        connect_timeout=_option(options, "connect_timeout", _timeout, timedelta(seconds=10)),
    )


def _endpoint(text: str, port: int) -> Endpoint:
    host, after = text, ""
    if text.startswith("["):
        host, closed, after = text[1:].partition("]")
        if not closed or (after and not after.startswith(":")):
            raise SettingsError("broker URL: write an IPv6 address in brackets: [::1]:5672")
    elif ":" in text:
        host, _, after = text.partition(":")
        after = f":{after}"
    if not host:
        raise SettingsError("broker URL: a host is missing; write amqp://host1,host2/vhost")
    if after:
        number = after[1:]
        if not number.isascii() or not number.isdecimal() or not 0 < int(number) < 65536:
            raise SettingsError(
                "broker URL: a port must be an integer from 1 to 65535; write : in a password as %3A"
            )
        port = int(number)
    return Endpoint(host, port)


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise SettingsError("broker URL: write the options after ? as name=value&name=value") from None
    for name, _ in pairs:
        if name not in _KNOWN:
            raise SettingsError(f"broker URL: unknown option '{name}'{use_instead(name, _KNOWN)}")
    return dict(pairs)


def _option(options: Mapping[str, str], name: str, read: Callable[[str], T], default: T) -> T:
    if name not in options:
        return default
    try:
        return read(options[name])
    except (SettingsError, ValueError) as error:
        raise SettingsError(f"broker URL: {name}: {error}") from None


def _seconds(text: str) -> timedelta:
    """Other clients write seconds without a unit here, so that is read as well."""
    return parse_duration(f"{text}s" if text.isascii() and text.isdecimal() else text)


def _heartbeat(text: str) -> int:
    seconds = _seconds(text).total_seconds()
    if seconds != int(seconds) or seconds > _LONGEST_HEARTBEAT:
        raise SettingsError(
            f"must be an integer from 0 to {_LONGEST_HEARTBEAT} seconds; 0 disables heartbeats"
        )
    return int(seconds)


def _timeout(text: str) -> timedelta:
    wait = _seconds(text)
    if not wait:
        raise SettingsError("must be longer than 0 seconds, such as '10s'")
    return wait


def _tls(scheme: str, options: Mapping[str, str]) -> Tls | None:
    given = [name for name in _TLS_OPTIONS if name in options]
    if scheme == "amqp":
        if given:
            raise SettingsError(f"broker URL: {given[0]} requires TLS; start the URL with amqps://")
        return None
    if "keyfile" in options and "certfile" not in options:
        raise SettingsError("broker URL: keyfile requires certfile")
    verify = options.get("verify", "verify_peer").lower()
    if verify not in _VERIFY:
        raise SettingsError(f"broker URL: verify cannot be '{verify[:40]}'{use_instead(verify, _VERIFY)}")
    files = {name: options[name] for name in ("cacertfile", "certfile", "keyfile") if options.get(name)}
    return Tls(**files, verify=_VERIFY[verify])


# The names are those of RabbitMQ's own clients.
_TLS_OPTIONS: Final = ("cacertfile", "certfile", "keyfile", "verify")
_KNOWN: Final = ("heartbeat", "connect_timeout", *_TLS_OPTIONS)
_VERIFY: Final = {"verify_peer": True, "verify_none": False, "true": True, "false": False}
