"""Collecting, redriving and replaying in a simulation: no seed finds a fault, and every planted fault is found.

4,000 seeds run in CI and 20,000 under `make soak`: 400 that are always the same, and others that change with the commit
(`tests.simulation_seeds`). `python -m redrive.testing.simulation --trace SEED` prints the steps of a seed that fails.
"""

import asyncio
import gc
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from redrive.collect import collector
from redrive.collect.collector import Collector
from redrive.collect.drain import Drain, Read
from redrive.collect.verdicts import VerdictCollector
from redrive.errors import BrokerUnreachableError, RedriveError
from redrive.letters import ClaimToken, DeadLetter, LetterHead, LetterState, Message, Step
from redrive.letters.redrive import Redrive
from redrive.recover import worker as recovering
from redrive.recover.confirmer import Confirmer
from redrive.stores import memory
from redrive.stores.base import Rescued
from redrive.stores.gates import Gate
from redrive.stores.memory import MemoryStore
from redrive.testing.simulation import simulate
from redrive.testing.simulation.faults import BURYING, Kind
from redrive.testing.simulation.faulty_transport import FaultyReceiver
from redrive.testing.simulation.virtual import StuckError, VirtualClock, VirtualLoop
from redrive.testing.simulation.world import World
from redrive.transports import redriving
from redrive.transports.base import Death, Delivery, Outcomes, Source
from redrive.transports.memory import receiver as in_memory
from tests import simulation_seeds

SHARDS: Final = 40
PATIENCE: Final = 3000  # seeds within which a planted fault has to be found


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("shard", range(SHARDS))
def test_whatever_goes_wrong_nothing_is_lost_and_every_count_is_right(shard: int) -> None:
    seeds = (*simulation_seeds.fixed()[shard::SHARDS], *simulation_seeds.fresh()[shard::SHARDS])
    for seed in seeds:
        outcome = simulate(seed)
        assert outcome.broken is None, f"seed {seed}: {outcome.broken}"


def test_every_kind_of_fault_happens_and_the_world_goes_through_every_state() -> None:
    faults: Counter[str] = Counter()
    states: Counter[str] = Counter()
    sent = presumed = 0
    for seed in range(150):
        outcome = simulate(seed)
        faults.update(outcome.faults)
        states.update(outcome.states)
        sent += outcome.sent
        presumed += outcome.presumed
    assert set(faults) == set(map(str, Kind))
    wanted = {LetterState.MANUAL, LetterState.RESOLVED, LetterState.FAILED, LetterState.PROCESSING}
    assert set(states) == wanted, "a letter is in processing only if its redrive stays unconfirmed"
    assert sent > 300
    assert presumed > 5


def test_world_is_not_at_rest_while_a_delivery_is_unsettled() -> None:
    """A process that is stopped may hold deliveries: they are in no queue, and not lost."""

    async def main() -> list[bool]:
        world = World(0)
        world.processes.clear()
        world._errands.clear()
        await world.open()
        await world.clock.sleep(timedelta(hours=1))
        answers = [world.at_rest()]
        world.brokers["north"].append("orders.dlq", Message(body=b"one"))
        receiver = await world._transports["north"].receiver(Source(name="orders.dlq"))
        batch = await receiver.receive()
        answers.append(world.at_rest())
        receiver.accept(batch)
        return [*answers, world.at_rest()]

    loop = VirtualLoop()
    try:
        assert loop.run_until_complete(main()) == [True, False, True]
    finally:
        loop.close()


def test_a_world_that_has_ended_leaves_nothing_behind() -> None:
    """Whatever is in a circle with its tasks has to be known to the garbage collector."""
    simulate(0)
    gc.collect()
    before = len(gc.get_objects())
    for seed in range(1, 11):
        simulate(seed)
    gc.collect()
    assert len(gc.get_objects()) - before < 1000


# --- it repeats -------------------------------------------------------------------------------------------


def trace_of(seed: int) -> list[str]:
    lines: list[str] = []
    simulate(seed, lines.append)
    return lines


@pytest.mark.parametrize("seed", [3, 11, 42])
def test_a_seed_is_the_same_world_step_by_step(seed: int) -> None:
    assert trace_of(seed) == trace_of(seed)


def told_by_a_process(*words: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "redrive.testing.simulation", *words],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_seed_is_the_same_in_another_process() -> None:
    one, other = (told_by_a_process("--trace", "7", hash_seed=each) for each in ("1", "2"))
    assert one.returncode == other.returncode == 0, one.stderr + other.stderr
    assert one.stdout == other.stdout
    assert one.stdout.splitlines() == [part for line in trace_of(7) for part in line.splitlines()]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_command_reports_how_many_seeds_were_run_and_failed(jobs: str) -> None:
    told = told_by_a_process("--seeds", "0:20", "--jobs", jobs)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.startswith("20 seeds, 0 failed")


