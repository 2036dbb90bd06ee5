"""Letters on the command line: found, read, changed, moved and sent back, by a person or by a script.

Each command is a process of its own on a SQLite file; what is sent goes to a real RabbitMQ and to the embedded broker.
"""

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.clock import SystemClock
from redrive.letters import LetterState
from redrive.stores import cold_files
from redrive.stores.base import Store
from redrive.stores.changes import Fail, Park, Resolve, Settlement
from redrive.stores.sqlite import SqliteStore
from redrive.testing import a_letter, letters
from redrive.testing.factories import a_failure, a_message
from tests.acceptance.serving import PROGRAM
from tests.acceptance.shop import Queue, Shop, ids_of, sending

_CTRL_C = b"\x03"
DECLINED = a_failure("card declined", error_type="PaymentError")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def full(shop: Shop) -> Shop:
    """Five orders and three payments; one of each state that a letter can be in."""
    orders, payments = letters(5), letters(3, "pay", source="payments", failure=DECLINED)

    async def fill(store: Store) -> None:
        await store.add(orders)
        await store.add(payments)
        ids = [letter.id for letter in orders]
        held = {head.id: head.claim_token for head in await store.take(ids[:4], "worker-1")}
        await store.settle(
            [
                Settlement(held[ids[1]], Park(detail="needs a person")),
                Settlement(held[ids[2]], Fail(detail="too often")),
                Settlement(held[ids[3]], Resolve()),
            ]
        )

    shop.store(fill)
    return shop


# --- looking ---------------------------------------------------------------------------------------------


def test_letters_are_listed_for_people_and_for_programs(full: Shop) -> None:
    lines = full.ok("list", "--all").splitlines()
    assert lines[0].split() == ["id", "state", "source", "failed", "redrives", "error"]
    assert len(lines) == 9
    assert len(full.ok("list").splitlines()) == 7
    answer = full.json("list", "source:payments")
    assert (answer["count"], answer["cursor"]) == (3, None)
    assert {head["error_type"] for head in answer["letters"]} == {"PaymentError"}
    assert [line.split()[0] for line in full.ok("list", "source:payments").splitlines()[1:]] == [
        letter_id[:16] for letter_id in ids_of(answer)
    ]


def test_a_listing_goes_on_where_the_last_page_ended(full: Shop) -> None:
    first = full.json("list", "--all", "--limit", "5")
    second = full.json("list", "--all", "--limit", "5", "--cursor", first["cursor"])
    assert second["cursor"] is None
    assert len({*ids_of(first), *ids_of(second)}) == 8
    assert full.ok("list", "--all", "--limit", "5").splitlines()[-1] == "5 of 8 letters; --limit 8 shows all"


def test_a_pipe_gets_no_colours_and_a_screen_does_unless_it_asked_for_none(full: Shop) -> None:
    assert "\x1b" not in full.ok("list")
    seen, code = on_a_screen(full, "list")
    assert code == 0
    assert "\x1b[33m" in seen
    seen, code = on_a_screen(full, "list", env={"NO_COLOR": "1"})
    assert "\x1b[33m" not in seen


def test_a_narrow_screen_gets_lines_that_fit(full: Shop) -> None:
    seen, code = on_a_screen(full, "list", env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert code == 0
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()) <= 80
    assert "…" in seen


def test_what_a_terminal_would_act_upon_is_shown_as_its_escape(shop: Shop) -> None:
    evil = a_failure("\x1b]0;owned\x07\x1b[2J", error_type="Bad\x1b[31mError")
    shop.add(a_letter("x/1", failure=evil, source="or\x1b[2Jders"))
    (found,) = shop.json("list")["letters"]
    for words in (
        ["list"],
        ["groups"],
        ["stats"],
        ["show", found["id"]],
        ["replay", found["id"], "--dry-run"],
    ):
        seen, _ = on_a_screen(shop, *words, env={"NO_COLOR": "1"})
        assert not re.search(r"\x1b\]|\x1b\[2J|\x1b\[31m|\x07", seen), words


