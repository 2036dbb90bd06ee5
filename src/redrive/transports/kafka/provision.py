"""How is what a source needs on Kafka looked at, and made where it is missing?

`look` sees what is there; `apply` makes what a plan found missing; `make_missing` is both in one, for a transport that
starts. The rule: look first, create only what is missing, never touch what exists. Two that do this at once do no harm:
a topic that has just come to be is left as it came.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec
from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them without saying so
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from redrive.errors import BrokerRefusedError, BrokerUnreachableError, SourceConflictError, TransportError
from redrive.rules.durations import format_duration
from redrive.transports.kafka.faults import error_of, translated
from redrive.transports.kafka.found import Found, FoundGroup, FoundTopic
from redrive.transports.kafka.plan import plan
from redrive.transports.kafka.topics import Topics
from redrive.transports.kafka.topology import Topic, Topology
from redrive.transports.kafka.url import BrokerUrl
from redrive.transports.plan import Applied, Item, Plan, raise_failed

T = TypeVar("T")
_LOG: Final = logging.getLogger("redrive.transports.kafka")
_SPARE: Final = 5.0  # seconds
_MOMENTS: Final = (
    100  # what takes a moment, such as a coordinator that is just being chosen, is asked so often,
)
_MOMENT: Final = 0.05  # so many seconds apart
_CONFIG_UNSEEN: Final = "settings of the topics {}: the user needs DESCRIBE_CONFIGS on them"


class Admin:
    """A cluster, to be asked and told. Its answers are awaited."""

    def __init__(self, topics: Topics, url: BrokerUrl) -> None:
        self._patience = url.connect_timeout
        self.topics = topics
        self.client = topics.admin
        self.url = url

    @property
    def seconds(self) -> float:
        """How long the broker has for one answer."""
        return self._patience.total_seconds()

    async def answer(self, future: "Future[T]") -> T:
        """What is answered, or Kafka's own error."""
        try:
            # Longer than Kafka is given to answer: its error says more than ours.
            async with asyncio.timeout(self.seconds + _SPARE):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise BrokerUnreachableError(
                f"{self.url.place} did not answer within {format_duration(self._patience)}"
            ) from error


# --- looking ----------------------------------------------------------------------------------------------


async def look(admin: Admin, topology: Topology, groups: Mapping[str, str] | None = None) -> Found:
    """What is there of these topics; `groups` names the consumer group of a topic, where one is to be looked at."""
    await admin.topics.reach()  # says why not, if nobody answers
    found = await look_at_topics(admin, topology.names)
    configs, unseen = await _configs(admin, list(found.topics))
    topics = {
        name: msgspec.structs.replace(topic, **configs.get(name, {})) for name, topic in found.topics.items()
    }
    asked = {topic: group for topic, group in (groups or {}).items() if topic in topics}
    ends = {name: await _ends(admin, topics[name]) for name in asked}
    topics |= {name: msgspec.structs.replace(topics[name], records=_between(ends[name])) for name in asked}
    defaults, not_told = await _defaults(admin)
    return msgspec.structs.replace(
        found,
        topics=topics,
        groups={name: await _group(admin, group, topics[name], ends[name]) for name, group in asked.items()},
        **defaults,
        unseen=(*found.unseen, *unseen, *not_told),
    )


async def look_at_topics(admin: Admin, names: Sequence[str]) -> Found:
    """What exists, in how many partitions and copies, and what this user may do with it."""
    cluster = await _cluster(admin)
    topics: dict[str, FoundTopic] = {}
    hidden: set[str] = set()
    for name, answer in _describe(admin, names).items():
        try:
            described = await admin.answer(answer)
        except KafkaException as error:
            if _is_refusal(error):
                hidden.add(name)
            elif error_of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise translated(error_of(error), name) from error
        else:
            topics[name] = _topic(described)
    return Found(
        servers=",".join(admin.url.servers),
        user=admin.url.user,
        secured=admin.url.tls or admin.url.user is not None,
        brokers=len(cluster.nodes),
        topics=topics,
        hidden=frozenset(hidden),
        allowed=_operations(cluster),
        unseen=(f"whether these topics exist: {', '.join(sorted(hidden))}",) if hidden else (),
    )


