"""Who lives in the simulated world, and what do they do?

Four processes on one broker and one store, all of the real code: a *consumer* whose handler has a fate for each
message; a *server* with collector, verdict collector, rescuer and a worker, run by the real `Services`; a second
*worker* in a process of its own; and an *operator* who begins replays, stops and cancels some, and goes on with what
was cut off. A producer sends a few messages in the first minutes; that is all the world is about.

It does not know faults nor rules: those are at its edges.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Final

import msgspec

from redrive.collect import Collector, VerdictCollector
from redrive.collect.reading import Reader
from redrive.consume import ConsumeOptions, Consumer, Context, Handler, Subscription
from redrive.errors import RedriveError
from redrive.host import Load
from redrive.letters import Hold, Message, State
from redrive.letters.redact import Redactor
from redrive.letters.redrive import redrive_of
from redrive.letters.verdict import QUEUE
from redrive.recover.breaker import Breakers, HoldBackOptions
from redrive.recover.rescuer import Rescuer
from redrive.recover.service import Service, Services
from redrive.recover.worker import Worker, WorkerOptions
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, plan
from redrive.replay.run import Replay
from redrive.rules import Classifier, Fixed, StrategyOptions
from redrive.stores.operations import Operation, OperationState
from redrive.stores.query import EVERYTHING, Condition, Op, Query
from redrive.testing.simulation.edges import Edge
from redrive.testing.simulation.faults import Faults
from redrive.testing.simulation.faulty_store import FaultyStore, SimulatedStore
from redrive.testing.simulation.faulty_transport import FaultyTransport
from redrive.testing.simulation.lives import Life, Process
from redrive.testing.simulation.virtual import START, VirtualClock
from redrive.testing.simulation.watch import Watch, short
from redrive.transports.base import Source
from redrive.transports.memory import MemoryBroker, MemoryTransport

LIMIT: Final = 3
ORDERS: Final = Source(name="orders", window=4)
MINUTE: Final = timedelta(minutes=1)
STRATEGY: Final = StrategyOptions(
    steps=(MINUTE, 2 * MINUTE, 3 * MINUTE), recheck=2 * MINUTE, max_redrives=LIMIT
)
CONSUMING: Final = ConsumeOptions(
    attempts=2,
    max_deliveries=2,
    concurrency=2,
    backoff=Fixed(timedelta(milliseconds=50)),
    flood=None,
)
CALLS: Final = (
    CONSUMING.attempts * CONSUMING.max_deliveries
)  # of a handler that fails, until it is a dead letter
WORKING: Final = WorkerOptions(batch=3, poll=3 * MINUTE, lease=2 * MINUTE, quiet_time=10 * MINUTE)
_READER: Final = Reader(Classifier(), Redactor(), STRATEGY)
_NEEDS_A_PERSON: Final = Query((Condition("state", Op.IS, (str(State.MANUAL),)),))
_MOST_RUNS: Final = 5  # of one replay, before the operator gives it up
_A_WHILE: Final = timedelta(minutes=4)
_CALM: Final = Load(cpu=0.5, memory=0.5)


class Fate(StrEnum):
    """What becomes of a message in its handler."""

    FINE = "fine"
    PASSING = "passing"  # a network that fails some times
    OUTAGE = "outage"  # the other side is unavailable some times
    DENIED = "denied"  # always, and no retry helps
    DEADLY = "deadly"  # it kills its process


class Letter(msgspec.Struct, frozen=True):
    """A message that the producer sends."""

    name: str
    fate: Fate
    failures: int  # how often the handler fails before it is fine
    at: timedelta
    has_id: bool


class Errand(msgspec.Struct, frozen=True):
    """Something that the operator does."""

    at: timedelta
    query: Query
    options: ReplayOptions
    then: str  # run, stop or cancel
    after: timedelta


class Script(msgspec.Struct, frozen=True):
    """What happens in a world, apart from what goes wrong."""

    letters: tuple[Letter, ...]
    errands: tuple[Errand, ...]


def script_of(random: Random) -> Script:
    """The script of a seed."""
    fates = [Fate.FINE, *[Fate.PASSING] * 4, Fate.OUTAGE, *[Fate.DENIED] * 2, Fate.DEADLY]
    most = CALLS * (LIMIT + 1)
    letters = tuple(
        Letter(
            name=f"m{number}",
            fate=random.choice(fates),
            failures=random.choice((1, CALLS - 1, CALLS, 2 * CALLS, 3 * CALLS + 1, most, 10 * most)),
            at=timedelta(seconds=random.choice((0, 0, 1, 30, 90))),
            has_id=random.random() < 0.7,
        )
        for number in range(random.randint(2, 6))
    )
    errands = tuple(
        Errand(
            at=timedelta(seconds=random.choice((20, 70, 150, 400))) * (number + 1),
            query=random.choice((EVERYTHING, _NEEDS_A_PERSON)),
            options=ReplayOptions(
                batch=random.choice((1, 2, 10)),
                canary=random.choice((0, 0, 1)),
                canary_wait=timedelta(seconds=3),
                ramp=random.choice(((), (1, 2))),
                rate=random.choice((None, None, 0.2)),
                stop_at=random.choice((None, 0.5)),
                judge_after=2,
                skip_done=random.random() < 0.3,
                health_check=random.random() < 0.5,
                quiet_time=10 * MINUTE,
            ),
            then=random.choice(("run", "run", "stop", "cancel")),
            after=timedelta(seconds=random.choice((0.1, 1, 5, 20))),
        )
        for number in range(random.choice((0, 1, 1, 2)))
    )
    return Script(letters, errands)


class World:
    """Everything there is."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.clock = VirtualClock(loop)
        self.script = script_of(Random(f"script {seed}"))
        self.faults = Faults(Random(f"faults {seed}"), self.clock.monotonic)
        self.broker = MemoryBroker()
        self.store = SimulatedStore(self.clock)
        self.watch = Watch(self.store, LIMIT, self.clock.now)
        self._transport = MemoryTransport(self.clock, self.broker)
        self._trace = trace
        self._names: dict[str, str] = {}  # what is named by chance → a name that repeats
        self._errands = list(self.script.errands)
        self._runs: dict[str, int] = {}
        self._left = {one.name: one.failures for one in self.script.letters}
        self._fates = {one.name: one.fate for one in self.script.letters}
        self.processes = [
            Process(name, work, self.clock, self.faults.restart, self._process_told)
            for name, work in (
                ("consumer", self._consume),
                ("server", self._serve),
                ("worker", self._work),
                ("operator", self._operate),
            )
        ]

    # --- running -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the queues."""
        await self._transport.open()
        await self._transport.provision([ORDERS])
        await self._transport.ensure_queue(QUEUE)

    async def produce(self) -> None:
        """Send the messages, each at its time."""
        for letter in sorted(self.script.letters, key=lambda one: one.at):
            await self.clock.sleep(letter.at - self.clock.monotonic())
            message_id = f"id-{letter.name}" if letter.has_id else None
            self.broker.append(ORDERS.name, Message(body=letter.name.encode(), message_id=message_id))
            self.told("producer", f"sends {letter.name}: {letter.fate}, {letter.failures}")

    def at_rest(self) -> bool:
        """Whether nothing waits for anything."""
        if self._errands or self.clock.monotonic() < 2 * MINUTE:
            return False
        if any(process.life is None or process.life.frozen for process in self.processes):
            return False
        if any(one.state in {State.PENDING, State.PROCESSING} for one in self.store.letters.values()):
            return False
        if not all(operation.is_over for operation in self.store.all_operations.values()):
            return False
        queues = [self.broker.queue(name) for name in (ORDERS.name, ORDERS.dlq, QUEUE)]
        return not any(queue.depth() or queue.next_due() for queue in queues)

    def traffic(self) -> tuple[int, ...]:
        """Grows whenever something happens that counts."""
        watch = self.watch
        return watch.calls.total(), watch.processed.total(), len(watch.sent), len(self.store.journal_lines)

    def end(self) -> None:
        """Nobody does anything any more."""
        for process in self.processes:
            if process.life is not None:
                process.life.die()

    def told(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        if self._trace is None:
            return
        for chance in self.store.all_operations:
            self._names.setdefault(chance, f"op-{len(self._names) + 1}")
        for chance, name in self._names.items():
            what = what.replace(chance, name)
        jumped = self.clock.now() - START - self.clock.monotonic()
        wrong = f" ({jumped.total_seconds():+.0f}s)" if jumped else ""
        self._trace(f"{self.clock.monotonic().total_seconds():10.3f}{wrong} {who:12} {what}")

    def _process_told(self, life: Life, what: str) -> None:
        self.told(life.name, what)

    def _edge(self, life: Life) -> tuple[FaultyStore, FaultyTransport]:
        edge = Edge(life, self.faults, self.watch, self.clock, self.told if self._trace else None)
        return FaultyStore(self.store, edge), FaultyTransport(self._transport, edge)

    def _trouble(self, life: Life) -> Callable[[str, Exception], None]:
        return lambda what, error: self.told(life.name, f"trouble: {what}: {error}")

    # --- the consumer ------------------------------------------------------------------------------------------

    async def _consume(self, life: Life) -> None:
        _, transport = self._edge(life)

        async def handle(body: bytes, context: Context) -> None:
            await life.gate()
            if wait := self.faults.latency():
                await asyncio.sleep(wait)
                await life.gate()
            self._meet_its_fate(life, body.decode(), context)

        consumer = Consumer(
            transport,
            [Subscription(Handler.of(handle), ORDERS, CONSUMING)],
            clock=life.clock,
            classifier=Classifier(),
            redactor=Redactor(),
            host=lambda: _CALM,  # the machine that simulates is no part of the world
        )
        await consumer.run()

    def _meet_its_fate(self, life: Life, name: str, context: Context) -> None:
        self.watch.calls[name] += 1
        fate = self._fates[name]
        if fate is Fate.DEADLY and self._left[name] > 0:
            self._left[name] -= 1
            self.watch.setbacks += 1
            self.told(life.name, f"handler of {name} kills its process")
            life.die()
            raise asyncio.CancelledError
        if fate is Fate.DENIED:
            self.told(life.name, f"handler of {name} is denied")
            raise PermissionError("not allowed")
        if fate in {Fate.PASSING, Fate.OUTAGE} and self._left[name] > 0:
            self._left[name] -= 1
            self.told(life.name, f"handler of {name} fails")
            if fate is Fate.PASSING:
                raise ConnectionResetError("connection reset by peer")
            raise RuntimeError("503 Service Unavailable")
        self.told(life.name, f"handler of {name} is fine")
        self.watch.processed[name] += 1
        redrive = redrive_of(context.headers)
        if redrive is not None:
            self.watch.verdicts.add(Hold(redrive.hold.id, redrive.hold.fence))

    # --- the server and the second worker ----------------------------------------------------------------------

    async def _serve(self, life: Life) -> None:
        store, transport = self._edge(life)
        trouble = self._trouble(life)
        breakers = _breakers(life)
        services: list[Service] = [
            Collector(
                transport,
                store,
                ORDERS.dlq,
                reader=_READER,
                options=STRATEGY,
                clock=life.clock,
                trouble=trouble,
                batch=3,
                died_again=lambda source, _failure: breakers.died(source),
            ),
            VerdictCollector(
                transport,
                store,
                clock=life.clock,
                trouble=trouble,
                batch=3,
                resolved=lambda verdict: breakers.succeeded(verdict.source),
            ),
            Rescuer(store, life.clock, every=3 * MINUTE, retry_in=MINUTE, max_redrives=LIMIT),
            self._a_worker(life, store, transport, breakers),
        ]
        await Services(services, life.clock, trouble).run()

    async def _work(self, life: Life) -> None:
        store, transport = self._edge(life)
        worker = self._a_worker(life, store, transport, _breakers(life))
        await Services([worker], life.clock, self._trouble(life)).run()

    def _a_worker(
        self, life: Life, store: FaultyStore, transport: FaultyTransport, breakers: Breakers
    ) -> Worker:
        return Worker(
            store,
            transport,
            name=life.name,
            strategy=STRATEGY,
            options=WORKING,
            clock=life.clock,
            breakers=breakers,
            trouble=self._trouble(life),
        )

    # --- the operator ------------------------------------------------------------------------------------------

    async def _operate(self, life: Life) -> None:
        store, transport = self._edge(life)
        while True:
            try:
                for operation in await store.operations():
                    if not operation.is_over:
                        await self._run_replay(life, store, transport, operation, None)
                await self._next_errand(life, store, transport)
            except RedriveError as error:
                self.told(life.name, f"trouble: {error}")
                await life.clock.sleep(_A_WHILE)

    async def _next_errand(self, life: Life, store: FaultyStore, transport: FaultyTransport) -> None:
        if not self._errands:
            await life.clock.sleep(_A_WHILE)
            return
        errand = self._errands[0]
        if (wait := errand.at - life.clock.monotonic()) > timedelta(0):
            await life.clock.sleep(wait)
        del self._errands[0]  # also if it goes wrong: what was begun is in the store
        frozen = await plan(store, errand.query)
        if frozen.letters:
            operation = await begin(store, frozen, errand.options, by="operator", clock=life.clock)
            await self._run_replay(life, store, transport, operation, errand)

    async def _run_replay(
        self,
        life: Life,
        store: FaultyStore,
        transport: FaultyTransport,
        operation: Operation,
        errand: Errand | None,
    ) -> None:
        runs = self._runs[operation.id] = self._runs.get(operation.id, 0) + 1
        if runs > _MOST_RUNS:
            await store.end_operation(operation.id, OperationState.CANCELLED, by="operator")
            return
        stop = asyncio.Event()
        replay = Replay(store, transport, operation, runner=life.name, clock=life.clock, strategy=STRATEGY)

        async def interrupt() -> None:
            if errand is None or errand.then == "run":
                return
            await life.clock.sleep(errand.after)
            if errand.then == "stop":
                stop.set()
            else:
                await store.end_operation(operation.id, OperationState.CANCELLED, by="somebody")

        interrupting = asyncio.create_task(interrupt())
        try:
            ended = await replay.run(stop)
            self.told(life.name, f"replay {ended.id} is {ended.state}: {dict(ended.outcomes)} {ended.note}")
        finally:
            interrupting.cancel()
            await asyncio.gather(interrupting, return_exceptions=True)


def _breakers(life: Life) -> Breakers:
    return Breakers(life.clock, HoldBackOptions(least=4, pause=MINUTE, longest=4 * MINUTE))


def letters_now(world: World) -> str:
    """The letters as they stand, for people."""
    lines = []
    for letter in world.store.letters.values():
        attempts = ", ".join(f"{one.result}/{one.fence}" for one in letter.attempts)
        lines.append(
            f"  {short(letter.id)} {letter.message.body!r} {letter.state} fence {letter.fence} "
            f"redrives {letter.dlq_retry_count} [{attempts}]"
        )
    return "\n".join(lines)
