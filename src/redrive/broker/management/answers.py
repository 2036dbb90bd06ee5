"""What does the API answer?

An `Answer`, or a `RefusalError` with a body of the form `{"error": …, "reason": …}` that RabbitMQ's clients know.
Reasons are texts, or lists where RabbitMQ's are terms, such as `["not_boolean", "maybe"]`.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from redrive.errors import RedriveError

Json = dict[str, Any]
_ONE_LINE: Final = 80  # as wide as Erlang prints a list before it breaks it


class Answer(NamedTuple):
    """A status and a value to be written as JSON; text is sent as it is, None is nothing."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = {}


CREATED: Final = Answer(201)
NO_CONTENT: Final = Answer(204)


class RefusalError(RedriveError):
    """The request cannot be done; the client is told why."""

    def __init__(self, status: int, error: str, reason: object) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason

    @property
    def answer(self) -> Answer:
        """What the client gets."""
        return Answer(self.status, {"error": self.error, "reason": self.reason})


def no_such_object() -> RefusalError:
    """There is nothing there."""
    return RefusalError(404, "Object Not Found", "Not Found")


def not_found(reason: str) -> RefusalError:
    """Something that the request names is not there."""
    return RefusalError(404, "not_found", reason)


def bad_request(reason: object) -> RefusalError:
    """The request makes no sense."""
    return RefusalError(400, "bad_request", reason)


def not_authorised(reason: str) -> RefusalError:
    """The user may not do that. RabbitMQ says 401 here, not 403."""
    return RefusalError(401, "not_authorised", reason)


def keys_missing(keys: list[str]) -> RefusalError:
    """The body lacks keys; the reason is the list that Erlang would print."""
    terms = [f"{{key_missing,{key}}}" for key in keys]
    line = f"[{','.join(terms)}]"
    return bad_request(line if len(line) <= _ONE_LINE else f"[{(',' + chr(10) + ' ').join(terms)}]")


def put(*, existed: bool) -> Answer:
    """The answer to a PUT: the thing is new, or was there."""
    return NO_CONTENT if existed else CREATED