async def _cluster(admin: Admin) -> Any:
    future = admin.client.describe_cluster(include_authorized_operations=True, request_timeout=admin.seconds)
    try:
        return await admin.answer(future)
    except KafkaException as error:
        raise translated(error_of(error)) from error


def _is_refusal(error: KafkaException) -> bool:
    """Whether an access list forbids it."""
    return error_of(error).code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )


def _describe(admin: Admin, names: Sequence[str]) -> "Mapping[str, Future[Any]]":
    if not names:
        return {}
    return admin.client.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=admin.seconds
    )


def _topic(described: Any) -> FoundTopic:
    parts = described.partitions
    return FoundTopic(
        name=described.name,
        partitions=len(parts),
        replication=min((len(part.replicas) for part in parts), default=0),
        in_sync=min((len(part.isr) for part in parts), default=0),
        leaderless=sum(part.leader is None for part in parts),
        allowed=_operations(described),
    )


def _operations(described: Any) -> frozenset[str] | None:
    told = described.authorized_operations
    return None if told is None else frozenset(operation.name for operation in told)


async def _configs(admin: Admin, names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """The settings of each topic that lets us see them, and what is to be said of the others."""
    if not names:
        return {}, ()
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = admin.client.describe_configs(resources, request_timeout=admin.seconds)
    seen: dict[str, dict[str, Any]] = {}
    for resource, answer in answers.items():
        try:
            entries = await admin.answer(answer)
        except KafkaException as error:
            if not _is_refusal(error):
                raise translated(error_of(error), resource.name) from error
        else:
            seen[resource.name] = {
                "config": {name: entry.value for name, entry in entries.items() if entry.value is not None},
                "own": frozenset(
                    name
                    for name, entry in entries.items()
                    if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
                ),
            }
    refused = sorted(set(names) - seen.keys())
    return seen, (_CONFIG_UNSEEN.format(", ".join(refused)),) if refused else ()


async def _defaults(admin: Admin) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a topic gets that somebody makes by writing to it, asked of one broker of the cluster."""
    cluster = await _cluster(admin)
    resource = ConfigResource(ResourceType.BROKER, str(cluster.nodes[0].id))
    answers = admin.client.describe_configs([resource], request_timeout=admin.seconds)
    try:
        entries = await admin.answer(answers[resource])
    except KafkaException as error:
        if _is_refusal(error):
            return {}, ("settings of the brokers: the user needs DESCRIBE_CONFIGS on the cluster",)
        raise translated(error_of(error)) from error
    values = {name: entry.value for name, entry in entries.items()}
    return {
        "auto_create": values.get("auto.create.topics.enable") == "true",
        "default_partitions": int(values.get("num.partitions") or 1),
        "default_copies": int(values.get("default.replication.factor") or 1),
    }, ()


# --- offsets and groups -------------------------------------------------------------------------------------

# Over in a moment, most likely: a coordinator that is just being chosen.
_PASSING: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
Ends = Mapping[int, tuple[int, int]]  # by partition: the first offset, and the one behind the last


async def _ends(admin: Admin, topic: FoundTopic) -> Ends | None:
    """Where its partitions begin and end; None if that cannot be seen."""
    try:
        return await admin.topics.ends(topic.name, range(topic.partitions))
    except TransportError as error:
        _LOG.debug("offset lookup failed topic=%s: %s", topic.name, error)
        return None


def _between(ends: Ends | None) -> int | None:
    return None if ends is None else sum(last - first for first, last in ends.values())


async def _group(admin: Admin, name: str, topic: FoundTopic, ends: Ends | None) -> FoundGroup:
    """How a group stands to a topic."""
    seen = FoundGroup(name=name, topic=topic.name)
    try:
        described = await _described(admin, name)
    except KafkaException as error:
        _LOG.debug("consumer group lookup failed group=%s: %s", name, error)
        return msgspec.structs.replace(seen, allowed=frozenset() if _is_refusal(error) else None)
    seen = msgspec.structs.replace(seen, members=len(described.members), allowed=_operations(described))
    try:
        committed = await admin.topics.committed(name, topic.name, range(topic.partitions))
    except TransportError as error:
        _LOG.debug("committed offset lookup failed group=%s: %s", name, error)
        return seen
    at = {number: place.offset for number, place in committed.items()}
    behind = None
    if ends is not None:
        behind = sum(last - max(at.get(number, first), first) for number, (first, last) in ends.items())
    return msgspec.structs.replace(seen, committed=bool(at), behind=behind)


async def _described(admin: Admin, name: str) -> Any:
    """A group that nobody has ever used is described as an empty one."""
    for turn in range(_MOMENTS):
        answers = admin.client.describe_consumer_groups(
            [name], include_authorized_operations=True, request_timeout=admin.seconds
        )
        try:
            return await admin.answer(answers[name])
        except KafkaException as error:
            if error_of(error).code() not in _PASSING or turn == _MOMENTS - 1:
                raise
        await asyncio.sleep(_MOMENT)
    return None


# --- making ---------------------------------------------------------------------------------------------------


async def apply(admin: Admin, steps: Plan) -> AsyncIterator[Applied]:
    """Make what is missing, in order. It ends at the first failure: a topic of work is not made without its rear."""
    for item in steps.to_make:
        try:
            await _create(admin, item)
        except SourceConflictError:
            yield Applied(item=item, result="there")
        except TransportError as error:
            yield Applied(item=item, result="failed", error=error)
            return
        else:
            yield Applied(item=item, result="made")


async def make_missing(admin: Admin, topology: Topology) -> tuple[Item, ...]:
    """Make what is missing and tell what that was; a `TransportError` says what cannot be made."""
    if not topology.topics:
        return ()
    found = await look_at_topics(admin, topology.names)
    likes = sorted({name for topic in topology.topics for name in topic.like if name in found.topics})
    configs, _ = await _configs(admin, likes)
    topics = {
        name: msgspec.structs.replace(each, **configs.get(name, {})) for name, each in found.topics.items()
    }
    steps = plan(msgspec.structs.replace(found, topics=topics), topology)
    done = [step async for step in apply(admin, steps)]
    raise_failed(done)
    return tuple(step.item for step in done if step.result == "made")


async def _create(admin: Admin, item: Item) -> None:
    topic = item.wanted
    if not isinstance(topic, Topic):
        raise TypeError(f"Kafka has no resource of kind '{topic.kind}'")
    new = NewTopic(
        topic.name,
        num_partitions=topic.partitions or -1,  # -1: as the broker has it by default
        replication_factor=topic.replication or -1,
        config=dict(topic.config),
    )
    answers = admin.client.create_topics(
        [new], operation_timeout=admin.seconds, request_timeout=admin.seconds
    )
    try:
        await admin.answer(answers[topic.name])
    except KafkaException as exception:
        error = error_of(exception)
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise SourceConflictError(error.str()) from exception
        if error.code() > 0 and not _is_refusal(exception):
            # The broker understood, and does not want to: too many copies, a name, a policy of the cluster.
            raise BrokerRefusedError(f"{error.str().rstrip('.')} ({error.name()})") from exception
        raise translated(error, topic.name) from exception
    await _known(admin, topic.name)


async def _known(admin: Admin, name: str) -> None:
    """A topic is made when the controller has it; a moment later the brokers know of it, too."""
    for _ in range(_MOMENTS):
        with contextlib.suppress(KafkaException):
            described = await admin.answer(_describe(admin, [name])[name])
            if all(part.leader is not None for part in described.partitions):
                return
        await asyncio.sleep(_MOMENT)
