"""How is one channel of a connection used?

    async with link.channel() as channel:
        declared = await channel.call(m.QueueDeclare("orders", passive=True))

A question is answered in the order in which it was put, so any number may be under way. What nobody asked for
(deliveries, confirms, returns, the end of a consumer) goes to the four `on_…` callbacks, in the order it came.
The rule: when a channel ends, whatever was asked of it raises why, `on_end` is told once, and no other channel
notices. What the broker said is translated into the `TransportError`s here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from redrive.amqp import methods as m
from redrive.amqp.codec import encode
from redrive.amqp.content import Content
from redrive.amqp.errors import ReplyCode
from redrive.amqp.frames import content_header
from redrive.errors import (
    BrokerRefusedError,
    ConsumerTimeoutError,
    SourceConflictError,
    SourceMissingError,
    TransportClosedError,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from redrive.amqp.events import MethodReceived
    from redrive.transports.rabbitmq.link import Link

M = TypeVar("M", bound=m.Method)
CLOSED: Final = "the connection was closed"
_ENDED: Final = "the channel was closed"
AFTER_A_TIMEOUT: Final = (
    "its unacknowledged messages are delivered again; lower consume.handler_timeout, or raise "
    "the consumer timeout of the broker"
)
_ACK_TIMED_OUT: Final = "delivery acknowledgement on channel"


def refusal(code: int, text: str) -> TransportError:
    """The error for a close of the broker, which already says what is wrong; we add what to do."""
    match code:
        case ReplyCode.NOT_FOUND:
            return SourceMissingError(f"{text}; create it with redrive provision, or correct the name")
        case ReplyCode.ACCESS_REFUSED:
            return BrokerRefusedError(f"{text}; grant the user this permission, or use another user")
        case ReplyCode.PRECONDITION_FAILED if _ACK_TIMED_OUT in text:  # RabbitMQ before 4.3
            return ConsumerTimeoutError(f"{text}; {AFTER_A_TIMEOUT}")
        case ReplyCode.PRECONDITION_FAILED | ReplyCode.RESOURCE_LOCKED:
            return SourceConflictError(text)
        case _:
            return TransportError(f"the broker closed the channel: {code} {text}")


class Channel:
    """One open channel. The link makes it; `async with link.channel()` opens and closes it."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.error: TransportError | None = None  # why it is over
        self.on_delivery: Callable[[bytes, bytes, bytes], None] = _ignore  # method, content header, body
        self.on_acks: Callable[[bytes], None] = _ignore  # a run of single acknowledgements, see `hot`
        self.on_method: Callable[[m.Method, Content | None], None] = _ignore
        self.on_end: Callable[[TransportError], None] = _ignore
        self._questions: deque[tuple[tuple[str, ...], asyncio.Future[MethodReceived]]] = deque()
        self._closing = False
        self._crossed = False  # the broker has closed it while our own close was under way

    async def __aenter__(self) -> Self:
        await self.call(m.ChannelOpen())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return self.error is None and not self._closing

    # --- asking --------------------------------------------------------------------------------------------

    @overload
    async def call(self, method: m.Method, kind: type[M]) -> M: ...
    @overload
    async def call(self, method: m.Method) -> Any: ...
    async def call(self, method: m.Method, kind: type[m.Method] | None = None) -> Any:
        """Ask, and wait for the answer; with `kind`, it has to be that one."""
        answer, _ = await self.ask(method)
        if kind is not None and not isinstance(answer, kind):
            raise TransportError(f"the broker answered {method.wire_name()} with {answer.wire_name()}")
        return answer

    async def ask(self, method: m.Method) -> tuple[m.Method, Content | None]:
        """Ask, and wait for the answer with its content, if it has one (`basic.get`)."""
        event = await self.begin(method)
        return event.method, event.content

    def begin(self, method: m.Method) -> asyncio.Future[MethodReceived]:
        """Ask now, in front of everything that is written later; the answer may be waited for."""
        self.send(method)
        answer: asyncio.Future[MethodReceived] = asyncio.get_running_loop().create_future()
        self._questions.append((method.spec.replies, answer))
        return answer

    def send(self, method: m.Method, content: Content | None = None) -> None:
        """Say something that is not answered."""
        if self.error is not None:
            raise self.error
        self.link.write(self.link.connection.send(method, self.number, content))

    def write(self, octets: bytes) -> None:
        """Send whole frames of this channel, made by `amqp.hot`; nothing if the channel is over."""
        if self.error is None and not self._closing:
            self.link.write(octets)

    async def close(self) -> None:
        """End it; what was delivered and not settled goes back to its queue. Never raises."""
        if self.error is not None or self._closing:
            return
        self._closing = True
        self._fail_questions(TransportClosedError(_ENDED))  # a peer that closes does not read other answers
        try:
            await self.ask(m.ChannelClose())
        except TransportError:
            pass  # it is over either way
        else:
            self.end(TransportClosedError(_ENDED))

    # --- what the link tells ---------------------------------------------------------------------------------

    def received(self, event: MethodReceived) -> None:
        """A method has come on this channel, with its content."""
        method, content = event.method, event.content
        if self._crossed:  # both sides have closed it: our own close is answered last
            if isinstance(method, m.ChannelCloseOk):
                self.link.forget(self.number)
        elif self._questions and method.wire_name() in self._questions[0][0]:
            _, answer = self._questions.popleft()
            if not answer.done():
                answer.set_result(event)
        elif isinstance(method, m.ChannelClose):
            self.link.write(self.link.connection.send(m.ChannelCloseOk(), self.number))
            self._crossed = self._closing
            self.end(refusal(method.reply_code, method.reply_text))
        elif isinstance(method, m.BasicDeliver) and content is not None:
            # One that did not fit a single frame: from here on it looks like the others.
            self.on_delivery(
                encode(method), content_header(content.properties, len(content.body)), content.body
            )
        elif isinstance(method, m.ChannelFlow):
            self.send(m.ChannelFlowOk(method.active))
        else:
            self.on_method(method, content)

    def end(self, error: TransportError) -> None:
        """It is over, and this is why."""
        if self.error is not None:
            return
        self.error = error
        if not self._crossed:
            self.link.forget(self.number)
        self._fail_questions(error)
        self.on_end(error)

    def _fail_questions(self, error: TransportError) -> None:
        questions, self._questions = self._questions, deque()
        for _, answer in questions:
            if not answer.done():
                answer.set_exception(error)


def _ignore(*_: object) -> None:
    """Nobody listens."""
