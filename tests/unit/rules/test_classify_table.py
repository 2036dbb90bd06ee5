"""Real-looking errors and what they must be taken for (A2)."""

import asyncio
import concurrent.futures
import errno
import json
import socket
import sqlite3
import ssl
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from redrive.letters.failure import Kind
from redrive.rules import Classifier

CLASSIFIER = Classifier()


def foreign(
    name: str, *bases: type[BaseException], text: str = "it failed", **attributes: Any
) -> BaseException:
    """An instance of a class with this `module.qualname`, as if its library were installed."""
    module, _, qualname = name.rpartition(".")
    cls = type(qualname, bases or (Exception,), {"__module__": module, "__qualname__": qualname})
    error: BaseException = cls(text)
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


def base(name: str, *bases: type[BaseException]) -> type[BaseException]:
    return type(foreign(name, *bases))


def thrown(statement: str) -> BaseException:
    try:
        exec(statement, {"json": json, "msgspec": msgspec})
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError(statement)


def http_error(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", status, "said no", Message(), None)


REDIS_CONNECTION = base("redis.exceptions.ConnectionError")
REQUESTS = base("requests.exceptions.RequestException", OSError)

EXCEPTIONS: list[tuple[BaseException, Kind]] = [
    (TimeoutError(), Kind.TIMEOUT),
    (asyncio.TimeoutError("x"), Kind.TIMEOUT),  # noqa: UP041 (the alias is what is tested)
    (socket.timeout("timed out"), Kind.TIMEOUT),  # noqa: UP041
    (concurrent.futures.TimeoutError(), Kind.TIMEOUT),
    (foreign("acme.errors.SlowPartner", TimeoutError), Kind.TIMEOUT),
    (foreign("httpx.ReadTimeout", base("httpx.TimeoutException")), Kind.TIMEOUT),
    (
        foreign("requests.exceptions.ConnectTimeout", base("requests.exceptions.ConnectionError", REQUESTS)),
        Kind.TIMEOUT,
    ),
    (
        foreign(
            "aiohttp.client_exceptions.ServerTimeoutError",
            base("aiohttp.client_exceptions.ClientConnectionError"),
            TimeoutError,
        ),
        Kind.TIMEOUT,
    ),
    (OSError(errno.ETIMEDOUT, "Connection timed out"), Kind.TIMEOUT),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), Kind.NETWORK),
    (BrokenPipeError(), Kind.NETWORK),
    (OSError(errno.EHOSTUNREACH, "No route to host"), Kind.NETWORK),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), Kind.NETWORK),
    (socket.gaierror(-2, "Name or service not known"), Kind.NETWORK),
    (ssl.SSLError(1, "[SSL] record layer failure"), Kind.NETWORK),
    (asyncio.IncompleteReadError(b"", 10), Kind.NETWORK),
    (foreign("httpx.ConnectError", base("httpx.NetworkError")), Kind.NETWORK),
    (foreign("requests.exceptions.ConnectionError", REQUESTS), Kind.NETWORK),
    (foreign("redis.exceptions.ConnectionError"), Kind.NETWORK),
    (
        foreign("urllib3.exceptions.NewConnectionError", base("urllib3.exceptions.TimeoutError")),
        Kind.NETWORK,
    ),
    (urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), Kind.NETWORK),
    (urllib.error.URLError(TimeoutError("timed out")), Kind.TIMEOUT),
    (foreign("redis.exceptions.AuthenticationError", REDIS_CONNECTION), Kind.DENIED),
    (foreign("redis.exceptions.BusyLoadingError", REDIS_CONNECTION), Kind.UNAVAILABLE),
    (OSError(errno.ENOSPC, "No space left on device"), Kind.UNAVAILABLE),
    (OSError(errno.EMFILE, "Too many open files"), Kind.UNAVAILABLE),
    (MemoryError(), Kind.UNAVAILABLE),
    (asyncio.QueueFull(), Kind.UNAVAILABLE),
    (sqlite3.OperationalError("database is locked"), Kind.DATABASE),
    (
        foreign("sqlalchemy.exc.OperationalError", base("sqlalchemy.exc.DBAPIError"), code="e3q8"),
        Kind.DATABASE,
    ),
    (foreign("asyncpg.exceptions.DeadlockDetectedError"), Kind.DATABASE),
    (foreign("asyncpg.exceptions.QueryCanceledError"), Kind.TIMEOUT),
    (foreign("psycopg.errors.SerializationFailure", base("psycopg.OperationalError")), Kind.DATABASE),
    (sqlite3.IntegrityError("UNIQUE constraint failed: orders.id"), Kind.REJECTED),
    (
        foreign(
            "asyncpg.exceptions.UniqueViolationError",
            base("asyncpg.exceptions.IntegrityConstraintViolationError"),
        ),
        Kind.REJECTED,
    ),
    (thrown("json.loads('{')"), Kind.MALFORMED),
    (thrown("msgspec.json.decode(b'{')"), Kind.MALFORMED),
    (thrown("msgspec.json.decode(b'1', type=str)"), Kind.MALFORMED),
    (thrown("b'\\xff'.decode()"), Kind.MALFORMED),
    (foreign("pydantic_core._pydantic_core.ValidationError", ValueError), Kind.MALFORMED),
    (foreign("msgspec.ValidationError"), Kind.MALFORMED),
    (thrown("int('twelve')"), Kind.MALFORMED),
    (PermissionError(errno.EACCES, "Permission denied"), Kind.DENIED),
    (ssl.SSLCertVerificationError(1, "certificate verify failed"), Kind.DENIED),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), Kind.NOT_FOUND),
    (foreign("acme.OrderNotFoundError", text="A-17"), Kind.NOT_FOUND),
    (SystemExit(137), Kind.CRASH),
    (foreign("concurrent.futures.process.BrokenProcessPool", RuntimeError), Kind.CRASH),
    (KeyError("id"), Kind.UNKNOWN),
    (ValueError("bad"), Kind.UNKNOWN),
    (asyncio.CancelledError(), Kind.UNKNOWN),
    # HTTP status, wherever a library keeps it.
    (http_error(404), Kind.NOT_FOUND),
    (http_error(503), Kind.UNAVAILABLE),
    (
        foreign("httpx.HTTPStatusError", response=SimpleNamespace(status_code=429, headers={})),
        Kind.RATE_LIMITED,
    ),
    (
        foreign("requests.exceptions.HTTPError", REQUESTS, response=SimpleNamespace(status_code=500)),
        Kind.SERVER_ERROR,
    ),
    (foreign("aiohttp.client_exceptions.ClientResponseError", status=409), Kind.REJECTED),
    (foreign("acme.HttpError", status_code=401), Kind.DENIED),
    (foreign("acme.HttpError", code=408), Kind.TIMEOUT),
    (foreign("acme.HttpError", getcode=lambda: 504), Kind.UNAVAILABLE),
    (foreign("acme.HttpError", response=SimpleNamespace(status=400)), Kind.REJECTED),
    (
        foreign("botocore.exceptions.ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 503}}),
        Kind.UNAVAILABLE,
    ),
    (foreign("acme.Odd", status=True), Kind.UNKNOWN),
    (foreign("acme.Odd", status="500"), Kind.UNKNOWN),
    (foreign("acme.Odd", code=1006), Kind.UNKNOWN),
    (foreign("acme.Odd", status=200), Kind.UNKNOWN),
]

