"""How do field tables and JSON turn into each other?

Towards JSON everything can be shown: octets that are no text lose what JSON cannot hold. From JSON to a table null
is refused, as in RabbitMQ; a number is 64 bits wide or a double.
"""

from collections.abc import Mapping
from typing import Any

from redrive.amqp.values import DecimalValue
from redrive.broker.management.answers import bad_request


def shown(value: object) -> Any:
    """A value of a field table, as JSON."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {shown_text(name): shown(inner) for name, inner in value.items()}
    if isinstance(value, DecimalValue):
        return float(value.decimal)
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


def shown_text(text: str) -> str:
    """A text without the octets that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def table(value: object, what: str) -> dict[str, object]:
    """A field table of a JSON object; an empty list is taken for an empty one."""
    if value is None or value == []:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{what} should be an object")
    return {name: _field(inner) for name, inner in value.items()}


def _field(value: object) -> object:
    if value is None:
        raise bad_request("null_not_allowed")
    if isinstance(value, dict):
        return {name: _field(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_field(inner) for inner in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise bad_request(["number_too_large", str(value)])
    return value
