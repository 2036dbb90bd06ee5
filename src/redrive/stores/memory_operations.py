"""The part of the contract about operations (S34 to S44) as the shortest code that keeps it.

Two dictionaries: the operations in the order in which they began, and the list of each. What may happen to an operation
is decided by `stores.operations`. It knows no letters, only their ids: an operation stays as it is when they go (S44).
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec

from redrive.stores.operations import Item, Operation, begun, not_listed, unknown_operation


class MemoryOperations:
    """Operations and their lists."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self.lists: dict[str, dict[str, Item]] = {}

    def begin(self, operation: Operation, letters: list[str], now: datetime) -> bool:
        """S34 to S36."""
        if operation.id in self.operations:
            return False
        self.operations[operation.id] = begun(operation, len(letters), now)
        self.lists[operation.id] = {letter_id: Item(letter_id) for letter_id in letters}
        return True

    def find(self, operation_id: str) -> Operation:
        """S37."""
        try:
            return self.operations[operation_id]
        except KeyError:
            raise unknown_operation(operation_id) from None

    def newest(self, limit: int) -> list[Operation]:
        """S37."""
        return list(reversed(self.operations.values()))[:limit]

    def items(self, operation_id: str) -> list[Item]:
        """The whole list, in its order (S38)."""
        self.find(operation_id)
        return list(self.lists[operation_id].values())

    def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]], now: datetime) -> None:
        """S39, S40."""
        operation = self.find(operation_id)
        items = dict(self.lists[operation_id])
        counts = Counter(operation.outcomes)
        for letter_id, outcome, detail in outcomes:
            if letter_id not in items:
                raise not_listed(operation_id, letter_id)
            if items[letter_id].outcome is None:
                items[letter_id] = Item(letter_id, outcome, detail, now)
                counts[outcome] += 1
        self.lists[operation_id] = items
        self.operations[operation_id] = msgspec.structs.replace(operation, outcomes=dict(counts))

    def keep(self, changed: Operation | None) -> bool:
        """Carry out what was decided about an operation; False: nothing was."""
        if changed is not None:
            self.operations[changed.id] = changed
        return changed is not None