TEXTS: list[tuple[str, Kind]] = [
    ("Database connection timeout after 30s", Kind.TIMEOUT),
    ("External API timeout after 5000ms", Kind.TIMEOUT),
    ("Read timed out. (read timeout=30)", Kind.TIMEOUT),
    ("Agent execution exceeded maximum duration of 60 seconds", Kind.TIMEOUT),
    ("context deadline exceeded", Kind.TIMEOUT),
    ("StatusCode.DEADLINE_EXCEEDED", Kind.TIMEOUT),
    ("connect ETIMEDOUT 10.0.0.5:443", Kind.TIMEOUT),
    ("canceling statement due to statement timeout", Kind.TIMEOUT),
    ("408 Request Timeout", Kind.TIMEOUT),
    ('KafkaError{code=_TIMED_OUT,val=-185,str="Local: Timed out"}', Kind.TIMEOUT),
    ("deadlock detected", Kind.DATABASE),
    ("Deadlock found when trying to get lock; try restarting transaction", Kind.DATABASE),
    ("could not serialize access due to concurrent update", Kind.DATABASE),
    ("Lock wait timeout exceeded; try restarting transaction", Kind.DATABASE),
    ("database is locked", Kind.DATABASE),
    ("FATAL: sorry, too many clients already", Kind.DATABASE),
    ("(1040, 'Too many connections')", Kind.DATABASE),
    ("MySQL server has gone away", Kind.DATABASE),
    ("the database system is starting up", Kind.DATABASE),
    ("WriteConflict error: this operation conflicted with another operation", Kind.DATABASE),
    ("host not found", Kind.NETWORK),
    ("getaddrinfo ENOTFOUND api.partner.example", Kind.NETWORK),
    ("[Errno -3] Temporary failure in name resolution", Kind.NETWORK),
    ("dial tcp: lookup db on 10.0.0.2:53: no such host", Kind.NETWORK),
    ("java.net.UnknownHostException: partner", Kind.NETWORK),
    ("connect ECONNREFUSED 127.0.0.1:5432", Kind.NETWORK),
    ("Connection refused (timeout=30)", Kind.NETWORK),
    ("read ECONNRESET", Kind.NETWORK),
    ("socket hang up", Kind.NETWORK),
    ("Connection reset by peer", Kind.NETWORK),
    (
        "A network-related error occurred. The server was not found or was not accessible.",
        Kind.NETWORK,
    ),
    ("Network failure", Kind.NETWORK),
    ("Too Many Requests", Kind.RATE_LIMITED),
    ("Error 429", Kind.RATE_LIMITED),
    ("HTTP 429: slow down please", Kind.RATE_LIMITED),
    ('{"error": "rate_limit_exceeded"}', Kind.RATE_LIMITED),
    (
        "An error occurred (ThrottlingException) when calling the PutItem operation: Rate exceeded",
        Kind.RATE_LIMITED,
    ),
    ("Quota exceeded for quota metric 'Read requests'", Kind.RATE_LIMITED),
    ("503 Service Unavailable", Kind.UNAVAILABLE),
    ("status 503", Kind.UNAVAILABLE),
    ("status code: 502", Kind.UNAVAILABLE),
    ("504 Gateway Timeout", Kind.UNAVAILABLE),
    ("Bad gateway", Kind.UNAVAILABLE),
    ("Service temporarily unavailable", Kind.UNAVAILABLE),
    ("StatusCode.UNAVAILABLE", Kind.UNAVAILABLE),
    ("[Errno 28] No space left on device", Kind.UNAVAILABLE),
    ("HTTP 500", Kind.SERVER_ERROR),
    ("500, message='boom', url='http://x'", Kind.SERVER_ERROR),
    ("Response status code does not indicate success: 500 (Internal Server Error).", Kind.SERVER_ERROR),
    ("Client error '404 Not Found' for url 'https://x'", Kind.NOT_FOUND),
    ("The remote server returned an error: (403) Forbidden.", Kind.DENIED),
    ("https://api.example/404/orders was slow", Kind.UNKNOWN),
    ("500 Internal Server Error", Kind.SERVER_ERROR),
    ("Request failed with status code 500", Kind.SERVER_ERROR),
    ("500 Server Error: boom for url: https://x", Kind.SERVER_ERROR),
    ("Unexpected token < in JSON at position 0", Kind.MALFORMED),
    ("Expecting value: line 1 column 1 (char 0)", Kind.MALFORMED),
    ("Deserialization of order failed", Kind.MALFORMED),
    ("Cannot deserialize value of type `int` from String", Kind.MALFORMED),
    ("invalid format", Kind.MALFORMED),
    ("'utf-8' codec can't decode byte 0xff in position 0", Kind.MALFORMED),
    ("1 validation error for Order", Kind.MALFORMED),
    ("Unknown magic byte!", Kind.MALFORMED),
    ("not well-formed (invalid token): line 1, column 0", Kind.MALFORMED),
    ("Bad Request", Kind.REJECTED),
    ("HTTP/1.1 400 Bad Request", Kind.REJECTED),
    ("409 Conflict", Kind.REJECTED),
    ("version conflict, current version [7]", Kind.REJECTED),
    ("duplicate key value violates unique constraint", Kind.REJECTED),
    ("status code 422", Kind.REJECTED),
    ("Unauthorized", Kind.DENIED),
    ("403 Forbidden", Kind.DENIED),
    ("An error occurred (AccessDenied) when calling the PutObject operation", Kind.DENIED),
    ("password authentication failed for user 'app'", Kind.DENIED),
    ("Token has expired", Kind.DENIED),
    ("404 Client Error: Not Found for url: https://x/orders/1", Kind.NOT_FOUND),
    ("Order 17 not found", Kind.NOT_FOUND),
    ("NOT_FOUND", Kind.NOT_FOUND),
    ("The specified key does not exist.", Kind.NOT_FOUND),
    ("TTLExpiredException", Kind.EXPIRED),
    ("maxlen", Kind.OVERFLOW),
    # What must not be caught by any rule.
    ("order 14290 was refused by Bob", Kind.UNKNOWN),
    ("imported 500 items, then stopped", Kind.UNKNOWN),
    ("Error: 500 items failed", Kind.UNKNOWN),
    ("took 503 ms", Kind.UNKNOWN),
    ("price 404.50 is odd", Kind.UNKNOWN),
    ("author of the token is Conflicta", Kind.UNKNOWN),
    ("unforbiddenly", Kind.UNKNOWN),
    ("", Kind.UNKNOWN),
]

