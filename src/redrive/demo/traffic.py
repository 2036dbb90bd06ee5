"""What do the shop's customers do?

Most of the time they order, pay and get their mail, and all is well. In between, by a plan that repeats, something
comes that cannot be well: `mishaps` is that plan. It is the same in each run, so what is seen once can be looked for
again.

The producer only sends. What becomes of a message is not its business.
"""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec

from redrive.clock import Clock, pause
from redrive.demo.outside import NEWSLETTER, SILENT, STOLEN, WHOLESALE, Outside
from redrive.demo.shop import Mail, Order, Payment
from redrive.errors import BrokerUnreachableError, PublishError
from redrive.letters import Headers, Message
from redrive.transports.base import Publication, Target, Transport

TICK: Final = timedelta(milliseconds=500)
ROUND: Final = timedelta(seconds=20)  # after which the mishaps begin again
MAILBOX: Final = 8  # mails that may wait; the broker gives up the oldest of more
_WHOLESALE_BURST: Final = 4
_NEWSLETTERS: Final = 12
_NEWSLETTERS_BEFORE_CODES: Final = 4  # they fit into the mailbox, and take longer than a code is good for
_CODES: Final = 2
_CODE_IS_GOOD_FOR: Final = timedelta(milliseconds=300)
_TOO_LARGE: Final = 50_000_000


class Mishap(StrEnum):
    """What can go wrong."""

    MALFORMED = "an order that is not JSON"
    DENIED = "a stolen card"
    POISON = "an order that crashes its consumer"
    SILENCE = "a mail server that never answers"
    BURST = "more payments than the bank allows"
    LATE_CODES = "codes that expire behind newsletters"
    CAMPAIGN = "more newsletters than the queue holds"
    OUTAGE = "the bank is down"
    RECOVERY = "the bank is back"


# When, in each round. The bank is back before a letter has used up its redrives.
PLAN: Final[Sequence[tuple[timedelta, Mishap]]] = (
    (timedelta(seconds=0.5), Mishap.MALFORMED),
    (timedelta(seconds=0.5), Mishap.POISON),
    (timedelta(seconds=1), Mishap.SILENCE),
    (timedelta(seconds=1), Mishap.DENIED),
    (timedelta(seconds=2), Mishap.LATE_CODES),
    (timedelta(seconds=3), Mishap.BURST),
    (timedelta(seconds=5), Mishap.CAMPAIGN),
    (timedelta(seconds=7), Mishap.OUTAGE),
    (timedelta(seconds=9), Mishap.RECOVERY),
)


def mishaps(after: timedelta, until: timedelta) -> Iterator[Mishap]:
    """What happens after the one time and not after the other, both counted from the opening of the shop."""
    for number in range(after // ROUND, until // ROUND + 1):
        for at, mishap in PLAN:
            if after < number * ROUND + at <= until:
                yield mishap


class Traffic:
    """Sends what customers do to the shop's queues."""

    def __init__(self, transport: Transport, outside: Outside, clock: Clock) -> None:
        self._transport = transport
        self._outside = outside
        self._clock = clock
        self._numbers = {"order": 0, "payment": 0, "mail": 0}
        self.sent = {"orders": 0, "payments": 0, "mail": 0}

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set."""
        opened = self._clock.monotonic()
        before = timedelta(0)
        while not stop.is_set():
            now = self._clock.monotonic() - opened
            publications = [self._order(), self._payment(), self._mail()]
            for mishap in mishaps(before, now):
                publications += await self._of(mishap)
            await self._send(publications)
            before = now
            await pause(self._clock, TICK, stop)

    async def _of(self, mishap: Mishap) -> list[Publication]:
        match mishap:
            case Mishap.MALFORMED:
                return [self._order(cut=True)]
            case Mishap.POISON:
                return [self._order(picture_bytes=_TOO_LARGE)]
            case Mishap.DENIED:
                return [self._payment(card=STOLEN)]
            case Mishap.SILENCE:
                return [self._mail(to=SILENT)]
            case Mishap.BURST:
                return [self._payment(customer=WHOLESALE) for _ in range(_WHOLESALE_BURST)]
            case Mishap.LATE_CODES:
                code = "Your code"
                return [
                    *(self._mail(subject=NEWSLETTER) for _ in range(_NEWSLETTERS_BEFORE_CODES)),
                    *(self._mail(subject=code, good_for=_CODE_IS_GOOD_FOR) for _ in range(_CODES)),
                ]
            case Mishap.CAMPAIGN:
                return [self._mail(subject=NEWSLETTER) for _ in range(_NEWSLETTERS)]
            case Mishap.OUTAGE:
                await self._outside.bank_goes_down()
            case Mishap.RECOVERY:
                await self._outside.bank_comes_back()
        return []

    # --- messages ----------------------------------------------------------------------------------------------

    def _order(self, *, picture_bytes: int = 0, cut: bool = False) -> Publication:
        number = self._next("order")
        body = msgspec.json.encode(Order(number, 10.0 + number, picture_bytes))
        return _publication("orders", f"order-{number}", body[: len(body) // 2] if cut else body)

    def _payment(self, *, customer: str = "somebody", card: str = "good") -> Publication:
        number = self._next("payment")
        body = msgspec.json.encode(Payment(number, customer, card, 10.0 + number))
        return _publication("payments", f"payment-{number}", body)

    def _mail(
        self,
        *,
        to: str = "somebody@example.org",
        subject: str = "Thank you",
        good_for: timedelta | None = None,
    ) -> Publication:
        number = self._next("mail")
        return _publication(
            "mail", f"mail-{number}", msgspec.json.encode(Mail(number, to, subject)), good_for
        )

    def _next(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    async def _send(self, publications: Sequence[Publication]) -> None:
        for publication, error in zip(publications, await self._transport.publish(publications), strict=True):
            if error is None:
                self.sent[publication.target.name] += 1
            elif not isinstance(error, (PublishError, BrokerUnreachableError)):
                raise error  # the broker may be away for a moment; anything else is a fault of ours


def _publication(queue: str, message_id: str, body: bytes, good_for: timedelta | None = None) -> Publication:
    properties: dict[str, str] = {}
    if good_for is not None:
        properties["expiration"] = str(good_for // timedelta(milliseconds=1))
    message = Message(
        body=body,
        content_type="application/json",
        message_id=message_id,
        properties=Headers(properties),
    )
    return Publication(message, Target(name=queue))
