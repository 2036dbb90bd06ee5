"""What does redrive ask of a broker?

The contract of a transport, in prose. `testing.transport_suite` has a test for each sentence; what a broker cannot
do it declares in `Capabilities`, and the suite leaves those sentences out. Nothing is ever sniffed.

**Receiving.** A `Receiver` gives the deliveries of one source, in batches.

T1   `receive` waits for deliveries and returns all that are available, in the order of the source.
T2   Body, headers and properties arrive bit-exact, with their types; nothing is decoded before it is used.
T3   At most `window` deliveries are unsettled at any time; `resize` changes the window while the receiver runs.
T4   A delivery has a delivery count, which includes this delivery; a crash of the consumer increments it, too.
T5   After `stop`, `receive` returns the remaining deliveries and then raises `TransportClosedError`.
T6   `close` returns all unsettled deliveries to the source.

**Settling.** A delivery is settled once; settling it again does nothing.

T7   `accept` removes the message from the source. It does not wait: a crash may undo it and cause a duplicate.
T8   `release` makes the broker deliver the message again, immediately or after `after`, with a higher count unless
     the release is not to count.
T9   A released message is delivered with the same body, headers, properties and origin as before.
T10  `dead_letter` makes the dead letter durable before it removes the message from the source.
T11  A message that could not be made durable stays unsettled, and the answer gives the reason for each message.
T12  The headers of a dead letter contain reason, error, origin and counts; its body is bit-exact.
T13  A delivery of a lost connection is no longer `alive`; accepting it is too late, and the answer says so.

**Publishing.**

T14  `publish` returns when the broker has made the messages durable, and names those that are not.
T15  A message for a target that does not exist is not durable.
T16  Published messages arrive at the target bit-exact and in order.

**Inspecting.**

T17  `depth` is the number of messages that wait in a source; a source that does not exist is a
     `SourceMissingError`.
T18  `peek` shows the first messages and removes none.

**Failing.**

T19  A transport reconnects to a broker that was unreachable, and its receivers continue where they were.
T20  An error of one source does not affect another.
T21  After `close` every verb raises `TransportClosedError`.

**Provisioning.**

T22  `ensure_queue` creates a durable queue of this name; an existing queue stays unchanged, with its messages.

**Redriving.**

T23  `cluster_id` identifies the cluster; it is known once the transport is open, and survives a restart.
T24  `taken_until` is the time up to which every message sent to a consumer has been taken from its source; None if
     that is unknown. It never covers a message that still waits.
T25  `unreachable` names the consumers that would never receive messages sent to them, and why.
T26  `target_state` reports how many messages wait for a consumer, how many consumers there are, and why the broker
     accepts no messages, each as far as it is known; a source that does not exist is a `SourceMissingError`.

The transport does not know handlers, rules or stores.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Protocol, Self, runtime_checkable

import msgspec

from redrive.errors import ConsumerTimeoutError, RedriveError, SettingsError
from redrive.letters import DeadLetter, Message, Origin
from redrive.letters.redrive import Redrive, for_handlers, redrive_of

TRACE_SIZE: Final = 256  # octets of a trace
RUNNING: Final = 1  # its first octet
_TRACE: Final = struct.Struct(f"<B{TRACE_SIZE - 1}s")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker can do. The suite asks only for what is declared here."""

    delayed_release: bool = True  # `release(after=…)` is kept by the broker
    delivery_count: bool = True  # deliveries are counted, crashes included
    native_dead_letter: bool = False  # the broker itself moves a rejected message to its dead letters
    survives_restart: bool = True  # messages outlive the broker's process
    locks: bool = False  # a delivery is held by a lock that has to be renewed
    sessions: bool = False  # deliveries of one session come in order to one receiver
    partitions: bool = False  # a source is shared by its partitions, and has an order within each alone
    broadcast: bool = (
        False  # every consumer group of a source receives each message: a redrive names its group
    )


