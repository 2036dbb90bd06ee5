"""Limits for bytes that others have compressed: what they may expand to.

A few kilobytes can expand to gigabytes. Whoever reads bytes from a request or a file counts here what they expand to,
before it is expanded where the size is announced and while it is expanded where it is not, and refuses what exceeds a
limit with a `FormatError` that names the limit and its setting. What redrive reads from its own database is not
limited: a letter that was stored must be readable.
"""

from typing import Final

from redrive.errors import FormatError
from redrive.settings import LimitSettings

# Below this size any ratio is harmless; text that repeats itself compresses well.
FREE_BYTES: Final = 65_536


class ExpansionBudget:
    """What the letters of one request may still expand to."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._letter = self._request = 0

    def begin_letter(self) -> None:
        """What is counted from now on belongs to another letter."""
        self._letter = 0

    def most(self, packed: int) -> int:
        """How many bytes this many compressed bytes may expand to; one byte more is refused by `spend`."""
        by_ratio = max(FREE_BYTES, packed * self._limits.compression_ratio)
        return max(
            0,
            min(
                by_ratio, self._limits.letter_bytes - self._letter, self._limits.request_bytes - self._request
            ),
        )

    def spend(self, packed: int, expanded: int) -> None:
        """Count bytes that are expanded, or refuse them before they are."""
        limits = self._limits
        if self._letter + expanded > limits.letter_bytes:
            raise too_large_letter(limits)
        if self._request + expanded > limits.request_bytes:
            raise too_large_request(limits)
        if expanded > max(FREE_BYTES, packed * limits.compression_ratio):
            raise too_high_ratio(limits)
        self._letter += expanded
        self._request += expanded


def too_large_letter(limits: LimitSettings) -> FormatError:
    """The refusal of a letter that has too many bytes."""
    return FormatError(
        f"a letter has more than {limits.letter_bytes} bytes; raise limits.letter_bytes to accept it"
    )


def too_large_request(limits: LimitSettings) -> FormatError:
    """The refusal of a request that has too many bytes, as it was sent or expanded."""
    return FormatError(
        f"a request has more than {limits.request_bytes} bytes; send fewer letters at once, or raise "
        "limits.request_bytes of the server"
    )


def too_high_ratio(limits: LimitSettings) -> FormatError:
    """The refusal of data that expands too much."""
    return FormatError(
        f"compressed data expands more than {limits.compression_ratio} times; raise limits.compression_ratio if you "
        "trust where it comes from"
    )
