"""Which settings are there, and what does each mean?

`SECTIONS` and `SOURCE` are every setting: its name, how it is read and a sentence on it; the reference in the
documentation is made of the same table. The rule: a setting is a row here and a field in `values`, where its default
stands.

It does not know where settings come from; see `loading`.
"""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import msgspec

from redrive.rules import parse_backoff
from redrive.settings.reading import (
    Read,
    duration,
    durations,
    hours,
    one_of,
    share,
    table_of_texts,
    text,
    texts,
    whole,
    yes_or_no,
)
from redrive.settings.values import (
    BrokerSettings,
    CollectSettings,
    ConsumeSettings,
    RecoverSettings,
    RedactSettings,
    RetentionSettings,
    RetrySettings,
    ServeSettings,
    StoreSettings,
)


class Setting(msgspec.Struct, frozen=True):
    """How a setting is read, and what it means."""

    read: Read
    help: str


_SECOND, _HOUR, _DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
_SOON = timedelta(milliseconds=10)
_AGES = timedelta(days=36_500)
# What holds for all sources, and may hold otherwise for one.
_PREFETCH = Setting(whole(1, 65_535), "deliveries that may be out and unsettled")
_CONCURRENCY = Setting(whole(1, 10_000), "handlers that run at the same time")
_TIME_BUDGET = Setting(duration(_SOON, _DAY), "how long a handler may take for one attempt")
_DEAD_LETTER = Setting(
    one_of("publish", "reject"), "`publish`: write the enriched letter; `reject`: leave it to the broker"
)
_MAX_DELIVERIES = Setting(whole(1, 1000), "deliveries before a retryable failure is given up")
_ATTEMPTS = Setting(whole(1, 100), "attempts in the process, for each delivery")
_BACKOFF = Setting(parse_backoff, "waits between attempts: exponential, a list, or one duration")
SECTIONS: Final[Mapping[str, tuple[type, Mapping[str, Setting]]]] = MappingProxyType(
    {
        "store": (
            StoreSettings,
            {
                "url": Setting(
                    text,
                    "where dead letters are kept: `sqlite:FILE`, `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`,"
                    " `memory:` or `http://HOST:PORT`",
                ),
                "busy_timeout": Setting(duration(timedelta(0), _HOUR), "how long to wait for another process"),
                "check_for": Setting(duration(timedelta(0), _DAY), "how long to look for damage on opening"),
                "max_bytes": Setting(whole(1_048_576, 2**47), "the file never grows beyond; unset: no limit"),
                "pool": Setting(whole(2, 1000), "PostgreSQL: connections of this process, half of them for reading"),
                "statement_timeout": Setting(
                    duration(_SOON, _DAY), "PostgreSQL: how long one statement may take"
                ),
            },
        ),
        "broker": (
            BrokerSettings,
            {
                "url": Setting(
                    text,
                    "where messages come from: `amqp://USER:PASSWORD@HOST:PORT/VHOST`; unset: that of this machine",
                ),
                "management_url": Setting(text, "its management API; unset: port 15672 of the same host"),
            },
        ),
        "consume": (
            ConsumeSettings,
            {
                "prefetch": _PREFETCH,
                "concurrency": _CONCURRENCY,
                "time_budget": _TIME_BUDGET,
                "stop_timeout": Setting(duration(timedelta(0), _DAY), "how long handlers may take on stopping"),
                "provision": Setting(yes_or_no, "make missing queues and exchanges on starting"),
                "dead_letter": _DEAD_LETTER,
                "best_effort": Setting(yes_or_no, "settle even if the dead letter cannot be written, and count it"),
                "flood_breaker": Setting(yes_or_no, "pause a source when most of what it delivers fails"),
                "flood_share": Setting(share, "the share of failures that is most"),
                "flood_least": Setting(whole(1, 100_000), "the deliveries that are looked at"),
                "flood_pause": Setting(duration(_SOON, _DAY), "the first pause; each failed probe doubles it"),
                "flood_longest": Setting(duration(_SOON, _DAY), "the longest pause"),
            },
        ),
        "retry": (
            RetrySettings,
            {"max_deliveries": _MAX_DELIVERIES, "attempts": _ATTEMPTS, "backoff": _BACKOFF},
        ),
        "recover": (
            RecoverSettings,
            {
                "lease": Setting(duration(_SECOND, timedelta(days=30)), "how long a worker may hold a letter"),
                "poll": Setting(duration(timedelta(milliseconds=10), _DAY), "how often workers look for letters"),
                "batch": Setting(whole(1, 10_000), "letters claimed at once"),
                "max_redrives": Setting(whole(1, 1000), "redrives before a letter is `dlq_failed`"),
                "steps": Setting(durations, "waits of the immediate strategy; the last one repeats"),
                "off_peak_hours": Setting(hours, "hours of the scheduled strategy"),
                "time_zone": Setting(text, "the zone of those hours, such as `Europe/Berlin`"),
                "recheck": Setting(
                    duration(_SECOND, _DAY),
                    "how often the conditional strategy looks again, and the first pause of a breaker that opens",
                ),
                "cpu_below": Setting(share, "the conditional strategy waits for a CPU below this share"),
                "memory_below": Setting(share, "the conditional strategy waits for memory below this share"),
                "workers": Setting(whole(0, 1000), "workers of `redrive serve`; 0: nothing is sent back by itself"),
                "quiet_time": Setting(
                    duration(_SECOND, timedelta(days=30)),
                    "a redrive without a verdict is then presumed to be processed",
                ),
            },
        ),
        "retention": (
            RetentionSettings,
            {
                "resolved": Setting(duration(_SECOND, _AGES), "resolved letters are deleted after this time"),
                "failed": Setting(
                    duration(_SECOND, _AGES), "failed letters go to files and are archived after this time"
                ),
                "archived": Setting(duration(_SECOND, _AGES), "archived letters are in files only after this time"),
                "directory": Setting(text, "where those files are kept; unset: `archive` in the data directory"),
                "every": Setting(duration(_SECOND, _DAY), "how often it looks"),
            },
        ),
        "collect": (
            CollectSettings,
            {
                "queues": Setting(texts, "dead-letter queues of other systems, beside those of `[[sources]]`"),
                "batch": Setting(whole(1, 65_535), "dead letters collected at once"),
                "discover": Setting(yes_or_no, "collect every queue `*.dlq` of the embedded broker, named or not"),
            },
        ),
        "serve": (
            ServeSettings,
            {
                "data": Setting(text, "the data directory of `redrive serve`"),
                "host": Setting(text, "the loopback address it listens on"),
                "port": Setting(whole(0, 65_535), "its port for HTTP; 0: any free one"),
                "broker_port": Setting(whole(0, 65_535), "the embedded broker's port for AMQP; 0: any free one"),
                "management_port": Setting(
                    whole(0, 65_535), "the embedded broker's port for its management API; 0: any free one"
                ),
            },
        ),
        "redact": (
            RedactSettings,
            {
                "mode": Setting(text, "`parts`: hide the secret; `whole`: replace the whole text"),
                "terms": Setting(texts, "words to hide"),
                "keep": Setting(texts, "texts never hidden"),
                "off": Setting(texts, "kinds not looked for"),
                "extra": Setting(table_of_texts, "regular expressions to hide, by a name of one's own"),
            },
        ),
    }
)  # fmt: skip
# The keys of a [[sources]] table.
SOURCE: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "the queue or topic"),
        "prefetch": _PREFETCH,
        "concurrency": _CONCURRENCY,
        "time_budget": _TIME_BUDGET,
        "max_deliveries": _MAX_DELIVERIES,
        "attempts": _ATTEMPTS,
        "backoff": _BACKOFF,
        "dead_letter": _DEAD_LETTER,
        "dead_letter_queue": Setting(text, "where its dead letters lie; unset: `NAME.dlq`"),
        "dead_letter_exchange": Setting(text, "the exchange they go through; unset: `NAME.dlx`"),
        "dead_letter_routing_key": Setting(text, "the routing key they get; unset: the message's own"),
        "queue_type": Setting(one_of("quorum", "classic"), "what `redrive provision` makes; unset: `quorum`"),
        "group": Setting(text, "Kafka: its consumer group, whose dead letters lie in `GROUP.dlq`"),
    }
)
