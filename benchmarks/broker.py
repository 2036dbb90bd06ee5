"""The embedded broker against a real RabbitMQ, and a busy embedded broker against an idle one.

The peer is the newest RabbitMQ that is installed, started for this run, with its own defaults. One producer and one
consumer load each broker, with RabbitMQ's own PerfTest (one Java process) and with this package's client (`amqp_load`:
two processes); a case says which. `--quick` leaves PerfTest out, because a Java virtual machine needs longer than that
to warm up. Brokers and clients share the cores of one machine: compare ratios, not rates. Brokers take turns and the
best round of each counts. CPU times, and what could not be measured and why, go to standard error.

Cases whose peer is called `limit` are about this broker alone: memory, start. Cases whose peer is called `the same …`
hold the broker against itself with less in it.
"""

import concurrent.futures
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, quantiles

import psutil

from benchmarks import perf_test
from benchmarks.amqp_load import ROOT, Generator, Link, Worker
from benchmarks.case import Case, Figure, Speed, cpu_unit
from redrive.amqp import methods as m
from tests.services import Missing, RabbitMQServer, Run, look_for_program

MB = 1024 * 1024
BODY = 1024
UNIT = "messages/s"
WINDOW = 1000  # messages that a publisher has unconfirmed, or a consumer unacknowledged, at most
LIMIT_START_S = 0.5
LIMIT_IDLE_MB = 200
IDLE = 2000
READY_TIMES = 2.5
PATIENCE_S = 120
FAN_OUT_EXCHANGE = "bench.fanout"
QUESTIONS = 200  # of a client beside a flood
PAUSE_S = 0.001  # between an answer and the next question
MAX_QUESTIONS_S = 6  # for all of them


@dataclass(frozen=True)
class Target:
    """A broker under load, and the processes it consists of."""

    name: str
    url: str
    pids: tuple[int, ...]

    def cpu(self) -> float:
        """Seconds of CPU that it has taken."""
        times = [psutil.Process(pid).cpu_times() for pid in self.pids]
        return float(sum(one.user + one.system for one in times))

    def memory(self) -> float:
        """What is resident, in MB."""
        return float(sum(psutil.Process(pid).memory_info().rss for pid in self.pids) / MB)


@dataclass(frozen=True)
class Load:
    """How one producer and one consumer treat their queue, for both clients."""

    name: str
    asked: float
    settle: str
    persistent: bool = False

    @property
    def perf_test(self) -> list[str]:
        """The same in PerfTest's words. It acknowledges each message for itself unless told otherwise."""
        words = ["--qos", str(WINDOW)] if self.settle else ["--autoack"]
        return [*words, "--flag", "persistent", "--confirm", str(WINDOW)] if self.persistent else words


@dataclass(frozen=True)
class FanOut:
    """A flood of empty messages, each of which goes to all queues."""

    queues: int
    connections: int
    count: int  # for each connection

    @property
    def name(self) -> str:
        """What is measured with it."""
        return f"wait beside a fan-out ({self.queues} queues × {self.connections} connections × {self.count}), p99"


@dataclass(frozen=True)
class Effort:
    """How long to look."""

    messages: int  # of one round with our client
    rounds: int
    perf_test_seconds: int
    perf_test_rounds: int
    ready: int
    flat: int
    fan_out: FanOut


QUICK_FAN_OUT = FanOut(queues=200, connections=10, count=500)
FULL_FAN_OUT = FanOut(queues=500, connections=20, count=1000)
QUICK = Effort(
    messages=10_000,
    rounds=2,
    perf_test_seconds=0,
    perf_test_rounds=0,
    ready=100_000,
    flat=40_000,
    fan_out=QUICK_FAN_OUT,
)
FULL = Effort(
    messages=40_000,
    rounds=3,
    perf_test_seconds=6,
    perf_test_rounds=2,
    ready=1_000_000,
    flat=100_000,
    fan_out=FULL_FAN_OUT,
)
QUICK_ALONE = replace(QUICK, messages=40_000, rounds=5)

NO_ACK = Load("no ack", 2.7, "")
ACK = Load("ack per message", 4.5, "ack")
CONFIRMED = Load("persistent with confirms", 3.7, "ack", persistent=True)
REJECT = Load("reject to DLX to DLQ", 3.0, "reject")


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    effort = QUICK if quick else FULL
    with (
        contextlib.ExitStack() as stack,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        Generator() as generator,
    ):
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-bench-")))
        # A RabbitMQ takes its time to start; what is no matter of speed is measured meanwhile.
        rabbitmq = pool.submit(start_rabbitmq, stack)
        with ours() as target:
            yield ready_messages(target, generator, effort.ready)
        with ours() as target:
            yield idle_connections(target)
        peer = rabbitmq.result()
        yield start_until_listening()
        with ours() as memory, ours(place) as disk:
            if peer is not None:
                yield from against(memory, disk, peer, generator, effort)
            yield from flatness(memory, generator, effort)
            if (
                peer is not None
            ):  # last, because a RabbitMQ goes on with a flood after its publishers are gone
                yield compare_fairness(memory, peer, effort.fan_out)


