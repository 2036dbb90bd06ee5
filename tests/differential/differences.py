"""In what may our broker differ from the RabbitMQ that it is compared with?

The one rule: in what stands in `DIFFERENCES`, where a script cites it by name, and in nothing else. Each row says
what RabbitMQ 3.10 does and what is right instead, and how both records are made alike. A row without such a
way (`forgive` is None) is about something that 3.10 does so differently that it is no judge: a script that
cites it is played on our broker alone, and says by `scene.demand` what AMQP.md asks for.

Against a RabbitMQ 4 only the rows that are ours by choice hold. The table in
docs/reference/rabbitmq-differences.md is made from this one, and a test fails when it is stale. This file knows
records, and no brokers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from tests.differential.record import Entry, Plain, Record

Forgive: TypeAlias = Callable[[Record], Record]


@dataclass(frozen=True)
class Difference:
    """One thing that differs."""

    name: str
    old: str  # what RabbitMQ 3.10 does
    new: str  # what RabbitMQ 4 does, and so do we; or what we do by choice
    forgive: Forgive | None
    ours: bool = False  # a choice of this project: RabbitMQ 4 does as 3.10 does


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
    if entry.step == "mechanisms" and isinstance(entry.got, list):
        return replace(entry, got=[item for item in entry.got if item in ("AMQPLAIN", "PLAIN")])
    return entry


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


# --- The table ----------------------------------------------------------------------------------------

DIFFERENCES: Mapping[str, Difference] = {
    row.name: row
    for row in (
        Difference(
            "permission-texts",
            "refuses with `access to queue …`",
            "says what was refused: `configure access to queue …`",
            _in_entries(_without_the_action),
        ),
        Difference(
            "last-death-headers",
            "sets `x-first-death-*` only",
            "sets `x-last-death-*` as well (AMQP.md 8)",
            _without(lambda key, _: key.startswith("x-last-death-")),
        ),
        Difference(
            "death-field-order",
            "`original-expiration` stands last in an `x-death` entry; from the second death on, the fields of new "
            "and of counted entries are sorted by name",
            "all entries have one order, `original-expiration` first (AMQP.md 2)",
            _in_deaths(_sorted_fields),
        ),
        Difference(
            "death-order",
            "each death turns the order of the older `x-death` entries round",
            "most recent death first (AMQP.md 1, 3)",
            _in_deaths(lambda deaths: [*deaths[:1], *sorted(deaths[1:], key=str)]),
        ),
        Difference(
            "carbon-copy-of-the-dead",
            "removes the `CC` header when a dead-letter routing key is set",
            "keeps it (AMQP.md 11)",
            _in_headers(_carbon_copies),
        ),
        Difference(
            "client-sent-death-headers",
            "adds to an `x-death` array that the client has sent, and then sets no `x-first-death-*`; does not "
            "replace `x-first-death-*` that the client has sent",
            "begins a new array of one entry and sets all six headers (AMQP.md 12, 14)",
            _both(_in_deaths(_first_of_one), _without(lambda key, _: key.startswith("x-first-death-"))),
        ),
        Difference(
            "death-cycles",
            "looks for cycles in the turned-round `x-death` array: some automatic cycles of three deaths go on for "
            "ever, some cycles with a rejection are dropped",
            "looks at deaths by recency (AMQP.md 15)",
            None,
        ),
        Difference(
            "delivery-count-header",
            "a quorum queue's first delivery carries `x-delivery-count` 0",
            "only redeliveries carry it (AMQP.md 21)",
            _without(
                lambda key, value: key == "x-acquired-count" or (key == "x-delivery-count" and value == 0)
            ),
        ),
        Difference(
            "nack-requeue-counts",
            "`basic.nack` with requeue counts towards the delivery limit",
            "only `basic.reject` and a lost connection do (AMQP.md 21)",
            None,
        ),
        Difference(
            "default-delivery-limit",
            "a quorum queue without `x-delivery-limit` has none",
            "it is 20 (AMQP.md 21)",
            None,
        ),
        Difference(
            "unknown-exchange-type",
            "ends the connection: 503 COMMAND_INVALID",
            "closes the channel: 406 PRECONDITION_FAILED, with the same text",
            None,
        ),
        Difference(
            "headers-number-types",
            "a headers exchange finds 1 and 1.0 equal",
            "does not",
            None,
        ),
        Difference(
            "negotiation-refused",
            "hangs up three seconds after a `tune-ok` that asks for too much",
            "says so: 530 `negotiated frame_max = 262144 is higher than the maximum allowed value (131072)`",
            _in_entries(_ended),
        ),
        Difference(
            "identity",
            "product, version, cluster name, platform and licence are RabbitMQ's; the mechanisms are PLAIN and "
            "AMQPLAIN",
            "our own; capabilities and the two mechanisms are the same",
            _in_entries(_identity),
            ours=True,
        ),
        Difference(
            "protocol-error-texts",
            "texts about broken frames hold Erlang terms, texts about misplaced methods name no channel",
            "our own words; reply code, class and method are the same",
            _in_entries(_only_the_code),
            ours=True,
        ),
        Difference(
            "unknown-method",
            "hangs up at once, without a word, on a method that does not exist",
            "503 COMMAND_INVALID first",
            _in_entries(_ended),
            ours=True,
        ),
    )
}


def differs(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a script cite differences."""
    for name in names:
        if name not in DIFFERENCES:
            raise KeyError(f"no difference is called {name}; there are: {', '.join(DIFFERENCES)}")

    def mark(script: Callable[..., None]) -> Callable[..., None]:
        script.differs = names  # type: ignore[attr-defined]
        return script

    return mark


def cited_by(script: Callable[..., None], version: tuple[int, ...]) -> Sequence[Difference]:
    """The differences that a script cites and that hold against a RabbitMQ of this version."""
    rows = [DIFFERENCES[name] for name in getattr(script, "differs", ())]
    return [row for row in rows if row.ours or version < (4,)]


def rendered() -> str:
    """The table for the documentation."""
    lines = ["| name | RabbitMQ 3.10 | the embedded broker | whose |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{row.name}` | {row.old} | {row.new} | {'ours' if row.ours else 'RabbitMQ 4'} |"
        for row in DIFFERENCES.values()
    ]
    return "\n".join(lines)
