"""What does the shop do with orders, payments and mail?

Three apps, each run by `redrive consume` as a process of its own. The handlers are ordinary ones: none of them knows
that it is watched, and each fails by what happens to it, not by a wish. An order whose picture is too large kills its
process, as a kernel does when the memory is gone.

How they are retried is said by the demo's settings, not here. Where bank and mail host are is told by the environment.
"""

import http.client
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from redrive.app import App

BANK: Final = "REDRIVE_DEMO_BANK"
MAIL_HOST: Final = "REDRIVE_DEMO_MAIL_HOST"
_PATIENCE: Final = 0.5  # seconds for an answer
_LARGEST_PICTURE: Final = 10_000_000  # bytes; more of them than the memory has room for


@dataclass
class Order:
    """Somebody wants something."""

    id: int
    total: float
    picture_bytes: int = 0


@dataclass
class Payment:
    """Somebody pays."""

    id: int
    customer: str
    card: str
    amount: float


@dataclass
class Mail:
    """Somebody is to be told."""

    id: int
    to: str
    subject: str


class AnswerError(Exception):
    """The other side has refused; status and headers are for whoever classifies it."""

    def __init__(self, status: int, headers: Mapping[str, str], text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status
        self.headers = headers


orders = App()
payments = App()
mail = App()


@orders.consume("orders")
async def take(order: Order) -> None:
    """Take an order."""
    if order.picture_bytes > _LARGEST_PICTURE:
        os.kill(os.getpid(), signal.SIGKILL)


@payments.consume("payments")
def charge(payment: Payment) -> None:
    """Let the bank collect a payment."""
    ask(os.environ[BANK], "/charge", payment)


@mail.consume("mail")
def send(letter: Mail) -> None:
    """Hand a mail to the mail host."""
    ask(os.environ[MAIL_HOST], "/deliver", letter)


def ask(url: str, path: str, what: object) -> None:
    """Post this; returns when the other side has taken it."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_PATIENCE)
    try:
        body = msgspec.json.encode(what)
        connection.request("POST", path, body, {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        text = answer.read(200).decode("utf-8", "replace")
        if answer.status >= http.client.BAD_REQUEST:
            raise AnswerError(answer.status, dict(answer.getheaders()), text)
    finally:
        connection.close()
