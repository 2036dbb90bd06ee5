"""Plain JSON values of stored data, and the comparison of recorded values with current ones.

`plain` converts a value of redrive to JSON. Types that JSON has no equivalent for are objects with one member that
names the type, so that bytes and text, 1 and 1.0 and true, and an absent and an empty value stay different.

`differences` compares a recorded value with the current one. Every recorded field has to be there with the same type
and value. Fields that were added since are ignored: the recording cannot contain them. A field that is renamed is
mapped back to its recorded name in `reading.py`, where the current values are read.
"""

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from redrive.letters import Headers, TypedValue
from redrive.stores import zstd

_MAX_SHOWN = 20  # differences in one failure message


def plain(value: Any) -> Any:
    """The value as JSON."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case bytes():
            return _bytes(value)
        case datetime():
            return {"time": value.astimezone(UTC).isoformat()}
        case timedelta():
            return {"microseconds": value // timedelta(microseconds=1)}
        case Decimal():
            return {"decimal": str(value)}
        case UUID():
            return {"uuid": str(value)}
        case TypedValue():
            return {"typed": [value.kind, plain(value.value)]}
        case Headers():
            return {"headers": [[name, plain(item)] for name, item in value]}
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {"map": [[str(key), plain(item)] for key, item in sorted(value.items())]}
        case Sequence():
            return [plain(item) for item in value]
    raise TypeError(f"no plain form for a {type(value).__name__}")


def _bytes(value: bytes) -> dict[str, str]:
    try:
        return {"bytes": value.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def differences(recorded: Any, current: Any, at: str = "") -> Iterator[str]:
    """Each place where the current value does not have what was recorded."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        for name, value in recorded.items():
            if name not in current:
                yield f"{at}.{name}: recorded {_short(value)}, now missing"
            else:
                yield from differences(value, current[name], f"{at}.{name}")
    elif isinstance(recorded, list) and isinstance(current, list):
        if len(recorded) != len(current):
            yield f"{at}: recorded {len(recorded)} items, now {len(current)}"
        for number, (before, now) in enumerate(zip(recorded, current, strict=False)):
            yield from differences(before, now, f"{at}[{number}]")
    elif type(recorded) is not type(current) or recorded != current:
        yield f"{at}: recorded {_short(recorded)}, now {_short(current)}"


def check(recorded: Any, current: Any) -> None:
    """Fail, with the first differences, unless everything recorded is there."""
    found = list(differences(recorded, current))
    assert not found, f"{len(found)} differences from the recording:\n" + "\n".join(found[:_MAX_SHOWN])


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


def read_json(path: Path) -> Any:
    """The content of a JSON file; one that ends in .zst is compressed."""
    data = path.read_bytes()
    return json.loads(unpacked(data) if path.suffix == ".zst" else data)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file: compressed if its name ends in .zst, else indented."""
    compressed = path.suffix == ".zst"
    text = json.dumps(value, indent=None if compressed else 1, separators=(",", ":") if compressed else None)
    path.write_bytes(packed(text.encode()) if compressed else f"{text}\n".encode())


def packed(data: bytes) -> bytes:
    """The data, compressed."""
    return zstd.compress(data, level=19)


def unpacked(data: bytes) -> bytes:
    """The data that `packed` compressed."""
    return zstd.decompress(data)
