"""The pages on consuming keep their word: what they show is run here, and what it prints has to stand in them.

The files are taken out of the pages and run as a reader would run them; only the broker's URL is another. Times and
ids of letters differ from run to run and are left out of the comparison, everything else is not.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive import __file__ as package
from redrive.formats import own
from redrive.testing.transport_suite import RestartSuite, TransportSuite
from redrive.transports import base
from redrive.transports.rabbitmq import envelope, url
from tests.acceptance.test_consume_process import Consuming, exists, send, until
from tests.services import RabbitMQ

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial" / "first-consumer.md").read_text("utf-8")
CONTRACT = (ROOT / "docs" / "reference" / "transport-contract.md").read_text("utf-8")
RABBITMQ = (ROOT / "docs" / "reference" / "transport-rabbitmq.md").read_text("utf-8")
URL = "amqp://localhost"


# --- what stands in the pages ------------------------------------------------------------------------------


def section(page: str, heading: str) -> str:
    """The text under a heading."""
    return page.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order; "" is none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for found, body in fenced if found == language]


def printed_by(text: str, command: str) -> list[str]:
    """The lines that stand under a command in a console block, up to the next command."""
    for block in blocks(text, "console"):
        before, found, after = block.partition(f"$ {command}\n")
        if found and (not before or before.endswith("\n")):
            return after.split("\n$ ")[0].splitlines()
    raise AssertionError(f"the page does not show what '{command}' prints")


def files_of(page: str) -> dict[str, str]:
    """The programs that the page lets its reader save, by their names."""
    found = re.findall(
        r"save this as `(\w+\.py)`:\n\n```python\n(.*?)^```$", page, re.IGNORECASE | re.MULTILINE | re.DOTALL
    )
    return dict(found)


def headers_among(lines: list[str]) -> list[str]:
    """The lines that begin a header, whatever their order, without what differs from machine to machine."""
    found = sorted(line for line in lines if line.startswith("  redrive-"))
    found = [re.sub("~[0-9a-f]{16}$", "~…", line) for line in found]
    return [re.sub(r"(redrive-(?:host-cpu|host-memory|redacted)): .*", r"\1: …", line) for line in found]


def without_times(line: str) -> str:
    """The line without what differs from run to run."""
    line = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d+(\+00:00)?", "TIME", line)
    return re.sub(r"MessageId=\w{26}\b", "MessageId=ID", line)


def log_lines(lines: list[str]) -> list[str]:
    """The lines of a log, without tracebacks and times."""
    return [line for line in map(without_times, lines) if line.startswith("TIME ")]


# --- running it --------------------------------------------------------------------------------------------


@pytest.fixture
def consuming(tmp_path: Path) -> Iterator[Callable[..., Consuming]]:
    """Starts `redrive consume shop` in the test's folder, and ends it with the test."""
    started: list[Consuming] = []

    def start(*options: str) -> Consuming:
        started.append(Consuming(tmp_path, *options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.end()
        for stream in (each.process.stdout, each.process.stderr):
            assert stream is not None
            stream.close()


def run(place: Path, name: str) -> list[str]:
    """What a program of the reader's prints; it must not complain."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
    done = subprocess.run(
        [sys.executable, name],
        cwd=place,
        env={**clean, "PYTHONPATH": str(Path(package).resolve().parents[1]), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{name}: {done.stderr}"
    return done.stdout.splitlines()


def test_the_readmes_consumer_has_ten_lines_and_does_what_it_says(
    consuming: Callable[..., Consuming], embedded: RabbitMQ, tmp_path: Path
) -> None:
    # Given the README's consumer, run by the README's command on a broker elsewhere
    text = section(README, "A consumer in ten lines")
    [shop] = blocks(text, "python")
    assert len([line for line in shop.splitlines() if line]) == 10
    (tmp_path / "shop.py").write_text(shop)
    shown = printed_by(README, "redrive consume shop")
    running = consuming("--broker", embedded.amqp_url)
    assert [running.until_it_says("redrive consume")] == shown
    until(lambda: exists(embedded.amqp_url), 40, lambda: str(running.errors))
    # When an order comes
    send(embedded.amqp_url, b'{"id": 17, "total": 3.5}')
    # Then its handler has seen it
    assert running.until_it_says("order") == "order 17: 3.50"
    assert running.end() == 0


def test_the_tutorial_has_the_readmes_consumer() -> None:
    [shop] = blocks(section(README, "A consumer in ten lines"), "python")
    assert files_of(TUTORIAL)["shop.py"] == shop


def test_the_tutorial_of_the_first_consumer_shows_what_happens(
    consuming: Callable[..., Consuming], broker_url: str, tmp_path: Path
) -> None:
    # Given the reader's files, and the consumer running
    files = files_of(TUTORIAL)
    assert list(files) == ["shop.py", "send.py", "dead.py", "replay.py"]
    for name, text in files.items():
        assert text.count(f'"{URL}"') == 1, f"{name} names the broker once"
        (tmp_path / name).write_text(text.replace(f'"{URL}"', repr(broker_url)))
    running = consuming()
    assert [running.until_it_says("redrive consume")] == printed_by(TUTORIAL, "redrive consume shop")
    until(lambda: exists(broker_url), 40, lambda: str(running.errors))
    after_sending, after_replaying = (block.splitlines() for block in blocks(TUTORIAL, ""))

    # When a good and a broken order are sent, then the one is handled and the other given up, as shown
    assert run(tmp_path, "send.py") == printed_by(TUTORIAL, "python send.py")
    assert running.until_it_says("order") == after_sending[0]
    shown_lines = [without_times(line) for line in after_sending[1:] if line != "…"]  # that is the traceback
    until(lambda: len(log_lines(running.errors)) >= len(shown_lines), 30, lambda: str(running.errors))
    assert log_lines(running.errors) == shown_lines

    # And its dead letter tells what the page shows, where the stack is cut; RabbitMQ sorts the headers
    shown = list(map(without_times, printed_by(TUTORIAL, "python dead.py")))
    told = list(map(without_times, run(tmp_path, "dead.py")))
    assert told[0] == shown[0]
    assert headers_among(told) == headers_among(shown)
    assert shown[-2] == "…"
    assert shown[-1] in told
    assert list(map(without_times, run(tmp_path, "dead.py"))) == told, "to look takes nothing"

    # When it is mended and sent back, then the consumer sees it and the dead letter is gone
    assert run(tmp_path, "replay.py") == printed_by(TUTORIAL, "python replay.py")
    assert [running.until_it_says("order")] == after_replaying
    assert run(tmp_path, "dead.py") == []
    assert running.end() == 0


# --- the contract of transports ----------------------------------------------------------------------------

SENTENCES = {
    number: " ".join(sentence.split())  # one that is longer than a line goes on in the next, indented
    for number, sentence in re.findall(r"^T(\d+) +(.+(?:\n {5}.+)*)$", base.__doc__ or "", re.MULTILINE)
}
TESTS = {name for suite in (TransportSuite, RestartSuite) for name in dir(suite) if name.startswith("test_")}


def test_the_sentences_of_the_transports_contract_are_numbered_without_gaps() -> None:
    assert list(SENTENCES) == [str(number) for number in range(1, len(SENTENCES) + 1)]
    assert len(SENTENCES) >= 21


@pytest.mark.parametrize("number", SENTENCES)
def test_every_sentence_of_the_transports_contract_has_a_test(number: str) -> None:
    assert any(name.startswith(f"test_t{number}_") for name in TESTS)


def test_no_test_of_the_transport_suite_is_without_its_sentence() -> None:
    numbers = {name.removeprefix("test_t").partition("_")[0] for name in TESTS}
    assert numbers == set(SENTENCES)


@pytest.mark.parametrize("number", SENTENCES)
def test_every_sentence_of_the_transports_contract_stands_in_the_reference(number: str) -> None:
    assert f"| T{number} | {SENTENCES[number]} |" in CONTRACT


# --- the RabbitMQ transport --------------------------------------------------------------------------------


def headers_in(table: str) -> set[str]:
    """The headers that a table of the page names; "…" stands for several."""
    rows = RABBITMQ.split(f"<!-- table: {table} -->")[1].split("<!-- end -->")[0]
    cells = [row.split("|")[1] for row in rows.splitlines() if row.startswith("|")]
    names = [name for cell in cells for name in re.findall(r"`(redrive-[\w-]+…?)`", cell)]
    ends = ("queue", "reason", "exchange")
    return {name.replace("…", end) for name in names for end in (ends if "…" in name else ("",))}


def test_every_header_of_a_dead_letter_stands_in_the_reference() -> None:
    assert headers_in("headers") == {own.PREFIX + name for name in own._OF_THE_DEATH}


def test_every_header_of_a_copy_stands_in_the_reference() -> None:
    words = {value for value in vars(envelope).values() if isinstance(value, str)}
    moved = {*envelope._CARBON_COPIES.values(), *(envelope._ORIGINAL + name for name in envelope._DEATHS)}
    marks = {word for word in words if re.fullmatch(r"redrive-[\w-]*\w", word)}
    assert headers_in("copies") == marks | moved


@pytest.mark.parametrize("option", url._KNOWN)
def test_every_option_of_a_url_stands_in_the_reference(option: str) -> None:
    rows = [line.split("|")[1] for line in section(RABBITMQ, "URL").splitlines() if line.startswith("| `")]
    assert any(f"`{option}`" in row for row in rows)
