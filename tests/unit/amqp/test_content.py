import struct

import pytest

from redrive.amqp.content import Content, ContentAssembler
from redrive.amqp.errors import FrameSyntaxError, HardError, ReplyCode, SoftError
from redrive.amqp.frames import content_header
from redrive.amqp.properties import NO_PROPERTIES, BasicProperties, encode_properties

PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))


@pytest.fixture
def assembler() -> ContentAssembler[str]:
    return ContentAssembler(max_message_size=1000)


def test_a_message_is_whole_when_its_announced_size_is_reached(assembler: ContentAssembler[str]) -> None:
    assembler.begin(1, "publish")
    assert assembler.header(1, content_header(PERSISTENT, 6)) is None
    assert assembler.body(1, b"abc") is None
    assert assembler.body(1, b"") is None
    assert assembler.body(1, b"def") == ("publish", Content(PERSISTENT, b"abcdef"))
    assert not assembler.pending


def test_an_empty_message_is_whole_with_its_header(assembler: ContentAssembler[str]) -> None:
    assembler.begin(1, "publish")
    assert assembler.header(1, content_header(NO_PROPERTIES, 0)) == ("publish", Content())


def test_channels_do_not_disturb_each_other(assembler: ContentAssembler[str]) -> None:
    assembler.begin(1, "one")
    assembler.begin(2, "two")
    assembler.header(2, content_header(NO_PROPERTIES, 2))
    assembler.header(1, content_header(NO_PROPERTIES, 1))
    assert assembler.body(1, b"1") == ("one", Content(body=b"1"))
    assert assembler.body(2, b"22") == ("two", Content(body=b"22"))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("h", "expected a method, got a content header"),
        ("b", "expected a method, got a content body"),
        ("mb", "expected a content header, got a content body"),
        ("mm", "expected a content header, got a method"),
        ("mhm", "expected a content body, got a method"),
        ("mhh", "expected a content body, got a content header"),
        ("mhb", "more than its header announced"),
    ],
)
def test_frames_out_of_order_cost_the_connection(
    assembler: ContentAssembler[str], steps: str, words: str
) -> None:
    def step(kind: str) -> None:
        if kind == "m":
            assembler.begin(1, "publish")
        elif kind == "h":
            assembler.header(1, content_header(NO_PROPERTIES, 3))
        else:
            assembler.body(1, b"four")

    for kind in steps[:-1]:
        step(kind)
    with pytest.raises(HardError, match=words) as caught:
        step(steps[-1])
    assert caught.value.code is ReplyCode.UNEXPECTED_FRAME


def test_a_header_of_another_class_costs_the_connection(assembler: ContentAssembler[str]) -> None:
    assembler.begin(1, "publish")
    with pytest.raises(HardError, match="one for 50"):
        assembler.header(1, struct.pack(">HHQH", 50, 0, 0, 0))


@pytest.mark.parametrize("header", [b"", b"\x00\x3c", content_header(b"", 1), content_header(b"\x80\x00", 1)])
def test_a_header_that_cannot_be_read_is_a_syntax_error(
    assembler: ContentAssembler[str], header: bytes
) -> None:
    assembler.begin(1, "publish")
    with pytest.raises(FrameSyntaxError):
        assembler.header(1, header)


def test_a_message_above_the_limit_costs_the_channel_before_any_of_it_is_kept(
    assembler: ContentAssembler[str],
) -> None:
    assembler.begin(1, "publish")
    with pytest.raises(
        SoftError, match="message size 1001 is larger than configured max size 1000"
    ) as caught:
        assembler.header(1, content_header(NO_PROPERTIES, 1001))
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)
    assert not assembler.pending


def test_a_dropped_content_is_forgotten(assembler: ContentAssembler[str]) -> None:
    assembler.begin(1, "publish")
    assembler.drop(1)
    assembler.drop(1)
    assembler.begin(1, "again")


def test_a_content_shows_its_properties() -> None:
    assert Content(PERSISTENT).decoded() == BasicProperties(delivery_mode=2)
