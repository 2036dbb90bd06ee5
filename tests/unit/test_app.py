"""Options of a source: `[[sources]]` overrides the arguments of `consume`, which override `[consume]`."""

from datetime import timedelta
from typing import Any

import pytest

from redrive import App, ConsumeBreakerOptions
from redrive.consume import Subscription
from redrive.errors import SettingsError
from redrive.rules import Fixed
from redrive.settings import LISTS, read

SECOND = timedelta(seconds=1)


def subscription(settings: dict[str, Any], **arguments: Any) -> Subscription:
    app = App("memory:", settings=read(settings))

    @app.consume("orders", **arguments)
    async def handle(body: bytes) -> None: ...

    [found] = app.subscriptions()
    return found


def test_options_of_consume_section_apply_to_every_source() -> None:
    consume = {
        "prefetch": 3,
        "concurrency": 2,
        "handler_timeout": "7s",
        "shutdown_timeout": "8s",
        "max_deliveries": 4,
        "attempts": 5,
        "backoff": "1s",
        "dead_letter": "native",
        "best_effort": True,
        "breaker": {"failure_rate": 0.5, "window": 9, "pause": "2s", "max_pause": "3s"},
    }
    found = subscription({"consume": consume})
    assert (found.source.window, found.source.max_deliveries, found.source.dead_letter) == (3, 4, "native")
    options = found.options
    assert (options.concurrency, options.attempts, options.backoff) == (2, 5, Fixed(SECOND))
    assert (options.handler_timeout, options.shutdown_timeout) == (7 * SECOND, 8 * SECOND)
    assert options.best_effort
    assert options.breaker == ConsumeBreakerOptions(
        failure_rate=0.5, window=9, pause=2 * SECOND, max_pause=3 * SECOND
    )


def test_unknown_way_of_dead_lettering_is_refused() -> None:
    with pytest.raises(SettingsError, match="dead_letter must be 'publish' or 'native', not 'reject'"):
        subscription({}, dead_letter="reject")


def test_breaker_is_disabled_by_setting_or_argument() -> None:
    assert subscription({"consume": {"breaker": {"enabled": False}}}).options.breaker is None
    assert subscription({}, breaker=False).options.breaker is None
    assert subscription({}).options.breaker == ConsumeBreakerOptions()


def test_argument_overrides_the_section_and_source_overrides_the_argument() -> None:
    section: dict[str, Any] = {"consume": {"handler_timeout": "1s"}}
    assert subscription(section, handler_timeout=2 * SECOND).options.handler_timeout == 2 * SECOND
    source = {"sources": [{"name": "orders", "handler_timeout": "3s"}]}
    assert subscription(section | source, handler_timeout=2 * SECOND).options.handler_timeout == 3 * SECOND


def test_source_with_every_option_is_accepted() -> None:
    source = {
        "name": "orders",
        "prefetch": 1,
        "concurrency": 1,
        "handler_timeout": "1s",
        "max_deliveries": 1,
        "attempts": 1,
        "backoff": "1s",
        "dead_letter": "publish",
        "dead_letter_queue": "dead",
        "dead_letter_exchange": "exchange",
        "dead_letter_routing_key": "key",
        "queue_type": "classic",
        "consumer_group": "shop",
        "redrive_rate": 5,
    }
    assert set(source) == set(LISTS["sources"].keys)
    found = subscription({"sources": [source]})
    assert (found.source.consumer_group, found.source.dlq) == ("shop", "dead")
