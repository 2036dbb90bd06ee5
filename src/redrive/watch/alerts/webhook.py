"""Send alerts to webhooks.

One alert is one POST of the JSON that `shapes` makes. Only 2xx is success, and redirects are not followed.

The URL of a webhook is a secret: whoever knows it can send messages. Errors and logs contain only scheme and host, and
quotations of an answer contain no part of the URL, of a header or of a key. A `NotifyError` says whether, and when, a
retry could help.
"""

import hmac
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from redrive.clock import Clock, SystemClock
from redrive.errors import NotifyError, SettingsError, use_instead
from redrive.watch.alerts import shapes
from redrive.watch.alerts.alert import Alert

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_SHAPES: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType({
    "json": shapes.as_json,
    "slack": shapes.as_slack,
    "teams": shapes.as_teams,
    "pagerduty": shapes.as_pagerduty,
    "alertmanager": shapes.as_alertmanager,
})  # fmt: skip
_AGAIN: Final = frozenset({408, 429})  # and everything from 500 up
_READ: Final = 4096  # bytes of an answer
_QUOTED: Final = 200  # characters of it in an error
_SECRET: Final = 6  # shorter parts of an address occur in any text


class WebhookNotifier:
    """Tells by webhook."""

    def __init__(
        self,
        url: str,
        shape: str = "json",
        *,
        name: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        timeout: timedelta = timedelta(seconds=10),
        secret: str | None = None,  # signs the body
        routing_key: str | None = None,  # PagerDuty's
        clock: Clock | None = None,
    ) -> None:
        if shape not in _SHAPES:
            raise SettingsError(f"webhook: unknown shape {shape!r:.40}{use_instead(shape, _SHAPES)}")
        if (shape == "pagerduty") != bool(routing_key):
            raise SettingsError("webhook: only the shape pagerduty takes a routing key, and requires it")
        if secret is not None and (shape != "json" or not secret):
            raise SettingsError(
                "webhook: only the shape json can be signed, and the secret must not be empty"
            )
        if timeout <= timedelta(0):
            raise SettingsError("webhook: the timeout must be longer than 0 seconds")
        for header, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", header) or not value.isprintable():
                raise SettingsError(
                    f"webhook: {header!r:.40} is not a valid header, or its value has several lines"
                )
        if not shapes.is_web_address(url):
            raise SettingsError("webhook: not a valid URL; write http:// or https://, a host and a path")
        parts = urlsplit(url)
        self.name = shape if name is None else name
        self._url = url
        self._place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._shape = partial(_SHAPES[shape], routing_key=routing_key) if routing_key else _SHAPES[shape]
        self._headers = {"User-Agent": "redrive", **headers, "Content-Type": "application/json"}
        self._timeout = timeout.total_seconds()
        self._secret = None if secret is None else secret.encode()
        # The longest first: a part of it must not be taken out before the whole.
        words = (word for value in headers.values() for word in (value, *value.split()))
        hidden = {*_parts(parts), *words, routing_key or "", secret or ""}
        self._hidden = sorted((each for each in hidden if len(each) >= _SECRET), key=len, reverse=True)
        self._clock = clock or SystemClock()
        self._session: ClientSession | None = None

    async def send(self, alert: Alert) -> None:
        """Post it, or raise `NotifyError`."""
        from aiohttp import ClientError  # noqa: PLC0415  loaded when there is something to tell
        from yarl import URL  # noqa: PLC0415  likewise

        body = msgspec.json.encode(self._shape(alert))
        headers = self._headers
        if self._secret is not None:
            signature = hmac.new(self._secret, body, "sha256").hexdigest()
            headers = {**headers, "X-Redrive-Signature": f"sha256={signature}"}
        try:
            async with self._opened().post(
                URL(self._url, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise await self._refusal(answer)
        # What the library says of an error can hold the whole address, so it is not kept.
        except TimeoutError:
            raise NotifyError(f"{self._place} did not answer within {self._timeout:g} s") from None
        except (ClientError, OSError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise NotifyError(f"{self._place} cannot be reached, or did not answer in HTTP: {why}") from None

    async def close(self) -> None:
        """Close what is open; the next alert opens it again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> "ClientSession":
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector  # noqa: PLC0415  as above

        if self._session is None:
            self._session = ClientSession(
                # Alerts are rare: a connection that is kept would mostly be one that the other side has closed.
                connector=TCPConnector(force_close=True),
                cookie_jar=DummyCookieJar(),
                timeout=ClientTimeout(total=self._timeout),
            )
        return self._session

    async def _refusal(self, answer: "ClientResponse") -> NotifyError:
        status = answer.status
        if 300 <= status < 400:
            text = f"{self._place} answered {status}; redirects are not followed, correct the URL"
            return NotifyError(text, is_permanent=True)
        said = await self._quotable(answer)
        return NotifyError(
            f"{self._place} answered {status}" + (f": {said}" if said else ""),
            is_permanent=status < 500 and status not in _AGAIN,
            retry_after=self._retry_after(answer.headers.get("Retry-After", "")),
        )

    async def _quotable(self, answer: "ClientResponse") -> str:
        """The beginning of what it says, without what is secret."""
        from aiohttp import ClientError  # noqa: PLC0415  as above

        read = b""
        try:
            while more := await answer.content.read(_READ - len(read)):
                read += more
        except (ClientError, OSError):  # only its status is known
            return ""
        text = read.decode(errors="replace")
        for hidden in self._hidden:
            text = text.replace(hidden, "…")
        if len(read) == _READ:  # its end may be the beginning of something hidden
            text = text[: -max(map(len, self._hidden), default=0) or None]
        return " ".join(text.split())[:_QUOTED]

    def _retry_after(self, text: str) -> timedelta | None:
        """What the header says: seconds, or a date."""
        if re.fullmatch("[0-9]{1,8}", text):
            return timedelta(seconds=int(text))
        try:
            date = parsedate_to_datetime(text)
        except ValueError:
            return None
        return max(timedelta(0), (date if date.tzinfo else date.replace(tzinfo=UTC)) - self._clock.now())


def _parts(url: SplitResult) -> Iterator[str]:
    """What is secret in an address, as it is written and as it is meant."""
    path = f"{url.path}?{url.query}" if url.query else url.path
    for part in (
        path,
        url.path,
        *url.path.split("/"),
        *re.split("[&=]", url.query),
        url.username,
        url.password,
    ):
        if part:
            yield from (part, unquote(part))
