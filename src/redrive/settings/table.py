"""Which settings are there, and what does each mean?

`SECTIONS` and `LISTS` are every setting: its name, how it is read and a sentence on it; the reference in the
documentation is made of the same tables. The rule: a setting is a row here and a field in `values`, where its default
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
    broker_name,
    check_url,
    duration,
    durations,
    hours,
    key,
    kinds,
    moment,
    number,
    one_of,
    rate,
    share,
    table_of_texts,
    text,
    texts,
    whole,
    yes_or_no,
)
from redrive.settings.values import (
    AlertRuleSettings,
    AlertSettings,
    BrokerSettings,
    CollectSettings,
    ConditionSettings,
    ConsumeSettings,
    EmbeddedSettings,
    HealthSettings,
    LimitSettings,
    MaintenanceSettings,
    NotifySettings,
    RecoverSettings,
    RedactSettings,
    ReplaySettings,
    RetentionSettings,
    RetrySettings,
    ServerSettings,
    ServeSettings,
    SourceSettings,
    StoreOptions,
)


class Setting(msgspec.Struct, frozen=True):
    """How a setting is read, and what it means."""

    read: Read
    help: str
    is_reference: bool = (
        False  # may be written as `env:NAME` or `file:PATH`; a secret, or a URL that may hold one
    )


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
            StoreOptions,
            {
                "url": Setting(
                    text,
                    "where dead letters are kept: `sqlite:FILE`, `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`,"
                    " `memory:` or `http://HOST:PORT`",
                    is_reference=True,
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
                "name": Setting(
                    broker_name,
                    "the name that letters of this broker carry; unset: `rabbitmq`, `kafka` or `embedded`, by its kind",
                ),
                "url": Setting(
                    text,
                    "where messages come from: `amqp://USER:PASSWORD@HOST:PORT/VHOST`; unset: that of this machine",
                    is_reference=True,
                ),
                "management_url": Setting(
                    text, "its management API; unset: port 15672 of the same host", is_reference=True
                ),
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
                "state_directory": Setting(
                    text,
                    "where crash logs are kept, by which a message that ends its process is found; unset:"
                    " `$STATE_DIRECTORY`, `$XDG_STATE_HOME/redrive` or `~/.local/state/redrive`; `none`: nowhere",
                ),
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
                    "when letters with the conditional strategy are due, and the first pause of a breaker that opens",
                ),
                "cpu_below": Setting(share, "the conditional strategy waits for a CPU below this share"),
                "memory_below": Setting(share, "the conditional strategy waits for memory below this share"),
                "rate": Setting(
                    rate, "redrives per second to each source by the workers of one server; unset: no limit"
                ),
                "workers": Setting(whole(0, 1000), "workers of `redrive serve`; 0: nothing is sent back by itself"),
                "verdict_timeout": Setting(
                    duration(_SECOND, timedelta(days=30)),
                    "a redrive without verdict or death is unconfirmed after this time",
                ),
            },
        ),
        "replay": (
            ReplaySettings,
            {
                "max_depth": Setting(
                    whole(0, 2**47), "a replay is refused if more messages than this wait in its target"
                ),
                "min_consumers": Setting(
                    whole(0, 1000), "a replay is refused if its target has fewer consumers; 0: not checked"
                ),
                "max_failure_rate": Setting(
                    share,
                    "a replay without canary is refused if a larger share of the redrives to its target died again"
                    " in the last 15 minutes",
                ),
                "unchecked": Setting(
                    whole(0, 1_000_000), "a replay of at most so many letters is never refused, only warned about"
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
                "change_log": Setting(
                    duration(_SECOND, _AGES), "lines of the change log are deleted after this time"
                ),
                "change_log_bytes": Setting(
                    whole(1_000_000, 2**47), "the oldest lines are deleted above this size in bytes"
                ),
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
                "anonymous_login_user": Setting(
                    text, "as whom clients of this machine log in to the embedded broker by ANONYMOUS; `none`: off"
                ),
                "anonymous_login_pass": Setting(text, "the password of that user", is_reference=True),
                "allowed_hosts": Setting(
                    texts,
                    "host names that HTTP requests may use in addition to loopback names and the listen address",
                ),
            },
        ),
        "embedded": (
            EmbeddedSettings,
            {
                "enable_dlx": Setting(
                    yes_or_no, "dead-letter exchanges; `false`: their arguments are ignored with a warning"
                ),
                "enable_ttl": Setting(
                    yes_or_no, "times to live of messages and queues; `false`: ignored with a warning"
                ),
                "enable_length_limit": Setting(
                    yes_or_no, "limits on the length of queues; `false`: ignored with a warning"
                ),
            },
        ),
        "health": (
            HealthSettings,
            {
                "write_interval": Setting(
                    duration(_SECOND, _HOUR), "how often the store is checked by a small write"
                ),
                "max_write_age": Setting(
                    duration(_SECOND, _DAY), "the store is failing when its last successful write is older"
                ),
                "broker_interval": Setting(
                    duration(_SECOND, _HOUR), "how often it is checked that the collected queues exist"
                ),
            },
        ),
        "server": (
            ServerSettings,
            {
                "key": Setting(
                    key,
                    "the key that other processes use the store of a running server with; unset: the one in the file "
                    "`server.key` of its data directory",
                    is_reference=True,
                ),
            },
        ),
        "limits": (
            LimitSettings,
            {
                "letter_bytes": Setting(
                    whole(1024, 900_000_000), "bytes that a letter of a request or of an imported file may have"
                ),
                "compression_ratio": Setting(
                    whole(1, 1_000_000), "how many times its compressed size such a letter, or such a file, may have"
                ),
                "request_bytes": Setting(
                    whole(1024, 2_000_000_000),
                    "bytes that one request to the store of a server may have, also after it is expanded",
                ),
            },
        ),
        "alerts": (
            AlertSettings,
            {
                "every": Setting(duration(_SECOND, _HOUR), "how often the rules are evaluated"),
                "probe_every": Setting(duration(_SECOND, _DAY), "how often the broker is probed"),
                "cool_down": Setting(
                    duration(timedelta(0), _AGES), "between two alerts of an incident that has not become worse"
                ),
                "calm": Setting(duration(timedelta(0), _DAY), "an incident is over when it was fine for so long"),
                "escalate_after": Setting(
                    duration(_SECOND, _AGES), "an incident that nobody has acknowledged is escalated then"
                ),
                "escalations": Setting(whole(0, 1000), "how often it is escalated at the most"),
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
_SOURCE: Final[Mapping[str, Setting]] = MappingProxyType(
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
        "redrive_rate": Setting(rate, "redrives per second to this source; unset: `recover.rate`"),
    }
)
_ALERT_RULE: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "of a shipped rule that is to be changed, or of a new one"),
        "measure": Setting(text, "what it compares; unset: as it is shipped"),
        "warning": Setting(number, "beyond this it is a warning"),
        "critical": Setting(number, "beyond this it is critical"),
        "below": Setting(yes_or_no, "whether lower is worse"),
        "confirm": Setting(whole(1, 1000), "violations in a row until the alert is raised"),
        "text": Setting(
            text, "the sentence; `{subject}`, `{queue}`, `{value}`, `{limit}` and `{next}` are replaced"
        ),
        "off": Setting(yes_or_no, "whether it is not looked at"),
    }
)
_CONDITION: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "what gates, logs and figures call it"),
        "url": Setting(
            check_url,
            "what is checked: `tcp://HOST:PORT`, `http://…`, `https://…` or `postgresql://…`; `env:NAME` reads a"
            " variable",
        ),
        "timeout": Setting(duration(_SOON, timedelta(minutes=1)), "a check that takes longer has failed"),
        "every": Setting(duration(_SECOND, _HOUR), "how often it is checked"),
        "sources": Setting(texts, "letters of these sources wait for it, whatever their strategy"),
        "kinds": Setting(kinds, "letters with these failure kinds wait for it, whatever their strategy"),
    }
)  # fmt: skip
_NOTIFY: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "what logs and figures call it"),
        "kind": Setting(
            one_of("mail", "json", "slack", "teams", "pagerduty", "alertmanager"), "how it is told"
        ),
        "least": Setting(one_of("warning", "critical"), "what is less severe is not told"),
        "escalated": Setting(yes_or_no, "whether it is told only of what nobody has acknowledged"),
        "queues": Setting(text, "only of queues that this pattern names, such as `orders.*`"),
        "timeout": Setting(duration(_SOON, _HOUR), "how long one try may take"),
        "url": Setting(text, "where to send it; not for mail", is_reference=True),
        "secret": Setting(
            text,
            "PagerDuty's routing key, or what signs the body for `json`; `env:NAME` reads a variable",
            is_reference=True,
        ),
        "host": Setting(text, "mail: the SMTP server"),
        "port": Setting(whole(1, 65_535), "mail: its port; unset: what is usual for `tls`"),
        "tls": Setting(one_of("none", "starttls", "tls"), "mail: how the connection is secured"),
        "user": Setting(text, "mail: who signs in; unset: nobody does"),
        "password": Setting(text, "mail: with this password; `env:NAME` reads a variable", is_reference=True),
        "sender": Setting(text, "mail: the address it comes from"),
        "to": Setting(texts, "mail: the addresses it goes to"),
    }
)  # fmt: skip
_MAINTENANCE: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "lasts": Setting(duration(_SECOND, _AGES), "how long"),
        "begins": Setting(moment, "when, if once"),
        "cron": Setting(text, "when, if again and again, such as `0 2 * * 0`"),
        "zone": Setting(text, "the time zone of `cron`"),
        "queues": Setting(text, "only of queues that this pattern names; unset: everything"),
    }
)


class ListSetting(msgspec.Struct, frozen=True):
    """Settings of which there may be several, one table for each."""

    one: str  # what one of them is called
    kind: type
    keys: Mapping[str, Setting]
    needed: Mapping[str, str]  # the keys that must be there, and what they say
    distinct: str | None = None  # the key that no two may share


LISTS: Final[Mapping[str, ListSetting]] = MappingProxyType(
    {
        "sources": ListSetting("source", SourceSettings, _SOURCE, {"name": "the queue or topic"}, "name"),
        "alert_rules": ListSetting(
            "alert rule", AlertRuleSettings, _ALERT_RULE, {"name": "of the rule"}, "name"
        ),
        "conditions": ListSetting(
            "condition",
            ConditionSettings,
            _CONDITION,
            {"name": "of your choice", "url": "such as tcp://127.0.0.1:5432"},
            "name",
        ),
        "notify": ListSetting(
            "notifier", NotifySettings, _NOTIFY, {"name": "of your choice", "kind": "mail, slack, …"}, "name"
        ),
        "maintenance": ListSetting(
            "maintenance window", MaintenanceSettings, _MAINTENANCE, {"lasts": "such as 2h"}
        ),
    }
)
