from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
import pytest

from redrive.watch.alerts.alarm import Alarm, Book
from redrive.watch.alerts.alert import Alert, Occasion, Severity
from redrive.watch.alerts.incidents import Incident, Policy
from redrive.watch.alerts.rules import RULES, AlertRule, Measured
from redrive.watch.alerts.windows import Window

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RAISED, WORSE, AGAIN, ESCALATED, RECOVERED = Occasion


def an_alarm(*windows: Window, rules: tuple[AlertRule, ...] = RULES) -> Alarm:
    numbers = count(1)
    return Alarm(
        rules,
        Policy(calm=MINUTE),
        windows,
        make_id=lambda _key: f"i-{next(numbers)}",
        link=lambda incident: f"http://127.0.0.1:8642/incidents/{incident.id}",
    )


def letters_of(source: str, value: float, *ids: str, news: bool = False) -> Measured:
    return Measured(
        measure="open_letters",
        subject=source,
        value=value,
        component="RabbitMQ",
        queue=f"{source}.dlq",
        error_type="TimeoutError",
        group="9730603f8999838d",
        is_news=news,
        next="Manual intervention required.",
        counts={"open": value},
        correlation_ids=ids,
    )


def depth_of(queue: str, value: float, component: str = "RabbitMQ") -> Measured:
    return Measured(measure="dlq_depth", subject=queue, value=value, component=component, queue=queue)


def broker(value: float, component: str = "RabbitMQ") -> Measured:
    return Measured(measure="broker_unreachable", subject=component, value=value, component=component)


def occasions(alerts: list[Alert]) -> list[tuple[str, str]]:
    return [(alert.rule, alert.occasion) for alert in alerts]


def test_an_alert_says_everything_that_a_person_needs_and_nothing_that_was_in_a_message() -> None:
    [alert] = an_alarm().looked(Book(), [letters_of("orders", 2, "c-1", "c-2")], NOON)
    assert alert == Alert(
        incident="i-1",
        occasion=RAISED,
        severity=Severity.CRITICAL,
        rule="dead-letter",
        text="1 or more messages found in Dead-Letter Queue orders.dlq. Manual intervention required.",
        component="RabbitMQ",
        queue="orders.dlq",
        error_type="TimeoutError",
        group="9730603f8999838d",
        counts={"open": 2},
        correlation_ids=("c-1", "c-2"),
        link="http://127.0.0.1:8642/incidents/i-1",
        since=NOON,
        time=NOON,
    )


def test_each_queue_has_incidents_of_its_own() -> None:
    alarm, book = an_alarm(), Book()
    alerts = alarm.looked(
        book, [letters_of("orders", 1), letters_of("mail", 1), depth_of("mail.dlq", 101)], NOON
    )
    assert [(alert.rule, alert.queue, alert.incident) for alert in alerts] == [
        ("dead-letter", "orders.dlq", "i-1"),
        ("dead-letter", "mail.dlq", "i-2"),
        ("dlq-depth", "mail.dlq", "i-3"),
    ]
    assert len(book.open()) == 3


def test_a_queue_that_is_fine_is_not_in_the_book() -> None:
    alarm, book = an_alarm(), Book()
    assert alarm.looked(book, [letters_of("orders", 0), depth_of("orders.dlq", 100)], NOON) == []
    assert book == Book()


def test_what_was_not_measured_stays_as_it_is() -> None:
    alarm, book = an_alarm(), Book()
    alarm.looked(book, [letters_of("orders", 1)], NOON)
    for minute in range(1, 20):
        assert alarm.looked(book, [letters_of("mail", 0)], NOON + minute * MINUTE) == []
    assert len(book.open()) == 1


def test_an_incident_that_is_over_has_the_id_of_its_beginning_and_is_remembered() -> None:
    alarm, book = an_alarm(), Book()
    [raised] = alarm.looked(book, [letters_of("orders", 1)], NOON)
    assert alarm.looked(book, [letters_of("orders", 0)], NOON + MINUTE) == []
    [recovered] = alarm.looked(book, [letters_of("orders", 0)], NOON + 2 * MINUTE)
    assert (recovered.occasion, recovered.incident, recovered.since) == (RECOVERED, raised.incident, NOON)
    assert recovered.is_over
    assert recovered.text == "1 or more messages found in Dead-Letter Queue orders.dlq."
    assert book.open() == []
    assert [incident.over_at for incident in book.over] == [NOON + 2 * MINUTE]


