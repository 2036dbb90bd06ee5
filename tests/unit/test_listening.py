"""Clients that do not finish what they began are cut off and do not block others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redrive.listening import HttpLimits, Listening, bind, listen_at

HALVES = {
    "headers": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
    "body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{",
    "nothing": b"",
    "second": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
}
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
BIG = 20_000_000


class App:
    """Reads what is sent and answers; `/hold` answers when `go_on` is set, `/big` with much."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.held = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if not message.get("more_body"):
                break
        if scope["path"] == "/hold":
            self.held.release()
            await self.go_on.wait()
        body = b"x" * BIG if scope["path"] == "/big" else b"ok"
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def listening(app: App, **limits: float) -> AsyncIterator[Listening]:
    made = await listen_at(bind("127.0.0.1", 0), app, grace=1, limits=HttpLimits(**limits))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        app.go_on.set()
        await made.close()


async def connect(port: int, octets: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(octets)
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes the connection."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  there is nothing that could set an event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("half", HALVES)
async def test_request_that_does_not_arrive_is_closed_after_the_time_limit(half: str) -> None:
    async with listening(App(), request_timeout=0.2) as there:
        reader, writer = await connect(there.port, HALVES[half])
        received = await answer(reader)
        assert received.count(b"200 OK") == (half == "second")
        writer.close()


async def test_request_that_arrives_drop_by_drop_is_closed_too() -> None:
    async with listening(App(), request_timeout=0.5) as there:
        reader, writer = await connect(there.port, HALVES["body"])

        async def drip() -> None:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(drip(), 60)
        writer.close()
        assert await answer(reader) == b""


async def test_body_that_arrives_at_the_minimum_rate_is_taken_however_long_it_takes() -> None:
    size = 400_000
    async with listening(App(), request_timeout=0.1, min_rate=1_000) as there:
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
        reader, writer = await connect(there.port, head.encode() + b"x" * (size // 2))
        await until(lambda: bool(there._connections.open))
        (connection,) = there._connections.open
        first = connection._request_timer
        await until(lambda: connection._request_timer is not first)  # the limit has passed
        writer.write(b"x" * (size // 2))
        assert b"200 OK" in await answer(reader)
        writer.close()


async def test_beyond_the_maximum_the_oldest_unfinished_connection_makes_room() -> None:
    async with listening(App(), max_connections=20) as there:
        halves = [await connect(there.port, HALVES["headers"]) for _ in range(50)]
        for _ in range(5):
            reader, writer = await connect(there.port, WHOLE)
            assert b"200 OK" in await answer(reader)
            writer.close()
        for reader, _ in halves[:25]:
            assert await answer(reader) == b""
        for _, writer in halves:
            writer.close()


async def test_connection_is_refused_when_all_others_are_being_answered() -> None:
    app = App()
    async with listening(app, max_connections=3) as there:
        busy = [await connect(there.port, WHOLE.replace(b"GET /", b"GET /hold")) for _ in range(3)]
        for _ in busy:
            await app.held.acquire()
        reader, writer = await connect(there.port, WHOLE)
        assert (await answer(reader)).startswith(b"HTTP/1.1 503 ")
        writer.close()
        app.go_on.set()
        for reader, writer in busy:
            assert b"200 OK" in await answer(reader)
            writer.close()


async def test_client_that_does_not_read_its_answer_is_cut_off() -> None:
    async with listening(App(), request_timeout=0.2, max_connections=1) as there:
        reader, writer = await connect(there.port, WHOLE.replace(b"GET /", b"GET /big"))
        await until(lambda: bool(there._connections.open))
        await until(lambda: not there._connections.open)
        assert len(await answer(reader)) < BIG
        writer.close()


async def test_close_does_not_wait_for_requests_that_do_not_arrive() -> None:
    async with listening(App()) as there:
        halves = [await connect(there.port, octets) for octets in HALVES.values()]
        reader, writer = await connect(there.port, WHOLE)
        assert b"200 OK" in await answer(reader)  # by then the halves have arrived
        writer.close()
        await there.close()
        for reader, writer in halves:
            await answer(reader)
            writer.close()
