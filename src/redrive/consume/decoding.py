"""How do the bytes of a message become what a handler asks for?

By the type of the handler's parameter: `bytes`, `str` and `Message` are given as they are; a dataclass, a
`msgspec.Struct`, a `TypedDict`, a list of these, or any other type that msgspec knows is read from JSON, or from
MessagePack where the content type says so. A decoder of one's own is a function of the bytes or of the `Message`.

The rule: whatever a decoder raises comes out as one `DecodeError`, which no retry can help. It names the class of
the error, the place in the message and the type that was expected there (`decode_errors`), and never quotes the error:
the texts of decoders repeat what they could not read.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args, get_type_hints

import msgspec
import msgspec.inspect

from redrive.consume.decode_errors import describe_foreign_error, describe_msgspec_error
from redrive.errors import DecodeError, SettingsError
from redrive.letters import Message
from redrive.transports.base import Delivery

Decode: TypeAlias = Callable[[Delivery], Any]
_MSGPACK: Final = frozenset(
    {"application/msgpack", "application/x-msgpack", "application/vnd.msgpack", "application/messagepack"}
)


def decoder_for(kind: Any) -> Decode:
    """What makes this type of a delivery. A type that cannot be made of bytes is a `SettingsError`."""
    if kind is inspect.Parameter.empty or kind is Message:
        return _whole
    if kind is bytes:
        return _bytes
    if kind is str:
        return _text
    if bytes in get_args(kind) and set(get_args(kind)) <= {bytes, type(None)}:
        return _bytes_or_null
    return _structured(kind)


def own_decoder(decode: Callable[[Any], Any], kind: Any = None) -> Decode:
    """A user's own decoder; it is given the `Message` if its parameter says so, else the bytes.

    `kind` is the type that the handler expects: its field names may appear in error texts.
    """
    wants_message = _first_annotation(decode) is Message
    model = getattr(decode, "__self__", None)  # of `Order.model_validate_json`

    def run(delivery: Delivery) -> Any:
        try:
            return decode(delivery.handler_message if wants_message else delivery.body)
        except Exception as error:  # noqa: BLE001  whatever it is, the message cannot be decoded
            found = describe_foreign_error(error, model, kind)
            # The frames of the decoder, which are code, without the error, which may quote the message.
            raise DecodeError(f"the message cannot be decoded: {found}").with_traceback(
                error.__traceback__
            ) from None

    return run


def _first_annotation(decode: Callable[[Any], Any]) -> Any:
    try:
        hints = get_type_hints(decode if inspect.isroutine(decode) else type(decode).__call__)
        names = list(inspect.signature(decode).parameters)
    except (TypeError, ValueError, NameError):
        return None  # a built-in: json.loads and the like take bytes
    return hints.get(names[0]) if names else None


def _whole(delivery: Delivery) -> Message:
    return delivery.handler_message


def _bytes_or_null(delivery: Delivery) -> bytes | None:
    return delivery.body


def _bytes(delivery: Delivery) -> bytes:
    if delivery.body is None:
        raise DecodeError("the message has no body; annotate the parameter as 'bytes | None' to accept it")
    return delivery.body


def _text(delivery: Delivery) -> str:
    try:
        return _bytes(delivery).decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the message is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _not_decodable(info: Any, seen: frozenset[int] = frozenset()) -> str | None:
    """The name of a class, in a type or in one of its fields, that nobody can make of bytes."""
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls.__name__
    if id(info) in seen or not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        return None
    seen |= {id(info)}
    parts: list[Any] = []
    for name in info.__struct_fields__:
        value = getattr(info, name)
        parts += value if isinstance(value, tuple) else [value]
    return next((found for part in parts if (found := _not_decodable(part, seen))), None)


def _structured(kind: Any) -> Decode:
    try:
        from_json = msgspec.json.Decoder(kind).decode
        from_msgpack = msgspec.msgpack.Decoder(kind).decode
    except (TypeError, NameError) as error:
        raise SettingsError(
            f"messages cannot be decoded to {getattr(kind, '__name__', kind)}: {error}; use a dataclass, "
            "a msgspec Struct, a TypedDict, bytes, or pass decoder="
        ) from None

    if foreign := _not_decodable(msgspec.inspect.type_info(kind)):
        raise SettingsError(
            f"messages cannot be decoded to {foreign}: msgspec does not support this type; pass decoder="
        )

    def run(delivery: Delivery) -> Any:
        packed = delivery.content_type in _MSGPACK
        body = _bytes(delivery)
        try:
            return from_msgpack(body) if packed else from_json(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
            form = "MessagePack" if packed else "JSON"
            plain = msgspec.msgpack.decode if packed else msgspec.json.decode
            found = describe_msgspec_error(error, kind, lambda: plain(body))
            # The frames of a `__post_init__`, which are code, without the error, which may quote the message.
            raise DecodeError(f"the message cannot be decoded from {form}: {found}").with_traceback(
                error.__traceback__
            ) from None

    return run
