"""When to say that we are alive, and when to believe that the peer is not.

The rule: a heartbeat is due after half the negotiated interval of silence on our side, and the peer is dead
after two whole intervals of silence on its side; any octet counts as a sign of life. Times are monotonic
seconds that the owner passes in, once per turn: `spoke` when octets went out, `heard` when some came in.
"""


class Heartbeats:
    """The heartbeat of one connection. An interval of 0 means that there is none."""

    __slots__ = ("_heard", "_spoke", "interval")

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._heard: float | None = None
        self._spoke: float | None = None

    def spoke(self, now: float) -> None:
        """We have sent something."""
        self._spoke = now

    def heard(self, now: float) -> None:
        """Something has come in."""
        self._heard = now

    def next_due(self, now: float) -> float | None:
        """When the next heartbeat is to be sent: now or earlier means at once, None means never."""
        if not self.interval:
            return None
        if self._spoke is None:
            self._spoke = now
        return self._spoke + self.interval / 2

    def peer_is_dead(self, now: float) -> bool:
        """Whether the peer has been silent for two intervals. The first question starts the count."""
        if not self.interval:
            return False
        if self._heard is None:
            self._heard = now
        return now - self._heard > 2 * self.interval
