"""What is the owner of a transport told of what nobody has asked for?

That a connection was lost or found again, or that something in the background has failed: in words, with the error
behind it if there is one. The rule: whoever is told is never asked for anything, and nothing waits for it. Unless the
owner says otherwise, it goes to the log.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

Tell: TypeAlias = Callable[[str, BaseException | None], None]


def to_log(log: logging.Logger) -> Tell:
    """Writes what has an error behind it as a warning, and everything else as information."""

    def tell(what: str, error: BaseException | None) -> None:
        if error is None:
            log.info("%s", what)
        else:
            log.warning("%s: %s", what, error)

    return tell
