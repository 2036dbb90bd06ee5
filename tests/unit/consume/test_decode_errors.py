"""A decoder's error names class, place and expected type, and never quotes the message."""

import enum
import json
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from redrive.consume.decoding import decoder_for, own_decoder
from redrive.errors import DecodeError
from redrive.letters import Message
from redrive.letters.stack import stack_of
from tests.unit.watch.deliveries import ADelivery

SECRET = "patient John"


class Colour(enum.Enum):
    RED = "red"


class Customer(msgspec.Struct):
    name: str
    colour: Colour = Colour.RED


class Order(msgspec.Struct, forbid_unknown_fields=True):
    id: int = 1
    kind: Literal["new", "old"] = "new"
    customer: Customer | None = None
    prices: dict[str, float] = {}
    lines: list[Customer] = []


@dataclass
class Strict:
    id: int

    def __post_init__(self) -> None:
        raise ValueError(f"no {SECRET} here")


class Person(pydantic.BaseModel):
    age: int = 0
    kind: Literal["new", "old"] = "new"
    friends: "list[Person]" = []
    notes: dict[str, int] = {}
    model_config = pydantic.ConfigDict(extra="forbid")


def error_of(decode: Any, body: bytes, content_type: str | None = None) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode(ADelivery(Message(body=body, content_type=content_type)))
    return caught.value


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


STRUCTURED = [
    (Order, {"kind": SECRET}, "ValidationError at $.kind, expected literal"),
    (
        Order,
        {"customer": {"name": "x", "colour": SECRET}},
        "ValidationError at $.customer.colour, expected Colour",
    ),
    (Order, {"id": SECRET}, "ValidationError at $.id, expected int"),
    (Order, {SECRET: 1}, "ValidationError at $, expected Order"),
    (Order, {"prices": {SECRET: "x"}}, "ValidationError at $.prices[...], expected float"),
    (
        Order,
        {"lines": [{"name": "x"}, {}]},
        "ValidationError at $.lines[1], expected Customer, missing: name",
    ),
    (Strict, {"id": 1}, "ValidationError at $, expected Strict"),
    (list[int], [1, SECRET], "ValidationError at $[1], expected int"),
]


@pytest.mark.parametrize(("kind", "value", "says"), STRUCTURED)
@pytest.mark.parametrize("packed", [False, True])
def test_msgspec_error_says_place_and_type_without_the_value(
    kind: Any, value: Any, says: str, packed: bool
) -> None:
    body = msgspec.msgpack.encode(value) if packed else encoded(value)
    error = error_of(decoder_for(kind), body, "application/msgpack" if packed else None)
    form = "MessagePack" if packed else "JSON"
    assert str(error) == f"the message cannot be decoded from {form}: {says}"
    assert SECRET not in stack_of(error).replace('ValueError(f"no {SECRET} here")', "")


def test_malformed_json_is_named_with_its_place() -> None:
    error = error_of(decoder_for(Order), b'{"id": ' + SECRET.encode())
    assert str(error) == "the message cannot be decoded from JSON: DecodeError at byte 7"


def reads_json(body: bytes) -> Any:
    return json.loads(body)


def raises_the_body(body: bytes) -> Any:
    raise ValueError(f"cannot read {body!r}")


def a_function(body: bytes) -> Person:
    return Person.model_validate_json(body)


OWN = [
    (Person.model_validate_json, None, {"age": SECRET}, "ValidationError at $.age, int_parsing"),
    (Person.model_validate_json, None, {"kind": SECRET}, "ValidationError at $.kind, literal_error"),
    (Person.model_validate_json, None, {SECRET: 1}, "ValidationError at $[...], extra_forbidden"),
    (
        a_function,
        Person,
        {"friends": [{"age": SECRET}]},
        "ValidationError at $.friends[0].age, int_parsing",
    ),
    (
        a_function,
        None,
        {"notes": {SECRET: "x"}},
        "ValidationError at $[...][...], int_parsing",
    ),
    (raises_the_body, None, {"name": SECRET}, "ValueError"),
    (msgspec.json.Decoder(Order).decode, None, {"kind": SECRET}, "ValidationError"),
]


@pytest.mark.parametrize(("decoder", "kind", "value", "says"), OWN)
def test_own_decoders_error_says_class_and_place_without_the_value(
    decoder: Any, kind: Any, value: Any, says: str
) -> None:
    error = error_of(own_decoder(decoder, kind), encoded(value))
    assert str(error) == f"the message cannot be decoded: {says}"
    assert SECRET not in stack_of(error)


def test_json_error_of_an_own_decoder_is_named_with_its_place() -> None:
    error = error_of(own_decoder(reads_json), SECRET.encode())
    assert str(error) == "the message cannot be decoded: JSONDecodeError at line 1 column 1"
    assert "in reads_json" in stack_of(error), "the frames of the decoder are code, and are shown"