# --- time that nobody waits for ---------------------------------------------------------------------------


def test_on_a_virtual_loop_a_month_passes_at_once_and_timers_fire_in_order() -> None:
    fired: list[int] = []

    async def wait(days: int) -> None:
        await clock.sleep(timedelta(days=days))
        fired.append(days)

    async def main() -> timedelta:
        began = clock.now()
        await asyncio.gather(*map(wait, (30, 1, 7)))
        return clock.now() - began

    loop = VirtualLoop()
    clock = VirtualClock(loop)
    try:
        assert loop.run_until_complete(main()) == timedelta(days=30)
    finally:
        loop.close()
    assert fired == [1, 7, 30]


def test_a_virtual_loop_on_which_nobody_waits_for_a_time_says_so_and_does_not_hang() -> None:
    loop = VirtualLoop()
    never: asyncio.Future[None] = loop.create_future()
    try:
        with pytest.raises(StuckError):
            loop.run_until_complete(never)
        never.cancel()
    finally:
        loop.close()


# --- faults planted back ----------------------------------------------------------------------------------


async def accepts_before_it_is_kept(
    self: Drain[Any], batch: Sequence[Read[Any]], _stop: asyncio.Event
) -> None:
    self._receiver.accept([one.delivery for one in batch])
    try:
        await self._keep(batch)
    except RedriveError as error:
        self._trouble("store write failed", error)


async def accepts_before_the_dead_letter(self: FaultyReceiver, deaths: Sequence[Death]) -> Outcomes:
    buried = [in_memory._enriched(in_memory._ours(death.delivery), death) for death in deaths]
    self._receiver.accept([death.delivery for death in deaths])

    async def bury() -> Outcomes:
        for death, message in zip(deaths, buried, strict=True):
            self._broker.append(self.source.dlq, message)
            delivery = death.delivery
            self._edge.watch.buried(self._broker.name, self.source.name, delivery.key, delivery.message)
        return [None] * len(deaths)

    return await self._edge.step("dead_letter", bury, BrokerUnreachableError, BURYING)


def any_fence_will_do(
    self: MemoryStore, hold: ClaimToken, now: datetime, *, or_sent: bool = False
) -> DeadLetter | None:
    letter = self._letters.get(hold.id)
    if letter is None or letter.lease_until is None:
        return None
    return letter if letter.lease_until > now or (or_sent and letter.sent_at is not None) else None


def any_lease_will_do(
    self: MemoryStore, hold: ClaimToken, _now: datetime, *, or_sent: bool = False
) -> DeadLetter | None:
    letter = self._letters.get(hold.id)
    held = letter is not None and letter.state is LetterState.PROCESSING and letter.fence == hold.fence
    return letter if held else None


async def nobody_is_rescued(self: MemoryStore, **_options: Any) -> list[Rescued]:
    return []


def for_ever(
    self: MemoryStore, letter: DeadLetter, worker: str, now: datetime, lease: timedelta, step: Step
) -> LetterHead:
    held: dict[str, Any] = {"locked_by": worker, "locked_at": now, "lease_until": now + 10_000 * lease}
    return self._change(letter, step, worker, now, fence=letter.fence + 1, **held)


async def whatever_is_there_now(self: MemoryStore, operation_id: str, *, limit: int) -> list[str]:
    recorded = {item.letter_id for item in self._book.items(operation_id) if item.outcome is not None}
    open_ones = (
        one for one in self._letters.values() if one.state in {LetterState.PENDING, LetterState.MANUAL}
    )
    return [one.id for one in open_ones if one.id not in recorded][:limit]


async def nothing_is_overdue(self: MemoryStore, **_options: Any) -> list[LetterHead]:
    return []


async def claims_for_any_broker(
    self: MemoryStore, worker: str, broker: str, limit: int, lease: timedelta, gates: Sequence[Gate]
) -> list[LetterHead]:
    brokers = dict.fromkeys((broker, *(letter.broker for letter in self._letters.values())))
    claimed: list[LetterHead] = []
    for each in brokers:
        claimed += await CLAIM(self, worker, each, limit - len(claimed), lease, gates)
    return claimed


async def takes_of_any_broker(
    self: MemoryStore,
    ids: Sequence[str],
    worker: str,
    _brokers: Sequence[str] | None,
    lease: timedelta,
    *,
    reclaim: bool,
) -> list[LetterHead]:
    return await TAKE(self, ids, worker, None, lease, reclaim=reclaim)


def any_redrive_id_is_believed(self: Collector, *_compared: Any) -> bool:
    return True


