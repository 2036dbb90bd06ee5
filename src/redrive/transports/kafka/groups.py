"""What has a consumer group taken from a topic, and does anything consume in its name?

A group has passed a record when it has committed a higher offset. So everything that was sent before a time has been
taken once the commits have reached the ends that the partitions had at that time. `taken_until` remembers times and
ends, the time read first, and answers with the latest one that the commits have reached. Timestamps of records are not
used, because producers choose them. The ends are those of all records: a commit cannot pass an open transaction.

A record that waits for a retry may be in a retry topic of the source. It was copied there before it was committed in
the topic it came from, and may go on to another one in the same way. So nothing waits there only if all of them were
passed and none has grown while the commits were read.

A partition that has had records, but of which the group has committed nothing, was not passed, even if retention has
removed all of them: they were not taken.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias

from confluent_kafka import TopicPartition

from redrive.clock import Clock
from redrive.transports.base import Source
from redrive.transports.kafka.names import retry_topics
from redrive.transports.kafka.topics import Topics, Where
from redrive.transports.kafka.url import default_group

Consumer: TypeAlias = tuple[str, str]  # source and group
_Commits: TypeAlias = Mapping[Where, TopicPartition]

_MAX_SNAPSHOTS: Final = 32  # of one consumer
_MAX_CONSUMERS: Final = 256
_REACHED_FOR: Final = timedelta(seconds=5)
_MAX_ANSWERS: Final = 4096
_CONCURRENT: Final = 8


class Snapshot(NamedTuple):
    """Everything that was sent before `at` is below these offsets."""

    at: timedelta  # by the monotonic clock
    ends: Mapping[Where, int]


class Progress:
    """How far one consumer has come: a few snapshots that its commits have not reached, and the last one they have."""

    def __init__(self) -> None:
        self._snapshots: list[Snapshot] = []

    def taken_until(self, snapshot: Snapshot, commits: _Commits) -> timedelta | None:
        """The time of the latest snapshot that these commits have reached, of those before and this one."""
        known = [each for each in self._snapshots if each.ends != snapshot.ends]
        known.append(snapshot)
        taken = max((each.at for each in known if passed(each.ends, commits)), default=None)
        if taken is not None:
            known = [each for each in known if each.at >= taken]
        if len(known) > _MAX_SNAPSHOTS:
            del known[1:-1:2]  # the first is kept: a group that is far behind gets there first
        self._snapshots = known
        return taken


def passed(ends: Mapping[Where, int], commits: _Commits) -> bool:
    """Whether a group has passed all records below these offsets."""
    return all(
        end == 0 or ((commit := commits.get(where)) is not None and commit.offset >= end)
        for where, end in ends.items()
    )


class _Answer(NamedTuple):
    """Why a consumer is unreachable; None if it is not."""

    until: timedelta  # asked again from then on
    reason: str | None


class Groups:
    """Questions about consumer groups."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._progress: dict[Consumer, Progress] = {}  # the one that was asked for last stands last
        self._answers: dict[Consumer, _Answer] = {}

    # --- taken ---------------------------------------------------------------------------------------------------

    async def taken_until(self, source: str, group: str) -> timedelta | None:
        """The moment before which everything sent to the topic was passed by the group; None: that cannot be said."""
        at = self._clock.monotonic()
        self._topics.forget(source)
        numbers = {source: await self._topics.partitions(source)}
        ends = await self._topics.last_offsets(numbers)
        named, shared = _retry_topics(source, group)
        retries = await self._topics.existing({*named, *shared})
        waiting = await self._topics.last_offsets(retries)
        commits = await self._topics.committed_in(group, numbers | retries)
        taken = self._progress_of((source, group)).taken_until(Snapshot(at, ends), commits)
        if taken is None:
            return None
        # Those without the name of a group may belong to another group. A group commits wherever it receives.
        uses_shared = group == default_group(source) or any(topic in shared for topic, _ in commits)
        own = {name: found for name, found in retries.items() if name in named or uses_shared}
        waiting = {where: end for where, end in waiting.items() if where[0] in own}
        if not passed(waiting, commits) or await self._topics.last_offsets(own) != waiting:
            return None
        return taken

    def _progress_of(self, consumer: Consumer) -> Progress:
        found = self._progress.pop(consumer) if consumer in self._progress else Progress()
        self._progress[consumer] = found
        if len(self._progress) > _MAX_CONSUMERS:
            del self._progress[next(iter(self._progress))]
        return found

    # --- reached -------------------------------------------------------------------------------------------------

    async def unreachable(self, consumers: Sequence[Consumer]) -> dict[Consumer, str]:
        """Those whose group has neither members nor commits, each with the reason."""
        now = self._clock.monotonic()
        asked = {consumer for consumer in consumers if consumer[1]}
        known = {each: self._answers[each] for each in asked & self._answers.keys()}
        known = {each: answer for each, answer in known.items() if answer.until > now}
        looked = await self._look_for(asked - known.keys())
        fresh = {each: _Answer(now + _REACHED_FOR, reason) for each, reason in looked.items()}
        if len(self._answers) > _MAX_ANSWERS:
            self._answers.clear()
        self._answers |= fresh
        found = known | fresh
        return {each: answer.reason for each, answer in found.items() if answer.reason is not None}

    async def _look_for(self, consumers: Iterable[Consumer]) -> dict[Consumer, str | None]:
        """Why each of these is unreachable; None if it is not."""
        found: dict[Consumer, str | None] = dict.fromkeys(consumers)
        if not found:
            return found
        active = await self._topics.active_groups()
        sources: dict[str, list[str]] = {}
        for source, group in found:
            if group not in active:
                sources.setdefault(group, []).append(source)
        limit = asyncio.Semaphore(_CONCURRENT)

        async def look(group: str) -> None:
            async with limit:
                topics = await self._topics.existing(sources[group])
                commits = await self._topics.committed_in(group, topics) if topics else {}
            committed = {topic for topic, _ in commits}
            for source in sources[group]:
                if source not in topics:
                    found[source, group] = f"topic '{source}' does not exist"
                elif source not in committed:
                    found[source, group] = (
                        f"consumer group '{group}' has no members and no committed offsets for topic '{source}'"
                    )

        await asyncio.gather(*map(look, sources))
        return found


def _retry_topics(source: str, group: str) -> tuple[frozenset[str], frozenset[str]]:
    """Retry topics of the source with the name of the group, and those without one."""
    return frozenset(retry_topics(Source(name=source, consumer_group=group))), frozenset(
        retry_topics(Source(name=source))
    )
