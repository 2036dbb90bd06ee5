"""Every fault is found on a real broker that has it, and is gone once it is mended in the way that was told."""

import asyncio
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from redrive.transports.base import Source
from redrive.transports.finding import PROVISION, Finding
from redrive.transports.rabbitmq.provision import linked, look
from redrive.transports.rabbitmq.topology import wanted
from redrive.transports.rabbitmq.url import parse_url
from tests.acceptance.broker_world import Run, World, command_line
from tests.interop.brokers import broker
from tests.services import RabbitMQ, RabbitMQServer

__all__ = ["broker"]

ORDERS = Source(name="orders")
REJECTS = Source(name="orders", dead_letter="native")
CLASSIC = Source(name="orders", queue_type="classic")
TO_DLX: dict[str, Any] = {"x-dead-letter-exchange": "orders.dlx"}
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


@pytest.fixture
def world(broker: RabbitMQ) -> World:
    return World(broker)


@pytest.fixture
def redrive(tmp_path: Path) -> Run:
    return command_line(tmp_path)


# --- mending, in the words of the finding -------------------------------------------------------------------


async def mend(world: World, finding: Finding, source: Source) -> None:
    """Does what the finding says, as an operator would."""
    if finding.mend == PROVISION:
        await world.apply(source)
    elif "cannot be changed in place" in finding.mend:
        [name] = re.findall(r"delete '([^']+)'", finding.mend)
        world.delete_queue(name)
        await world.apply(source)
    elif found := re.search(r"change the pattern of the policy '([^']+)'", finding.mend):
        world.api("DELETE", f"/policies/{{v}}/{found[1]}")
    else:
        commands = finding.mend[finding.mend.index("curl ") :].split("; ")
        for command in commands:
            _run_curl(world, command)


def _run_curl(world: World, command: str) -> None:
    words = shlex.split(command)
    assert words[0] == "curl"
    method = words[words.index("-X") + 1]
    [url] = [word for word in words if word.startswith("http")]
    place = urlsplit(world.at.management_url)
    assert urlsplit(url).netloc == f"{place.hostname}:{place.port}", "the command holds no credentials"
    world.api(method, urlsplit(url).path.removeprefix("/api"), json.loads(words[words.index("-d") + 1]))


class Case(NamedTuple):
    """A fault: how it comes about in a vhost where all was well, and what is found."""

    name: str
    breaks: Callable[[World], None]
    finds: set[tuple[str, str]]
    source: Source = ORDERS


def remade(name: str, arguments: dict[str, Any], **options: Any) -> Callable[[World], None]:
    """The queue is there, but other than it should be."""

    def act(world: World) -> None:
        world.delete_queue(name)
        world.queue(name, arguments, **options)

    return act


def in_turn(*acts: Callable[[World], None]) -> Callable[[World], None]:
    def act(world: World) -> None:
        for each in acts:
            each(world)

    return act


def remade_dlq(arguments: dict[str, Any], **options: Any) -> Callable[[World], None]:
    """The dead-letter queue is there, without a delivery limit but otherwise as these say."""

    def act(world: World) -> None:
        has_limit = "x-queue-type" in arguments and world.at.version >= (4,)
        remade("orders.dlq", ({"x-delivery-limit": -1} if has_limit else {}) | arguments, **options)(world)
        world.bind("orders.dlx", "orders.dlq", "#")

    return act


def remade_exchange(kind: str, *bindings: tuple[str, str]) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.delete_exchange("orders.dlx")
        world.exchange("orders.dlx", kind)
        for queue, key in bindings:
            world.bind("orders.dlx", queue, key)

    return act


