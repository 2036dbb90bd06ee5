"""Which topics does a source need on Kafka?

For each source: its topic, the topic its dead letters go to, the topics in which records wait for another try where the
URL asks for them (`retry=topics`), and the one topic of verdicts. The rule: no dead letter is lost by the topic it lies
in. Kafka's own defaults are for streams, and delete after seven days. A topic of dead letters keeps everything, in as
many copies as the cluster can, and takes records that are larger than the source's by what a letter tells.

Everything here is a value; nothing is asked of a broker. `plan` compares it with what is there, and fills in what only
the broker knows.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Final, Literal, TypeAlias

import msgspec

from redrive.errors import SettingsError
from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.base import Source
from redrive.transports.plan import Thing

Role: TypeAlias = Literal["work", "dead letters", "retry", "verdicts"]
Config: TypeAlias = Mapping[str, str]

COPIES: Final = 3  # replicas that a topic gets, where there are as many brokers
FOR_EVER: Final = "-1"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

# What keeps every dead letter, whatever the defaults of the broker are.
KEEPS_ALL: Final[Config] = {
    "cleanup.policy": "delete",  # compact keeps one record of each key, and refuses those without one
    "retention.ms": FOR_EVER,
    "retention.bytes": FOR_EVER,
    "unclean.leader.election.enable": "false",
}


class Topic(Thing, frozen=True, kw_only=True):
    """A topic that is wanted, and what for. What is None is the broker's to choose, or the plan's to fill in."""

    kind: ClassVar = "topic"
    name: str
    role: Role
    like: tuple[str, ...] = ()  # it has as many partitions as any of these, and takes as large records
    partitions: int | None = None
    replication: int | None = None
    config: Config = msgspec.field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name."""
        return self.name

    @property
    def details(self) -> tuple[str, ...]:
        """How many partitions and copies, and its settings."""
        return (
            f"partitions {self.partitions or '(broker default)'}",
            f"replicas {self.replication or '(broker default)'}",
            *(f"{name}={value}" for name, value in self.config.items()),
        )


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wanted, in the order in which it can be made."""

    topics: tuple[Topic, ...] = ()

    @property
    def names(self) -> list[str]:
        """What the topics are called."""
        return [topic.name for topic in self.topics]


def wanted(sources: Sequence[Source], retries: Mapping[str, Sequence[str]] | None = None) -> Topology:
    """What these sources need; `retries` names the retry topics of a source, where it has any."""
    for source in sources:
        _check(source)
    topics = [topic for source in sources for topic in _topics(source, (retries or {}).get(source.name, ()))]
    if sources:
        topics.append(Topic(name=VERDICTS, role="verdicts", partitions=1))
    # Last: where there is a topic of work, there is also what catches its dead letters.
    topics += [Topic(name=source.name, role="work") for source in sources]
    return Topology(topics=_without_repeats(topics))


def plain_topics(names: Collection[str]) -> Topology:
    """Topics that belong to no source."""
    for name in names:
        if not is_name(name):
            raise SettingsError(f"'{name[:60]}' is not a valid topic name: it must have {_ALLOWED}")
    return Topology(topics=tuple(Topic(name=name, role="work") for name in names))


def is_name(name: str) -> bool:
    """Whether Kafka lets a topic be called so."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


_ALLOWED: Final = "1 to 249 characters: a-z, A-Z, 0-9, dot, underscore and hyphen"


def _topics(source: Source, retries: Iterable[str]) -> Iterable[Topic]:
    yield Topic(name=source.dlq, role="dead letters", like=(source.name,), config=KEEPS_ALL)
    for name in retries:
        # A record that waits there is the only one left of it: it is kept as a dead letter is.
        yield Topic(name=name, role="retry", like=(source.name,), config=KEEPS_ALL)


# --- what cannot be served ------------------------------------------------------------------------------


def _check(source: Source) -> None:
    for what, name in {"its name": source.name, "dead_letter_queue": source.dlq}.items():
        if not is_name(name):
            raise SettingsError(
                f"source '{source.name[:60]}': {what} '{name[:60]}' is not a valid topic name: it must "
                f"have {_ALLOWED}"
            )
    if source.dlq == source.name:
        raise SettingsError(
            f"source '{source.name}': its dead letters would return to it; set another dead_letter_queue"
        )
    if source.dead_letter == "native":
        raise SettingsError(
            f"source '{source.name}': Kafka has no native dead-lettering; set dead_letter to 'publish'"
        )


def _without_repeats(topics: Iterable[Topic]) -> tuple[Topic, ...]:
    """Each topic once; one that several sources share is like all of them."""
    found: dict[str, Topic] = {}
    for topic in topics:
        there = found.setdefault(topic.name, topic)
        if there.role != topic.role:
            raise SettingsError(
                f"the topic '{topic.name}' would be used for both {there.role} and {topic.role}; rename "
                "one of them"
            )
        shared = tuple(dict.fromkeys((*there.like, *topic.like)))
        found[topic.name] = msgspec.structs.replace(there, like=shared)
    return tuple(found.values())
