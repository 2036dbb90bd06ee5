"""Which headers do other systems put on their dead letters, and what do they mean?

`SYSTEMS` has one row for each system, in the words of `letters.convention`. What a row does
not name, its system does not tell: nothing is guessed. A system that is not here is one more row, without code.

Headers of Kafka are bytes and those of AMQP have types; a row holds for either. This file reads nothing, and knows
neither what RabbitMQ itself writes (`x_death`, `shovel`) nor records that hold the message within (`onex`).
"""

from typing import Final

from redrive.letters import FailureKind
from redrive.letters.convention import Convention

# --- .NET -------------------------------------------------------------------------------------------------

MASSTRANSIT: Final = Convention(
    name="masstransit",
    recognised_by=("MT-Reason", "MT-Fault-Message"),
    fields={
        "reason": "MT-Reason",
        "error_type": "MT-Fault-ExceptionType",
        "error_text": "MT-Fault-Message",
        "stack": "MT-Fault-StackTrace",
        "source": "MT-Fault-InputAddress",
        "failed_at": "MT-Fault-Timestamp",
        "retry_count": "MT-Fault-RetryCount",
        "message_id": "MT-OriginalMessageId",
    },
    forms={"source": "address"},
    # One by one: `MT-Fault-Address` and `MT-Host-Info` are the producer's.
    adds=(
        "MT-Reason",
        "MT-Fault-ExceptionType",
        "MT-Fault-InputAddress",
        "MT-Fault-Message",
        "MT-Fault-MessageType",
        "MT-Fault-ConsumerType",
        "MT-Fault-Timestamp",
        "MT-Fault-StackTrace",
        "MT-Fault-RetryCount",
        "MT-Fault-RedeliveryCount",
        "MT-Redelivery-Count",
        "MT-Host-MachineName",
        "MT-Host-ProcessName",
        "MT-Host-ProcessId",
        "MT-Host-Assembly",
        "MT-Host-AssemblyVersion",
        "MT-Host-MassTransitVersion",
        "MT-Host-FrameworkVersion",
        "MT-Host-OperatingSystemVersion",
    ),
    queue_suffixes=("_error", "_skipped"),
)

NSERVICEBUS: Final = Convention(
    name="nservicebus",
    recognised_by=("NServiceBus.FailedQ", "NServiceBus.ExceptionInfo.ExceptionType"),
    fields={
        "error_type": "NServiceBus.ExceptionInfo.ExceptionType",
        "error_text": "NServiceBus.ExceptionInfo.Message",
        "stack": "NServiceBus.ExceptionInfo.StackTrace",
        "source": "NServiceBus.FailedQ",
        "failed_at": "NServiceBus.TimeOfFailure",
        "retry_count": ("NServiceBus.Retries", "NServiceBus.FLRetries"),
        "correlation_id": "NServiceBus.CorrelationId",
        "message_id": "NServiceBus.MessageId",
    },
    forms={"failed_at": "nservicebus-time"},
    adds=(
        "NServiceBus.FailedQ",
        "NServiceBus.ExceptionInfo.*",
        "NServiceBus.TimeOfFailure",
        "NServiceBus.Retries",
        "NServiceBus.FLRetries",
        "NServiceBus.ProcessingEndpoint",
        "NServiceBus.ProcessingMachine",
    ),
)

REBUS: Final = Convention(
    name="rebus",
    recognised_by=("rbs2-error-details",),
    # The details are text and stack in one.
    fields={"error_text": "rbs2-error-details", "stack": "rbs2-error-details", "source": "rbs2-source-queue"},
    adds=("rbs2-error-details", "rbs2-source-queue"),
)

