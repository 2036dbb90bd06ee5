"""Which classes, statuses and errnos mean what, without anybody having said so?

One rule: nothing is imported. A library's exception is known by the name of its class, so that a rule for
`asyncpg` costs nothing where `asyncpg` is not installed. The class nearest to the error's own wins, so a
subclass can be listed apart from its base: in `redis`, a failed log-in derives from a failed connection.
What is not listed on purpose: `ValueError`, `KeyError`, `TypeError` and their like. They are as often a race
or a bug as a bad message; they stay unknown, and a user who knows better adds a rule.
"""

import errno
from typing import Final

from redrive.letters.failure import FailureKind
from redrive.rules.rule import ErrnoIn, Rule, StatusIn, TypeIs

UNKNOWN: Final = Rule("default", FailureKind.UNKNOWN, when=TypeIs(frozenset()))


def _of(module: str, names: str) -> list[str]:
    return [f"{module}.{name}" for name in names.split()]


_CLASSES: Final[dict[FailureKind, list[str]]] = {
    FailureKind.TIMEOUT: [
        *_of("builtins", "TimeoutError"),
        *_of("httpx", "TimeoutException"),
        *_of("httpcore", "TimeoutException"),
        *_of("requests.exceptions", "Timeout ConnectTimeout"),
        *_of("urllib3.exceptions", "TimeoutError"),
        *_of("aiohttp.client_exceptions", "ServerTimeoutError"),
        *_of("sqlalchemy.exc", "TimeoutError"),
        *_of("asyncpg.exceptions", "QueryCanceledError"),
        *_of("psycopg.errors", "QueryCanceled"),
        *_of("psycopg2.errors", "QueryCanceled"),
        *_of("pymongo.errors", "NetworkTimeout ServerSelectionTimeoutError ExecutionTimeout WTimeoutError"),
        *_of("redis.exceptions", "TimeoutError"),
        *_of("kafka.errors", "KafkaTimeoutError"),
        *_of("botocore.exceptions", "ConnectTimeoutError ReadTimeoutError"),
        *_of("azure.core.exceptions", "ServiceRequestTimeoutError ServiceResponseTimeoutError"),
        *_of("azure.servicebus.exceptions", "OperationTimeoutError"),
    ],
    FailureKind.NETWORK: [
        *_of("builtins", "ConnectionError"),
        *_of("socket", "gaierror herror"),
        *_of("ssl", "SSLError"),
        *_of("asyncio.exceptions", "IncompleteReadError"),
        *_of("http.client", "RemoteDisconnected IncompleteRead"),
        *_of("httpx", "NetworkError ConnectError RemoteProtocolError ProxyError"),
        *_of("httpcore", "NetworkError ConnectError RemoteProtocolError ProxyError"),
        *_of("requests.exceptions", "ConnectionError ChunkedEncodingError"),
        *_of("urllib3.exceptions", "NewConnectionError NameResolutionError ProtocolError"),
        *_of("aiohttp.client_exceptions", "ClientConnectionError ClientPayloadError"),
        *_of("redis.exceptions", "ConnectionError"),
        *_of("pymongo.errors", "AutoReconnect ConnectionFailure"),
        *_of("pika.exceptions", "AMQPConnectionError"),
        *_of("aiormq.exceptions", "AMQPConnectionError"),
        *_of("kafka.errors", "KafkaConnectionError"),
        *_of("smtplib", "SMTPServerDisconnected SMTPConnectError"),
        *_of("botocore.exceptions", "EndpointConnectionError ConnectionError HTTPClientError"),
        *_of("azure.core.exceptions", "ServiceRequestError ServiceResponseError"),
        *_of("azure.servicebus.exceptions", "ServiceBusConnectionError ServiceBusCommunicationError"),
        *_of("websockets.exceptions", "ConnectionClosed"),
    ],
    FailureKind.UNAVAILABLE: [
        *_of("builtins", "BlockingIOError InterruptedError MemoryError"),
        *_of("asyncio.queues", "QueueFull"),
        *_of("queue", "Full"),
        *_of("_queue", "Full"),
        *_of("redis.exceptions", "BusyLoadingError TryAgainError ClusterDownError"),
        *_of("kafka.errors", "NoBrokersAvailable BrokerNotAvailableError"),
        *_of("azure.servicebus.exceptions", "ServiceBusServerBusyError"),
    ],
    FailureKind.DATABASE: [
        *_of("sqlite3", "OperationalError"),
        *_of("sqlalchemy.exc", "OperationalError InterfaceError DisconnectionError"),
        *_of("django.db.utils", "OperationalError InterfaceError"),
        *_of("psycopg", "OperationalError InterfaceError"),
        *_of("psycopg2", "OperationalError InterfaceError"),
        *_of("pymysql.err", "OperationalError InterfaceError"),
        *_of("MySQLdb", "OperationalError InterfaceError"),
        *_of("oracledb.exceptions", "OperationalError InterfaceError"),
        *_of("asyncpg.exceptions", "TransactionRollbackError DeadlockDetectedError SerializationError"),
        *_of(
            "asyncpg.exceptions", "PostgresConnectionError InsufficientResourcesError LockNotAvailableError"
        ),
        *_of("asyncpg.exceptions", "OperatorInterventionError CannotConnectNowError TooManyConnectionsError"),
        *_of("asyncpg.exceptions._base", "InterfaceError"),
        *_of("pymongo.errors", "NotPrimaryError"),
    ],
    FailureKind.MALFORMED: [
        *_of("builtins", "UnicodeError"),
        *_of("json.decoder", "JSONDecodeError"),
        *_of("msgspec", "DecodeError ValidationError"),
        *_of("pydantic_core._pydantic_core", "ValidationError"),
        *_of("pydantic.error_wrappers", "ValidationError"),
        *_of("pydantic.v1.error_wrappers", "ValidationError"),
        *_of("jsonschema.exceptions", "ValidationError"),
        *_of("marshmallow.exceptions", "ValidationError"),
        *_of("google.protobuf.message", "DecodeError"),
        *_of("xml.etree.ElementTree", "ParseError"),
        *_of("xml.parsers.expat", "ExpatError"),
        *_of("lxml.etree", "XMLSyntaxError"),
        *_of("yaml.error", "YAMLError"),
        *_of("tomllib", "TOMLDecodeError"),
        *_of("pickle", "UnpicklingError"),
        *_of("_pickle", "UnpicklingError"),
        *_of("_csv", "Error"),
        *_of("binascii", "Error"),
        *_of("struct", "error"),
        *_of("zlib", "error"),
        *_of("gzip", "BadGzipFile"),
        *_of("zipfile", "BadZipFile"),
        *_of("redrive.errors", "FormatError"),
    ],
    FailureKind.REJECTED: [
        *_of("builtins", "FileExistsError IsADirectoryError NotADirectoryError NotImplementedError"),
        *_of("sqlite3", "IntegrityError DataError ProgrammingError NotSupportedError"),
        *_of("sqlalchemy.exc", "IntegrityError DataError ProgrammingError NotSupportedError"),
        *_of("django.db.utils", "IntegrityError DataError ProgrammingError"),
        *_of("psycopg", "IntegrityError DataError ProgrammingError"),
        *_of("psycopg2", "IntegrityError DataError ProgrammingError"),
        *_of("pymysql.err", "IntegrityError DataError ProgrammingError"),
        *_of("MySQLdb", "IntegrityError DataError ProgrammingError"),
        *_of("asyncpg.exceptions", "IntegrityConstraintViolationError DataError SyntaxOrAccessError"),
        *_of("pymongo.errors", "DuplicateKeyError DocumentTooLarge"),
        *_of("smtplib", "SMTPRecipientsRefused SMTPSenderRefused"),
    ],
    FailureKind.DENIED: [
        *_of("builtins", "PermissionError"),
        *_of("ssl", "SSLCertVerificationError"),
        *_of("asyncpg.exceptions", "InvalidAuthorizationSpecificationError InsufficientPrivilegeError"),
        *_of("redis.exceptions", "AuthenticationError AuthorizationError NoPermissionError"),
        *_of("smtplib", "SMTPAuthenticationError"),
        *_of("botocore.exceptions", "NoCredentialsError"),
        *_of("azure.core.exceptions", "ClientAuthenticationError"),
        *_of("azure.servicebus.exceptions", "ServiceBusAuthenticationError ServiceBusAuthorizationError"),
        *_of("pika.exceptions", "ProbableAuthenticationError ProbableAccessDeniedError"),
        *_of("django.core.exceptions", "PermissionDenied"),
    ],
    FailureKind.NOT_FOUND: [
        *_of("builtins", "FileNotFoundError"),
        *_of("django.core.exceptions", "ObjectDoesNotExist"),
        *_of("sqlalchemy.exc", "NoResultFound"),
        *_of("asyncpg.exceptions", "UndefinedTableError InvalidCatalogNameError"),
    ],
    FailureKind.CRASH: [
        *_of("builtins", "SystemExit"),
        *_of("concurrent.futures.process", "BrokenProcessPool"),
    ],
}

