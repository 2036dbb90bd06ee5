"""As few acknowledgements as can be, and never one that RabbitMQ would close the channel for."""

from hypothesis import given, strategies as st

from redrive.amqp.frames import METHOD, FrameSplitter
from redrive.amqp.hot import parse_ack
from redrive.transports.rabbitmq.acks import Ledger

CHANNEL = 7


def acks(octets: bytes) -> list[tuple[int, bool]]:
    frames = FrameSplitter().feed(octets)
    assert {(kind, channel) for kind, channel, _ in frames} <= {(METHOD, CHANNEL)}
    return [parse_ack(payload) for _, _, payload in frames]


def test_a_whole_batch_is_one_frame() -> None:
    ledger = Ledger(CHANNEL)
    ledger.done([1, 2, 3])

    assert acks(ledger.flush()) == [(3, True)]
    assert acks(ledger.flush()) == []


def test_what_lies_behind_an_unsettled_one_is_told_one_by_one() -> None:
    ledger = Ledger(CHANNEL)
    ledger.done([5, 2, 1, 4])

    assert acks(ledger.flush()) == [(2, True), (4, False), (5, False)]


def test_a_multiple_never_names_one_that_was_told_before() -> None:
    """RabbitMQ would look for it, not find it, and close the channel: unknown delivery tag."""
    ledger = Ledger(CHANNEL)
    ledger.done([2, 3])
    assert acks(ledger.flush()) == [(2, False), (3, False)]

    ledger.done([1])

    assert acks(ledger.flush()) == [(1, True)]
    ledger.done([4])
    assert acks(ledger.flush()) == [(4, True)]


def test_what_was_rejected_is_not_acknowledged_and_holds_up_nobody() -> None:
    ledger = Ledger(CHANNEL)
    ledger.told(2)
    ledger.done([1, 3])

    assert acks(ledger.flush()) == [(3, True)]


def test_it_knows_how_many_are_out() -> None:
    ledger = Ledger(CHANNEL)
    ledger.done([1, 4])
    ledger.told(2)

    assert ledger.outstanding(5) == 2
    ledger.flush()
    assert ledger.outstanding(5) == 2
    assert ledger.outstanding(1) == 0


class Broker:
    """What RabbitMQ does with acknowledgements."""

    def __init__(self, tags: int) -> None:
        self.waiting = list(range(1, tags + 1))
        self.acknowledged: list[int] = []

    def hear(self, tag: int, *, multiple: bool) -> None:
        assert tag in self.waiting, f"unknown delivery tag {tag}"
        gone = [each for each in self.waiting if each == tag or (multiple and each < tag)]
        self.acknowledged += gone
        self.waiting = [each for each in self.waiting if each not in gone]


STEPS = st.lists(st.tuples(st.sampled_from(["done", "reject", "flush"]), st.integers(1, 12)), max_size=40)


@given(STEPS)
def test_in_whatever_order_they_are_settled_the_broker_hears_of_exactly_those(
    steps: list[tuple[str, int]],
) -> None:
    ledger, broker = Ledger(CHANNEL), Broker(12)
    done: set[int] = set()
    rejected: set[int] = set()
    for what, tag in [*steps, ("flush", 0)]:
        if what == "flush":
            for number, multiple in acks(ledger.flush()):
                broker.hear(number, multiple=multiple)
            assert set(broker.acknowledged) == done
        elif tag not in done | rejected:
            if what == "done":
                done.add(tag)
                ledger.done([tag])
            else:
                rejected.add(tag)
                ledger.told(tag)
                broker.waiting.remove(tag)
    assert ledger.outstanding(12) == 12 - len(done | rejected)
