"""How many messages does redrive consume in a second, beside what others consume from the same RabbitMQ?

It uses the newest RabbitMQ that is installed, started for this run, with its own defaults. Each contestant is a process
of its own that finds its queue full and reports when it saw the first and the last message, so that start-up does not
count. Messages are persistent, of 1 KB;
prefetch is 200, each message is settled by a handler that does nothing; then the same with every tenth message
failing for good, which each dead-letters in its own way. Ours by default publishes a dead letter that tells why and
acknowledges when it is confirmed, which is more than a reject: pika is there with a reject and with a publish of that
kind, and ours also with a reject, so that like can be held against like.

Contestants take turns and the median of the rounds counts. A run in which a message is missing at the end, or lies
where it should not, is void, and its contestant has no figure.

The peer `bare transport` is our own transport without the runtime: that case tells what the runtime costs.
`consume_crash` compares the rate after a crash of the broker with that before it. `consume_peers` has the others'
ways of consuming, `consume_ours` ours, `consume_fill` what lies in the queues. How much CPU everybody took goes to
standard error, and so does what could not be measured and why.
"""

import concurrent.futures
import contextlib
import importlib.metadata
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import psutil

from benchmarks import consume_crash
from benchmarks.amqp_load import Link
from benchmarks.broker import Target, note, share, start_rabbitmq, until
from benchmarks.case import Case, Figure, Speed, figures_of
from benchmarks.consume_fill import (
    Envelope,
    Shelf,
    fill,
    for_celery,
    for_dramatiq,
    plain,
    put_up,
    shelf_of,
    take_down,
    wait_for_depth,
)
from benchmarks.contestant import Process, VoidError, scaled
from redrive.amqp import methods as m

UNIT = "messages/s"
PATIENCE_S = 120
SETTLE_S = 10  # until the last dead letter has arrived


@dataclass(frozen=True)
class Contestant:
    """Who consumes, and how many times its rate is asked of us."""

    name: str
    package: str
    asked: float
    pace: float  # its share of the messages: a slow one needs fewer for the same time
    called: str = ""  # in the results, if not by its package and version
    only_full: bool = False

    @property
    def title(self) -> str:
        """What it is called in the results."""
        return self.called or f"{self.package} {importlib.metadata.version(self.package)}"


@dataclass(frozen=True)
class Load:
    """What the handler does."""

    name: str
    fail_every: int = 0


@dataclass(frozen=True)
class Effort:
    """How long to look."""

    messages: int  # of one round of the fastest
    rounds: int


QUICK = Effort(messages=15_000, rounds=1)
FULL = Effort(messages=40_000, rounds=3)
QUICK_ALONE = Effort(
    messages=40_000, rounds=1
)  # without peers there is time for as many messages as in a full run

SUCCESS = Load("no-op handler, 1 KB")
FAILURE = Load("no-op handler, 1 KB, every tenth dead-lettered", fail_every=10)
OURS = Contestant("ours", "redrive", 1.0, 1.0)
BARE = Contestant("bare", "redrive", 0.65, 1.0, called="bare transport")
REJECTING = Contestant("ours-rejecting", "redrive", 1.0, 1.0, called="redrive, rejecting")
PIKA = Contestant("pika", "pika", 1.0, 0.6)
PUBLISHING = Contestant(
    "pika-publishing", "pika", 1.0, 0.4, called="pika, publishing with confirms", only_full=True
)
PEERS = (
    PIKA,
    Contestant("pika-blocking", "pika", 1.0, 0.4, called="pika's BlockingConnection", only_full=True),
    Contestant("aio-pika", "aio-pika", 1.0, 0.25),
    Contestant("faststream", "faststream", 2.0, 0.14),
    Contestant("dramatiq", "dramatiq", 2.0, 0.16),
    Contestant("celery", "celery", 2.0, 0.1),
)


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    effort = QUICK if quick else FULL
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(1) as pool:
        rabbitmq = pool.submit(start_rabbitmq, stack)
        # A RabbitMQ takes its time to start; meanwhile the libraries make their envelopes.
        peers = [peer for peer in PEERS if is_here(peer) and not (quick and peer.only_full)]
        failing = [REJECTING, *([] if quick else [PUBLISHING])] if PIKA in peers else []
        envelopes = {one.name: envelope_for(one) for one in (OURS, BARE, *failing, *peers)}
        target = rabbitmq.result()
        if target is None:
            return
        with Link(target.url) as link:
            arena = Arena(target, link, envelopes)
            yield from compare(arena, SUCCESS, [OURS, BARE, *peers], effort)
            yield from compare(arena, FAILURE, [OURS, *failing, *peers], effort)
    yield from consume_crash.run(quick=quick)


def run_ours(*, quick: bool) -> Iterator[Figure]:
    """The same loads without the peers."""
    effort = replace(QUICK_ALONE, messages=scaled(QUICK_ALONE.messages)) if quick else FULL
    with contextlib.ExitStack() as stack:
        target = start_rabbitmq(stack)
        if target is None:
            return
        with Link(target.url) as link:
            arena = Arena(target, link, {OURS.name: envelope_for(OURS)})
            for load in (SUCCESS, FAILURE):
                yield from figures_of(load.name, measure(arena, load, [OURS], effort).get(OURS, []), UNIT)


