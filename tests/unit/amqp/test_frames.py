from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from redrive.amqp.codec import encode
from redrive.amqp.errors import HardError, ReplyCode
from redrive.amqp.frames import (
    ACKS,
    BODY,
    CONTENT,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    Frame,
    FrameSplitter,
    Item,
    content_frames,
    content_header,
    expand,
    method_frame,
    read_protocol_header,
)
from redrive.amqp.hot import ack_frame, deliver_payload, parse_ack_run, publish_payload
from redrive.amqp.methods import BasicAck
from redrive.amqp.properties import NO_PROPERTIES, BasicProperties, encode_properties

PUBLISH = publish_payload(b"e", b"k")
PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))


def publish(body: bytes, channel: int = 1, properties: bytes = PERSISTENT, frame_max: int = 4096) -> bytes:
    return method_frame(channel, PUBLISH) + content_frames(channel, properties, body, frame_max)


def split(stream: bytes, step: int = 0) -> list[Frame]:
    splitter = FrameSplitter()
    frames: list[Frame] = []
    for start in range(0, len(stream), step or len(stream) or 1):
        frames += splitter.feed(stream[start : start + (step or len(stream))])
    return frames


def fold(stream: bytes, step: int = 0) -> list[Item]:
    splitter = FrameSplitter()
    items: list[Item] = []
    for start in range(0, len(stream), step or len(stream) or 1):
        items += splitter.feed_batches(stream[start : start + (step or len(stream))])
    return items


def unfold(items: list[Item]) -> list[Frame]:
    return [frame for item in items for frame in expand(item)]


def message_id(number: int) -> bytes:
    return encode_properties(BasicProperties(message_id=f"m{number}"))


STREAMS = [
    b"",
    HEARTBEAT_FRAME * 3,
    publish(b"x" * 100) * 5,
    publish(b"") * 4,
    publish(b"x" * 5000) * 2,
    b"".join(publish(b"x" * size) for size in (1, 2, 2, 2, 2, 0, 2, 2, 3)),
    b"".join(publish(b"x" * 10, properties=message_id(number)) for number in range(8)),
    b"".join(publish(b"x" * 10, channel=number % 2 + 1) for number in range(8)),
    b"".join(ack_frame(1, tag) for tag in range(6)),
    b"".join(ack_frame(1 + tag // 3, tag, tag == 4) for tag in range(9)),
    publish(b"abc") * 3 + ack_frame(1, 9) + HEARTBEAT_FRAME + publish(b"abc") * 3,
    b"".join(
        method_frame(3, deliver_payload(b"c", tag, False, b"\x01e\x01k"))
        + content_frames(3, PERSISTENT, b"xyz", 0)
        for tag in range(5)
    ),
    # Contents of two channels that are interleaved, and one that a heartbeat interrupts: not foldable.
    method_frame(1, PUBLISH)
    + method_frame(2, PUBLISH)
    + content_frames(1, PERSISTENT, b"one", 0)
    + content_frames(2, PERSISTENT, b"two", 0),
    method_frame(1, PUBLISH) + HEARTBEAT_FRAME + content_frames(1, PERSISTENT, b"one", 0),
    publish(b"abc") * 3 + method_frame(2, PUBLISH) + content_frames(1, PERSISTENT, b"abc", 0),
]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_splits_the_same_whole_byte_by_byte_and_in_any_chunks(stream: bytes) -> None:
    whole = split(stream)
    for step in (1, 2, 3, 7, 8, 9, 50):
        assert split(stream, step) == whole
        assert unfold(fold(stream, step)) == whole
    assert unfold(fold(stream)) == whole


@given(st.lists(st.sampled_from(STREAMS), max_size=6), st.lists(st.integers(0, 3000), max_size=6))
@settings(max_examples=150, deadline=None)
def test_both_readers_give_the_same_frames_however_the_stream_is_cut(
    streams: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(streams)
    plain, folding = FrameSplitter(), FrameSplitter()
    frames: list[Frame] = []
    items: list[Item] = []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, stop in pairwise(edges):
        frames += plain.feed(stream[start:stop])
        items += folding.feed_batches(stream[start:stop])
    assert unfold(items) == frames == split(stream)
    assert plain.buffered == folding.buffered == 0


def test_what_trails_a_frame_waits_for_its_rest() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(HEARTBEAT_FRAME + b"\x01\x00") == [(HEARTBEAT, 0, b"")]
    assert splitter.buffered == 2
    assert splitter.feed(b"\x01\x00\x00\x00\x01A\xce") == [(METHOD, 1, b"A")]
    assert splitter.buffered == 0


def test_one_method_with_its_content_is_one_item() -> None:
    header = content_header(PERSISTENT, 3)
    assert fold(publish(b"abc")) == [(CONTENT, 1, PUBLISH, header, b"abc")]


def test_an_empty_body_is_folded_too() -> None:
    assert fold(publish(b"")) == [(CONTENT, 1, PUBLISH, content_header(PERSISTENT, 0), b"")]


def test_repeated_contents_share_their_method_and_header() -> None:
    items = fold(publish(b"abc") + publish(b"def") + publish(b"ghi") + publish(b"jkl"))
    assert [item[4] for item in items] == [b"abc", b"def", b"ghi", b"jkl"]
    assert items[3][3] is items[2][3]
    again = FrameSplitter()
    again.feed_batches(publish(b"abc") * 4)
    first, second = again.feed_batches(publish(b"def") * 2)
    assert first[2] is second[2]
    assert first[3] is second[3]


def test_acknowledgements_in_a_row_are_one_item_per_channel() -> None:
    stream = b"".join(
        [ack_frame(1, 5), ack_frame(1, 6), ack_frame(2, 1), ack_frame(2, 2, True), ack_frame(2, 3)]
    )
    items = fold(stream)
    assert [(kind, channel) for kind, channel, *_ in items] == [(ACKS, 1), (ACKS, 2), (METHOD, 2), (ACKS, 2)]
    assert parse_ack_run(items[0][2]) == [5, 6]
    assert items[2][2] == encode(BasicAck(2, True))


def test_a_body_in_several_frames_is_left_unfolded() -> None:
    kinds = [item[0] for item in fold(publish(b"x" * 5000))]
    assert kinds == [METHOD, HEADER, BODY, BODY]


def test_a_content_that_is_not_whole_is_held_back_until_it_is() -> None:
    stream = publish(b"abc")
    splitter = FrameSplitter()
    for octet in stream[:-1]:
        assert splitter.feed_batches(bytes((octet,))) == []
    assert len(splitter.feed_batches(stream[-1:])) == 1


def test_a_big_frame_in_small_pieces_is_not_looked_at_before_it_is_whole() -> None:
    stream = method_frame(1, b"\x00\x3c\x00\x46" + b"x" * 100_000)
    assert split(stream, 10) == [(METHOD, 1, stream[7:-1])]


@pytest.mark.parametrize("reader", ["feed", "feed_batches"])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"\x04\x00\x00\x00\x00\x00\x00\xce", "type 4"),
        (b"\x01\x00\x01\x00\x00\x00\x01A\xcd", "octet 205"),
        (b"\x01\x00\x01\x00\x02\x00\x01" + b"\x00", "131073"),
        (b"\x01\x00\x01\xff\xff\xff\xff\x00", "negotiated"),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", "channel 1"),
        (b"\x08\x00\x00\x00\x00\x00\x01A\xce", "payload"),
        (b"GET / HTTP/1.1\r\n\r\n", "type 71"),
    ],
)
def test_frames_in_front_of_a_bad_one_are_given_and_then_the_error_stays(
    reader: str, bad: bytes, words: str
) -> None:
    splitter = FrameSplitter()
    read = getattr(splitter, reader)
    assert len(read(HEARTBEAT_FRAME + bad + HEARTBEAT_FRAME)) == 1
    assert splitter.error is not None
    heartbeat = words == "channel 1"
    assert splitter.error.code is (ReplyCode.UNEXPECTED_FRAME if heartbeat else ReplyCode.FRAME_ERROR)
    assert words in splitter.error.text
    with pytest.raises(HardError):
        read(HEARTBEAT_FRAME)


