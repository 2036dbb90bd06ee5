"""What the rules say where a real broker is not needed, or cannot be brought to it."""

import re
from pathlib import Path
from typing import Any

import pytest

from redrive.transports.base import Source
from redrive.transports.finding import Diagnosis, Finding
from redrive.transports.rabbitmq import doctor, doctor_way
from redrive.transports.rabbitmq.doctor import diagnose
from redrive.transports.rabbitmq.found import Found, FoundExchange, FoundQueue, Permissions
from redrive.transports.rabbitmq.topology import wanted

ROOT = Path(__file__).parents[4]
ORDERS = Source(name="orders")
WORK = {"x-queue-type": "quorum", "x-dead-letter-exchange": "orders.dlx", "x-delivery-limit": 20}
WRITTEN = sorted(
    {
        rule
        for module in (doctor, doctor_way)
        for rule in re.findall(r'rule="([a-z-]+)"', Path(str(module.__file__)).read_text("utf-8"))
    }
)


def broker(source: Source = ORDERS, *queues: FoundQueue, **seen: Any) -> Found:
    """A broker on which all is well, but for these queues and for what was seen otherwise."""
    topology = wanted([source])
    there = {
        queue.name: FoundQueue(name=queue.name, type=queue.type, arguments=queue.arguments)
        for queue in topology.queues
    }
    return Found(
        **{
            "version": (4, 1),
            "queues": there | {queue.name: queue for queue in queues},
            "exchanges": {each.name: FoundExchange(name=each.name, type=each.type) for each in topology.exchanges},
            "bindings": topology.bindings,
        }
        | seen
    )  # fmt: skip


def work(**options: Any) -> FoundQueue:
    return FoundQueue(**({"name": "orders", "type": "quorum", "arguments": WORK} | options))


def letters(**options: Any) -> FoundQueue:
    return FoundQueue(**({"name": "orders.dlq", "type": "quorum", "arguments": {}} | options))


def told(found: Found, *sources: Source) -> list[tuple[str, str]]:
    return [(each.rule, each.severity) for each in diagnose(found, sources or (ORDERS,)).findings]


def test_where_all_is_well_nothing_is_said() -> None:
    assert diagnose(broker(), [ORDERS]) == Diagnosis(findings=())
    assert diagnose(broker(), [ORDERS]).healthy


@pytest.mark.parametrize("rule", WRITTEN)
def test_every_rule_is_explained_to_readers_of_the_code_and_of_the_documentation(rule: str) -> None:
    assert re.search(rf"^{rule} ", doctor.__doc__ or "", re.MULTILINE)
    assert f"| `{rule}` |" in documented()


def test_no_rule_is_explained_that_there_is_not() -> None:
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", documented(), re.MULTILINE)) == WRITTEN


def documented() -> str:
    """What the page says of RabbitMQ."""
    page = (ROOT / "docs" / "how-to" / "provision-and-check.md").read_text("utf-8")
    return page.partition("## Provision a Kafka")[0]


@pytest.mark.parametrize(
    ("queue", "finds"),
    [
        (work(exclusive=True), [("queue-fleeting", "warning")]),
        (letters(exclusive=True), [("dlq-fleeting", "error")]),
        (letters(arguments={"x-max-length": 5, "x-overflow": "reject-publish-dlx"}), [("dlq-limited", "warning")]),
        (work(arguments={**WORK, "x-delivery-limit": -1}), [("delivery-limit-none", "warning")]),
        (work(arguments={**WORK, "x-delivery-limit": 2}), [("delivery-limit-low", "warning")]),
        (
            work(arguments={"x-delivery-limit": 2}),
            [("delivery-limit-low", "error"), ("no-dead-letter-exchange", "warning")],
        ),
        (letters(messages=1, consumers=0), [("dlq-waiting", "info")]),
        (letters(messages=1, consumers=1), []),
        (letters(messages=None, consumers=None), []),
        (letters(arguments={"x-message-ttl": 10**18}), [("dlq-expires", "error")]),
        (letters(arguments={"x-dead-letter-exchange": "orders.dlx"}), []),
    ],
)  # fmt: skip
def test_a_queue_is_judged(queue: FoundQueue, finds: list[tuple[str, str]]) -> None:
    assert sorted(told(broker(ORDERS, queue))) == sorted(finds)


@pytest.mark.parametrize(
    ("version", "finds"),
    [((3, 13), ["delivery-limit-none"]), ((4, 0), []), (None, [])],
)
def test_a_quorum_queue_without_a_limit_has_one_from_rabbitmq_4_on(
    version: tuple[int, ...] | None, finds: list[str]
) -> None:
    queue = work(arguments={"x-queue-type": "quorum", "x-dead-letter-exchange": "orders.dlx"})
    assert [rule for rule, _ in told(broker(ORDERS, queue, version=version))] == finds


