"""Report events of a transport that no call returns.

Such as a connection that was lost or restored, or a failure in the background: an event with key=value context, and the
error if there is one. By default they are logged.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

Tell: TypeAlias = Callable[[str, BaseException | None], None]


def to_log(log: logging.Logger) -> Tell:
    """Log events with an error as warnings, and all others as information."""

    def tell(event: str, error: BaseException | None) -> None:
        if error is None:
            log.info("%s", event)
        else:
            log.warning("%s: %s", event, error)

    return tell
