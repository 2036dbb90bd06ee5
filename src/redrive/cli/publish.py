"""`redrive publish`: publish messages to a queue, topic or exchange."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from redrive.cli.output import to_json
from redrive.errors import SettingsError, on_one_line, use_instead
from redrive.letters import Message
from redrive.publisher import make_message, publish_all
from redrive.settings import Settings, load
from redrive.transports import Target, broker_name, configured_url, kind_of

_MAX_COUNT = 1_000_000


@click.command("publish")
@click.argument("words", metavar="TARGET [BODY]", nargs=-1)
@click.option("--file", "file", metavar="FILE", type=click.File("rb"), help="Read the body from a file.")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Add a header; can be repeated."
)
@click.option(
    "--count",
    type=click.IntRange(1, _MAX_COUNT),
    default=1,
    show_default=True,
    help="Publish the message this many times.",
)
@click.option("--content-type", metavar="TYPE", help="Default: application/json if the body is JSON.")
@click.option("--exchange", metavar="NAME", help="RabbitMQ: publish to an exchange; leave out TARGET.")
@click.option("--routing-key", metavar="KEY", help="RabbitMQ: the routing key, with --exchange.")
@click.option("--key", metavar="TEXT", help="Kafka: the key of the record.")
@click.option(
    "--broker",
    metavar="NAME|URL",
    help="The broker; default: the broker of the settings, or the broker on this machine.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def command(path: Path | None, /, words: tuple[str, ...], as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """TARGET is a queue or a topic. Without BODY, or with -, the body is read from standard input.

    \b
    Examples:
      redrive publish orders '{"id": 1, "total": 19.9}'
      redrive publish orders --file order.json --header tenant=north
      generate-orders | redrive publish orders -
      redrive publish --exchange shop --routing-key order.created '{"id": 1}'
      redrive publish orders '{"id": 1}' --broker kafka://localhost:9092 --key customer-7
    """
    target, rest = _target(words, given)
    message = _message(_body(rest, given["file"]), given)
    settings = load(path, os.environ)
    url = _url(settings, given["broker"])
    _check_kind(url, given)
    count: int = given["count"]
    asyncio.run(publish_all(url, target, [message] * count))
    name = target.name or target.exchange or ""
    if as_json:
        click.echo(to_json({"target": name, "routing_key": target.routing_key, "published": count}))
    else:
        click.echo(on_one_line(f"published {count} message{'s' if count != 1 else ''} to {name}"))


def _target(words: tuple[str, ...], given: Mapping[str, Any]) -> tuple[Target, tuple[str, ...]]:
    """The target, and the words after it."""
    if given["exchange"] is not None:
        return Target(exchange=given["exchange"], routing_key=given["routing_key"] or ""), words
    if given["routing_key"] is not None:
        raise SettingsError("--routing-key needs --exchange; to publish to a queue, name only the queue")
    if not words or not words[0]:
        raise SettingsError("no target: name a queue or topic, or pass --exchange")
    return Target(name=words[0]), words[1:]


def _body(words: tuple[str, ...], file: BinaryIO | None) -> bytes:
    if len(words) > 1 or (words and file is not None):
        extra = words[0] if file is not None else words[1]
        raise SettingsError(
            f"'{extra:.40}' is one argument too many: pass one body; quote it if it contains spaces"
        )
    if file is not None:
        return file.read()
    if words and words[0] != "-":
        return words[0].encode("utf-8", "surrogateescape")
    if not words and (sys.stdin is None or sys.stdin.isatty()):
        raise SettingsError("no body: pass it after the target, with --file, or on standard input")
    return sys.stdin.buffer.read()


def _message(body: bytes, given: Mapping[str, Any]) -> Message:
    headers: dict[str, str] = {}
    for pair in given["headers"]:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise SettingsError(f"--header must be NAME=VALUE, got '{pair:.60}'")
        headers[name] = value
    return msgspec.structs.replace(
        make_message(body, headers),
        key=None if given["key"] is None else given["key"].encode(),
        content_type=given["content_type"] or ("application/json" if _is_json(body) else None),
    )


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _url(settings: Settings, given: str | None) -> str:
    if given is None or given == broker_name(settings):
        return configured_url(settings)
    if ":" not in given:
        raise SettingsError(
            f"--broker {given}: the settings have no broker of this name"
            f"{use_instead(given, [broker_name(settings)])}; pass its URL"
        )
    return given


def _check_kind(url: str, given: Mapping[str, Any]) -> None:
    is_kafka = kind_of(url) == "kafka"
    if given["exchange"] is not None and is_kafka:
        raise SettingsError("--exchange: Kafka has no exchanges; name a topic instead")
    if given["key"] is not None and not is_kafka:
        raise SettingsError("--key: only Kafka records have keys; use --routing-key for RabbitMQ")
