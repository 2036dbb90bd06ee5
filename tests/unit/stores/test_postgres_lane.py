"""Group commit: who waits together, is answered together, and disturbs nobody."""

import asyncio
from collections.abc import Sequence

import pytest

from redrive.errors import LetterInvalidError, StoreError
from redrive.stores.postgres.lane import Lane


class Server:
    """Answers a group when it is told to, and remembers the groups."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def carry_out(self, jobs: Sequence[str]) -> list[str]:
        self.groups.append(list(jobs))
        await self.may_answer.wait()
        if "away" in jobs:
            raise StoreError("the server is away")
        if "too long" in jobs:
            raise LetterInvalidError("a text is too long")
        return [job.upper() for job in jobs]


async def test_what_is_asked_in_one_turn_goes_together_and_each_gets_its_own_answer() -> None:
    server = Server()
    lane = Lane(server.carry_out, largest=100)
    assert await asyncio.gather(*(lane.submit(job, 1) for job in "abc")) == ["A", "B", "C"]
    assert server.groups == [["a", "b", "c"]]


async def test_what_is_asked_while_a_group_is_under_way_waits_for_the_next() -> None:
    server = Server()
    server.may_answer.clear()
    lane = Lane(server.carry_out, largest=100)
    first = lane.submit("a", 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [lane.submit(job, 1) for job in "bc"]
    server.may_answer.set()
    assert await asyncio.gather(first, *later) == ["A", "B", "C"]
    assert server.groups == [["a"], ["b", "c"]]


async def test_a_group_is_no_heavier_than_it_may_be_give_or_take_one() -> None:
    server = Server()
    lane = Lane(server.carry_out, largest=10)
    await asyncio.gather(*(lane.submit(job, 6) for job in "abcde"))
    assert server.groups == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_job_that_cannot_be_stored_disturbs_no_other_of_its_group() -> None:
    server = Server()
    lane = Lane(server.carry_out, largest=100)
    answers = await asyncio.gather(
        *(lane.submit(job, 1) for job in ("a", "too long", "b")), return_exceptions=True
    )
    assert (answers[0], answers[2]) == ("A", "B")
    assert isinstance(answers[1], LetterInvalidError)


async def test_a_server_that_is_away_is_told_to_all_of_the_group_and_the_next_goes_on() -> None:
    server = Server()
    lane = Lane(server.carry_out, largest=100)
    answers = await asyncio.gather(*(lane.submit(job, 1) for job in ("a", "away")), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreError, StoreError]
    assert await lane.submit("b", 1) == "B"


async def test_who_stops_waiting_stops_nobody_else() -> None:
    server = Server()
    lane = Lane(server.carry_out, largest=100)
    one, two = lane.submit("a", 1), lane.submit("b", 1)
    one.cancel()
    assert await two == "B"
    assert server.groups == [["a", "b"]]


async def test_draining_waits_until_all_is_done() -> None:
    server = Server()
    lane = Lane(server.carry_out, largest=1)
    asked = [lane.submit(job, 1) for job in "abc"]
    await lane.drain()
    assert all(one.done() for one in asked)
    await lane.drain()


async def test_a_lane_that_ends_with_its_loop_leaves_nobody_waiting() -> None:
    server = Server()
    server.may_answer.clear()
    lane = Lane(server.carry_out, largest=1)
    asked = lane.submit("a", 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert lane._running is not None
    lane._running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
