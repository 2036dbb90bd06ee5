"""The permissions that each role needs on RabbitMQ. `redrive doctor` and the documentation read this one table.

A permission is `configure`, `write` or `read`, given by a regular expression over the names of queues and exchanges of
a virtual host. The default exchange is called `amq.default` there. RabbitMQ 4.3 and later answer a passive declare only
to users that have some permission on the name; before, everybody may ask. Nothing here asks a broker.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from redrive.transports.base import Source
from redrive.transports.finding import Severity
from redrive.transports.rabbitmq.found import Access

Role: TypeAlias = Literal["consume", "collect", "replay"]
Resource: TypeAlias = Literal[
    "the work queue", "the dead-letter queue", "the dead-letter exchange", "the default exchange"
]


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """One permission, who needs it, and what happens without it."""

    access: Access
    resource: Resource
    roles: tuple[Role, ...]
    severity: Severity
    without: str  # as the `loss` of a finding
    why: str  # for the documentation

    def name(self, source: Source) -> str:
        """The name of the resource for this source; empty for the default exchange."""
        return {
            "the work queue": source.name,
            "the dead-letter queue": source.dlq,
            "the dead-letter exchange": source.dlx,
            "the default exchange": "",
        }[self.resource]

    def is_needed(self, source: Source) -> bool:
        """Whether this source needs it: with `dead_letter="native"` the broker itself writes the dead letters."""
        return self.resource != "the dead-letter exchange" or source.dead_letter == "publish"


RIGHTS: Final = (
    Right(
        access="read",
        resource="the work queue",
        roles=("consume",),
        severity="error",
        without="No messages are lost, but nothing can be consumed.",
        why="consume messages",
    ),
    Right(
        access="write",
        resource="the default exchange",
        roles=("consume", "collect", "replay"),
        severity="warning",
        without=(
            "No messages are lost, but deliveries cannot be requeued with a delay, and letters "
            "cannot be redriven to their queue."
        ),
        why="requeue with a delay, count deliveries of classic queues, redrive a letter to its queue",
    ),
    Right(
        access="read",
        resource="the dead-letter queue",
        roles=("collect",),
        severity="warning",
        without="No messages are lost, but dead letters cannot be collected.",
        why="collect dead letters",
    ),
    Right(
        access="write",
        resource="the dead-letter exchange",
        roles=("consume",),
        severity="error",
        without=(
            "No messages are lost, but no dead letter can be written: each message that fails "
            "stays unacknowledged and uses up prefetch."
        ),
        why='write dead letters; not with `dead_letter = "native"`',
    ),
)