LIMIT: dict[str, Any] = {"x-delivery-limit": 20}
CASES = [
    Case(
        "no work queue",
        lambda world: world.delete_queue("orders"),
        {("queue-missing", "error")},
    ),
    Case("transient", remade("orders", TO_DLX, durable=False), {("queue-fleeting", "warning")}, CLASSIC),
    Case("auto-delete", remade("orders", TO_DLX, auto_delete=True), {("queue-fleeting", "warning")}, CLASSIC),
    Case(
        "expires",
        remade("orders", {**TO_DLX, "x-expires": 600_000}),
        {("queue-fleeting", "warning")},
        CLASSIC,
    ),
    Case(
        "expires by policy",
        lambda world: world.policy("tidy", "orders", expires=600_000),
        {("queue-fleeting", "warning")},
        CLASSIC,
    ),
    Case("no exchange", remade("orders", QUORUM | LIMIT), {("no-dead-letter-exchange", "warning")}),
    Case(
        "rejected to nowhere",
        remade("orders", QUORUM | LIMIT),
        {("no-dead-letter-exchange", "error")},
        REJECTS,
    ),
    Case(
        "overflow to nowhere",
        remade("orders", {"x-max-length": 10}),
        {("no-dead-letter-exchange", "warning"), ("drops-overflow", "error")},
        CLASSIC,
    ),
    Case(
        "expiry to nowhere",
        remade("orders", {"x-message-ttl": 60_000}),
        {("no-dead-letter-exchange", "warning"), ("drops-expired", "error")},
        CLASSIC,
    ),
    Case(
        "no such exchange", lambda world: world.delete_exchange("orders.dlx"), {("exchange-missing", "error")}
    ),
    Case(
        "rejected to an exchange that is not there",
        lambda world: world.delete_exchange("orders.dlx"),
        {("exchange-missing", "error")},
        REJECTS,
    ),
    Case(
        "unbound",
        lambda world: world.unbind("orders.dlx", "orders.dlq", "#"),
        {("exchange-unbound", "error")},
    ),
    Case(
        "a key that leads nowhere",
        remade_exchange("direct", ("orders.dlq", "failed")),
        {("key-misses", "error")},
    ),
    Case(
        "one of two keys leads nowhere",
        in_turn(
            remade_exchange("direct", ("orders.dlq", "orders")),
            lambda world: world.bind("amq.topic", "orders", "order.placed"),
        ),
        {("key-misses", "warning")},
    ),
    Case(
        "a pattern that is too narrow",
        in_turn(
            remade_exchange("topic", ("orders.dlq", "orders"), ("orders.dlq", "order.*")),
            lambda world: world.bind("amq.topic", "orders", "order.#"),
        ),
        {("key-misses", "warning")},
    ),
    Case(
        "a fixed key that leads nowhere",
        remade_exchange("direct", ("orders.dlq", "other")),
        {("key-misses", "error")},
        Source(name="orders", dead_letter_routing_key="failed"),
    ),
    Case(
        "another queue gets them",
        in_turn(
            lambda world: world.queue("elsewhere"),
            lambda world: world.unbind("orders.dlx", "orders.dlq", "#"),
            lambda world: world.bind("orders.dlx", "elsewhere"),
        ),
        {("dead-letters-elsewhere", "warning")},
    ),
    Case(
        "no dead-letter queue",
        lambda world: world.delete_queue("orders.dlq"),
        {("dlq-missing", "error"), ("exchange-unbound", "error")},
    ),
    Case("transient letters", remade_dlq({}, durable=False), {("dlq-fleeting", "error")}, CLASSIC),
    Case("auto-delete letters", remade_dlq({}, auto_delete=True), {("dlq-fleeting", "error")}, CLASSIC),
    Case("letters expire", remade_dlq({"x-message-ttl": 86_400_000}), {("dlq-expires", "error")}, CLASSIC),
    Case("the queue expires", remade_dlq({"x-expires": 86_400_000}), {("dlq-expires", "error")}, CLASSIC),
    Case(
        "letters expire by policy",
        lambda world: world.policy("ttl", ".*dlq", message_ttl=1000),
        {("dlq-expires", "error")},
        CLASSIC,
    ),
    Case(
        "letters expire by a policy that does more",
        lambda world: world.policy("ttl", "orders.dlq", message_ttl=1000, queue_mode="lazy"),
        {("dlq-expires", "error")},
        CLASSIC,
    ),
    Case("few letters", remade_dlq(QUORUM | {"x-max-length": 9}), {("dlq-limited", "error")}),
    Case("few bytes", remade_dlq(QUORUM | {"x-max-length-bytes": 9}), {("dlq-limited", "error")}),
    Case(
        "no more letters",
        remade_dlq(QUORUM | {"x-max-length": 9, "x-overflow": "reject-publish"}),
        {("dlq-limited", "warning")},
    ),
    Case(
        "round and round",
        remade_dlq(QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}),
        {("dlq-cycle", "error")},
    ),
    Case(
        "the broker gives up first",
        remade("orders", QUORUM | TO_DLX | {"x-delivery-limit": 2}),
        {("delivery-limit-low", "warning")},
    ),
    Case(
        "the broker gives up first, by policy",
        in_turn(
            remade("orders", QUORUM | TO_DLX),
            lambda world: world.policy("limit", "orders", delivery_limit=1),
        ),
        {("delivery-limit-low", "warning")},
    ),
    Case(
        "no delays",
        in_turn(
            *(lambda world, step=step: world.delete_queue(f"orders.delay.{step}") for step in ("1s", "6h"))
        ),
        {("delay-missing", "warning")},
    ),
    Case(
        "a delay that loses", remade("orders.delay.1m", {"x-message-ttl": 60_000}), {("delay-wrong", "error")}
    ),
    Case(
        "a delay that is too short",
        remade(
            "orders.delay.1m",
            {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"},
        ),
        {("delay-wrong", "warning")},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_fault_is_found_and_gone_once_it_is_mended_as_told(world: World, case: Case) -> None:
    await world.provisioned(case.source)
    assert (await world.diagnosis(case.source)).findings == (), "all is well before"

    case.breaks(world)
    diagnosis = await world.diagnosis(case.source)
    assert {(finding.rule, finding.severity) for finding in diagnosis.findings} == case.finds
    assert not diagnosis.healthy
    for finding in diagnosis.findings:
        assert all((finding.subject, finding.text, finding.loss, finding.mend))

    for finding in diagnosis.findings:
        await mend(world, finding, case.source)
    assert (await world.diagnosis(case.source)).findings == ()


async def test_an_empty_vhost_lacks_everything(world: World) -> None:
    assert {finding.rule for finding in (await world.diagnosis(ORDERS)).findings} == {
        "queue-missing",
        "exchange-missing",
        "dlq-missing",
        "delay-missing",
    }


async def test_a_quorum_queue_without_a_limit_is_a_fault_only_before_rabbitmq_4(world: World) -> None:
    await world.provisioned(ORDERS)
    remade("orders", QUORUM | TO_DLX)(world)
    found = await world.found(ORDERS)
    assert found.version is not None
    findings = (await world.diagnosis(ORDERS)).findings
    if found.version >= (4,):
        assert findings == ()
        return
    assert {(finding.rule, finding.severity) for finding in findings} == {("delivery-limit-none", "warning")}
    await mend(world, findings[0], ORDERS)
    assert (await world.diagnosis(ORDERS)).findings == ()


async def test_letters_that_nobody_takes_are_told_and_are_no_fault(world: World) -> None:
    await world.provisioned(ORDERS)
    world.publish("orders.dlq", 3)
    diagnosis = await world.diagnosis(ORDERS)
    [finding] = diagnosis.findings
    assert (finding.rule, finding.severity) == ("dlq-waiting", "info")
    assert "3 dead letters are waiting in 'orders.dlq'" in finding.text
    assert diagnosis.healthy
    with world.channel() as channel:
        channel.basic_consume("orders.dlq", lambda *_: None)
        assert (await world.diagnosis(ORDERS)).findings == (), "somebody consumes them"


async def test_an_alternate_exchange_catches_what_a_key_misses(world: World) -> None:
    await world.provisioned(ORDERS)
    world.delete_exchange("orders.dlx")
    world.exchange("catch-all")
    world.bind("catch-all", "orders.dlq")
    world.exchange("orders.dlx", "direct", {"alternate-exchange": "catch-all"})
    assert (await world.diagnosis(ORDERS)).findings == ()


async def test_a_policy_that_keeps_what_another_one_sets_is_told(world: World) -> None:
    await world.provisioned(ORDERS)
    remade("orders", QUORUM | LIMIT)(world)
    world.api(
        "PUT",
        "/policies/{v}/everything",
        {"pattern": ".*", "apply-to": "queues", "priority": 7, "definition": {"max-length": 50_000}},
    )
    source = Source(name="orders", dead_letter_queue="other.dlq")  # not limited by the fault of this test
    findings = [
        each for each in (await world.diagnosis(source)).findings if each.rule == "no-dead-letter-exchange"
    ]
    await mend(world, findings[0], source)
    queue = (await world.found(source)).queues["orders"]
    assert queue.definition == {"max-length": 50_000, "dead-letter-exchange": "orders.dlx"}


# --- permissions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "missing"),
    [
        ({"write": ".*", "read": ".*"}, []),
        ({"write": r"^(orders\.dlx|amq\.default)$", "read": "^orders"}, []),
        (
            {"write": r"amq\.default", "read": ".*"},
            ["write permission on the dead-letter exchange 'orders.dlx'"],
        ),
        ({"write": r"^orders", "read": ".*"}, ["write permission on the default exchange"]),
        (
            {"write": ".*", "read": "^refunds"},
            [
                "read permission on the dead-letter queue 'orders.dlq'",
                "read permission on the work queue 'orders'",
            ],
        ),
    ],
    ids=["everything", "just enough", "no letters", "no delays", "no reading"],
)
async def test_a_missing_permission_is_found_and_granted_by_the_command_that_is_told(
    world: World, permissions: dict[str, str], missing: list[str]
) -> None:
    await world.provisioned(ORDERS)
    with world.user(**permissions) as name:
        for _ in range(3):  # each grant is told with what is there at the time
            findings = (await world.diagnosis(ORDERS, url=world.url_of(name))).findings
            told = sorted(finding.text.partition("has no ")[2] for finding in findings)
            assert told == missing
            if not findings:
                break
            await mend(world, findings[0], ORDERS)
            missing = [text for text in missing if text != findings[0].text.partition("has no ")[2]]
        assert missing == []


async def test_what_is_missing_and_may_not_be_made_is_found(world: World) -> None:
    await world.provisioned(ORDERS)
    world.delete_queue("orders.delay.1h")
    with world.user(configure="^x", write=".*", read=".*") as name:
        findings = (await world.diagnosis(ORDERS, url=world.url_of(name))).findings
    assert {finding.rule for finding in findings} == {"delay-missing", "permission"}
    assert f"'{name}' has no configure permission on 'orders.delay.1h'" in findings[-1].text


async def test_what_the_tags_of_a_user_do_not_show_is_told_as_unseen(world: World) -> None:
    await world.provisioned(ORDERS)
    with world.user("management", configure=".*", write=".*", read=".*") as name:
        other = World(type(world.at)(world.url_of(name), world.management_of(name), world.at.vhost))
        diagnosis = await other.diagnosis(ORDERS)
    assert diagnosis.findings == ()
    assert [text.partition(" ")[0] for text in diagnosis.unseen] == ["permissions", "alarms"]


# --- without the management API, and with alarms ---------------------------------------------------------------


async def test_over_amqp_alone_what_is_missing_is_found_and_the_rest_is_told_as_unseen(world: World) -> None:
    await world.provisioned(ORDERS)
    diagnosis = await world.diagnosis(ORDERS, over_amqp=True)
    assert diagnosis.findings == ()
    assert "bindings" in diagnosis.unseen

    world.delete_exchange("orders.dlx")
    world.delete_queue("orders.delay.1d")
    world.publish("orders.dlq")
    findings = (await world.diagnosis(ORDERS, over_amqp=True)).findings
    assert [finding.rule for finding in findings] == ["exchange-missing", "delay-missing", "dlq-waiting"]


@pytest.mark.slow
async def test_an_alarm_of_a_node_is_found(own_rabbitmq: RabbitMQServer) -> None:
    world = World(own_rabbitmq.address)
    await world.provisioned(ORDERS)
    await asyncio.to_thread(own_rabbitmq.ctl, "set_vm_memory_high_watermark", "absolute", "1MB")

    for _ in range(300):  # the API tells of an alarm with its next statistics, a second later
        if (await world.found(ORDERS)).alarms:
            break
        await asyncio.sleep(0.2)
    findings = (await world.diagnosis(ORDERS)).findings
    assert [(finding.rule, finding.severity) for finding in findings] == [("alarm", "warning")]
    assert "is above its memory limit of" in findings[0].text


async def test_looking_changes_nothing(world: World) -> None:
    world.queue("orders")
    before = world.furniture()
    async with linked(parse_url(world.at.amqp_url)) as link:
        await look(link, wanted([ORDERS]), world.management, guessed=False)
    await world.diagnosis(ORDERS, over_amqp=True)
    assert world.furniture() == before


# --- the command ----------------------------------------------------------------------------------------------------


def place(world: World) -> tuple[str, ...]:
    return ("--source", "orders", "--broker", world.at.amqp_url, "--management-url", world.at.management_url)


def test_a_healthy_broker_is_told_in_one_line(world: World, redrive: Run) -> None:
    assert redrive("provision", *place(world), "--apply", "--yes").returncode == 0
    done = redrive("doctor", *place(world))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"1 source on amqp://127\.0\.0\.1:\d+/\S+: no problems found\n", done.stdout)


