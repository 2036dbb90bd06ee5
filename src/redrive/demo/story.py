"""What became of each dead letter, told in sentences and in figures?

The store is asked again and again, by the same verbs that the command line has: which letters have changed, and which
lines are new in the journal. A letter is counted under the kind of failure it first died of; it may die of another one
later.

The rule: everything that is told was read from the store. What the traffic meant to happen is not known here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from redrive.errors import on_one_line
from redrive.letters import FailureKind, LetterHead, LetterState
from redrive.letters.letter import EPOCH
from redrive.stores.base import JournalLine, Store
from redrive.stores.many import pages
from redrive.stores.query import Condition, Op, Query, Sort

_PAGE: Final = 500
_OVERLAP: Final = timedelta(seconds=1)  # what was stamped before the last look, and written after it
# Each kind in the words of the shop.
WORDS: Final[Mapping[FailureKind, str]] = {
    FailureKind.MALFORMED: "malformed message",
    FailureKind.DENIED: "permanent error",
    FailureKind.RATE_LIMITED: "rate limit",
    FailureKind.NETWORK: "dependency down",
    FailureKind.CRASH: "poison message",
    FailureKind.TIMEOUT: "no answer",
    FailureKind.EXPIRED: "time to live expired",
    FailureKind.OVERFLOW: "queue full",
}


class Event(msgspec.Struct, frozen=True):
    """Something happened to a letter; `state` is where that has led."""

    at: datetime
    text: str
    state: LetterState | None = None


class Life(msgspec.Struct):
    """What is known of one letter."""

    head: LetterHead
    first_kind: FailureKind
    died_again: int = 0
    last_told: str = ""


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all letters that first died of one kind of failure."""

    failure: str  # in words
    kind: str
    letters: int
    states: dict[str, int]
    reasons: tuple[str, ...]
    errors: tuple[str, ...]
    most_redrives: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened, all in all."""

    seconds: float
    sent: dict[str, int]  # messages, by queue
    deaths: dict[str, int]  # of the shop's processes, by consumer
    letters: int
    states: dict[str, int]
    resolved_after_redrive: int
    failures: tuple[Fate, ...]


class Story:
    """All letters so far."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self._line = 0
        self._changed = EPOCH

    async def look(self, store: Store) -> list[Event]:
        """What is new since the last look, in the order in which it happened."""
        lines: list[JournalLine] = []
        while found := await store.journal(after=self._line, limit=_PAGE):
            lines += found
            self._line = found[-1].number
        events = [self._arrival(head) for head in await self._changed_heads(store)]
        told = [*(event for event in events if event is not None), *self._told(lines)]
        return sorted(told, key=lambda event: event.at)

    async def _changed_heads(self, store: Store) -> list[LetterHead]:
        since = max(EPOCH, self._changed - _OVERLAP) if self._changed > EPOCH else EPOCH
        query = Query((Condition("updated", Op.AT_LEAST, (since,)),), sort=Sort("updated", descending=False))
        heads: dict[str, LetterHead] = {}
        async for found in pages(store, query):
            heads.update((head.id, head) for head in found)
        for head in heads.values():
            self._changed = max(self._changed, head.updated_at)
        return list(heads.values())

    def _arrival(self, head: LetterHead) -> Event | None:
        if head.id in self.lives:
            self.lives[head.id].head = head
            return None
        self.lives[head.id] = Life(head, head.kind)
        return Event(
            head.created_at,
            f"{name_of(head)}: dead letter, {cause_of(head)}: {_short(head.error_text)}",
            LetterState.PENDING,
        )

    def _told(self, lines: Iterable[JournalLine]) -> Iterable[Event]:
        for line in lines:
            life = self.lives.get(line.letter_id)
            if life is None:  # deleted meanwhile
                continue
            text = _sentence(life, line)
            if text is not None and text != life.last_told:  # one that waits is told once
                life.last_told = text
                yield Event(line.at, f"{name_of(life.head)}: {text}", line.after)

    def summary(self, seconds: float, sent: Mapping[str, int], deaths: Mapping[str, int]) -> Summary:
        """Everything so far."""
        lives = self.lives.values()
        there = {life.first_kind for life in lives}
        kinds = [
            kind for kind in (*WORDS, *(kind for kind in FailureKind if kind not in WORDS)) if kind in there
        ]
        return Summary(
            seconds=round(seconds, 1),
            sent=dict(sent),
            deaths=dict(deaths),
            letters=len(lives),
            states=states_of(life.head for life in lives),
            resolved_after_redrive=sum(
                life.head.state is LetterState.RESOLVED and not life.head.presumed for life in lives
            ),
            failures=tuple(_fate(kind, [life.head for life in lives if life.first_kind is kind]) for kind in kinds),
        )  # fmt: skip


# --- words --------------------------------------------------------------------------------------------------


def name_of(head: LetterHead) -> str:
    """What people call it: `order 17`."""
    return on_one_line((head.message_id or head.id).replace("-", " "))


def cause_of(head: LetterHead) -> str:
    """The failure in the words of the shop, or in ours."""
    return WORDS.get(head.kind, str(head.kind))


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def states_of(heads: Iterable[LetterHead]) -> dict[str, int]:
    """How many letters are in each state."""
    counts = Counter(head.state for head in heads)
    return {str(state): counts[state] for state in LetterState if counts[state]}


def _sentence(life: Life, line: JournalLine) -> str | None:
    match line.action:
        case "claim":
            return None
        case "park":
            return f"{on_one_line(life.head.error_type)} → parked for a person"
        case "resolve" if life.head.presumed:
            return "no verdict arrived: presumed resolved"
        case "resolve":
            return f"resolved by the {ordinal(life.died_again + 1)} redrive"
        case "retry":
            life.died_again += 1
            return f"dead-lettered again after the {ordinal(life.died_again)} redrive"
        case "exhaust":
            life.died_again += 1
            return f"failed permanently after the {ordinal(life.died_again)} redrive"
        case "sent":
            return "sent back"
        case "release":
            return on_one_line(line.detail) or "released"
        case _:
            return on_one_line(f"{line.action} by {line.actor}")


def _short(text: str) -> str:
    plain = on_one_line(" ".join(text.split()))
    return plain if len(plain) <= 60 else plain[:59] + "…"


def _fate(kind: FailureKind, heads: list[LetterHead]) -> Fate:
    return Fate(
        failure=WORDS.get(kind, str(kind)),
        kind=str(kind),
        letters=len(heads),
        states=states_of(heads),
        reasons=tuple(sorted({head.reason for head in heads})),
        errors=tuple(sorted({head.error_type for head in heads})),
        most_redrives=max(head.dlq_retry_count for head in heads),
    )