def test_a_repeated_content_with_a_bad_end_is_an_error_too() -> None:
    good = publish(b"abc")
    splitter = FrameSplitter()
    items = splitter.feed_batches(good * 4 + good[:-1] + b"\x00")
    assert [item[0] for item in items] == [CONTENT] * 4 + [METHOD, HEADER]
    assert splitter.error is not None


@pytest.mark.parametrize("spoil", [0, 10, 25, 30, 45, -1])
def test_a_spoilt_content_is_given_as_the_frames_it_is_made_of(spoil: int) -> None:
    good = publish(b"abc")
    bad = bytearray(good)
    bad[spoil] ^= 0x40
    plain, folding = FrameSplitter(), FrameSplitter()
    stream = good * 3 + bytes(bad) + good
    frames, items = plain.feed(stream), folding.feed_batches(stream)
    assert unfold(items) == frames[: len(unfold(items))]
    assert len(frames) - len(unfold(items)) <= 2


def test_the_largest_frame_passes_and_one_octet_more_does_not() -> None:
    for reader in ("feed", "feed_batches"):
        splitter = FrameSplitter(4096)
        read = getattr(splitter, reader)
        assert len(read(method_frame(1, b"x" * 4096))) == 1
        assert splitter.error is None
        read(method_frame(1, b"x" * 4097))
        assert splitter.error is not None
    assert FrameSplitter(0).feed(method_frame(1, b"x" * 1_000_000))[0][2] == b"x" * 1_000_000


def test_a_frame_too_long_is_judged_again_when_the_limit_is_raised() -> None:
    splitter = FrameSplitter(4096)
    frame = method_frame(1, b"x" * 5000)
    assert splitter.feed(frame) == []
    splitter.limit(8192)
    assert splitter.error is None
    assert splitter.feed(b"") == [(METHOD, 1, b"x" * 5000)]


def test_a_body_is_split_at_the_frame_maximum() -> None:
    frames = split(content_frames(7, NO_PROPERTIES, b"x" * 10_000, 4096))
    assert [(kind, channel, len(payload)) for kind, channel, payload in frames] == [
        (HEADER, 7, 14),
        (BODY, 7, 4088),
        (BODY, 7, 4088),
        (BODY, 7, 1824),
    ]
    assert len(split(content_frames(1, NO_PROPERTIES, b"x" * 4088, 4096))) == 2
    assert len(split(content_frames(1, NO_PROPERTIES, b"", 4096))) == 1


def test_content_header_is_not_split() -> None:
    properties = encode_properties(BasicProperties(headers={"k": "x" * 5000}))
    (header,) = FrameSplitter(0).feed(content_frames(1, properties, b"", 4096))
    assert header == (HEADER, 1, content_header(properties, 0))


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"", None),
        (b"AMQP", None),
        (PROTOCOL_HEADER[:7], None),
        (PROTOCOL_HEADER, True),
        (PROTOCOL_HEADER + b"\x01", True),
        (b"AMQP\x00\x01\x00\x00", False),
        (b"AMQP\x01\x01\x00\x0a", False),
        (b"GET", False),
        (b"\x16\x03\x01", False),
    ],
)
def test_a_protocol_header_is_known_as_early_as_possible(data: bytes, verdict: bool | None) -> None:
    assert read_protocol_header(data) is verdict