def test_faults_are_told_with_loss_and_mending_and_an_exit_code(world: World, redrive: Run) -> None:
    world.queue("orders", QUORUM | LIMIT)
    done = redrive("doctor", *place(world))
    assert done.returncode == 1
    assert re.fullmatch(r"redrive: 1 source on amqp://\S+: 2 errors, 2 warnings\n", done.stderr)
    assert (
        "error: the dead-letter queue 'orders.dlq' of 'orders' does not exist  [dlq-missing]\n" in done.stdout
    )
    assert "\n    impact: " in done.stdout
    assert f"\n    fix: {PROVISION}\n" in done.stdout


def test_programs_get_findings_as_json(world: World, redrive: Run) -> None:
    done = redrive("doctor", *place(world), "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["healthy"] is False
    assert told["unseen"] == []
    assert told["findings"][0] == {
        "rule": "queue-missing",
        "severity": "error",
        "subject": "queue orders",
        "text": "the work queue 'orders' does not exist",
        "loss": "The broker drops messages for it, unless they are published as mandatory.",
        "mend": PROVISION,
    }


def test_no_password_is_shown(world: World, redrive: Run) -> None:
    with world.user("administrator", write="^x$") as name:
        right, wrong = world.url_of(name), world.url_of(name).replace(":secret@", ":secret-but-wrong@")
        there = ("--management-url", world.management_of(name))
        wrong_there = (
            "--management-url",
            world.management_of(name).replace(":secret@", ":secret-but-wrong@"),
        )
        for words in ((right, *there), (right, *wrong_there), (right,), (wrong, *there)):
            for command in ("doctor", "provision"):
                done = redrive(command, "--source", "orders", "--broker", *words)
                assert "Traceback" not in done.stderr
                assert name in done.stdout + done.stderr or done.returncode in {0, 1}
                assert "secret" not in done.stdout + done.stderr


def test_a_management_api_that_is_only_guessed_may_be_missing(world: World, redrive: Run) -> None:
    assert redrive("provision", *place(world), "--apply", "--yes").returncode == 0
    done = redrive("doctor", "--source", "orders", "--broker", world.at.amqp_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "not checked: types, durability and arguments of existing queues and exchanges; bindings; "
        in done.stdout
    )
    assert "because the management API at http://127.0.0.1:15672 " in done.stdout