WOLVERINE: Final = Convention(
    name="wolverine",
    recognised_by=("exception-type", "failed-at"),
    needs_all=True,
    fields={
        "error_type": "exception-type",
        "error_text": "exception-message",
        "stack": "exception-stack",
        "source": "original-destination",
        "partition": "original-partition",
        "offset": "original-offset",
        "failed_at": "failed-at",
    },
    forms={"source": "address", "failed_at": "unix-ms"},
    adds=(
        "exception-type",
        "exception-message",
        "exception-stack",
        "failed-at",
        "original-destination",
        "original-partition",
        "original-offset",
    ),
)

AZURE_SERVICE_BUS: Final = Convention(
    name="azure-service-bus",
    recognised_by=("DeadLetterReason", "DeadLetterErrorDescription", "x-opt-deadletter-source"),
    fields={
        "reason": "DeadLetterReason",
        "error_text": "DeadLetterErrorDescription",
        "source": "x-opt-deadletter-source",
    },
    adds=("DeadLetterReason", "DeadLetterErrorDescription", "x-opt-deadletter-source"),
    queue_suffixes=("/$DeadLetterQueue", "/$deadletterqueue"),
    # The reasons that the service itself gives; every other one is an application's.
    kinds={
        "MaxDeliveryCountExceeded": FailureKind.UNKNOWN,
        "TTLExpiredException": FailureKind.EXPIRED,
        "HeaderSizeExceeded": FailureKind.REJECTED,
        "MaxTransferHopCountExceeded": FailureKind.UNKNOWN,
        "Session ID is null.": FailureKind.REJECTED,
    },
)

# --- Spring -----------------------------------------------------------------------------------------------

# The exception itself is nearly always the container's own wrapper, so the cause is asked first. That of the key is
# there where the key could not be deserialized. `springDeserializerException*` is Java-serialized: it stays on the
# message as the bytes it is, and nobody deserializes it.
SPRING_KAFKA: Final = Convention(
    name="spring-kafka",
    recognised_by=(
        "kafka_dlt-original-topic",
        "kafka_dlt-exception-fqcn",
        "kafka_dlt-exception-message",
        "kafka_dlt-key-exception-fqcn",
        "springDeserializerExceptionKey",
        "springDeserializerExceptionValue",
    ),
    fields={
        "error_type": (
            "kafka_dlt-exception-cause-fqcn",
            "kafka_dlt-exception-fqcn",
            "kafka_dlt-key-exception-fqcn",
        ),
        "error_text": ("kafka_dlt-exception-message", "kafka_dlt-key-exception-message"),
        "stack": ("kafka_dlt-exception-stacktrace", "kafka_dlt-key-exception-stacktrace"),
        "source": "kafka_dlt-original-topic",
        "partition": "kafka_dlt-original-partition",
        "offset": "kafka_dlt-original-offset",
        "consumer_group": "kafka_dlt-original-consumer-group",
        "sent_at": "kafka_dlt-original-timestamp",
        "delivery_count": "kafka_deliveryAttempt",
    },
    forms={
        "partition": "int32-be",
        "offset": "int64-be",
        "sent_at": "unix-ms-be",
        "delivery_count": "int-be",
    },
    adds=("kafka_dlt-*", "retry_topic-*", "kafka_deliveryAttempt"),
)

# The same by the names of retry topics. A row of its own, so that no fact of one death is mixed with one of another.
SPRING_KAFKA_RETRY: Final = Convention(
    name="spring-kafka-retry",
    recognised_by=("kafka_original-topic", "kafka_exception-fqcn", "retry_topic-attempts"),
    fields={
        "error_type": (
            "kafka_exception-cause-fqcn",
            "kafka_exception-fqcn",
            "kafka_key-exception-fqcn",
        ),
        "error_text": ("kafka_exception-message", "kafka_key-exception-message"),
        "stack": ("kafka_exception-stacktrace", "kafka_key-exception-stacktrace"),
        "source": "kafka_original-topic",
        "partition": "kafka_original-partition",
        "offset": "kafka_original-offset",
        "consumer_group": ("kafka_original-consumer-group", "kafka_dlt-original-consumer-group"),
        "sent_at": ("retry_topic-original-timestamp", "kafka_original-timestamp"),
        "delivery_count": "retry_topic-attempts",
    },
    forms={
        "partition": "int32-be",
        "offset": "int64-be",
        "sent_at": "unix-ms-be",
        "delivery_count": "next-be",  # it counts the delivery that would have been the next
    },
    # `retry_topic-backoff-timestamp` is when the next try was due, not when the last one failed.
    adds=(
        "kafka_exception-*",
        "kafka_key-exception-*",
        "kafka_original-*",
        "kafka_dlt-original-consumer-group",  # the one name that retry topics have as it is
        "retry_topic-*",
        "kafka_deliveryAttempt",
    ),
)

