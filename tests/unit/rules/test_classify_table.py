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

from redrive.letters.failure import FailureKind
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

EXCEPTIONS: list[tuple[BaseException, FailureKind]] = [
    (TimeoutError(), FailureKind.TIMEOUT),
    (asyncio.TimeoutError("x"), FailureKind.TIMEOUT),  # noqa: UP041 (the alias is what is tested)
    (socket.timeout("timed out"), FailureKind.TIMEOUT),  # noqa: UP041
    (concurrent.futures.TimeoutError(), FailureKind.TIMEOUT),
    (foreign("acme.errors.SlowPartner", TimeoutError), FailureKind.TIMEOUT),
    (foreign("httpx.ReadTimeout", base("httpx.TimeoutException")), FailureKind.TIMEOUT),
    (
        foreign("requests.exceptions.ConnectTimeout", base("requests.exceptions.ConnectionError", REQUESTS)),
        FailureKind.TIMEOUT,
    ),
    (
        foreign(
            "aiohttp.client_exceptions.ServerTimeoutError",
            base("aiohttp.client_exceptions.ClientConnectionError"),
            TimeoutError,
        ),
        FailureKind.TIMEOUT,
    ),
    (OSError(errno.ETIMEDOUT, "Connection timed out"), FailureKind.TIMEOUT),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), FailureKind.NETWORK),
    (BrokenPipeError(), FailureKind.NETWORK),
    (OSError(errno.EHOSTUNREACH, "No route to host"), FailureKind.NETWORK),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), FailureKind.NETWORK),
    (socket.gaierror(-2, "Name or service not known"), FailureKind.NETWORK),
    (ssl.SSLError(1, "[SSL] record layer failure"), FailureKind.NETWORK),
    (asyncio.IncompleteReadError(b"", 10), FailureKind.NETWORK),
    (foreign("httpx.ConnectError", base("httpx.NetworkError")), FailureKind.NETWORK),
    (foreign("requests.exceptions.ConnectionError", REQUESTS), FailureKind.NETWORK),
    (foreign("redis.exceptions.ConnectionError"), FailureKind.NETWORK),
    (
        foreign("urllib3.exceptions.NewConnectionError", base("urllib3.exceptions.TimeoutError")),
        FailureKind.NETWORK,
    ),
    (urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), FailureKind.NETWORK),
    (urllib.error.URLError(TimeoutError("timed out")), FailureKind.TIMEOUT),
    (foreign("redis.exceptions.AuthenticationError", REDIS_CONNECTION), FailureKind.DENIED),
    (foreign("redis.exceptions.BusyLoadingError", REDIS_CONNECTION), FailureKind.UNAVAILABLE),
    (OSError(errno.ENOSPC, "No space left on device"), FailureKind.UNAVAILABLE),
    (OSError(errno.EMFILE, "Too many open files"), FailureKind.UNAVAILABLE),
    (MemoryError(), FailureKind.UNAVAILABLE),
    (asyncio.QueueFull(), FailureKind.UNAVAILABLE),
    (sqlite3.OperationalError("database is locked"), FailureKind.DATABASE),
    (
        foreign("sqlalchemy.exc.OperationalError", base("sqlalchemy.exc.DBAPIError"), code="e3q8"),
        FailureKind.DATABASE,
    ),
    (foreign("asyncpg.exceptions.DeadlockDetectedError"), FailureKind.DATABASE),
    (foreign("asyncpg.exceptions.QueryCanceledError"), FailureKind.TIMEOUT),
    (foreign("psycopg.errors.SerializationFailure", base("psycopg.OperationalError")), FailureKind.DATABASE),
    (sqlite3.IntegrityError("UNIQUE constraint failed: orders.id"), FailureKind.REJECTED),
    (
        foreign(
            "asyncpg.exceptions.UniqueViolationError",
            base("asyncpg.exceptions.IntegrityConstraintViolationError"),
        ),
        FailureKind.REJECTED,
    ),
    (thrown("json.loads('{')"), FailureKind.MALFORMED),
    (thrown("msgspec.json.decode(b'{')"), FailureKind.MALFORMED),
    (thrown("msgspec.json.decode(b'1', type=str)"), FailureKind.MALFORMED),
    (thrown("b'\\xff'.decode()"), FailureKind.MALFORMED),
    (foreign("pydantic_core._pydantic_core.ValidationError", ValueError), FailureKind.MALFORMED),
    (foreign("msgspec.ValidationError"), FailureKind.MALFORMED),
    (thrown("int('twelve')"), FailureKind.MALFORMED),
    (PermissionError(errno.EACCES, "Permission denied"), FailureKind.DENIED),
    (ssl.SSLCertVerificationError(1, "certificate verify failed"), FailureKind.DENIED),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), FailureKind.NOT_FOUND),
    (foreign("acme.OrderNotFoundError", text="A-17"), FailureKind.NOT_FOUND),
    (SystemExit(137), FailureKind.CRASH),
    (foreign("concurrent.futures.process.BrokenProcessPool", RuntimeError), FailureKind.CRASH),
    (KeyError("id"), FailureKind.UNKNOWN),
    (ValueError("bad"), FailureKind.UNKNOWN),
    (asyncio.CancelledError(), FailureKind.UNKNOWN),
    # HTTP status, wherever a library keeps it.
    (http_error(404), FailureKind.NOT_FOUND),
    (http_error(503), FailureKind.UNAVAILABLE),
    (
        foreign("httpx.HTTPStatusError", response=SimpleNamespace(status_code=429, headers={})),
        FailureKind.RATE_LIMITED,
    ),
    (
        foreign("requests.exceptions.HTTPError", REQUESTS, response=SimpleNamespace(status_code=500)),
        FailureKind.SERVER_ERROR,
    ),
    (foreign("aiohttp.client_exceptions.ClientResponseError", status=409), FailureKind.REJECTED),
    (foreign("acme.HttpError", status_code=401), FailureKind.DENIED),
    (foreign("acme.HttpError", code=408), FailureKind.TIMEOUT),
    (foreign("acme.HttpError", getcode=lambda: 504), FailureKind.UNAVAILABLE),
    (foreign("acme.HttpError", response=SimpleNamespace(status=400)), FailureKind.REJECTED),
    (
        foreign("botocore.exceptions.ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 503}}),
        FailureKind.UNAVAILABLE,
    ),
    (foreign("acme.Odd", status=True), FailureKind.UNKNOWN),
    (foreign("acme.Odd", status="500"), FailureKind.UNKNOWN),
    (foreign("acme.Odd", code=1006), FailureKind.UNKNOWN),
    (foreign("acme.Odd", status=200), FailureKind.UNKNOWN),
]