@pytest.mark.parametrize(("ended", "remembered"), [(199, 199), (200, 200), (201, 200)])
def test_only_the_latest_incidents_are_remembered(ended: int, remembered: int) -> None:
    alarm, book = an_alarm(), Book()
    for number in range(ended):
        for minute, value in enumerate((1, 0, 0)):
            alarm.looked(book, [letters_of(f"q{number}", value)], NOON + minute * MINUTE)
    assert len(book.over) == remembered
    assert book.over[-1].subject == f"q{ended - 1}"


@pytest.mark.parametrize(("sources", "told"), [(999, 999), (1000, 1000), (1001, 1000)])
def test_there_is_a_limit_to_how_many_incidents_there_are_at_a_time(sources: int, told: int) -> None:
    alarm, book = an_alarm(), Book()
    alerts = alarm.looked(book, [letters_of(f"q{number}", 1) for number in range(sources)], NOON)
    assert len(alerts) == len(book.current) == told


def test_whom_to_measure_so_that_an_incident_can_end_is_known() -> None:
    alarm, book = an_alarm(), Book()
    alarm.looked(book, [letters_of("orders", 1), depth_of("mail.dlq", 500)], NOON)
    assert alarm.subjects(book, "open_letters") == {"orders"}
    assert alarm.subjects(book, "dlq_depth") == {"mail.dlq"}
    assert alarm.subjects(book, "backlog") == set()


def test_incident_of_a_renamed_rule_ends() -> None:
    # Given an open incident that was stored by a version with another name for its rule
    book = Book()
    old = AlertRule(name="queue-size", measure="dlq_depth", warning=1, text="{subject} has {value}")
    an_alarm(rules=(old,)).looked(book, [depth_of("orders.dlq", 5)], NOON)
    alarm = Alarm(RULES)
    assert not alarm.would_alert(book, [depth_of("orders.dlq", 5)], NOON)
    # When this version evaluates its rules
    [ended] = alarm.looked(book, [depth_of("orders.dlq", 5)], NOON + MINUTE)
    # Then the receivers close it, and it is listed as over
    assert (ended.incident, ended.rule, ended.occasion) == ("i-1", "queue-size", RECOVERED)
    assert book.current == {}
    assert [incident.id for incident in book.over] == ["i-1"]


def test_suspicion_of_a_removed_rule_is_dropped() -> None:
    book = Book()
    an_alarm().looked(book, [broker(1)], NOON)
    assert [incident.rule for incident in book.current.values()] == ["broker-unreachable"]
    rules = tuple(rule for rule in RULES if rule.name != "broker-unreachable")
    assert an_alarm(rules=rules).looked(book, [], NOON + MINUTE) == []
    assert book == Book()


def test_incident_of_a_removed_rule_ends_after_the_maintenance() -> None:
    book = Book()
    an_alarm().looked(book, [depth_of("orders.dlq", 101)], NOON)
    rules = tuple(rule for rule in RULES if rule.name != "dlq-depth")
    alarm = an_alarm(Window(begins=NOON, lasts=timedelta(hours=1)), rules=rules)
    assert alarm.looked(book, [], NOON + MINUTE) == []
    assert occasions(alarm.looked(book, [], NOON + timedelta(hours=2))) == [("dlq-depth", RECOVERED)]


def test_time_alone_escalates() -> None:
    alarm, book = an_alarm(), Book()
    alarm.looked(book, [letters_of("orders", 1)], NOON)
    assert occasions(alarm.looked(book, [], NOON + 30 * MINUTE)) == [("dead-letter", ESCALATED)]


def test_what_somebody_acknowledged_is_not_escalated() -> None:
    alarm, book = an_alarm(), Book()
    alarm.looked(book, [letters_of("orders", 1)], NOON)
    incident = book.acknowledge("i-1", "somebody", NOON + MINUTE)
    assert isinstance(incident, Incident)
    assert (incident.acknowledged_by, incident.acknowledged_at) == ("somebody", NOON + MINUTE)
    assert alarm.looked(book, [], NOON + 300 * MINUTE) == []