SPRING_CLOUD_STREAM: Final = Convention(
    name="spring-cloud-stream",
    recognised_by=("x-original-topic", "x-exception-fqcn"),
    fields={
        "error_type": "x-exception-fqcn",
        "error_text": "x-exception-message",
        "stack": "x-exception-stacktrace",
        "source": "x-original-topic",
        "partition": "x-original-partition",
        "offset": "x-original-offset",
        "sent_at": "x-original-timestamp",
    },
    forms={"partition": "int32-be", "offset": "int64-be", "sent_at": "unix-ms-be"},
    adds=(
        "x-original-topic",
        "x-original-partition",
        "x-original-offset",
        "x-original-timestamp",
        "x-original-timestamp-type",
        "x-exception-fqcn",
        "x-exception-message",
        "x-exception-stacktrace",
    ),
)

SPRING_AMQP: Final = Convention(
    name="spring-amqp",
    recognised_by=("x-exception-message", "x-exception-stacktrace"),
    fields={
        "error_text": "x-exception-message",
        "stack": "x-exception-stacktrace",
        "exchange": "x-original-exchange",
        "routing_key": "x-original-routingKey",
    },
    adds=("x-exception-message", "x-exception-stacktrace", "x-original-exchange", "x-original-routingKey"),
)

# --- Kafka's own ------------------------------------------------------------------------------------------

# It adds its headers beside those of an earlier death and overwrites none, so the last of a name counts. `class.name`
# is the class that was running, a converter as a rule, and not the exception.
KAFKA_CONNECT: Final = Convention(
    name="kafka-connect",
    recognised_by=(
        "__connect.errors.topic",
        "__connect.errors.exception.class.name",
        "__connect.errors.stage",
    ),
    fields={
        "reason": "__connect.errors.stage",
        "error_type": "__connect.errors.exception.class.name",
        "error_text": "__connect.errors.exception.message",
        "stack": "__connect.errors.exception.stacktrace",
        "source": "__connect.errors.topic",
        "partition": "__connect.errors.partition",
        "offset": "__connect.errors.offset",
    },
    adds=("__connect.errors.*",),
)

KAFKA_STREAMS: Final = Convention(
    name="kafka-streams",
    recognised_by=("__streams.errors.exception", "__streams.errors.topic"),
    fields={
        "error_type": "__streams.errors.exception",
        "error_text": "__streams.errors.message",
        "stack": "__streams.errors.stacktrace",
        "source": "__streams.errors.topic",
        "partition": "__streams.errors.partition",
        "offset": "__streams.errors.offset",
    },
    forms={"error_type": "java-type"},  # it is the exception as Java prints it, text and all
    adds=("__streams.errors.*",),
)

KAFKA_SHARE_GROUP: Final = Convention(
    name="kafka-share-group",
    recognised_by=("__dlq.errors.topic", "__dlq.errors.group"),
    fields={
        "error_text": "__dlq.errors.message",
        "source": "__dlq.errors.topic",
        "partition": "__dlq.errors.partition",
        "offset": "__dlq.errors.offset",
        "consumer_group": "__dlq.errors.group",
        "delivery_count": "__dlq.errors.delivery.count",
    },
    adds=("__dlq.errors.*",),
)