_STATUSES: Final[dict[FailureKind, list[int]]] = {
    FailureKind.TIMEOUT: [408],
    FailureKind.RATE_LIMITED: [429],
    FailureKind.UNAVAILABLE: [425, 502, 503, 504, 521, 522, 523, 524, 529],
    FailureKind.DENIED: [401, 403, 407],
    FailureKind.NOT_FOUND: [404, 410],
}
_LISTED: Final = {status for statuses in _STATUSES.values() for status in statuses}
_STATUSES[FailureKind.SERVER_ERROR] = [status for status in range(500, 600) if status not in _LISTED]
_STATUSES[FailureKind.REJECTED] = [status for status in range(400, 500) if status not in _LISTED]

_ERRNOS: Final[dict[FailureKind, str]] = {
    FailureKind.TIMEOUT: "ETIMEDOUT",
    FailureKind.NETWORK: "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ENOTCONN ESHUTDOWN EHOSTUNREACH EHOSTDOWN "
    "ENETUNREACH ENETDOWN ENETRESET EADDRNOTAVAIL EADDRINUSE",
    FailureKind.UNAVAILABLE: "ENOSPC EDQUOT EMFILE ENFILE ENOMEM ENOBUFS EAGAIN EBUSY EINTR EIO EROFS",
    FailureKind.DENIED: "EACCES EPERM",
    FailureKind.NOT_FOUND: "ENOENT ENODEV ENXIO",
    FailureKind.REJECTED: "EEXIST EINVAL EISDIR ENOTDIR ENAMETOOLONG EFBIG",
}

