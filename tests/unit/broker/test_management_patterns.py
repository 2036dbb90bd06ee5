"""No pattern that a user of the management API chooses holds up the broker."""

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from redrive.broker.arguments import Declared
from tests.unit.broker.management_place import Place, place

EVIL = "^(a|aa)+$"
HARD = "a" * 100 + "!"


@pytest.fixture
async def here() -> AsyncIterator[Place]:
    async with place() as made:
        yield made


def declare(here: Place, *names: str) -> None:
    for name in names:
        here.broker.vhosts["/"].declare_queue(name, Declared(durable=False), owner=None, now=0)


async def longest_turn(stop: asyncio.Event) -> float:
    """CPU time of the longest turn of the event loop; what other processes do does not count."""
    longest, before = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return longest


async def test_list_by_a_slow_pattern_delays_no_other_request(
    here: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await here.do("PUT", "/api/users/weak", {"password": "p", "tags": "management"})
    await here.do("PUT", "/api/permissions/%2F/weak", {"configure": "", "write": "", "read": ""})
    declare(here, "q", *("a" * length + "!" for length in range(100, 200)))
    stop = asyncio.Event()
    watching = asyncio.create_task(longest_turn(stop))
    paths = [f"/api/queues?page=1&use_regex=true&name={quote(f'^(a|aa|{number})+$')}" for number in range(4)]
    replies = await asyncio.gather(*(here.call("GET", path, who=("weak", "p")) for path in paths))
    stop.set()
    assert [(reply.status, reply.body["filtered_count"]) for reply in replies] == [(200, 0)] * 4
    assert await watching < 0.15  # seconds; one request alone uses 0.2
    assert "time limit" in caplog.text


async def test_list_by_pattern_has_rabbitmqs_semantics(here: Place) -> None:
    declare(here, "orders", "Mail", "amq-1")
    for pattern, names in (
        ("^(?!amq).*", ["Mail", "orders"]),
        ("^ORD", ["orders"]),
        ("[[:upper:]]", ["Mail", "amq-1", "orders"]),
        ("(?-i)[[:upper:]]", ["Mail"]),
    ):
        page = await here.get(f"/api/queues?page=1&use_regex=true&name={quote(pattern)}&columns=name")
        assert [item["name"] for item in page["items"]] == names, pattern
    refused = await here.call("GET", "/api/queues?page=1&use_regex=true&name=(")
    assert refused.status == 400


async def test_policy_is_applied_to_many_queues_in_portions(here: Place) -> None:
    declare(here, *(f"queue-{number}" for number in range(10_000)))
    for number in range(10):
        await here.do(
            "PUT",
            f"/api/policies/%2F/other-{number}",
            {"pattern": f"^x{number}", "definition": {"max-length": 1}},
        )
    stop = asyncio.Event()
    watching = asyncio.create_task(longest_turn(stop))
    await here.do("PUT", "/api/policies/%2F/p", {"pattern": "[05]$", "definition": {"max-length": 7}})
    stop.set()
    assert here.queue("queue-5").policy == "p"
    assert here.queue("queue-9995").options.max_length == 7
    assert here.queue("queue-9996").policy is None
    assert await watching < 0.1  # seconds; all of them in one turn are more than 0.2


async def test_policy_by_an_evil_pattern_is_bounded_and_matches_nothing(
    here: Place, caplog: pytest.LogCaptureFixture
) -> None:
    declare(here, *("a" * length + "!" for length in range(50, 1_050)))
    began = time.process_time()
    await here.do("PUT", "/api/policies/%2F/p", {"pattern": EVIL, "definition": {"max-length": 1}})
    assert time.process_time() - began < 5  # 20 ms for each would be more than twenty
    assert here.queue(HARD).policy is None
    assert "matches nothing from now on" in caplog.text


async def test_permission_by_a_slow_pattern_denies_and_delays_no_other_client(here: Place) -> None:
    await here.do("PUT", "/api/users/weak", {"password": "p", "tags": "management"})
    rights = {"configure": EVIL, "write": EVIL, "read": EVIL}
    await here.do("PUT", "/api/permissions/%2F/weak", rights)
    assert (await here.call("PUT", "/api/queues/%2F/aaa", {}, who=("weak", "p"))).status == 201
    reply = await here.call("PUT", f"/api/queues/%2F/{quote(HARD)}", {}, who=("weak", "p"))
    assert reply.status == 401
