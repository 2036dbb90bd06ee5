"""What may differ between the embedded broker and the RabbitMQ that it is compared with?

The embedded broker does what RabbitMQ 4.3 does. Two tables name every exception, and a script cites the rows that it
meets. A difference that no cited row covers is a failure.

===============  ===================================================================================================
`OLDER`          what an older RabbitMQ does differently from 4.3, and on which versions. A row without `forgive` is
                 about something that those versions do so differently that the script is not compared with them.
`DELIBERATE`     what the embedded broker does differently from RabbitMQ 4.3 on purpose, with the reason. Where such a
                 row has no `forgive`, the script is played on the embedded broker alone and states with
                 `scene.demand` what has to hold.
===============  ===================================================================================================

A RabbitMQ whose minor version is newer than all that are known here is compared as the newest known one; what differs
there is reported as an expected failure until it has a row. The tables in docs/reference/rabbitmq-differences.md are
made from these two, and a test fails when they are stale. This file knows records, and no brokers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from redrive.amqp.frames import PROTOCOL_HEADER
from tests.differential.record import Entry, Plain, Record

Forgive: TypeAlias = Callable[[Record], Record]


@dataclass(frozen=True)
class Older:
    """What some older versions of RabbitMQ do differently from 4.3."""

    name: str
    on: tuple[str, ...]  # the generations that differ: "3.10", "4.0"
    theirs: str  # what those versions do
    ours: str  # what RabbitMQ 4.3 and the embedded broker do
    forgive: Forgive | None  # how both records are made alike; None: there is nothing to compare


@dataclass(frozen=True)
class Deliberate:
    """What the embedded broker does differently from RabbitMQ 4.3 on purpose."""

    name: str
    theirs: str
    ours: str
    reason: str
    forgive: Forgive | None


# --- How records are made alike -----------------------------------------------------------------------

Headers: TypeAlias = "list[list[Plain]]"


def _in_headers(change: Callable[[Headers], Headers]) -> Forgive:
    """Apply a change to the headers of every message; headers that are empty then are none."""

    def walk(value: Plain) -> Plain:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict) and isinstance(value.get("headers"), list):
            triples = cast("Headers", value["headers"])
            headers = cast("Plain", change(triples))
            others = {name: item for name, item in value.items() if name != "headers"}
            return {**others, "headers": headers} if headers else others
        return value

    return _in_entries(lambda entry: replace(entry, got=walk(entry.got)))


def _in_entries(change: Callable[[Entry], Entry]) -> Forgive:
    return lambda record: [change(entry) for entry in record]


def _without(is_out: Callable[[str, Plain], bool]) -> Forgive:
    return _in_headers(lambda headers: [h for h in headers if not is_out(str(h[0]), h[2])])


def _in_deaths(change: Callable[[list[Plain]], list[Plain]]) -> Forgive:
    def in_headers(headers: Headers) -> Headers:
        return [
            [key, kind, change(value) if key == "x-death" and isinstance(value, list) else value]
            for key, kind, value in headers
        ]

    return _in_headers(in_headers)


def _in_dead_letters(change: Callable[[dict[str, Plain], Headers], tuple[Plain, Headers]]) -> Forgive:
    """Apply a change to the method and the headers of every delivery of a dead letter."""

    def walk(value: Plain) -> Plain:
        match value:
            case [
                str(name),
                {"redelivered": _} as method,
                {"headers": list(headers)} as properties,
                *rest,
            ] if any(
                header[0] == "x-death"  # type: ignore[index]
                for header in headers
            ):
                fields, left = change(cast("dict[str, Plain]", method), cast("Headers", headers))
                kept = {**cast("dict[str, Plain]", properties), "headers": cast("Plain", left)}
                return [name, fields, kept, *rest]
            case list():
                return [walk(item) for item in value]
        return value

    return _in_entries(lambda entry: replace(entry, got=walk(entry.got)))


def _without_failures(method: dict[str, Plain], headers: Headers) -> tuple[Plain, Headers]:
    counts = ("x-acquired-count", "x-delivery-count")
    return {**method, "redelivered": False}, [header for header in headers if header[0] not in counts]


def _sorted_fields(deaths: list[Plain]) -> list[Plain]:
    return [[death[0], sorted(death[1], key=str)] for death in deaths]  # type: ignore[index,arg-type]


def _carbon_copies(headers: Headers) -> Headers:
    """A dead letter without its CC header; a message that has not died keeps it."""
    died = any(header[0] == "x-death" for header in headers)
    return [header for header in headers if not died or header[0] != "CC"]


def _first_of_one(deaths: list[Plain]) -> list[Plain]:
    return deaths[:1]


def _both(first: Forgive, second: Forgive) -> Forgive:
    return lambda record: second(first(record))


def _only_the_code(entry: Entry) -> Entry:
    """A connection.close without its words: `FRAME_ERROR - …`."""
    if isinstance(entry.got, list) and entry.got[:1] == ["connection.close"]:
        close = entry.got[1]
        if isinstance(close, dict):
            text = str(close["reply_text"]).partition(" - ")[0]
            return replace(entry, got=["connection.close", {**close, "reply_text": text}])
    return entry


def _ended(entry: Entry) -> Entry:
    """That a connection has ended, not how."""
    is_close = isinstance(entry.got, list) and entry.got[:1] == ["connection.close"]
    return replace(entry, got="ended") if is_close or entry.got == "hung up" else entry


def _identity(entry: Entry) -> Entry:
    if entry.step == "properties" and isinstance(entry.got, list):
        return replace(
            entry, got=[item for item in entry.got if isinstance(item, list) and item[0] == "capabilities"]
        )
    return entry


def _without_anonymous(entry: Entry) -> Entry:
    if entry.step == "mechanisms" and isinstance(entry.got, list):
        return replace(entry, got=[item for item in entry.got if item != "ANONYMOUS"])
    return entry


def _offers_0_9_1(entry: Entry) -> Entry:
    """The answer to a foreign protocol header, whichever protocol it offers."""
    return replace(entry, got=PROTOCOL_HEADER.hex()) if entry.got == "414d515003010000" else entry


def _without_the_action(entry: Entry) -> Entry:
    """A refusal without the word that says what was refused: `access to queue …`."""

    def walk(value: Plain) -> Plain:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            return {name: walk(item) for name, item in value.items()}
        if isinstance(value, str):
            return re.sub(r"(ACCESS_REFUSED - )(?:configure|write|read) (access)", r"\1\2", value)
        return value

    return replace(entry, got=walk(entry.got))


# --- The tables ---------------------------------------------------------------------------------------

_3_10 = ("3.10",)
_3_10_AND_4_0 = ("3.10", "4.0")

OLDER: Mapping[str, Older] = {
    row.name: row
    for row in (
        Older(
            "permission-texts",
            _3_10,
            "the text is `access to queue …`",
            "the text names the permission: `configure access to queue …`",
            _in_entries(_without_the_action),
        ),
        Older(
            "last-death-headers",
            _3_10,
            "sets `x-first-death-*` only",
            "sets `x-last-death-*` as well",
            _without(lambda key, _: key.startswith("x-last-death-")),
        ),
        Older(
            "death-field-order",
            _3_10,
            "`original-expiration` is last in an `x-death` entry; from the second death on, the fields of new "
            "and of counted entries are sorted by name",
            "all entries have one order, `original-expiration` first",
            _in_deaths(_sorted_fields),
        ),
        Older(
            "death-order",
            _3_10,
            "each death reverses the order of the older `x-death` entries",
            "most recent death first",
            _in_deaths(lambda deaths: [*deaths[:1], *sorted(deaths[1:], key=str)]),
        ),
        Older(
            "carbon-copy-of-the-dead",
            _3_10,
            "removes the `CC` header when a dead-letter routing key is set",
            "keeps it",
            _in_headers(_carbon_copies),
        ),
        Older(
            "client-sent-death-headers",
            _3_10,
            "adds to an `x-death` array that the client has sent, and then sets no `x-first-death-*`; does not "
            "replace `x-first-death-*` that the client has sent",
            "starts a new array of one entry and sets all six headers",
            _both(_in_deaths(_first_of_one), _without(lambda key, _: key.startswith("x-first-death-"))),
        ),
        Older(
            "death-cycles",
            _3_10,
            "looks for cycles in the reversed `x-death` array: some automatic cycles of three deaths never "
            "end, some cycles with a rejection are dropped",
            "evaluates deaths by recency",
            None,
        ),
        Older(
            "delivery-count-header",
            _3_10,
            "a quorum queue's first delivery carries `x-delivery-count` 0",
            "only redeliveries carry it",
            _without(lambda key, value: key == "x-delivery-count" and value == 0),
        ),
        Older(
            "acquired-count-header",
            _3_10_AND_4_0,
            "redeliveries of a quorum queue carry only `x-delivery-count`",
            "they carry `x-acquired-count`, and `x-delivery-count` after a failure",
            _without(lambda key, _: key == "x-acquired-count"),
        ),
        Older(
            "dead-letter-failures",
            _3_10_AND_4_0,
            "a dead letter starts without failed deliveries and is not `redelivered` (4.0 keeps the count from quorum "
            "queue to quorum queue)",
            "the number of failed deliveries travels with it; after a failure it is `redelivered`, except where a "
            "classic queue passes it on to a waiting consumer",
            _in_dead_letters(_without_failures),
        ),
        Older(
            "limit-of-carried-failures",
            _3_10_AND_4_0,
            "a quorum queue compares its delivery limit with its own count",
            "it compares it with the failures in all queues so far, at the first return of any kind",
            None,
        ),
        Older(
            "header-order",
            _3_10,
            "headers are delivered in the order in which they were sent, until the first death",
            "they are sorted by name",
            _in_headers(lambda headers: sorted(headers, key=lambda header: str(header[0]).encode())),
        ),
        Older(
            "header-duplicates",
            _3_10,
            "headers of one name are delivered as they were sent",
            "the first one is kept",
            None,
        ),
        Older(
            "quorum-priorities",
            _3_10_AND_4_0,
            "a quorum queue has no priorities (4.0: two, above 4 and the others)",
            "32; the default is 4",
            None,
        ),
        Older(
            "quorum-return-order",
            _3_10,
            "a message returned to a quorum queue goes to its old position",
            "it is delivered before all others, in the order of its return",
            None,
        ),
        Older(
            "quorum-byte-limits",
            _3_10_AND_4_0,
            "`x-max-length-bytes` of a quorum queue counts bodies",
            "bodies and properties",
            None,
        ),
        Older(
            "single-active-takeover",
            _3_10,
            "a single active consumer stays active regardless of the priority of the others",
            "of a quorum queue, one of higher priority takes over when the active one has nothing unsettled",
            None,
        ),
        Older(
            "nack-requeue-counts",
            _3_10_AND_4_0,
            "`basic.nack` with requeue counts towards the delivery limit",
            "only `basic.reject` and a lost channel or connection do",
            None,
        ),
        Older(
            "default-delivery-limit",
            _3_10,
            "a quorum queue without `x-delivery-limit` has none",
            "it is 20",
            None,
        ),
        Older(
            "consumer-timeout",
            _3_10_AND_4_0,
            "a consumer that does not acknowledge in time loses its channel, on any type of queue; "
            "3.10 has no `x-consumer-timeout`, and the timeout is checked once a minute",
            "a quorum queue takes its deliveries back and sends the consumer `basic.cancel`; classic queues "
            "have no timeout",
            None,
        ),
        Older(
            "delayed-retry",
            _3_10_AND_4_0,
            "a quorum queue delivers returned messages immediately; `x-delayed-retry-type` has no effect",
            "it delays returned messages if its arguments or policy say so",
            None,
        ),
        Older(
            "purge-of-kept-letters",
            _3_10_AND_4_0,
            "a purge leaves dead letters that a quorum queue retains (`at-least-once`)",
            "it removes them and counts them",
            None,
        ),
        Older(
            "unknown-exchange-type",
            _3_10,
            "closes the connection: 503 COMMAND_INVALID",
            "closes the channel: 406 PRECONDITION_FAILED, with the same text",
            None,
        ),
        Older(
            "headers-number-types",
            _3_10,
            "a headers exchange treats 1 and 1.0 as equal",
            "does not",
            None,
        ),
        Older(
            "passive-declare-permission",
            _3_10_AND_4_0,
            "a passive declare needs no permission",
            "it needs `configure`, `write` or `read` for the queue or exchange, whether it exists or not",
            None,
        ),
        Older(
            "anonymous-login",
            _3_10,
            "does not offer the mechanism ANONYMOUS",
            "offers it",
            _in_entries(_without_anonymous),
        ),
        Older(
            "global-qos",
            _3_10_AND_4_0,
            "a `basic.qos` with `global` limits the whole channel, and quorum queues can then not be consumed: 540",
            "it is a `basic.qos` without `global`",
            None,
        ),
        Older(
            "least-frame-max",
            _3_10_AND_4_0,
            "accepts a `frame_max` of 4096",
            "the minimum is 8192; below, the connection is closed",
            None,
        ),
    )
}

DELIBERATE: Mapping[str, Deliberate] = {
    row.name: row
    for row in (
        Deliberate(
            "amqp-1.0",
            "supports AMQP 1.0, and offers it (`AMQP 3.1.0.0`) to a client with an unknown protocol header",
            "always offers `AMQP 0.0.9.1`",
            "it supports only AMQP 0-9-1",
            _in_entries(_offers_0_9_1),
        ),
        Deliberate(
            "identity",
            "product, version, cluster name, platform and licence are RabbitMQ's",
            "its own; capabilities and login mechanisms are the same",
            "it is another product",
            _in_entries(_identity),
        ),
        Deliberate(
            "federation-exchange-type",
            "has the exchange type `x-federation-upstream` if its plugin is enabled; otherwise 406",
            "503, as RabbitMQ 3.10 without the plugin",
            "the exchange federation of any RabbitMQ then uses a fanout exchange on this upstream",
            None,
        ),
        Deliberate(
            "reply-address-without-consumer",
            "closes the connection on a declare of a direct reply-to address without a consumer: 541",
            "closes the channel: 404, as 4.0 and 3.10",
            "asking whether a requester is still connected is not an internal error",
            None,
        ),
        Deliberate(
            "commit-to-a-deleted-queue",
            "closes the connection, or applies the commit partly, when a queue was deleted between publish and commit",
            "ignores the deleted queue, as if it were deleted after the commit",
            "a commit is atomic",
            None,
        ),
        Deliberate(
            "protocol-error-texts",
            "texts about broken frames contain Erlang terms, texts about misplaced methods name no channel",
            "plain texts; reply code, class and method are the same",
            "programs do not compare these texts, and people read them",
            _in_entries(_only_the_code),
        ),
        Deliberate(
            "kept-letters-after-a-change",
            "deletes the dead letters that a quorum queue retains (`at-least-once`) when a policy gives the queue "
            "another strategy",
            "sends them once more, by the new strategy",
            "a policy change must not lose messages",
            None,
        ),
        Deliberate(
            "purged-letters",
            "dead letters that a quorum queue retains (`at-least-once`) are purged from it, but up to 32 of them "
            "still arrive later",
            "purged letters do not arrive",
            "a purge removes as many messages as its reply says",
            None,
        ),
        Deliberate(
            "quorum-reject-publish",
            "a quorum queue with `reject-publish` accepts one message more than its limit",
            "accepts exactly the limit",
            "the limit is exact, as in classic queues",
            None,
        ),
        Deliberate(
            "unsigned-headers",
            "converts header values of type `L` (unsigned, 64 bits) to `l`, so that large ones become negative",
            "keeps them",
            "values must not change in transit",
            None,
        ),
        Deliberate(
            "unknown-method",
            "closes the socket immediately on a method that does not exist",
            "503 COMMAND_INVALID first",
            "the client learns the reason",
            _in_entries(_ended),
        ),
    )
}

Difference: TypeAlias = Older | Deliberate
DIFFERENCES: Mapping[str, Difference] = {**DELIBERATE, **OLDER}


def differs(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a script cite differences."""
    for name in names:
        if name not in DIFFERENCES:
            raise KeyError(f"no difference is called {name}; there are: {', '.join(DIFFERENCES)}")

    def mark(script: Callable[..., None]) -> Callable[..., None]:
        script.differs = names  # type: ignore[attr-defined]
        return script

    return mark


def cited_by(script: Callable[..., None], generation: str) -> Sequence[Difference]:
    """The differences that a script cites and that hold against a RabbitMQ of this generation."""
    rows = [DIFFERENCES[name] for name in getattr(script, "differs", ())]
    return [row for row in rows if isinstance(row, Deliberate) or generation in row.on]


def is_compared(script: Callable[..., None], generation: str) -> bool:
    """Whether a RabbitMQ of this generation can tell what is right in this script."""
    return not any(isinstance(row, Older) and row.forgive is None for row in cited_by(script, generation))


def rendered() -> tuple[str, str]:
    """The two tables for the documentation."""
    deliberate = [
        "| name | RabbitMQ 4.3 | the embedded broker | reason |",
        "| --- | --- | --- | --- |",
        *(f"| `{row.name}` | {row.theirs} | {row.ours} | {row.reason} |" for row in DELIBERATE.values()),
    ]
    older = [
        "| name | versions | what they do | RabbitMQ 4.3 and the embedded broker |",
        "| --- | --- | --- | --- |",
        *(f"| `{row.name}` | {', '.join(row.on)} | {row.theirs} | {row.ours} |" for row in OLDER.values()),
    ]
    return "\n".join(deliberate), "\n".join(older)