TEXTS: list[tuple[str, FailureKind]] = [
    ("Database connection timeout after 30s", FailureKind.TIMEOUT),
    ("External API timeout after 5000ms", FailureKind.TIMEOUT),
    ("Read timed out. (read timeout=30)", FailureKind.TIMEOUT),
    ("Agent execution exceeded maximum duration of 60 seconds", FailureKind.TIMEOUT),
    ("context deadline exceeded", FailureKind.TIMEOUT),
    ("StatusCode.DEADLINE_EXCEEDED", FailureKind.TIMEOUT),
    ("connect ETIMEDOUT 10.0.0.5:443", FailureKind.TIMEOUT),
    ("canceling statement due to statement timeout", FailureKind.TIMEOUT),
    ("408 Request Timeout", FailureKind.TIMEOUT),
    ('KafkaError{code=_TIMED_OUT,val=-185,str="Local: Timed out"}', FailureKind.TIMEOUT),
    ("deadlock detected", FailureKind.DATABASE),
    ("Deadlock found when trying to get lock; try restarting transaction", FailureKind.DATABASE),
    ("could not serialize access due to concurrent update", FailureKind.DATABASE),
    ("Lock wait timeout exceeded; try restarting transaction", FailureKind.DATABASE),
    ("database is locked", FailureKind.DATABASE),
    ("FATAL: sorry, too many clients already", FailureKind.DATABASE),
    ("(1040, 'Too many connections')", FailureKind.DATABASE),
    ("MySQL server has gone away", FailureKind.DATABASE),
    ("the database system is starting up", FailureKind.DATABASE),
    ("WriteConflict error: this operation conflicted with another operation", FailureKind.DATABASE),
    ("host not found", FailureKind.NETWORK),
    ("getaddrinfo ENOTFOUND api.partner.example", FailureKind.NETWORK),
    ("[Errno -3] Temporary failure in name resolution", FailureKind.NETWORK),
    ("dial tcp: lookup db on 10.0.0.2:53: no such host", FailureKind.NETWORK),
    ("java.net.UnknownHostException: partner", FailureKind.NETWORK),
    ("connect ECONNREFUSED 127.0.0.1:5432", FailureKind.NETWORK),
    ("Connection refused (timeout=30)", FailureKind.NETWORK),
    ("read ECONNRESET", FailureKind.NETWORK),
    ("socket hang up", FailureKind.NETWORK),
    ("Connection reset by peer", FailureKind.NETWORK),
    (
        "A network-related error occurred. The server was not found or was not accessible.",
        FailureKind.NETWORK,
    ),
    ("Network failure", FailureKind.NETWORK),
    ("Too Many Requests", FailureKind.RATE_LIMITED),
    ("Error 429", FailureKind.RATE_LIMITED),
    ("HTTP 429: slow down please", FailureKind.RATE_LIMITED),
    ('{"error": "rate_limit_exceeded"}', FailureKind.RATE_LIMITED),
    (
        "An error occurred (ThrottlingException) when calling the PutItem operation: Rate exceeded",
        FailureKind.RATE_LIMITED,
    ),
    ("Quota exceeded for quota metric 'Read requests'", FailureKind.RATE_LIMITED),
    ("503 Service Unavailable", FailureKind.UNAVAILABLE),
    ("status 503", FailureKind.UNAVAILABLE),
    ("status code: 502", FailureKind.UNAVAILABLE),
    ("504 Gateway Timeout", FailureKind.UNAVAILABLE),
    ("Bad gateway", FailureKind.UNAVAILABLE),
    ("Service temporarily unavailable", FailureKind.UNAVAILABLE),
    ("StatusCode.UNAVAILABLE", FailureKind.UNAVAILABLE),
    ("[Errno 28] No space left on device", FailureKind.UNAVAILABLE),
    ("HTTP 500", FailureKind.SERVER_ERROR),
    ("500, message='boom', url='http://x'", FailureKind.SERVER_ERROR),
    (
        "Response status code does not indicate success: 500 (Internal Server Error).",
        FailureKind.SERVER_ERROR,
    ),
    ("Client error '404 Not Found' for url 'https://x'", FailureKind.NOT_FOUND),
    ("The remote server returned an error: (403) Forbidden.", FailureKind.DENIED),
    ("https://api.example/404/orders was slow", FailureKind.UNKNOWN),
    ("500 Internal Server Error", FailureKind.SERVER_ERROR),
    ("Request failed with status code 500", FailureKind.SERVER_ERROR),
    ("500 Server Error: boom for url: https://x", FailureKind.SERVER_ERROR),
    ("Unexpected token < in JSON at position 0", FailureKind.MALFORMED),
    ("Expecting value: line 1 column 1 (char 0)", FailureKind.MALFORMED),
    ("Deserialization of order failed", FailureKind.MALFORMED),
    ("Cannot deserialize value of type `int` from String", FailureKind.MALFORMED),
    ("invalid format", FailureKind.MALFORMED),
    ("'utf-8' codec can't decode byte 0xff in position 0", FailureKind.MALFORMED),
    ("1 validation error for Order", FailureKind.MALFORMED),
    ("Unknown magic byte!", FailureKind.MALFORMED),
    ("not well-formed (invalid token): line 1, column 0", FailureKind.MALFORMED),
    ("Bad Request", FailureKind.REJECTED),
    ("HTTP/1.1 400 Bad Request", FailureKind.REJECTED),
    ("409 Conflict", FailureKind.REJECTED),
    ("version conflict, current version [7]", FailureKind.REJECTED),
    ("duplicate key value violates unique constraint", FailureKind.REJECTED),
    ("status code 422", FailureKind.REJECTED),
    ("Unauthorized", FailureKind.DENIED),
    ("403 Forbidden", FailureKind.DENIED),
    ("An error occurred (AccessDenied) when calling the PutObject operation", FailureKind.DENIED),
    ("password authentication failed for user 'app'", FailureKind.DENIED),
    ("Token has expired", FailureKind.DENIED),
    ("404 Client Error: Not Found for url: https://x/orders/1", FailureKind.NOT_FOUND),
    ("Order 17 not found", FailureKind.NOT_FOUND),
    ("NOT_FOUND", FailureKind.NOT_FOUND),
    ("The specified key does not exist.", FailureKind.NOT_FOUND),
    ("TTLExpiredException", FailureKind.EXPIRED),
    ("maxlen", FailureKind.OVERFLOW),
    # What must not be caught by any rule.
    ("order 14290 was refused by Bob", FailureKind.UNKNOWN),
    ("imported 500 items, then stopped", FailureKind.UNKNOWN),
    ("Error: 500 items failed", FailureKind.UNKNOWN),
    ("took 503 ms", FailureKind.UNKNOWN),
    ("price 404.50 is odd", FailureKind.UNKNOWN),
    ("author of the token is Conflicta", FailureKind.UNKNOWN),
    ("unforbiddenly", FailureKind.UNKNOWN),
    ("", FailureKind.UNKNOWN),
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
def test_an_exception_is_taken_for_what_it_is(error: BaseException, kind: FailureKind) -> None:
    found = CLASSIFIER.classify(error)
    assert (found.kind, found.retryable) == (kind, kind.value in TRIED_AGAIN), found.rule


@pytest.mark.parametrize(("text", "kind"), TEXTS, ids=lambda value: repr(value)[:60])
def test_a_text_is_taken_for_what_it_says(text: str, kind: FailureKind) -> None:
    found = CLASSIFIER.classify_text("", text)
    assert (found.kind, found.retryable) == (kind, kind.value in TRIED_AGAIN), found.rule


@pytest.mark.parametrize(("text", "kind"), TEXTS, ids=lambda value: repr(value)[:60])
def test_a_plain_exception_and_its_text_agree(text: str, kind: FailureKind) -> None:
    assert CLASSIFIER.classify(Exception(text)).kind == kind


@pytest.mark.parametrize(
    ("error_type", "text", "kind"),
    [
        ("TIMEOUT_ERROR", "External API", FailureKind.TIMEOUT),
        ("TimeoutError", "", FailureKind.TIMEOUT),
        ("System.TimeoutException", "The operation", FailureKind.TIMEOUT),
        ("java.net.SocketTimeoutException", "Read", FailureKind.TIMEOUT),
        ("ConnectionRefusedError", "", FailureKind.NETWORK),
        ("JSONDecodeError", "line 1", FailureKind.MALFORMED),
        ("json.decoder.JSONDecodeError", "line 1", FailureKind.MALFORMED),
        ("org.springframework.messaging.converter.MessageConversionException", "x", FailureKind.MALFORMED),
        ("org.springframework.web.client.HttpClientErrorException$NotFound", "x", FailureKind.NOT_FOUND),
        ("com.acme.network.OrderException", "x", FailureKind.UNKNOWN),
        ("TTLExpiredException", "", FailureKind.EXPIRED),
    ],
)
def test_the_name_of_a_foreign_class_counts(error_type: str, text: str, kind: FailureKind) -> None:
    assert CLASSIFIER.classify_text(error_type, text).kind == kind


def test_a_status_beside_a_text_is_certain_and_wins() -> None:
    assert (
        CLASSIFIER.classify_text("HttpError", "order not found", status=503).kind == FailureKind.UNAVAILABLE
    )
