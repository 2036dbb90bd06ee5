"""The contract of `transports.base` as the shortest code that keeps it.

The executable specification: other transports are held against it by the same suite, and it serves tests and programs
that need no broker. `broker` is the broker, a few named queues in this process; every `transport` on it is one
connection to it, and a `receiver` hands out what is in one queue.

The rule: nothing happens between two awaits, so a verb has happened as a whole or not at all. It has no exchanges and
no tasks of its own; time is the clock's alone, so that a test turns it by hand.
"""

from redrive.transports.memory.broker import MemoryBroker
from redrive.transports.memory.receiver import MemoryDelivery, MemoryReceiver
from redrive.transports.memory.transport import MemoryTransport

__all__ = ["MemoryBroker", "MemoryDelivery", "MemoryReceiver", "MemoryTransport"]