def run_ours(*, quick: bool) -> Iterator[Figure]:
    """The same loads on this broker alone, by our client; and its memory and start."""
    effort = QUICK_ALONE if quick else FULL
    with contextlib.ExitStack() as stack, Generator() as generator:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-bench-")))
        with ours() as target:
            yield figure(ready_messages(target, generator, effort.ready))
        with ours() as target:
            yield figure(idle_connections(target))
        yield figure(start_until_listening())
        with ours() as memory, ours(place) as disk:
            for load in (NO_ACK, ACK, CONFIRMED, REJECT):
                target = disk if load.persistent else memory
                for size in (100, BODY):
                    runs = [
                        through(target, load, size, generator, effort.messages) for _ in range(effort.rounds)
                    ]
                    yield Figure(by_client(load, size), max(run.rate for run in runs), UNIT)
                    # The mean, because the system counts the CPU time of another process in steps of 10 ms.
                    cpu = mean(run.cpu for run in runs)
                    yield Figure(f"{by_client(load, size)}, CPU time", cpu * 1e6, cpu_unit(UNIT))
            yield from map(figure, flatness(memory, generator, effort))
            yield Figure(effort.fan_out.name, fairness(memory, effort.fan_out), "ms")


def figure(case: Case) -> Figure:
    """Our part of a case in which the broker is compared with a limit or with itself."""
    return Figure(case.name, case.ours, case.unit)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- The brokers --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ours(data: Path | None = None) -> Iterator[Target]:
    """The embedded broker as a process, as a user starts it; with a directory it keeps things on disk."""
    process, port = start_ours(data)
    try:
        yield Target("ours", f"amqp://guest:guest@127.0.0.1:{port}/%2F", (process.pid,))
    finally:
        end(process)


