"""The transport that speaks AMQP 0-9-1, to RabbitMQ and to the embedded broker.

From the wire up: `url` says where the brokers are, `link` is one connection and `channel` one channel of it, `lifeline`
keeps a connection for good. `message` and `envelope` are what travels, `acks` what is told of it. `publisher`,
`subscription` and `receiver` do the work, and `transport` is the seam. Beside them stands what makes and checks the
queues: `names`, `topology`, `plan`, `provision`, `doctor`.
"""

from redrive.transports.rabbitmq.receiver import RabbitReceiver
from redrive.transports.rabbitmq.transport import RabbitTransport

__all__ = ["RabbitReceiver", "RabbitTransport"]
