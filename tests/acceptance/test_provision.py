"""What sources need is planned, made and found again, on a real RabbitMQ and on the embedded broker."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from redrive.errors import BrokerRefusedError, BrokerUnreachableError, TransportError
from redrive.transports.base import Source
from redrive.transports.rabbitmq.names import STEPS
from redrive.transports.rabbitmq.provision import linked, look, make_missing
from redrive.transports.rabbitmq.topology import wanted
from redrive.transports.rabbitmq.url import parse_url
from tests.acceptance.broker_world import NOWHERE, Run, World, command_line
from tests.interop.brokers import broker
from tests.services import RabbitMQ, RabbitMQServer

__all__ = ["broker"]

ORDERS = Source(name="orders")
ALL = 1 + 1 + 1 + len(STEPS) + 1  # exchange, dead-letter queue, binding, delays, work queue


@pytest.fixture
def world(broker: RabbitMQ) -> World:
    return World(broker)


@pytest.fixture
def redrive(tmp_path: Path) -> Run:
    return command_line(tmp_path)


# --- plan and apply ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["quorum", "classic"])
async def test_in_an_empty_vhost_everything_is_planned_made_and_found_as_wanted(
    world: World, kind: str
) -> None:
    source = Source(name="orders", queue_type=kind)  # type: ignore[arg-type]
    before = await world.plan(source)
    assert [item.state for item in before.items] == ["missing"] * ALL
    assert world.furniture()["queues"] == [], "a plan changes nothing"

    done = await world.apply(source)
    assert [step.result for step in done] == ["made"] * ALL

    after = await world.plan(source)
    assert [item.state for item in after.items] == ["same"] * ALL
    assert after.unseen == ()
    assert await world.apply(source) == [], "a second apply finds nothing to do"


async def test_a_dead_letter_gets_through_what_was_made(world: World) -> None:
    await world.provisioned(ORDERS)
    world.publish("orders")
    with world.channel() as channel:
        method, _, _ = channel.basic_get("orders")
        assert method is not None
        channel.basic_reject(method.delivery_tag, requeue=False)
        got = next(
            (each for each in channel.consume("orders.dlq", auto_ack=True, inactivity_timeout=10)),
            (None,) * 3,
        )
    assert got[2] == b"x"


async def test_a_message_comes_back_from_a_delay_queue_that_was_made(world: World) -> None:
    await world.provisioned(ORDERS)
    world.publish("orders.delay.1s")
    with world.channel() as channel:
        got = next(each for each in channel.consume("orders", auto_ack=True, inactivity_timeout=10))
    assert got[2] == b"x"


async def test_what_exists_is_never_touched(world: World) -> None:
    world.queue("orders", {"x-max-length": 5, "x-dead-letter-exchange": "old"})
    world.exchange("orders.dlx", "headers")
    before = world.furniture()
    steps = await world.plan(ORDERS)
    states = {item.name: item.state for item in steps.items}
    assert (states["orders"], states["orders.dlx"]) == ("differs", "differs")

    await world.apply(ORDERS)
    after = world.furniture()
    assert [queue for queue in after["queues"] if queue["name"] == "orders"] == before["queues"]
    assert [each for each in after["exchanges"] if each["name"] == "orders.dlx"] == before["exchanges"]
    async with linked(world.url) as link:
        await make_missing(link.channel, wanted([ORDERS]))
    assert world.furniture() == after


async def test_a_difference_tells_what_is_what_is_wanted_and_how_to_mend_it(world: World) -> None:
    await world.provisioned(ORDERS)
    world.delete_queue("orders")
    world.queue(
        "orders", {"x-queue-type": "quorum", "x-dead-letter-exchange": "orders.dlx", "x-delivery-limit": 7}
    )
    [item] = (await world.plan(ORDERS)).of("differs")
    [difference] = item.differences
    assert (item.name, difference.what, difference.found, difference.wanted) == (
        "orders",
        "delivery-limit",
        7,
        20,
    )
    assert "cannot be changed in place" in item.mend


async def test_a_policy_counts_like_an_argument(world: World) -> None:
    await world.provisioned(ORDERS)
    world.delete_queue("orders")
    world.queue("orders", {"x-queue-type": "quorum"})
    assert {each.what for each in (await world.plan(ORDERS)).of("differs")[0].differences} == {
        "dead-letter-exchange",
        "delivery-limit",
    }
    world.policy("dead", "orders", dead_letter_exchange="orders.dlx", delivery_limit=20)
    assert (await world.plan(ORDERS)).of("differs") == ()


async def test_a_topic_exchange_of_ones_own_is_as_good_once_it_is_bound(world: World) -> None:
    world.exchange("orders.dlx", "topic")
    assert {step.item.name for step in await world.apply(ORDERS)} >= {"orders.dlx → orders.dlq"}
    assert len((await world.plan(ORDERS)).of("same")) == ALL


# --- make_missing ---------------------------------------------------------------------------------------------


async def test_a_transport_that_starts_makes_what_is_missing_and_nothing_else(world: World) -> None:
    async with linked(world.url) as link:
        assert len(await make_missing(link.channel, wanted([ORDERS]))) == ALL
        assert await make_missing(link.channel, wanted([ORDERS])) == ()
        world.delete_queue("orders.delay.5m")
        assert [item.name for item in await make_missing(link.channel, wanted([ORDERS]))] == [
            "orders.delay.5m"
        ]
    assert len((await world.plan(ORDERS)).of("same")) == ALL


async def test_two_instances_may_start_at_once(world: World) -> None:
    async def start() -> int:
        async with linked(world.url) as link:
            return len(await make_missing(link.channel, wanted([ORDERS])))

    made = await asyncio.gather(*(start() for _ in range(4)))
    assert sum(made) >= ALL
    assert len((await world.plan(ORDERS)).of("same")) == ALL


async def test_two_instances_with_different_settings_leave_what_came_first(world: World) -> None:
    async def start(limit: int) -> None:
        async with linked(world.url) as link:
            await make_missing(link.channel, wanted([Source(name="orders", max_deliveries=limit)]))

    await asyncio.gather(start(3), start(40), start(50))
    [limit] = [
        queue["arguments"]["x-delivery-limit"]
        for queue in world.furniture()["queues"]
        if queue["name"] == "orders"
    ]
    assert limit in {20, 80, 100}


async def test_a_binding_that_a_crash_has_left_out_is_made_at_the_next_start(world: World) -> None:
    await world.provisioned(ORDERS)
    world.unbind("orders.dlx", "orders.dlq", "#")
    assert [item.name for item in (await world.plan(ORDERS)).of("missing")] == ["orders.dlx → orders.dlq"]
    async with linked(world.url) as link:
        await make_missing(link.channel, wanted([ORDERS]))
    assert (await world.plan(ORDERS)).of("missing") == ()


async def test_a_user_who_may_only_consume_can_start_where_everything_is_there(world: World) -> None:
    await world.provisioned(ORDERS)
    with world.user(write=r"^orders\.dlx$", read="^orders$") as name:
        async with linked(parse_url(world.url_of(name))) as link:
            assert await make_missing(link.channel, wanted([ORDERS])) == ()


async def test_a_user_who_may_not_declare_is_told_what_cannot_be_made(world: World) -> None:
    with world.user(configure="^orders.dlx$", write=".*", read=".*") as name:
        async with linked(parse_url(world.url_of(name))) as link:
            with pytest.raises(BrokerRefusedError, match=r"queue orders\.dlq cannot be created: ") as refused:
                await make_missing(link.channel, wanted([ORDERS]))
    assert "secret" not in str(refused.value)
    assert world.furniture()["queues"] == [], "no work queue is made without what catches its dead letters"


# --- without the management API -----------------------------------------------------------------------------


async def test_without_the_management_api_amqp_alone_tells_what_is_missing(world: World) -> None:
    world.queue("orders")
    steps = await world.plan(ORDERS, over_amqp=True)
    states = {item.name: item.state for item in steps.items}
    assert states.pop("orders") == "unseen"
    assert set(states.values()) == {"missing"}
    assert "bindings" in steps.unseen
    assert "http://127.0.0.1:1 cannot be reached" in steps.unseen[-1]

    assert {step.result for step in await world.apply(ORDERS, over_amqp=True)} == {"made"}
    assert {item.state for item in (await world.plan(ORDERS, over_amqp=True)).items} == {"unseen"}
    assert [item.name for item in (await world.plan(ORDERS)).of("differs", "missing")] == ["orders"]


async def test_a_management_api_that_was_named_has_to_answer(world: World) -> None:
    async with linked(world.url) as link:
        with pytest.raises(BrokerUnreachableError, match=r"http://127\.0\.0\.1:1 cannot be reached"):
            await look(link, wanted([ORDERS]), NOWHERE, guessed=False)


async def test_the_management_api_of_another_broker_is_not_believed(
    rabbitmq: RabbitMQ, service_run: object
) -> None:
    from tests.interop.brokers import BROKERS
    from tests.services import Run as ServiceRun

    assert isinstance(service_run, ServiceRun)
    other = World(service_run.address(BROKERS["embedded"], {}))
    async with linked(parse_url(other.at.amqp_url)) as link:
        with pytest.raises(
            TransportError, match=r"belongs to another cluster: '.+', not 'redrive@[0-9a-f-]{36}'"
        ):
            await look(link, wanted([ORDERS]), World(rabbitmq).management, guessed=False)


# --- the command ----------------------------------------------------------------------------------------------


def place(world: World) -> tuple[str, ...]:
    return ("--broker", world.at.amqp_url, "--management-url", world.at.management_url)


def test_the_command_shows_the_plan_and_changes_nothing(world: World, redrive: Run) -> None:
    done = redrive("provision", "--source", "orders", *place(world))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "+ exchange orders.dlx  (fanout)" in lines
    assert "+ queue    orders  (quorum, x-dead-letter-exchange=orders.dlx, x-delivery-limit=20)" in lines
    assert f"{ALL} to create, 0 different, 0 present" in lines
    assert lines[-1] == "nothing was changed; pass --apply to create what is missing"
    assert world.furniture()["queues"] == []


def test_the_command_applies_the_plan_and_has_nothing_to_do_the_second_time(
    world: World, redrive: Run
) -> None:
    words = ("provision", "--source", "orders", *place(world), "--apply", "--yes")
    first = redrive(*words)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.endswith(f"created {ALL}\n")
    second = redrive(*words)
    assert (second.returncode, second.stdout.splitlines()[-1]) == (0, "nothing to create")
    assert f"0 to create, 0 different, {ALL} present" in second.stdout


def test_programs_get_plan_and_steps_as_json(world: World, redrive: Run) -> None:
    told = json.loads(redrive("provision", "--source", "orders", *place(world), "--json").stdout)
    assert (told["missing"], told["differs"], told["steps"], told["unseen"]) == (ALL, 0, [], [])
    assert told["items"][0] == {
        "kind": "exchange",
        "name": "orders.dlx",
        "state": "missing",
        "wanted": {"name": "orders.dlx", "type": "fanout", "durable": True},
        "differences": [],
        "mend": "",
    }
    told = json.loads(
        redrive("provision", "--source", "orders", *place(world), "--json", "--apply", "--yes").stdout
    )
    assert {step["result"] for step in told["steps"]} == {"made"}


def test_what_cannot_be_mended_by_making_is_told_and_is_no_success(world: World, redrive: Run) -> None:
    world.queue("orders")
    words = ("provision", "--source", "orders", *place(world))
    shown = redrive(*words)
    assert shown.returncode == 0
    assert "~ queue    orders\n    type is classic, expected quorum\n" in shown.stdout
    applied = redrive(*words, "--apply", "--yes")
    assert applied.returncode == 1
    assert f"created {ALL - 1}" in applied.stdout
    assert applied.stderr == "redrive: 1 existing object different from the plan, not changed\n"


def test_without_somebody_to_ask_apply_wants_yes(world: World, redrive: Run) -> None:
    done = redrive("provision", "--source", "orders", *place(world), "--apply")
    assert done.returncode == 2
    assert done.stderr == "redrive: confirmation required; pass --yes in non-interactive use\n"
    assert world.furniture()["queues"] == []


@pytest.mark.parametrize(("answer", "code", "queues"), [("y", 0, 13), ("n", 1, 0)])
def test_somebody_is_asked_before_anything_is_made(
    world: World, redrive: Run, answer: str, code: int, queues: int
) -> None:
    person, terminal = os.openpty()
    try:
        os.write(person, f"{answer}\n".encode())
        done = redrive("provision", "--source", "orders", *place(world), "--apply", stdin=terminal)
    finally:
        os.close(person)
        os.close(terminal)
    assert done.returncode == code
    assert f"create {ALL} objects? [y/N]: " in done.stderr
    assert ("redrive: cancelled; nothing was changed" in done.stderr) == (code == 1)
    assert len(world.furniture()["queues"]) == queues


def test_a_step_that_fails_stops_the_rest(world: World, redrive: Run) -> None:
    with world.user(configure=r"^orders\.dlx$", write=".*", read=".*") as name:
        done = redrive(
            "provision", "--source", "orders", "--broker", world.url_of(name),
            "--management-url", world.at.management_url, "--apply", "--yes",
        )  # fmt: skip
    assert done.returncode == 4
    assert "made   exchange orders.dlx\nfailed queue orders.dlq\n" in done.stdout
    assert done.stderr.startswith("redrive: queue orders.dlq cannot be created: ACCESS_REFUSED")
    assert done.stdout.endswith(f"stopped after creating 1 of {ALL} objects\n")
    assert "secret" not in done.stdout + done.stderr


def test_sources_come_from_an_application_or_from_the_settings(
    world: World, redrive: Run, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(
        "from redrive.app import App\n"
        f"app = App({world.at.amqp_url!r})\n"
        "@app.consume('invoices', max_deliveries=15, queue_type='quorum')\n"
        "async def handle(body: bytes) -> None: ...\n",
        "utf-8",
    )
    done = redrive("provision", "shop:app", "--management-url", world.at.management_url)
    assert done.returncode == 0, done.stderr
    assert (
        "+ queue    invoices  (quorum, x-dead-letter-exchange=invoices.dlx, x-delivery-limit=30)"
        in done.stdout
    )
    picked = redrive("provision", "shop:app", "--source", "invoice", *place(world))
    assert picked.stderr == "redrive: the application has no source 'invoice'; did you mean 'invoices'?\n"

    (tmp_path / "redrive.toml").write_text(
        f"[broker]\nurl = {world.at.amqp_url!r}\nmanagement_url = {world.at.management_url!r}\n"
        "[[sources]]\nname = 'refunds'\nqueue_type = 'classic'\ndead_letter_queue = 'lost'\n",
        "utf-8",
    )
    done = redrive("provision")
    assert "+ queue    lost  (classic)" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([], 2, "no source: pass MODULE:APP"),
        (
            ["--source", "a", "--broker", "http://x"],
            2,
            "broker URL: must start with amqp://, amqps://, kafka:// or kafkas://",
        ),
        (
            ["--source", "a", "--management-url", "x"],
            2,
            "management URL: write http://user:password@host:15672",
        ),
        (["--source", "amq.a"], 2, "names that start with amq. are reserved by RabbitMQ"),
        (["nothing:app"], 2, "module 'nothing' was not found"),
        (["--source", "a", "--broker", "amqp://u:hunter2@127.0.0.1:1/"], 4, "127.0.0.1:1 cannot be reached"),
    ],
)
def test_what_is_wrong_is_one_line_without_a_password(
    redrive: Run, args: list[str], code: int, says: str
) -> None:
    for command in ("provision", "doctor"):
        done = redrive(command, *args)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("redrive: ")
        assert done.stderr.count("\n") == 1
        assert says in done.stderr
        assert "hunter2" not in done.stderr


@pytest.mark.slow
async def test_a_broker_whose_management_goes_down_is_still_provisioned(own_rabbitmq: RabbitMQServer) -> None:
    world = World(own_rabbitmq.address)
    await asyncio.to_thread(own_rabbitmq.ctl, "eval", "application:stop(rabbitmq_management).")
    async with linked(world.url) as link:
        found = await look(link, wanted([ORDERS]), world.management, guessed=True)
        assert "management API" in found.unseen[-1]
        assert len(await make_missing(link.channel, wanted([ORDERS]))) == ALL
