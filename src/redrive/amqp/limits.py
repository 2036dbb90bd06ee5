"""On which limits do the two ends of a connection agree?

The server proposes some, the client answers with the lower of these and its own. 0 is no limit. The rule: the client
may lower what the server proposed, never raise it; and a frame must hold something: 4096 octets by the specification,
8192 for a server like RabbitMQ 4.3.

It does not know when that is said, nor who keeps to it; see `connection`.
"""

from msgspec import Struct

from redrive.amqp import methods as m
from redrive.amqp.errors import HardError, ReplyCode
from redrive.amqp.frames import DEFAULT_FRAME_MAX, FRAME_MIN_SIZE


class Limits(Struct, frozen=True):
    """What the two ends agree on; 0 is no limit, and no heartbeat."""

    frame_max: int = DEFAULT_FRAME_MAX
    channel_max: int = 2047
    heartbeat: int = 60


def lower(ours: int, theirs: int) -> int:
    """The lower of two limits, where 0 is none."""
    return min(ours, theirs) if ours and theirs else ours or theirs


def answer_to(offer: m.ConnectionTune, ours: Limits) -> m.ConnectionTuneOk:
    """The client's answer to what the server proposes: the lower of both."""
    return m.ConnectionTuneOk(
        channel_max=lower(ours.channel_max, offer.channel_max),
        frame_max=lower(ours.frame_max, offer.frame_max),
        heartbeat=lower(ours.heartbeat, offer.heartbeat),
    )


def check_answer(
    offer: m.ConnectionTune, answer: m.ConnectionTuneOk, least_frame_max: int = FRAME_MIN_SIZE
) -> None:
    """Raise a `HardError` if this is no answer to that proposal."""
    pairs = (
        ("frame_max", offer.frame_max, answer.frame_max, least_frame_max),
        ("channel_max", offer.channel_max, answer.channel_max, 1),
    )
    ids = (answer.spec.class_id, answer.spec.method_id)
    for name, most, value, least in pairs:
        if value and value < least:
            text = f"negotiated {name} = {value} is lower than the minimum allowed value ({least})"
            raise HardError(ReplyCode.NOT_ALLOWED, text, *ids)
        if most and (value == 0 or value > most):
            shown = f"{value}" if value else "0 (no limit)"
            text = f"negotiated {name} = {shown} is higher than the maximum allowed value ({most})"
            raise HardError(ReplyCode.NOT_ALLOWED, text, *ids)