def test_only_what_is_open_can_be_acknowledged() -> None:
    alarm, book = an_alarm(), Book()
    assert book.acknowledge("i-1", "somebody", NOON) is None
    alarm.looked(book, [broker(1)], NOON)  # only suspected
    assert len(book.current) == 1
    assert book.acknowledge("i-1", "somebody", NOON) is None


def test_what_is_over_is_told_to_whoever_was_told_of_the_worst_of_it() -> None:
    alarm, book = an_alarm(), Book()
    for minute, depth in enumerate((2000, 500, 0)):
        alarm.looked(book, [depth_of("orders.dlq", depth)], NOON + minute * MINUTE)
    alarm.looked(book, [], NOON + 40 * MINUTE)
    [recovered] = alarm.looked(book, [depth_of("orders.dlq", 0)], NOON + 41 * MINUTE)
    assert (recovered.occasion, recovered.severity) == (RECOVERED, Severity.CRITICAL)


# --- causes and consequences ---------------------------------------------------------------------------------------


def test_a_broker_that_is_away_hides_what_follows_from_it() -> None:
    alarm, book = an_alarm(), Book()
    away = [depth_of("orders.dlq", 2000), broker(1)]
    assert alarm.looked(book, away, NOON) == [], "the cause is only suspected, and its consequences wait"
    assert occasions(alarm.looked(book, away, NOON + MINUTE)) == [("broker-unreachable", RAISED)]
    assert alarm.looked(book, away, NOON + 2 * MINUTE) == []


def test_what_is_still_so_when_the_cause_is_gone_is_told() -> None:
    alarm, book = an_alarm(), Book()
    for minute in range(2):
        alarm.looked(book, [broker(1), depth_of("orders.dlq", 2000)], NOON + minute * MINUTE)
    alerts = alarm.looked(book, [broker(0), depth_of("orders.dlq", 2000)], NOON + 2 * MINUTE)
    assert occasions(alerts) == [("dlq-depth", RAISED)]
    alerts = alarm.looked(book, [broker(0), depth_of("orders.dlq", 2000)], NOON + 3 * MINUTE)
    assert occasions(alerts) == [("broker-unreachable", RECOVERED)]


def test_a_suspicion_that_was_wrong_hides_nothing_any_more() -> None:
    alarm, book = an_alarm(), Book()
    alarm.looked(book, [broker(1), depth_of("orders.dlq", 2000)], NOON)
    alerts = alarm.looked(book, [broker(0), depth_of("orders.dlq", 2000)], NOON + MINUTE)
    assert occasions(alerts) == [("dlq-depth", RAISED)]


def test_a_broker_that_is_away_hides_nothing_of_another_one() -> None:
    alarm, book = an_alarm(), Book()
    alerts = alarm.looked(book, [broker(1), depth_of("topic.dlq", 2000, "Kafka")], NOON)
    assert occasions(alerts) == [("dlq-depth", RAISED)]


def test_unreachable_broker_hides_nothing_of_another_one_of_its_kind() -> None:
    alarm, book = an_alarm(), Book()
    away = msgspec.structs.replace(broker(1), broker="shop")
    depth = msgspec.structs.replace(depth_of("orders.dlq", 2000), broker="office")
    assert occasions(alarm.looked(book, [away, depth], NOON)) == [("dlq-depth", RAISED)]


def test_sources_of_two_brokers_with_one_name_have_separate_incidents() -> None:
    alarm, book = an_alarm(), Book()
    shop, office = (
        msgspec.structs.replace(letters_of("orders", 1), broker=name) for name in ("shop", "office")
    )
    assert [alert.broker for alert in alarm.looked(book, [shop], NOON)] == ["shop"]
    fine = msgspec.structs.replace(office, value=0)
    for minute in range(1, 10):  # the other server finds nothing wrong at its broker
        assert alarm.looked(book, [fine], NOON + minute * MINUTE) == []
    assert [incident.broker for incident in book.open()] == ["shop"]
    assert alarm.subjects(book, "open_letters", "shop") == {"orders"}
    assert alarm.subjects(book, "open_letters", "office") == set()


def test_dead_letters_that_are_in_the_store_are_not_hidden() -> None:
    alarm, book = an_alarm(), Book()
    alerts = alarm.looked(book, [broker(1), letters_of("orders", 1)], NOON)
    assert occasions(alerts) == [("dead-letter", RAISED)]


