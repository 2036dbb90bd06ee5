import pytest
from hypothesis import given, settings, strategies as st

from redrive.amqp.codec import decode, encode
from redrive.amqp.errors import FrameSyntaxError
from redrive.amqp.frames import content_frames, content_header, method_frame
from redrive.amqp.hot import (
    ContentWriter,
    DeliverWriter,
    ack_frame,
    ack_frames,
    deliver_payload,
    nack_frame,
    parse_ack,
    parse_deliver,
    parse_nack,
    parse_publish,
    parse_reject,
    parse_route,
    publish_payload,
    reject_frame,
    route_of,
)
from redrive.amqp.methods import BasicAck, BasicDeliver, BasicNack, BasicPublish, BasicReject
from redrive.amqp.properties import NO_PROPERTIES, BasicProperties, encode_properties

NAME = st.text(max_size=40)
TAG = st.integers(0, 2**64 - 1)
BIT = st.booleans()
PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))


@given(NAME, NAME, BIT, BIT)
@settings(max_examples=100, deadline=None)
def test_a_publish_reads_as_the_codec_reads_it(
    exchange: str,
    key: str,
    mandatory: bool,  # a bit of the wire
    immediate: bool,  # a bit of the wire
) -> None:
    payload = encode(BasicPublish(exchange, key, mandatory, immediate))
    assert parse_publish(payload) == (exchange, key, mandatory, immediate)
    assert payload == publish_payload(exchange.encode(), key.encode(), mandatory | immediate << 1)
    for size in range(4, len(payload)):
        with pytest.raises(FrameSyntaxError, match=r"basic\.publish"):
            parse_publish(payload[:size])
    with pytest.raises(FrameSyntaxError):
        parse_publish(payload + b"\x00")


@given(NAME, TAG, BIT, NAME, NAME)
@settings(max_examples=100, deadline=None)
def test_a_deliver_reads_and_writes_as_the_codec_does(
    tag: str,
    number: int,
    redelivered: bool,
    exchange: str,
    key: str,
) -> None:
    payload = encode(BasicDeliver(tag, number, redelivered, exchange, key))
    assert parse_deliver(payload) == (tag, number, redelivered, exchange, key)
    assert parse_route(payload) == (exchange, key)
    route = route_of(encode(BasicPublish(exchange, key)))
    assert deliver_payload(tag.encode(), number, redelivered, route) == payload
    for size in range(4, len(payload)):
        with pytest.raises(FrameSyntaxError):
            parse_deliver(payload[:size])
        with pytest.raises(FrameSyntaxError):
            parse_route(payload[:size])


@given(TAG, BIT, BIT)
@settings(max_examples=60, deadline=None)
def test_acks_nacks_and_rejects_read_and_write_as_the_codec_does(tag: int, one: bool, two: bool) -> None:
    assert parse_ack(encode(BasicAck(tag, one))) == (tag, one)
    assert parse_nack(encode(BasicNack(tag, one, two))) == (tag, one, two)
    assert parse_reject(encode(BasicReject(tag, one))) == (tag, one)
    assert ack_frame(7, tag, one) == method_frame(7, encode(BasicAck(tag, one)))
    assert nack_frame(7, tag, one | two << 1) == method_frame(7, encode(BasicNack(tag, one, two)))
    assert reject_frame(7, tag, one) == method_frame(7, encode(BasicReject(tag, one)))


@pytest.mark.parametrize("reader", [parse_ack, parse_nack, parse_reject])
def test_an_acknowledgement_of_another_length_is_a_syntax_error(reader: object) -> None:
    assert callable(reader)
    for payload in (b"", b"\x00\x3c\x00\x50", encode(BasicAck(1)) + b"\x00", encode(BasicAck(1))[:-1]):
        with pytest.raises(FrameSyntaxError):
            reader(payload)
    with pytest.raises(FrameSyntaxError, match="not the method"):
        reader(encode(BasicPublish("e" * 20)))


BODIES = st.binary(max_size=30) | st.sampled_from([b"x" * 5000, b""])


@given(
    st.lists(
        st.tuples(
            TAG, BIT, st.sampled_from(["a", "b"]), st.sampled_from([NO_PROPERTIES, PERSISTENT]), BODIES
        ),
        max_size=8,
    )
)
@settings(max_examples=150, deadline=None)
def test_a_deliver_writer_writes_what_the_plain_functions_write(
    messages: list[tuple[int, bool, str, bytes, bytes]],
) -> None:
    writer = DeliverWriter(3, b"tag", 4096)
    routes = {key: route_of(encode(BasicPublish("e", key))) for key in "ab"}
    headers: dict[tuple[bytes, int], bytes] = {}
    for number, redelivered, key, properties, body in messages:
        # As from a splitter: the same header is mostly, but not always, the same object.
        header = headers.setdefault((properties, len(body)), content_header(properties, len(body)))
        expected = method_frame(3, encode(BasicDeliver("tag", number, redelivered, "e", key)))
        expected += content_frames(3, properties, body, 4096)
        assert writer.frames(number, redelivered, routes[key], header, body) == expected


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([NO_PROPERTIES, PERSISTENT]), BODIES)))
@settings(max_examples=100, deadline=None)
def test_a_content_writer_writes_what_the_plain_functions_write(
    messages: list[tuple[str, bytes, bytes]],
) -> None:
    writer = ContentWriter(3, 4096)
    for key, properties, body in messages:
        payload = encode(BasicPublish("e", key))
        expected = method_frame(3, payload) + content_frames(3, properties, body, 4096)
        assert writer.frames(payload, content_header(properties, len(body)), body) == expected


def test_the_route_of_a_publish_is_what_a_delivery_repeats() -> None:
    route = route_of(encode(BasicPublish("orders", "new", mandatory=True)))
    assert route == b"\x06orders\x03new"
    assert decode(deliver_payload(b"c", 1, True, route)) == BasicDeliver("c", 1, True, "orders", "new")


@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_many_acks_are_written_as_each_of_them_is(tags: list[int]) -> None:
    assert ack_frames(7, tags) == b"".join(ack_frame(7, tag) for tag in tags)
