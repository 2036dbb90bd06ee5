"""What outlives the process?

The core says what happens to durable things; a `Keep` writes it down. The one here is that of a broker without a data
directory: all of it is as durable as the process. The one with a journal is in `journal_keep`.
Positions only grow: what was said before a position is safe once `durable_position` has reached it.
"""

from collections.abc import Mapping

from redrive.broker.dead_letter import Reason
from redrive.broker.exchanges import Exchange
from redrive.broker.message import Entry, Message
from redrive.broker.queue import Queue


class Keep:
    """Told about everything durable. This one keeps nothing, and nobody has to wait for it."""

    def exchange(self, vhost: str, exchange: Exchange) -> None:
        """A durable exchange came."""

    def exchange_gone(self, vhost: str, exchange: Exchange) -> None:
        """It went, and its bindings with it."""

    def queue(self, vhost: str, queue: Queue) -> None:
        """A durable queue came."""

    def queue_gone(self, vhost: str, queue: Queue) -> None:
        """It went, and its messages and bindings with it."""

    def binding(
        self,
        vhost: str,
        source: Exchange,
        target: Queue | Exchange,
        key: str,
        arguments: Mapping[str, object],
    ) -> None:
        """A binding between durable things came."""

    def binding_gone(
        self,
        vhost: str,
        source: Exchange,
        target: Queue | Exchange,
        key: str,
        arguments: Mapping[str, object],
    ) -> None:
        """It went."""

    def document(self, key: str, value: bytes | None) -> None:
        """Anything else that is small: virtual hosts, users, policies. None: it is gone."""

    def share(self, message: Message) -> None:
        """A persistent message goes to several durable queues; `message` for each of them follows."""

    def message(self, queue: Queue, entry: Entry) -> None:
        """A persistent message came into a durable queue."""

    def settled(self, queue: Queue, entry: Entry) -> None:
        """It went."""

    def delivered(self, queue: Queue, entry: Entry) -> None:
        """A message of a quorum queue was delivered and waits for its acknowledgement."""

    def returned(self, queue: Queue, entry: Entry) -> None:
        """It was delivered and came back."""

    def delayed(self, queue: Queue, entry: Entry, until: int) -> None:
        """After it came back: it is not delivered before this time."""

    def died(self, queue: Queue, entry: Entry, reason: Reason, at: int) -> None:
        """It stays, as a dead letter that was not taken by all its targets."""

    def position(self, message: Message) -> int:  # noqa: ARG002  for those who keep
        """Where the message stands: 0 if nobody has to wait for it."""
        return 0

    def last_position(self) -> int:
        """Where the last thing said stands."""
        return 0

    def durable_position(self) -> int:
        """Up to where everything is safe."""
        return 0

    def body(self, message: Message) -> bytes:
        """A body that was let go of in memory."""
        return message.body or b""

    def load(self, message: Message) -> None:
        """Have such a body in memory again."""

    def release_memory(self) -> None:
        """Give up memory that was needed in a flood and is not any more."""

    def paged_bytes(self) -> int:
        """How many bytes of bodies are on disk only."""
        return 0