# --- several servers -------------------------------------------------------------------------------------------------


def two_servers() -> list[Alarm]:
    return [Alarm(RULES, Policy(calm=MINUTE), server=name, silence=MINUTE) for name in ("one", "two")]


def service(name: str, value: float) -> Measured:
    return Measured(measure="service_failed", subject=name, value=value)


def test_server_that_reaches_the_broker_does_not_end_the_finding_of_one_that_does_not() -> None:
    (one, two), book = two_servers(), Book()
    alerts = []
    for step in range(40):
        now = NOON + step * MINUTE / 4
        alerts += one.looked(book, [broker(1)], now)
        alerts += two.looked(book, [broker(0)], now + MINUTE / 8)
    assert occasions(alerts) == [("broker-unreachable", RAISED)]
    # When the first one reaches it, too
    for step in range(40, 48):
        now = NOON + step * MINUTE / 4
        alerts += one.looked(book, [broker(0)], now)
        alerts += two.looked(book, [broker(0)], now + MINUTE / 8)
    assert occasions(alerts) == [("broker-unreachable", RAISED), ("broker-unreachable", RECOVERED)]


def test_finding_of_a_server_that_is_gone_is_ended_by_another_one() -> None:
    (one, two), book = two_servers(), Book()
    for step in range(2):
        one.looked(book, [broker(1)], NOON + step * MINUTE / 4)
    alerts = []
    for step in range(2, 20):
        alerts += two.looked(book, [broker(0)], NOON + step * MINUTE / 4)
    assert occasions(alerts) == [("broker-unreachable", RECOVERED)]


def test_finding_goes_on_when_another_server_finds_it_after_the_first_one() -> None:
    (one, two), book = two_servers(), Book()
    for step in range(4):
        one.looked(book, [broker(1)], NOON + step * MINUTE / 4)
    for step in range(4, 40):
        now = NOON + step * MINUTE / 4
        assert one.looked(book, [broker(0)], now) == []
        assert two.looked(book, [broker(1)], now + MINUTE / 8) == []
    assert [incident.found_by for incident in book.open()] == ["two"]


def test_services_of_two_servers_have_separate_incidents() -> None:
    (one, two), book = two_servers(), Book()
    alerts = []
    for step in range(2):
        now = NOON + step * MINUTE / 4
        alerts += one.looked(book, [service("worker 1", 1)], now)
        alerts += two.looked(book, [service("worker 1", 1)], now)
    assert [(alert.occasion, alert.server) for alert in alerts] == [(RAISED, "one"), (RAISED, "two")]
    assert len({alert.incident for alert in alerts}) == 2
    # When the service of the first server works again, and the other one goes on failing
    alerts = []
    for step in range(2, 10):
        now = NOON + step * MINUTE / 4
        alerts += one.looked(book, [service("worker 1", 0)], now)
        alerts += two.looked(book, [service("worker 1", 1)], now)
    assert [(alert.occasion, alert.server) for alert in alerts] == [(RECOVERED, "one")]
    assert [incident.server for incident in book.open()] == ["two"]


def test_service_of_another_server_is_not_a_subject_to_measure() -> None:
    (one, two), book = two_servers(), Book()
    one.looked(book, [service("worker 1", 1), broker(1)], NOON)
    assert one.subjects(book, "service_failed") == {"worker 1"}
    assert two.subjects(book, "service_failed") == set()
    assert two.subjects(book, "broker_unreachable") == {"RabbitMQ"}


def test_failed_service_of_a_server_that_is_gone_is_ended_by_another_one() -> None:
    (one, two), book = two_servers(), Book()
    for step in range(2):
        one.looked(book, [service("worker 1", 1)], NOON + step * MINUTE / 4)
    alerts = []
    for step in range(2, 20):
        alerts += two.looked(book, [service("worker 1", 0)], NOON + step * MINUTE / 4)
    assert [(alert.occasion, alert.server) for alert in alerts] == [(RECOVERED, "one")]
    assert book.current == {}


