"""`redrive broker`: the embedded broker in its own process."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import click

from redrive.amqp.limits import Limits
from redrive.amqp.sasl import Credentials
from redrive.broker.arguments import Features
from redrive.broker.memory import MIN_MEMORY_LIMIT
from redrive.broker.run import BrokerOptions, Tls, run
from redrive.broker.server import ServerOptions
from redrive.errors import SettingsError
from redrive.rules import parse_duration
from redrive.settings import Settings, load


class _Duration(click.ParamType[timedelta]):
    """A duration with its unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(str(value))
        except SettingsError as error:
            self.fail(str(error), param, ctx)


class _MemoryLimit(click.ParamType[int]):
    """A number of bytes, or 0."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = int(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number of bytes", param, ctx)
        if size and size < MIN_MEMORY_LIMIT:
            self.fail(f"must be 0 or at least {MIN_MEMORY_LIMIT} bytes, got {size}", param, ctx)
        return size


_PORT = click.IntRange(0, 65535)


@click.command("broker")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=_PORT, default=5672, show_default=True, help="AMQP port; 0: any free port.")
@click.option("--management-port", type=_PORT, help="Port of the management API; default: no management API.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="A host name allowed in requests to the management API; default: server.allowed_hosts. Can be repeated.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for durable queues and messages; default: nothing survives the process.",
)
@click.option("--salvage", is_flag=True, help="Skip damaged data at startup, and report it.")
@click.option("--tls-port", type=_PORT, help="Port for AMQP over TLS.")
@click.option(
    "--tls-certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificate file (PEM).",
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Private key file (PEM)."
)
@click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CA file (PEM); with it, clients must present a certificate.",
)
@click.option(
    "--heartbeat",
    type=click.IntRange(0, 65535),
    default=60,
    show_default=True,
    help="Heartbeat interval in seconds; 0: no heartbeats.",
)
@click.option(
    "--frame-max",
    type=click.IntRange(8192, 2**31 - 1),
    default=131072,
    show_default=True,
    help="Maximum frame size in bytes.",
)
@click.option(
    "--channel-max",
    type=click.IntRange(1, 65535),
    default=2047,
    show_default=True,
    help="Maximum number of channels per connection.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="Maximum number of connections.",
)
@click.option(
    "--max-message-size",
    type=click.IntRange(1, 512 * 1024 * 1024),
    default=16 * 1024 * 1024,
    show_default=True,
    help="Maximum size of a message body in bytes.",
)
@click.option(
    "--memory-limit",
    type=_MemoryLimit(),
    help="Bytes of messages in memory before publishers are blocked; 0: no limit.  [default: 40 % of the memory]",
)
@click.option(
    "--handshake-timeout",
    type=_Duration(),
    default="10s",
    show_default=True,
    help="Time limit for the login of a client.",
)
@click.option(
    "--anonymous-login-user",
    default="guest",
    show_default=True,
    envvar="REDRIVE_EMBEDDED_ANONYMOUS_LOGIN_USER",
    help="User for ANONYMOUS logins from this machine; none: refuse them.",
)
@click.option(
    "--anonymous-login-pass",
    default="guest",
    show_default=True,
    envvar="REDRIVE_EMBEDDED_ANONYMOUS_LOGIN_PASS",
    help="Password of that user; set it in the environment to hide it from process lists.",
)
@click.option("--dead-letter-fallback", metavar="QUEUE", help="Queue for dead letters that cannot be routed.")
@click.option(
    "--dead-letter-retry",
    type=_Duration(),
    default="180s",
    show_default=True,
    help="Interval at which at-least-once dead-lettering retries a publish.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Minimum level of log lines; debug logs every dead-lettered message.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of log lines.",
)
@click.option(
    "--dlx/--no-dlx", default=None, help="Dead-letter exchanges; default: embedded.enable_dlx (on)."
)
@click.option(
    "--ttl/--no-ttl",
    default=None,
    help="Message and queue TTL; default: embedded.enable_ttl (on).",
)
@click.option(
    "--length-limit/--no-length-limit",
    default=None,
    help="Queue length limits; default: embedded.enable_length_limit (on).",
)
@click.pass_obj
def command(path: Path | None, /, **given: object) -> None:
    """RabbitMQ clients can use it unchanged. The user guest (password guest) can connect from this machine only.

    \b
    Examples:
      redrive broker
      redrive broker --data ./broker --management-port 15672
      redrive broker --port 0 --dead-letter-fallback lost-letters
    """
    from redrive.watch.log_format import configure

    configure(str(given["log_level"]), given["log_format"], sys.stderr)  # type: ignore[arg-type]  # click has checked it
    if None in (given["dlx"], given["ttl"], given["length_limit"]):  # else `redrive serve` has passed them
        _read_settings(given, load(path, os.environ))
    run(_options(given))


def _read_settings(given: dict[str, object], settings: Settings) -> None:
    """Take from the settings what the command line does not set."""
    for feature in ("dlx", "ttl", "length_limit"):
        if given[feature] is None:
            given[feature] = getattr(settings.embedded, f"enable_{feature}")
    given["allowed_hosts"] = given["allowed_hosts"] or settings.server.allowed_hosts


def _options(given: dict[str, object]) -> BrokerOptions:
    def named(*names: str) -> dict[str, object]:
        return {name: given[name] for name in names}

    tls = None
    if given["tls_port"] is not None:
        if given["tls_certificate"] is None or given["tls_key"] is None:
            raise SettingsError("--tls-port needs --tls-certificate and --tls-key")
        tls = Tls(given["tls_port"], given["tls_certificate"], given["tls_key"], given["tls_ca"])  # type: ignore[arg-type]  # click has read them
    user, password = str(given["anonymous_login_user"]), str(given["anonymous_login_pass"])
    return BrokerOptions(
        **named(
            "host",
            "port",
            "management_port",
            "allowed_hosts",
            "data",
            "salvage",
            "max_message_size",
            "memory_limit",
            "dead_letter_fallback",
            "dead_letter_retry",
        ),  # type: ignore[arg-type]
        anonymous=None if user == "none" else Credentials(user, password),
        tls=tls,
        features=Features(**named("dlx", "ttl", "length_limit")),  # type: ignore[arg-type]
        limits=Limits(**named("frame_max", "channel_max", "heartbeat")),  # type: ignore[arg-type]
        server=ServerOptions(**named("handshake_timeout", "max_connections")),  # type: ignore[arg-type]
    )
