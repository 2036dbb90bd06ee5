"""A handler on trial: the whole matrix without a broker."""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest

from redrive.app import App
from redrive.consume import ConsumeOptions, Context
from redrive.errors import SettingsError
from redrive.letters import FailureKind, Headers, Message
from redrive.rules import DeadLetterIt, DelayList, Fixed, GiveBack, Rule, when_text
from redrive.settings import read
from redrive.testing import ManualClock
from redrive.testing.kit import try_handler, try_message

SECRET = "postgres://shop:hunter2@db/orders"


@dataclass
class Order:
    id: int


async def fine(order: Order) -> None: ...


async def flaky(order: Order) -> None:
    raise ConnectionResetError("connection reset by peer")


async def wrong(order: Order) -> None:
    raise PermissionError(f"cannot log in at {SECRET}")


async def test_success_completes() -> None:
    trial = await try_handler(fine, {"id": 1})
    assert trial.completed
    assert (trial.attempts, trial.waits, trial.letter) == (1, (), None)


async def test_a_delivery_above_the_limit_is_poison_and_its_handler_is_not_run() -> None:
    trial = await try_handler(fine, {"id": 1}, delivery_count=4)
    assert trial.decision == DeadLetterIt("PoisonMessage", "Message exceeded maximum delivery count of 3")
    assert trial.attempts == 0
    assert trial.letter is not None
    assert trial.letter.kind is FailureKind.CRASH
    assert trial.letter.retry_count == 9


async def test_a_non_retryable_failure_is_dead_lettered_at_once_and_says_nothing_secret() -> None:
    trial = await try_handler(wrong, {"id": 1})
    assert trial.attempts == 1
    assert trial.letter is not None
    assert trial.letter.reason == "NonRetryableError"
    assert trial.letter.error_type == "PermissionError"
    told = repr(trial.letter.failure) + repr(trial.decision)
    assert "cannot log in" in told
    assert "hunter2" not in told


async def test_a_retryable_failure_is_tried_three_times_and_given_back() -> None:
    options = ConsumeOptions(backoff=DelayList(timedelta(seconds=5), timedelta(seconds=15)))
    trial = await try_handler(flaky, {"id": 1}, options=options)
    assert trial.given_back
    assert trial.attempts == 3
    assert trial.waits == (timedelta(seconds=5), timedelta(seconds=15))


async def test_a_retryable_failure_at_the_limit_is_dead_lettered() -> None:
    trial = await try_handler(flaky, {"id": 1}, delivery_count=3)
    assert trial.letter is not None
    assert trial.letter.reason == "MaxDeliveryCountExceeded"
    assert trial.letter.retry_count == 9
    assert trial.letter.first_failed_at <= trial.letter.last_failed_at


async def test_what_cannot_be_decoded_is_dead_lettered_with_its_place() -> None:
    trial = await try_handler(fine, b"not json")
    assert trial.letter is not None
    assert trial.letter.reason == "NonRetryableError"
    assert trial.letter.error_type == "DecodeError"
    assert trial.letter.error_text == "the message cannot be decoded from JSON: DecodeError at byte 4"
    assert trial.letter.message.body == b"not json"


async def test_a_handler_that_hangs_is_ended_and_its_message_dead_lettered() -> None:
    async def hangs(order: Order) -> None:
        await asyncio.sleep(3600)

    options = ConsumeOptions(handler_timeout=timedelta(milliseconds=20))
    trial = await try_handler(hangs, {"id": 1}, options=options)
    assert trial.letter is not None
    assert trial.letter.kind is FailureKind.TIMEOUT


async def test_plain_functions_run_in_a_thread() -> None:
    seen: list[int] = []

    def slow(order: Order) -> None:
        time.sleep(0.01)
        seen.append(order.id)

    assert (await try_handler(slow, {"id": 7})).completed
    assert seen == [7]


async def test_a_retry_that_succeeds_completes() -> None:
    tries = 0

    async def second_time_lucky(order: Order) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionResetError

    trial = await try_handler(
        second_time_lucky, {"id": 1}, options=ConsumeOptions(backoff=Fixed(timedelta(1e-6)))
    )
    assert trial.completed
    assert trial.attempts == 2


async def test_a_long_wait_that_a_server_asks_for_is_waited_for_at_the_broker() -> None:
    class TooManyError(Exception):
        status = 429
        headers = {"Retry-After": "600"}  # noqa: RUF012

    async def limited(order: Order) -> None:
        raise TooManyError

    trial = await try_handler(limited, {"id": 1})
    assert trial.attempts == 1
    assert isinstance(trial.decision, GiveBack)
    assert trial.decision.after == timedelta(minutes=10)


@pytest.mark.parametrize("swallow", [False, True])
async def test_a_handler_may_dead_letter_by_itself(swallow: bool) -> None:
    async def picky(order: Order, context: Context) -> None:
        try:
            context.dead_letter("CreditLimit", f"customer is above the limit, see {SECRET}")
        except BaseException:
            if not swallow:
                raise

    trial = await try_handler(picky, {"id": 1})
    assert trial.letter is not None
    assert trial.letter.reason == "CreditLimit"
    assert trial.letter.kind is FailureKind.BUSINESS
    assert "above the limit" in trial.letter.error_text
    assert "hunter2" not in trial.letter.error_text


@pytest.mark.parametrize("after", ["10m", timedelta(minutes=10)])
async def test_a_handler_may_give_back_even_on_the_last_delivery(after: timedelta | str) -> None:
    async def later(order: Order, context: Context) -> None:
        context.requeue(after)

    trial = await try_handler(later, {"id": 1}, delivery_count=3)
    assert trial.decision == GiveBack(timedelta(minutes=10))
    assert trial.failure is None


async def test_the_context_tells_about_the_message() -> None:
    told: list[object] = []

    async def curious(context: Context) -> None:
        told.extend(
            (
                context.delivery_count,
                context.attempt,
                context.correlation_id,
                context.headers.get("a"),
                context.source,
            )
        )
        context.logger.info("seen")

    message = Message(body=b"", headers=Headers({"a": 1, "x-correlation-id": b"abc"}))
    assert (await try_handler(curious, message, delivery_count=2, source="orders")).completed
    assert told == [2, 1, "abc", 1, "orders"]


async def test_a_correlation_id_that_has_to_be_made_stays_the_same() -> None:
    told: list[str] = []

    async def curious(context: Context) -> None:
        told.append(context.correlation_id)

    for message_id in ("1", "1", "2"):
        await try_handler(curious, Message(body=b"x", message_id=message_id))
    assert told[0] == told[1] != told[2]


async def test_an_app_is_tried_with_its_own_options_and_rules() -> None:
    rule = Rule("dup", FailureKind.BUSINESS, None, when_text("duplicate invoice"))
    app = App("memory:", settings=read({"consume": {"attempts": 2}}), rules=[rule])

    @app.consume("invoices", max_deliveries=1)
    async def handle(order: Order) -> None:
        raise RuntimeError("duplicate invoice 4711" if order.id else "socket closed: connection reset")

    clock = ManualClock()
    trial = await try_message(app, "invoices", {"id": 1}, clock=clock)
    assert trial.letter is not None
    assert trial.letter.failure.rule == "dup"
    assert trial.letter.failure.at == clock.now()
    assert (await try_message(app, "invoices", {"id": 0})).attempts == 2
    with pytest.raises(SettingsError, match="did you mean 'invoices'"):
        await try_message(app, "invoice", {"id": 1})
