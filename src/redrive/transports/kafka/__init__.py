"""The transport that speaks to Kafka, by librdkafka (`confluent-kafka`).

From the record up: `url` says where the brokers are, `headers` and `journey` what a record tells, `partitions` and
`commits` what is done of a partition. `intake` is the member of a group and its thread, `holdings` are its partitions
and the `ledger` its commits; `receiver` hands out what they bring, `turns` keeps the order of keys. `publisher` writes,
`copies` says what, `settling` in which order; `topics` and `looking` ask questions, `faults` says what errors mean, and
`transport` is the seam.
"""

from redrive.transports.kafka.receiver import KafkaReceiver
from redrive.transports.kafka.transport import KafkaTransport

__all__ = ["KafkaReceiver", "KafkaTransport"]
