"""The fixtures of `brokers.py`, for every test in this directory."""

from tests.interop.brokers import broker, broker_url, embedded, unique

__all__ = ["broker", "broker_url", "embedded", "unique"]
