"""What is there on a Kafka?

`Found` is what was seen of the topics that matter, of the cluster and of the consumer groups. The rule: what could not
be seen is None, never a guess, and `unseen` says so in words.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

# What an access list grants. Kafka tells a client which of these it has, topic by topic.
Access: TypeAlias = Literal["READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"]
NEVER: Final = -1  # retention.ms and retention.bytes: for ever, and however much


class FoundTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that exists."""

    name: str
    partitions: int
    replication: int  # of the partition that has the fewest copies
    in_sync: int  # likewise: copies that are up to date
    leaderless: int = 0  # partitions that nobody serves at the moment
    config: Mapping[str, str] | None = None  # in force, defaults included; None: not seen
    own: frozenset[str] = frozenset()  # settings that were made for this topic
    allowed: frozenset[str] | None = None  # what this user may do with it
    records: int | None = None  # between the first and the last offset; some may be gone

    def setting(self, name: str) -> str | None:
        """What is in force."""
        return None if self.config is None else self.config.get(name)

    def number(self, name: str) -> int | None:
        """The same, where it is a number."""
        try:
            return int(self.setting(name) or "")
        except ValueError:
            return None

    @property
    def policies(self) -> frozenset[str]:
        """`delete`, `compact` or both: what happens to old records. Empty: not seen."""
        return frozenset(
            filter(None, (word.strip() for word in (self.setting("cleanup.policy") or "").split(",")))
        )

    @property
    def expires_after(self) -> int | None:
        """Milliseconds after which a record is deleted; None: never, or not seen."""
        after = self.number("retention.ms")
        return after if "delete" in self.policies and after is not None and after != NEVER else None

    @property
    def limited_to(self) -> int | None:
        """Bytes of a partition above which its oldest records are deleted; None: no limit, or not seen."""
        size = self.number("retention.bytes")
        return size if "delete" in self.policies and size is not None and size != NEVER else None


class FoundGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group, as it stands to one topic."""

    name: str
    topic: str
    members: int | None = None  # None: not seen
    committed: bool = False  # whether it has ever got on with this topic
    behind: int | None = None  # records that it has not settled; None: not seen
    allowed: frozenset[str] | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a cluster. None: it could not be seen."""

    servers: str = ""  # what a command is given as --bootstrap-server
    user: str | None = None  # None: nobody asked who we are
    secured: bool = False  # whether a command needs a login or a certificate, too
    brokers: int = 1
    topics: Mapping[str, FoundTopic] = {}
    hidden: frozenset[str] = frozenset()  # topics that may exist: this user is not told
    groups: Mapping[str, FoundGroup] = {}  # by topic
    allowed: frozenset[str] | None = None  # what this user may do with the cluster
    auto_create: bool | None = None  # whether a topic is made by whoever first writes to it
    default_partitions: int | None = None
    default_copies: int | None = None
    unseen: tuple[str, ...] = ()
