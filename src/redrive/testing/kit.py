"""What would become of this message? A handler on trial, without a broker.

    trial = await try_handler(handle, b'{"id": 1}')
    assert trial.completed

    trial = await try_message(app, "orders", b"not json")
    assert trial.letter.reason == "NonRetryableError"

The message goes through the same pipe as in production: decoding, attempts, classification, decision. Waits between
attempts are not waited for; they are listed.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from redrive.app import App
from redrive.clock import Clock, SystemClock
from redrive.consume import ConsumeOptions, Context, Handler
from redrive.consume.pipe import Job, Pipe, TryAgain
from redrive.consume.slots import Slots
from redrive.errors import SettingsError, use_instead
from redrive.letters import DeadLetter, Failure, Message, Origin
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, Complete, DeadLetterIt, GiveBack, Rule
from redrive.transports.base import Delivery


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message."""

    decision: Complete | GiveBack | DeadLetterIt
    attempts: int  # how often the handler was tried; 0 if it never was
    waits: tuple[timedelta, ...]  # between the attempts
    failure: Failure | None
    letter: DeadLetter | None

    @property
    def completed(self) -> bool:
        """Whether the message was processed."""
        return isinstance(self.decision, Complete)

    @property
    def given_back(self) -> bool:
        """Whether the message would come again."""
        return isinstance(self.decision, GiveBack)

    @property
    def dead_lettered(self) -> bool:
        """Whether the message was given up."""
        return isinstance(self.decision, DeadLetterIt)


class _Delivery(Delivery):
    def __init__(self, message: Message, source: str, count: int) -> None:
        self._message = message
        self.body = message.body
        self._source = source
        self._count = count

    @property
    def message(self) -> Message:
        return self._message

    @property
    def origin(self) -> Origin:
        return Origin(transport="trial", source=self._source)

    @property
    def delivery_count(self) -> int:
        return self._count

    @property
    def alive(self) -> bool:
        return True

    @property
    def key(self) -> str:
        return f"trial/{self._source}/{self._message.message_id or ''}"


async def try_handler(
    function: Callable[..., Any],
    message: Message | Any,
    *,
    delivery_count: int = 1,
    source: str = "trial",
    options: ConsumeOptions | None = None,
    decoder: Callable[[Any], Any] | None = None,
    rules: Sequence[Rule] = (),
    redactor: Redactor | None = None,
    clock: Clock | None = None,
) -> Trial:
    """What becomes of a message with this handler. Anything but bytes or a `Message` is sent as JSON."""
    return await _try(
        Handler.of(function, decoder),
        message,
        source,
        delivery_count,
        options or ConsumeOptions(),
        Classifier(tuple(rules)),
        redactor or Redactor(),
        clock or SystemClock(),
    )


async def try_message(
    app: App, source: str, message: Message | Any, *, delivery_count: int = 1, clock: Clock | None = None
) -> Trial:
    """What becomes of a message that this source of an app delivers, with the app's own options and rules."""
    found = {entry.source.name: entry for entry in app.subscriptions()}
    if source not in found:
        raise SettingsError(f"no handler of this app consumes '{source}'{use_instead(source, found)}")
    entry = found[source]
    return await _try(
        entry.handler,
        message,
        source,
        delivery_count,
        entry.options,
        app.classifier(),
        app.settings.redactor(),
        clock or SystemClock(),
    )


async def _try(
    handler: Handler,
    message: Message | Any,
    source: str,
    count: int,
    options: ConsumeOptions,
    classifier: Classifier,
    redactor: Redactor,
    clock: Clock,
) -> Trial:
    if not isinstance(message, Message):
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        message = Message(body=body)
    ran = 0

    def counted(value: Any, context: Context | None) -> Any:
        nonlocal ran
        ran += 1
        return handler.call(value, context)

    on_trial = msgspec.structs.replace(handler, call=counted)
    pipe = Pipe(on_trial, source, options, clock=clock, classifier=classifier, redactor=redactor)
    job = Job(_Delivery(message, source, count))
    waits: list[timedelta] = []
    slots = Slots(options.handler_timeout, lambda _: None)
    place = slots.open()
    try:
        step = await pipe.attempt(job, place)
        while isinstance(step, TryAgain):
            waits.append(step.wait)
            job.attempt += 1
            step = await pipe.attempt(job, place)
    finally:
        slots.close()
    letter = None
    if isinstance(step.decision, DeadLetterIt) and step.failure is not None:
        letter = pipe.letter(job, step.decision, step.failure)
    return Trial(
        decision=step.decision, attempts=ran, waits=tuple(waits), failure=step.failure, letter=letter
    )