class DelayedRetry(msgspec.Struct, frozen=True):
    """How long the broker itself keeps a delivery that has failed: `least` × its failures, `most` at the most."""

    least: timedelta
    most: timedelta


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A queue or topic to receive from, and where its dead letters go."""

    name: str
    window: int = 16  # deliveries that may be out and unsettled (the prefetch)
    max_deliveries: int = 3
    # publish: publish the enriched letter, then settle. native: the broker dead-letters the message itself.
    dead_letter: Literal["publish", "native"] = "publish"
    dead_letter_queue: str | None = None  # queue or topic of the dead letters; None: `{name}.dlq`
    dead_letter_exchange: str | None = None  # RabbitMQ only; None: `{name}.dlx`
    dead_letter_routing_key: str | None = None  # RabbitMQ only; None: the message's own
    queue_type: Literal["quorum", "classic"] = "quorum"  # RabbitMQ only: what `provision` makes
    delayed_retry: DelayedRetry | None = (
        None  # RabbitMQ from 4.3 on, quorum queues: what `provision` asks for
    )
    consumer_group: str | None = None  # Kafka only; None: the group that the broker URL names
    # Whether every delivery needs a count. A collector looks for no poison: what may be the first or a later delivery
    # comes to it with a `delivery_count` of None, instead of being put back first as a copy with a count.
    counts_deliveries: bool = True
    # RabbitMQ, classic queues: how many redelivered messages are put back as copies with a count; None: all of them.
    # Beyond that they come as if delivered for the first time: after a crash of the broker, all of a queue do.
    most_recounted: int | None = None

    def __post_init__(self) -> None:
        if self.dead_letter not in ("publish", "native"):
            raise SettingsError(f"dead_letter must be 'publish' or 'native', not {self.dead_letter!r:.40}")

    @property
    def dlq(self) -> str:
        """Where its dead letters lie. A group has its own: what one gives up, another may have done."""
        return self.dead_letter_queue or f"{self.consumer_group or self.name}.dlq"

    @property
    def dlx(self) -> str:
        """The exchange its dead letters go through."""
        return self.dead_letter_exchange or f"{self.name}.dlx"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is to be sent. `exchange` None: straight to the queue or topic `name`."""

    name: str = ""
    exchange: str | None = None
    routing_key: str | None = None
    partition: int | None = None


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker says about a queue or topic that messages are to be sent to."""

    depth: int | None = None  # messages that wait; None: not known
    consumers: int | None = None  # at least so many receive them; None: not known
    alarm: str | None = None  # why the broker accepts no messages now


class Publication(msgspec.Struct, frozen=True):
    """A message and where it is to go."""

    message: Message
    target: Target


class Delivery(ABC):
    """One message handed to us. The body is at hand; everything else is decoded when it is asked for."""

    __slots__ = ()
    body: bytes | None

    @property
    @abstractmethod
    def message(self) -> Message:
        """The message as its producer sent it; what a transport added on the way is not in it."""

    @property
    def content_type(self) -> str | None:
        """What its producer says the body is."""
        return self.message.content_type

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """Where it came from."""

    @property
    def remembered_route(self) -> tuple[str, str] | None:
        """Exchange and routing key that its producer used, where the message itself carries them; None for most."""
        return None

    @property
    def redrive(self) -> Redrive | None:
        """Which dead letter its headers claim it to be a redrive of; None for most. Compare place and content."""
        return redrive_of(self.message.headers)

    @property
    def own_redrive(self) -> Redrive | None:
        """The redrive that this delivery is: sent to this consumer, with this content; None for most."""
        redrive = self.redrive
        if redrive is None:
            return None
        origin = self.origin
        if redrive.is_addressed_to(origin.source, origin.consumer_group) and redrive.has_content(
            self.message
        ):
            return redrive
        return None

    @property
    def is_for_another_group(self) -> bool:
        """Whether it is a redrive for another consumer group of this source, which this group does not process."""
        redrive = self.redrive
        if redrive is None or redrive.to is None or redrive.scope == "all" or not redrive.to.group:
            return False
        origin = self.origin
        return (
            redrive.to.source == origin.source
            and redrive.to.group != (origin.consumer_group or "")
            and redrive.has_content(self.message)
        )

    @property
    def handler_message(self) -> Message:
        """The message as a handler sees it: without the headers of a redrive."""
        message = self.message
        headers = for_handlers(message.headers) if message.headers else message.headers
        return message if headers is message.headers else msgspec.structs.replace(message, headers=headers)

    @property
    def has_exact_key(self) -> bool:
        """Whether `key` tells this message from every other one, equal ones included."""
        return True

    @property
    def is_redelivered(self) -> bool:
        """Whether it may have been handed out before."""
        return (self.delivery_count or 2) > 1

    def raise_count(self, count: int) -> None:  # noqa: ARG002  most brokers count by themselves
        """It was delivered at least so often, by what was found out elsewhere."""
        return

    def write_trace(self, buffer: Any, at: int) -> None:
        """Write what tells this message from others into a buffer, in at most `TRACE_SIZE` octets.

        Once for each message, before its handler starts: as cheap as can be.
        """
        _TRACE.pack_into(buffer, at, RUNNING, self.key.encode("utf-8", "replace"))

    def has_trace(self, trace: bytes) -> bool:
        """Whether `write_trace` may have written this of this message. When in doubt, yes."""
        return trace == _TRACE.pack(RUNNING, self.key.encode("utf-8", "replace"))

    @property
    @abstractmethod
    def delivery_count(self) -> int | None:
        """How often it was delivered, this time included; None where it cannot be known."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it can still be settled: it was not yet, and the connection it came by is there."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the message at this source; the same whenever it is delivered again."""


class Release(msgspec.Struct, frozen=True):
    """Let this delivery come again, not before `after` has passed."""

    delivery: Delivery
    after: timedelta | None = None
    counts: bool = True  # False: nobody has begun it, and it comes again as if it had not been delivered


class Death(msgspec.Struct, frozen=True):
    """Make this letter of this delivery."""

    delivery: Delivery
    letter: DeadLetter


# One for each of what was asked for, in its order: None where it is done, else why it is not.
Outcomes = Sequence[RedriveError | None]


class Receiver(Protocol):
    """The deliveries of one source."""

    source: Source

    async def receive(self) -> Sequence[Delivery]:
        """Wait for deliveries and give all that are there."""
        ...

    def accept(self, deliveries: Iterable[Delivery]) -> int:
        """They are done. How many of them were too late: those will be delivered again."""
        ...

    async def release(self, releases: Sequence[Release]) -> Outcomes:
        """Let them come again; settled only once that is certain."""
        ...

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """Make them dead letters; settled only once those are durable."""
        ...

    def resize(self, window: int) -> None:
        """From now on, so many deliveries may be out and unsettled."""
        ...

    async def stop(self) -> None:
        """Let no more deliveries come. What is out can still be settled."""
        ...

    async def close(self) -> None:
        """Give back what is unsettled."""
        ...


@runtime_checkable
class TimesOut(Protocol):
    """A receiver whose broker takes deliveries back that are not settled in time."""

    on_consumer_timeout: Callable[[ConsumerTimeoutError], None]


@runtime_checkable
class Narrows(Protocol):
    """A receiver for which a smaller window takes effect only after a while."""

    async def narrowed(self) -> None:
        """Wait until no more deliveries are under way than the window has room for."""


@runtime_checkable
class HasGroups(Protocol):
    """A transport whose consumers belong to groups."""

    def group_of(self, source: Source) -> str:
        """The consumer group that receives this source."""


class Transport(Protocol):
    """A broker."""

    kind: str  # "rabbitmq", "memory": stands in each letter's origin
    capabilities: Capabilities

    @property
    def endpoint(self) -> str:
        """The broker's URL without credentials, for people."""
        ...

    @property
    def cluster_id(self) -> str | None:
        """What tells this cluster from others of its kind; None while that is not known."""
        ...

    async def open(self) -> None:
        """Connect; raises a `TransportError` that says what to do if that cannot be."""
        ...

    async def close(self) -> None:
        """Let go of everything; receivers are closed first."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    async def receiver(self, source: Source) -> Receiver:
        """The deliveries of a source; raises `SourceMissingError` if it does not exist."""
        ...

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        """Send, and return when the broker has made them durable."""
        ...

    async def depth(self, source: str) -> int:
        """How many messages wait."""
        ...

    async def peek(self, source: str, count: int) -> Sequence[Message]:
        """The first messages, which stay where they are."""
        ...

    async def taken_until(self, source: str, group: str = "") -> timedelta | None:
        """The moment before which everything sent to this consumer was taken from its source; None: unknown.

        By the monotonic time of the transport's clock, which nobody sets.
        """
        ...

    async def unreachable(self, consumers: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Consumers (source, group) that would never receive a message sent to them now, each with the reason."""
        ...

    async def target_state(self, source: str, group: str = "") -> TargetState:
        """Whether messages that are sent to this consumer would be accepted and received."""
        ...

    async def provision(self, sources: Sequence[Source]) -> None:
        """Make what is missing for these sources; what exists is left as it is."""
        ...

    async def ensure_queue(self, name: str) -> None:
        """Make a plain durable queue or topic, unless there is one of this name."""
        ...
