"""Does what is written survive the loss of a broker, and may this user do what it has to?

The rules of `doctor` about copies, leaders and access lists. A dead letter counts as durable when all copies in sync
have it; these rules say how many that are.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.base import Source
from redrive.transports.finding import Finding, Severity
from redrive.transports.kafka.found import Access, Found, FoundTopic
from redrive.transports.kafka.mend import allow, more_copies, set_config
from redrive.transports.kafka.plan import in_sync_for
from redrive.transports.kafka.topology import COPIES, Role, Topic

# --- copies -------------------------------------------------------------------------------------------------


def copies(found: Found, _: Source, topics: Sequence[Topic]) -> Iterator[Finding]:
    """How many brokers may be lost before records are?"""
    for wanted in topics:
        topic = found.topics.get(wanted.name)
        if topic is not None and wanted.role != "verdicts":
            yield from _one_copy(found, topic)
            yield from _in_sync(found, topic, wanted.role)
            yield from _unclean(found, topic)
            yield from _no_leader(topic)


def _one_copy(found: Found, topic: FoundTopic) -> Iterator[Finding]:
    if topic.replication > 1:
        return
    several = found.brokers > 1
    yield Finding(
        rule="one-copy",
        severity="warning" if several else "info",
        subject=f"topic {topic.name}",
        text=f"'{topic.name}' has one replica" + ("" if several else ", because the cluster has one broker"),
        loss="If the disk of a broker fails, all records of its partitions are lost.",
        mend=more_copies(min(COPIES, found.brokers)) if several else "add brokers to the cluster",
    )


def _in_sync(found: Found, topic: FoundTopic, role: Role) -> Iterator[Finding]:
    least = topic.number("min.insync.replicas")
    if least is None:
        return
    should = str(in_sync_for(topic.replication))
    mend = set_config(found, topic.name, {"min.insync.replicas": should})
    stops = _stops(role)
    if least > topic.replication or least > topic.in_sync:
        yield Finding(
            rule="min-insync-high",
            severity="error",
            subject=f"topic {topic.name}",
            text=f"'{topic.name}' requires {least} in-sync replicas (min.insync.replicas), but "
            f"{topic.in_sync} of {topic.replication} are in sync",
            loss=stops,
            mend=mend if least > topic.replication else "start the brokers that hold its replicas",
        )
    elif least == topic.replication > 1:
        yield Finding(
            rule="min-insync-high",
            severity="warning",
            subject=f"topic {topic.name}",
            text=(f"'{topic.name}' requires all of its {least} replicas to be in sync (min.insync.replicas)"),
            loss=f"While one broker is down: {stops[0].lower()}{stops[1:]}",
            mend=mend,
        )
    elif least == 1 < topic.replication:
        yield Finding(
            rule="min-insync-low",
            severity="warning",
            subject=f"topic {topic.name}",
            text=f"a write to '{topic.name}' is confirmed by one of its {topic.replication} replicas "
            "(min.insync.replicas=1)",
            loss=(
                "While the other replicas are out of sync, new records are lost if the disk of one "
                "broker fails."
            ),
            mend=mend,
        )


def _stops(role: Role) -> str:
    match role:
        case "dead letters":
            return "No dead letter can be written: consuming stops at the first record that fails."
        case "retry":
            return "No messages are lost, but records cannot be retried with a delay."
        case _:
            return "Its producers cannot write with acks=all, and redrive cannot replay to it."


def _unclean(found: Found, topic: FoundTopic) -> Iterator[Finding]:
    if topic.replication > 1 and topic.setting("unclean.leader.election.enable") == "true":
        yield Finding(
            rule="unclean-election",
            severity="warning",
            subject=f"topic {topic.name}",
            text=(
                f"an out-of-sync replica of '{topic.name}' can become leader (unclean.leader.election.enable)"
            ),
            loss="Confirmed records that this replica does not have are lost.",
            mend=set_config(found, topic.name, {"unclean.leader.election.enable": "false"}),
        )


def _no_leader(topic: FoundTopic) -> Iterator[Finding]:
    if topic.leaderless:
        yield Finding(
            rule="no-leader",
            severity="warning",
            subject=f"topic {topic.name}",
            text=f"{topic.leaderless} of {topic.partitions} partitions of '{topic.name}' have no leader",
            loss=(
                "No messages are lost, but these partitions cannot be read or written until a broker "
                "with a replica is back."
            ),
            mend="start the brokers that hold its replicas",
        )


# --- access lists ---------------------------------------------------------------------------------------


class _Need(NamedTuple):
    access: Access
    kind: str  # topic, group, cluster
    name: str
    allowed: frozenset[str] | None  # None: not seen
    severity: Severity
    loss: str


def permission(found: Found, source: Source, topics: Sequence[Topic]) -> Iterator[Finding]:
    """May this user do what it has to? Kafka says so of each topic and group that it lets the user see."""
    for need in _needs(found, source, topics):
        if need.allowed is not None and need.access not in need.allowed:
            what = "the cluster" if need.kind == "cluster" else f"the {need.kind} '{need.name}'"
            yield Finding(
                rule="permission",
                severity=need.severity,
                subject=f"{need.kind} {need.name}".strip(),
                text=f"{_user(found)} may not {need.access.lower().replace('_', ' ')} {what}",
                loss=need.loss,
                mend=allow(found, need.access, need.kind, need.name),
            )


def _needs(found: Found, source: Source, topics: Sequence[Topic]) -> Iterator[_Need]:
    def of(access: Access, name: str, severity: Severity, loss: str) -> _Need:
        return _Need(access, "topic", name, _allowed(found, name), severity, loss)

    yield of("READ", source.name, "error", "No messages are lost, but nothing can be consumed.")
    yield of(
        "WRITE",
        source.dlq,
        "error",
        "No dead letter can be written: consuming stops at the first record that fails.",
    )
    yield of("READ", source.dlq, "warning", "No messages are lost, but dead letters cannot be collected.")
    yield of("WRITE", source.name, "warning", "No messages are lost, but dead letters cannot be replayed.")
    yield of("WRITE", VERDICTS, "warning", "No messages are lost, but redrives are only presumed resolved.")
    for topic in topics:
        if topic.role == "retry":
            stops = "No messages are lost, but records cannot be retried with a delay."
            yield of("WRITE", topic.name, "warning", stops)
            yield of("READ", topic.name, "warning", "Records in the retry topic are never delivered again.")
    for name in (source.name, source.dlq):
        if (group := found.groups.get(name)) is not None:
            loss = f"No messages are lost, but '{name}' cannot be consumed with this group."
            yield _Need("READ", "group", group.name, group.allowed, "error", loss)
    missing = [topic.name for topic in topics if topic.name not in found.topics]
    if missing and found.allowed is not None:
        yield _Need(
            "CREATE",
            "cluster",
            "",
            found.allowed,
            "warning",
            "No messages are lost, but redrive provision cannot create topics.",
        )


def _allowed(found: Found, name: str) -> frozenset[str] | None:
    """What may be done with a topic: nothing with one that is hidden; of one that is missing, nobody says."""
    topic = found.topics.get(name)
    if topic is not None:
        return topic.allowed
    return frozenset() if name in found.hidden else None


def _user(found: Found) -> str:
    return f"the user '{found.user}'" if found.user is not None else "a client without a login"