def test_failed_service_that_was_stored_without_its_server_is_ended_and_raised_again_by_its_server() -> None:
    one, book = two_servers()[0], Book()
    for step in range(2):
        one.looked(book, [service("worker 1", 1)], NOON + step * MINUTE / 4)
    [(_, stored)] = book.current.items()
    book.current = {"service-failed::worker 1": msgspec.structs.replace(stored, server=None, id="old")}
    alerts = []
    for step in range(2, 20):
        alerts += one.looked(book, [service("worker 1", 1)], NOON + step * MINUTE / 4)
    assert [(alert.occasion, alert.server) for alert in alerts] == [(RAISED, "one"), (RECOVERED, None)]


def test_incident_that_occurs_again_has_the_same_id() -> None:
    """A server that cannot read the stored incidents must raise the same incident, and not a second one."""
    ids = {alarm.looked(Book(), [letters_of("orders", 1)], NOON)[0].incident for alarm in two_servers()}
    others = {
        alert.incident
        for alert in two_servers()[0].looked(Book(), [letters_of("mail", 1), depth_of("orders", 5000)], NOON)
    }
    assert len(ids) == 1
    assert len(ids | others) == 3


def test_finding_is_not_stored_again_with_every_look() -> None:
    (one, _), book = two_servers(), Book()
    stored = set()
    for step in range(30):
        one.looked(book, [broker(1)], NOON + timedelta(seconds=step))
        stored.add(msgspec.msgpack.encode(book))
    assert len(stored) <= 4


def test_value_that_all_servers_measure_alike_is_ended_by_any_of_them() -> None:
    (one, two), book = two_servers(), Book()
    one.looked(book, [letters_of("orders", 1)], NOON)
    two.looked(book, [letters_of("orders", 0)], NOON + timedelta(seconds=1))
    alerts = two.looked(book, [letters_of("orders", 0)], NOON + 2 * MINUTE)
    assert occasions(alerts) == [("dead-letter", RECOVERED)]


# --- urgency -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "measured", "urgent"),
    [
        ([], letters_of("orders", 1, news=True), True),
        ([], letters_of("orders", 0), False),
        ([letters_of("orders", 1)], letters_of("orders", 2, news=True), False),  # within the cool-down
        ([letters_of("orders", 1)], letters_of("mail", 1), True),
        ([depth_of("orders.dlq", 101)], depth_of("orders.dlq", 1001), True),  # worse
        ([], broker(1), False),  # only suspected
        ([broker(1)], broker(1), True),
        ([broker(1)], depth_of("orders.dlq", 101), False),  # hidden
    ],
)
def test_measurement_is_urgent_if_it_gives_an_alert(
    before: list[Measured], measured: Measured, urgent: bool
) -> None:
    alarm, book = an_alarm(), Book()
    alarm.looked(book, before, NOON)
    stored = msgspec.msgpack.encode(book)
    assert alarm.would_alert(book, [measured], NOON + MINUTE) is urgent
    assert msgspec.msgpack.encode(book) == stored
    assert bool(alarm.looked(book, [measured], NOON + MINUTE)) is urgent


def test_nothing_is_urgent_in_a_window() -> None:
    alarm = an_alarm(Window(begins=NOON, lasts=MINUTE))
    assert not alarm.would_alert(Book(), [letters_of("orders", 1)], NOON)


# --- windows -------------------------------------------------------------------------------------------------------


def test_in_a_window_only_what_is_outside_of_it_is_told() -> None:
    window = Window(begins=NOON, lasts=10 * MINUTE, queues="orders.*")
    alarm, book = an_alarm(window), Book()
    both = [letters_of("orders", 1), letters_of("mail", 1)]
    assert [alert.queue for alert in alarm.looked(book, both, NOON)] == ["mail.dlq"]
    assert [alert.queue for alert in alarm.looked(book, both, NOON + 10 * MINUTE)] == ["orders.dlq"]


# --- the book --------------------------------------------------------------------------------------------------------


def test_a_book_that_was_written_down_goes_on_where_it_was() -> None:
    alarm, book = an_alarm(), Book()
    for minute, value in enumerate((1, 0, 0, 2)):
        alarm.looked(book, [letters_of("orders", value, "c-1"), broker(1)], NOON + minute * MINUTE)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=Book)
    assert again == book
    later = [letters_of("orders", 2), broker(1)]
    assert alarm.looked(again, later, NOON + 90 * MINUTE) == alarm.looked(book, later, NOON + 90 * MINUTE)
