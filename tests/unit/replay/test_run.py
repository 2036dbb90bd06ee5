"""A replay sends what its dry run listed, can be watched, stopped, cancelled, and gone on with, and repeats nothing."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import SettingsError, SourceMissingError
from redrive.letters import LetterState, Message
from redrive.letters.redrive import redrive_of
from redrive.replay.options import ReplayOptions, pack, unpack
from redrive.replay.plan import Plan, begin, by_ids, order_of, plan
from redrive.replay.run import Progress, Replay
from redrive.replay.runner import describe_runner, has_ended, runner_name
from redrive.stores.changes import Fail, Park, Resolve, Settlement, Unclaim
from redrive.stores.operations import Operation, OperationState
from redrive.stores.query import parse_query
from redrive.testing import letters
from redrive.transports import Publication
from redrive.transports.redriving import SendOptions
from tests.unit.recover.cycle import World

PLAIN = ReplayOptions(stop_at=None)


async def a_world(count: int, **fields: Any) -> World:
    world = World()
    await world.open()
    await world.store.add(letters(count, transport="memory", **fields))
    return world


async def planned(world: World, words: str = "") -> Plan:
    return await plan(world.store, parse_query(words, now=world.clock.now()), words=words)


async def started(world: World, options: ReplayOptions = PLAIN, words: str = "") -> Operation:
    return await begin(world.store, await planned(world, words), options, by="anna", clock=world.clock)


def replay(world: World, operation: Operation, **options: Any) -> Replay:
    return Replay(world.store, world.transport, operation, runner="test", clock=world.clock, **options)


async def ran(world: World, operation: Operation, **options: Any) -> Operation:
    return await replay(world, operation, **options).run(asyncio.Event())


async def in_queue(world: World, queue: str = "orders") -> list[Message]:
    return list(await world.transport.peek(queue, 10_000))


async def test_what_a_dry_run_lists_is_what_the_replay_sends() -> None:
    world = await a_world(250)
    frozen = await planned(world, "source:orders")
    operation = await begin(world.store, frozen, PLAIN, by="anna", clock=world.clock)
    await world.store.add(letters(50, prefix="later", transport="memory"))
    done = await ran(world, operation)
    assert done.state is OperationState.DONE
    assert dict(done.outcomes) == {"sent": 250}
    sent = [redrive_of(message.headers) for message in await in_queue(world)]
    assert [redrive.hold.id for redrive in sent if redrive is not None] == frozen.ids
    assert {redrive.operation for redrive in sent if redrive is not None} == {operation.id}


async def test_the_same_replay_run_twice_sends_nothing_twice() -> None:
    world = await a_world(120)
    operation = await started(world)
    await ran(world, operation)
    again = await ran(world, await world.store.operation(operation.id))
    assert again.state is OperationState.DONE
    second = await ran(world, await started(world))
    assert dict(second.outcomes) == {}
    assert len(await in_queue(world)) == 120


async def test_a_sent_letter_waits_for_its_verdict_and_keeps_its_message() -> None:
    world = await a_world(1)
    await ran(world, await started(world))
    letter = await world.the_letter()
    assert letter.state is LetterState.PROCESSING
    assert letter.sent_at is not None
    (message,) = await in_queue(world)
    assert message.body == b'{"order": 12345}'
    assert message.headers.get("x-tenant") == "north"
    assert message.headers.get("x-replayed") is True
    assert message.message_id == "message-orders/0"


async def test_replay_reports_letters_that_others_have_claimed_or_closed() -> None:
    world = await a_world(5)
    frozen = await planned(world)
    operation = await begin(world.store, frozen, PLAIN, by="anna", clock=world.clock)
    await world.store.take([frozen.ids[0]], "worker-1", lease=timedelta(hours=1))
    (sent,) = await world.store.take([frozen.ids[1]], "worker-2")
    await world.store.extend([sent.claim_token], sent=True)
    (resolved,) = await world.store.take([frozen.ids[2]], "worker-3")
    await world.store.settle([Settlement(resolved.claim_token, Resolve())])
    (failed,) = await world.store.take([frozen.ids[3]], "worker-4")
    await world.store.settle([Settlement(failed.claim_token, Fail())])
    done = await drive(world, asyncio.create_task(ran(world, operation)))
    assert done.state is OperationState.DONE
    assert dict(done.outcomes) == {"sent": 1, "skipped": 2, "failed": 2}
    items = await world.store.items(operation.id, limit=10)
    assert [item.outcome for item in items] == ["failed", "skipped", "skipped", "failed", "sent"]
    details = [item.detail for item in items]
    assert details[0].startswith("it is claimed by worker-1 and was not sent, lease until ")
    assert details[1] == "it was sent by worker-2 and is waiting for its verdict"
    assert details[2] == "it is already resolved"
    assert details[3].startswith("it is failed")


async def test_replay_waits_for_a_letter_that_a_worker_is_about_to_release() -> None:
    world = await a_world(3)
    frozen = await planned(world)
    operation = await begin(world.store, frozen, PLAIN, by="anna", clock=world.clock)
    (held,) = await world.store.take([frozen.ids[1]], "worker-1")
    task = asyncio.create_task(ran(world, operation))
    await world.quiet()
    await world.store.settle([Settlement(held.claim_token, Unclaim())])
    done = await drive(world, task)
    assert dict(done.outcomes) == {"sent": 3}
    sent = [redrive_of(message.headers) for message in await in_queue(world)]
    assert [redrive.hold.id for redrive in sent if redrive is not None] == frozen.ids


async def test_manual_letters_are_replayed_and_failed_ones_are_left_out_or_copied() -> None:
    world = await a_world(2)
    (one, two) = await world.heads()
    (held,) = await world.store.take([one.id], "w")
    await world.store.settle([Settlement(held.claim_token, Park())])
    (held,) = await world.store.take([two.id], "w")
    await world.store.settle([Settlement(held.claim_token, Fail())])
    frozen = await planned(world)
    assert frozen.ids == [one.id]
    assert [head.id for head in frozen.left_out] == [two.id]
    both = await plan(world.store, parse_query("", now=world.clock.now()), copies=True)
    operation = await begin(world.store, both, PLAIN, by="anna", clock=world.clock)
    done = await ran(world, operation)
    assert dict(done.outcomes) == {"sent": 2}
    copies = [head for head in await world.heads() if head.id not in {one.id, two.id}]
    (copy,) = await world.store.load([copies[0].id])
    assert copy.derived_from == two.id
    assert next(head.state for head in await world.heads() if head.id == two.id) is LetterState.FAILED


async def test_a_target_that_does_not_exist_stops_it_before_anything_is_sent() -> None:
    world = await a_world(3)
    options = ReplayOptions(sending=SendOptions(target="ordres"))
    with pytest.raises(SourceMissingError, match="did you mean 'orders'"):
        await ran(world, await started(world, options))
    assert await world.states() == [LetterState.PENDING] * 3


async def test_letters_go_where_they_are_told_and_under_a_new_id_if_asked() -> None:
    world = await a_world(2)
    world.broker.make("fixed")
    options = ReplayOptions(sending=SendOptions(redirects={"orders": "fixed"}, message_id="new"))
    await ran(world, await started(world, options))
    assert await in_queue(world) == []
    ids = {message.message_id for message in await in_queue(world, "fixed")}
    assert len(ids) == 2
    assert not any((name or "").startswith("message-") for name in ids)


async def test_a_message_that_was_processed_already_is_skipped_on_demand() -> None:
    world = await a_world(2)
    first = (await world.heads())[0]
    await world.store.add(
        letters(1, prefix="copy", transport="memory", message=(await world.store.load([first.id]))[0].message)
    )
    await ran(
        world,
        await begin(
            world.store, await plan(world.store, by_ids([first.id])), PLAIN, by="a", clock=world.clock
        ),
    )
    sent = next(head for head in await world.heads() if head.id == first.id)
    await world.store.settle([Settlement(sent.claim_token, Resolve())])
    done = await ran(world, await started(world, ReplayOptions(skip_done=True)))
    assert dict(done.outcomes) == {"sent": 1, "skipped": 1}


class Consumer:
    """Says what becomes of what is sent: the fate of each letter, by its number."""

    def __init__(self, world: World, dies: Sequence[int]) -> None:
        self.world = world
        self.dies = dies
        self.error = ConnectionResetError("connection reset by peer")
        self.seen = 0

    async def __call__(self, body: bytes) -> None:
        self.seen += 1
        if self.seen in self.dies:
            raise self.error


async def drive(world: World, task: "asyncio.Task[Operation]") -> Operation:
    """Let time pass until the replay has ended."""
    async with asyncio.timeout(20):
        while not task.done():
            await world.collect()
            world.clock.advance(timedelta(milliseconds=500))
    return task.result()


async def test_a_canary_is_waited_for_and_stops_a_replay_whose_letters_die_again() -> None:
    world = await a_world(100)
    options = ReplayOptions(canary=5, stop_at=0.4, canary_wait=timedelta(seconds=30))
    heard: list[Progress] = []
    async with world.consuming(Consumer(world, range(1, 200))):
        task = asyncio.create_task(ran(world, await started(world, options), progress=heard.append))
        done = await drive(world, task)
    assert done.state is OperationState.STOPPED
    assert done.note == "5 of 5 failed again"
    assert dict(done.outcomes) == {"sent": 5}
    assert heard[-1].died == 5
    assert world.collector.counts.replays == 5
    assert (await world.states()).count(LetterState.PENDING) == 100


async def test_a_canary_that_is_processed_lets_the_rest_go_by_the_ramp() -> None:
    world = await a_world(60)
    options = ReplayOptions(canary=2, ramp=(1, 2, 5), batch=20)
    sizes: list[int] = []
    publish = world.transport.publish

    async def counting(messages: Sequence[Publication]) -> Any:
        if messages and messages[0].target.name == "orders":
            sizes.append(len(messages))
        return await publish(messages)

    world.transport.publish = counting  # type: ignore[assignment,method-assign]
    async with world.consuming(Consumer(world, [])):
        done = await drive(world, asyncio.create_task(ran(world, await started(world, options))))
        await world.collect()
    assert done.state is OperationState.DONE
    assert sizes == [2, 1, 2, 5, 20, 20, 10]
    assert world.verdicts.counts.replays == 60
    assert set(await world.states()) == {LetterState.RESOLVED}


async def test_it_stops_by_itself_when_too_many_die_again_on_the_way() -> None:
    world = await a_world(100)
    options = ReplayOptions(batch=10, stop_at=0.5, rate=20)
    async with world.consuming(Consumer(world, range(11, 200))):
        done = await drive(world, asyncio.create_task(ran(world, await started(world, options))))
    assert done.state is OperationState.STOPPED
    assert "failed again" in done.note
    assert done.recorded < 100


async def test_a_rate_is_kept() -> None:
    world = await a_world(100)
    task = asyncio.create_task(
        ran(world, await started(world, ReplayOptions(batch=10, rate=10, stop_at=None)))
    )
    before = world.clock.now()
    await drive(world, task)
    assert timedelta(seconds=9) <= world.clock.now() - before <= timedelta(seconds=12)


async def test_it_can_be_cancelled_while_it_runs_and_not_gone_on_with() -> None:
    world = await a_world(100)
    operation = await started(world, ReplayOptions(batch=10, rate=10, stop_at=None))
    task = asyncio.create_task(ran(world, operation))
    await world.quiet()
    assert await world.store.end_operation(
        operation.id, OperationState.CANCELLED, by="anna", note="wrong queue"
    )
    done = await drive(world, task)
    assert done.state is OperationState.CANCELLED
    assert 0 < done.recorded < 100
    again = await ran(world, done)
    assert again.recorded == done.recorded


async def test_it_can_be_stopped_and_gone_on_with() -> None:
    world = await a_world(100)
    operation = await started(world, ReplayOptions(batch=10, rate=10, stop_at=None))
    stop = asyncio.Event()
    task = asyncio.create_task(replay(world, operation).run(stop))
    await world.quiet()
    stop.set()
    done = await drive(world, task)
    assert done.state is OperationState.STOPPED
    assert done.recorded == 10
    task = asyncio.create_task(ran(world, done))
    assert (await drive(world, task)).state is OperationState.DONE
    assert len(await in_queue(world)) == 100


@pytest.mark.parametrize("where", ["before publish", "after publish", "after mark"])
async def test_a_run_that_died_is_gone_on_with_and_what_was_marked_is_not_sent_again(where: str) -> None:
    world = await a_world(30)
    operation = await started(world, ReplayOptions(batch=10, stop_at=None))
    dying = replay(world, operation)
    publish, extend, record = world.transport.publish, world.store.extend, world.store.record
    batches = 0

    class CrashError(Exception):
        pass

    async def crashing_publish(messages: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 2 and where == "before publish":
            raise CrashError
        answer = await publish(messages)
        if batches == 2 and where == "after publish":
            raise CrashError
        return answer

    async def crashing_record(*args: Any) -> None:
        if batches == 2 and where == "after mark":
            raise CrashError
        await record(*args)

    world.transport.publish = crashing_publish  # type: ignore[assignment,method-assign]
    world.store.record = crashing_record  # type: ignore[assignment,method-assign]
    with pytest.raises(CrashError):
        await dying.run(asyncio.Event())
    world.transport.publish, world.store.record = publish, record  # type: ignore[method-assign]
    assert world.store.extend == extend
    done = await ran(world, await world.store.operation(operation.id))
    assert done.state is OperationState.DONE
    assert dict(done.outcomes) == {"sent": 30}
    twice = len(await in_queue(world)) - 30
    assert twice == (10 if where == "after publish" else 0), "one batch at most"


async def test_two_runners_of_one_operation_do_not_run_at_once() -> None:
    world = await a_world(100)
    operation = await started(world, ReplayOptions(batch=10, rate=1, stop_at=None))
    task = asyncio.create_task(ran(world, operation))
    await world.quiet()
    other = Replay(world.store, world.transport, operation, runner="other", clock=world.clock)
    refused = asyncio.create_task(other.run(asyncio.Event()))
    await drive(world, task)
    assert len(await in_queue(world)) == 100
    with pytest.raises(SettingsError, match="is run by test, which has just renewed its lease"):
        await refused


async def killed_before_publish(world: World, operation: Operation, runner: str = "test") -> None:
    """A run that ends between claim and publish, and says nothing to anybody."""

    class KilledError(Exception):
        pass

    async def killed(_messages: Any) -> Any:
        raise KilledError

    publish, world.transport.publish = world.transport.publish, killed  # type: ignore[assignment,method-assign]
    with pytest.raises(KilledError):
        await Replay(world.store, world.transport, operation, runner=runner, clock=world.clock).run(
            asyncio.Event()
        )
    world.transport.publish = publish  # type: ignore[method-assign]


@pytest.mark.parametrize("later", [timedelta(0), timedelta(minutes=2)], ids=["at once", "leases expired"])
async def test_resumed_replay_sends_letters_that_a_killed_run_had_claimed(later: timedelta) -> None:
    world = await a_world(30)
    operation = await started(world, ReplayOptions(batch=10, stop_at=None))
    await killed_before_publish(world, operation)
    world.clock.advance(later)
    done = await ran(world, await world.store.operation(operation.id))
    assert done.state is OperationState.DONE
    assert dict(done.outcomes) == {"sent": 30}
    assert len(await in_queue(world)) == 30
    assert {head.dlq_retry_count for head in await world.heads()} == {0}


async def test_resumed_replay_sends_rescued_letters_of_a_killed_run() -> None:
    world = await a_world(30)
    operation = await started(world, ReplayOptions(batch=10, stop_at=None))
    await killed_before_publish(world, operation)
    world.clock.advance(timedelta(minutes=2))
    await world.rescuer.turn()
    done = await ran(world, await world.store.operation(operation.id))
    assert dict(done.outcomes) == {"sent": 30}


async def test_resumed_replay_replaces_a_runner_of_this_machine_that_was_killed() -> None:
    world = await a_world(30)
    operation = await started(world, ReplayOptions(batch=10, stop_at=None))
    await killed_before_publish(world, operation, runner=a_killed_process())
    before = world.clock.now()
    done = await ran(world, await world.store.operation(operation.id))
    assert dict(done.outcomes) == {"sent": 30}
    assert world.clock.now() == before, "nothing was waited for"


async def test_resumed_replay_says_how_long_it_waits_for_a_runner_elsewhere() -> None:
    world = await a_world(30)
    operation = await started(world, ReplayOptions(batch=10, stop_at=None))
    await killed_before_publish(world, operation, runner="anna@elsewhere/4711/00000000-1")
    world.clock.advance(timedelta(seconds=20))
    heard: list[Progress] = []
    task = asyncio.create_task(ran(world, await world.store.operation(operation.id), progress=heard.append))
    done = await drive(world, task)
    assert dict(done.outcomes) == {"sent": 30}
    assert heard[0].phase == "waiting"
    assert heard[0].note == "anna@elsewhere/4711 may still run this operation; its lease expires in 40s"


async def test_replay_that_has_sent_all_is_done_although_most_died_again() -> None:
    world = await a_world(20)
    options = ReplayOptions(batch=10, stop_at=0.5, rate=20)
    async with world.consuming(Consumer(world, range(11, 200))):
        done = await drive(world, asyncio.create_task(ran(world, await started(world, options))))
    assert done.state is OperationState.DONE
    assert dict(done.outcomes) == {"sent": 20}


async def test_canaries_without_a_verdict_stop_the_replay() -> None:
    world = await a_world(20)
    options = ReplayOptions(canary=3, canary_wait=timedelta(seconds=30))
    done = await drive(world, asyncio.create_task(ran(world, await started(world, options))))
    assert done.state is OperationState.STOPPED
    assert done.note.startswith("0 of 3 canaries reported within 30s; ")
    assert "--assume-success" in done.note
    assert dict(done.outcomes) == {"sent": 3}


async def test_resumed_replay_waits_for_its_canaries_again_unless_success_is_assumed() -> None:
    world = await a_world(20)
    options = ReplayOptions(canary=3, canary_wait=timedelta(seconds=30))
    done = await drive(world, asyncio.create_task(ran(world, await started(world, options))))
    again = await drive(world, asyncio.create_task(ran(world, done)))
    assert again.note.startswith("0 of 3 canaries reported within 30s; ")
    assert dict(again.outcomes) == {"sent": 3}
    assumed = await drive(world, asyncio.create_task(ran(world, again, assume_success=True)))
    assert assumed.state is OperationState.DONE
    assert dict(assumed.outcomes) == {"sent": 20}


async def test_ramp_without_canary_stops_when_too_many_die_again() -> None:
    world = await a_world(100)
    options = ReplayOptions(ramp=(1, 2, 5, 20), canary_wait=timedelta(seconds=30))
    async with world.consuming(Consumer(world, range(1, 200))):
        done = await drive(world, asyncio.create_task(ran(world, await started(world, options))))
    assert done.state is OperationState.STOPPED
    assert done.note == "8 of 8 failed again"
    assert dict(done.outcomes) == {"sent": 8}


async def test_ramp_without_verdicts_stops_the_replay() -> None:
    world = await a_world(100)
    options = ReplayOptions(ramp=(2, 5), canary_wait=timedelta(seconds=30))
    done = await drive(world, asyncio.create_task(ran(world, await started(world, options))))
    assert done.state is OperationState.STOPPED
    assert done.note.startswith("0 of 2 letters of the ramp reported within 30s; ")


async def test_replay_pauses_between_batches_and_not_after_the_last() -> None:
    world = await a_world(30)
    options = ReplayOptions(batch=10, pause=timedelta(seconds=10), stop_at=None)
    before = world.clock.now()
    await drive(world, asyncio.create_task(ran(world, await started(world, options))))
    assert timedelta(seconds=20) <= world.clock.now() - before <= timedelta(seconds=22)


async def test_plan_has_the_order_of_its_query() -> None:
    world = await a_world(3)
    by_age = [head.id for head in sorted(await world.heads(), key=lambda head: head.created_at)]
    oldest = await plan(world.store, by_ids(by_age))
    assert oldest.ids == by_age
    assert order_of(by_ids(by_age)) == "oldest"
    newest = await plan(world.store, by_ids(by_age, "newest"))
    assert newest.ids == by_age[::-1]
    assert order_of(parse_query("sort:-priority", now=world.clock.now())) == "sort:-priority"


def test_options_of_an_older_operation_say_newest_first() -> None:
    assert unpack(b"{}").order == "newest"
    assert unpack(pack(ReplayOptions())).order == "oldest"


def a_killed_process() -> str:
    """The name of a runner that was killed, as another process of this machine would have it."""
    script = "from redrive.replay.runner import runner_name; print(runner_name('anna'), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    name = child.stdout.readline().decode().strip()
    assert not has_ended(name)
    child.kill()
    child.communicate()
    return name


def test_runner_is_known_to_have_ended_only_on_the_same_machine() -> None:
    name = a_killed_process()
    assert has_ended(name)
    assert not has_ended(runner_name("anna"))
    rest, _, mark = name.rpartition("/")
    machine, _, started_at = mark.rpartition("-")
    assert not has_ended(f"{rest}/ffffffff-{started_at}")
    assert not has_ended("anna/4711")
    assert not has_ended("")
    own = runner_name("anna").rpartition("-")[0]
    assert has_ended(f"{own}-1"), "another process has had this id"
    assert describe_runner(name) == rest
    assert machine


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"rate": 0}, {"canary": -1}, {"ramp": (0,)}, {"stop_at": 0}, {"stop_at": 2}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="replay"):
        ReplayOptions(**wrong)
