"""How is something told that was not written by us?

Error texts, ids and reasons come from producers, handlers and libraries. Before they stand in a span, a line or a
label they are redacted, put on one line and cut to a length. In this order: half of a secret is not recognised.

The rule: nothing here raises, whatever the text or the error.
"""

import re
from typing import Final

from redrive.errors import on_one_line
from redrive.letters import stack_of
from redrive.letters.letter import storable
from redrive.letters.redact import MAX_TEXT_CHARS, Redactor

LONGEST: Final = 2_000  # characters of one text
LONGEST_STACK: Final = 20_000
MAX_LABEL_CHARS: Final = 300  # longer than the name of any queue or topic
# What is longer is cut before it is searched; a secret at that cut is far behind the part that is told.
_SEARCHED: Final = 50_000
_LONGEST_SEARCHED_STACK: Final = MAX_TEXT_CHARS  # a longer one is not told; the error's own line still is
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def label(text: str) -> str:
    """A name that others chose, as the value of a metric's label: one line of printable characters, cut to a length."""
    return storable(_cut(on_one_line(text[: MAX_LABEL_CHARS + 1]), MAX_LABEL_CHARS))


class Clean:
    """Texts that may leave the process."""

    __slots__ = ("_redactor",)

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or Redactor()

    def line(self, text: str, longest: int = LONGEST) -> str:
        """A text as one line."""
        return on_one_line(_cut(self._redactor.clean(text[:_SEARCHED]), longest))

    def id(self, text: str) -> str:
        """An id that a producer chose: most are UUIDs, which hold no secret; another may be somebody's address."""
        return text if _UUID.fullmatch(text) else self.line(text, 200)

    def error(self, error: BaseException) -> str:
        """What an error says, without its type."""
        try:
            text = str(error)
        except Exception:  # noqa: BLE001  an error that cannot even be told is still an error
            text = "(the error has no text)"
        cleaned = self._redactor.clean_error(type(error).__name__, text[:_SEARCHED])
        return on_one_line(_cut(cleaned, LONGEST))

    def stack(self, error: BaseException) -> str:
        """An error's traceback, on its many lines; its end, where the error itself stands, is what is kept."""
        try:
            text = stack_of(error)
        except Exception:  # noqa: BLE001  likewise
            return ""
        if len(text) > _LONGEST_SEARCHED_STACK:
            return ""
        # Searched as a whole: what begins before a cut, a private key for example, is not known by its end.
        cleaned = storable(self._redactor.clean(text))
        return cleaned if len(cleaned) <= LONGEST_STACK else "…" + cleaned[-LONGEST_STACK:]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
