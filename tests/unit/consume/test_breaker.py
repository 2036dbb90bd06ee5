"""When a source floods, as `ConsumeBreakerOptions` says it (H9); the breaker itself is tested beside the rules."""

from datetime import timedelta

import pytest

from redrive import ConsumeBreakerOptions
from redrive.errors import SettingsError


def test_without_a_word_sixteen_failures_among_the_last_twenty_pause_a_source_for_five_seconds() -> None:
    options = ConsumeBreakerOptions()
    assert (options.failure_rate, options.window) == (0.8, 20)
    assert (options.pause, options.max_pause) == (timedelta(seconds=5), timedelta(minutes=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"failure_rate": 0},
        {"failure_rate": 1.1},
        {"window": 0},
        {"pause": timedelta(0)},
        {"pause": timedelta(hours=1)},
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="consume breaker"):
        ConsumeBreakerOptions(**wrong)  # type: ignore[arg-type]
