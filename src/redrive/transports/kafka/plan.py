"""What has to be made on a Kafka, what is there already, and what is there but otherwise than wanted?

`plan` fills in what only the broker knows (how many partitions the source has, how many brokers there are), then
compares, topic by topic. The rule: a topic of work belongs to whoever writes to it. Where it exists, it is as wanted;
`doctor` says what it thinks of it. What lies beside it is ours, and is looked at closely.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from redrive.transports.kafka.found import Found, FoundTopic
from redrive.transports.kafka.mend import allow, more_copies, more_partitions, set_config
from redrive.transports.kafka.topology import COPIES, Topic, Topology
from redrive.transports.plan import Difference, Item, Plan

# What a letter tells beside the record: the error, its stack, where it came from.
HEADROOM: Final = 256 * 1024
DEFAULT_LARGEST: Final = 1_048_588  # what Kafka sets for max.message.bytes
COPIES_WORD: Final = "replication factor"


def plan(found: Found, wanted: Topology) -> Plan:
    """How everything that is wanted stands."""
    return Plan(
        about={"brokers": found.brokers},
        items=tuple(_item(found, filled_in(found, topic)) for topic in wanted.topics),
        unseen=found.unseen,
    )


def filled_in(found: Found, topic: Topic) -> Topic:
    """The topic with what only the broker knows."""
    copies = min(COPIES, found.brokers)
    config = {**topic.config, "min.insync.replicas": str(in_sync_for(copies))}
    likes = [found.topics[name] for name in topic.like if name in found.topics]
    if topic.like:
        config["max.message.bytes"] = str((_largest(likes) or DEFAULT_LARGEST) + HEADROOM)
    return msgspec.structs.replace(
        topic,
        partitions=topic.partitions or max((like.partitions for like in likes), default=None),
        replication=topic.replication or copies,
        config=config,
    )


def _largest(topics: Iterable[FoundTopic]) -> int:
    """The largest record that one of these topics takes; 0 where none is seen."""
    return max((topic.number("max.message.bytes") or 0 for topic in topics), default=0)


def in_sync_for(copies: int) -> int:
    """Copies that must have a record before it counts as written: one broker may be away, and none is alone with it."""
    return max(1, copies - 1)


def _item(found: Found, topic: Topic) -> Item:
    there = found.topics.get(topic.name)
    if there is None:
        if topic.name in found.hidden:
            return Item(wanted=topic, state="unseen", mend=allow(found, "DESCRIBE", "topic", topic.name))
        return Item(wanted=topic, state="missing")
    if topic.role == "work":
        return Item(wanted=topic, state="same")
    if there.config is None:
        return Item(wanted=topic, state="unseen")
    differences = tuple(topic_differences(found, there, topic))
    return Item(
        wanted=topic,
        state="differs" if differences else "same",
        differences=differences,
        mend=_mend(found, topic, differences) if differences else "",
    )


def topic_differences(found: Found, there: FoundTopic, topic: Topic) -> Iterator[Difference]:
    """What is otherwise about a topic that is not a source's own."""
    if topic.partitions is not None and there.partitions < topic.partitions:
        yield Difference("partitions", there.partitions, topic.partitions)
    copies = min(COPIES, found.brokers)
    if there.replication < copies:
        yield Difference(COPIES_WORD, there.replication, copies)
    for name, value in topic.config.items():
        if (is_ := there.setting(name)) is not None and not _will_do(found, there, topic, name, value):
            yield Difference(name, is_, value)


def _will_do(found: Found, there: FoundTopic, topic: Topic, name: str, value: str) -> bool:
    """Whether a setting is as wanted, or as good."""
    is_ = there.number(name)
    if name == "min.insync.replicas" and is_ is not None:
        # More than one copy is wanted only where there is more than one.
        return is_ >= min(int(value), in_sync_for(there.replication))
    if name == "max.message.bytes" and is_ is not None:
        return is_ >= _largest([found.topics[each] for each in topic.like if each in found.topics])
    if name == "cleanup.policy":
        return there.policies == frozenset({value})
    return there.setting(name) == value


def _mend(found: Found, topic: Topic, differences: tuple[Difference, ...]) -> str:
    settings: Mapping[str, str] = {
        each.what: str(each.wanted) for each in differences if each.what in topic.config
    }
    commands = [set_config(found, topic.name, settings)] if settings else []
    for each in differences:
        if each.what == "partitions" and isinstance(each.wanted, int):
            commands.append(more_partitions(found, topic.name, each.wanted))
        elif each.what == COPIES_WORD and isinstance(each.wanted, int):
            commands.append(more_copies(each.wanted))
    return "; ".join(commands)
