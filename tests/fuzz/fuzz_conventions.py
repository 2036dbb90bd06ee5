"""Feed broken dead letters to the readers of all conventions and see that nothing ever comes out but a value.

    python tests/fuzz/fuzz_conventions.py --inputs 1000000 --seed 1

Each input is a dead letter of one or more systems, damaged: values swapped, cut, retyped, nested, doubled, spliced in
from elsewhere; a body cut or with its bits flipped. `read` and `stripped` may not raise, whatever is unreadable has a
name that is there, a body stays as it is, and only headers that a convention names are removed.
"""

import argparse
import random
import sys
import time
from datetime import UTC, datetime

from redrive.formats import own
from redrive.formats.systems import SYSTEMS
from redrive.formats.told import read, stripped
from redrive.formats.x_death import NAMES
from redrive.letters import Headers, HeaderValue, Message, TypedValue
from redrive.testing import a_letter

Pairs = list[tuple[str, HeaderValue]]

DEATH = Headers(
    {
        "count": 2,
        "reason": "rejected",
        "queue": "orders",
        "time": datetime(2026, 2, 11, 11, tzinfo=UTC),
        "exchange": "shop",
        "routing-keys": ("eu.orders", "copy"),
        "original-expiration": "60000",
    }
)
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: closed\n'
BODY = (
    b'{"queue_name":"orders","actor_name":"ship","args":[1],"kwargs":{},"message_id":"m","message_timestamp":1,'
    b'"options":{"retries":3,"traceback":"'
    + TRACEBACK.encode("unicode_escape").replace(b'"', b'\\"')
    + b'","requeue_timestamp":1770807600250}}'
)
VALUES: list[HeaderValue] = [
    "fault", "rabbitmq://h/v/orders?a=b", "2026-02-11T11:00:00.5841863Z", "2026-02-11 11:00:00:123456 Z", "3",
    1770807600250, 2**63, -1, True, None, 0.5, float("nan"), b"\xff", "Größe".encode(), "", "\udc80", TRACEBACK,
    datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), TypedValue("timestamp", 2**64 - 1), (), DEATH,
    (DEATH,), (DEATH, 7), ("a", None), Headers({"queue": ()}), "rabbitmq://[", "orders.delay.5s", "expired",
    b"\x00\x00\x00\x07", b"\x00\x00\x01\x9c\x4c\x5b\xa4\x7a", b"\xff" * 8, b"\xac\xed\x00\x05", b"-1", "a.B: c",
]  # fmt: skip
QUEUES = ["orders.dlq", "orders_error", "orders.XQ", "", "_error", "\udc80.XQ"]
MARKS = {"redrive-id", "redrive-fence", "redrive-attempt", "redrive-operation", "x-replayed"}


def whole() -> list[Pairs]:
    """The headers of an undamaged dead letter, for each system."""
    letters: list[Pairs] = [
        list(own.write(a_letter(), 4)),
        [("x-death", (DEATH, DEATH)), ("x-first-death-queue", "orders"), ("x-last-death-reason", "expired")],
        [(mark, 1) for mark in sorted(MARKS)],
    ]
    for row in SYSTEMS:
        names = {*row.recognised_by, *(name.replace("*", "Any") for name in row.adds)}
        letters.append([(name, "1") for name in sorted(names)])
    return letters


def damaged(value: HeaderValue, chance: random.Random) -> HeaderValue:
    """Another value in its place, or the same one with something wrong about it."""
    match chance.randrange(7), value:
        case 0, str() | bytes():
            return value[: chance.randrange(len(value) + 1)]
        case 1, str():
            return value.encode("utf-8", "surrogatepass")
        case 2, _:
            return TypedValue(chance.choice(["int32", "longstr", "timestamp"]), value)
        case 3, _:
            return (value, chance.choice(VALUES))
        case 4, tuple() if value:
            return (damaged(value[0], chance), *value[1:])
        case 5, Headers() if value:
            name, held = chance.choice(value)
            return value.with_({name: damaged(held, chance)})
    return chance.choice(VALUES)


def a_message(letters: list[Pairs], chance: random.Random) -> Message:
    """A dead letter of one or more systems, with its damage."""
    pairs = [pair for letter in chance.sample(letters, chance.randint(1, 3)) for pair in letter]
    for _ in range(chance.randrange(6)):
        place = chance.randrange(len(pairs))
        name, value = pairs[place]
        match chance.randrange(4):
            case 0:
                pairs[place] = (name[:-1], value)
            case 1:
                pairs.append((name, damaged(value, chance)))
            case _:
                pairs[place] = (name, damaged(value, chance))
    body = bytearray(BODY if chance.random() < 0.5 else b"{}")
    for _ in range(chance.randrange(3)):
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    cut = chance.randrange(len(body)) if chance.random() < 0.2 else len(body)
    return Message(body=None if chance.random() < 0.02 else bytes(body[:cut]), headers=Headers(pairs))


def check(message: Message, queue: str) -> str:
    """Read it and strip it; the convention that was recognised."""
    told, left = read(message, queue), stripped(message)
    names = message.headers.names()
    paths = {said for row in SYSTEMS if row.in_body for said in row.fields.values()}
    assert set(told.unreadable) <= names | paths, "unreadable is what is not there"
    assert left.body == message.body, "a body was changed"
    for name in names - left.headers.names():
        ours = not own.strip(Headers({name: 1}))
        assert ours or name in NAMES or any(row.added(name) for row in SYSTEMS), f"{name} was removed"
        assert name not in MARKS, f"the mark {name} was removed"
    return told.convention


def main() -> int:
    """Run so many inputs, or for so long; the seed repeats a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance, letters, begun = random.Random(asked.seed), whole(), time.monotonic()
    seen: dict[str, int] = {}
    number = 0
    for number in range(1, asked.inputs + 1):
        message, queue = a_message(letters, chance), chance.choice(QUEUES)
        try:
            name = check(message, queue)
        except Exception:
            sys.stderr.write(f"input {number} of seed {asked.seed}, queue {queue!r}: {message!r}\n")
            raise
        seen[name] = seen.get(name, 0) + 1
        if number % 1000 == 0 and time.monotonic() - begun > asked.seconds:
            break
    took = time.monotonic() - begun
    sys.stdout.write(f"{number} inputs in {took:.1f} s, none raised; recognised as {seen}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