# --- others -----------------------------------------------------------------------------------------------

# Old clients write the id under a name with a slip of the pen in it; newer ones write both.
PULSAR: Final = Convention(
    name="pulsar",
    recognised_by=("REAL_TOPIC", "RECONSUMETIMES", "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"),
    fields={
        "source": "REAL_TOPIC",
        "consumer_group": "REAL_SUBSCRIPTION",
        "retry_count": "RECONSUMETIMES",
        "message_id": ("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"),
    },
    adds=(
        "RECONSUMETIMES",
        "DELAY_TIME",
        "REAL_TOPIC",
        "REAL_SUBSCRIPTION",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "ORIGIN_MESSAGE_IDY_TIME",
    ),
)

# Its reason is the text of the exception, and its cause that of what caused it.
SMALLRYE: Final = Convention(
    name="smallrye",
    recognised_by=("dead-letter-reason", "dead-letter-exception-class-name"),
    fields={
        "error_type": ("dead-letter-exception-class-name", "dead-letter-cause-class-name"),
        "error_text": ("dead-letter-reason", "dead-letter-cause"),
        "source": "dead-letter-topic",
        "partition": "dead-letter-partition",
        "offset": "dead-letter-offset",
    },
    adds=(
        "dead-letter-reason",
        "dead-letter-cause",
        "dead-letter-exception-class-name",
        "dead-letter-cause-class-name",
        "dead-letter-topic",
        "dead-letter-partition",
        "dead-letter-offset",
    ),
)

# Its reason is the text of the error.
WATERMILL: Final = Convention(
    name="watermill",
    recognised_by=("reason_poisoned", "topic_poisoned"),
    fields={"error_text": "reason_poisoned", "source": "topic_poisoned"},
    adds=("reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned"),
)

KARAFKA: Final = Convention(
    name="karafka",
    recognised_by=("source_topic", "source_partition", "source_offset"),
    needs_all=True,
    fields={
        "source": "source_topic",
        "partition": "source_partition",
        "offset": "source_offset",
        "consumer_group": "source_consumer_group",
        "delivery_count": "source_attempts",
    },
    adds=(
        "source_topic",
        "source_partition",
        "source_offset",
        "source_consumer_group",
        "source_attempts",
    ),
)

# On RabbitMQ it rejects the message as it was delivered: what the body tells is the failure before the last one, and
# a task that was tried only once tells none.
DRAMATIQ: Final = Convention(
    name="dramatiq",
    recognised_by=("actor_name", "queue_name", "options", "message_id"),
    needs_all=True,
    in_body=True,
    fields={
        "error_type": "options.traceback",
        "error_text": "options.traceback",
        "stack": "options.traceback",
        "retry_count": "options.retries",
        "failed_at": "options.requeue_timestamp",
        "message_id": "message_id",
    },
    forms={"error_type": "python-type", "error_text": "python-text", "failed_at": "unix-ms"},
    queue_suffixes=(".XQ",),
)

CELERY: Final = Convention(
    name="celery",
    recognised_by=("task", "id", "root_id"),
    needs_all=True,
    fields={"message_id": "id", "retry_count": "retries"},
)

# Those that tell most stand first: of several that recognise a message, the first one is heard. Spring Cloud Stream
# stands before Spring AMQP, whose names are among its own.
SYSTEMS: Final[tuple[Convention, ...]] = (
    MASSTRANSIT,
    NSERVICEBUS,
    SPRING_KAFKA,
    SPRING_KAFKA_RETRY,
    SPRING_CLOUD_STREAM,
    SPRING_AMQP,
    KAFKA_CONNECT,
    KAFKA_STREAMS,
    KAFKA_SHARE_GROUP,
    REBUS,
    WOLVERINE,
    AZURE_SERVICE_BUS,
    SMALLRYE,
    PULSAR,
    WATERMILL,
    KARAFKA,
    DRAMATIQ,
    CELERY,
)
