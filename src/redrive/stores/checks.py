"""What is refused before any store touches it? (S33)

Checks that all stores make alike, so that what one of them takes, the others take as well.
"""

from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from redrive.errors import LetterInvalidError, SettingsError
from redrive.letters import DeadLetter
from redrive.letters.letter import storable
from redrive.stores.changes import (
    RETRY_RESULTS,
    Annotate,
    Assign,
    Change,
    Discard,
    Outcome,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    SetBroker,
    Tag,
    Unclaim,
)

LONGEST_LEASE: Final = timedelta(days=30)
LARGEST_PAGE: Final = 1000
LARGEST_CLAIM: Final = 10_000
LONGEST_TEXT: Final = 65_536  # of a name, an id, a note: more than a person or a broker would write
LOWEST_PRIORITY: Final = -(2**31)
HIGHEST_PRIORITY: Final = 2**31 - 1


def check_lease(lease: timedelta) -> None:
    """A lease is longer than nothing and ends some day."""
    if not timedelta(0) < lease <= LONGEST_LEASE:
        raise SettingsError(f"lease must be between 0 and {LONGEST_LEASE.days} days, not {lease}")


def check_limit(limit: int, largest: int) -> None:
    """A limit is at least one and not absurd."""
    if isinstance(limit, bool) or not 1 <= limit <= largest:
        raise SettingsError(f"a limit of {limit} is not between 1 and {largest}")


def check_rescue(retry_in: timedelta, max_redrives: int, limit: int) -> None:
    """A rescue gives letters back in the future, if at all."""
    check_limit(limit, LARGEST_CLAIM)
    if isinstance(max_redrives, bool) or not 1 <= max_redrives < 2**31:
        raise SettingsError(f"max_redrives of {max_redrives} is not at least 1")
    if not timedelta(0) <= retry_in <= timedelta(days=365):
        raise SettingsError(f"retry_in of {retry_in} is not between 0 and a year")


def check_name(what: str, text: str) -> None:
    """A name is not empty, not a novel, and can be written as UTF-8."""
    if not text or not text.strip():
        raise SettingsError(f"{what} is empty")
    check_text(what, text)


def check_text(what: str, text: str) -> None:
    """A text is not a novel, and can be written as UTF-8."""
    if (problem := _text_problem(text)) is not None:
        raise SettingsError(f"{what} {problem}")


def check_time(what: str, moment: datetime) -> None:
    """A time says in which zone."""
    if moment.tzinfo is None:
        raise SettingsError(f"{what} {moment} has no time zone; use UTC")


_REQUIRED: Final = ("id", "key", "source", "broker", "correlation_id", "reason", "error_type", "group")
_OPTIONAL: Final = ("error_text", "message_id", "consumer_group", "strategy", "assignee")
_required: Final = attrgetter(*_REQUIRED)


def check_letter(letter: DeadLetter) -> None:
    """The parts that every database has to hold as text, number or time can be held."""
    required = _required(letter)
    if not all(required):
        missing = _REQUIRED[required.index("")]
        raise LetterInvalidError(f"letter {letter.id or '(no id)'} has no {missing}")
    texts = (
        *required, letter.error_text, letter.message_id or "", letter.consumer_group or "", letter.strategy or "",
        letter.assignee or "",
    )  # fmt: skip
    # One look at all of them is quicker than thirteen, and hardly ever finds anything.
    if _text_problem("".join(texts)) is not None:
        for name, text in zip(_REQUIRED + _OPTIONAL, texts, strict=True):
            if (problem := _text_problem(text)) is not None:
                raise LetterInvalidError(f"letter {letter.id:.60}: its {name} {problem}")
    if letter.tags:
        check_tags(letter.tags)
    check_priority(letter.priority)
    if (
        letter.first_failed_at.tzinfo is None
        or letter.last_failed_at.tzinfo is None
        or letter.next_retry_at.tzinfo is None
    ):
        raise LetterInvalidError(f"letter {letter.id}: a time has no time zone; use UTC")
    if not 0 <= letter.retry_count < 2**31:
        raise LetterInvalidError(f"letter {letter.id}: retry_count cannot be {letter.retry_count}")
    if not 0 <= letter.prior_redrives < 2**31:
        raise LetterInvalidError(
            f"letter {letter.id}: prior_redrives must be between 0 and 2147483647, not {letter.prior_redrives}"
        )


def check_tags(tags: tuple[str, ...]) -> None:
    """Tags are names, each once."""
    for tag in tags:
        check_name("a tag", tag)
    if len(set(tags)) != len(tags):
        raise SettingsError(f"duplicate tag in {', '.join(tags)}")


def check_change(change: Change) -> None:
    """What a change writes can be stored."""
    match change:
        case Assign(to) if to is not None:
            check_name("the assignee's name", to)
        case Tag(add, remove):
            check_tags(add)
            check_tags(remove)
        case Prioritise(priority):
            check_priority(priority)
        case Annotate(text):
            check_name("the note", text)
        case Schedule(at):
            check_time("the time", at)
        case Discard(why):
            check_text("the reason", why)
        case SetBroker(broker):
            check_name("the broker's name", broker)
        case _:
            pass


def check_outcome(outcome: Outcome) -> None:
    """What an outcome writes can be stored."""
    if outcome.strategy is not None:
        check_name("the strategy's name", outcome.strategy)
    check_text("the detail", outcome.detail)
    if isinstance(outcome, Retry) and outcome.result not in RETRY_RESULTS:
        raise SettingsError(f"a retry's result must be {' or '.join(RETRY_RESULTS)}, not {outcome.result!a}")
    if isinstance(outcome, Retry | Unclaim) and outcome.at is not None:
        check_time("the time", outcome.at)
    if not isinstance(outcome, Resolve | Unclaim) and outcome.failure is not None:
        check_time("the time of the failure", outcome.failure.at)
        check_text("the type of the error", storable(outcome.failure.error_type))


def check_priority(priority: int) -> None:
    """A priority fits into 32 bits."""
    if isinstance(priority, bool) or not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise SettingsError(
            f"a priority of {priority} is not between {LOWEST_PRIORITY} and {HIGHEST_PRIORITY}"
        )


def _text_problem(text: str) -> str | None:
    if text.isascii() and len(text) <= LONGEST_TEXT and "\x00" not in text:
        return None
    if len(text) > LONGEST_TEXT:
        return f"has {len(text)} characters; the limit is {LONGEST_TEXT}"
    if "\x00" in text:
        return "contains a NUL character, which databases cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode (a lone surrogate); decode it with errors='replace'"
    return None
