"""The brokers, the store and the processes of a simulated world.

All of it is the code that runs in production. On the broker "north": a *consumer* whose handlers follow the script; a
*server* with collectors, verdict collector, confirmer, rescuer and a worker, run by the real `Services`; and a second
*worker* in a process of its own. Some worlds have a second broker "south" with queues of the same names, the same
messages, and a consumer and a server of its own; it shares the store. An *operator* runs replays, stops and cancels
some, and resumes those that were interrupted. A producer sends a few messages in the first minutes.

Faults and rules are not here but in `edges` and `watch`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Final

import msgspec

from redrive.collect import Collector, VerdictCollector
from redrive.collect.reading import Reader
from redrive.consume import Consumer, Context, Handler, Subscription
from redrive.errors import RedriveError
from redrive.host import Load
from redrive.letters import DeadLetter, LetterState, Message
from redrive.letters.redact import Redactor
from redrive.letters.verdict import QUEUE
from redrive.recover.breaker import Breakers, HoldBackOptions
from redrive.recover.confirmer import Confirmer
from redrive.recover.rescuer import Rescuer
from redrive.recover.service import Service, Services
from redrive.recover.worker import Worker, WorkerOptions
from redrive.replay.destinations import Destinations
from redrive.replay.options import WORKER_PREFIX, unpack
from redrive.replay.plan import begin, plan
from redrive.replay.run import Replay
from redrive.rules import Classifier, StrategyOptions
from redrive.stores.operations import Operation, OperationState
from redrive.testing.simulation.edges import Edge
from redrive.testing.simulation.faults import Faults
from redrive.testing.simulation.faulty_store import FaultyStore, SimulatedStore
from redrive.testing.simulation.faulty_transport import FaultyTransport, SimulatedBroker
from redrive.testing.simulation.lives import Life, Process
from redrive.testing.simulation.script import (
    AUDIT,
    CONSUMING,
    LIMIT,
    MINUTE,
    NORTH,
    ORDERS,
    REPUBLISHED,
    SOUTH,
    VERDICT_TIMEOUT,
    Errand,
    Fate,
    Forward,
    script_of,
)
from redrive.testing.simulation.virtual import START, VirtualClock
from redrive.testing.simulation.watch import Unit, Watch, short
from redrive.transports.memory import MemoryTransport

STRATEGY: Final = StrategyOptions(
    delays=(MINUTE, 2 * MINUTE, 3 * MINUTE), recheck_interval=2 * MINUTE, max_redrives=LIMIT
)
WORKING: Final = WorkerOptions(batch=3, poll=3 * MINUTE, lease=2 * MINUTE, verdict_timeout=VERDICT_TIMEOUT)
_READER: Final = Reader(Classifier(), Redactor(), STRATEGY)
_CLASSIFIER: Final = Classifier()
_REDACTOR: Final = Redactor()
_MOST_RUNS: Final = 5  # of one replay, before the operator gives it up
_A_WHILE: Final = timedelta(minutes=4)
_CALM: Final = Load(cpu=0.5, memory=0.5)


class World:
    """Everything there is."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.clock = VirtualClock(loop)
        self.script = script_of(Random(f"script {seed}"))
        self.faults = Faults(Random(f"faults {seed}"), self.clock.monotonic)
        self.brokers = {name: SimulatedBroker(name) for name in self.script.brokers}
        self.store = SimulatedStore(self.clock)
        self.watch = Watch(self.store, self.clock, limit=LIMIT, verdict_timeout=VERDICT_TIMEOUT)
        self.watch.has_verdicts = self.script.has_verdicts
        self._transports = {
            name: MemoryTransport(self.clock, broker) for name, broker in self.brokers.items()
        }
        self._trace = trace
        self._names: dict[str, str] = {}  # random names → names that are the same in every run
        self._errands = list(self.script.errands)
        self._replayed_on: dict[str, str] = {}  # operation → broker
        self._runs: dict[str, int] = {}
        self._messages = {(one.broker, one.name): one for one in self.script.messages}
        self._left: dict[Unit, int] = {}  # how often its handler still fails
        self._absent = False
        self.sources = (ORDERS, AUDIT) if self.script.has_audit else (ORDERS,)
        self.processes = [
            Process(name, work, self.clock, self.faults.restart, self._process_told)
            for name, work in self._processes()
        ]

    def _processes(self) -> list[tuple[str, Callable[[Life], Awaitable[None]]]]:
        south: list[tuple[str, Callable[[Life], Awaitable[None]]]] = [
            ("consumer-south", lambda life: self._consume(life, SOUTH)),
            ("server-south", lambda life: self._serve(life, SOUTH)),
        ]
        return [
            ("consumer", lambda life: self._consume(life, NORTH)),
            ("server", lambda life: self._serve(life, NORTH)),
            *(south if SOUTH in self.brokers else [("worker", self._work)]),
            ("operator", self._operate),
        ]

    # --- running -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the queues."""
        for name, transport in self._transports.items():
            await transport.open()
            await transport.provision(self.sources)
            await transport.ensure_queue(QUEUE)
            broker = self.brokers[name]
            broker.has_evidence = self.script.has_evidence
            broker.has_verdicts = self.script.has_verdicts
            if self.script.has_audit:
                broker.mirrors[ORDERS.name] = AUDIT.name

    async def produce(self) -> None:
        """Send the messages, each at its time."""
        for sent in sorted(self.script.messages, key=lambda one: one.at):
            await self.clock.sleep(sent.at - self.clock.monotonic())
            message_id = f"id-{sent.name}" if sent.has_id else None
            self._append(sent.broker, ORDERS.name, Message(body=sent.name.encode(), message_id=message_id))
            self.told("producer", f"sends {sent.name} to {sent.broker}: {sent.fate}, {sent.failures}")

    async def keep_the_consumer_away(self) -> None:
        """Stop the consumer for a long time, if the script says so."""
        if (absence := self.script.absence) is None:
            return
        await self.clock.sleep(absence.at - self.clock.monotonic())
        self._absent = True
        self.watch.setbacks += 1
        self.told("simulation", f"the consumer is down until {absence.until}")
        if (life := self.processes[0].life) is not None:
            life.die()
        await self.clock.sleep(absence.until - self.clock.monotonic())
        self._absent = False

    def at_rest(self) -> bool:
        """Whether nothing will happen any more.

        A delivery that is out is in no queue, and its process may go on with it much later. A letter may stay
        unconfirmed, but only if there will never be evidence of what became of its redrive.
        """
        if self._errands or self._absent or self.clock.monotonic() < 2 * MINUTE:
            return False
        if any(process.life is None or process.life.frozen for process in self.processes):
            return False
        if not all(map(self._is_settled, self.store.letters.values())):
            return False
        if not all(operation.is_over for operation in self.store.all_operations.values()):
            return False
        for broker in self.brokers.values():
            queues = (broker.queue(name) for source in self.sources for name in (source.name, source.dlq))
            if broker.unsettled or any(queue.depth() or queue.next_due() for queue in queues):
                return False
            if broker.queue(QUEUE).depth():
                return False
        return True

    def _is_settled(self, letter: DeadLetter) -> bool:
        if letter.state is LetterState.PROCESSING:
            return letter.unconfirmed and self._lacks_evidence(letter)
        return letter.state is not LetterState.PENDING

    def _lacks_evidence(self, letter: DeadLetter) -> bool:
        if not self.script.has_evidence:
            return True
        worker = letter.locked_by or ""
        if not worker.startswith(WORKER_PREFIX):
            return False
        operation = self.store.all_operations[worker.removeprefix(WORKER_PREFIX)]
        return unpack(operation.options).sending.to == "exchange"  # whoever got it, is not known

    def traffic(self) -> tuple[int, ...]:
        """Grows whenever something happens that counts."""
        watch = self.watch
        return watch.calls, watch.processed.total(), len(watch.sent), len(self.store.journal_lines)

    def end(self) -> None:
        """Stop all processes."""
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

    def _edge(self, life: Life, broker: str) -> tuple[FaultyStore, FaultyTransport]:
        edge = Edge(life, self.faults, self.watch, self.clock, self.told if self._trace else None)
        return FaultyStore(self.store, edge), self._transport(edge, broker)

    def _transport(self, edge: Edge, broker: str) -> FaultyTransport:
        return FaultyTransport(self._transports[broker], self.brokers[broker], edge)

    def _trouble(self, life: Life) -> Callable[[str, Exception], None]:
        return lambda what, error: self.told(life.name, f"trouble: {what}: {error}")

    def _append(self, broker: str, queue: str, message: Message) -> None:
        self.brokers[broker].append(queue, message)
        self.watch.copied(broker, queue, message)

    # --- consumers ---------------------------------------------------------------------------------------------

    async def _consume(self, life: Life, broker: str) -> None:
        while self._absent and broker == NORTH:
            await life.clock.sleep(MINUTE)
        _, transport = self._edge(life, broker)

        async def handle(body: bytes, context: Context) -> None:
            await life.gate()
            if wait := self.faults.latency():
                await asyncio.sleep(wait)
                await life.gate()
            # Not `context.message`: a handler sees no headers of a redrive. Forwarding has to be safe all the same.
            raw = context._delivery.message  # noqa: SLF001
            self._handle(life, Unit(broker, context.source, body.decode()), raw)

        consumer = Consumer(
            transport,
            [Subscription(Handler.of(handle), source, CONSUMING) for source in self.sources],
            clock=life.clock,
            classifier=_CLASSIFIER,
            redactor=_REDACTOR,
            host=lambda: _CALM,  # the load of the machine that simulates must not matter
        )
        await consumer.run()

    def _handle(self, life: Life, unit: Unit, message: Message) -> None:
        self.watch.calls += 1
        fate, failures, forward = self._plan_of(unit)
        left = self._left.setdefault(unit, failures)
        name = f"{unit.queue} {unit.name}"
        if fate is Fate.DENIED:
            self.told(life.name, f"handler of {name} is denied")
            raise PermissionError("not allowed")
        if fate is not Fate.FINE and left > 0:
            self._left[unit] -= 1
            if fate is Fate.DEADLY:
                self.watch.setbacks += 1
                self.told(life.name, f"handler of {name} kills its process")
                life.die()
                raise asyncio.CancelledError
            self.told(life.name, f"handler of {name} fails")
            if fate is Fate.PASSING:
                raise ConnectionResetError("connection reset by peer")
            raise RuntimeError("503 Service Unavailable")
        self.told(life.name, f"handler of {name} is fine")
        self.watch.handled(unit.broker, unit.queue, message)
        if forward is Forward.AUDIT and self.script.has_audit:
            self._append(unit.broker, AUDIT.name, message)
        elif forward is Forward.BACK:
            body = f"{unit.name}{REPUBLISHED}".encode()
            self._append(unit.broker, ORDERS.name, msgspec.structs.replace(message, body=body))

    def _plan_of(self, unit: Unit) -> tuple[Fate, int, Forward]:
        """What the handler does with this message, how often it fails, and where it forwards it to."""
        if unit.queue == ORDERS.name and not unit.name.endswith(REPUBLISHED):
            message = self._messages[unit.broker, unit.name]
            return message.fate, message.failures, message.forward
        number = int(unit.name.strip(f"m{REPUBLISHED}"))
        fates = self.script.audit_fates
        return *fates[number % len(fates)], Forward.NOWHERE

    # --- servers and the second worker -------------------------------------------------------------------------

    async def _serve(self, life: Life, broker: str) -> None:
        store, transport = self._edge(life, broker)
        trouble = self._trouble(life)
        breakers = _breakers(life)
        services: list[Service] = [
            Collector(
                transport,
                store,
                source.dlq,
                reader=_READER,
                options=STRATEGY,
                clock=life.clock,
                trouble=trouble,
                broker=broker,
                batch=3,
                died_again=lambda source, _failure: breakers.died(source),
            )
            for source in self.sources
        ]
        services += [
            VerdictCollector(
                transport,
                store,
                clock=life.clock,
                trouble=trouble,
                broker=broker,
                batch=3,
                resolved=lambda verdict: breakers.succeeded(verdict.source),
            ),
            Confirmer(
                store,
                transport,
                clock=life.clock,
                verdict_timeout=VERDICT_TIMEOUT,
                retry_in=MINUTE,
                every=3 * MINUTE,
                broker=broker,
                find=Destinations(store).consumer_of,
                trouble=trouble,
            ),
            Rescuer(store, life.clock, every=3 * MINUTE, retry_in=MINUTE, max_redrives=LIMIT),
            self._a_worker(life, store, transport, broker, breakers),
        ]
        await Services(services, life.clock, trouble).run()

    async def _work(self, life: Life) -> None:
        store, transport = self._edge(life, NORTH)
        worker = self._a_worker(life, store, transport, NORTH, _breakers(life))
        await Services([worker], life.clock, self._trouble(life)).run()

    def _a_worker(
        self, life: Life, store: FaultyStore, transport: FaultyTransport, broker: str, breakers: Breakers
    ) -> Worker:
        return Worker(
            store,
            transport,
            name=life.name,
            broker=broker,
            strategy=STRATEGY,
            options=WORKING,
            clock=life.clock,
            breakers=breakers,
            trouble=self._trouble(life),
        )

    # --- the operator ------------------------------------------------------------------------------------------

    async def _operate(self, life: Life) -> None:
        edge = Edge(life, self.faults, self.watch, self.clock, self.told if self._trace else None)
        store = FaultyStore(self.store, edge)
        while True:
            try:
                for operation in await store.operations():
                    if not operation.is_over:
                        await self._run_replay(edge, store, operation, None)
                await self._next_errand(edge, store)
            except RedriveError as error:
                self.told(life.name, f"trouble: {error}")
                await life.clock.sleep(_A_WHILE)

    async def _next_errand(self, edge: Edge, store: FaultyStore) -> None:
        clock = edge.life.clock
        if not self._errands:
            await clock.sleep(_A_WHILE)
            return
        errand = self._errands[0]
        if (wait := errand.at - clock.monotonic()) > timedelta(0):
            await clock.sleep(wait)
        del self._errands[0]  # also if it goes wrong: what was begun is in the store
        frozen = await plan(store, errand.query)
        if frozen.letters:
            operation = await begin(store, frozen, errand.options, by="operator", clock=clock)
            self._replayed_on[operation.id] = errand.broker
            await self._run_replay(edge, store, operation, errand)

    async def _run_replay(
        self, edge: Edge, store: FaultyStore, operation: Operation, errand: Errand | None
    ) -> None:
        life = edge.life
        runs = self._runs[operation.id] = self._runs.get(operation.id, 0) + 1
        if runs > _MOST_RUNS:
            await store.end_operation(operation.id, OperationState.CANCELLED, by="operator")
            return
        stop = asyncio.Event()
        broker = self._replayed_on.setdefault(operation.id, NORTH)
        replay = Replay(
            store,
            self._transport(edge, broker),
            operation,
            runner=life.name,
            clock=life.clock,
            broker=broker,
            strategy=STRATEGY,
        )

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
    return Breakers(life.clock, HoldBackOptions(window=4, pause=MINUTE, max_pause=4 * MINUTE))


def letters_now(world: World) -> str:
    """The letters as they are now, one per line."""
    lines = []
    for letter in world.store.letters.values():
        attempts = ", ".join(f"{one.result}/{one.fence}" for one in letter.attempts)
        derived = f" of {short(letter.derived_from)}" if letter.derived_from else ""
        lines.append(
            f"  {short(letter.id)}{derived} {letter.broker}/{letter.source} {letter.message.body!r} {letter.state} "
            f"fence {letter.fence} redrives {letter.prior_redrives}+{letter.dlq_retry_count} [{attempts}]"
            f"{' unconfirmed' * letter.unconfirmed}"
        )
    return "\n".join(lines)
