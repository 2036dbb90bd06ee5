"""`redrive alerts` in this process: what is wrong in every way is one line, and changes nothing."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.cli.alerts import acknowledged
from redrive.cli.root import run
from redrive.clock import SystemClock
from redrive.errors import IncidentNotFoundError, QueryError
from redrive.stores.sqlite import SqliteStore
from redrive.watch.alerts.alarm import Book
from redrive.watch.alerts.alert import Severity
from redrive.watch.alerts.incidents import Finding, Incident
from redrive.watch.alerts.written import NAME, Document

NOW = SystemClock().now()
Say = Callable[..., tuple[int, str, str]]


def incident(incident_id: str, subject: str = "orders", **changes: Any) -> Incident:
    found = Finding(
        severity=changes.pop("severity", Severity.WARNING),
        badness=1.0,
        text=f"{subject} is not well.",
        component="RabbitMQ",
    )
    began = NOW - timedelta(hours=1)
    fields = {
        "began_at": began,
        "raised_at": began,
        "told_at": began,
        "told_severity": found.severity,
        **changes,
    }
    return Incident(id=incident_id, rule="dlq-depth", subject=subject, found=found, **fields)


def book() -> Book:
    """Three that are open, one that is only suspected, one that is over."""
    return Book(
        current={
            "a": incident("i-aa11", "old warning", began_at=NOW - timedelta(days=2)),
            "b": incident("i-aa22", "new critical", severity=Severity.CRITICAL),
            "c": incident("i-cc33", "old critical", severity=Severity.CRITICAL, began_at=NOW - timedelta(days=1)),
            "d": incident("i-dd44", "suspected", raised_at=None, told_at=None),
        },
        over=[incident("i-ee55", "ended", over_at=NOW)],
    )  # fmt: skip


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The command line in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGNAME", "anna")
    for name in ("REDRIVE_STORE_URL", "REDRIVE_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def say(*words: str) -> tuple[int, str, str]:
        code = run(["alerts", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return say


def write(body: bytes) -> None:
    async def work() -> None:
        store = await SqliteStore.open(Path("redrive.db"))
        try:
            assert await store.remember(NAME, body, version=(await store.recall(NAME)).version)
        finally:
            await store.close()

    asyncio.run(work())


def written() -> Document:
    async def work() -> bytes:
        store = await SqliteStore.open(Path("redrive.db"))
        try:
            return (await store.recall(NAME)).body or b""
        finally:
            await store.close()

    return msgspec.msgpack.decode(asyncio.run(work()), type=Document)


@pytest.fixture
def full(say: Say) -> Say:
    write(msgspec.msgpack.encode(Document(book=book())))
    return say


# --- list ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["list"]], ids=["alerts", "alerts list"])
def test_the_worst_and_oldest_come_first_and_the_suspected_not_at_all(full: Say, words: list[str]) -> None:
    code, out, err = full(*words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["id", "severity", "since", "rule", "acknowledged", "by", "text"]
    assert [line.split()[0] for line in lines[1:]] == ["i-cc33", "i-aa22", "i-aa11"]
    assert lines[3].split("  ")[-1].strip() == "old warning is not well."
    assert "2d ago" in lines[3]


def test_those_that_have_ended_come_last_and_only_if_they_are_asked_for(full: Say) -> None:
    assert "i-ee55" not in full("--json")[1]
    found = json.loads(full("--all", "--json")[1])
    assert [one["id"] for one in found] == ["i-cc33", "i-aa22", "i-aa11", "i-ee55"]
    assert [one["over_at"] is None for one in found] == [True, True, True, False]
    lines = full("--all")[1].splitlines()
    assert lines[0].split()[:4] == ["id", "severity", "since", "ended"]
    assert lines[-1].count(" ago") == 2


def test_incident_has_the_command_that_shows_more(say: Say) -> None:
    letters = msgspec.structs.replace(incident("i-1", "orders"), rule="dead-letter", broker="shop")
    unknown = msgspec.structs.replace(incident("i-2"), rule="of-an-earlier-configuration")
    write(msgspec.msgpack.encode(Document(book=Book(current={"a": letters, "b": unknown}))))
    found = {one["id"]: one["link"] for one in json.loads(say("--json")[1])}
    assert found == {
        "i-1": "redrive list 'broker:shop source:orders state:pending,processing,manual'",
        "i-2": None,
    }


def test_people_are_shown_the_last_twenty_and_programs_all_that_have_ended(say: Say) -> None:
    over = [incident(f"i-{number:02}", over_at=NOW) for number in range(50)]
    write(msgspec.msgpack.encode(Document(book=Book(over=over))))
    lines = say("--all")[1].splitlines()
    assert lines[0] == "no open incidents"
    assert [line.split()[0] for line in (lines[2], lines[-2])] == ["i-49", "i-30"]
    assert lines[-1] == "30 more have ended; --json lists all"
    assert len(json.loads(say("--all", "--json")[1])) == 50


def test_with_nothing_open_it_says_so_in_one_sentence(say: Say) -> None:
    write(msgspec.msgpack.encode(Document()))
    assert say() == (0, "no open incidents\n", "")
    assert say("--all") == (0, "no open incidents\n", "")
    assert say("--json") == (0, "[]\n", "")


def test_what_a_terminal_would_act_upon_is_shown_as_its_escape(say: Say) -> None:
    evil = incident("i-1", "\x1b[2J\norders", acknowledged_by="\x1b]0;owned\x07")
    write(msgspec.msgpack.encode(Document(book=Book(current={"a": evil}))))
    out = say()[1]
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out
    assert "\x07" not in out


@pytest.mark.parametrize("words", [["list"], ["ack", "i-1"]], ids=" ".join)
def test_what_cannot_be_read_is_one_line_and_stays_as_it_is(say: Say, words: list[str]) -> None:
    write(b"\xc1 no document")
    code, out, err = say(*words)
    assert (code, out) == (3, "")
    assert err.startswith("redrive: the stored alert state cannot be read")
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["list"], ["ack", "i-1"]], ids=" ".join)
def test_a_store_that_is_not_there_is_one_line_and_none_is_made(say: Say, words: list[str]) -> None:
    code, _, err = say(*words)
    assert (code, err.count("\n")) == (3, 1)
    assert "redrive.db does not exist" in err
    assert list(Path().iterdir()) == []


# --- ack -------------------------------------------------------------------------------------------------


def test_several_are_acknowledged_by_the_beginnings_of_their_ids_each_once(full: Say) -> None:
    assert full("ack", "I-C", "i-aa1", "i-cc33") == (0, "2 incidents acknowledged by anna\n", "")
    by = {one.id: one.acknowledged_by for one in written().book.open()}
    assert by == {"i-aa11": "anna", "i-aa22": None, "i-cc33": "anna"}
    found = json.loads(full("ack", "i-cc33", "--by", " berta ", "--json")[1])
    assert [(one["id"], one["acknowledged_by"]) for one in found] == [("i-cc33", "berta")]
    assert "berta" in full()[1].splitlines()[1]


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (3, ["i-zz"], "no open incident has an id that begins with 'i-zz'"),
        (3, ["i-cc334"], "no open incident has an id that begins with 'i-cc334'"),
        (3, ["i-dd44"], "no open incident has an id that begins with 'i-dd44'"),
        (3, ["i-ee55"], "incident 'i-ee55' has ended"),
        (3, ["i-cc33", "i-zz"], "'i-zz'"),
        (3, ["x" * 5000], "no open incident"),
        (3, ["\x1b[2J\n"], "no open incident"),
        (3, ["\udcff"], "no open incident"),
        (2, ["i-aa"], "several open incidents have ids that begin with 'i-aa'; pass more characters"),
        (2, [""], "the id is empty"),
        (2, [], "ID..."),
        (2, ["i-cc33", "--by", ""], "the name given by --by is empty"),
        (2, ["i-cc33", "--by", "  "], "the name given by --by is empty"),
        (2, ["i-cc33", "--by", "x" * 201], "longer than 200 characters"),
        (2, ["i-cc33", "--by", "\udcff"], "the name given by --by"),
        (2, ["i-cc33", "--bye", "x"], "--by"),
    ],
)
def test_what_cannot_be_acknowledged_is_one_line_and_nothing_is(
    full: Say, code: int, words: list[str], says: str
) -> None:
    before = written()
    done, out, err = full("ack", *words)
    assert (done, out, err.count("\n")) == (code, "", 1)
    assert says in err
    assert "\x1b" not in err
    assert written() == before


def test_a_whole_id_means_that_incident_even_if_another_begins_with_it() -> None:
    both = Book(current={"a": incident("i-1"), "b": incident("i-12")})
    assert [one.id for one in acknowledged(both, ["i-1"], "anna", NOW)] == ["i-1"]
    with pytest.raises(QueryError):
        acknowledged(both, ["i-"], "anna", NOW)
    with pytest.raises(IncidentNotFoundError):
        acknowledged(Book(), ["i-1"], "anna", NOW)


# --- rules, and who is told ------------------------------------------------------------------------------


def test_the_rules_in_force_are_shown_with_where_they_come_from(say: Say) -> None:
    Path("redrive.toml").write_text(
        "[[alert_rules]]\nname = 'dlq-depth'\nwarning = 7\n"
        "[[alert_rules]]\nname = 'service-failed'\nenabled = false\n"
        "[[alert_rules]]\nname = 'too-quiet'\nmeasure = 'ingestion'\nwarning = 1\nbelow = true\nmessage = 'quiet'\n"
    )
    code, out, err = say("rules")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["dlq-depth"].split()[1:7] == [">", "7", ">", "1,000", "1", "changed"]
    assert rows["too-quiet"].split()[1:5] == ["<", "1", "1", "own"]
    assert rows["backlog"].split()[1:5] == [">", "10,000", "1", "shipped"]
    assert "service-failed" not in rows
    found = {rule["name"]: rule for rule in json.loads(say("rules", "--json")[1])}
    assert found["dlq-depth"]["warning"] == 7
    assert found["broker-unreachable"]["hides"] == [
        "dlq-depth",
        "dlq-uncollected",
        "probe-failed",
        "queue-missing",
        "queue-stalled",
    ]
    assert found["too-quiet"]["measures"] == "dead letters collected in the last minute"
    assert {name: rule["origin"] for name, rule in found.items() if rule["origin"] != "shipped"} == {
        "dlq-depth": "changed",
        "too-quiet": "own",
    }


def test_rule_that_cannot_be_measured_is_shown_with_the_reason(say: Say) -> None:
    Path("redrive.toml").write_text("[broker]\nurl = 'amqp://127.0.0.1'\n[[sources]]\nname = 'orders'\n")
    lines = say("rules")[1].splitlines()
    assert lines[0].split() == ["rule", "warning", "critical", "confirm", "origin", "measured", "measure"]
    ratio, depth = (
        next(line for line in lines if line.startswith(name)) for name in ("dead-letter-ratio", "dlq-depth")
    )
    assert ratio.split()[1:7] == [">", "10", "%", "2", "shipped", "no"]
    assert depth.split()[1:7] == [">", "100", ">", "1,000", "1", "shipped"]
    assert depth.split()[7] == "yes"
    assert "not measured: dead-letter-ratio: broker.management_url is not set" in lines
    found = {rule["name"]: rule for rule in json.loads(say("rules", "--json")[1])}
    assert (found["dead-letter-ratio"]["measured"], found["dlq-depth"]["measured"]) == (False, True)
    assert found["dead-letter-ratio"]["not_measured_because"] == "broker.management_url is not set"
    assert found["dlq-depth"]["not_measured_because"] is None


CHAT = "[[notifiers]]\nname = 'chat'\ntype = 'slack'\nurl = 'http://127.0.0.1:1/T0/secret-path'\n"


@pytest.mark.parametrize(
    ("words", "settings", "says"),
    [
        (["test"], "", "no notifiers are configured; add a [[notifiers]] table to the settings"),
        (["test", "chat"], "", "no notifiers are configured"),
        (["test", "chatt"], CHAT, "no notifier has the name 'chatt'; did you mean 'chat'?"),
        (["test", "chat", "zzz"], CHAT, "no notifier has the name 'zzz'; use one of chat"),
        (["test", ""], CHAT, "no notifier has the name ''"),
        (["test"], CHAT.replace("http", "ftp"), "notifier 'chat': webhook: not a valid URL"),
        (["test"], CHAT.replace("'http://127.0.0.1:1/T0/secret-path'", "'env:NOT_SET'"), "NOT_SET is not set"),
        (["test", "--jsn"], CHAT, "--json"),
        (["rules"], "[[alert_rules]]\nname = 'x'\n", "needs a 'measure'"),
        (["rules", "x"], "", "extra argument"),
        (["list", "x"], "", "extra argument"),
        (["lst"], "", "Did you mean 'list'?"),
        (["--over"], "", "--all"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(say: Say, words: list[str], settings: str, says: str) -> None:
    Path("redrive.toml").write_text(settings)
    code, out, err = say(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert "secret-path" not in err


def test_a_receiver_that_is_not_there_is_said_without_its_secret(say: Say) -> None:
    Path("redrive.toml").write_text(CHAT)
    code, out, err = say("test")
    assert code == 1
    assert err == "redrive: 1 of 1 notifier did not accept the test alert\n"
    assert "failed: http://127.0.0.1:1 cannot be reached" in out
    assert "secret-path" not in out


def test_one_that_is_not_named_may_be_wrong(say: Say) -> None:
    Path("redrive.toml").write_text(CHAT + "[[notifiers]]\nname = 'broken'\ntype = 'slack'\n")
    assert say("test", "chat")[0] == 1
    assert "notifier 'broken'" in say("test")[2]
