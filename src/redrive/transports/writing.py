"""Which publications of a batch can be written at all?

Each broker has its own `write`: it makes of a publication what goes over its wire, or raises a `FormatError` where
there is no such thing. The rule: one that cannot be written holds up none of the others, and its answer says why.

It does not know how they are sent.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from redrive.errors import FormatError, PublishError, RedriveError
from redrive.transports.base import Publication

T = TypeVar("T")


def written(
    publications: Sequence[Publication], write: Callable[[Publication], T]
) -> tuple[dict[int, T], list[RedriveError | None]]:
    """Those that can be sent, by their places in the batch; and an answer for each of all, so far only refusals."""
    outcomes: list[RedriveError | None] = [None] * len(publications)
    going: dict[int, T] = {}
    for place, publication in enumerate(publications):
        try:
            going[place] = write(publication)
        except FormatError as error:
            outcomes[place] = PublishError(str(error))
    return going, outcomes