def is_here(peer: Contestant) -> bool:
    """Whether its library is installed; a note if not."""
    try:
        importlib.metadata.version(peer.package)
    except importlib.metadata.PackageNotFoundError:
        note(
            f"consume: {peer.name} is left out: {peer.package} is not installed; pip install 'redrive[bench]'"
        )
        return False
    return True


def envelope_for(contestant: Contestant) -> Envelope:
    """What its producer would send."""
    if contestant.name == "dramatiq":
        return for_dramatiq(queue_of(contestant))
    return for_celery() if contestant.name == "celery" else plain()


def queue_of(contestant: Contestant) -> str:
    return f"bench.{contestant.name}"


def process_of(contestant: Contestant, url: str, queue: str, count: int, load: Load) -> Process:
    words = [contestant.name, url, queue, str(count), "--fail-every", str(load.fail_every)]
    return Process("benchmarks.consume_peers", words, PATIENCE_S)


# --- Rounds -------------------------------------------------------------------------------------------------


def compare(arena: "Arena", load: Load, contestants: Sequence[Contestant], effort: Effort) -> Iterator[Case]:
    """Ours beside each of the others."""
    runs = measure(arena, load, contestants, effort)
    found = {contestant: median(run.rate for run in each) for contestant, each in runs.items()}
    if OURS not in found:
        return
    for contestant in contestants[1:]:
        if contestant is REJECTING:
            if contestant in found and PIKA in found:
                name = f"{load.name} by a reject"
                peer_name = f"{PIKA.title} on {arena.target.name}"
                yield Case(name, found[REJECTING], found[PIKA], peer_name, PIKA.asked, UNIT)
        elif contestant in found:
            name = f"{load.name}, runtime over transport" if contestant is BARE else load.name
            peer_name = f"{contestant.title} on {arena.target.name}"
            yield Case(name, found[OURS], found[contestant], peer_name, contestant.asked, UNIT)


def measure(
    arena: "Arena", load: Load, contestants: Sequence[Contestant], effort: Effort
) -> dict[Contestant, list[Speed]]:
    """The runs of each contestant, in turns; without those of which a run was void."""
    runs: dict[Contestant, list[Speed]] = {one: [] for one in contestants}
    for turn in range(effort.rounds):
        for contestant in contestants[:: -1 if turn % 2 else 1]:
            if contestant not in runs:
                continue
            try:
                runs[contestant].append(arena.run(contestant, load, effort))
            except (VoidError, TimeoutError) as error:
                note(f"consume: {contestant.title}, {load.name} is left out: {error}")
                del runs[contestant]
    return runs


@dataclass(frozen=True)
class Arena:
    """A RabbitMQ, and what each contestant finds in its queue."""

    target: Target
    link: Link
    envelopes: dict[str, Envelope]

    def run(self, contestant: Contestant, load: Load, effort: Effort) -> Speed:
        """One run, measured from the first message that was seen to the last."""
        count = int(effort.messages * contestant.pace) // 10 * 10
        shelf = shelf_of(contestant.name, queue_of(contestant))
        put_up(self.link, shelf)
        try:
            with process_of(contestant, self.target.url, shelf.queue, count, load) as process:
                fill(self.link, shelf.queue, self.envelopes[contestant.name], count)  # while it imports
                process.wait_until_ready()
                before = self._cpu()
                seen = process.go()
                after = self._cpu()
            self._check(shelf, count, count // load.fail_every if load.fail_every else 0, seen["seen"])
        finally:
            take_down(self.link, shelf)
        window = seen["last"] - seen["first"]
        took, broker, machine = (late - early for early, late in zip(before, after, strict=True))
        note(
            f"  {contestant.title}, {load.name}: {(count - 1) / window:,.0f}/s of {count:,}, CPU for each"
            f" {seen['cpu'] / count * 1e6:.0f} µs; shares of a core: consumer {share(seen['cpu'], window)}, broker"
            f" {share(broker, took)}, the whole machine {share(machine, took)}"
        )
        return Speed(rate=(count - 1) / window, cpu=seen["cpu"] / count)

    def _cpu(self) -> tuple[float, float, float]:
        """Now, and the CPU seconds that the broker and the machine have taken: who else works here spoils figures."""
        times = psutil.cpu_times()
        return time.monotonic(), self.target.cpu(), times.user + times.system

    def _check(self, shelf: Shelf, count: int, dead: int, seen: int) -> None:
        """Every message was taken once and is where it belongs."""
        if seen != count:
            raise VoidError(f"the handler ran {seen:,} times for {count:,} messages")
        # What a consumer leaves unsettled is back in the queue when the queue has no consumer any more.
        until(lambda: self._consumers(shelf.queue) == 0)
        try:
            wait_for_depth(self.link, shelf.queue, 0, 0)
            wait_for_depth(self.link, shelf.dead, dead, SETTLE_S)
        except TimeoutError as error:
            raise VoidError(str(error)) from error

    def _consumers(self, queue: str) -> int:
        self.link.send(m.QueueDeclare(queue, passive=True))
        return self.link.wait_for(m.QueueDeclareOk).consumer_count
