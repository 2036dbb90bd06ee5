"""How many records does redrive consume in a second, beside what others consume from the same Kafka?

One Kafka of this run alone, one broker. Each contestant is a process of its own, in a group of its own, that finds its
topic full and tells when it saw the first and the last record. Records are 1 KB of JSON with a key, in four partitions;
offsets are committed on the way. Three questions:

- what does the runtime cost over a bare loop of confluent-kafka, where neither decodes anything?
- how does it stand beside FastStream, where both decode?
- and where every tenth record fails and is dead-lettered? FastStream's handler publishes those itself.

Clocks start for everybody when the handler, or the body of the bare loop, sees the first record: joining the group, the
first fetch and redrive's first claim count for nobody, and what librdkafka has fetched ahead by then lies ready for
whoever uses it. A topic that was filled is read once before anybody is measured, else the first contestant, which is
ours where there is one round, would be the one to find a broker whose code is not compiled yet. The bare loop fetches
with the same settings as redrive.

FastStream is measured on both of its Kafka clients, and the better one counts; `--quick` asks the one that has always
been the better. Contestants take turns, and the median of the rounds counts. A run that did not see every record once,
or after which the group or the topic of dead letters is not where it should be, is void. `kafka_peers` has the ways of
consuming. How much CPU everybody took goes to standard error, and so does what could not be measured and why.
"""

import contextlib
import importlib.metadata
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.broker import Target, note, share
from benchmarks.case import Case, Figure, Speed, figures_of
from benchmarks.consume_fill import plain
from benchmarks.contestant import Process, VoidError, scaled
from benchmarks.kafka_peers import dlq_of
from tests.services import Kafka, KafkaServer, Missing, Run, look_for_program

UNIT = "records/s"
PATIENCE_S = 120
PARTITIONS = 4
FAIL_EVERY = 10


class Broker(KafkaServer):
    """One that is fast after seconds, rather than one that starts fast."""

    machine: ClassVar = ("-Xmx1g", "-XX:+UseSerialGC")


@dataclass(frozen=True)
class Contestant:
    """Who consumes."""

    name: str
    pace: float  # its share of the records: a slow one needs fewer for the same time
    title: str


@dataclass(frozen=True)
class Effort:
    """How long to look."""

    records: int  # of one round of the fastest
    rounds: int
    close_rounds: int  # where the two are so close that one round tells little
    both_clients: bool  # of FastStream, or only the one that has always been the better


QUICK = Effort(records=100_000, rounds=1, close_rounds=3, both_clients=False)
FULL = Effort(records=300_000, rounds=3, close_rounds=3, both_clients=True)

QUICK_ALONE = Effort(records=200_000, rounds=1, close_rounds=1, both_clients=False)

BARE = Contestant("bare", 1.0, f"bare confluent-kafka {importlib.metadata.version('confluent-kafka')} loop")
UNDECODED = Contestant("ours-undecoded", 1.0, "redrive, nothing decoded")
OURS = Contestant("ours", 0.6, "redrive")
CONFLUENT = Contestant("faststream-confluent", 0.05, "FastStream's confluent")
AIOKAFKA = Contestant("faststream-aiokafka", 0.05, "FastStream's aiokafka")


@dataclass(frozen=True)
class Question:
    """Ours, who is asked beside us, and how many times their rate is asked of us."""

    name: str
    ours: Contestant
    peers: Sequence[Contestant]
    asked: float
    fail_every: int = 0
    share: float = 1.0  # of the records: dead letters take their time


QUESTIONS = (
    Question("no-op handler, 1 KB, nothing decoded", UNDECODED, [BARE], 0.5),
    Question("no-op handler, 1 KB", OURS, [CONFLUENT, AIOKAFKA], 3.0),
    Question(
        "no-op handler, 1 KB, every tenth dead-lettered",
        OURS,
        [CONFLUENT, AIOKAFKA],
        3.0,
        fail_every=FAIL_EVERY,
        share=0.4,
    ),
)


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    effort = QUICK if quick else FULL
    with contextlib.ExitStack() as stack:
        arena = start(stack)
        if arena is None:
            return
        for question in QUESTIONS:
            yield from answer(arena, question, effort)


def run_ours(*, quick: bool) -> Iterator[Figure]:
    """The same questions without the peers."""
    effort = replace(QUICK_ALONE, records=scaled(QUICK_ALONE.records)) if quick else FULL
    with contextlib.ExitStack() as stack:
        arena = start(stack)
        if arena is None:
            return
        for question in QUESTIONS:
            runs = measure(arena, question, [question.ours], effort, effort.rounds)
            yield from figures_of(question.name, runs.get(question.ours, []), UNIT)


def start(stack: contextlib.ExitStack) -> "Arena | None":
    """A broker of our own, until the stack is closed; None and a note if there is none to be had."""
    found = look_for_program(Broker, {})
    if isinstance(found, Missing):
        note(f"kafka: everything is left out: {found.reason}")
        return None
    test_run = stack.enter_context(Run.of({}))
    server = stack.enter_context(test_run.private(Broker, os.environ))
    return Arena(Target(f"Kafka {server.version}", server.url, server.pids[-1:]), server.address, {})


