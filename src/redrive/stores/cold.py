"""How does the cold part of a letter become bytes, and come back bit-exact?

Message, origin and failure are packed with MessagePack, positions instead of names, and compressed where that
saves something. The first byte says how: new ways get new numbers, and old ones are read for ever. A checksum
follows, because a database notices a page that is lost, but not a byte that has changed within one. New fields
of these values go last and have defaults, so that what was written before them can still be read.
Databases only ever see the bytes.
"""

import threading
from collections.abc import Mapping
from typing import Any, Final, cast
from zlib import crc32

import msgspec

from redrive.errors import FormatError, LetterInvalidError, RedriveError
from redrive.letters import DeadLetter, Failure, Headers, Message, Origin, SystemState
from redrive.letters.headers import pack, unpack
from redrive.stores.expansion import ExpansionBudget
from redrive.stores.zstd import (
    DecompressionParameter,
    ZstdCompressor,
    ZstdDecompressor,
    ZstdError,
    get_frame_info,
)

LARGEST: Final = 900_000_000  # below every database's limit for one value
_PLAIN, _ZSTD = b"\x02", b"\x03"  # 0 and 1 were without a checksum, and never released
_START: Final = 5  # the way and four bytes of checksum come first
_WORTH_COMPRESSING: Final = 2048  # below, the time is worth more than the bytes
_LEVEL: Final = 1
# The window is memory that a frame requests; `redrive` writes frames with a window of 2**19 bytes.
_MAX_WINDOW: Final[Mapping[int, int]] = {DecompressionParameter.window_log_max: 26}


class _Content(msgspec.Struct, frozen=True, array_like=True):
    """Everything about a letter that never changes."""

    key: str
    message: Message
    origin: Origin
    system_state: SystemState | None = None
    derived_from: str | None = None
    prior_redrives: int = 0


