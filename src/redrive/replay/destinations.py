"""Where letters were sent that wait for their verdict.

Workers send a letter to the consumer that failed. A replay may send it elsewhere; its options are kept with its
operation, whose id is the name under which the replay claimed the letter.
"""

from collections.abc import Callable
from typing import Final

from redrive.errors import OperationNotFoundError, SettingsError
from redrive.letters import LetterHead
from redrive.replay.options import WORKER_PREFIX, unpack
from redrive.stores.base import Store

_CACHE_SIZE: Final = 1000  # operations


class Destinations:
    """Finds the consumer that a letter was sent to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._redirects: dict[str, Callable[[str], str | None] | None] = {}  # operation → source to target

    async def consumer_of(self, head: LetterHead) -> tuple[str, str] | None:
        """Source and group of that consumer; None where it is not one consumer, or not known."""
        worker = head.locked_by or ""
        if not worker.startswith(WORKER_PREFIX):
            return head.source, head.consumer_group or ""
        operation = worker.removeprefix(WORKER_PREFIX)
        if operation not in self._redirects:
            if len(self._redirects) >= _CACHE_SIZE:
                self._redirects.clear()
            self._redirects[operation] = await self._redirect_of(operation)
        redirect = self._redirects[operation]
        if redirect is None:
            return None
        other = redirect(head.source)
        return (head.source, head.consumer_group or "") if other is None else (other, "")

    async def _redirect_of(self, operation: str) -> Callable[[str], str | None] | None:
        """The function by which a replay redirects a source; None where its target is not one queue."""
        try:
            sending = unpack((await self._store.operation(operation)).options).sending
        except (OperationNotFoundError, SettingsError):
            return None
        if (
            sending.to == "exchange"
        ):  # everybody bound to the exchange has received it, perhaps not the source
            return None
        return lambda source: sending.target or sending.redirects.get(source)
