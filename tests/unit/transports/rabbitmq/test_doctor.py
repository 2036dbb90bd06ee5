"""What the rules say where a real broker is not needed, or cannot be brought to it."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from redrive.transports.base import Source
from redrive.transports.finding import Diagnosis, Finding
from redrive.transports.rabbitmq import doctor, doctor_retry, doctor_way
from redrive.transports.rabbitmq.doctor import diagnose
from redrive.transports.rabbitmq.found import Found, FoundExchange, FoundQueue, Permissions
from redrive.transports.rabbitmq.topology import Binding, wanted

ROOT = Path(__file__).parents[4]
ORDERS = Source(name="orders")
WORK = {"x-queue-type": "quorum", "x-dead-letter-exchange": "orders.dlx", "x-delivery-limit": 20}
WRITTEN = sorted(
    {
        rule
        for module in (doctor, doctor_way, doctor_retry)
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


def letters(arguments: dict[str, Any] | None = None, **options: Any) -> FoundQueue:
    arguments = {"x-delivery-limit": -1} | (arguments or {})
    return FoundQueue(**({"name": "orders.dlq", "type": "quorum", "arguments": arguments} | options))


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
    page = (ROOT / "docs" / "how-to" / "provision-and-diagnose.md").read_text("utf-8")
    return page.partition("## Provision a Kafka cluster")[0]


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
    classic = FoundQueue(name="orders.dlq", arguments={})
    assert [rule for rule, _ in told(broker(ORDERS, queue, classic, version=version))] == finds


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
    rejects = Source(name="orders", dead_letter="native")
    assert told(ours, rejects) == [("exchange-unbound", "error")], "only the broker's way counts"


def test_the_default_exchange_needs_a_queue_of_that_name() -> None:
    to_default = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
    rejects = Source(name="orders", dead_letter="native")
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
        | {"dead": FoundQueue(name="dead", durable=False, arguments={}, messages=2, consumers=0)},
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
            Source(name="orders", dead_letter="native"),
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


# --- delivery limits, ladders and delayed retry, by version ---------------------------------------------------------

QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize(
    ("version", "arguments", "loss"),
    [
        ((3, 13), {}, None),
        ((3, 13), {"x-delivery-limit": 5}, "inspected or released more than 5 times is dropped"),
        ((4, 2), {}, "inspected or released more than 20 times is dropped"),
        ((4, 2), {"x-delivery-limit": -1}, None),
        (
            (4, 3),
            {},
            "has failed more than 20 times, including in its work queue, is dropped when it is first inspected",
        ),
        ((4, 3), {"x-delivery-limit": -1}, None),
        ((4, 9), {}, "has failed more than 20 times"),
        (None, {}, "inspected or released more than 20 times"),
    ],
)
def test_dead_letter_queue_with_a_delivery_limit_uses_letters_up(
    version: tuple[int, ...] | None, arguments: dict[str, Any], loss: str | None
) -> None:
    dlq = FoundQueue(name="orders.dlq", type="quorum", arguments=QUORUM | arguments)
    found = diagnose(broker(ORDERS, dlq, version=version), [ORDERS]).findings
    losses = [each.loss for each in found if each.rule == "dlq-uses-up"]
    assert (loss is None) == (losses == [])
    assert all(str(loss) in each for each in losses)


def ladder(*hops: str, ttl: bool = True, **arguments: Any) -> list[FoundQueue]:
    """A queue of another service whose dead letters go through these queues and come back to it."""
    names = ("jobs", *hops, "jobs")
    queues = []
    for name, following in itertools.pairwise(names):
        to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following}
        own = (
            {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
            if name == "jobs"
            else {}
        )
        waits = {"x-message-ttl": 1000} if ttl and name != "jobs" else {}
        queues.append(FoundQueue(name=name, type="quorum", arguments={**QUORUM, **to, **waits, **own}))
    return queues


@pytest.mark.parametrize(
    ("version", "queues", "finds"),
    [
        ((4, 3), ladder("jobs.wait"), ["error"]),
        ((4, 3), ladder("jobs.1m", "jobs.5m"), ["error"]),
        ((4, 3), ladder("jobs.wait", delivery_limit=-1), []),
        ((4, 3), ladder("jobs.wait", ttl=False), []),
        ((4, 2), ladder("jobs.wait"), ["warning"]),
        ((3, 13), ladder("jobs.wait"), []),
        ((3, 13), ladder("jobs.wait", delivery_limit=3), ["warning"]),
    ],
)
def test_retry_ladder_of_another_service_is_found_by_version(
    version: tuple[int, ...], queues: list[FoundQueue], finds: list[str]
) -> None:
    found = [
        each
        for each in diagnose(broker(ORDERS, *queues, version=version), [ORDERS]).findings
        if each.rule == "retry-ladder-drops"
    ]
    assert [each.severity for each in found] == finds
    assert all(each.subject == "queue jobs" for each in found)


def test_retry_ladder_through_exchanges_and_kept_routing_keys_is_found() -> None:
    jobs = FoundQueue(
        name="jobs", type="quorum", arguments={**QUORUM, "x-dead-letter-exchange": "jobs.retry"}
    )
    wait = FoundQueue(name="jobs.wait", arguments={"x-message-ttl": 5, "x-dead-letter-exchange": "jobs.in"})
    well = broker(version=(4, 3))
    found = broker(
        ORDERS,
        jobs,
        wait,
        version=(4, 3),
        exchanges={
            **well.exchanges,
            "jobs.retry": FoundExchange(name="jobs.retry", type="topic"),
            "jobs.in": FoundExchange(name="jobs.in", type="direct"),
        },
        bindings=(
            *(well.bindings or ()),
            Binding(exchange="jobs.retry", destination="jobs.wait", routing_key="#"),
            Binding(exchange="jobs.in", destination="jobs", routing_key="job.new"),
        ),
    )
    [finding] = [each for each in diagnose(found, [ORDERS]).findings if each.rule == "retry-ladder-drops"]
    assert "through 'jobs.wait'" in finding.text
    assert '"delivery-limit": -1' in finding.mend


@pytest.mark.parametrize(
    ("version", "queue", "finds"),
    [
        ((4, 3), {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 1000}, []),
        ((4, 3), {"x-delayed-retry-type": "disabled"}, []),
        ((4, 3), {"x-delayed-retry-type": "failed"}, ["delayed-retry-ignored"]),
        ((4, 3), {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1000}, ["delayed-retry-hides"]),
        ((4, 0), {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 1000}, ["delayed-retry-ignored"]),
    ],
)
def test_delayed_retry_is_checked(version: tuple[int, ...], queue: dict[str, Any], finds: list[str]) -> None:
    found = broker(ORDERS, work(arguments={**WORK, **queue}), version=version)
    assert [rule for rule, _ in told(found)] == finds


def test_delayed_retry_of_a_classic_queue_is_ignored_and_one_by_policy_is_seen() -> None:
    source = Source(name="orders", queue_type="classic")
    asks = {
        "x-dead-letter-exchange": "orders.dlx",
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": 1,
    }
    classic = FoundQueue(name="orders", arguments=asks)
    assert [rule for rule, _ in told(broker(source, classic, version=(4, 3)), source)] == [
        "delayed-retry-ignored"
    ]
    policy = letters(definition={"delayed-retry-type": "returned", "delayed-retry-min": 1000}, policy="p")
    [finding] = diagnose(broker(ORDERS, policy, version=(4, 3)), [ORDERS]).findings
    assert (finding.rule, finding.subject) == ("delayed-retry-hides", "queue orders.dlq")


@pytest.mark.parametrize(("version", "is_unknown"), [((4, 3, 9), False), ((4, 4), True), ((5, 0, 1), True)])
def test_version_that_is_newer_than_the_table_is_named_and_treated_like_the_newest(
    version: tuple[int, ...], is_unknown: bool
) -> None:
    diagnosis = diagnose(broker(version=version), [ORDERS])
    assert diagnosis.healthy
    assert [each.rule for each in diagnosis.findings] == (["version-unknown"] if is_unknown else [])
    assert all("redrive treats it like 4.3" in each.loss for each in diagnosis.findings)
