"""The redrives that are in a queue, as a consumer would receive them."""

from collections import Counter

from redrive.clock import SystemClock
from redrive.letters.redrive import redrive_of
from redrive.transports import Source, open_transport


async def take_redrives(url: str, queue: str = "orders") -> Counter[str]:
    """Take everything from a queue; how often each letter was sent."""
    found: Counter[str] = Counter()
    async with open_transport(url, SystemClock()) as transport:
        count = await transport.depth(queue)
        receiver = await transport.receiver(Source(name=queue, window=2000))
        while found.total() < count:
            batch = await receiver.receive()
            for delivery in batch:
                redrive = redrive_of(delivery.message.headers)
                assert redrive is not None
                found[redrive.hold.id] += 1
            receiver.accept(batch)
        await receiver.close()
    return found
