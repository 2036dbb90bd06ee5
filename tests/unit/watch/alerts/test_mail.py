"""An alert arrives in a real mail server, or it is said why not and whether another attempt could help."""

import asyncio
import email
import email.policy
import logging
import ssl
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from redrive.errors import NotifyError, SettingsError
from redrive.watch.alerts.alert import Alert
from redrive.watch.alerts.mail import MailNotifier
from tests.unit.watch.alerts.examples import ORDINARY, alert, alerts, life, worst
from tests.unit.watch.alerts.servers import PASSWORD, Box, forever, mail_server, parse, raw_server

SENDER = "Redrive <redrive@example.org>"


def speaker(*lines: str) -> AbstractAsyncContextManager[int]:
    """A server that says these lines, each but the first when it has read one; then nothing. '' hangs up."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in lines:
            if not line:
                return
            writer.write(line.encode() + b"\r\n")
            await reader.readline()
        await forever(reader, writer)

    return raw_server(speak)


def notifier(port: int = 25, **options: Any) -> MailNotifier:
    options = {"tls": "none", "recipients": ["ops@example.org"], **options}
    return MailNotifier(host="127.0.0.1", port=port, sender=SENDER, **options)


async def failure(port: int, **options: Any) -> NotifyError:
    with pytest.raises(NotifyError) as caught:
        await notifier(port, **options).send(ORDINARY)
    assert "\n" not in str(caught.value)
    assert f"127.0.0.1:{port}" in str(caught.value)
    return caught.value


async def test_a_mail_arrives_at_every_recipient_with_all_its_headers() -> None:
    box = Box()
    async with mail_server(box) as port:
        both = ["ops@example.org", "On Call <call@example.org>"]
        await notifier(port, recipients=both).send(ORDINARY)
    (mail,), (envelope,) = box.mails, box.envelopes
    assert envelope.mail_from == "redrive@example.org"
    assert envelope.rcpt_tos == ["ops@example.org", "call@example.org"]
    assert mail["From"] == "Redrive <redrive@example.org>"
    assert mail["To"] == "ops@example.org, On Call <call@example.org>"
    assert mail["Subject"] == "[RAISED] CRITICAL: orders.dlq holds 12 dead letters"
    assert mail["Date"].datetime == ORDINARY.time.replace(microsecond=0)
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["X-Redrive-Incident"] == "inc-1"
    assert mail.get_content_type() == "text/plain"


def test_the_body_has_every_field_on_a_line_of_its_own() -> None:
    assert notifier().message(ORDINARY).get_content() == (
        "[RAISED] CRITICAL: orders.dlq holds 12 dead letters\n"
        "\n"
        "severity:   critical\n"
        "occasion:   raised\n"
        "rule:       dead-letters\n"
        "component:  RabbitMQ\n"
        "broker:     shop\n"
        "queue:      orders.dlq\n"
        "error type: ValidationError\n"
        "group:      f00d\n"
        "dead:       12\n"
        "rate:       0.25\n"
        "since:      2026-02-11T11:58:30.000Z\n"
        "time:       2026-02-11T12:00:00.250Z\n"
        "incident:   inc-1\n"
        "link:       https://console.example.org/groups/f00d?queue=orders.dlq\n"
        "\n"
        "correlation ids:\n"
        "  c-1\n"
        "  c-2\n"
    )


def test_of_many_correlation_ids_the_first_fifty_are_listed() -> None:
    text = notifier().message(alert(correlation_ids=tuple(f"c-{n}" for n in range(60)))).get_content()
    assert text.endswith("  c-49\n  and 10 more\n")
    assert "correlation ids" not in notifier().message(alert(correlation_ids=())).get_content()


def test_all_mails_of_an_incident_are_one_thread() -> None:
    first, *later = [notifier().message(each) for each in life()]
    assert "In-Reply-To" not in first
    assert {each["In-Reply-To"] for each in later} == {first["Message-ID"]}
    assert {each["References"] for each in later} == {first["Message-ID"]}
    assert len({each["Message-ID"] for each in (first, *later)}) == 5
    assert first["Message-ID"].endswith("@example.org>")


def test_a_mail_that_is_sent_twice_has_one_id_and_that_of_another_incident_a_different_one() -> None:
    one, again, other = (notifier().message(each) for each in (ORDINARY, ORDINARY, alert(incident="inc-2")))
    assert one["Message-ID"] == again["Message-ID"] != other["Message-ID"]


def test_mail_of_an_incident_that_occurs_again_has_another_id() -> None:
    later = alert(since=ORDINARY.since + timedelta(days=1), time=ORDINARY.time + timedelta(days=1))
    one, other = notifier().message(ORDINARY), notifier().message(later)
    assert one["Message-ID"] != other["Message-ID"]


HEADERS = {
    "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "X-Redrive-Incident",
    "Content-Type", "Content-Transfer-Encoding", "MIME-Version",
}  # fmt: skip


def check(told: Alert) -> None:
    sent = notifier().message(told)
    content = sent.as_bytes(policy=email.policy.SMTP)
    assert len(content) < 100_000
    assert all(len(line) <= 998 for line in content.split(b"\r\n"))
    mail = parse(content)
    assert set(mail.keys()) - {"In-Reply-To", "References"} == HEADERS
    assert mail["To"] == "ops@example.org"
    assert str(mail["Subject"]).isprintable()
    assert len(str(mail["Subject"])) <= 400
    assert not mail.is_multipart()
    assert mail.get_content().replace("\r\n", "\n") == sent.get_content()


@settings(max_examples=60)
@given(told=alerts)
def test_no_name_becomes_a_header_or_an_end_of_the_mail(told: Alert) -> None:
    check(told)


@pytest.mark.parametrize("char", ["😀", "a", " ", "\r\n", "\udcff", "=?utf-8?q?x?= "])
def test_the_largest_alert_is_a_mail_that_every_server_takes(char: str) -> None:
    check(worst(char))


async def test_a_name_full_of_commands_arrives_as_text() -> None:
    box = Box()
    bad = "x\r\n.\r\nMAIL FROM:<evil@example.org>\r\nBcc: all@example.org"
    async with mail_server(box) as port:
        await notifier(port).send(alert(queue=bad, text=bad, incident=bad, correlation_ids=(bad,)))
    (mail,), (envelope,) = box.mails, box.envelopes
    assert envelope.rcpt_tos == ["ops@example.org"]
    assert mail["Bcc"] is None
    assert r"\r\nMAIL FROM:<evil@example.org>" in mail["Subject"]


async def test_user_and_password_go_over_starttls(certificates: Path) -> None:
    box = Box()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificates / "address-and-key.pem")
    trusted = ssl.create_default_context(cafile=certificates / "address.pem")
    options = {"tls": "starttls", "user": "redrive", "tls_context": trusted}
    async with mail_server(
        box, tls_context=server, require_starttls=True, auth_required=True, authenticator=box.log_in
    ) as port:
        await notifier(port, password=PASSWORD, **options).send(ORDINARY)
        assert (len(box.mails), box.users, box.was_tls) == (1, [b"redrive"], True)
        error = await failure(port, password="wrong secret", **options)
    assert error.is_permanent
    assert "535" in str(error)
    assert "wrong secret" not in str(error)
    assert len(box.mails) == 1


async def test_a_mail_goes_over_tls_from_the_first_byte(certificates: Path) -> None:
    box = Box()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificates / "address-and-key.pem")
    trusted = ssl.create_default_context(cafile=certificates / "address.pem")
    async with mail_server(box, server) as port:
        await notifier(port, tls="tls", tls_context=trusted).send(ORDINARY)
    assert len(box.mails) == 1


@pytest.mark.parametrize("tls", ["tls", "starttls"])
async def test_a_server_that_nobody_vouches_for_gets_nothing(certificates: Path, tls: str) -> None:
    box = Box()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificates / "address-and-key.pem")
    async with mail_server(
        box, server if tls == "tls" else None, tls_context=None if tls == "tls" else server
    ) as port:
        error = await failure(port, tls=tls)
    assert "certificate" in str(error).lower()
    assert not error.is_permanent  # it may be renewed
    assert not box.mails


async def test_where_there_is_no_starttls_no_mail_is_sent_without_it() -> None:
    box = Box()
    async with mail_server(box) as port:
        error = await failure(port, tls="starttls")
    assert error.is_permanent
    assert "STARTTLS" in str(error)
    assert not box.mails


async def test_a_server_that_is_busy_may_be_asked_again() -> None:
    box = Box(["451 4.7.1 greylisted, come again"])
    async with mail_server(box) as port:
        error = await failure(port)
        assert not error.is_permanent
        assert "451 4.7.1 greylisted, come again" in str(error)
        await notifier(port).send(ORDINARY)
    assert len(box.mails) == 1


@pytest.mark.parametrize("box", [Box(["550 5.7.1 spam"]), Box(unknown=["ops@example.org"])])
async def test_a_mail_that_is_refused_for_good_is_not_sent_again(box: Box) -> None:
    async with mail_server(box) as port:
        error = await failure(port)
    assert error.is_permanent
    assert "550 5." in str(error)


async def test_of_some_recipients_the_others_are_told_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    box = Box(unknown=["gone@example.org"])
    with caplog.at_level(logging.WARNING, "redrive.alerts"):
        async with mail_server(box) as port:
            await notifier(port, recipients=["gone@example.org", "ops@example.org"]).send(ORDINARY)
    assert box.envelopes[0].rcpt_tos == ["ops@example.org"]
    assert caplog.messages == [
        "mail refused for some recipients notifier=mail refused=1 recipients=2 codes=550"
    ]


@pytest.mark.parametrize(
    ("lines", "is_permanent"),
    [
        (["554 go away"], True),
        (["421 too many connections"], False),
        (["HTTP/1.1 400 Bad Request"], False),
        ([""], False),
        (["220 hello", ""], False),
        (["220 hello", "250 hello", "250 sender", "250 recipient", "354 go on", ""], False),
    ],
)
async def test_a_server_that_says_something_else_or_hangs_up_is_an_error(
    lines: list[str], is_permanent: bool
) -> None:
    async with speaker(*lines) as port:
        assert (await failure(port, timeout=timedelta(seconds=5))).is_permanent is is_permanent


@pytest.mark.parametrize("lines", [[], ["220 hello"], ["220 hello", "250 hello"]])
async def test_a_server_that_does_not_answer_is_not_waited_for(lines: list[str]) -> None:
    async with speaker(*lines) as port:
        error = await failure(port, timeout=timedelta(milliseconds=100))
    assert not error.is_permanent
    assert "did not answer within 0.1 s" in str(error)


async def test_a_server_that_answers_each_step_just_in_time_is_not_waited_for_either() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in ("220 hello", "250 hello", "250 sender", "250 recipient"):
            await asyncio.sleep(0.12)
            writer.write(line.encode() + b"\r\n")
            await reader.readline()

    async with raw_server(slow) as port:
        error = await failure(port, timeout=timedelta(milliseconds=200))
    assert "did not answer within 0.2 s" in str(error)


async def test_a_server_that_has_the_mail_need_not_say_goodbye() -> None:
    async def taker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in ("220 hello", "250 hello", "250 sender", "250 recipient", "354 go on"):
            writer.write(line.encode() + b"\r\n")
            await reader.readline()
        await reader.readuntil(b"\r\n.\r\n")
        writer.write(b"250 taken\r\n")
        await forever(reader, writer)  # and no answer to QUIT

    async with raw_server(taker) as port, asyncio.timeout(5):
        await notifier(port, timeout=timedelta(milliseconds=200)).send(ORDINARY)


async def test_where_nobody_listens_another_attempt_may_help() -> None:
    async with speaker() as port:
        pass
    error = await failure(port)
    assert not error.is_permanent
    assert "cannot be reached" in str(error)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tls": "ssl"}, "TLS cannot be 'ssl'; .*tls"),
        ({"recipients": []}, "at least one recipient"),
        ({"recipients": "ops@example.org"}, "as a list"),
        ({"recipients": ["ops"]}, "'ops' is not a mail address"),
        ({"recipients": ["a@b.example\r\nBcc: c@d.example"]}, "is not a mail address"),
        ({"recipients": ["größe@example.org"]}, "is not a mail address"),
        ({"user": "redrive"}, "set both user and password, or neither"),
        ({"password": "x"}, "set both user and password, or neither"),
        ({"user": "redrive", "password": "x"}, "only sent over TLS"),
        ({"timeout": timedelta(0)}, "timeout must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=f"^mail: .*{why}"):
        notifier(**options)


def test_ports_follow_from_tls() -> None:
    ports = [
        MailNotifier(host="h", sender=SENDER, recipients=["a@b.example"], tls=tls)._port
        for tls in ("none", "starttls", "tls")
    ]
    assert ports == [25, 587, 465]


async def test_nothing_is_left_open() -> None:
    await notifier().close()


def test_the_libraries_are_loaded_only_by_who_tells_something() -> None:
    code = (
        "import sys\n"
        "import redrive.watch.alerts.mail, redrive.watch.alerts.webhook, redrive.watch.alerts.delivering\n"
        "print(*{'aiohttp', 'aiosmtplib', 'yarl', 'starlette'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
