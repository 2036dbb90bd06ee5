from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from redrive.watch.alerts.alert import Occasion, Severity
from redrive.watch.alerts.incidents import (
    Finding,
    Incident,
    Policy,
    acknowledged,
    begun,
    stepped,
    told,
    waited,
)

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = Policy(cool_down=15 * MINUTE, calm=2 * MINUTE, escalate_after=30 * MINUTE, escalations=3)
RAISED, WORSE, AGAIN, ESCALATED, RECOVERED = Occasion


def a_finding(badness: float = 1, *ids: str, critical: bool = True, news: bool = False) -> Finding:
    return Finding(
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        badness=badness,
        text="orders.dlq is not empty.",
        component="RabbitMQ",
        queue="orders.dlq",
        is_news=news,
        correlation_ids=ids,
    )


class Story:
    """An incident and what was told of it, minute by minute."""

    def __init__(self, confirm: int = 1, policy: Policy = POLICY) -> None:
        self.now = NOON
        self.incident: Incident | None = None
        self.told: list[tuple[int, Occasion]] = []
        self.ids: list[tuple[str, ...]] = []
        self._confirm = confirm
        self._policy = policy

    def look(self, found: Finding | None, *, minutes: int = 1, quiet: bool = False) -> Occasion | None:
        if self.incident is None:
            if found is None:
                self.now += minutes * MINUTE
                return None
            self.incident = begun("i-1", "dead-letter", "orders", found, self.now)
        self.incident, occasion = stepped(
            self.incident, found, self.now, self._policy, confirm=self._confirm, quiet=quiet
        )
        self._tell(occasion)
        self.now += minutes * MINUTE
        return occasion

    def wait(self, minutes: int, *, quiet: bool = False) -> Occasion | None:
        self.now += minutes * MINUTE
        assert self.incident is not None
        occasion = waited(self.incident, self.now, self._policy, quiet=quiet)
        self._tell(occasion)
        return occasion

    def _tell(self, occasion: Occasion | None) -> None:
        if occasion is None:
            return
        assert self.incident is not None
        self.told.append(((self.now - NOON) // MINUTE, occasion))
        self.ids.append(self.incident.found.correlation_ids)
        self.incident = told(self.incident, occasion, self.now)
        if self.incident.over_at is not None:
            self.incident = None

    def acknowledge(self) -> None:
        assert self.incident is not None
        self.incident = acknowledged(self.incident, "somebody", self.now)


def test_what_is_found_is_told_at_once() -> None:
    assert Story().look(a_finding()) is RAISED


def test_what_is_found_every_minute_and_does_not_change_is_told_once() -> None:
    story = Story(policy=msgspec.structs.replace(POLICY, escalations=0))
    for _ in range(1000):
        story.look(a_finding(7))
    assert story.told == [(0, RAISED)]


def test_what_has_to_be_confirmed_is_told_when_it_is() -> None:
    story = Story(confirm=3)
    assert [story.look(a_finding()) for _ in range(4)] == [None, None, RAISED, None]


def test_what_was_only_suspected_is_forgotten_when_it_is_fine() -> None:
    story = Story(confirm=2)
    assert [story.look(look) for look in (a_finding(), None, a_finding(), None)] == [None] * 4
    assert story.incident is None
    assert [story.look(look) for look in (a_finding(), a_finding())] == [None, RAISED]


def test_news_are_told_after_the_cool_down_and_not_before() -> None:
    story = Story(policy=msgspec.structs.replace(POLICY, escalations=0))
    story.look(a_finding(1))
    story.look(a_finding(2), minutes=13)
    assert story.told == [(0, RAISED)]
    assert story.look(a_finding(2)) is None  # at minute 14
    assert story.look(a_finding(2)) is AGAIN  # news of minute 1 are still news
    assert story.look(a_finding(2), minutes=14) is None
    assert story.look(a_finding(2)) is None, "nothing has happened since"


def test_a_new_letter_is_news_even_if_there_are_not_more_of_them() -> None:
    story = Story()
    story.look(a_finding(5), minutes=15)
    assert story.look(a_finding(3)) is None
    assert story.look(a_finding(3, news=True)) is AGAIN


def test_a_warning_that_becomes_critical_is_told_at_once() -> None:
    story = Story()
    assert story.look(a_finding(critical=False)) is RAISED
    assert story.look(a_finding()) is WORSE
    # and what gets better and worse again is not
    assert story.look(a_finding(critical=False)) is None
    assert story.look(a_finding()) is None


def test_what_nobody_acknowledges_is_escalated_a_few_times() -> None:
    story = Story()
    for _ in range(200):
        story.look(a_finding())
    assert story.told == [(0, RAISED), (30, ESCALATED), (60, ESCALATED), (90, ESCALATED)]


def test_it_is_escalated_also_while_it_cannot_be_looked_at() -> None:
    story = Story()
    story.look(a_finding(), minutes=0)
    assert [story.wait(29), story.wait(1), story.wait(1), story.wait(29)] == [
        None,
        ESCALATED,
        None,
        ESCALATED,
    ]


def test_what_is_acknowledged_is_neither_escalated_nor_told_again() -> None:
    story = Story()
    story.look(a_finding(1))
    story.acknowledge()
    for badness in range(2, 200):
        assert story.look(a_finding(badness, news=True)) is None
    assert story.wait(100) is None


def test_what_is_acknowledged_and_becomes_worse_is_told_and_has_to_be_acknowledged_anew() -> None:
    story = Story()
    story.look(a_finding(critical=False))
    story.acknowledge()
    assert story.look(a_finding(), minutes=30) is WORSE
    assert story.incident is not None
    assert story.incident.acknowledged_by is None
    assert story.look(a_finding()) is ESCALATED


def test_it_is_over_when_it_was_fine_for_a_while() -> None:
    story = Story()
    assert [story.look(look) for look in (a_finding(), None, None, None, None)] == [
        RAISED,
        None,
        None,
        RECOVERED,
        None,
    ]


def test_what_comes_and_goes_is_told_once_and_is_over_once() -> None:
    story = Story()
    for _ in range(5):
        story.look(a_finding())
        story.look(None)
    for _ in range(3):
        story.look(None)
    assert [occasion for _, occasion in story.told] == [RAISED, RECOVERED]


def test_what_is_found_again_after_it_was_over_is_told_at_once() -> None:
    story = Story()
    for look in (a_finding(), None, None, None, a_finding()):
        story.look(look)
    assert [occasion for _, occasion in story.told] == [RAISED, RECOVERED, RAISED]


def test_its_end_is_told_also_if_it_was_acknowledged() -> None:
    story = Story()
    story.look(a_finding())
    story.acknowledge()
    assert [story.look(None) for _ in range(3)] == [None, None, RECOVERED]


def test_what_is_fine_and_not_over_yet_is_not_escalated() -> None:
    story = Story(policy=msgspec.structs.replace(POLICY, calm=60 * MINUTE))
    story.look(a_finding())
    story.look(None)
    assert story.wait(40) is None


def test_nothing_is_told_in_a_window_and_what_is_still_so_afterwards_is() -> None:
    story = Story()
    assert story.look(a_finding(), quiet=True) is None
    assert story.look(a_finding(), quiet=True) is None
    assert story.look(a_finding()) is RAISED


def test_what_began_and_ended_in_a_window_is_never_told() -> None:
    story = Story()
    story.look(a_finding(), quiet=True)
    story.look(None, quiet=True)
    assert story.incident is None


def test_what_ends_in_a_window_is_told_to_be_over_after_it() -> None:
    story = Story()
    story.look(a_finding())
    assert [story.look(None, quiet=True) for _ in range(5)] == [None] * 5
    assert story.look(None) is RECOVERED


def test_an_acknowledgement_that_is_due_in_a_window_is_asked_for_afterwards() -> None:
    story = Story()
    story.look(a_finding(), minutes=0)
    assert story.wait(31, quiet=True) is None
    assert story.wait(1) is ESCALATED


def test_each_alert_names_the_letters_that_came_since_the_one_before() -> None:
    story = Story()
    story.look(a_finding(1, "a", "b"))
    story.look(a_finding(2, "c"))
    story.look(a_finding(3, "d", "c"), minutes=13)
    story.look(a_finding(3))
    assert story.told == [(0, RAISED), (15, AGAIN)]
    assert story.ids == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(("count", "named"), [(99, 99), (100, 100), (101, 100)])
def test_an_alert_does_not_name_more_than_a_hundred_letters(count: int, named: int) -> None:
    story = Story()
    story.look(a_finding(1, *map(str, range(count))))
    assert len(story.ids[0]) == named


# --- whatever happens --------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """What happens in a minute."""

    what: str  # found, fine, unseen, acknowledged
    badness: float
    critical: bool
    news: bool
    quiet: bool
    minutes: int


EVENTS = st.builds(
    Event,
    st.sampled_from(["found", "found", "found", "fine", "unseen", "acknowledged"]),
    st.floats(0, 10),
    st.booleans(),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
    st.integers(1, 40),
)


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=40), st.integers(1, 3))
def test_whatever_happens_people_are_told_what_they_have_to_know_and_not_more(
    events: list[Event], confirm: int
) -> None:
    story = Story(confirm)
    last: tuple[datetime, Occasion] | None = None  # what was told of the incident that is open
    worst: bool | None = None  # whether people know of it as critical
    escalations, is_acknowledged = 0, False
    for event in events:
        before = story.now
        if event.what == "acknowledged":
            if story.incident is not None and story.incident.is_open:
                story.acknowledge()
                is_acknowledged = True
            continue
        if event.what == "unseen":
            occasion = story.wait(event.minutes, quiet=event.quiet) if story.incident else None
            before = story.now
        elif event.what == "fine":
            occasion = story.look(None, minutes=event.minutes, quiet=event.quiet)
        else:
            finding = a_finding(event.badness, critical=event.critical, news=event.news)
            occasion = story.look(finding, minutes=event.minutes, quiet=event.quiet)
            if worst is False and event.critical and not event.quiet:
                assert occasion is WORSE, "people think that it is only a warning"
        if occasion is None:
            continue
        assert not event.quiet
        if occasion is RAISED:
            assert last is None, "it was told twice"
            worst, escalations, is_acknowledged = event.critical, 0, False
        else:
            assert last is not None, "nobody knows of it"
        if occasion is WORSE:
            assert worst is False
            worst, escalations, is_acknowledged = True, 0, False
        if occasion is AGAIN:
            assert last is not None
            assert before - last[0] >= POLICY.cool_down
            assert not is_acknowledged
        if occasion is ESCALATED:
            escalations += 1
            assert escalations <= POLICY.escalations
            assert not is_acknowledged
        last = (before, occasion)
        if occasion is RECOVERED:
            assert event.what == "fine"
            last = worst = None


@given(st.lists(EVENTS, max_size=30))
def test_an_incident_that_was_written_down_is_read_as_it_was(events: list[Event]) -> None:
    story = Story()
    for event in events:
        story.look(a_finding(event.badness, "a", critical=event.critical) if event.what == "found" else None)
        written = msgspec.msgpack.encode(story.incident)
        assert msgspec.msgpack.decode(written, type=Incident | None) == story.incident
