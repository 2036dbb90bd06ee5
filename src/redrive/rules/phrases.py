"""Which words in an error's text mean what?

The last thing looked at. One rule: whole words only, in order, and the first group that fits wins. A
text is cut into lower-case words, so "NOT_FOUND", "NotFound" and "not found" are one phrase, and no phrase is
ever found inside a word or a number. A status with HTTP around it ("HTTP 503") is read before any of these.
The order carries meaning: "host not found" is a network fault and stands before "not found"; a timeout wins
over whatever timed out, except where the other side itself says "try again" (a lock, a gateway).
"""

from typing import Final

from redrive.letters.failure import FailureKind
from redrive.rules.rule import Rule, Says


def _says(name: str, kind: FailureKind, phrases: str) -> Rule:
    split = (" ".join(phrase.split()) for phrase in phrases.split(","))
    return Rule(f"text:{name}", kind, when=Says(tuple(f" {phrase} " for phrase in split)))


TEXTS: Final = (
    _says(
        "contention",
        FailureKind.DATABASE,
        """deadlock, deadlocks, deadlocked, could not serialize, serialization failure, database is locked,
        database table is locked, lock wait timeout, lock timeout, lock request time out, could not
        obtain lock, try restarting transaction, write conflict, conflict with recovery, transient
        transaction error, 40p01, sqlstate 40001""",
    ),
    _says(
        "host_not_found",
        FailureKind.NETWORK,
        """host not found, hostname not found, host was not found, enotfound, eai again, unknown host, no
        such host, name or service not known, nodename nor servname, name resolution, could not resolve
        host, could not resolve hostname, could not translate host name, getaddrinfo, dns lookup, dns
        error, nxdomain, server was not found or was not accessible""",
    ),
    _says(
        "rate_limited",
        FailureKind.RATE_LIMITED,
        """too many requests, rate limit, rate limits, rate limited, rate limiting, ratelimit, rate
        exceeded, throttled, throttling, request was throttled, quota exceeded, exceeded your current
        quota, quota exhausted, resource exhausted, slow down, request limit exceeded""",
    ),
    _says(
        "gateway",
        FailureKind.UNAVAILABLE,
        "gateway timeout, gateway time out, gateway timed out, bad gateway",
    ),
    _says(
        "timeout",
        FailureKind.TIMEOUT,
        """timeout, timeouts, time out, timed out, timedout, etimedout, esockettimedout, deadline exceeded,
        exceeded maximum duration, exceeded the maximum duration, exceeded max duration, maximum
        duration exceeded, maximum execution time exceeded, time limit exceeded, exceeded time limit,
        took too long""",
    ),
    _says(
        "malformed",
        FailureKind.MALFORMED,
        """deserialization, deserialisation, deserialize, deserializing, deserializer, unmarshal,
        serialization error, serialization exception, invalid format, invalid message format, invalid
        json, malformed json, invalid xml, invalid payload, invalid utf 8, malformed, json decode, json
        parse, parse error, parse exception, parsing error, failed to parse, could not parse, cannot
        parse, unexpected token, unexpected character, unexpected end of, expecting value, expecting
        property name, unterminated string, not well formed, codec can t decode, decode error, decoding
        error, message conversion, conversion exception, magic byte, schema validation, schema mismatch,
        validation error, validation failed, validation exception, missing required, required field,
        field required, is a required property, invalid literal for, could not convert string to, does
        not match format""",
    ),
    _says(
        "denied",
        FailureKind.DENIED,
        """unauthorized, unauthorised, unauthenticated, not authorized, not authorised, forbidden, access
        denied, permission denied, access refused, authentication failed, authentication failure,
        authentication required, login failed, invalid credentials, bad credentials, invalid api key,
        invalid access token, token expired, token has expired, token is expired, expired token, expired
        jwt, signature has expired, invalid signature, certificate verify failed, certificate has
        expired, insufficient privilege, insufficient privileges, insufficient permissions, insufficient
        scope, eacces""",
    ),
    _says(
        "database",
        FailureKind.DATABASE,
        """too many connections, too many clients, connection slots, connection pool exhausted, transient
        database, database connection, database unavailable, database error, database is unavailable,
        database is starting up, database system is starting up, database system is shutting down,
        database system is in recovery mode, terminating connection, server has gone away, lost
        connection to mysql, not primary, not master, primary stepped down, read only transaction""",
    ),
    _says(
        "connection",
        FailureKind.NETWORK,
        """connection refused, connection reset, connection aborted, connection closed, connection lost,
        connection error, connection failed, connection failure, connection was closed, connection was
        reset, connection was forcibly closed, closed the connection, closed connection, remote end
        closed, server disconnected, broken pipe, socket hang up, socket closed, econnrefused,
        econnreset, econnaborted, epipe, ehostunreach, enetunreach, no route to host, host unreachable,
        host is unreachable, network error, network unreachable, network is unreachable, network
        related, network failure, could not connect, cannot connect, unable to connect, failed to
        connect, failed to establish a new connection, unexpected eof, ssl error, tls handshake, all
        brokers down, all brokers are down, broker transport failure""",
    ),
    _says(
        "unavailable",
        FailureKind.UNAVAILABLE,
        """unavailable, temporarily down, overloaded, server busy, server is busy, server too busy, circuit
        breaker is open, circuit open, under maintenance, maintenance mode, no space left on device,
        disk full, too many open files, out of memory, cannot allocate memory, not enough in sync
        replicas, not enough replicas, leader not available, no available brokers, not leader for
        partition, try again later""",
    ),
    _says(
        "expired",
        FailureKind.EXPIRED,
        "ttl expired, ttl exceeded, message expired, message has expired, time to live",
    ),
    _says(
        "overflow",
        FailureKind.OVERFLOW,
        "maxlen, queue full, queue is full, queue length limit, queue limit exceeded",
    ),
    _says(
        "not_found",
        FailureKind.NOT_FOUND,
        """not found, notfound, could not be found, cannot be found, cannot find, does not exist, doesn t
        exist, no such file, no such key, no such bucket, no such table, no such queue, no such entity,
        enoent""",
    ),
    _says(
        "rejected",
        FailureKind.REJECTED,
        """bad request, invalid request, invalid argument, conflict, conflicts, conflicting, duplicate key,
        duplicate entry, already exists, unique constraint, foreign key constraint, constraint
        violation, precondition failed, unprocessable entity, unprocessable content, method not allowed,
        not acceptable, unsupported media type, payload too large, entity too large, message too large,
        message size too large, record too large, not implemented""",
    ),
    _says(
        "server_error",
        FailureKind.SERVER_ERROR,
        "internal server error, internal error, server error, server fault",
    ),
    _says("network", FailureKind.NETWORK, "network, networking"),
)


def _by_first_word() -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for rank, rule in enumerate(TEXTS):
        if isinstance(rule.when, Says):
            for phrase in rule.when.phrases:
                found.setdefault(phrase.split()[0], []).append((rank, phrase))
    return found


_BY_FIRST_WORD: Final = _by_first_word()


def first_said(words: str) -> Rule | None:
    """The first rule of which a phrase is in these words; looked for by its first word, for there are hundreds."""
    best = len(TEXTS)
    for word in words.split():
        for rank, phrase in _BY_FIRST_WORD.get(word, ()):
            if rank < best and phrase in words:
                best = rank
    return TEXTS[best] if best < len(TEXTS) else None
