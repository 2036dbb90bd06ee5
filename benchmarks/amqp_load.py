"""How is a broker loaded from outside, by somebody who needs less time for a message than the broker does?

Producer and consumer are processes of their own on bare blocking sockets (`python -m benchmarks.amqp_load`, started
by `Worker`). The producer's octets are made before the clock starts and sent in pieces of 64 KB; the consumer splits
what it reads with this package's codec, counts, and settles in runs: one frame per message, many frames per write.
Each says when it began and ended and how much CPU it took, so that a figure that measures the generator instead of
the broker can be told. Times are of the monotonic clock, which all processes of a machine share.
"""

import concurrent.futures
import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import unquote, urlsplit

from redrive.amqp import methods as m
from redrive.amqp.connection import Connection
from redrive.amqp.events import Failed, MethodReceived
from redrive.amqp.frames import ACK_HEAD, CONTENT, METHOD, Item, content_header
from redrive.amqp.hot import ContentWriter, ack_frame, parse_ack, publish_payload, reject_frame
from redrive.amqp.methods import Method, Role
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.amqp.sasl import PLAIN, Credentials, encode_response
from redrive.amqp.states import ConnectionState

ROOT = Path(__file__).resolve().parent.parent
CHANNEL = 1
PIECE = 64 * 1024
READ = 256 * 1024
M = TypeVar("M", bound=Method)
Options = Mapping[str, object]


class Link:
    """A blocking connection with one channel open: enough to declare, to ask, and to lend its socket to a load."""

    def __init__(self, url: str, *, channel: bool = True) -> None:
        address = urlsplit(url)
        user, password = unquote(address.username or "guest"), unquote(address.password or "guest")
        self.protocol = Connection(Role.CLIENT)
        self.socket = socket.create_connection((address.hostname or "127.0.0.1", address.port or 5672), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._events: list[MethodReceived] = []
        self.socket.sendall(self.protocol.initiate())
        self.wait_for(m.ConnectionStart)
        self.send(m.ConnectionStartOk({}, PLAIN, encode_response(PLAIN, Credentials(user, password))), 0)
        tune = self.protocol.negotiate(self.wait_for(m.ConnectionTune))
        self.send(m.ConnectionTuneOk(tune.channel_max, tune.frame_max, heartbeat=0), 0)
        self.send(m.ConnectionOpen(unquote(address.path[1:]) or "/"), 0)
        self.wait_for(m.ConnectionOpenOk)
        if channel:
            self.send(m.ChannelOpen())
            self.wait_for(m.ChannelOpenOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, method: Method, channel: int = CHANNEL) -> None:
        """Say something."""
        self.socket.sendall(self.protocol.send(method, channel))

    def send_all(self, methods: Sequence[Method]) -> None:
        """Say many things at once; none of them may be one that is answered."""
        self.socket.sendall(b"".join(self.protocol.send(method, CHANNEL) for method in methods))

    def wait_for(self, kind: type[M]) -> M:
        """The next method of this kind; a close is an error."""
        while True:
            while self._events:
                method = self._events.pop(0).method
                if isinstance(method, kind):
                    return method
                if isinstance(method, m.ConnectionClose | m.ChannelClose):
                    raise ConnectionError(f"the broker said: {method.reply_code} {method.reply_text}")
            data = self.socket.recv(READ)
            if not data:
                raise ConnectionError("the broker has hung up")
            for event in self.protocol.receive(data):
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, MethodReceived):
                    self._events.append(event)

    def declare(
        self, queue: str, *, durable: bool = False, exclusive: bool = False, **arguments: object
    ) -> None:
        """A queue; dashes of argument names are written as underscores."""
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.send(m.QueueDeclare(queue, durable=durable, exclusive=exclusive, arguments=table))
        self.wait_for(m.QueueDeclareOk)

    def depth(self, queue: str) -> int:
        """How many messages are ready."""
        self.send(m.QueueDeclare(queue, passive=True))
        return self.wait_for(m.QueueDeclareOk).message_count

    def delete(self, *queues: str) -> None:
        """They are no more."""
        for queue in queues:
            self.send(m.QueueDelete(queue))
            self.wait_for(m.QueueDeleteOk)

    def close(self) -> None:
        """In order: whatever was sent before has been read when this returns."""
        with contextlib.suppress(OSError):
            if self.protocol.state is ConnectionState.RUNNING:
                self.socket.sendall(self.protocol.close())
                self.wait_for(m.ConnectionCloseOk)
        self.socket.close()


