"""What does the URL of a Kafka say?

    kafka://host1:9092,host2:9092/?group=shop&order=key
    kafkas://user:password@host:9093/?sasl.mechanism=SCRAM-SHA-512&ssl.ca.location=ca.pem

`kafkas` is TLS; a user is SASL. Options without a dot are redrive's own; those with one are librdkafka's and go to it
as they are. The rules: what would break a guarantee cannot be set, and a password stands in no repr, no error and no
log, so an error quotes only what cannot be part of it. This file opens no connection.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote

import msgspec
from confluent_kafka import Consumer, KafkaException

from redrive.errors import SettingsError, did_you_mean, use_instead
from redrive.rules.durations import parse_duration

Order = Literal["none", "key"]
Retry = Literal["memory", "topics"]
Format = Literal["redrive", "onex"]
_PORT: Final = 9092
_SILENT: Final = logging.getLogger("redrive.transports.kafka.url")  # an option that is only asked about
_SILENT.addFilter(lambda _: False)


class BrokerUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where the brokers are, who we are, and how topics are consumed."""

    servers: tuple[str, ...]  # host:port
    tls: bool = False
    user: str | None = None
    password: str = ""
    group: str | None = None  # None: each source has its own, `redrive.{topic}`
    order: Order = "none"  # key: the records of a key are handed out one after the other
    retry: Retry = "memory"  # where a record waits for its retry: in this process, or in a topic
    dead_letter_format: Format = "redrive"
    environment: str = "dev"  # of ONEX dead letters
    transactions: bool = False  # a dead letter and the offset of its record are written as one
    count_deliveries: bool = True  # across crashes, in the metadata of commits
    max_offset_gap: int = 10_000  # records of a partition received while an earlier one is not settled
    commit_interval: timedelta = timedelta(milliseconds=100)
    publish_timeout: timedelta = timedelta(seconds=30)
    connect_timeout: timedelta = timedelta(seconds=10)
    passed_on: Mapping[str, str] = msgspec.field(default_factory=dict)  # librdkafka's own options

    @property
    def place(self) -> str:
        """The URL without credentials and options: what may be shown, and stands in a letter's origin."""
        return f"{'kafkas' if self.tls else 'kafka'}://{','.join(self.servers)}"

    def group_of(self, source: str, group: str | None) -> str:
        """The consumer group of a source. One of its own where none is named: sources then do not disturb others."""
        return group or self.group or default_group(source)

    def __repr__(self) -> str:
        return f"BrokerUrl({self.place!r}, user={self.user!r})"

    def __rich_repr__(self) -> list[tuple[str, str | None]]:
        return [("place", self.place), ("user", self.user)]

    # --- what librdkafka is told -------------------------------------------------------------------------------

    def client(self) -> dict[str, Any]:
        """What any client is told."""
        secured = "SASL_" if self.user is not None else ""
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.servers),
            "client.id": "redrive",
            "security.protocol": f"{secured}{'SSL' if self.tls else 'PLAINTEXT'}",
            "log.connection.close": False,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 2_000,
        }
        if self.user is not None:
            settings |= {
                "sasl.mechanism": "PLAIN",
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        shared = {
            name: value for name, value in self.passed_on.items() if not _is_for(name, _CONSUMER + _PRODUCER)
        }
        return settings | shared

    def consumer(self) -> dict[str, Any]:
        """What a consumer is told beside its group."""
        return {
            **self.client(),
            "auto.offset.reset": "earliest",  # what lies there before the group is known is not passed over
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
            "fetch.wait.max.ms": 100,
            # When enough has been fetched ahead (64 MB): how long until it is looked again whether that is still so. By
            # default a second, in which a quick consumer runs dry.
            "fetch.queue.backoff.ms": 50,
            **{name: value for name, value in self.passed_on.items() if _is_for(name, _CONSUMER)},
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,  # else the markers of transactions would seem to wait for ever
        }

    def producer(self) -> dict[str, Any]:
        """What a producer is told."""
        timeout = int(self.publish_timeout.total_seconds() * 1000)
        return {
            **self.client(),
            "linger.ms": 1,
            "partitioner": "murmur2_random",  # the partition that Java's producers choose for a key
            "message.timeout.ms": timeout,
            "topic.metadata.propagation.max.ms": min(2_000, timeout),
            "message.max.bytes": 1_000_000_000,  # the broker knows its limit; ours would only hide it
            **{name: value for name, value in self.passed_on.items() if _is_for(name, _PRODUCER)},
            "acks": "all",
            "enable.idempotence": True,
        }


def default_group(source: str) -> str:
    """The consumer group of a source where neither the source nor the URL names one."""
    return f"redrive.{source}"


def parse_url(url: str) -> BrokerUrl:
    """The URL as a value; anything odd is a `SettingsError` in one line."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in ("kafka", "kafkas"):
        raise SettingsError("broker URL: must start with kafka:// or kafkas://")
    end = next((at for at, char in enumerate(rest) if char in "/?"), len(rest))
    authority, tail = rest[:end], rest[end:]
    path, _, query = tail.partition("?")
    if "@" in path or "#" in rest:
        # Whatever stands there may be the end of a password: nothing of it is quoted.
        raise SettingsError("broker URL: write @ : / ? # % in a user or password as %40 %3A %2F %3F %23 %25")
    if path.strip("/"):
        raise SettingsError(
            "broker URL: Kafka has no vhosts; remove the path, and set the consumer group with ?group="
        )
    login, _, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    own, passed_on = _options(query)
    if own.get("order") == "key" and own.get("retry") == "topics":
        raise SettingsError(
            "broker URL: order=key requires retry=memory; a record in a retry topic loses its place in the order"
        )
    return BrokerUrl(
        servers=tuple(_server(host) for host in hosts.split(",")),
        tls=scheme == "kafkas",
        user=unquote(user) if login else None,
        password=unquote(password),
        passed_on=passed_on,
        **{name: _option(name, text) for name, text in own.items()},
    )


def _server(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORT)
    if not host.strip("[]"):
        raise SettingsError("broker URL: a host is missing; write kafka://host1:9092,host2:9092")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise SettingsError("broker URL: write an IPv6 address in brackets: [::1]:9092")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError(
            "broker URL: a port must be an integer from 1 to 65535; write : in a password as %3A"
        )
    return f"{host}:{port}"


# --- options -------------------------------------------------------------------------------------------------


def _options(query: str) -> tuple[dict[str, str], dict[str, str]]:
    """Redrive's own, and librdkafka's."""
    try:
        pairs = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise SettingsError("broker URL: write the options after ? as name=value&name=value") from None
    for name, value in pairs.items():
        if name in _OURS_ALONE:
            raise SettingsError(f"broker URL: {name} cannot be set: {_OURS_ALONE[name]}")
        if name not in _OWN:
            _check(name, value)
    own = {name: value for name, value in pairs.items() if name in _OWN}
    return own, {name: value for name, value in pairs.items() if name not in _OWN}


def _check(name: str, value: str) -> None:
    """Ask librdkafka whether it knows the option, and takes this value."""
    if "." not in name and name != "debug":
        hint = f"; did you mean '{_RENAMED[name]}'?" if name in _RENAMED else use_instead(name, _OWN)
        raise SettingsError(f"broker URL: unknown option '{name}'{hint}")
    try:
        Consumer({"group.id": "redrive", name: value}, logger=_SILENT).close()
    except KafkaException as error:
        code = error.args[0]
        if "No such configuration property" in code.str():
            known = (*_OWN, *_WELL_KNOWN)
            hint = did_you_mean(name, known) or "; neither redrive nor librdkafka has this option"
            raise SettingsError(f"broker URL: unknown option '{name}'{hint}") from None
        if "Java" in code.str() or "file" in code.str() or name in _SECRETS:
            return  # told when it connects, where it says what is wrong with the file
        raise SettingsError(f"broker URL: {name} cannot be {value[:40]!r}: {code.str()}") from None


def _option(name: str, text: str) -> Any:
    try:
        return _OWN[name](text)
    except (SettingsError, ValueError) as error:
        raise SettingsError(f"broker URL: {name}: {error}") from None


def _one_of(*words: str, renamed: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            new = renamed.get(text)
            hint = did_you_mean(text, words) if new is None else f"; did you mean '{new}'?"
            raise SettingsError(f"must be one of {', '.join(words)}, not '{text[:40]}'{hint}")
        return text

    return read


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[_one_of("true", "false")(text.lower())]


def _name(text: str) -> str:
    if not text:
        raise SettingsError("must not be empty")
    return text


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise SettingsError("must be an integer between 1 and 1000000")
    return int(text)


def _duration(text: str) -> timedelta:
    wait = parse_duration(f"{text}s" if text.isascii() and text.isdecimal() else text)
    if not wait:
        raise SettingsError("must be longer than 0 seconds, such as '10s'")
    return wait


_OWN: Final[dict[str, Callable[[str], Any]]] = {
    "group": _name,
    "order": _one_of("none", "key"),
    "retry": _one_of("memory", "topics", renamed={"place": "memory"}),
    "dead_letter_format": _one_of("redrive", "onex"),
    "environment": _name,
    "transactions": _truth,
    "count_deliveries": _truth,
    "max_offset_gap": _count,
    "commit_interval": _duration,
    "publish_timeout": _duration,
    "connect_timeout": _duration,
}
# Former names of options; only error messages use them.
_RENAMED: Final = {"format": "dead_letter_format", "counts": "count_deliveries", "gap": "max_offset_gap"}
_OURS_ALONE: Final = {
    "bootstrap.servers": "the brokers are written before the ?",
    "metadata.broker.list": "the brokers are written before the ?",
    "group.id": "write group=",
    "acks": "redrive requires acks=all, so that dead letters are on all in-sync replicas",
    "request.required.acks": "redrive requires acks=all, so that dead letters are on all in-sync replicas",
    "enable.idempotence": "it is always enabled",
    "enable.auto.commit": "redrive commits an offset when its record is settled",
    "enable.auto.offset.store": "redrive commits an offset when its record is settled",
    "partition.assignment.strategy": "it is always cooperative-sticky",
    "enable.partition.eof": "redrive sets it",
    "transactional.id": "write transactions=true",
    "sasl.username": "it is written before the @",
    "sasl.password": "it is written before the @",
}
_SECRETS: Final = ("ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "ssl.certificate.pem")
# Which of librdkafka's options are for one kind of client alone: the other would warn of them.
_CONSUMER: Final = (
    "group.", "session.timeout", "heartbeat.", "max.poll.", "auto.", "queued.", "fetch.", "max.partition.fetch",
    "isolation.level", "check.crcs", "enable.partition.eof", "offset.", "coordinator.query", "allow.auto.create",
    "consume.",
)  # fmt: skip
_PRODUCER: Final = (
    "linger.ms", "queue.buffering", "batch.", "compression.", "message.timeout", "message.send.max",
    "delivery.", "request.timeout", "partitioner", "transaction.", "retries", "retry.backoff", "sticky.",
    "topic.metadata.propagation", "message.max.bytes", "max.in.flight",
)  # fmt: skip
# For "did you mean": those that people set most.
_WELL_KNOWN: Final = (
    "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.kerberos.service.name",
    "sasl.oauthbearer.config", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.key.password", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
    "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "auto.offset.reset",
    "isolation.level", "group.instance.id", "fetch.min.bytes", "fetch.wait.max.ms", "fetch.message.max.bytes",
    "queued.max.messages.kbytes", "client.id", "client.rack", "socket.timeout.ms", "compression.type",
    "linger.ms", "message.timeout.ms", "message.max.bytes", "partitioner", "debug", "statistics.interval.ms",
)  # fmt: skip


def _is_for(name: str, kinds: tuple[str, ...]) -> bool:
    return name.startswith(kinds)