def test_a_letter_is_shown_with_its_journey(full: Shop) -> None:
    (failed,) = full.json("list", "state:failed")["letters"]
    full.ok("note", failed["id"][:16], "--text", "ask the bank")
    told = full.ok("show", failed["id"][:16])
    assert re.search(r"^state +failed$", told, re.MULTILINE)
    assert re.search(r"failed +orders +NonRetryableError$", told, re.MULTILINE)
    assert re.search(r"exhaust → failed +worker-1 +too often$", told, re.MULTILINE)
    assert re.search(r"^1 +\S+ \S+ +worker-1 +failed +too often$", told, re.MULTILINE)
    assert re.search(r"anna +ask the bank$", told, re.MULTILINE)
    assert told.endswith('{"order": 12345}\n')
    assert '{"order"' not in full.ok("show", failed["id"], "--no-body")
    answer = full.json("show", failed["id"])
    assert answer["state"] == "dlq_failed"
    assert answer["message"]["body"] == "eyJvcmRlciI6IDEyMzQ1fQ=="
    assert [line["action"] for line in answer["journal"]] == ["claim", "exhaust", "annotate"]
    assert "message" not in full.json("show", failed["id"], "--no-body")


def test_failures_of_one_cause_are_one_group(full: Shop) -> None:
    groups = full.json("groups", "--all")
    assert [(group["count"], group["sources"]) for group in groups] == [(5, ["orders"]), (3, ["payments"])]
    assert full.json("list", f"group:{groups[1]['group']}")["count"] == 3
    assert "PaymentError: card declined" in full.ok("groups", "source:payments")


def test_letters_are_counted(full: Shop) -> None:
    assert full.json("stats")["total"] == 6
    figures = full.json("stats", "--all")
    assert figures["total"] == 8
    assert figures["source"] == {"orders": 5, "payments": 3}
    assert figures["resolution_rate"] == 0.5
    assert re.search(r"^  pending +4$", full.ok("stats"), re.MULTILINE)
    assert full.json("stats", "source:payments")["total"] == 3


def test_top_looks_as_often_as_it_is_told_and_ends_in_order_on_ctrl_c(full: Shop) -> None:
    assert full.ok("top", "--count", "2", "--every", "0.1").count("6 letters, 6 in the last hour") == 2
    watching = full.process("top", "--every", "30", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watching.stdout is not None
    while "PaymentError" not in watching.stdout.readline():
        assert watching.poll() is None
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (0, "")


# --- what is not there, and what is wrong ----------------------------------------------------------------

LOOKING = [
    ["list"],
    ["groups"],
    ["stats"],
    ["operations"],
    ["show", "06"],
    ["replay", "state:pending"],
]


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: words[0])
def test_a_store_that_is_not_there_is_one_line_and_none_is_made(shop: Shop, words: list[str]) -> None:
    assert "redrive.db does not exist" in shop.fails(3, *words)
    assert list(shop.place.iterdir()) == []


