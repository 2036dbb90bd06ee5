from contextlib import suppress
from typing import get_type_hints

import pytest
from hypothesis import given, settings, strategies as st

from redrive.amqp import methods as m
from redrive.amqp.codec import decode, describe, encode
from redrive.amqp.errors import FrameSyntaxError, HardError, MisuseError, ReplyCode
from redrive.amqp.methods import ALL, BY_NAME, METHODS, Method, Role

FIELDS: dict[str, st.SearchStrategy[object]] = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "bit": st.booleans(),
    "text": st.text(max_size=60),
    "shortstr": st.text(max_size=60),
    "longstr": st.binary(max_size=60),
    "table": st.dictionaries(st.text(max_size=10), st.text(max_size=10) | st.integers(0, 9), max_size=3),
}


@st.composite
def methods(draw: st.DrawFn) -> Method:
    kind = draw(st.sampled_from(ALL))
    hints = get_type_hints(kind, include_extras=True)
    return kind(*[draw(FIELDS[hints[name].__metadata__[0]]) for name in kind.__struct_fields__])


@given(methods())
@settings(max_examples=400, deadline=None)
def test_a_method_comes_back_as_it_was(method: Method) -> None:
    payload = encode(method)
    assert decode(payload) == method
    assert encode(decode(payload)) == payload


@given(methods())
@settings(max_examples=100, deadline=None)
def test_a_method_cut_short_anywhere_or_too_long_is_a_syntax_error(method: Method) -> None:
    payload = encode(method)
    for size in range(len(payload)):
        with pytest.raises(FrameSyntaxError):
            decode(payload[:size])
    with pytest.raises(FrameSyntaxError):
        decode(payload + b"\x00")


@given(st.sampled_from(ALL), st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_garbage_behind_a_method_number_is_a_syntax_error_or_a_method(
    kind: type[Method], garbage: bytes
) -> None:
    with suppress(FrameSyntaxError):
        assert type(decode(encode(kind())[:4] + garbage)) is kind


VECTORS: list[tuple[Method, str]] = [
    (m.ChannelOpen(), "0014000a00"),
    (m.ChannelOpenOk(), "0014000b00000000"),
    (m.ConnectionOpen("/"), "000a0028012f0000"),
    (m.ConnectionTune(2047, 131072, 60), "000a001e07ff00020000003c"),
    (m.QueueDeclare("q", durable=True, nowait=True), "0032000a0000017112" + "00000000"),
    (m.QueueDeclare("q", passive=True, exclusive=True), "0032000a0000017105" + "00000000"),
    (
        m.ExchangeDeclare("e", "fanout", durable=True),
        "0028000a0000016506" + b"fanout".hex() + "02" + "00000000",
    ),
    (m.BasicPublish("e", "k", mandatory=True), "003c0028000001650" + "16b01"),
    (m.BasicDeliver("c", 7, True, "e", "k"), "003c003c0163" + "0000000000000007" + "01" + "0165016b"),
    (m.BasicAck(1, multiple=True), "003c0050000000000000000101"),
    (m.BasicNack(1, multiple=True, requeue=False), "003c0078000000000000000101"),
    (m.BasicNack(1, multiple=False, requeue=True), "003c0078000000000000000102"),
    (m.BasicQos(0, 10, global_=True), "003c000a00000000000a01"),
    (m.BasicConsume("q", "t", no_ack=True), "003c00140000017101740200000000"),
    (m.ExchangeUnbindOk(), "00280033"),
    (m.ConfirmSelect(), "0055000a00"),
]


@pytest.mark.parametrize(("method", "wire"), VECTORS)
def test_methods_look_on_the_wire_as_the_specification_says(method: Method, wire: str) -> None:
    assert encode(method).hex() == wire
    assert decode(bytes.fromhex(wire)) == method


def test_every_method_has_its_own_number_and_name() -> None:
    assert len(METHODS) == len(BY_NAME) == len(ALL) == 66
    assert BY_NAME["queue.declare-ok"] is m.QueueDeclareOk
    assert describe(m.BasicRecoverAsync.spec.number) == "basic.recover-async"
    assert describe(0x00630001) == "method 99.1"


@pytest.mark.parametrize("kind", ALL)
def test_every_answer_exists_and_comes_from_the_other_end(kind: type[Method]) -> None:
    for name in kind.spec.replies:
        reply = BY_NAME[name]
        assert reply.spec.class_id == kind.spec.class_id
        if kind.spec.sender is not Role.EITHER:
            assert not reply.spec.sender & kind.spec.sender or reply.spec.sender is Role.EITHER


def test_only_four_methods_carry_content() -> None:
    assert {kind for kind in ALL if kind.spec.content} == {
        m.BasicPublish,
        m.BasicReturn,
        m.BasicDeliver,
        m.BasicGetOk,
    }


def test_a_method_that_nobody_knows_is_an_invalid_command() -> None:
    with pytest.raises(HardError) as caught:
        decode(b"\x00\x63\x00\x01")
    assert caught.value.code is ReplyCode.COMMAND_INVALID
    assert (caught.value.class_id, caught.value.method_id) == (99, 1)


def test_a_name_that_is_not_utf8_is_a_syntax_error() -> None:
    with pytest.raises(FrameSyntaxError, match="not UTF-8"):
        decode(b"\x00\x3c\x00\x28\x00\x00\x01\xff\x00\x00")


def test_a_text_that_was_cut_inside_a_character_is_read_as_well_as_it_can_be() -> None:
    # RabbitMQ shortens reply texts by octets.
    payload = b"\x00\x14\x00\x28\x01\x94\x02\x61\xc3\x00\x32\x00\x0a"
    assert decode(payload) == m.ChannelClose(404, "a\ufffd", 50, 10)


@pytest.mark.parametrize(
    "method",
    [
        m.QueueDeclare("q" * 256),
        m.BasicAck(2**64),
        m.BasicAck(-1),
        m.ConnectionTune(channel_max=65536),
        m.QueueDeclare("\ud800"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_a_misuse(method: Method) -> None:
    with pytest.raises(MisuseError):
        encode(method)
