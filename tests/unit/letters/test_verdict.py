"""What a consumer says of redrives arrives as it was said; what is no verdict is refused."""

from datetime import UTC, datetime

import msgspec
import pytest

from redrive.errors import FormatError
from redrive.letters import ClaimToken
from redrive.letters.redrive import Redrive
from redrive.letters.verdict import MOST, Verdict, from_body, resolved, to_messages

AT = datetime(2026, 2, 11, 11, tzinfo=UTC)


def verdicts(count: int) -> list[Verdict]:
    return [resolved(Redrive(ClaimToken(f"letter-{n}", n), 1, "op"), "orders", AT) for n in range(count)]


@pytest.mark.parametrize(("count", "messages"), [(0, 0), (1, 1), (MOST, 1), (MOST + 1, 2)])
def test_verdicts_travel_together_and_arrive_in_their_order(count: int, messages: int) -> None:
    said = verdicts(count)
    sent = to_messages(said)
    assert len(sent) == messages
    assert [verdict for message in sent for verdict in from_body(message.body)] == said
    assert len({message.message_id for message in sent}) == messages


def test_a_single_verdict_needs_no_array() -> None:
    [said] = verdicts(1)
    assert from_body(msgspec.json.encode(said)) == (said,)


@pytest.mark.parametrize(
    "body", [None, b"", b"7", b'"letter"', b"{}", b"[{}]", b"[1]", b"\xff", b"[" * 100_000, b'[{"id": 1}]']
)
def test_what_is_no_verdict_is_refused(body: bytes | None) -> None:
    with pytest.raises(FormatError, match="not a verdict"):
        from_body(body)
