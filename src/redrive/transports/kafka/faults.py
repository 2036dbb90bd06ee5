"""Translate errors of librdkafka into `TransportError`s that say what to do.

No error of librdkafka leaves this package. The texts contain no password, because librdkafka never writes one.
"""

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from redrive.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    PublishError,
    SourceMissingError,
    TransportError,
)

_MISSING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  librdkafka's own codes begin so
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError.TOPIC_EXCEPTION,
)
_REFUSED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user may not use this topic; grant it by an ACL",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the user may not use this consumer group; grant READ on it by an ACL",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the user may not write; grant WRITE on the topic by an ACL",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user may not use transactions; grant WRITE by an ACL",
    KafkaError.SASL_AUTHENTICATION_FAILED: "user name or password is wrong",
    KafkaError._AUTHENTICATION: "user name, password or certificate is wrong",  # noqa: SLF001
    KafkaError._SSL: "the TLS handshake failed; check ssl.ca.location",  # noqa: SLF001
}
# Errors that librdkafka recovers from by itself, and reports repeatedly meanwhile.
PASSING: Final = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._NO_OFFSET,  # noqa: SLF001
        KafkaError._PARTITION_EOF,  # noqa: SLF001
        KafkaError._DESTROY,  # noqa: SLF001
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
    }
)
TOO_LARGE: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
# Errors that concern one record, or the records that were sent together with it: other records may be accepted.
RECORD_REFUSALS: Final = frozenset(
    {
        *TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNKNOWN,
        KafkaError._BAD_MSG,  # noqa: SLF001
    }
)


class TooLargeError(PublishError):
    """The record is larger than the topic allows."""


def error_of(exception: KafkaException) -> KafkaError:
    """The error that an exception carries."""
    found = exception.args[0] if exception.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))  # noqa: SLF001


def translated(error: KafkaError, topic: str | None = None) -> TransportError:
    """The error of a connection or a request, with what to do next."""
    code, where = error.code(), "" if topic is None else f" ('{topic}')"
    if code in _MISSING and topic is not None:
        return topic_missing(topic)
    if code in _REFUSED:
        return BrokerRefusedError(f"{_REFUSED[code]}{where}: {error.str()}")
    return BrokerUnreachableError(f"{error.str()}{where}")


def topic_missing(topic: str) -> SourceMissingError:
    """The error for a topic that does not exist."""
    return SourceMissingError(
        f"topic '{topic}' does not exist; redrive provision creates it, or start its consumer first"
    )


def not_durable(error: KafkaError, topic: str) -> PublishError:
    """The error of a record that was not written, with what to do next."""
    code = error.code()
    if code in _MISSING:
        return PublishError(f"topic '{topic}' or the partition does not exist; run redrive provision")
    if code in TOO_LARGE:
        return TooLargeError(f"the record is too large for '{topic}': raise max.message.bytes of the topic")
    if code in _REFUSED:
        return PublishError(f"not written to '{topic}': {_REFUSED[code]}")
    if code in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT):  # noqa: SLF001
        return PublishError(
            f"'{topic}' did not confirm the record in time; it may be written twice (check that enough "
            "replicas are in sync)"
        )
    return PublishError(f"not written to '{topic}': {error.str()}")
