"""How is a replay to be run?"""

from datetime import timedelta
from typing import Final

import msgspec

from redrive.errors import SettingsError
from redrive.transports.redriving import SendOptions

KIND: Final = "replay"
WORKER_PREFIX: Final = (
    "replay:"  # in front of the operation's id: the name under which a replay claims letters
)
# What becomes of a letter of a replay.
SENT: Final = "sent"
SKIPPED: Final = "skipped"
FAILED: Final = "failed"
# The order of a list; a filter with `sort:` has another one.
OLDEST: Final = "oldest"
NEWEST: Final = "newest"


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Safe by default: in batches, to queues that exist, stopped when too many die again."""

    broker: str = ""  # the name of the broker that it sends to; empty: not recorded
    order: str = OLDEST  # of the list, for people: the list itself is frozen
    batch: int = 100
    rate: float | None = None  # letters in a second; None: as fast as it goes
    pause: timedelta = timedelta(0)  # between two batches
    canary: int = 0  # so many go first, and their verdicts are waited for
    canary_wait: timedelta = timedelta(
        minutes=1
    )  # for the verdicts of the canaries, and of each step of the ramp
    ramp: tuple[int, ...] = ()  # sizes of the first batches, such as 1, 2, 5, 20
    assume_success: bool = False  # canaries and steps of the ramp without a verdict do not stop the replay
    stop_at: float | None = 0.5  # stop when this share of those that are judged has died again
    judge_after: int = 5  # fewer than so many say nothing
    skip_done: bool = False  # skip letters whose message another letter has already resolved
    over_limit: bool = False  # send letters at the limit of redrives too: copies that a person has asked for
    health_check: bool = True
    verdict_timeout: timedelta = timedelta(hours=1)
    lease: timedelta = timedelta(minutes=1)
    sending: SendOptions = SendOptions()

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= 10_000:
            raise SettingsError(f"replay: batch_size must be between 1 and 10000 letters, not {self.batch}")
        if self.rate is not None and not 0 < self.rate <= 1_000_000:
            raise SettingsError(
                f"replay: the rate must be greater than 0 letters per second, not {self.rate}"
            )
        if self.pause < timedelta(0):
            raise SettingsError("replay: the pause between two batches must not be negative")
        if self.canary < 0 or any(size < 1 for size in self.ramp):
            raise SettingsError(
                "replay: the canary must be at least 0 letters, and each step of the ramp at least 1"
            )
        if self.stop_at is not None and not 0 < self.stop_at <= 1:
            raise SettingsError(
                f"replay: max_failure_rate must be greater than 0 and at most 1, not {self.stop_at}"
            )


def pack(options: ReplayOptions) -> bytes:
    """The options as an operation keeps them."""
    return msgspec.json.encode(options)


def unpack(data: bytes) -> ReplayOptions:
    """The options that `pack` wrote."""
    try:
        fields = msgspec.json.decode(data)
        if isinstance(fields, dict) and "quiet_time" in fields:  # its name in version 1
            fields["verdict_timeout"] = fields.pop("quiet_time")
        if isinstance(fields, dict):
            fields.setdefault("order", NEWEST)  # what it was before there was a choice
        return msgspec.convert(fields, ReplayOptions)
    except msgspec.MsgspecError as error:
        raise SettingsError(f"the options of the operation cannot be read: {error}") from None
