"""How is what a source needs looked at, and made where it is missing?

`look` sees what is there, over the management API or, where there is none, by passive declares over AMQP alone;
`apply` makes what a plan found missing; `make_missing` is both in one, for a transport that starts.

The rule: look first, declare only what is missing, never touch what exists. Two that do this at once do no harm: a
declare of what has just come to be changes nothing, and if it came to be otherwise, it is left so. Over AMQP alone
bindings cannot be seen; they are made again, which changes nothing where they are there.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Final, TypeAlias

import msgspec

from redrive.amqp import methods as m
from redrive.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    SourceConflictError,
    SourceMissingError,
    TransportError,
)
from redrive.transports.plan import Applied, Item, Plan, raise_failed
from redrive.transports.rabbitmq import management
from redrive.transports.rabbitmq.channel import Channel
from redrive.transports.rabbitmq.delivery_counts import is_embedded
from redrive.transports.rabbitmq.found import Found, FoundExchange, FoundQueue, version_of
from redrive.transports.rabbitmq.link import Link, connect
from redrive.transports.rabbitmq.management import ManagementUrl
from redrive.transports.rabbitmq.plan import plan
from redrive.transports.rabbitmq.topology import Binding, Exchange, Queue, Topology
from redrive.transports.rabbitmq.url import BrokerUrl

OpenChannel: TypeAlias = Callable[[], AbstractAsyncContextManager[Channel]]

_PATIENCE: Final = timedelta(seconds=30)  # for one answer; a quorum queue of a busy cluster takes its time
_UNSEEN: Final = (
    "types, durability and arguments of existing queues and exchanges",
    "bindings",
    "policies",
    "permissions of the user",
    "alarms of the nodes",
)


@contextlib.asynccontextmanager
async def linked(url: BrokerUrl) -> AsyncIterator[Link]:
    """A connection to the first of the brokers that answers."""
    errors: list[TransportError] = []
    for endpoint in url.endpoints:
        try:
            link = await connect(url, endpoint, "redrive provision")
        except BrokerUnreachableError as error:
            errors.append(error)
            continue
        try:
            yield link
        finally:
            await link.close()
        return
    raise errors[-1]


# --- looking ----------------------------------------------------------------------------------------------


async def look(link: Link, topology: Topology, at: ManagementUrl, *, guessed: bool) -> Found:
    """What is there. Where the management API is only guessed, AMQP alone will do; `unseen` then says why."""
    about: dict[str, Any] = {"counts": link.counts, "is_embedded": is_embedded(link.server_properties)}
    try:
        found = await management.look(at, link.url.vhost, link.url.user)
        _check_same(found, at, link.cluster_name)
    except TransportError as error:
        if not guessed:
            raise
        found = await look_over_amqp(link.channel, topology)
        return msgspec.structs.replace(
            found,
            vhost=link.url.vhost,
            user=link.url.user,
            version=version_of(_text(link.server_properties.get("version"))),
            **about,
            unseen=(*found.unseen, f"because {error}"),
        )
    return await _with_depths(link.channel, msgspec.structs.replace(found, **about), topology)


async def _with_depths(open_channel: OpenChannel, found: Found, topology: Topology) -> Found:
    """How many dead letters wait is asked over AMQP: the management API's numbers are seconds old."""
    names = [
        queue.name for queue in topology.queues if queue.role == "dead letters" and queue.name in found.queues
    ]
    answers = await _ask_all(open_channel, [m.QueueDeclare(name, passive=True) for name in names])
    queues = dict(found.queues)
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, m.QueueDeclareOk):
            queues[name] = msgspec.structs.replace(
                queues[name], messages=answer.message_count, consumers=answer.consumer_count
            )
    return msgspec.structs.replace(found, queues=queues)


def _check_same(found: Found, at: ManagementUrl, cluster: str | None) -> None:
    """Where two brokers run on a host, the usual port belongs to one of them only."""
    if cluster and found.cluster and cluster != found.cluster:
        raise TransportError(
            f"the management API at {at.place} belongs to another cluster: '{found.cluster}', not "
            f"'{cluster}'; set the right URL with --management-url"
        )