TRIED_AGAIN = {
    "network",
    "unavailable",
    "rate_limited",
    "database",
    "server_error",
    "expired",
    "overflow",
    "crash",
    "unknown",
}


@pytest.mark.parametrize(("error", "kind"), EXCEPTIONS, ids=lambda value: repr(value)[:60])
def test_an_exception_is_taken_for_what_it_is(error: BaseException, kind: Kind) -> None:
    found = CLASSIFIER.classify(error)
    assert (found.kind, found.retryable) == (kind, kind.value in TRIED_AGAIN), found.rule


@pytest.mark.parametrize(("text", "kind"), TEXTS, ids=lambda value: repr(value)[:60])
def test_a_text_is_taken_for_what_it_says(text: str, kind: Kind) -> None:
    found = CLASSIFIER.classify_text("", text)
    assert (found.kind, found.retryable) == (kind, kind.value in TRIED_AGAIN), found.rule


@pytest.mark.parametrize(("text", "kind"), TEXTS, ids=lambda value: repr(value)[:60])
def test_a_plain_exception_and_its_text_agree(text: str, kind: Kind) -> None:
    assert CLASSIFIER.classify(Exception(text)).kind == kind


@pytest.mark.parametrize(
    ("error_type", "text", "kind"),
    [
        ("TIMEOUT_ERROR", "External API", Kind.TIMEOUT),
        ("TimeoutError", "", Kind.TIMEOUT),
        ("System.TimeoutException", "The operation", Kind.TIMEOUT),
        ("java.net.SocketTimeoutException", "Read", Kind.TIMEOUT),
        ("ConnectionRefusedError", "", Kind.NETWORK),
        ("JSONDecodeError", "line 1", Kind.MALFORMED),
        ("json.decoder.JSONDecodeError", "line 1", Kind.MALFORMED),
        ("org.springframework.messaging.converter.MessageConversionException", "x", Kind.MALFORMED),
        ("org.springframework.web.client.HttpClientErrorException$NotFound", "x", Kind.NOT_FOUND),
        ("com.acme.network.OrderException", "x", Kind.UNKNOWN),
        ("TTLExpiredException", "", Kind.EXPIRED),
    ],
)
def test_the_name_of_a_foreign_class_counts(error_type: str, text: str, kind: Kind) -> None:
    assert CLASSIFIER.classify_text(error_type, text).kind == kind


def test_a_status_beside_a_text_is_certain_and_wins() -> None:
    assert CLASSIFIER.classify_text("HttpError", "order not found", status=503).kind == Kind.UNAVAILABLE
