"""Send alerts by mail.

One alert is one plain-text mail over one connection. All mails of an incident are answers to its first one, so a mail
program shows them as one thread; a mail that is sent twice has the same id both times.

A password is sent over TLS only, and no name can become a header. A `NotifyError` says whether a retry could help.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence
from datetime import timedelta
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

from redrive.errors import NotifyError, SettingsError, use_instead
from redrive.watch.alerts import shapes
from redrive.watch.alerts.alert import Alert, Occasion

if TYPE_CHECKING:
    from aiosmtplib import SMTPException

Tls = Literal["none", "starttls", "tls"]

_LOG: Final = logging.getLogger("redrive.alerts")
_PORTS: Final = {"none": 25, "starttls": 587, "tls": 465}
_MOST_IDS: Final = 50
_GOODBYE: Final = 1.0  # seconds
_QUOTED: Final = 200  # characters of what a server said


class MailNotifier:
    """Sends alerts by mail."""

    def __init__(
        self,
        *,
        host: str,
        sender: str,
        recipients: Sequence[str],
        name: str = "mail",
        port: int | None = None,
        tls: Tls = "starttls",
        user: str | None = None,
        password: str | None = None,
        timeout: timedelta = timedelta(seconds=10),
        tls_context: ssl.SSLContext | None = None,
    ) -> None:
        if tls not in _PORTS:
            raise SettingsError(f"mail: TLS cannot be {tls!r:.40}{use_instead(tls, _PORTS)}")
        if not recipients or isinstance(recipients, str):
            raise SettingsError("mail: set at least one recipient, as a list")
        if (user is None) != (password is None):
            raise SettingsError("mail: set both user and password, or neither")
        if user is not None and tls == "none":
            raise SettingsError("mail: a password is only sent over TLS; use starttls or tls")
        if timeout <= timedelta(0):
            raise SettingsError("mail: the timeout must be longer than 0 s")
        self.name = name
        self._place = f"{host}:{port or _PORTS[tls]}"
        self._host = host
        self._port = port or _PORTS[tls]
        self._tls = tls
        self._user = user
        self._password = password
        self._sender = _address(sender)
        self._recipients = tuple(map(_address, recipients))
        self._timeout = timeout.total_seconds()
        self._tls_context = tls_context

    async def send(self, alert: Alert) -> None:
        """Hand the mail to the server, or raise `NotifyError`."""
        from aiosmtplib import SMTP, SMTPException  # noqa: PLC0415  loaded with the first alert

        client = SMTP(
            hostname=self._host,
            port=self._port,
            username=self._user,
            password=self._password,
            timeout=self._timeout,
            use_tls=self._tls == "tls",
            start_tls=self._tls == "starttls",
            tls_context=self._tls_context,
        )
        try:
            async with asyncio.timeout(self._timeout):  # the library's own is for each step
                await client.connect()
                refused, _ = await client.send_message(self.message(alert))
            with contextlib.suppress(SMTPException):  # the server has the mail, whatever it says now
                await client.quit(timeout=min(_GOODBYE, self._timeout))
        except TimeoutError:
            raise NotifyError(
                f"the mail server {self._place} did not answer within {self._timeout:g} s"
            ) from None
        except SMTPException as error:
            raise self._refusal(error) from error
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise NotifyError(f"the mail server {self._place} cannot be reached: {why}") from error
        finally:
            client.close()
        if refused:
            codes = ", ".join(str(answer.code) for answer in refused.values())
            _LOG.warning(
                "mail refused for some recipients notifier=%s refused=%d recipients=%d codes=%s",
                self.name, len(refused), len(self._recipients), codes,
            )  # fmt: skip

    async def close(self) -> None:
        """Nothing is left open between mails."""

    def message(self, alert: Alert) -> EmailMessage:
        """The mail."""
        mail = EmailMessage()
        mail["From"] = self._sender
        mail["To"] = self._recipients
        mail["Subject"] = shapes.subject(alert)
        mail["Date"] = format_datetime(alert.time)
        first = self._message_id(alert, Occasion.RAISED)
        mail["Message-ID"] = self._message_id(alert, alert.occasion)
        if alert.occasion is not Occasion.RAISED:
            mail["In-Reply-To"] = mail["References"] = first
        mail["Auto-Submitted"] = "auto-generated"
        mail["X-Redrive-Incident"] = shapes.key(alert.incident)
        mail.set_content(_body(alert))
        return mail

    def _message_id(self, alert: Alert, occasion: Occasion) -> str:
        # An incident that occurs again has the same id: only with its beginning is the first mail a different one.
        began = f"{alert.incident} {alert.since.isoformat()}"
        incident = sha256(began.encode(errors="surrogatepass")).hexdigest()[:32]
        when = "" if occasion is Occasion.RAISED else f".{alert.time.timestamp() * 1000:.0f}"
        return f"<{incident}.{occasion}{when}@{self._sender.domain}>"

    def _refusal(self, error: "SMTPException") -> NotifyError:
        from aiosmtplib import SMTPRecipientsRefused, SMTPResponseException  # noqa: PLC0415  as above

        answers = error.recipients if isinstance(error, SMTPRecipientsRefused) else [error]
        said = [(each.code, each.message) for each in answers if isinstance(each, SMTPResponseException)]
        if not said:  # there is no connection, or the server does not know what we need, STARTTLS for one
            is_lost = isinstance(error, OSError)
            text = f"the mail server {self._place} {'cannot be reached' if is_lost else 'cannot do it'}"
            return NotifyError(f"{text}: {error.message:.{_QUOTED}}", is_permanent=not is_lost)
        code, message = said[0]
        return NotifyError(
            f"the mail server {self._place} refused the mail: {code} {message:.{_QUOTED}}",
            is_permanent=all(500 <= code < 600 for code, _ in said),
        )


def _address(text: str) -> Address:
    name, spec = parseaddr(text)
    try:
        address = Address(name, addr_spec=spec)
    except (ValueError, IndexError, MessageError):
        address = Address()
    if not (address.domain and address.username and spec.isascii() and text.isprintable()):
        raise SettingsError(f"mail: {text!r:.80} is not a mail address; write NAME@HOST")
    return address


def _body(alert: Alert) -> str:
    facts = shapes.facts(alert)
    if url := shapes.link(alert):
        facts.append(("link", url))
    width = max(len(name) for name, _ in facts)
    lines = [shapes.subject(alert), "", *(f"{name + ':':{width + 1}} {value}" for name, value in facts)]
    if alert.correlation_ids:
        lines += ["", "correlation ids:", *(f"  {each}" for each in shapes.ids(alert, _MOST_IDS))]
    return "\n".join(lines) + "\n"