TYPES: Final = tuple(
    Rule(f"type:{kind}", kind, when=TypeIs(frozenset(names))) for kind, names in _CLASSES.items()
)
STATUSES: Final = tuple(
    Rule(f"status:{kind}", kind, when=StatusIn(frozenset(statuses))) for kind, statuses in _STATUSES.items()
)
ERRNOS: Final = tuple(
    Rule(
        f"errno:{kind}",
        kind,
        when=ErrnoIn(frozenset(getattr(errno, name) for name in names.split() if hasattr(errno, name))),
    )
    for kind, names in _ERRNOS.items()
)
BY_TYPE: Final = {name: rule for rule, names in zip(TYPES, _CLASSES.values(), strict=True) for name in names}
BY_STATUS: Final = {
    status: rule for rule, statuses in zip(STATUSES, _STATUSES.values(), strict=True) for status in statuses
}
BY_ERRNO: Final = {
    getattr(errno, name): rule
    for rule, names in zip(ERRNOS, _ERRNOS.values(), strict=True)
    for name in names.split()
    if hasattr(errno, name)
}


def _by_bare_name() -> dict[str, Rule]:
    """Class names that mean one thing in whatever library; for failures that are text and name no module."""
    rules: dict[str, set[str]] = {}
    for name, rule in BY_TYPE.items():
        rules.setdefault(name.rpartition(".")[2], set()).add(rule.name)
    named = {rule.name: rule for rule in TYPES}
    return {
        name: named[next(iter(found))] for name, found in rules.items() if len(found) == 1 and len(name) > 5
    }


BY_BARE_NAME: Final = _by_bare_name()
