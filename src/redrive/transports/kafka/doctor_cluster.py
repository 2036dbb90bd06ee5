"""Does what is written survive the loss of a broker, and may this user do what it has to?

The rules of `doctor` about copies, leaders and access lists. A dead letter counts as durable when all copies in sync
have it (A6); these rules say how many that are.
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
        text=f"'{topic.name}' has one copy of each record"
        + ("" if several else ", because the cluster has one broker"),
        loss="All of its records on a broker are lost with the disk of that broker.",
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
            text=f"'{topic.name}' wants {least} copies in sync (min.insync.replicas), and has {topic.in_sync} of "
            f"{topic.replication}",
            loss=stops,
            mend=mend if least > topic.replication else "bring the brokers back that hold its copies",
        )
    elif least == topic.replication > 1:
        yield Finding(
            rule="min-insync-high",
            severity="warning",
            subject=f"topic {topic.name}",
            text=f"'{topic.name}' wants all of its {least} copies in sync (min.insync.replicas)",
            loss=f"With one broker away: {stops[0].lower()}{stops[1:]}",
            mend=mend,
        )
    elif least == 1 < topic.replication:
        yield Finding(
            rule="min-insync-low",
            severity="warning",
            subject=f"topic {topic.name}",
            text=f"a record counts as written to '{topic.name}' when one of its {topic.replication} copies has it "
            "(min.insync.replicas=1)",
            loss="While the other brokers are behind or away, what is written is lost with the disk of one.",
            mend=mend,
        )


def _stops(role: Role) -> str:
    match role:
        case "dead letters":
            return "No dead letter can be written: consuming stands still at the first record that fails."
        case "retry":
            return "Nothing, but a record cannot be given back for later."
        case _:
            return "Its producers cannot write with acks=all, and redrive cannot replay to it."


def _unclean(found: Found, topic: FoundTopic) -> Iterator[Finding]:
    if topic.replication > 1 and topic.setting("unclean.leader.election.enable") == "true":
        yield Finding(
            rule="unclean-election",
            severity="warning",
            subject=f"topic {topic.name}",
            text=f"a copy of '{topic.name}' that is behind may become its leader (unclean.leader.election.enable)",
            loss="Records that were confirmed, and are not in that copy, are gone then.",
            mend=set_config(found, topic.name, {"unclean.leader.election.enable": "false"}),
        )


def _no_leader(topic: FoundTopic) -> Iterator[Finding]:
    if topic.leaderless:
        yield Finding(
            rule="no-leader",
            severity="warning",
            subject=f"topic {topic.name}",
            text=f"{topic.leaderless} of {topic.partitions} partitions of '{topic.name}' have no leader",
            loss="Nothing, but nobody can read or write them until a broker with a copy comes back.",
            mend="bring the brokers back that hold its copies",
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

    yield of("READ", source.name, "error", "Nothing, but nothing can be consumed.")
    yield of(
        "WRITE",
        source.dlq,
        "error",
        "No dead letter can be written: consuming stands still at the first record that fails.",
    )
    yield of("READ", source.dlq, "warning", "Nothing, but dead letters cannot be collected.")
    yield of("WRITE", source.name, "warning", "Nothing, but dead letters cannot be replayed.")
    yield of("WRITE", VERDICTS, "warning", "Nothing, but what became of a redrive is only presumed.")
    for topic in topics:
        if topic.role == "retry":
            stops = "Nothing, but a record cannot be given back for later."
            yield of("WRITE", topic.name, "warning", stops)
            yield of(
                "READ", topic.name, "warning", "A record that was given back for later is not seen again."
            )
    for name in (source.name, source.dlq):
        if (group := found.groups.get(name)) is not None:
            loss = f"Nothing, but '{name}' cannot be consumed with this group."
            yield _Need("READ", "group", group.name, group.allowed, "error", loss)
    missing = [topic.name for topic in topics if topic.name not in found.topics]
    if missing and found.allowed is not None:
        yield _Need(
            "CREATE", "cluster", "", found.allowed, "warning", "Nothing, but provision cannot make topics."
        )


def _allowed(found: Found, name: str) -> frozenset[str] | None:
    """What may be done with a topic: nothing with one that is hidden; of one that is missing, nobody says."""
    topic = found.topics.get(name)
    if topic is not None:
        return topic.allowed
    return frozenset() if name in found.hidden else None


def _user(found: Found) -> str:
    return f"the user '{found.user}'" if found.user is not None else "a client without a login"
