"""Refuse what the broker does not do, in words that say so.

Storing these settings without acting on them would be worse: a topic permission that is accepted and ignored leaves
open what its author believes to be closed.
"""

from redrive.broker.management.answers import Answer, bad_request, no_such_object
from redrive.broker.management.ask import Ask


def empty_list(ask: Ask) -> Answer:
    """List what cannot exist here: nothing."""
    if "vhost" in ask.params:
        ask.vhost()
    return Answer(body=[])


def no_topic_permissions(ask: Ask) -> Answer:
    """List the topic permissions: none."""
    ask.need("administrator")
    if "user" in ask.params and ask.broker.users.get(ask.params["user"]) is None:
        raise no_such_object()
    return empty_list(ask)


def nothing_there(ask: Ask) -> Answer:
    """404: none of these can exist."""
    ask.need("management")
    ask.vhost()
    raise no_such_object()


def topic_permissions(ask: Ask) -> Answer:
    """400: topic permissions cannot be set."""
    ask.need("administrator")
    ask.vhost()
    raise bad_request("topic permissions are not supported by this broker; use permissions on the exchange")