def test_an_empty_store_has_nothing_and_says_so(shop: Shop) -> None:
    shop.add()
    assert shop.ok("list") == "no letters match\n"
    assert shop.ok("groups") == "no open letters match\n"
    assert shop.ok("operations") == "no operations yet\n"
    assert shop.ok("stats").startswith("0 letters")
    assert shop.ok("replay", "state:pending", "--yes") == "no letters to send\n"
    assert shop.ok("discard", "state:pending") == "0 letters discarded\n"
    assert shop.json("list") == {"letters": [], "cursor": None, "count": 0}
    assert shop.json("groups") == []
    assert shop.json("operations") == []
    assert shop.json("replay", "state:pending", "--yes")["total"] == 0
    assert shop.json("discard", "state:pending") == {"letters": 0, "left_alone": 0}


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (3, ["show", "zz"], "no letter has an id that begins with 'zz'"),
        (3, ["show", "0" * 26], "no letter has the id"),
        (2, ["show", "06"], "several letters have ids that begin with '06'; pass more characters"),
        (2, ["show", ""], "the id is empty"),
        (2, ["list", "stat:pending"], "did you mean 'state'?"),
        (2, ["list", "state:pendng"], "did you mean 'pending'?"),
        (2, ["list", "--cursor", "xyz"], "the cursor cannot be read"),
        (2, ["replay"], "pass letter ids or a filter, for example: redrive replay 'source:orders'"),
        (2, ["replay", "sort:created"], "no letters selected"),
        (3, ["replay", "0" * 16, "source:orders"], "no letter has an id that begins with"),
        (2, ["replay", "x", "--ramp", "1,two"], "--ramp must be batch sizes"),
        (2, ["replay", "x", "--redirect", "orders"], "--redirect must be OLD=NEW"),
        (2, ["replay", "x", "--canary-timeout", "soon"], "soon"),
        (2, ["replay", "x", "--resume", "op"], "leave out ids and filter"),
        (3, ["replay", "--resume", "op-none"], "no operation has the id 'op-none'"),
        (3, ["operations", "op-none"], "no operation has the id 'op-none'"),
        (2, ["operations", "--cancel"], "--cancel needs the id of an operation"),
        (2, ["discard"], "no letters selected"),
        (2, ["discard", "state:pending"], "confirmation required; pass --yes"),
        (2, ["replay", "state:pending"], "confirmation required; pass --yes"),
        (2, ["edit", "state:pending"], "no edit given: pass --patch"),
        (2, ["edit", "state:pending", "--patch", "{"], "the JSON Patch is not JSON"),
        (2, ["edit", "state:pending", "--merge", "@none.json"], "none.json cannot be read: No such file"),
        (2, ["edit", "state:pending", "--expr", "total = 5"], "unknown name 'total'"),
        (2, ["edit", "state:pending", "--editor"], "--editor takes one letter, got 4"),
        (2, ["edit", "state:pending", "--expr", "body.order = 1"], "pass --yes"),
        (3, ["import", "none.jsonl.zst"], "none.jsonl.zst does not exist"),
        (3, ["import", "."], "contains no archive files"),
        (1, ["import", "redrive.db"], "is not an archive file"),
        (2, ["export", "--format", "archive", "--output", "redrive.db"], "redrive.db is a file; pass a directory"),
        (2, ["export", "--output", "redrive.db"], "redrive.db already exists; pass another name"),
        (2, ["export", "--output", "."], ". is a directory; pass the name of a file"),
        (2, ["export", "--format", "archive"], "an archive needs a file: pass --output FILE"),
        (2, ["export", "--to", "all.jsonl.zst"], "no option '--to'; did you mean '--output'?"),
        (2, ["completion", "tcsh"], "tcsh"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_exit_code(
    full: Shop, code: int, words: list[str], says: str
) -> None:
    assert says in full.fails(code, *words)


@pytest.mark.parametrize("words", [["list"], ["groups"], ["stats"], ["show", "06e4rpx3g1p6"]], ids=" ".join)
def test_a_reader_that_went_away_is_no_reason_to_complain(full: Shop, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = full.run(*words, stdout=writer)
    finally:
        os.close(writer)
    assert (done.stderr, done.returncode) == ("", 141)


def test_a_broker_that_is_not_there_is_told_before_anything_begins(full: Shop) -> None:
    words = ("replay", "state:pending", "--yes", "--force", "--broker", "amqp://127.0.0.1:1")
    assert "cannot be reached" in full.fails(4, *words)
    assert full.json("operations") == []
    assert full.states()["pending"] == 4


# --- changing --------------------------------------------------------------------------------------------


def test_letters_are_discarded_by_the_steps_of_the_lifecycle(full: Shop) -> None:
    told = full.ok("discard", "source:orders", "--reason", "test data", "--yes")
    assert told == "3 letters discarded, 2 unchanged (claimed, resolved or archived)\n"
    assert full.states() == {"pending": 3, "processing": 1, "resolved": 1, "archived": 3}
    archived = full.json("list", "state:archived")["letters"]
    journals = [full.json("show", head["id"])["journal"] for head in archived]
    assert sorted(journal[-1]["action"] for journal in journals) == ["archive", "discard", "discard"]
    assert {journal[-1]["actor"] for journal in journals} == {"anna"}
    assert full.json("discard", "source:orders", "--yes") == {"letters": 0, "left_alone": 5}


def test_a_person_is_asked_and_may_say_no(full: Shop) -> None:
    seen, code = on_a_screen(full, "discard", "source:payments", answers=["n\n"])
    assert code == 1
    assert "discard 3 letters?" in seen
    assert "nothing was changed" in seen
    assert full.states()["pending"] == 4
    seen, code = on_a_screen(full, "discard", "source:payments", answers=["y\n"])
    assert code == 0
    assert "3 letters discarded" in seen
    seen, code = on_a_screen(full, "discard", "state:pending", answers=["\x03"])
    assert code == 130
    assert full.states()["pending"] == 1


def test_letters_are_given_to_somebody_and_taken_back(full: Shop) -> None:
    assert full.ok("assign", "source:payments", "--to", "bert") == "3 letters assigned to bert\n"
    assert full.json("list", "assignee:bert")["count"] == 3
    one = full.json("list", "assignee:bert")["letters"][0]["id"]
    assert full.json("assign", one, "--to", "") == {"letters": 1}
    assert full.json("list", "assignee:bert")["count"] == 2


def test_tags_and_priority_are_changed(full: Shop) -> None:
    assert full.ok("tag", "source:payments", "--add", "vip", "--add", "eu") == "3 letters tagged\n"
    assert full.json("tag", "tag:vip", "--remove", "eu") == {"letters": 3}
    assert {tuple(one["tags"]) for one in full.json("list", "tag:vip")["letters"]} == {("vip",)}
    assert full.ok("priority", "tag:vip", "--to", "-5") == "3 letters set to priority -5\n"
    assert full.json("list", "priority<=-5")["count"] == 3
    done = full.run("tag", "tag:vip")
    assert (done.returncode, "no tags given" in done.stderr) == (2, True)


# --- editing ---------------------------------------------------------------------------------------------


def test_an_edit_is_a_copy_that_names_its_original_which_is_put_away(full: Shop) -> None:
    old = full.json("list", "source:payments")["letters"][0]["id"]
    patch = '[{"op": "replace", "path": "/order", "value": 7}]'
    words = ("edit", old, "--patch", patch, "--set-header", "x-tenant=south", "--remove-header", "x-hops")
    preview = full.ok(*words, "--dry-run")
    assert '-  "order": 12345\n+  "order": 7\n' in preview
    assert '-header x-tenant: "north"\n-header x-hops: 2\n+header x-tenant: "south"\n' in preview
    assert preview.endswith("1 letter would be edited\n")
    assert full.json("list", "--all")["count"] == 8, "a dry run changes nothing"
    answer = full.json(*words, "--yes")
    (made,) = answer["edited"]
    assert made["id"] == old
    assert {"where": "body", "path": "/order", "before": 12345, "after": 7} in made["changes"]
    original, copy = full.whole(old, made["copy"])
    assert (original.state, original.message.body) == (LetterState.ARCHIVED, b'{"order": 12345}')
    assert (copy.state, copy.message.body, copy.derived_from) == (LetterState.PENDING, b'{"order":7}', old)
    assert dict(copy.message.headers) == {"x-tenant": "south"}
    assert made["copy"] in full.ok("show", old)
    assert re.search(rf"^derived from +{old}$", full.ok("show", made["copy"]), re.MULTILINE)


def test_many_are_edited_by_one_expression_and_never_twice_by_a_filter(full: Shop) -> None:
    words = ("edit", "source:payments", "--expr", "body.order = body.order + 1", "--yes")
    assert len(full.json(*words)["edited"]) == 3
    again = full.json(*words)
    assert again["edited"] == []
    assert len(again["left_alone"]) == 6
    assert full.states() == {
        "pending": 4,
        "processing": 1,
        "manual": 1,
        "failed": 1,
        "resolved": 1,
        "archived": 3,
    }
    copies = full.whole(*ids_of(full.json("list", "source:payments", "state:pending")))
    assert {letter.message.body for letter in copies} == {b'{"order":12346}'}


class Later(SystemClock):
    """When the leases of a process that was killed are over."""

    def now(self) -> datetime:
        return super().now() + timedelta(minutes=2)


@pytest.mark.parametrize("after", [0.0, 0.03, 0.1], ids=lambda after: f"{after}s")
def test_an_edit_that_was_killed_is_finished_by_the_same_edit(shop: Shop, after: float) -> None:
    originals = letters(1500)
    shop.add(*originals)
    words = ("edit", "source:orders", "--expr", "body.order = body.order + 1", "--yes")
    running = shop.process(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert running.stderr is not None
    assert running.stderr.readline() == "editing: 500 of 1500\n"
    time.sleep(after)  # to be killed in the middle of something
    running.kill()
    running.wait()
    running.stderr.close()

    async def rescue() -> None:
        store = await SqliteStore.open(shop.place / "redrive.db", clock=Later())
        await store.rescue(retry_in=timedelta(0))
        await store.close()

    asyncio.run(rescue())
    assert shop.json(*words)["refused"] == []
    found = [letter for part in pages(shop, "state:pending") for letter in shop.whole(*part)]
    assert sorted(letter.derived_from or "" for letter in found) == sorted(old.id for old in originals)
    assert {letter.message.body for letter in found} == {b'{"order":12346}'}
    assert shop.states() == {"pending": 1500, "archived": 1500}


def pages(shop: Shop, words: str) -> Iterator[list[str]]:
    """All ids, page by page."""
    cursor: tuple[str, ...] = ()
    while True:
        page = shop.json("list", words, "--limit", "1000", *cursor)
        yield ids_of(page)
        if page["cursor"] is None:
            return
        cursor = ("--cursor", page["cursor"])


def test_manual_and_failed_letters_are_edited_and_held_ones_are_not(full: Shop) -> None:
    answer = full.json("edit", "source:orders", "--merge", '{"order": 1}', "--yes")
    assert (len(answer["edited"]), len(answer["left_alone"])) == (3, 2)
    assert full.states() == {"pending": 6, "processing": 1, "resolved": 1, "archived": 3}
    done = full.json("edit", "state:resolved", "--merge", '{"order": 2}', "--include-closed", "--yes")
    assert len(done["edited"]) == 1
    assert full.states()["resolved"] == 1, "what is resolved stays so"


def test_what_an_edit_does_not_fit_is_told_and_the_others_are_edited(shop: Shop) -> None:
    shop.add(a_letter("a"), a_letter("b", message=a_message(b"\x00\xff", content_type=None)))
    done = shop.run("edit", "source:orders", "--expr", "body.order = 1", "--yes", "--json")
    assert (done.returncode, done.stderr) == (1, "redrive: 1 letter could not be edited\n")
    answer = json.loads(done.stdout)
    assert (len(answer["edited"]), len(answer["refused"])) == (1, 1)
    assert shop.states() == {"pending": 2, "archived": 1}


def test_an_edit_that_changes_nothing_leaves_the_letter_where_it_is(full: Shop) -> None:
    answer = full.json("edit", "source:payments", "--merge", '{"order": 12345}', "--yes")
    assert (answer["edited"], len(answer["unchanged"])) == ([], 3)
    assert full.states()["pending"] == 4


def test_a_new_body_comes_from_a_file_or_from_an_editor(full: Shop) -> None:
    first, second, third = ids_of(full.json("list", "source:payments"))
    (full.place / "body.bin").write_bytes(b'{"order": 9}')
    made = full.json("edit", first, "--body", "body.bin", "--yes")["edited"][0]
    assert full.whole(made["copy"])[0].message.body == b'{"order": 9}'
    editor = full.place / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/12345/77/ "$1"\n', "utf-8")
    editor.chmod(0o755)
    made = full.json("edit", second, "--editor", "--yes", env={"EDITOR": str(editor)})["edited"][0]
    assert full.whole(made["copy"])[0].message.body == b'{"order":77}'
    left = full.fails(1, "edit", third, "--editor", "--yes", env={"EDITOR": "true"})
    assert left == "nothing was changed: the editor was closed without saving"


# --- moving ----------------------------------------------------------------------------------------------


def test_letters_are_exported_and_imported_bit_for_bit(full: Shop) -> None:
    odd = a_letter("odd", message=a_message(b"\x00\xff\n", content_type=None))
    full.add(odd)
    assert full.ok("export", "--all", "--output", "all.jsonl.zst") == "9 letters written to all.jsonl.zst\n"
    assert [path.name for path in full.place.iterdir() if path.name.startswith(".")] == []
    there = {"REDRIVE_STORE_URL": "sqlite:copy.db"}
    told = full.ok("import", "all.jsonl.zst", env=there)
    assert told == "9 letters read: 9 added (4 of them as manual), 0 already present\n"
    again = full.json("import", "all.jsonl.zst", env=there)
    assert (again["added"], again["present"]) == (0, 9)
    ids = ids_of(full.json("list", "--all"))
    messages = [letter.message for letter in full.whole(*ids)]
    assert [letter.message for letter in full.whole(*ids, name="copy.db")] == messages
    assert full.whole(odd.id, name="copy.db")[0].message == odd.message


def test_a_filter_says_what_is_exported_and_a_folder_takes_any_number_of_files(full: Shop) -> None:
    into_folder = ("export", "--all", "--format", "archive", "--output")
    answer = full.json(*into_folder, "backup", "source:payments")
    assert (answer["letters"], len(answer["files"]), answer["refused"]) == (3, 1, [])
    (file,) = cold_files.listing(full.place / "backup")
    assert {letter.source for letter in cold_files.read(file.path)} == {"payments"}
    full.json(*into_folder, "backup", "source:orders")
    there = {"REDRIVE_STORE_URL": "sqlite:copy.db"}
    assert full.json("import", "backup", env=there)["added"] == 8
    assert full.json(*into_folder, "nothing", "source:none") == {"letters": 0, "files": [], "refused": []}
    assert not (full.place / "nothing").exists()


def test_an_export_never_replaces_a_file(full: Shop) -> None:
    full.ok("export", "--output", "all.jsonl.zst")
    before = (full.place / "all.jsonl.zst").read_bytes()
    assert "all.jsonl.zst already exists" in full.fails(2, "export", "--output", "all.jsonl.zst")
    assert (full.place / "all.jsonl.zst").read_bytes() == before


def test_a_damaged_file_gives_what_is_before_the_damage_and_says_so(shop: Shop) -> None:
    shop.add(*(a_letter(f"o/{n}", message=a_message(os.urandom(3000))) for n in range(150)))
    shop.ok("export", "--output", "all.jsonl.zst")
    whole = (shop.place / "all.jsonl.zst").read_bytes()
    (shop.place / "cut.jsonl.zst").write_bytes(whole[: len(whole) // 2])
    there = {"REDRIVE_STORE_URL": "sqlite:copy.db"}
    done = shop.run("import", "cut.jsonl.zst", env=there)
    assert done.returncode == 1
    count = int(re.search(r"the (\d+) letters before that were restored", done.stderr)[1])  # type: ignore[index]
    assert 0 < count < 150
    assert shop.json("stats", env=there)["total"] == count


# --- sending back ----------------------------------------------------------------------------------------


@pytest.fixture
def queue(broker_url: str) -> Any:
    made = Queue(broker_url)
    yield made
    made.connection.close()


def test_a_dry_run_lists_exactly_what_is_then_sent_and_a_second_run_sends_nothing(
    shop: Shop, queue: Queue, broker_url: str
) -> None:
    shop.add(*letters(25))
    shop.add(*letters(3, "pay", source="payments"))
    words = sending(broker_url, "source:orders")
    preview = ids_of(shop.json(*words, "--dry-run"))
    assert queue.got() == []
    answer = shop.json(*words)
    assert (answer["state"], answer["outcomes"]) == ("done", {"sent": 25})
    got = queue.got()
    assert [headers["redrive-id"] for headers, _ in got] == preview
    assert {headers["redrive-operation"] for headers, _ in got} == {answer["id"]}
    again = shop.json(*words)
    assert (again["total"], again["left_out"]) == (0, 25)
    assert shop.json("replay", "--resume", answer["id"], "--broker", broker_url)["outcomes"] == {"sent": 25}
    assert queue.got() == []
    assert shop.states() == {"pending": 3, "processing": 25}
    items = shop.json("operations", answer["id"], "--limit", "100")["items"]
    assert [item["letter_id"] for item in items] == preview
    assert {item["outcome"] for item in items} == {"sent"}
    assert answer["id"] in shop.ok("operations")


def test_canary_ramp_and_rate_send_all_of_it_in_their_own_time(
    shop: Shop, queue: Queue, broker_url: str
) -> None:
    shop.add(*letters(13))
    careful = (
        "--canary",
        "2",
        "--canary-timeout",
        "1s",
        "--ramp",
        "1,3",
        "--batch-size",
        "4",
        "--rate",
        "20",
    )
    # Nothing consumes here, so the canaries report nothing, which stops a replay unless success is assumed.
    stopped = shop.run(*sending(broker_url, "source:orders"), *careful)
    assert stopped.returncode == 1
    assert "is stopped: 2 sent of 13, oldest first (0 of 2 canaries reported within 1s; " in stopped.stderr
    (operation,) = shop.json("operations")
    queue.got()
    shop.json("operations", operation["id"], "--cancel")
    shop.add(*letters(2, "more"))
    began = time.monotonic()
    done = shop.run(*sending(broker_url, "source:orders"), *careful, "--assume-success")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 1 + 11 / 20 * 0.9
    assert len(queue.got()) == 13
    assert re.search(r"^canary: 2 of 13$", done.stderr, re.MULTILINE)
    assert re.search(r"is done: 13 sent of 13, oldest first$", done.stdout, re.MULTILINE)


def test_ctrl_c_stops_a_replay_in_order_and_resume_sends_the_rest_once(
    shop: Shop, queue: Queue, broker_url: str
) -> None:
    shop.add(*letters(40))
    words = sending(broker_url, "source:orders", "--batch-size", "1", "--rate", "5")
    running = shop.process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stderr is not None
    assert running.stderr.readline().startswith("sending: 1 of 40")
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=30)
    assert running.returncode == 1, errors
    assert out == ""
    assert "stopping; press Ctrl-C again to stop immediately" in errors
    (stopped,) = shop.json("operations")
    assert f"continue with: redrive replay --resume {stopped['id']}" in errors
    assert stopped["state"] == "stopped"
    sent = stopped["outcomes"]["sent"]
    assert 1 <= sent < 40
    resume = ("replay", "--resume", stopped["id"], "--broker", broker_url, "--yes", "--force")
    assert len(ids_of(shop.json(*resume, "--dry-run"))) == 40 - sent
    assert "leave out --rate" in shop.fails(2, *resume, "--rate", "5")
    assert "replay aborted: health check failed (orders: 0 consumers, " in shop.fails(1, *resume[:-1])
    assert shop.json(*resume)["outcomes"] == {"sent": 40}
    got = [headers["redrive-id"] for headers, _ in queue.got()]
    assert (len(got), len(set(got))) == (40, 40)


def test_letters_go_to_another_queue_or_by_a_redirect(shop: Shop, broker_url: str) -> None:
    orders, other = Queue(broker_url), Queue(broker_url, "repair")
    shop.add(*letters(4))
    first, *rest = ids_of(shop.json("list"))
    shop.json(*sending(broker_url, first[:16], "--to", "repair", "--new-message-id"))
    shop.json(*sending(broker_url, *rest, "--redirect", "orders=repair"))
    assert (len(orders.got()), len(other.got())) == (0, 4)
    for each in (orders, other):
        each.connection.close()


def test_a_queue_that_is_not_there_is_told_and_nothing_is_lost(
    shop: Shop, queue: Queue, broker_url: str
) -> None:
    shop.add(*letters(2, source="ordres"))
    said = shop.fails(4, *sending(broker_url, "source:ordres"))
    (operation,) = shop.json("operations")
    assert operation["state"] == "stopped"
    assert operation["id"] in said
    assert shop.states() == {"pending": 2}
    again = (
        "replay",
        "source:ordres",
        "--yes",
        "--to",
        "orders",
        "--broker",
        broker_url,
        "--force",
    )
    assert shop.json(*again)["outcomes"] == {"sent": 2}
    assert len(queue.got()) == 2


def test_letters_that_are_over_are_sent_as_copies_if_asked(full: Shop, queue: Queue, broker_url: str) -> None:
    closed = "source:orders state:failed,resolved"
    answer = full.json(*sending(broker_url, closed))
    assert (answer["total"], answer["left_out"]) == (0, 2)
    assert full.json(*sending(broker_url, closed, "--include-closed"))["outcomes"] == {"sent": 2}
    assert len(queue.got()) == 2
    assert full.states()["failed"] == 1


def test_an_operation_is_cancelled_once(shop: Shop, queue: Queue, broker_url: str) -> None:
    shop.add(*letters(2, source="ordres"))
    shop.fails(4, *sending(broker_url, "source:ordres"))
    (operation,) = shop.json("operations")
    assert shop.json("operations", operation["id"], "--cancel")["state"] == "cancelled"
    assert "is already cancelled" in shop.fails(1, "operations", operation["id"], "--cancel")
    assert "is cancelled" in shop.fails(1, "replay", "--resume", operation["id"], "--broker", broker_url)


def test_an_edited_letter_is_sent_at_once_if_asked(shop: Shop, queue: Queue, broker_url: str) -> None:
    shop.add(*letters(3))
    words = ("edit", "source:orders", "--merge", '{"order": 5}', "--replay", "--force", "--yes")
    answer = shop.json(*words, "--broker", broker_url)
    assert answer["operation"]["outcomes"] == {"sent": 3}
    got = queue.got()
    assert [body for _, body in got] == [b'{"order":5}'] * 3
    assert {headers["redrive-id"] for headers, _ in got} == {one["copy"] for one in answer["edited"]}
    assert shop.states() == {"processing": 3, "archived": 3}


def test_edit_stands_when_its_letters_cannot_be_sent(shop: Shop, broker_url: str) -> None:
    shop.add(*letters(2, source="gone"))
    words = ("edit", "source:gone", "--merge", '{"order": 5}', "--replay", "--force", "--yes")
    done = shop.run(*words, "--broker", broker_url, "--json")
    assert done.returncode == 4
    assert "gone" in done.stderr
    answer = json.loads(done.stdout)
    assert (len(answer["edited"]), answer["operation"]) == (2, None)
    assert shop.states() == {"pending": 2, "archived": 2}


def test_edit_changes_nothing_when_the_broker_cannot_be_reached(shop: Shop) -> None:
    shop.add(*letters(2))
    words = ("edit", "source:orders", "--merge", '{"order": 5}', "--replay", "--force", "--yes")
    said = shop.fails(4, *words, "--broker", "amqp://127.0.0.1:1", "--json")
    assert said.startswith("nothing was edited or sent: 127.0.0.1:1 cannot be reached")
    assert shop.states() == {"pending": 2}


def test_a_screen_gets_a_bar_and_its_cursor_back(shop: Shop, queue: Queue, broker_url: str) -> None:
    shop.add(*letters(60))
    words = sending(broker_url, "source:orders", "--batch-size", "10", "--rate", "100")
    seen, code = on_a_screen(shop, *words, env={"TERM": "xterm-256color"})
    assert code == 0
    assert "60/60" in seen
    assert "━" in seen
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") >= 1
    assert "is done: 60 sent of 60" in seen


# --- completion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shop: Shop, shell: str) -> None:
    script = shop.ok("completion", shell)
    assert "_REDRIVE_COMPLETE" in script
    assert script.endswith(shop.ok(env={"_REDRIVE_COMPLETE": f"{shell}_source"}))


def test_a_shell_is_told_commands_and_options(shop: Shop) -> None:
    def completed(words: str, at: int) -> set[str]:
        env = {"_REDRIVE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return {line.partition(",")[2] for line in shop.ok(env=env).splitlines()}

    assert completed("redrive re", 1) == {"replay", "resolve"}
    assert {"--dry-run", "--canary", "--order"} <= completed("redrive replay --", 2)
    assert completed("redrive completion ", 2) == {"bash", "zsh", "fish"}


# --- a screen --------------------------------------------------------------------------------------------


def on_a_screen(
    shop: Shop, *words: str, env: dict[str, str] | None = None, answers: list[str] | None = None
) -> tuple[str, int]:
    """What a person sees who types the command, and its exit code; each answer is given to a question."""
    waiting = list(answers or [])
    child, screen = pty.fork()
    if child == 0:  # the new process, with the screen as its terminal
        os.chdir(shop.place)
        os.execve(
            sys.executable,
            [sys.executable, "-c", PROGRAM, *words],
            {**shop.env, "TERM": "xterm", "COLUMNS": "160", "LINES": "200", **(env or {})},
        )
    seen, answered, end = b"", b"", time.monotonic() + 60
    while True:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        if not select.select([screen], [], [], 0.5)[0]:
            if answered == _CTRL_C:  # readline misses one that comes before it reads: a person tries again
                os.write(screen, answered)
            continue
        try:
            piece = os.read(screen, 65536)
        except OSError:
            break  # the terminal is gone with its process
        if not piece:
            break
        seen += piece
        if waiting and seen.rstrip().endswith(b"[y/N]:"):
            answered = waiting.pop(0).encode()
            os.write(screen, answered)
    _, status = os.waitpid(child, 0)
    os.close(screen)
    return seen.decode("utf-8", "replace"), os.waitstatus_to_exitcode(status)
