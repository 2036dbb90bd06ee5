"""How is one event of the broker written down?

A record is one byte for its kind, numbers of fixed width (little-endian), then what varies in length. Records stand
one after the other without gaps; there is no checksum here, because the block around them has one (`segments`)::

    publish     kind length place queue number expires route header │ route │ header │ body
    message     kind length place route header                      │ route │ header │ body
    enqueue     kind place queue number expires
    settle      kind queue number
    delivered   kind queue number count
    purge       kind queue
    define      kind key value                                      │ key │ value
    undefine    kind key                                            │ key
    hold        kind queue number why at
    count       kind queue number acquired failures
    check out   kind queue first last

A `count` says how often an entry was delivered without being acknowledged, and how many deliveries failed; `delivered`
is what older versions wrote instead. A `check out` says that the entries with these numbers were delivered by a quorum
queue: the deliveries end with a `count` or a `settle`, or they failed with the broker.
A `hold` says that an entry is in its queue but cannot be delivered: it is delayed until `at` (`why` is 0), or it is
a dead letter since `at` that no queue has taken yet, for the reason with the number `why`.

`length` is that of the whole record; `route`, `header`, `key` and `value` among the numbers are lengths. The body is
always last: where a record starts and how long the part before the body is (`prefix`) is all it takes to read it.

It does not know files, nor what is alive.
"""

import struct
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

PUBLISH: Final = 1
MESSAGE: Final = 2
ENQUEUE: Final = 3
SETTLE: Final = 4
DELIVERED: Final = 5
PURGE: Final = 6
DEFINE: Final = 7
UNDEFINE: Final = 8
HOLD: Final = 9
COUNT: Final = 10
CHECK_OUT: Final = 11

PUBLISH_HEAD: Final = Struct("<BIQQqqII")
MESSAGE_HEAD: Final = Struct("<BIQII")
ENQUEUE_HEAD: Final = Struct("<BQQqq")
SETTLE_HEAD: Final = Struct("<BQq")
DELIVERED_HEAD: Final = Struct("<BQqI")
PURGE_HEAD: Final = Struct("<BQ")
DEFINE_HEAD: Final = Struct("<BII")
UNDEFINE_HEAD: Final = Struct("<BI")
HOLD_HEAD: Final = Struct("<BQqBq")
COUNT_HEAD: Final = Struct("<BQqII")
CHECK_OUT_HEAD: Final = Struct("<BQqq")

_HEADS: Final = {
    PUBLISH: PUBLISH_HEAD,
    MESSAGE: MESSAGE_HEAD,
    ENQUEUE: ENQUEUE_HEAD,
    SETTLE: SETTLE_HEAD,
    DELIVERED: DELIVERED_HEAD,
    PURGE: PURGE_HEAD,
    DEFINE: DEFINE_HEAD,
    UNDEFINE: UNDEFINE_HEAD,
    HOLD: HOLD_HEAD,
    COUNT: COUNT_HEAD,
    CHECK_OUT: CHECK_OUT_HEAD,
}
_ESCAPE: Final = "surrogateescape"  # a key that is not UTF-8 comes back as the bytes it was


class MalformedError(ValueError):
    """The bytes are not a row of records, although their checksum is right: another program wrote them."""


class StoredMessage(NamedTuple):
    """A message as it was published."""

    exchange: str
    keys: tuple[str, ...]
    header: bytes
    body: bytes


def route_of(exchange: str, keys: tuple[str, ...]) -> bytes:
    """Exchange and keys: each its length, then its bytes."""
    words = [word.encode("utf-8", _ESCAPE) for word in (exchange, *keys)]
    return b"".join([len(word).to_bytes(4, "little") + word for word in words])


def define(key: str, value: bytes) -> bytes:
    """A definition that is new or has changed."""
    name = key.encode("utf-8", _ESCAPE)
    return DEFINE_HEAD.pack(DEFINE, len(name), len(value)) + name + value


def undefine(key: str) -> bytes:
    """A definition that is gone."""
    name = key.encode("utf-8", _ESCAPE)
    return UNDEFINE_HEAD.pack(UNDEFINE, len(name)) + name


def read_definition(record: bytes, fields: tuple[int, ...]) -> tuple[str, bytes]:
    """Key and value of a `define` record; nothing is the value in an `undefine` record."""
    start = DEFINE_HEAD.size if fields[0] == DEFINE else UNDEFINE_HEAD.size
    middle = start + fields[1]
    return record[start:middle].decode("utf-8", _ESCAPE), record[middle:]


def without_queue(record: bytes, fields: tuple[int, ...]) -> bytes:
    """The `message` record that holds what this `publish` record holds, but puts it into no queue."""
    rest = record[PUBLISH_HEAD.size :]
    return MESSAGE_HEAD.pack(MESSAGE, MESSAGE_HEAD.size + len(rest), fields[2], *fields[-2:]) + rest


def read_message(record: bytes) -> tuple[int, StoredMessage]:
    """The place and the message of one whole `publish` or `message` record."""
    try:
        if record[0] == PUBLISH:
            fields = PUBLISH_HEAD.unpack_from(record)
            at = PUBLISH_HEAD.size
        else:
            fields = MESSAGE_HEAD.unpack_from(record)
            at = MESSAGE_HEAD.size
    except (IndexError, struct.error):
        raise MalformedError("a record is truncated") from None
    route_end = at + fields[-2]
    body_at = route_end + fields[-1]
    if record[0] not in {PUBLISH, MESSAGE} or fields[1] != len(record) or body_at > len(record):
        raise MalformedError("not a message record")
    words = []
    while at < route_end:
        end = at + 4 + int.from_bytes(record[at : at + 4], "little")
        words.append(record[at + 4 : end].decode("utf-8", _ESCAPE))
        at = end
    if not words or at != route_end:
        raise MalformedError("a route is truncated")
    return fields[2], StoredMessage(words[0], tuple(words[1:]), record[route_end:body_at], record[body_at:])


def walk(block: bytes) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Every record of a block: where it starts, where it ends, and its numbers, the kind first."""
    at = 0
    size = len(block)
    while at < size:
        kind = block[at]
        head = _HEADS.get(kind)
        if head is None:
            raise MalformedError(f"unknown record kind {kind}")
        try:
            fields = head.unpack_from(block, at)
        except struct.error:
            raise MalformedError("a record is truncated") from None
        if kind <= MESSAGE:
            end = at + fields[1]
            whole = head.size + fields[-2] + fields[-1] <= fields[1]
        else:
            end = at + head.size
            whole = True
            if kind in {DEFINE, UNDEFINE}:
                end += sum(fields[1:])
        if end > size or not whole:
            raise MalformedError("a record is truncated")
        yield at, end, fields
        at = end