def answer(arena: "Arena", question: Question, effort: Effort) -> Iterator[Case]:
    """Ours beside the better of the others."""
    asked = [peer for peer in question.peers if peer is not CONFLUENT or effort.both_clients]
    rounds = effort.close_rounds if question.asked < 1 else effort.rounds
    runs = measure(arena, question, [question.ours, *asked], effort, rounds)
    found = {contestant: median(run.rate for run in each) for contestant, each in runs.items()}
    peers = [peer for peer in asked if peer in found]
    if question.ours in found and peers:
        best = max(peers, key=lambda peer: found[peer])
        peer_name = f"{best.title} on {arena.target.name}"
        yield Case(question.name, found[question.ours], found[best], peer_name, question.asked, UNIT)


def measure(
    arena: "Arena", question: Question, contestants: Sequence[Contestant], effort: Effort, rounds: int
) -> dict[Contestant, list[Speed]]:
    """The runs of each contestant, in turns; without those of which a run was void."""
    runs: dict[Contestant, list[Speed]] = {one: [] for one in contestants}
    for turn in range(rounds):
        for contestant in contestants[:: -1 if turn % 2 else 1]:
            if contestant not in runs:
                continue
            try:
                runs[contestant].append(arena.run(contestant, question, effort))
            except (VoidError, TimeoutError) as error:
                note(f"kafka: {contestant.title}, {question.name} is left out: {error}")
                del runs[contestant]
    return runs


@dataclass(frozen=True)
class Arena:
    """A Kafka, and its topics by how many records they hold. They are filled once: a group of its own sees it all."""

    target: Target
    kafka: Kafka
    topics: dict[int, str]

    def run(self, contestant: Contestant, question: Question, effort: Effort) -> Speed:
        """One run, measured from the first record that was seen to the last."""
        count = int(effort.records * contestant.pace * question.share) // 10 * 10
        topic = self.topics.get(count) or self._fill(count)
        dead_before = self._records(dlq_of(topic))
        group = f"{contestant.name}.{uuid.uuid4().hex}"
        url = f"{self.target.url}/?group={group}"
        words = [contestant.name, url, topic, str(count), "--fail-every", str(question.fail_every)]
        with Process("benchmarks.kafka_peers", words, PATIENCE_S) as process:
            process.wait_until_ready()
            before, broker = time.monotonic(), self.target.cpu()
            seen = process.go()
            took, broker = time.monotonic() - before, self.target.cpu() - broker
        dead = count // question.fail_every if question.fail_every else 0
        self._check(topic, group, (count, seen["seen"]), dead_before + dead)
        window = seen["last"] - seen["first"]
        note(
            f"  {contestant.title}, {question.name}: {(count - 1) / window:,.0f}/s of {count:,}, CPU for each"
            f" {seen['cpu'] / count * 1e6:.0f} µs; shares of a core: consumer {share(seen['cpu'], window)}, broker"
            f" {share(broker, took)}"
        )
        return Speed(rate=(count - 1) / window, cpu=seen["cpu"] / count)

    def _fill(self, count: int) -> str:
        topic = self.kafka.topic(f"bench.{count}", PARTITIONS)
        self.kafka.topic(dlq_of(f"bench.{count}"), PARTITIONS)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 50})
        body = plain().body
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, body, b"%d" % number, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(PATIENCE_S):
            raise TimeoutError(f"{topic} could not be filled within {PATIENCE_S} s")
        self._read(topic, count)
        self.topics[count] = topic
        return topic

    def _read(self, topic: str, count: int) -> None:
        """Once through it, in no group: nobody who is measured finds the broker cold."""
        with self._looking("nobody") as consumer:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
            deadline = time.monotonic() + PATIENCE_S
            while count > 0 and time.monotonic() < deadline:
                count -= sum(record.error() is None for record in consumer.consume(500, 0.1))

    def _check(self, topic: str, group: str, counts: tuple[int, int], dead: int) -> None:
        """Every record was taken once, is committed, and its dead letter is where it belongs."""
        count, seen = counts
        if seen != count:
            raise VoidError(f"the handler ran {seen:,} times for {count:,} records")
        if (found := self._records(dlq_of(topic))) != dead:
            raise VoidError(f"{found:,} dead letters lie there where {dead:,} were to be")
        with self._looking(group) as consumer:
            places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            committed = sum(max(place.offset, 0) for place in consumer.committed(places, timeout=PATIENCE_S))
        if committed != count:
            raise VoidError(f"the group has committed {committed:,} of {count:,} records")

    def _records(self, topic: str) -> int:
        total = 0
        with self._looking("nobody") as consumer:
            for number in range(PARTITIONS):
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_S)
                total += high - low
        return total

    def _looking(self, group: str) -> "contextlib.closing[Consumer]":
        return contextlib.closing(
            Consumer(
                {"bootstrap.servers": self.kafka.bootstrap, "group.id": group, "enable.auto.commit": False}
            )
        )
