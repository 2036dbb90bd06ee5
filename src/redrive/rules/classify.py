"""What sort of failure is this error, and is it worth another try?

Three groups of rules are asked in order: the user's own, then what is certain (class, HTTP status, errno),
then words in the text. Each group looks at the error itself first and then at what it was raised `from`
(and into an exception group). Only when none of them knows is it asked what was being handled when the error
was raised without `from`: that is often an accident, so it never outweighs what the error says itself.
One rule: an answer always comes, always names the rule that gave it, and no error can make this raise.
It does not know how often the message was tried (`decide`) nor what recovery will make of it (`strategy`).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec

from redrive.letters.failure import FailureKind
from redrive.rules.defaults import (
    BY_BARE_NAME,
    BY_ERRNO,
    BY_STATUS,
    BY_TYPE,
    ERRNOS,
    STATUSES,
    TYPES,
    UNKNOWN,
)
from redrive.rules.evidence import Evidence, PlainEvidence, TextEvidence, chain, contexts, plain_text_of
from redrive.rules.phrases import TEXTS, first_said
from redrive.rules.retry_after import retry_after_of
from redrive.rules.rule import Rule


class Classification(msgspec.Struct, frozen=True):
    """What a failure is, whether to try again within seconds, who said so, and how long to wait."""

    kind: FailureKind
    retryable: bool
    rule: str
    retry_after: timedelta | None = None


class Step(msgspec.Struct, frozen=True):
    """One rule that was looked at on the way to an answer."""

    rule: str
    matched: bool
    about: str  # the class of the error that was looked at: the error itself or one behind it
    note: str = ""


class Classifier(msgspec.Struct, frozen=True):
    """The user's rules, in their order, before the defaults."""

    rules: tuple[Rule, ...] = ()
    defaults: bool = True

    def classify(self, error: BaseException, now: datetime | None = None) -> Classification:
        """What the error is. `now` is needed only to read a Retry-After that is a date."""
        if not self.rules and self.defaults and (text := plain_text_of(error)) is not None:
            kind: type = type(error)
            return _of_plain(kind, text)
        links = chain(error)
        rule = self._first(links, None) or self._first(contexts(links), None) or UNKNOWN
        return _classification(rule, links, now)

    def classify_text(
        self, error_type: str, text: str, status: int | None = None, now: datetime | None = None
    ) -> Classification:
        """What a failure is that exists only as text."""
        links = [TextEvidence(error_type, text, status)]
        return _classification(self._first(links, None) or UNKNOWN, links, now)

    def explain(self, error: BaseException) -> tuple[Step, ...]:
        """Every rule looked at, in order; the last is the one that decided."""
        links, trail = chain(error), list[Step]()
        if not (self._first(links, trail) or self._first(contexts(links), trail)):
            trail.append(Step(UNKNOWN.name, matched=True, about=links[0].name))
        return tuple(trail)

    def explain_text(self, error_type: str, text: str, status: int | None = None) -> tuple[Step, ...]:
        """Every rule looked at for a failure that exists only as text."""
        trail = list[Step]()
        link = TextEvidence(error_type, text, status)
        if not self._first([link], trail):
            trail.append(Step(UNKNOWN.name, matched=True, about=link.name))
        return tuple(trail)

    def _first(self, links: Sequence[Evidence], trail: list[Step] | None) -> Rule | None:
        groups = (_own, _certain, _worded) if self.defaults else (_own,)
        for group in groups:
            for link in links:
                if rule := group(self.rules, link, trail):
                    return rule
        return None


@lru_cache(1024)
def _of_plain(kind: type, text: str) -> Classification:
    """What the defaults say of an error that is its class and its text alone; floods repeat both."""
    links = [PlainEvidence(kind, text)]
    return _classification(
        _certain((), links[0], None) or _worded((), links[0], None) or UNKNOWN, links, None
    )


def _own(rules: tuple[Rule, ...], link: Evidence, trail: list[Step] | None) -> Rule | None:
    for rule in rules:
        note = ""
        try:
            matched = rule.when is not None and rule.when.matches(link)
        except BaseException as problem:  # noqa: BLE001 (a predicate that raises has said no)
            matched, note = False, f"raised {type(problem).__name__}"
        if trail is not None:
            trail.append(Step(rule.name, matched, link.name, note))
        if matched:
            return rule
    return None


def _certain(_: tuple[Rule, ...], link: Evidence, trail: list[Step] | None) -> Rule | None:
    found = next((rule for name in link.types if (rule := BY_TYPE.get(name))), None)
    if found is None and isinstance(link, TextEvidence) and link.types:
        found = BY_BARE_NAME.get(link.types[0])
    _note(trail, TYPES, found, link)
    if found is None and link.status is not None:
        found = BY_STATUS.get(link.status)
        _note(trail, STATUSES, found, link, f"status {link.status}")
    if found is None and link.errno is not None:
        found = BY_ERRNO.get(link.errno)
        _note(trail, ERRNOS, found, link, f"errno {link.errno}")
    return found


def _worded(_: tuple[Rule, ...], link: Evidence, trail: list[Step] | None) -> Rule | None:
    if link.status_in_text is not None and (found := BY_STATUS.get(link.status_in_text)):
        _note(trail, STATUSES, found, link, f"status {link.status_in_text} in the text")
        return found
    found = first_said(link.words)
    _note(trail, TEXTS, found, link)
    return found


def _note(
    trail: list[Step] | None, rules: Iterable[Rule], found: Rule | None, link: Evidence, note: str = ""
) -> None:
    if trail is None:
        return
    for rule in rules:
        trail.append(Step(rule.name, rule is found, link.name, note if rule is found else ""))
        if rule is found:
            return


def _classification(rule: Rule, links: Sequence[Evidence], now: datetime | None) -> Classification:
    retries = rule.retries
    wait: timedelta | None = None
    if retries:  # who does not try again need not know when
        wait = next((found for link in links if (found := retry_after_of(link, now)) is not None), None)
    return Classification(rule.kind, retries, rule.name, wait)
