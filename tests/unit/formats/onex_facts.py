"""What the ONEX document says: its schema, its example, and the values the example was made of."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema

from redrive.formats.onex import OnexRecord, OnexSender, write
from redrive.letters import Failure, Headers, Message, Origin

_HERE = Path(__file__).parent
EXAMPLE = (_HERE / "onex_example.json").read_bytes().rstrip()
EXAMPLE_HEADERS = [
    tuple(line.split(": ", 1)) for line in (_HERE / "onex_example_headers.txt").read_text().splitlines()
]
HEADERS = Headers((name, text.encode()) for name, text in EXAMPLE_HEADERS)

TOPIC = "dev.order-service.order.created.v1"
BODY = b'{"order_id": "12345", "customer_id": "cust-789", "total": 99.99}'
UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"
FAILED_AT = datetime(2024, 1, 15, 14, 32, 17, 456789, tzinfo=UTC)
NOW = datetime(2024, 1, 15, 14, 32, 17, 789012, tzinfo=UTC)

# The library checks formats only as far as other packages are installed; these two need none.
_formats = jsonschema.FormatChecker(formats=())
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)  # RFC 3339: the zone is a must


def _is_uuid(text: object) -> bool:
    return not isinstance(text, str) or _UUID.fullmatch(text) is not None


def _is_time(text: object) -> bool:
    return not isinstance(text, str) or (
        _TIME.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    )


_formats.checks("uuid")(_is_uuid)
_formats.checks("date-time", raises=ValueError)(_is_time)
_schema = json.loads((_HERE / "onex_schema.json").read_text())
jsonschema.Draft7Validator.check_schema(_schema)
SCHEMA = jsonschema.Draft7Validator(_schema, format_checker=_formats)


def payload_of(record: OnexRecord) -> Any:
    """The record's payload, which must be valid under the schema."""
    payload = json.loads(record.value)
    SCHEMA.validate(payload)
    return payload


def written(message: Message | None = None, **changes: Any) -> OnexRecord:
    """The record of the example, or one that differs from it where a test says so."""
    failure = Failure(
        error_type=changes.pop("error_type", "InfraTimeoutError"),
        text=changes.pop("text", "Database connection timeout after 30s"),
        at=changes.pop("failed_at", FAILED_AT),
    )
    origin = changes.pop("origin", None) or Origin(transport="kafka", source=TOPIC, partition=3, offset=42)
    sender = changes.pop("sender", None) or OnexSender(environment="dev", group="order-service")
    changes.setdefault("correlation_id", UUID_TEXT)
    changes.setdefault("retry_count", 3)
    changes.setdefault("message_id", "7c9e6679-7425-40de-944b-e07fc1f90ae7")
    changes.setdefault("now", NOW)
    return write(message or Message(body=BODY, key=b"order-12345"), origin, failure, sender, **changes)