def no_redrive_is_believed(self: Collector, *_compared: Any) -> bool:
    return False


def whatever_its_headers_claim(self: Delivery) -> Redrive | None:
    return self.redrive


def any_verdict_counts(self: VerdictCollector, _verdict: Any, _letter: Any) -> bool:
    return True


def presumed_without_evidence(self: Confirmer, *_evidence: Any) -> bool:
    return True


def presumed_at_once(self: Confirmer, _evidence: Any, taken_until: timedelta | None) -> bool:
    return taken_until is not None


def separated_without_its_count(one: Any, redrive: Redrive, other: DeadLetter | None, *, counts: bool) -> Any:
    return SEPARATE(one, redrive, other, counts=False)


def counted_from_one(
    letter: DeadLetter, result: str, now: datetime, strategy: str | None, detail: str
) -> dict[str, Any]:
    counted = ATTEMPTED(letter, result, now, strategy, detail)
    last = msgspec.structs.replace(counted["attempts"][-1], number=1)
    return {"dlq_retry_count": 1, "attempts": (last,)}


def never_sent_before(_letter: DeadLetter) -> int:
    return 0


ATTEMPTED = memory._attempted
SEPARATE = collector._separate
CLAIM = MemoryStore._claim
TAKE = MemoryStore._take
Plant = tuple[Any, str, Any]
PLANTS: Final[dict[str, tuple[str, list[Plant]]]] = {
    "collector acknowledges before the letter is durable": (
        "is lost",
        [(Drain, "_settle", accepts_before_it_is_kept)],
    ),
    "consumer acknowledges before the dead letter is durable": (
        "is lost",
        [(FaultyReceiver, "dead_letter", accepts_before_the_dead_letter)],
    ),
    "settle ignores the fence": (
        r"claim is over|not the claim",
        [(MemoryStore, "_held", any_fence_will_do)],
    ),
    "settle ignores the lease": ("lease had ended", [(MemoryStore, "_held", any_lease_will_do)]),
    "nothing is rescued": ("does not come to rest", [(MemoryStore, "rescue", nobody_is_rescued)]),
    "leases never expire": ("does not come to rest", [(MemoryStore, "_hold", for_ever)]),
    "nothing becomes unconfirmed": ("does not come to rest", [(MemoryStore, "overdue", nothing_is_overdue)]),
    "replay looks for its letters anew": (
        "not in its list",
        [(MemoryStore, "remaining", whatever_is_there_now)],
    ),
    "redrive that died is a new letter each time": (
        "but it is a redrive of",
        [(Collector, "_is_redrive", no_redrive_is_believed)],
    ),
    "redrives are counted from one": (
        r"redrives|attempts|history",
        [(memory, "_attempted", counted_from_one)],
    ),
    "every redrive is the first": (
        "as number 1; it is number",
        [(redriving, "attempts_of", never_sent_before), (recovering, "attempts_of", never_sent_before)],
    ),
    "separate letter forgets its redrives": (
        r"counts 0 (earlier )?redrives",
        [(collector, "_separate", separated_without_its_count)],
    ),
    "claim ignores the broker": (
        "a letter of another broker",
        [(MemoryStore, "_claim", claims_for_any_broker)],
    ),
    "take ignores the broker": ("a letter of another broker", [(MemoryStore, "_take", takes_of_any_broker)]),
    "any redrive-id is believed": (
        r"its redrive has not died|is lost",
        [(Collector, "_is_redrive", any_redrive_id_is_believed)],
    ),
    "any consumer resolves": (
        "its consumer has not processed it",
        [
            (Delivery, "own_redrive", property(whatever_its_headers_claim)),
            (VerdictCollector, "_counts", any_verdict_counts),
        ],
    ),
    "presumed without evidence": (
        r"presumed to be resolved, but (its consumer has not taken it|there was no evidence)",
        [(Confirmer, "_is_quiet", presumed_without_evidence)],
    ),
    "presumed as soon as it was taken": (
        "there was no evidence a verdict timeout ago",
        [(Confirmer, "_is_quiet", presumed_at_once)],
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_fault_that_is_planted_back_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, plants = PLANTS[name]
    with monkeypatch.context() as planted:
        for place, attribute, wrong in plants:
            planted.setattr(place, attribute, wrong)
        found = next(
            (outcome for seed in range(PATIENCE) if (outcome := simulate(seed)).broken is not None), None
        )
    assert found is not None, f"{PATIENCE} seeds did not find it"
    assert found.broken is not None
    with capsys.disabled():
        print(f"\n{name}: seed {found.seed}: {found.broken.splitlines()[0]}")  # noqa: T201
    assert simulate(found.seed).broken is None, "the fault was not the planted one"
    assert re.search(words, found.broken), found.broken