# --- The processes ------------------------------------------------------------------------------------------


class Worker:
    """A process of the generator. It does one job after another: `prepare`, `go`, `result`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.amqp_load"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._process.communicate()

    def stop(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()

    def prepare(self, role: str, url: str, **options: object) -> None:
        """Returns when it has connected and waits for `go`."""
        self._say(json.dumps({"role": role, "url": url, **options}))
        if self._hear() != "ready":
            raise ConnectionError(f"the {role} of the load generator did not get ready")

    def go(self) -> None:
        """Begin."""
        self._say("go")

    def result(self) -> dict[str, float]:
        """Wait for the end of the job: `start` and `end` of its work, `cpu` in seconds."""
        found: dict[str, float] = json.loads(self._hear())
        return found

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise ConnectionError("a process of the load generator has failed; its error is above")
        return line


@dataclass(frozen=True)
class Passed:
    """What a producer and a consumer saw of a run."""

    start: float  # of publishing
    end: float  # when the last message was taken
    producer_cpu: float
    consumer_cpu: float


class Generator:
    """A producer and a consumer, kept for many runs so that none waits for Python to start."""

    def __init__(self) -> None:
        self.producer = Worker()
        self.consumer = Worker()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self.producer, self.consumer):
            worker.__exit__()

    def publish(self, url: str, **producing: object) -> None:
        """Publish, and return when the broker has read it all. For the options see `produce`."""
        self.producer.prepare("produce", url, **producing)
        self.producer.go()
        self.producer.result()

    def run(self, url: str, *, count: int, producing: Options, consuming: Options) -> Passed:
        """So many messages from the one to the other. For the options see `produce` and `consume`."""
        self.consumer.prepare("consume", url, count=count, **consuming)
        self.producer.prepare("produce", url, count=count, **producing)
        self.consumer.go()
        self.producer.go()
        sent, taken = self.producer.result(), self.consumer.result()
        return Passed(sent["start"], taken["end"], sent["cpu"], taken["cpu"])


def wait_for_go() -> None:
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def cpu() -> float:
    """Seconds of CPU time of all threads of this process, to the microsecond (`os.times` counts in 10 ms)."""
    return time.process_time()


def produce(
    url: str,
    *,
    count: int,
    size: int,
    keys: Sequence[str],
    exchange: str = "",
    persistent: bool = False,
    window: int = 0,
) -> dict[str, float]:
    """Publish `count` messages, to each of the keys in turn; with a `window`, no more than that unconfirmed."""
    with Link(url) as link:
        pieces = publishes(link.protocol.limits.frame_max, size, keys, exchange, persistent=persistent)
        if window:
            link.send(m.ConfirmSelect())
            link.wait_for(m.ConfirmSelectOk)
        wait_for_go()
        before, start = cpu(), time.monotonic()
        (publish_confirmed if window else publish)(link, pieces, count, window)
        return {"start": start, "end": time.monotonic(), "cpu": cpu() - before}


def publishes(
    frame_max: int, size: int, keys: Sequence[str], exchange: str, *, persistent: bool
) -> list[list[bytes]]:
    """One round through all keys, or enough rounds to fill a piece: the frames of each message, by pieces."""
    writer = ContentWriter(CHANNEL, frame_max)
    properties = encode_properties(BasicProperties(delivery_mode=2 if persistent else 1))
    header, body = content_header(properties, size), bytes(range(256)) * (size // 256 + 1)
    frames = [
        writer.frames(publish_payload(exchange.encode(), key.encode()), header, body[:size]) for key in keys
    ]
    per_piece = max(1, PIECE // len(frames[0]))
    while len(frames) < per_piece:
        frames += frames
    return [frames[first : first + per_piece] for first in range(0, len(frames), per_piece)]


def publish(link: Link, pieces: list[list[bytes]], count: int, _window: int) -> None:
    ready = [(len(piece), b"".join(piece)) for piece in pieces]
    left = count
    while left:
        for piece, (size, octets) in zip(pieces, ready, strict=True):
            if size > left:
                octets, size = b"".join(piece[:left]), left  # noqa: PLW2901  the last piece is shorter
            link.socket.sendall(octets)
            left -= size
            if not left:
                break


def publish_confirmed(link: Link, pieces: list[list[bytes]], count: int, window: int) -> None:
    frames = [frame for piece in pieces for frame in piece]
    step = max(1, window // 4)
    splitter = link.protocol.splitter
    sent = confirmed = 0
    ahead: set[int] = set()  # confirmed one by one, before an older one was
    while confirmed < count:
        while sent < count and sent - confirmed + step <= window:
            many = min(step, count - sent)
            at = sent % len(frames)
            batch = frames[at : at + many]
            link.socket.sendall(b"".join(batch))
            sent += len(batch)
        data = link.socket.recv(READ)
        if not data:
            raise ConnectionError("the broker has hung up")
        for kind, _, payload in splitter.feed(data):
            if kind == METHOD and payload[:4] == ACK_HEAD:
                tag, multiple = parse_ack(payload)
                if multiple:
                    confirmed = max(confirmed, tag)
                else:
                    ahead.add(tag)
                while confirmed + 1 in ahead:
                    confirmed += 1
                    ahead.remove(confirmed)


def consume(
    url: str, *, count: int, queues: Sequence[str], settle: str = "", prefetch: int = 0
) -> dict[str, float]:
    """Take `count` messages; `settle` each by an ack or a reject of its own, or not at all (no-ack)."""
    with Link(url) as link:
        if prefetch:
            link.send(m.BasicQos(prefetch_count=prefetch))
            link.wait_for(m.BasicQosOk)
        for queue in queues:
            link.send(m.BasicConsume(queue, no_ack=not settle))
            link.wait_for(m.BasicConsumeOk)
        wait_for_go()
        before, start = cpu(), 0.0
        splitter, receive, send = link.protocol.splitter, link.socket.recv, link.socket.sendall
        seen = 0
        while seen < count:
            data = receive(READ)
            if not data:
                raise ConnectionError("the broker has hung up")
            start = start or time.monotonic()
            items = splitter.feed_batches(data)
            come = len(items) if all(item[0] == CONTENT for item in items) else _deliveries(items)
            if settle and come:  # tags of a channel are counted from 1 without a gap
                tags = range(seen + 1, seen + come + 1)
                if settle == "ack":
                    send(b"".join([ack_frame(CHANNEL, tag) for tag in tags]))
                else:
                    send(b"".join([reject_frame(CHANNEL, tag, False) for tag in tags]))
            seen += come
        return {"start": start, "end": time.monotonic(), "cpu": cpu() - before}


def _deliveries(items: Sequence[Item]) -> int:
    for kind, _, payload, _, _ in items:
        if kind == METHOD:
            raise ConnectionError(f"the broker said something else than deliveries: {payload[:64]!r}")
    return sum(item[0] == CONTENT for item in items)


def flood(url: str, *, connections: int, count: int, exchange: str) -> dict[str, float]:
    """Publish `count` empty messages to an exchange on each of some connections, all at the same time."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(Link(url)) for _ in range(connections)]
        [[frame, *_], *_] = publishes(0, 0, [""], exchange, persistent=False)
        wait_for_go()
        before, start = cpu(), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(connections) as pool:
            for link in links:
                pool.submit(link.socket.sendall, frame * count)
        for link in links:
            link.close()  # returns when the broker has read everything
        return {"start": start, "end": time.monotonic(), "cpu": cpu() - before}


def idle(url: str, *, count: int) -> dict[str, float]:
    """Open so many connections with a channel each and say nothing, until told to go on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    start = time.monotonic()
    links = [Link(url) for _ in range(count)]
    opened = time.monotonic()
    wait_for_go()
    for link in links:
        link.socket.close()
    return {"start": start, "end": opened, "cpu": cpu()}


ROLES: dict[str, Callable[..., dict[str, float]]] = {
    "produce": produce,
    "consume": consume,
    "flood": flood,
    "idle": idle,
}


def main() -> None:
    for line in iter(sys.stdin.readline, ""):
        options = json.loads(line)
        role = ROLES[options.pop("role")]
        print(json.dumps(role(**options)), flush=True)


if __name__ == "__main__":
    main()
