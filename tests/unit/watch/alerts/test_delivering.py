"""Every receiver gets every alert in its own time; what it does not get is counted and logged."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings, strategies as st

from redrive.errors import NotifyError, SettingsError
from redrive.recover.service import Service, Services
from redrive.rules.backoff import DelayList, Exponential, Fixed
from redrive.testing import ManualClock
from redrive.watch.alerts.alert import Alert, Occasion
from redrive.watch.alerts.delivering import Counts, Delivering, DeliverOptions, Notifier
from redrive.watch.alerts.mail import MailNotifier
from redrive.watch.alerts.webhook import WebhookNotifier
from tests.unit.watch.alerts.examples import BAD, ORDINARY, alert, life
from tests.unit.watch.alerts.servers import Box, Hook, forever, mail_server, raw_server, web_server

SECOND = timedelta(seconds=1)
STEADY = Exponential(jitter=0, max_delay=timedelta(minutes=5))
TEMPORARY = NotifyError("come again")
PERMANENT = NotifyError("go away", is_permanent=True)


class Receiver:
    """Takes alerts, after the errors that it was given; while it is shut, it hangs."""

    def __init__(self, name: str = "chat", *errors: Exception | None) -> None:
        self.name = name
        self.errors = list(errors)
        self.attempts = 0
        self.taken: list[Alert] = []
        self.closed = 0
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, told: Alert) -> None:
        self.attempts += 1
        await self.open.wait()
        if self.errors and (error := self.errors.pop(0)):
            raise error
        self.taken.append(told)

    async def close(self) -> None:
        self.closed += 1


class World:
    """The lines while they run, on a clock turned by hand."""

    def __init__(self, notifiers: Sequence[Notifier], **options: Any) -> None:
        self.clock = ManualClock()
        self.kept: list[tuple[str, str]] = []
        self.stop = asyncio.Event()
        self.lines = Delivering(
            notifiers,
            clock=self.clock,
            options=DeliverOptions(**{"backoff": STEADY, **options}),
            ended=lambda told, name: self.kept.append((told.incident, name)),
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.stop.clear()
        self.task = asyncio.create_task(self.lines.run(self.stop))

    async def end(self) -> None:
        assert self.task is not None
        self.stop.set()
        async with asyncio.timeout(10):
            await self.task

    async def pass_time(self, duration: timedelta) -> None:
        """Let time pass once somebody waits for it."""
        await until(lambda: self.clock.sleepers > 0)
        self.clock.advance(duration)

    def count(self, name: str = "chat") -> Counts:
        return self.lines.counts[name]


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110  it looks at sockets, clocks and counts
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Everything that can go on without time passing has gone on."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(*notifiers: Notifier, **options: Any) -> AsyncIterator[World]:
    world = World(notifiers, **options)
    world.start()
    try:
        yield world
    finally:
        await world.end()


async def test_every_receiver_gets_every_alert_in_order_and_that_is_told() -> None:
    chat, pager = Receiver("chat"), Receiver("pager")
    async with running(chat, pager) as world:
        for each in life():
            await settled()  # nobody has anything to do, until this one comes
            world.lines.tell(each)
        await until(lambda: len(world.kept) == 10)
        assert chat.taken == pager.taken == life()
        assert world.kept.count(("inc-1", "chat")) == world.kept.count(("inc-1", "pager")) == 5
        assert world.lines.counts == {"chat": Counts(sent=5), "pager": Counts(sent=5)}
        assert world.lines.waiting == {"chat": 0, "pager": 0}


async def test_an_alert_can_be_told_to_some_only() -> None:
    chat, pager = Receiver("chat"), Receiver("pager")
    async with running(chat, pager) as world:
        world.lines.tell(ORDINARY, to=["pager"])
        await until(lambda: bool(pager.taken))
        with pytest.raises(KeyError):
            world.lines.tell(ORDINARY, to=["chat", "nobody"])
        await settled()
        assert not chat.taken


async def test_a_receiver_that_hangs_holds_up_nobody_else() -> None:
    dead, chat = Receiver("dead"), Receiver("chat")
    dead.open.clear()
    async with running(dead, chat) as world:
        for n in range(20):
            world.lines.tell(alert(incident=f"inc-{n}"))
        await until(lambda: len(chat.taken) == 20)
        assert world.lines.waiting == {"dead": 20, "chat": 0}
        dead.open.set()
        await until(lambda: len(dead.taken) == 20)


async def test_what_was_told_before_it_runs_is_sent_when_it_runs() -> None:
    chat = Receiver()
    world = World([chat])
    world.lines.tell(ORDINARY)
    assert world.lines.waiting == {"chat": 1}
    world.start()
    await until(lambda: chat.taken == [ORDINARY])
    await world.end()


async def test_a_server_in_trouble_is_tried_again_after_a_wait_that_grows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hook = Hook(web.Response(status=500), web.Response(status=500))
    async with web_server(hook) as url, running(WebhookNotifier(url, name="chat")) as world:
        world.lines.tell(ORDINARY)
        for wait, requests in ((1, 1), (2, 2)):
            await until(lambda: world.clock.sleepers > 0)
            world.clock.advance(timedelta(seconds=wait) - timedelta(milliseconds=1))
            await settled()
            assert len(hook.requests) == requests
            world.clock.advance(timedelta(milliseconds=1))
        await until(lambda: world.count().sent == 1)
        assert world.count() == Counts(sent=1, retried=2)
    assert len({body for _, body in hook.requests}) == 1
    assert [(each.name, each.levelno) for each in caplog.records] == [("redrive.alerts", logging.WARNING)] * 2
    assert caplog.messages[1] == (
        "alert delivery failed notifier=chat occasion=raised incident=inc-1 attempt=2/10 retry_in=2.0s: "
        f"{url} answered 500"
    )


@pytest.mark.parametrize(
    ("asked", "wait"),
    [("30", 30), ("0", 1), ("99999999", 600), ("Wed, 11 Feb 2026 12:01:30 GMT", 90)],
)
async def test_a_server_that_asks_to_be_left_alone_is_left_alone_up_to_a_limit(asked: str, wait: int) -> None:
    hook = Hook(web.Response(status=429, headers={"Retry-After": asked}))
    async with (
        web_server(hook) as url,
        running(WebhookNotifier(url, name="chat", clock=ManualClock())) as world,
    ):
        world.lines.tell(ORDINARY)
        await world.pass_time(timedelta(seconds=wait) - timedelta(milliseconds=1))
        await settled()
        assert len(hook.requests) == 1
        world.clock.advance(timedelta(milliseconds=1))
        await until(lambda: world.count().sent == 1)
    assert len(hook.requests) == 2


async def test_what_is_refused_for_good_is_not_tried_again_and_the_next_one_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hook = Hook(web.Response(status=404, text="no_service"))
    async with web_server(hook) as url, running(WebhookNotifier(url + "/xXsecretXx", name="chat")) as world:
        world.lines.tell(alert(incident="first"))
        world.lines.tell(alert(incident="second"))
        await until(lambda: world.kept == [("first", "chat"), ("second", "chat")])
        assert world.count() == Counts(sent=1, failed=1)
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert line.getMessage() == (
        "alert not delivered notifier=chat occasion=raised incident=first attempts=1: "
        f"{url} answered 404: no_service"
    )


async def test_a_mail_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not() -> None:
    box = Box(["451 4.7.1 come again", "250 OK", "550 5.7.1 spam"])
    async with mail_server(box) as port:
        mail = MailNotifier(
            host="127.0.0.1", port=port, tls="none", sender="r@example.org", recipients=["o@example.org"]
        )
        async with running(mail) as world:
            world.lines.tell(alert(incident="first"))
            world.lines.tell(alert(incident="second"))
            await world.pass_time(SECOND)
            await until(lambda: world.count("mail") == Counts(sent=1, failed=1, retried=1))
            assert world.kept == [("first", "mail"), ("second", "mail")]


@pytest.mark.parametrize("kind", ["hangs", "hangs up", "is not there"])
async def test_a_server_that_hangs_hangs_up_or_is_not_there_is_tried_again(kind: str) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with raw_server(forever if kind == "hangs" else leave) as port:
        if kind != "is not there":
            await told_twice(port)
    if kind == "is not there":
        await told_twice(port)


async def told_twice(port: int) -> None:
    hook = WebhookNotifier(f"http://127.0.0.1:{port}", name="chat", timeout=timedelta(milliseconds=50))
    async with running(hook, attempts=2) as world:
        world.lines.tell(ORDINARY)
        await world.pass_time(SECOND)
        await until(lambda: world.count() == Counts(failed=1, retried=1))


async def test_after_the_last_attempt_the_alert_has_failed() -> None:
    chat = Receiver("chat", *[TEMPORARY] * 3)
    async with running(chat, attempts=3, backoff=Fixed(SECOND)) as world:
        world.lines.tell(alert(incident="first"))
        world.lines.tell(alert(incident="second"))
        for _ in range(2):
            await world.pass_time(SECOND)
        await until(lambda: [incident for incident, _ in world.kept][1:] == ["second"])
        assert world.count() == Counts(sent=1, failed=1, retried=2)
    assert chat.attempts == 4


async def test_a_back_off_that_ends_ends_the_attempts() -> None:
    chat = Receiver("chat", *[TEMPORARY] * 9)
    async with running(chat, backoff=DelayList(SECOND, then="stop")) as world:
        world.lines.tell(ORDINARY)
        await world.pass_time(SECOND)
        await until(lambda: world.count() == Counts(failed=1, retried=1))


async def test_a_notifier_with_a_defect_fails_alone_and_its_words_are_not_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Receiver("broken", ValueError("https://hooks.example.org/secret\nof a person"))
    chat = Receiver()
    async with running(broken, chat) as world:
        world.lines.tell(ORDINARY)
        world.lines.tell(ORDINARY)
        await until(lambda: len(world.kept) == 4)
        assert world.count("broken") == Counts(sent=1, failed=1)
    assert caplog.messages == [
        "alert not delivered notifier=broken occasion=raised incident=inc-1 attempts=1: ValueError in the notifier"
    ]


async def test_who_keeps_what_was_told_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    def keep(told: Alert, name: str) -> None:
        raise OSError("disk\nfull")

    chat, stop = Receiver(), asyncio.Event()
    lines = Delivering([chat], clock=ManualClock(), ended=keep)
    lines.tell(ORDINARY)
    lines.tell(ORDINARY)
    stop.set()
    await lines.run(stop)
    assert lines.counts["chat"] == Counts(sent=2)
    assert (
        caplog.messages
        == [r"result of alert not recorded notifier=chat occasion=raised incident=inc-1: OSError: disk\nfull"]
        * 2
    )


@pytest.mark.parametrize("incident", BAD)
async def test_whatever_an_incident_is_called_the_log_has_one_line(
    incident: str, caplog: pytest.LogCaptureFixture
) -> None:
    chat = Receiver("chat", TEMPORARY, PERMANENT)
    async with running(chat, line=2) as world:
        world.lines.tell(alert(incident=incident))
        await world.pass_time(SECOND)
        await until(lambda: world.count().failed == 1)
        chat.open.clear()
        for _ in range(3):
            world.lines.tell(alert(incident=incident))
        chat.open.set()
    assert len(caplog.messages) == 3
    assert all(each.isprintable() and len(each) < 1_200 for each in caplog.messages)


async def test_a_full_line_drops_the_oldest_that_is_not_the_last_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chat = Receiver()
    world = World([chat], line=4)
    for incident in "abac":
        world.lines.tell(alert(incident=incident))
    assert not world.count().dropped
    world.lines.tell(
        alert(incident="b", occasion=Occasion.RECOVERED)
    )  # the first a goes: there is a later one
    world.lines.tell(alert(incident="d"))  # b goes: it has recovered since
    world.lines.tell(alert(incident="e"))  # all are last words: the oldest goes, which is a
    assert caplog.messages == [
        f"alert dropped notifier=chat occasion=raised incident={each}: its queue is full" for each in "aba"
    ]
    assert world.kept == [("a", "chat"), ("b", "chat"), ("a", "chat")], "nobody is to wait for them"
    world.start()
    await world.end()
    assert [(each.incident, each.occasion) for each in chat.taken] == [
        ("c", "raised"),
        ("b", "recovered"),
        ("d", "raised"),
        ("e", "raised"),
    ]
    assert world.count() == Counts(sent=4, dropped=3)


async def test_what_is_being_sent_is_not_dropped(caplog: pytest.LogCaptureFixture) -> None:
    chat = Receiver()
    chat.open.clear()
    async with running(chat, line=2) as world:
        world.lines.tell(life()[0])
        await until(lambda: chat.attempts == 1)
        for each in life()[1:]:
            world.lines.tell(each)
        chat.open.set()
        await until(lambda: len(chat.taken) == 2)
        assert chat.taken == [life()[0], life()[-1]]
        assert world.count() == Counts(sent=2, dropped=3)
    assert caplog.messages == [
        f"alert dropped notifier=chat occasion={each} incident=inc-1: its queue is full"
        for each in ("worse", "again", "escalated")
    ]


@settings(max_examples=50)
@given(incidents=st.lists(st.sampled_from("abcdef"), max_size=40), line=st.integers(2, 6))
def test_no_last_word_is_lost_while_there_is_room_for_all_of_them(incidents: list[str], line: int) -> None:
    async def scenario() -> None:
        chat = Receiver()
        world = World([chat], line=line)
        told = [alert(incident=each, counts={"n": float(n)}) for n, each in enumerate(incidents)]
        for each in told:
            world.lines.tell(each)
            assert world.lines.waiting["chat"] <= line
        world.start()
        await world.end()
        last = {each.incident: each for each in told}
        if len(last) <= line:
            assert {each.incident: each for each in chat.taken} == last
        assert chat.taken == sorted(chat.taken, key=lambda each: each.counts["n"])
        assert world.count() == Counts(sent=min(len(told), line), dropped=max(0, len(told) - line))

    logging.getLogger("redrive.alerts").disabled = True
    try:
        asyncio.run(scenario())
    finally:
        logging.getLogger("redrive.alerts").disabled = False


async def test_on_stop_what_is_in_line_is_sent_and_everything_is_closed() -> None:
    chat = Receiver()
    chat.open.clear()
    world = World([chat])
    world.start()
    for each in life():
        world.lines.tell(each)
    await until(lambda: chat.attempts == 1)
    world.stop.set()
    await settled()
    early = chat.closed
    chat.open.set()
    await world.end()
    assert chat.taken == life()
    assert (early, chat.closed) == (0, 1)


async def test_on_stop_nobody_waits_for_a_receiver_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    dead, chat = Receiver("dead"), Receiver("chat")
    dead.open.clear()
    world = World([dead, chat], grace=timedelta(seconds=5))
    world.start()
    world.lines.tell(alert(incident="first"))
    world.lines.tell(alert(incident="second"))
    await until(lambda: len(chat.taken) == 2)
    world.stop.set()
    await world.pass_time(timedelta(seconds=4.9))
    await settled()
    assert world.task is not None
    assert not world.task.done()
    world.clock.advance(timedelta(seconds=0.1))
    await world.end()
    assert world.lines.counts == {"dead": Counts(dropped=2), "chat": Counts(sent=2)}
    assert world.lines.waiting == {"dead": 0, "chat": 0}
    assert {name for _, name in world.kept} == {"chat"}, "what was left in line has not ended"
    assert (dead.closed, chat.closed) == (1, 1)
    assert caplog.messages == [
        f"alert dropped notifier=dead occasion=raised incident={each}: the server stopped"
        for each in ("first", "second")
    ]


async def test_on_stop_what_waits_is_tried_once_more_at_once_and_not_again() -> None:
    lucky, unlucky = Receiver("lucky", TEMPORARY), Receiver("unlucky", *[TEMPORARY] * 9)
    world = World([lucky, unlucky])
    world.start()
    world.lines.tell(ORDINARY)
    await until(lambda: world.clock.sleepers == 2)
    await world.end()
    assert world.lines.counts == {"lucky": Counts(sent=1, retried=1), "unlucky": Counts(failed=1, retried=1)}


async def test_it_stops_at_once_when_there_is_nothing_to_do() -> None:
    for notifiers in ([], [Receiver()]):
        world = World(notifiers)
        world.start()
        await settled()
        await world.end()


async def test_it_runs_again_after_it_has_stopped() -> None:
    chat = Receiver()
    world = World([chat])
    for n in range(3):
        world.start()
        world.lines.tell(ORDINARY)
        await until(lambda n=n: world.count().sent == n + 1)  # type: ignore[misc]
        await world.end()
    assert chat.closed == 3


async def test_cancelled_it_closes_everything_and_keeps_what_was_not_sent() -> None:
    chat, pager = Receiver("chat"), Receiver("pager")
    chat.open.clear()
    world = World([chat, pager])
    world.start()
    world.lines.tell(ORDINARY)
    await until(lambda: chat.attempts == 1 and bool(pager.taken))
    assert world.task is not None
    world.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.task
    assert (chat.closed, pager.closed) == (1, 1)
    assert world.lines.waiting == {"chat": 1, "pager": 0}
    chat.open.set()
    world.start()
    await world.end()
    assert chat.taken == [ORDINARY]


async def test_one_that_cannot_be_closed_keeps_no_other_from_being_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(Receiver):
        async def close(self) -> None:
            raise OSError("secret")

    chat = Receiver()
    world = World([Stuck("stuck"), chat])
    world.start()
    await world.end()
    assert chat.closed == 1
    assert caplog.messages == ["notifier not closed notifier=stuck: OSError"]


async def test_it_is_a_service_like_any_other() -> None:
    chat, clock = Receiver(), ManualClock()
    lines = Delivering([chat], clock=clock)
    service: Service = lines
    services = Services([service], clock, lambda what, error: pytest.fail(f"{what}: {error}"))
    task = asyncio.create_task(services.run())
    lines.tell(ORDINARY)
    await until(lambda: bool(chat.taken))
    services.stop()
    await task
    assert (service.name, services.failing, chat.closed) == ("notifications", {}, 1)


async def test_counts_are_a_picture_of_their_moment() -> None:
    chat = Receiver()
    async with running(chat) as world:
        before = world.lines.counts
        world.lines.tell(ORDINARY)
        await until(lambda: world.count().sent == 1)
        assert before == {"chat": Counts()}


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingsError, match="two notifiers have the same name"):
        Delivering([Receiver(), Receiver()], clock=ManualClock())
    with pytest.raises(SettingsError, match="at least one attempt"):
        DeliverOptions(attempts=0)
    with pytest.raises(SettingsError, match="at least two alerts"):
        DeliverOptions(line=1)


def test_by_default_waits_are_spread() -> None:
    waits = {Delivering([], clock=ManualClock())._wait(NotifyError("again"), 1) for _ in range(20)}
    assert len(waits) > 1
    assert all(
        each is not None and timedelta(seconds=0.75) <= each <= timedelta(seconds=1.25) for each in waits
    )
