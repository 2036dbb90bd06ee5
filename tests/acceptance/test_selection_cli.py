"""Positional ids and filters, removed options, and output for people."""

import base64
import contextlib
import csv
import io
import json
import os
import pty
import re
import sys
from pathlib import Path

import pytest

from redrive.letters import Origin
from redrive.stores.base import Store
from redrive.stores.changes import Resolve, Settlement
from redrive.testing import a_letter, letters
from redrive.testing.factories import a_message
from tests.acceptance.serving import PROGRAM
from tests.acceptance.shop import Shop, ids_of
from tests.acceptance.test_letters_cli import on_a_screen

WIDE = {"COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Three orders, of which one is resolved, and two payments."""
    shop = Shop(tmp_path)
    orders = letters(3)
    shop.add(*orders, *letters(2, "pay", source="payments"))

    async def resolve(store: Store) -> None:
        (head,) = await store.take([orders[0].id], "worker-1")
        await store.settle([Settlement(head.claim_token, Resolve())])

    shop.store(resolve)
    return shop


# --- selecting -------------------------------------------------------------------------------------------


def test_ids_and_filter_select_the_letters_that_match_both(shop: Shop) -> None:
    both = [each[:16] for each in ids_of(shop.json("list", "--all"))]
    assert len(ids_of(shop.json("list", *both))) == 5
    assert len(ids_of(shop.json("list", *both, "source:payments"))) == 2


def test_id_and_state_find_closed_letters_without_all(shop: Shop) -> None:
    (resolved,) = ids_of(shop.json("list", "state:resolved"))
    assert ids_of(shop.json("list", resolved[:16])) == [resolved]
    assert resolved not in ids_of(shop.json("list"))


def test_negated_term_is_not_an_option(shop: Shop) -> None:
    assert shop.json("list", "-source:orders", "--all")["count"] == 2
    assert shop.json("discard", "source:orders,payments", "-source:orders", "--yes")["letters"] == 2


def test_list_names_all_if_only_closed_letters_match(shop: Shop) -> None:
    shop.ok("discard", "source:payments", "--yes")
    assert shop.ok("list", "source:payments") == (
        "no open letters match; --all lists 2 resolved, failed or archived\n"
    )


@pytest.mark.parametrize(
    "words", ["replay", "discard", "edit --merge {}", "resolve --reason x", "tag --add x", "assign --to anna",
              "priority --to 1", "note --text x", "set-broker shop"],
)  # fmt: skip
def test_command_that_changes_letters_requires_a_selection(shop: Shop, words: str) -> None:
    name = words.split(maxsplit=1)[0]
    assert shop.fails(2, *words.split()) == (
        f"no letters selected: pass letter ids or a filter, for example: redrive {name} 'source:orders'"
    )


@pytest.mark.parametrize(
    ("words", "new"),
    [
        ("replay x --batch 5", "--batch-size"),
        ("replay x --canary-wait 5s", "--canary-timeout"),
        ("replay x --copies", "--include-closed"),
        ("replay x --new-id", "--new-message-id"),
        ("replay x --skip-done", "--skip-processed"),
        ("replay x --stop-at 5", "--max-failure-rate"),
        ("replay x --to-exchange", "--broadcast"),
        ("replay x --to-partition", "--same-partition"),
        ("edit x --copies", "--include-closed"),
        ("discard x --why y", "--reason"),
        ("alerts --over", "--all"),
        ("top --times 1", "--count"),
        ("export --to x", "--output"),
    ],
)
def test_renamed_option_is_refused_with_its_new_name(shop: Shop, words: str, new: str) -> None:
    (old,) = [word for word in words.split() if word.startswith("--")]
    assert shop.fails(2, *words.split()) == f"no option '{old}'; did you mean '{new}'?"


@pytest.mark.parametrize("name", ["replay", "discard", "edit", "assign", "resolve"])
def test_where_is_refused_with_the_positional_spelling(shop: Shop, name: str) -> None:
    assert shop.fails(2, name, "--where", "source:orders") == (
        f"no option '--where': filters are positional now: redrive {name} 'source:orders'"
    )


def test_discard_dry_run_changes_nothing(shop: Shop) -> None:
    said = shop.ok("discard", "source:orders", "--dry-run")
    assert said.endswith("2 letters would be discarded, 1 unchanged (claimed, resolved or archived)\n")
    assert shop.states() == {"pending": 4, "resolved": 1}


# --- export ----------------------------------------------------------------------------------------------


def test_export_writes_json_lines_to_standard_output(shop: Shop) -> None:
    lines = [json.loads(line) for line in shop.ok("export", "source:orders").splitlines()]
    assert [line["source"] for line in lines] == ["orders", "orders"]
    assert base64.b64decode(lines[0]["message"]["body"]) == b'{"order": 12345}'


def test_export_writes_csv_to_a_new_file(shop: Shop) -> None:
    assert shop.ok("export", "--all", "--output", "all.csv") == "5 letters written to all.csv\n"
    rows = list(csv.DictReader(io.StringIO((shop.place / "all.csv").read_text())))
    assert sorted(row["state"] for row in rows) == ["pending"] * 4 + ["resolved"]
    assert (shop.place / "all.csv").stat().st_mode & 0o077 == 0


# --- output for people -----------------------------------------------------------------------------------


def test_list_fits_80_columns_and_shows_the_error(shop: Shop) -> None:
    seen, code = on_a_screen(shop, "list", env=WIDE)
    rows = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
    assert code == 0
    assert max(map(len, rows)) <= 80
    assert "TimeoutError: External" in seen


def test_show_has_kafka_position_and_a_hex_dump(shop: Shop) -> None:
    origin = Origin(transport="kafka", source="events", partition=3, offset=42)
    message = a_message(bytes(range(20)), key=b"customer-7", content_type=None)
    shop.add(a_letter("k", origin=origin, message=message))
    (letter_id,) = ids_of(shop.json("list", "source:events"))
    said = shop.ok("show", letter_id)
    assert re.search(r"^source +events \(partition 3, offset 42\)$", said, re.MULTILINE)
    assert re.search(r"^key +customer-7$", said, re.MULTILINE)
    assert "00000010  10 11 12 13 " in said
    assert "rule None" not in said


def test_colour_is_forced_in_a_pipe(shop: Shop) -> None:
    assert "\x1b[33m" in shop.ok("list", env={"FORCE_COLOR": "1"})
    assert "\x1b" not in shop.ok("list", env={"FORCE_COLOR": "1", "NO_COLOR": "1"})


def test_top_fits_the_terminal(shop: Shop) -> None:
    shop.add(*(a_letter(f"s/{n}", source=f"queue-{n}") for n in range(40)))
    seen, code = on_a_screen(shop, "top", "--count", "1", env=WIDE)
    assert code == 0
    assert len(seen.splitlines()) <= 24
    assert "more" in seen


def test_top_ends_when_q_is_pressed(shop: Shop) -> None:
    child, screen = pty.fork()
    if child == 0:
        os.chdir(shop.place)
        command = [sys.executable, "-c", PROGRAM, "top", "--every", "60"]
        os.execve(sys.executable, command, {**shop.env, **WIDE, "TERM": "xterm"})
    seen = b""
    while b"payments" not in seen:
        seen += os.read(screen, 65536)
    os.write(screen, b"q")
    with contextlib.suppress(OSError):  # the terminal closes with its process
        while os.read(screen, 65536):
            pass
    _, status = os.waitpid(child, 0)
    os.close(screen)
    assert os.waitstatus_to_exitcode(status) == 0


def test_shell_completes_fields_states_sources_and_ids(shop: Shop) -> None:
    def completed(word: str) -> set[str]:
        env = {"_REDRIVE_COMPLETE": "bash_complete", "COMP_WORDS": f"redrive list {word}", "COMP_CWORD": "2"}
        return {line.partition(",")[2] for line in shop.ok(env=env).splitlines()}

    assert "source:" in completed("so")
    assert completed("state:p") == {"state:pending", "state:processing"}
    assert completed("source:") == {"source:orders", "source:payments"}
    (first, *_) = ids_of(shop.json("list"))
    assert completed(first[:16]) == {first[:16]}
