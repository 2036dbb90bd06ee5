"""Where did a shovel of RabbitMQ take a message from?

`x-shovelled` is an array of tables, the most recent move first: from which queue or exchange, to which. A move is no
death. It tells where a message belongs only if it ended in the very queue in which the message was found: then the
queue it was taken from is where it lay before. Any other move was earlier, and of the message's life.

The one rule: no input raises. It stays on the message, with `x-shovelled-timestamp`: producers' messages are shovelled
as well, and nobody can tell one from the other.
"""

from collections.abc import Mapping
from typing import Final

from redrive.formats.x_death import name, plain
from redrive.letters import Headers, HeaderValue

MOVES: Final = "x-shovelled"


def source_of(headers: Mapping[str, HeaderValue], found_in: str) -> str | None:
    """The queue from which the message was moved to `found_in`, if the last move says so."""
    moves = plain(headers.get(MOVES))
    move = plain(moves[0]) if isinstance(moves, tuple) and moves else moves
    if not isinstance(move, Headers):
        return None
    ends = {key: plain(value) for key, value in move if key in ("src-queue", "dest-queue")}
    try:
        source, destination = name(ends.get("src-queue")), name(ends.get("dest-queue"))
    except ValueError:
        return None
    return source if source and destination == found_in and source != found_in else None
