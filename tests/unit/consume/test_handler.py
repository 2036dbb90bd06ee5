"""A user's function is looked at once, and called with what it asks for."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest

from redrive.consume.context import Context
from redrive.consume.handler import Handler
from redrive.errors import DecodeError, SettingsError
from redrive.letters import Message
from redrive.testing.kit import _Delivery


@dataclass
class Order:
    id: int
    total: float = 0.0


class Payment(msgspec.Struct):
    amount: int


class Parcel(TypedDict):
    weight: int


def given(function: Callable[..., Any], message: Message | bytes, decoder: Any = None) -> Any:
    """What the function is called with."""
    handler = Handler.of(function, decoder)
    delivery = _Delivery(message if isinstance(message, Message) else Message(body=message), "orders", 1)
    value = handler.decode(delivery) if handler.decode is not None else None
    return handler.call(value, Context(delivery, "orders", 1))


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (Order, b'{"id": 1, "total": 2.5}', Order(1, 2.5)),
        (Payment, b'{"amount": 7}', Payment(7)),
        (Parcel, b'{"weight": 3}', {"weight": 3}),
        (list[Order], b'[{"id": 1}]', [Order(1)]),
        (dict, b'{"a": [1]}', {"a": [1]}),
        (int, b"42", 42),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (str, "Grüße".encode(), "Grüße"),
        (bytes | None, b"", b""),
        (Order | None, b"null", None),
    ],
)
def test_the_message_is_decoded_to_the_type_of_the_parameter(
    kind: Any, body: bytes, expected: object
) -> None:
    def handle(value: Any) -> Any:
        return value

    handle.__annotations__["value"] = kind
    assert given(handle, body) == expected


def test_a_handler_without_types_is_given_the_whole_message() -> None:
    message = Message(body=b"x", message_id="1")
    assert given(lambda value: value, message) is message


def test_a_null_is_given_to_those_who_ask_for_it() -> None:
    def handle(value: bytes | None) -> bytes | None:
        return value

    assert given(handle, Message(body=None)) is None


def test_message_pack_is_read_where_the_content_type_says_so() -> None:
    def handle(order: Order) -> Order:
        return order

    packed = msgspec.msgpack.encode({"id": 5})
    assert given(handle, Message(body=packed, content_type="application/msgpack")) == Order(5)


def test_the_context_goes_to_the_parameter_of_its_type_wherever_it_stands() -> None:
    def last(order: Order, context: Context) -> tuple[int, int]:
        return order.id, context.attempt

    def first(context: Context, order: Order) -> tuple[int, int]:
        return order.id, context.attempt

    def alone(context: Context) -> int:
        return context.attempt

    assert given(last, b'{"id": 3}') == (3, 1)
    assert given(first, b'{"id": 3}') == (3, 1)
    assert given(alone, b"anything") == 1


def test_parameters_with_defaults_are_left_to_their_defaults() -> None:
    def handle(order: Order, retries: int = 5, *, loud: bool = False) -> tuple[int, int, bool]:
        return order.id, retries, loud

    assert given(handle, b'{"id": 3}') == (3, 5, False)


def test_a_decoder_of_ones_own_is_given_bytes_or_the_message_as_its_type_says() -> None:
    def from_message(message: Message) -> str:
        return f"{message.message_id}:{len(message.body or b'')}"

    assert given(lambda text: text, Message(body=b"abc", message_id="7"), from_message) == "7:3"
    assert given(lambda text: text, b"abc", bytes.decode) == "abc"


def test_objects_and_partials_that_can_be_called_are_handlers_too() -> None:
    class Loud:
        async def __call__(self, order: Order) -> None: ...

    async def handle(shop: str, order: Order) -> None: ...

    assert Handler.of(Loud()).is_async
    assert Handler.of(functools.partial(handle, "north")).is_async
    assert not Handler.of(lambda body: None).is_async


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (Order, b"not json", "cannot be decoded from JSON"),
        (Order, b'{"total": 1}', r"ValidationError at \$, expected Order, missing: id"),
        (Order, b"", "cannot be decoded from JSON"),
        (Order, b"\xff", "cannot be decoded from JSON"),
        (Order, b"[" * 100_000, "cannot be decoded from JSON"),
        (str, b"\xff", "not UTF-8 text: invalid start byte at byte 0"),
    ],
)
def test_what_cannot_be_decoded_is_one_error_that_says_why(kind: Any, body: bytes, says: str) -> None:
    def handle(value: Any) -> None: ...

    handle.__annotations__["value"] = kind
    with pytest.raises(DecodeError, match=says):
        given(handle, body)


def test_a_null_that_nobody_asked_for_is_an_error_of_decoding() -> None:
    def handle(value: bytes) -> None: ...

    with pytest.raises(DecodeError, match="has no body"):
        given(handle, Message(body=None))


def test_what_a_decoder_of_ones_own_raises_is_an_error_of_decoding() -> None:
    def picky(body: bytes) -> object:
        raise KeyError("no version")

    with pytest.raises(DecodeError, match=r"cannot be decoded: KeyError$"):
        given(lambda value: None, b"", picky)


class Unknown:
    def __init__(self) -> None:
        raise NotImplementedError


def no_place(a: Order, b: Order) -> None: ...
def by_name(a: Order, *, b: int) -> None: ...
def two_contexts(a: Context, b: Context) -> None: ...
def missing(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  that is the point
def union(a: Order | Payment) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (no_place, "no_place: must take one message"),
        (by_name, "'b' is keyword-only"),
        (two_contexts, "must take one message and optionally one Context"),
        (missing, "its type annotations cannot be resolved"),
        (union, "messages cannot be decoded to"),
        (42, "a handler must be a function, not a int"),
    ],
)
def test_what_cannot_be_called_is_refused_at_the_start(function: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Handler.of(function)