class _ContentUpToOrigin(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a `_Content`, whose message is skipped instead of decoded."""

    key: msgspec.Raw
    message: msgspec.Raw
    origin: Origin


def _headers_to_bytes(value: Any) -> bytes:
    if isinstance(value, Headers):
        return pack(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def _headers_from_bytes(kind: type, value: Any) -> Any:
    if kind is Headers and isinstance(value, bytes):
        return unpack(value)
    raise TypeError(f"a {kind.__name__} cannot be read")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_headers_to_bytes).encode
_decode_content: Final = msgspec.msgpack.Decoder(_Content, dec_hook=_headers_from_bytes).decode
_decode_up_to_origin: Final = msgspec.msgpack.Decoder(_ContentUpToOrigin).decode
_decode_failure: Final = msgspec.msgpack.Decoder(Failure).decode
_context: Final = threading.local()  # a compressor is costly to make and must not be shared by threads


def pack_content(letter: DeadLetter, *, max_ratio: int | None = None) -> bytes:
    """Message and origin as bytes; what compresses better than `max_ratio` is not compressed."""
    try:
        # The bytes of a `_Content`, which is an array like this tuple, without making one.
        content = _encode(
            (
                letter.key,
                letter.message,
                letter.origin,
                letter.system_state,
                letter.derived_from,
                letter.prior_redrives,
            )
        )
    except (ValueError, TypeError, OverflowError, RecursionError, RedriveError) as error:
        raise LetterInvalidError(f"letter {letter.id}: its message cannot be stored: {error}") from error
    if len(content) > LARGEST:
        raise LetterInvalidError(f"letter {letter.id} has {len(content)} bytes; the limit is {LARGEST} bytes")
    return _compress(content, max_ratio)


def size_of(letter: DeadLetter) -> int:
    """How many bytes the cold part of a letter has before it is compressed."""
    content = (letter.key, letter.message, letter.origin, letter.system_state, letter.derived_from)
    return len(_encode(content)) + len(_encode(letter.failure))


def unpack_content(data: bytes, budget: ExpansionBudget | None = None) -> dict[str, Any]:
    """The fields of a `DeadLetter` that `pack_content` packed; the budget limits bytes of others."""
    try:
        return msgspec.structs.asdict(_decode_content(_expand(data, budget)))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"a stored letter cannot be read: {error}") from error


def unpack_consumer_group(data: bytes) -> str | None:
    """The consumer group of the origin that `pack_content` packed; None also if the bytes are damaged."""
    try:
        return _decode_up_to_origin(_expand(data)).origin.consumer_group
    except (FormatError, msgspec.MsgspecError, ValueError):
        return None


def pack_failure(failure: Failure, *, max_ratio: int | None = None) -> bytes:
    """A failure as bytes. Text that is not valid Unicode is kept as well as it can be: it is only text."""
    try:
        return _compress(_encode(failure), max_ratio)
    except UnicodeEncodeError:
        valid = {
            name: value.encode("utf-8", "replace").decode()
            for name, value in msgspec.structs.asdict(failure).items()
            if type(value) is str
        }
        return _compress(_encode(msgspec.structs.replace(failure, **valid)), max_ratio)


def unpack_failure(data: bytes, budget: ExpansionBudget | None = None) -> Failure:
    """The failure that `pack_failure` packed; the budget limits bytes of others."""
    try:
        return _decode_failure(_expand(data, budget))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"a stored failure cannot be read: {error}") from error


def check_sum(data: bytes) -> None:
    """What was packed is as it was, or a `FormatError` says that it is not."""
    if data[:1] not in {_PLAIN, _ZSTD}:
        raise FormatError("a stored letter has an unknown format; upgrade redrive")
    if data[1:_START] != crc32(memoryview(data)[_START:]).to_bytes(4):
        raise FormatError(
            "a stored letter was modified or damaged after it was written; restore it from a backup"
        )


def _compress(data: bytes, max_ratio: int | None = None) -> bytes:
    if len(data) >= _WORTH_COMPRESSING:
        try:
            compressor = _context.compressor
        except AttributeError:
            compressor = _context.compressor = ZstdCompressor(level=_LEVEL)
        smaller: bytes = compressor.compress(data, ZstdCompressor.FLUSH_FRAME)
        if len(smaller) < len(data) and (max_ratio is None or len(data) <= max_ratio * len(smaller)):
            return b"".join((_ZSTD, crc32(smaller).to_bytes(4), smaller))
    return b"".join((_PLAIN, crc32(data).to_bytes(4), data))


def _expand(data: bytes, budget: ExpansionBudget | None = None) -> bytes:
    packed = data[_START:]
    if data[:1] == _PLAIN and data[1:_START] == crc32(packed).to_bytes(4):
        if budget is not None:
            budget.spend(len(packed), len(packed))
        return packed
    check_sum(data)
    try:
        if budget is None:
            return _decompress(ZstdDecompressor(), packed, LARGEST)
        return _expand_limited(packed, budget)
    except ZstdError as error:
        raise FormatError(f"a stored letter cannot be expanded: {error}") from error


def _expand_limited(packed: bytes, budget: ExpansionBudget) -> bytes:
    """Decompress a frame within the budget; a size in its header is checked before memory is allocated for it."""
    decompressor = ZstdDecompressor(options=_MAX_WINDOW)
    announced = cast(
        "int | None", get_frame_info(packed).decompressed_size
    )  # typed as int, but None if unknown
    if announced is not None:
        budget.spend(len(packed), announced)
        return _decompress(decompressor, packed, announced)
    expanded = decompressor.decompress(packed, budget.most(len(packed)) + 1)
    budget.spend(len(packed), len(expanded))
    if not decompressor.eof:
        raise ZstdError("the frame is incomplete")
    return expanded


def _decompress(decompressor: ZstdDecompressor, packed: bytes, max_bytes: int) -> bytes:
    """Decompress a whole frame of at most `max_bytes`."""
    expanded = decompressor.decompress(
        packed, max_bytes + 1
    )  # one byte more, to see that the frame has ended
    if not decompressor.eof:
        raise ZstdError(f"the frame is incomplete or has more than {max_bytes} bytes")
    return expanded
