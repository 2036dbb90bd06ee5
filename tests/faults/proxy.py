"""A network between two programs that cuts, delays and half-closes: `python -m tests.faults.proxy PORT SEED`.

Listens on a free port of loopback, which it prints, and passes octets on to PORT. Each connection is left alone for a
random while and then treated in one of these ways: both ends are reset in the middle of a chunk; one end is closed and
the other stays open for a moment; nothing passes for a moment, then everything does. A line on standard input ends it,
and it prints how often it did what.

The rule: it never changes, repeats or reorders octets; what arrives is always a beginning of what was sent.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

LOOPBACK = "127.0.0.1"
CHUNK = 65_536


class Pair:
    """One connection, both of its ends, and what is done to it."""

    def __init__(self, chance: random.Random, kinds: Iterator[str], done: "Counter[str]") -> None:
        self._chance = chance
        self._kinds = kinds
        self._done = done
        self._open = asyncio.Event()
        self._open.set()
        self._cut = False

    async def carry(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        pumps = [
            asyncio.create_task(self._pump(client[0], server[1])),
            asyncio.create_task(self._pump(server[0], client[1])),
        ]
        trouble = asyncio.create_task(self._trouble(client[1], server[1]))
        try:
            await asyncio.wait([*pumps, trouble], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*pumps, trouble):
                task.cancel()
            await asyncio.gather(*pumps, trouble, return_exceptions=True)
            for writer in (client[1], server[1]):
                writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                if self._cut:  # in the middle of a frame, most likely
                    data = data[: self._chance.randrange(len(data) + 1)]
                writer.write(data)
                await writer.drain()
                if self._cut:
                    return
            writer.write_eof()

    async def _trouble(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        while True:
            # The first cut comes early: a fast consumer may be done within a few seconds.
            await asyncio.sleep(self._chance.uniform(0.2, 3.0 if self._done["cut"] else 0.4))
            kind = next(self._kinds)
            self._done[kind] += 1
            if kind == "delay":
                self._open.clear()
                await asyncio.sleep(self._chance.uniform(0.05, 0.8))
                self._open.set()
            elif kind == "cut":
                self._cut = True
                await asyncio.sleep(0.02)
                return
            else:
                with suppress(OSError):
                    self._chance.choice((client, server)).write_eof()
                await asyncio.sleep(self._chance.uniform(0.05, 0.5))
                return


def trouble(chance: random.Random) -> Iterator[str]:
    """What happens next, on whichever connection: a cut first, so that every run has one, then all kinds in turn."""
    yield "cut"
    while True:
        yield from chance.sample(("cut", "half-close", "delay", "delay"), k=4)


async def main(port: int, seed: int) -> None:
    chance, done = random.Random(seed), Counter[str]()
    kinds = trouble(chance)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done["connections"] += 1
        try:
            server = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            writer.transport.abort()
            return
        await Pair(chance, kinds, done).carry((reader, writer), server)

    listener = await asyncio.start_server(serve, LOOPBACK, 0)
    print(listener.sockets[0].getsockname()[1], flush=True)  # noqa: T201  that is how it tells
    await asyncio.to_thread(sys.stdin.readline)
    listener.close()
    print(json.dumps(done), flush=True)  # noqa: T201  that is how it tells


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
    else:
        uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
