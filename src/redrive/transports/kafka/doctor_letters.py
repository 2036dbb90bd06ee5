"""Do dead letters stay where they lie?

The rules of `doctor` about the topics that only redrive writes to: that of dead letters, and those in which records
wait for another try. What lies there is the only one left of its kind, so nothing may delete it by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from redrive.rules import format_duration
from redrive.transports.base import Source
from redrive.transports.finding import PROVISION, Finding
from redrive.transports.kafka.found import Found, FoundTopic
from redrive.transports.kafka.mend import more_partitions, set_config
from redrive.transports.kafka.plan import HEADROOM
from redrive.transports.kafka.topology import FOR_EVER, Topic

# --- dead letters -------------------------------------------------------------------------------------------


def dead_letter_topic(found: Found, source: Source, _: Sequence[Topic]) -> Iterator[Finding]:
    """Is there a topic for dead letters, and does it keep them?"""
    dlq = found.topics.get(source.dlq)
    if dlq is None:
        if source.dlq not in found.hidden:
            yield _missing(found, source)
        return
    yield from _expires(found, dlq)
    yield from _limited(found, dlq)
    yield from _compacted(found, dlq)
    if (topic := found.topics.get(source.name)) is not None:
        yield from _too_small(found, dlq, topic)
        yield from _fewer(found, dlq, topic)
    yield from _waiting(found, dlq)


def _missing(found: Found, source: Source) -> Finding:
    return Finding(
        rule="dlq-missing",
        severity="error",
        subject=f"topic {source.dlq}",
        text=f"the dead-letter topic '{source.dlq}' of '{source.name}' does not exist",
        loss=(
            (
                "The first dead letter creates it with the broker defaults, so dead letters are deleted "
                "when their retention ends."
            )
            if found.auto_create
            else "No dead letter can be written: consuming stops at the first record that fails."
        ),
        mend=PROVISION,
    )


def _expires(found: Found, dlq: FoundTopic) -> Iterator[Finding]:
    if (after := dlq.expires_after) is None:
        return
    group = found.groups.get(dlq.name)
    collected = group is not None and group.committed
    yield Finding(
        rule="dlq-expires",
        severity="warning" if collected else "error",
        subject=f"topic {dlq.name}",
        text=f"records in the dead-letter topic '{dlq.name}' are deleted after "
        f"{milliseconds(after)}{'' if 'retention.ms' in dlq.own else ' (broker default)'}",
        loss=(
            f"A dead letter is lost if it is not collected within {milliseconds(after)} after it was written."
        ),
        mend=set_config(found, dlq.name, {"retention.ms": FOR_EVER}),
    )


def _limited(found: Found, dlq: FoundTopic) -> Iterator[Finding]:
    if dlq.limited_to is None:
        return
    yield Finding(
        rule="dlq-limited",
        severity="error",
        subject=f"topic {dlq.name}",
        text=f"a partition of the dead-letter topic '{dlq.name}' keeps at most {dlq.limited_to} bytes",
        loss="When it is full, the oldest dead letters are deleted.",
        mend=set_config(found, dlq.name, {"retention.bytes": FOR_EVER}),
    )


def _compacted(found: Found, dlq: FoundTopic) -> Iterator[Finding]:
    if "compact" not in dlq.policies:
        return
    # With compaction gone the retention counts, which until then did not: both in one command.
    settings: Mapping[str, str] = {
        "cleanup.policy": "delete",
        "retention.ms": FOR_EVER,
        "retention.bytes": FOR_EVER,
    }
    yield Finding(
        rule="dlq-compacted",
        severity="error",
        subject=f"topic {dlq.name}",
        text=(
            f"the dead-letter topic '{dlq.name}' is compacted "
            f"(cleanup.policy={dlq.setting('cleanup.policy')})"
        ),
        loss=(
            "Only the last dead letter with each key is kept, and dead letters without a key are rejected."
        ),
        mend=set_config(found, dlq.name, settings),
    )


def _too_small(found: Found, dlq: FoundTopic, topic: FoundTopic) -> Iterator[Finding]:
    takes, comes = dlq.number("max.message.bytes"), topic.number("max.message.bytes")
    if takes is None or comes is None or takes >= comes:
        return
    yield Finding(
        rule="dlq-too-small",
        severity="warning",
        subject=f"topic {dlq.name}",
        text=(
            f"'{topic.name}' accepts records of up to {comes} bytes, the dead-letter topic "
            f"'{dlq.name}' only {takes} bytes"
        ),
        loss="The dead letter of a larger record contains only a reference to it: unless it is collected "
        f"before, the value is lost {_gone(topic)}.",
        mend=set_config(found, dlq.name, {"max.message.bytes": str(comes + HEADROOM)}),
    )


def _gone(topic: FoundTopic) -> str:
    if "compact" in topic.policies:
        return f"when '{topic.name}' gets another record with its key"
    after = topic.expires_after
    return f"when '{topic.name}' deletes it" + ("" if after is None else f", after {milliseconds(after)}")


def _fewer(found: Found, dlq: FoundTopic, topic: FoundTopic) -> Iterator[Finding]:
    if dlq.partitions >= topic.partitions:
        return
    yield Finding(
        rule="dlq-fewer",
        severity="info",
        subject=f"topic {dlq.name}",
        text=f"'{dlq.name}' has {dlq.partitions} of the {topic.partitions} partitions that '{topic.name}' has",
        loss=(
            "No messages are lost, but many dead letters at once are written and collected more "
            "slowly than records arrive."
        ),
        mend=more_partitions(found, dlq.name, topic.partitions),
    )


def _waiting(found: Found, dlq: FoundTopic) -> Iterator[Finding]:
    group = found.groups.get(dlq.name)
    waiting = group.behind if group is not None and group.behind is not None else dlq.records
    if not waiting or (group is not None and group.members):
        return
    yield Finding(
        rule="dlq-waiting",
        severity="info",
        subject=f"topic {dlq.name}",
        text=(
            f"{waiting} dead letter{'s are' if waiting > 1 else ' is'} waiting in '{dlq.name}', and no "
            "collector is running"
        ),
        loss="No messages are lost; the dead letters stay in the topic.",
        mend=f"start redrive serve to collect '{dlq.name}'",
    )


# --- records that wait for another try --------------------------------------------------------------------


def retry_topics(found: Found, source: Source, topics: Sequence[Topic]) -> Iterator[Finding]:
    """Are the topics there in which records wait, and do they keep them?"""
    names = [topic.name for topic in topics if topic.role == "retry"]
    missing = [name for name in names if name not in found.topics and name not in found.hidden]
    if missing:
        yield Finding(
            rule="retry-missing",
            severity="warning",
            subject=f"topic {source.name}",
            text=f"{len(missing)} of {len(names)} retry topics are missing: {', '.join(missing[:3])}"
            f"{' …' if len(missing) > 3 else ''}",
            loss="No messages are lost, but records cannot be retried with a delay.",
            mend=PROVISION,
        )
    for topic in (found.topics[name] for name in names if name in found.topics):
        if topic.expires_after is not None or topic.limited_to is not None or "compact" in topic.policies:
            yield Finding(
                rule="retry-expires",
                severity="error",
                subject=f"topic {topic.name}",
                text=f"the retry topic '{topic.name}' deletes records by age or size",
                loss="A record that waits longer, because no consumer is running, is lost.",
                mend=set_config(
                    found,
                    topic.name,
                    {"cleanup.policy": "delete", "retention.ms": FOR_EVER, "retention.bytes": FOR_EVER},
                ),
            )


def milliseconds(number: int) -> str:
    """A number of milliseconds as a duration."""
    try:
        return format_duration(timedelta(milliseconds=number))
    except OverflowError:
        return f"{number} ms"
