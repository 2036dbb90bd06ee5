"""Handlers whose messages carry a number, which decides where they fail.

`test_kills_under_load` and `test_kafka_kills_under_load` copy this file and run both apps with `redrive consume`.
`orders` and `audit` receive every message; `orders` forwards some with their headers to `payments`. Each handler logs
the messages that it has seen and handled, and which letters they are redrives of. `SHOP_PREFIX` is a prefix for the
names of the queues, where tests share a broker; the log does not contain it.
"""

import asyncio
import functools
import os
from typing import Literal

from redrive import App, Context
from redrive.transports import Publication, Target

LOG = "handlers.log"
PREFIX = os.environ.get("SHOP_PREFIX", "")
Event = Literal["seen", "handled"]
# Of twenty messages, `orders` forwards these; the second half of each pair fails first, so its redrive is forwarded.
BY_PUBLISH, BY_RAW_HEADERS = (6, 7), (8, 9)

shop = App()
auditors = App()


def is_forwarded(number: int) -> bool:
    """Whether `orders` forwards this message to `payments`."""
    return number % 20 in (*BY_PUBLISH, *BY_RAW_HEADERS)


def has_raw_headers(number: int) -> bool:
    """Whether it is forwarded with the headers by which redrive recognises redrives."""
    return number % 20 in BY_RAW_HEADERS


def is_refused(source: str, number: int) -> bool:
    """Whether every delivery to this source fails."""
    match source:
        case "orders":
            return number % 20 == 0
        case "audit":
            return number % 20 == 3
        case _:
            return number // 20 % 4 == 0


def is_refused_until_replayed(source: str, number: int) -> bool:
    """Whether it fails until a replay has sent it back."""
    return source == "orders" and number % 20 == 5


def fails_until_redriven(source: str, number: int) -> bool:
    """Whether it fails until a redrive to this source has brought it back."""
    match source:
        case "orders":
            return number % 20 in (1, 7, 9)
        case "audit":
            return number % 20 == 2 or number % 40 == 5  # of the latter, copies come by broadcast
        case _:
            return number // 20 % 4 == 1


@shop.consume(f"{PREFIX}orders", concurrency=10)
async def handle_order(body: bytes, context: Context) -> None:
    """Process an order, or forward it to `payments`."""
    number = int(body)
    _log("seen", number, context)
    _fail("orders", number, context)
    if has_raw_headers(number):
        await _forward_as_it_is(context)
    elif is_forwarded(number):
        headers = dict(context.headers)
        await shop.publish(f"{PREFIX}payments", body, headers=headers, message_id=context.message.message_id)
    await _handle(number, context)


@shop.consume(f"{PREFIX}payments", concurrency=10)
async def handle_payment(body: bytes, context: Context) -> None:
    """Process what `orders` has forwarded."""
    number = int(body)
    _log("seen", number, context)
    _fail("payments", number, context)
    await _handle(number, context)


@auditors.consume(f"{PREFIX}audit", concurrency=10)
async def audit(body: bytes, context: Context) -> None:
    """Process another copy of an order."""
    number = int(body)
    _log("seen", number, context)
    _fail("audit", number, context)
    await _handle(number, context)


def _fail(source: str, number: int, context: Context) -> None:
    redrive = context.redrive
    if is_refused(source, number):
        raise PermissionError("this account is closed")
    if is_refused_until_replayed(source, number) and (redrive is None or redrive.operation is None):
        raise FileNotFoundError("no such customer")
    if fails_until_redriven(source, number) and redrive is None:
        raise TimeoutError("the bank did not answer")


async def _forward_as_it_is(context: Context) -> None:
    """Forward as a client does that knows nothing of redrive: with the headers as they are on the wire."""
    assert shop._transport is not None
    publication = Publication(context._delivery.message, Target(name=f"{PREFIX}payments"))
    for error in await shop._transport.publish([publication]):
        if error is not None:
            raise error


async def _handle(number: int, context: Context) -> None:
    await asyncio.sleep(0.01)
    _log("handled", number, context)
    await asyncio.sleep(0.01)  # a kill here means a duplicate


def _log(event: Event, number: int, context: Context) -> None:
    own, claimed = context.redrive, context._delivery.redrive
    words = (
        event,
        context.source.removeprefix(PREFIX),
        str(number),
        "-" if own is None else own.letter_id,
        "-" if claimed is None else claimed.hold.id,
        "-" if claimed is None else claimed.scope,
    )
    os.write(_log_file(), " ".join(words).encode() + b"\n")  # one write: processes share the file


@functools.cache
def _log_file() -> int:
    return os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
