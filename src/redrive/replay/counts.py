"""Count the letters that replays have sent, for the metrics of a server.

A replay runs in another process. What it has sent is in its operation, in the store, so a server counts what was added
since it saw the operation last. Operations of other brokers are those of other servers.
"""

from collections.abc import Iterable
from datetime import datetime

from redrive.errors import SettingsError
from redrive.replay.options import KIND, SENT, unpack
from redrive.stores.operations import Operation


class ReplayCounter:
    """How many letters the replays of one broker have sent since `began`."""

    def __init__(self, broker: str, began: datetime) -> None:
        self._broker = broker
        self._began = began
        self._seen: dict[str, int] = {}  # operation → letters that it had sent
        self._is_first = True
        self.sent = 0

    def update(self, operations: Iterable[Operation]) -> None:
        """Count what these operations have sent since they were last seen."""
        for operation in operations:
            if not self._is_counted(operation):
                continue
            sent = operation.outcomes.get(SENT, 0)
            is_old = self._is_first and operation.created_at < self._began
            self.sent += max(0, sent - self._seen.get(operation.id, sent if is_old else 0))
            self._seen[operation.id] = sent
        self._is_first = False

    def _is_counted(self, operation: Operation) -> bool:
        if operation.kind != KIND:
            return False
        if operation.id in self._seen:
            return True
        try:
            return unpack(operation.options).broker == self._broker
        except SettingsError:  # of a newer version
            return False
