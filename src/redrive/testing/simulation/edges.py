"""Where does a process touch the outside, and what can go wrong there?

Every verb of store, transport and receiver goes through one step: it may take a while, and it may meet a fault of the
schedule. The verbs themselves are those of the memory store and the memory transport; nothing is imitated here. What a
verb has really done is shown to the `Watch`, whether its caller hears of it or not.

It does not know who calls, nor what is right.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from redrive.errors import BrokerUnreachableError, PublishError, RedriveError, StoreBusyError
from redrive.letters import DeadLetter, Hold, LetterHead, Message
from redrive.stores.base import LEASE, MAX_REDRIVES, JournalLine, Page, Rescued
from redrive.stores.changes import Change, Settlement
from redrive.stores.memory import MemoryStore
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.query import EVERYTHING, Query
from redrive.testing.simulation.faults import ACCEPTING, ANYWHERE, BURYING, RECEIVING, SENDING, Faults, Kind
from redrive.testing.simulation.lives import Life
from redrive.testing.simulation.virtual import VirtualClock
from redrive.testing.simulation.watch import Watch, short
from redrive.transports.base import Capabilities, Death, Delivery, Outcomes, Publication, Release, Source
from redrive.transports.memory import MemoryBroker, MemoryDelivery, MemoryReceiver, MemoryTransport

T = TypeVar("T")
_SAYS_NO: Final = (Kind.REFUSE, Kind.LOST_REPLY)
_COMES_AGAIN: Final = (Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.CUT)
# Verbs at which an error, true or not, must never lead to anything being there or being sent twice.
_REPEATABLE: Final = frozenset(
    {"add", "load", "page", "claim", "take", "settle", "rescue", "apply", "begin", "operation", "operations",
     "remaining", "items", "record", "run_operation", "end_operation", "depth", "receiver"}
)  # fmt: skip


class SimulatedStore(MemoryStore):
    """The memory store, open to those who watch it."""

    @property
    def letters(self) -> dict[str, DeadLetter]:
        """All letters as they are now."""
        return self._letters

    @property
    def journal_lines(self) -> list[JournalLine]:
        """The whole journal."""
        return self._lines

    @property
    def all_operations(self) -> dict[str, Operation]:
        """All operations as they are now."""
        return self._book.operations

    def list_of(self, operation: str) -> dict[str, Item]:
        """The letters of an operation, and what became of them."""
        return self._book.lists.get(operation, {})


class Edge:
    """What the edges of one life share."""

    def __init__(
        self,
        life: Life,
        faults: Faults,
        watch: Watch,
        clock: VirtualClock,
        trace: Callable[[str, str], None] | None,
    ) -> None:
        self.life = life
        self.faults = faults
        self.watch = watch
        self._clock = clock
        self._trace = trace

    async def step(
        self,
        verb: str,
        call: Callable[[], Awaitable[T]],
        error: Callable[[str], RedriveError],
        fitting: frozenset[Kind] = ANYWHERE,
        about: object = "",
    ) -> T:
        """Do this, unless something goes wrong."""
        await self.life.gate()
        await self._late()
        fault = self.meet(verb, fitting, about)
        match fault:
            case Kind.CRASH_BEFORE:
                raise self.killed()
            case Kind.REFUSE:
                raise error(f"{verb} is refused")
            case Kind.PAUSE_BEFORE:
                await self.stand_still()
            case Kind.JUMP:
                self.jump()
        answer = await call()
        match fault:
            case Kind.CRASH_AFTER:
                raise self.killed()
            case Kind.LOST_REPLY:
                raise error(f"the answer to {verb} was lost")
            case Kind.PAUSE_AFTER:
                await self.stand_still()
        await self._late()
        await self.life.gate()
        return answer

    def meet(self, verb: str, fitting: frozenset[Kind], about: object = "") -> Kind | None:
        """What goes wrong at this step."""
        fault = self.faults.at_this_step(fitting)
        if fault is not None:
            self._excuse(verb, fault)
        if self._trace is not None:
            told = f"{verb} {about}".rstrip()
            self._trace(self.life.name, told if fault is None else f"{told}  *** {fault}")
        return fault

    def _excuse(self, verb: str, fault: Kind) -> None:
        """What this fault may lead to, in a system that is right."""
        if fault is Kind.REORDER or (fault in _SAYS_NO and verb in _REPEATABLE):
            return
        if fault is Kind.REFUSE and verb == "publish":
            # It was not sent, and the caller knows; a consumer goes on without its verdict.
            self.watch.setbacks += self.life.process == "consumer"
            return
        if self.life.process == "consumer" and fault in _COMES_AGAIN:
            self.watch.setbacks += 1
        elif fault is not Kind.CUT:  # what a collector gets again, it knows
            self.watch.excuses += 1

    def killed(self) -> asyncio.CancelledError:
        """The process dies here."""
        self.life.die()
        return asyncio.CancelledError()

    async def stand_still(self) -> None:
        """The process stands still for a while."""
        self.life.freeze(self.faults.pause())
        await self.life.gate()

    def jump(self) -> None:
        """Somebody sets a clock."""
        if self.faults.coin():
            self._clock.jump(self.faults.jump())
        else:
            self.life.clock.wrong_by += self.faults.jump()

    async def _late(self) -> None:
        if wait := self.faults.latency():
            await asyncio.sleep(wait)
            await self.life.gate()


# --- the store --------------------------------------------------------------------------------------------


class FaultyStore:
    """The store as one process sees it."""

    def __init__(self, store: SimulatedStore, edge: Edge) -> None:
        self._store = store
        self._edge = edge

    async def _verb(self, verb: str, call: Callable[[], Awaitable[T]], about: Any = "", holds: Any = ()) -> T:
        async def watched() -> T:
            before = dict(self._store.letters)
            answer = await call()
            self._edge.watch.store_did(verb, before, holds, answer)
            return answer

        return await self._edge.step(verb, watched, StoreBusyError, about=about)

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        """Add."""
        return await self._verb(
            "add", lambda: self._store.add(letters), [one.message.body for one in letters]
        )

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Load."""
        return await self._verb("load", lambda: self._store.load(ids), _short(ids))

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Read a page."""
        return await self._verb("page", lambda: self._store.page(query, limit=limit, cursor=cursor))

    async def count(self, query: Query = EVERYTHING) -> int:
        """Count."""
        return await self._verb("count", lambda: self._store.count(query))

    async def tally(self, by: str, query: Query = EVERYTHING) -> dict[str, int]:
        """Count by a field."""
        return await self._verb("tally", lambda: self._store.tally(by, query))

    async def claim(self, worker: str, *, limit: int = 10, lease: timedelta = LEASE) -> list[LetterHead]:
        """Claim."""
        return await self._verb("claim", lambda: self._store.claim(worker, limit=limit, lease=lease), worker)

    async def take(self, ids: Sequence[str], worker: str, *, lease: timedelta = LEASE) -> list[LetterHead]:
        """Take."""
        self._edge.watch.taking(worker, ids)
        return await self._verb("take", lambda: self._store.take(ids, worker, lease=lease), _short(ids))

    async def extend(
        self, holds: Sequence[Hold], *, lease: timedelta = LEASE, sent: bool = False
    ) -> list[bool]:
        """Extend."""
        about = f"{_holds(holds)}{' sent' * sent}"
        return await self._verb(
            "extend", lambda: self._store.extend(holds, lease=lease, sent=sent), about, holds
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle."""
        holds = [one.hold for one in settlements]
        about = [f"{_holds([one.hold])} {type(one.outcome).__name__}" for one in settlements]
        return await self._verb("settle", lambda: self._store.settle(settlements), about, holds)

    async def rescue(
        self, *, retry_in: timedelta, max_redrives: int = MAX_REDRIVES, limit: int = 1000
    ) -> list[Rescued]:
        """Rescue."""
        return await self._verb(
            "rescue", lambda: self._store.rescue(retry_in=retry_in, max_redrives=max_redrives, limit=limit)
        )

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        """Change."""
        await self._verb("apply", lambda: self._store.apply(change, ids, by=by), _short(ids))

    async def journal(
        self, letter_id: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[JournalLine]:
        """Read the journal."""
        return await self._verb("journal", lambda: self._store.journal(letter_id, after=after, limit=limit))

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """Begin an operation; what it lists is noted before anything can go wrong."""
        self._edge.watch.planned(operation.id, ids)
        return await self._verb("begin", lambda: self._store.begin(operation, ids), _short(ids))

    async def operation(self, operation_id: str) -> Operation:
        """Look at an operation."""
        return await self._verb("operation", lambda: self._store.operation(operation_id))

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """Look at operations."""
        return await self._verb("operations", lambda: self._store.operations(limit=limit))

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """What an operation has still to do."""
        return await self._verb("remaining", lambda: self._store.remaining(operation_id, limit=limit))

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """What an operation lists."""
        return await self._verb("items", lambda: self._store.items(operation_id, after=after, limit=limit))

    async def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        """Record outcomes."""
        about = [f"{short(one[0])} {one[1]}" for one in outcomes]
        await self._verb("record", lambda: self._store.record(operation_id, outcomes), about)

    async def run_operation(
        self, operation_id: str, runner: str, *, lease: timedelta = LEASE, resume: bool = True
    ) -> bool:
        """Run an operation."""
        return await self._verb(
            "run_operation",
            lambda: self._store.run_operation(operation_id, runner, lease=lease, resume=resume),
            runner,
        )

    async def end_operation(
        self, operation_id: str, state: OperationState, *, by: str, note: str = ""
    ) -> bool:
        """End an operation."""
        return await self._verb(
            "end_operation", lambda: self._store.end_operation(operation_id, state, by=by, note=note), state
        )

    async def groups(self, query: Query = EVERYTHING, *, limit: int = 50) -> list[Group]:
        """Look at groups."""
        return await self._verb("groups", lambda: self._store.groups(query, limit=limit))

    async def damage(self) -> str | None:
        """Look for damage."""
        return await self._store.damage()

    async def close(self) -> None:
        """The process lets go; the store itself stays for the others."""


def _short(ids: Iterable[str]) -> str:
    return ",".join(map(short, ids))


def _holds(holds: Iterable[Hold]) -> str:
    return ",".join(f"{short(hold.id)}/{hold.fence}" for hold in holds)


# --- the transport ----------------------------------------------------------------------------------------


class FaultyReceiver:
    """A receiver as one process sees it."""

    def __init__(self, receiver: MemoryReceiver, broker: MemoryBroker, edge: Edge) -> None:
        self.source: Source = receiver.source
        self._receiver = receiver
        self._broker = broker
        self._edge = edge
        edge.life.holds(self)

    def lose(self) -> None:
        """The process is gone, and what it had is back in the queue."""
        at_once(self._receiver.close())

    def cut(self) -> None:
        """The connection is lost, and back at once."""
        self._receiver.lose_everything()
        self._receiver.wake()

    async def receive(self) -> Sequence[Delivery]:
        """Receive; a fault is met when there is something to receive, not before."""
        edge = self._edge
        await edge.life.gate()
        batch: Sequence[MemoryDelivery] = await self._receiver.receive()
        fault = edge.meet("receive", RECEIVING, f"{self.source.name} {[one.body for one in batch]}")
        match fault:
            case Kind.CRASH_AFTER:
                raise edge.killed()
            case Kind.PAUSE_AFTER:
                await edge.stand_still()
            case Kind.JUMP:
                edge.jump()
            case Kind.CUT:
                self.cut()
            case Kind.DUPLICATE:
                self._broker.append(self.source.name, batch[0].message)
            case Kind.REORDER:
                batch = [batch[place] for place in edge.faults.shuffled(len(batch))]
        await edge.life.gate()
        return batch

    def accept(self, deliveries: Iterable[Delivery]) -> int:
        """Accept."""
        if self._edge.life.dead:
            return 0
        deliveries = list(deliveries)
        fault = self._edge.meet("accept", ACCEPTING, f"{self.source.name} {[one.body for one in deliveries]}")
        if fault is Kind.CRASH_BEFORE:
            self._edge.life.die()
            return 0
        if fault is Kind.CUT:
            self.cut()
        late = self._receiver.accept(deliveries)
        if fault is Kind.CRASH_AFTER:
            self._edge.life.die()
        return late

    async def release(self, releases: Sequence[Release]) -> Outcomes:
        """Give back."""
        about = [one.delivery.body for one in releases]
        return await self._edge.step(
            "release", lambda: self._receiver.release(releases), BrokerUnreachableError, about=about
        )

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """Make dead letters; they may be durable and their deliveries not settled."""
        edge = self._edge

        async def bury() -> Outcomes:
            return await self._receiver.dead_letter(deaths)

        await edge.life.gate()
        fault = edge.meet("dead_letter", BURYING, [one.delivery.body for one in deaths])
        match fault:
            case Kind.TORN:
                entries = [_entry(one.delivery) for one in deaths if one.delivery.alive]
                await bury()
                for entry in entries:
                    self._broker.give_back(self.source.name, entry, edge.life.clock, timedelta(0))
                raise edge.killed()
            case Kind.CUT:
                self.cut()
            case Kind.CRASH_BEFORE:
                raise edge.killed()
            case Kind.REFUSE:
                return [PublishError("the dead letter is refused")] * len(deaths)
            case Kind.PAUSE_BEFORE:
                await edge.stand_still()
            case Kind.JUMP:
                edge.jump()
        outcomes = await bury()
        match fault:
            case Kind.CRASH_AFTER:
                raise edge.killed()
            case Kind.DUPLICATE:
                buried = self._broker.queue(self.source.dlq).first(1000)
                self._broker.append(self.source.dlq, buried[-1].message)
            case Kind.LOST_REPLY:
                raise BrokerUnreachableError("the answer to dead_letter was lost")
            case Kind.PAUSE_AFTER:
                await edge.stand_still()
        await edge.life.gate()
        return outcomes

    def resize(self, window: int) -> None:
        """Resize."""
        if not self._edge.life.dead:
            self._receiver.resize(window)

    async def stop(self) -> None:
        """Stop."""
        await self._edge.life.gate()
        await self._receiver.stop()

    async def close(self) -> None:
        """Close."""
        await self._edge.life.gate()
        await self._receiver.close()


class FaultyTransport:
    """The broker as one process sees it."""

    name: str = MemoryTransport.name
    capabilities: Capabilities = MemoryTransport.capabilities

    def __init__(self, transport: MemoryTransport, edge: Edge) -> None:
        self._transport = transport
        self._edge = edge

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """The process lets go; the broker stays for the others."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def receiver(self, source: Source) -> FaultyReceiver:
        """Receive from a queue."""
        inner = await self._edge.step(
            "receiver", lambda: self._transport.receiver(source), BrokerUnreachableError, about=source.name
        )
        return FaultyReceiver(inner, self._transport.broker, self._edge)

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        """Send; it may be sent twice."""
        edge = self._edge

        async def send() -> Outcomes:
            edge.watch.sending(edge.life.name, publications)
            return await self._transport.publish(publications)

        await edge.life.gate()
        fault = edge.meet("publish", SENDING, [_told(one) for one in publications])
        match fault:
            case Kind.CRASH_BEFORE:
                raise edge.killed()
            case Kind.REFUSE:
                if edge.faults.coin():
                    raise BrokerUnreachableError("publish is refused")
                return [PublishError("publish is refused")] * len(publications)
            case Kind.PAUSE_BEFORE:
                await edge.stand_still()
            case Kind.JUMP:
                edge.jump()
        outcomes = await send()
        match fault:
            case Kind.DUPLICATE:
                await self._transport.publish(publications[:1])
            case Kind.CRASH_AFTER:
                raise edge.killed()
            case Kind.LOST_REPLY:
                raise BrokerUnreachableError("the answer to publish was lost")
            case Kind.PAUSE_AFTER:
                await edge.stand_still()
        await edge.life.gate()
        return outcomes

    async def depth(self, source: str) -> int:
        """How many messages wait."""
        return await self._edge.step(
            "depth", lambda: self._transport.depth(source), BrokerUnreachableError, about=source
        )

    async def peek(self, source: str, count: int) -> Sequence[Message]:
        """Look at messages."""
        return await self._transport.peek(source, count)

    async def provision(self, sources: Sequence[Source]) -> None:
        """Everything is there from the start."""

    async def ensure_queue(self, name: str) -> None:
        """Everything is there from the start."""


def _entry(delivery: Delivery) -> Any:
    assert isinstance(delivery, MemoryDelivery)
    return delivery.entry


def _told(publication: Publication) -> str:
    headers = publication.message.headers
    mark = headers.text("redrive-id")
    body = publication.message.body
    return f"{publication.target.name} {body!r}" if not mark else f"{body!r} as {short(mark)}"


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of something that is called asynchronous and waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("it waits for something")