def start_ours(data: Path | None = None) -> tuple[subprocess.Popen[str], int]:
    kept = [] if data is None else ["--data", str(data)]
    process = subprocess.Popen(
        [sys.executable, "-m", "redrive", "broker", "--port", "0", *kept],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if "listens on" not in said:
        end(process)
        raise RuntimeError(f"the broker did not start: {said.strip() or 'it said nothing'}")
    return process, int(said.split("amqp://")[1].split("/")[0].rpartition(":")[2])


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def start_rabbitmq(stack: contextlib.ExitStack) -> Target | None:
    """A node of our own, until the stack is closed; None and a note if there is none to be had."""
    found = look_for_program(RabbitMQServer, {})
    if isinstance(found, Missing):
        note(f"broker: everything that needs RabbitMQ is left out: {found.reason}")
        return None
    test_run = stack.enter_context(Run.of({}))
    server = stack.enter_context(test_run.private(RabbitMQServer, os.environ))
    version = server.address.api("GET", "/overview")["rabbitmq_version"]
    return Target(f"RabbitMQ {version}", server.amqp_url, server.pids[-1:])


# --- Against RabbitMQ ---------------------------------------------------------------------------------------


def against(
    memory: Target, disk: Target, peer: Target, generator: Generator, effort: Effort
) -> Iterator[Case]:
    """The same loads on both."""
    for load in (NO_ACK, ACK, CONFIRMED):
        our = disk if load.persistent else memory
        for size in (100, BODY):
            if effort.perf_test_rounds:
                yield from compare_by_perf_test(load, size, our, peer, effort)
            yield compare_by_client(load, size, our, peer, generator, effort)
    for size in (100, BODY) if effort is FULL else (100,):
        yield compare_by_client(REJECT, size, memory, peer, generator, effort)


def compare_by_perf_test(load: Load, size: int, our: Target, peer: Target, effort: Effort) -> Iterator[Case]:
    def once(target: Target) -> float:
        perf_test.jars()  # fetching them is no part of the time
        before, start = target.cpu(), time.monotonic()
        queue = ["--queue", f"bench.{load.settle}.{load.persistent}.{size}"]
        found = perf_test.rate(
            target.url, seconds=effort.perf_test_seconds, size=size, options=[*load.perf_test, *queue]
        )
        took = time.monotonic() - start
        note(
            f"  PerfTest, {load.name}, {size} B, {target.name}: {found:,.0f}/s; CPU of the broker"
            f" {share(target.cpu() - before, took)} with the start of Java in it"
        )
        return found

    try:
        best = in_turns([lambda: once(our), lambda: once(peer)], effort.perf_test_rounds)
    except perf_test.NoPerfTestError as error:
        note(f"broker: PerfTest, {load.name}, {size} B is left out: {error}")
        return
    yield Case(f"{load.name}, {size} B, PerfTest", best[0], best[1], peer.name, load.asked, UNIT)


def compare_by_client(
    load: Load, size: int, our: Target, peer: Target, generator: Generator, effort: Effort
) -> Case:
    def once(target: Target) -> float:
        return through(target, load, size, generator, effort.messages).rate

    best = in_turns([lambda: once(our), lambda: once(peer)], effort.rounds)
    return Case(by_client(load, size), best[0], best[1], peer.name, load.asked, UNIT)


def by_client(load: Load, size: int) -> str:
    return f"{load.name}, {size} B, our client"


def in_turns(works: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """The best of several rounds for each, each round in another order."""
    best = [0.0] * len(works)
    for turn in range(rounds):
        for at in range(len(works))[:: -1 if turn % 2 else 1]:
            best[at] = max(best[at], works[at]())
    return best


def through(target: Target, load: Load, size: int, generator: Generator, count: int) -> Speed:
    """Rate and CPU time of the broker, from the first publish until the last message is where it belongs."""
    work, dead = "bench.work", "bench.dead"
    with Link(target.url) as link:
        link.declare(dead)
        link.declare(work, durable=load.persistent, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
        window = WINDOW if load.persistent else 0
        producing = {"size": size, "keys": [work], "persistent": load.persistent, "window": window}
        consuming = {"queues": [work], "settle": load.settle, "prefetch": WINDOW if load.settle else 0}
        before = target.cpu()
        passed = generator.run(target.url, count=count, producing=producing, consuming=consuming)
        finish = passed.end
        if load.settle == "reject":
            until(lambda: link.depth(dead) >= count)
            finish = time.monotonic()
        took, cpu = finish - passed.start, target.cpu() - before
        link.delete(work, dead)
    shares = ", ".join(share(part, took) for part in (cpu, passed.producer_cpu, passed.consumer_cpu))
    note(
        f"  {load.name}, {size} B, {target.name}: {count / took:,.0f}/s, {cpu / count * 1e6:.1f} µs CPU of the"
        f" broker for each; shares of a core (broker, producer, consumer): {shares}"
    )
    return Speed(rate=count / took, cpu=cpu / count)


def until(true: Callable[[], bool], pause: float = 0.005) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker did not get there within {PATIENCE_S} s")
        time.sleep(pause)


def share(cpu: float, took: float) -> str:
    return f"{cpu / took:.0%}"


# --- A client beside a flood --------------------------------------------------------------------------------


def compare_fairness(our: Target, peer: Target, load: FanOut) -> Case:
    waits = [fairness(target, load) for target in (our, peer)]
    return Case(load.name, waits[0], waits[1], peer.name, 1.0, "ms", less_is_better=True)


def fairness(target: Target, load: FanOut) -> float:
    """The 99th percentile of what a client waits for an answer, in ms, while others publish to many queues each."""
    waits: list[float] = []
    with Link(target.url) as link:
        link.send(m.ExchangeDeclare(FAN_OUT_EXCHANGE, "fanout", auto_delete=True))
        link.wait_for(m.ExchangeDeclareOk)
        names = [f"bench.fanout.{number}" for number in range(load.queues)]
        link.send_all([m.QueueDeclare(name, exclusive=True, nowait=True) for name in names])
        link.send_all([m.QueueBind(name, FAN_OUT_EXCHANGE, nowait=True) for name in names])
        link.declare("bench.beside", exclusive=True)
        end = time.monotonic() + MAX_QUESTIONS_S
        while len(waits) < QUESTIONS and time.monotonic() < end:
            for name in names if waits else ():
                link.send(m.QueuePurge(name))
                link.wait_for(m.QueuePurgeOk)
            waits += waits_beside_flood(target, link, load, QUESTIONS - len(waits), end)
        link.socket.close()  # a RabbitMQ would first delete the queues, which takes it long now
    note(
        f"  {load.name}, {target.name}: the median of {len(waits)} was {median(waits) * 1000:.1f} ms, the longest"
        f" {max(waits) * 1000:.1f} ms"
    )
    return quantiles(waits, n=100)[-1] * 1000


def waits_beside_flood(target: Target, link: Link, load: FanOut, questions: int, end: float) -> list[float]:
    """How long so many answers take; fewer if the flood or the time is over before. Then its publishers are killed."""
    waits: list[float] = []
    with Worker() as worker, concurrent.futures.ThreadPoolExecutor(1) as pool:
        worker.prepare(
            "flood", target.url, connections=load.connections, count=load.count, exchange=FAN_OUT_EXCHANGE
        )
        worker.go()
        flood = pool.submit(worker.result)
        while len(waits) < questions and time.monotonic() < end and not flood.done():
            start = time.monotonic()
            link.depth("bench.beside")
            waits.append(time.monotonic() - start)
            time.sleep(PAUSE_S)
        worker.stop()
    return waits


# --- Alone --------------------------------------------------------------------------------------------------


def ready_messages(target: Target, generator: Generator, count: int) -> Case:
    """Messages of 1 KB that nobody takes yet."""
    with Link(target.url) as link:
        link.declare("bench.ready")
        generator.publish(target.url, count=count, size=BODY, keys=["bench.ready"])
        until(lambda: link.depth("bench.ready") >= count)
        limit = READY_TIMES * count * BODY / MB
        return _below(f"{count:,} ready messages of 1 KB", target.memory(), limit, "MB")


def idle_connections(target: Target) -> Case:
    """Connections with a channel each that say nothing."""
    with Worker() as worker:
        worker.prepare("idle", target.url, count=IDLE)
        return _below(f"{IDLE:,} idle connections", target.memory(), LIMIT_IDLE_MB, "MB")


def start_until_listening() -> Case:
    """From the start of Python to the line that says where it listens; the best of three."""
    times = []
    for _ in range(3):
        start = time.monotonic()
        process, _port = start_ours()
        times.append(time.monotonic() - start)
        end(process)
    return _below("start until listening", min(times), LIMIT_START_S, "s")


def _below(name: str, value: float, limit: float, unit: str) -> Case:
    return Case(name, value, limit, "limit", 1.0, unit, less_is_better=True)


# --- The same with more in it -------------------------------------------------------------------------------


def flatness(target: Target, generator: Generator, effort: Effort) -> Iterator[Case]:
    """Whether a message costs the same among many queues and many bindings as among few."""
    few, many = 1, 1000
    names = [f"bench.queue.{number}" for number in range(many)]

    def pass_on(exchange: str, queues: list[str], keys: list[str]) -> Callable[[], float]:
        return lambda: passing(target, generator, effort.flat, exchange, queues, keys)

    with Link(target.url) as link:
        for name in names:
            link.declare(name)
        best = in_turns([pass_on("", names[:few], names[:few]), pass_on("", names, names)], rounds=5)
        link.delete(*names)
        yield _flat(f"no ack, {many:,} queues in turn", best, f"the same with {few}")
        few, many = 10, 10_000
        for kind in ("direct", "topic") if effort is FULL else ("topic",):
            works = [pass_on(*bound(link, kind, size)) for size in (few, many)]
            best = in_turns(works, rounds=4)
            link.delete("bench.bound")
            yield _flat(
                f"no ack, {many:,} bindings of a {kind} exchange in turn", best, f"the same with {few}"
            )


def _flat(name: str, best: Sequence[float], peer: str) -> Case:
    return Case(name, best[1], best[0], peer, 0.667, UNIT)


def bound(link: Link, kind: str, size: int) -> tuple[str, list[str], list[str]]:
    """One queue bound by so many keys: the exchange, the queue, and a key for each binding."""
    exchange, queue = f"bench.{kind}.{size}", "bench.bound"
    link.declare(queue)
    link.send(m.ExchangeDeclare(exchange, kind))
    link.wait_for(m.ExchangeDeclareOk)
    pattern = "orders.{}.*" if kind == "topic" else "orders.{}.new"
    link.send_all(
        [m.QueueBind(queue, exchange, pattern.format(number), nowait=True) for number in range(size)]
    )
    link.depth(queue)  # by the time of its answer, they are all there
    return exchange, [queue], [f"orders.{number}.new" for number in range(size)]


def passing(
    target: Target, generator: Generator, count: int, exchange: str, queues: list[str], keys: list[str]
) -> float:
    """Messages per second through an exchange into queues and out again, the keys in turn."""
    passed = generator.run(
        target.url,
        count=count,
        producing={"size": 100, "keys": keys, "exchange": exchange},
        consuming={"queues": queues},
    )
    return count / (passed.end - passed.start)
