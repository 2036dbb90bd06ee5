"""What do several servers keep together that is no letter?

A memo: bytes under a name, with a version that each write makes one higher. Whoever writes shows the version that it
has recalled, so that of several who change the same memo at once one does, and the others hear of it and look again
(S46). No lock is held meanwhile, and none is left behind by somebody who dies.

Here is the value, and what every store refuses. What a memo says is known to whoever writes it.
"""

from typing import Final

import msgspec

from redrive.errors import SettingsError
from redrive.stores.checks import check_name

LONGEST_NAME: Final = 200  # characters: every database can have them in a unique index
LARGEST_BODY: Final = 16_777_216  # bytes


class Memo(msgspec.Struct, frozen=True):
    """What is remembered under a name."""

    version: int = 0  # how often it was written
    body: bytes | None = None  # None: never


NOTHING: Final = Memo()


# --- what is refused before any store touches it (S33) ---------------------------------------------------


def check_memo_name(name: str) -> None:
    """A memo's name is a short one."""
    check_name("the document name", name)
    if len(name) > LONGEST_NAME:
        raise SettingsError(f"the document name has {len(name)} characters; the limit is {LONGEST_NAME}")


def check_memo(name: str, body: bytes, version: int) -> None:
    """What is to be remembered can be stored, and the version is one that a memo can have."""
    check_memo_name(name)
    if len(body) > LARGEST_BODY:
        raise SettingsError(f"the document has {len(body)} bytes; the limit is {LARGEST_BODY} bytes")
    if isinstance(version, bool) or not 0 <= version < 2**63:
        raise SettingsError(f"version must be between 0 and 2^63, not {version}")
