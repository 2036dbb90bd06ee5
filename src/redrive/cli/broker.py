"""`redrive broker`: the embedded broker as a process of its own."""

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
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=_PORT, default=5672, show_default=True, help="The port for AMQP; 0: any free one."
)
@click.option(
    "--management-port", type=_PORT, help="The port for the management API; without it there is none."
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="A host name that requests to the management API may use, instead of server.allowed_hosts. Repeatable.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where durable things are kept; without it nothing outlives the process.",
)
@click.option("--salvage", is_flag=True, help="Leave out what is damaged in the data, and say what it was.")
@click.option("--tls-port", type=_PORT, help="The port for AMQP over TLS.")
@click.option(
    "--tls-certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The certificate, as PEM.",
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its private key, as PEM."
)
@click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Who signs client certificates; with it they are asked for.",
)
@click.option(
    "--heartbeat",
    type=click.IntRange(0, 65535),
    default=60,
    show_default=True,
    help="Seconds between heartbeats; 0: none.",
)
@click.option(
    "--frame-max",
    type=click.IntRange(8192, 2**31 - 1),
    default=131072,
    show_default=True,
    help="The largest frame.",
)
@click.option(
    "--channel-max",
    type=click.IntRange(1, 65535),
    default=2047,
    show_default=True,
    help="The most channels of a connection.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="The most connections.",
)
@click.option(
    "--max-message-size",
    type=click.IntRange(1, 512 * 1024 * 1024),
    default=16 * 1024 * 1024,
    show_default=True,
    help="The largest body, in bytes.",
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
    help="How long a client may take to log in.",
)
@click.option(
    "--anonymous-login-user",
    default="guest",
    show_default=True,
    envvar="REDRIVE_EMBEDDED_ANONYMOUS_LOGIN_USER",
    help="As whom clients of this machine log in by ANONYMOUS; none: they cannot.",
)
@click.option(
    "--anonymous-login-pass",
    default="guest",
    show_default=True,
    envvar="REDRIVE_EMBEDDED_ANONYMOUS_LOGIN_PASS",
    help="The password of that user; a variable of the environment hides it from a list of processes.",
)
@click.option("--dead-letter-fallback", metavar="QUEUE", help="Keeps dead letters that had nowhere to go.")
@click.option(
    "--dead-letter-retry",
    type=_Duration(),
    default="180s",
    show_default=True,
    help="How long until a dead letter of a queue with the strategy at-least-once is sent again.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What is logged; debug tells every death of a message.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How it is logged.",
)
@click.option(
    "--dlx/--no-dlx", default=None, help="Dead-letter exchanges, instead of embedded.enable_dlx (on)."
)
@click.option(
    "--ttl/--no-ttl",
    default=None,
    help="Times to live of messages and queues, instead of embedded.enable_ttl (on).",
)
@click.option(
    "--length-limit/--no-length-limit",
    default=None,
    help="Limits on the length of queues, instead of embedded.enable_length_limit (on).",
)
@click.pass_obj
def command(path: Path | None, /, **given: object) -> None:
    """Run the embedded broker: AMQP 0-9-1 as RabbitMQ speaks it.

    \b
    Examples:
      redrive broker
      redrive broker --data ./broker --management-port 15672
      redrive broker --port 0 --dead-letter-fallback lost-letters

    The user guest (password guest) may connect from this machine only.
    """
    from redrive.watch.log_format import configure

    configure(str(given["log_level"]), given["log_format"], sys.stderr)  # type: ignore[arg-type]  # click has checked it
    if None in (given["dlx"], given["ttl"], given["length_limit"]):  # else `redrive serve` has read them
        _read_settings(given, load(path, os.environ))
    run(_options(given))


def _read_settings(given: dict[str, object], settings: Settings) -> None:
    """What the command line leaves open is as the settings say."""
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
