"""Which acknowledgements have to be sent for the deliveries that are done?

The tags of a channel are counted from one without a gap. The rule: as few frames as can be. Where everything up to a
tag is settled, one frame with `multiple` says so; what lies beyond an unsettled delivery is said one by one. The tag of
a `multiple` is always one that the broker still waits for: RabbitMQ closes the channel over any other.

Pure: tags in, octets out. It does not know messages, and it does not know when to send.
"""

from redrive.amqp.hot import ack_frame, ack_frames


class Ledger:
    """The deliveries of one channel: which are out, which are done, and what the broker has been told."""

    __slots__ = ("_channel", "_done", "_low", "_told", "delivered")

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._low = 0  # every tag up to here is settled, and the broker was told
        self._done: set[int] = set()  # done, the broker was not told yet
        self._told: set[int] = set()  # above `_low`, and the broker was told
        self.delivered = 0  # the highest tag that has come

    def done(self, tags: list[int]) -> None:
        """These are done; `flush` will tell."""
        self._done.update(tags)

    def told(self, tag: int) -> None:
        """The broker was told of this one in another way: it was rejected."""
        self._told.add(tag)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self._done)

    def outstanding(self, up_to: int) -> int:
        """How many of the tags up to this one are neither done nor rejected."""
        settled = sum(tag <= up_to for tags in (self._done, self._told) for tag in tags)
        return max(0, up_to - self._low - settled)

    def flush(self) -> bytes:
        """The frames that tell of everything that is done."""
        done, told = self._done, self._told
        low = self._low
        last = 0  # the highest of those that one frame can tell of
        while True:
            low += 1
            if low in done:
                last = low
                done.remove(low)
            elif low in told:
                told.remove(low)
            else:
                break
        self._low = low - 1
        frames = ack_frame(self._channel, last, multiple=True) if last else b""
        if done:
            frames += ack_frames(self._channel, sorted(done))
            told |= done
            done.clear()
        return frames