async def look_over_amqp(open_channel: OpenChannel, topology: Topology) -> Found:
    """What exists; nothing more can be seen over AMQP.

    RabbitMQ 4.3 and later do not answer users that have no permission at all on a name. Such a user can neither make
    it nor does it use it, so it is taken for something that exists and cannot be seen.
    """
    questions: list[m.ExchangeDeclare | m.QueueDeclare] = [
        *(m.ExchangeDeclare(exchange.name, passive=True) for exchange in topology.exchanges),
        *(m.QueueDeclare(queue.name, passive=True) for queue in topology.queues),
    ]
    exchanges: dict[str, FoundExchange] = {}
    queues: dict[str, FoundQueue] = {}
    refused: list[str] = []
    for question, answer in zip(questions, await _ask_all(open_channel, questions), strict=True):
        if isinstance(answer, SourceMissingError):
            continue
        if isinstance(answer, BrokerRefusedError):
            refused.append(question.queue if isinstance(question, m.QueueDeclare) else question.exchange)
        if isinstance(question, m.ExchangeDeclare):
            exchanges[question.exchange] = FoundExchange(name=question.exchange)
        else:
            queues[question.queue] = _counted(question.queue, answer)
    hidden = f"whether {', '.join(refused)} exists: the user has no permission on it" if refused else ""
    return Found(
        exchanges=exchanges,
        queues=queues,
        unseen=(*_UNSEEN, hidden) if hidden else _UNSEEN,
        refused=frozenset(refused),
    )


def _counted(name: str, answer: object) -> FoundQueue:
    if isinstance(answer, m.QueueDeclareOk):
        return FoundQueue(name=name, messages=answer.message_count, consumers=answer.consumer_count)
    if isinstance(answer, BrokerRefusedError):
        return FoundQueue(name=name)
    return FoundQueue(name=name, exclusive=True)  # it is locked, so it exists


async def _ask_all(open_channel: OpenChannel, questions: Sequence[m.Method]) -> list[Any]:
    """The answer to each question, or the error for it; a new channel only where an error has cost the old one."""
    answers: list[Any] = []
    while len(answers) < len(questions):
        async with open_channel() as channel:
            for question in questions[len(answers) :]:
                try:
                    answers.append(await _call(channel, question))
                except (SourceMissingError, SourceConflictError, BrokerRefusedError) as error:
                    answers.append(error)
                    break
    return answers


async def _call(channel: Channel, question: m.Method) -> Any:
    try:
        async with asyncio.timeout(_PATIENCE.total_seconds()):
            return await channel.call(question)
    except TimeoutError as error:
        raise BrokerUnreachableError(
            f"the broker did not answer {question.wire_name()} within {_PATIENCE.total_seconds():g} s"
        ) from error


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


# --- making ---------------------------------------------------------------------------------------------------


async def apply(open_channel: OpenChannel, steps: Plan) -> AsyncIterator[Applied]:
    """Make what is missing, in order. It ends at the first failure: a work queue is not made without its rear."""
    for item in steps.to_make:
        unseen_binding = item.state == "unseen"
        try:
            async with open_channel() as channel:
                await _call(channel, _declaration(item))
        except SourceConflictError:
            yield Applied(item=item, result="there")
        except BrokerRefusedError as error:
            if not unseen_binding:
                yield Applied(item=item, result="failed", error=error)
                return
            # Most likely it is there, and only an operator may bind.
            yield Applied(item=item, result="there")
        except TransportError as error:
            yield Applied(item=item, result="failed", error=error)
            return
        else:
            yield Applied(item=item, result="there" if unseen_binding else "made")


async def make_missing(open_channel: OpenChannel, topology: Topology) -> tuple[Item, ...]:
    """Make what is missing and tell what that was; a `TransportError` says what cannot be made."""
    steps = plan(await look_over_amqp(open_channel, topology), topology)
    done = [step async for step in apply(open_channel, steps)]
    raise_failed(done)
    return tuple(step.item for step in done if step.result == "made")


def _declaration(item: Item) -> m.Method:
    match item.wanted:
        case Exchange() as exchange:
            return m.ExchangeDeclare(exchange.name, exchange.type, durable=exchange.durable)
        case Queue() as queue:
            return m.QueueDeclare(queue.name, durable=queue.durable, arguments=queue.arguments)
        case Binding() as binding:
            return m.QueueBind(binding.destination, binding.exchange, binding.routing_key)
        case other:
            raise AssertionError(f"RabbitMQ has no resource of kind '{other.kind}'")