def test_the_limit_of_rabbitmq_4_itself_may_be_too_low() -> None:
    patient = Source(name="orders", max_deliveries=50)
    queue = work(arguments={"x-queue-type": "quorum", "x-dead-letter-exchange": "orders.dlx"})
    assert told(broker(patient, queue), patient) == [("delivery-limit-low", "warning")]


def test_a_queue_that_only_exists_is_not_judged() -> None:
    found = broker(ORDERS, FoundQueue(name="orders"), FoundQueue(name="orders.dlq"), bindings=None)
    assert told(found) == []


def test_the_brokers_way_and_ours_are_both_looked_at() -> None:
    queue = work(arguments={**WORK, "x-dead-letter-exchange": "gone"})
    [finding] = diagnose(broker(ORDERS, queue), [ORDERS]).findings
    assert (finding.rule, finding.subject) == ("exchange-missing", "exchange gone")
    assert 'dead_letter_exchange = "gone"' in finding.mend
    ours = broker(ORDERS, queue, exchanges={"gone": FoundExchange(name="gone", type="fanout")}, bindings=())
    assert told(ours) == [("exchange-unbound", "error"), ("exchange-missing", "error")]
    rejects = Source(name="orders", dead_letter="reject")
    assert told(ours, rejects) == [("exchange-unbound", "error")], "only the broker's way counts"


def test_the_default_exchange_needs_a_queue_of_that_name() -> None:
    to_default = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
    rejects = Source(name="orders", dead_letter="reject")
    assert told(broker(rejects, work(arguments=WORK | to_default)), rejects) == []
    nowhere = work(arguments=WORK | to_default | {"x-dead-letter-routing-key": "nobody"})
    assert told(broker(rejects, nowhere), rejects) == [("key-misses", "error")]


def test_the_worst_comes_first_and_nothing_twice() -> None:
    shared = {"dead_letter_queue": "dead", "dead_letter_exchange": "dlx"}
    sources = [Source(name=name, **shared) for name in ("a", "b")]  # type: ignore[arg-type]
    topology = wanted(sources)
    found = Found(
        queues={
            queue.name: FoundQueue(name=queue.name, type=queue.type, arguments=queue.arguments)
            for queue in topology.queues
            if queue.name != "a.delay.1s"
        }
        | {"dead": FoundQueue(name="dead", type="quorum", durable=False, arguments={}, messages=2, consumers=0)},
        exchanges={"dlx": FoundExchange(name="dlx", type="fanout")},
        bindings=topology.bindings,
    )  # fmt: skip
    assert told(found, *sources) == [
        ("dlq-fleeting", "error"),
        ("delay-missing", "warning"),
        ("dlq-waiting", "info"),
    ]


@pytest.mark.parametrize(
    ("source", "finds"),
    [
        (ORDERS, {"read 'orders'", "read 'orders.dlq'", "write the default exchange", "write 'orders.dlx'"}),
        (
            Source(name="orders", dead_letter="reject"),
            {"read 'orders'", "read 'orders.dlq'", "write the default exchange"},
        ),
    ],
)
def test_only_permissions_that_are_needed_are_asked_for(source: Source, finds: set[str]) -> None:
    diagnosis = diagnose(broker(source, permissions=Permissions()), [source])
    assert {finding.rule for finding in diagnosis.findings} == {"permission"}
    texts = [re.sub(r"the (work|dead-letter) \w+ '", "'", finding.text) for finding in diagnosis.findings]
    assert {
        text.replace("the user 'guest' has no ", "").replace(" permission on", "") for text in texts
    } == finds


def test_a_permission_that_only_the_broker_understands_is_no_fault() -> None:
    odd = Permissions(configure="(*SKIP)", write="(*SKIP)", read="(*SKIP)")
    assert told(broker(ORDERS, permissions=odd)) == []


def test_alarms_are_told_once_for_all_sources() -> None:
    found = broker(ORDERS, alarms=("rabbit@one is above its memory limit of 5 bytes",))
    [finding] = diagnose(found, [ORDERS]).findings
    assert (finding.rule, finding.subject) == ("alarm", "node rabbit@one")


def test_information_alone_is_healthy() -> None:
    def finding(severity: Any) -> Finding:
        return Finding(rule="r", severity=severity, subject="s", text="t", loss="l", mend="m")

    assert Diagnosis(findings=(finding("info"),)).healthy
    assert not Diagnosis(findings=(finding("info"), finding("warning"))).healthy
