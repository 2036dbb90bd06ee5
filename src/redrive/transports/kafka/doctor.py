"""What would be lost on this Kafka, why, and how is it mended?

Pure rules over what was found, one function each, for each source. The rules:

=================  ===============================================================================================
topic-missing      the topic does not exist
topic-made-by-use  the brokers make a topic of whatever name is first written to (information)
dlq-missing        the topic of dead letters does not exist
dlq-expires        its records are deleted after a time (Kafka's default is seven days)
dlq-limited        its oldest records are deleted above a size
dlq-compacted      it keeps the last record of a key only, and takes none without a key
dlq-too-small      it does not take records as large as the source's
dlq-fewer          it has fewer partitions than the source (information)
dlq-waiting        letters lie there that nobody has collected (information)
one-copy           a topic has a single copy of each record
min-insync-low     a record counts as written when a single copy has it
min-insync-high    fewer copies than must be in sync: nothing can be written, now or with one broker away
unclean-election   a copy that is behind may become the leader, and what it lacks is gone
no-leader          nobody serves a partition at the moment
retry-missing      topics in which records wait for another try are not there
retry-expires      they are, but lose records
verdicts-missing   the topic of verdicts does not exist
group-behind       nobody consumes, and records wait (information)
permission         an access list is missing for what consuming, dead-lettering or provisioning needs
=================  ===============================================================================================

Severity: an `error` loses messages in the ordinary run of things, a `warning` when something else happens as well (a
broker that goes away, a crash) or keeps redrive from working, `info` is only told. A rule is silent about what could
not be seen. Nothing here asks a broker or changes anything.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.base import Source
from redrive.transports.finding import PROVISION, Diagnosis, Finding
from redrive.transports.kafka.doctor_cluster import copies, permission
from redrive.transports.kafka.doctor_letters import dead_letter_topic, milliseconds, retry_topics
from redrive.transports.kafka.found import Found
from redrive.transports.kafka.topology import Topic, wanted

Retries: TypeAlias = Mapping[str, Sequence[str]]  # the retry topics of a source, by its name


def diagnose(found: Found, sources: Sequence[Source], retries: Retries | None = None) -> Diagnosis:
    """Every fault that can be seen."""
    told = [
        finding
        for source in sources
        for topics in [wanted([source], retries).topics]
        for rule in RULES
        for finding in rule(found, source, topics)
    ]
    return Diagnosis.of(told, found.unseen)


# --- the topic, its group, the verdicts -----------------------------------------------------------------------


def _topic(found: Found, source: Source, _: Sequence[Topic]) -> Iterator[Finding]:
    if source.name in found.topics or source.name in found.hidden:
        return
    made = f" with {found.default_partitions} partition{'s' if found.default_partitions != 1 else ''}"
    yield Finding(
        rule="topic-missing",
        severity="warning" if found.auto_create else "error",
        subject=f"topic {source.name}",
        text=f"the topic '{source.name}' does not exist",
        loss=(
            (
                "No messages are lost, but nothing can be consumed until a producer writes to the topic; "
                f"the brokers then create it{made}."
            )
            if found.auto_create
            else "Records cannot be written to it: producers get errors, and drop the records or block."
        ),
        mend=PROVISION,
    )


def _made_by_use(found: Found, source: Source, _: Sequence[Topic]) -> Iterator[Finding]:
    topic = found.topics.get(source.name)
    if not found.auto_create or topic is None or topic.config is None or topic.own:
        return
    defaults = (found.default_partitions, found.default_copies)
    if (topic.partitions, topic.replication) == defaults:
        yield Finding(
            rule="topic-made-by-use",
            severity="info",
            subject=f"topic {topic.name}",
            text=f"'{topic.name}' has only broker defaults: it was probably created automatically by a "
            "write (auto.create.topics.enable)",
            loss=(
                f"No messages are lost, but {_few(topic.partitions)}, and a misspelled topic name "
                "would create a topic in the same way."
            ),
            mend="set auto.create.topics.enable=false on the brokers, and create topics explicitly",
        )


def _few(partitions: int) -> str:
    if partitions == 1:
        return "at most one consumer of a group is active, because the topic has one partition"
    return f"at most {partitions} consumers of a group are active"


def _group(found: Found, source: Source, _: Sequence[Topic]) -> Iterator[Finding]:
    group, topic = found.groups.get(source.name), found.topics.get(source.name)
    if group is None or topic is None or group.members or not group.behind:
        return
    after = topic.expires_after
    lost = (
        "No messages are lost; the records stay in the topic."
        if after is None
        else (
            f"Records that are not consumed within {milliseconds(after)} after they were written are deleted."
        )
    )
    yield Finding(
        rule="group-behind",
        severity="info",
        subject=f"group {group.name}",
        text=f"{group.behind} record{'s are' if group.behind > 1 else ' is'} waiting in '{source.name}', "
        f"and the consumer group '{group.name}' has no members",
        loss=lost,
        mend=(
            f"start a consumer of '{source.name}' in this group, or set another group with group= in "
            "the broker URL"
        ),
    )


def _verdicts(found: Found, _: Source, __: Sequence[Topic]) -> Iterator[Finding]:
    if VERDICTS not in found.topics and VERDICTS not in found.hidden:
        yield Finding(
            rule="verdicts-missing",
            severity="warning",
            subject=f"topic {VERDICTS}",
            text=f"the verdict topic '{VERDICTS}' does not exist",
            loss=(
                "No messages are lost, but redrives are only presumed resolved, unless a consumer may "
                "create the topic."
            ),
            mend=PROVISION,
        )


RULES: Final[tuple[Callable[[Found, Source, Sequence[Topic]], Iterator[Finding]], ...]] = (
    _topic,
    _made_by_use,
    dead_letter_topic,
    copies,
    retry_topics,
    _verdicts,
    _group,
    permission,
)
