"""The table of all settings.

`SECTIONS` and `LISTS` have every setting: its name, its reader and its help sentence. The reference page in the
documentation has the same sentences. To add a setting, add a row here and a field with its default in `values`.
`RENAMED` has the names that settings had before; they are refused with the new name.

Where settings are read from is in `loading`.
"""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import msgspec

from redrive.rules import parse_backoff
from redrive.settings.reading import (
    Read,
    boolean,
    broker_name,
    check_url,
    duration,
    durations,
    fraction,
    hours,
    integer,
    key,
    kinds,
    moment,
    number,
    one_of,
    rate,
    table_of_texts,
    text,
    texts,
)
from redrive.settings.values import (
    AlertRuleSettings,
    AlertSettings,
    BrokerSettings,
    CollectSettings,
    ConditionSettings,
    ConsumeBreakerSettings,
    ConsumeSettings,
    EmbeddedSettings,
    HealthSettings,
    LimitSettings,
    MaintenanceWindowSettings,
    NotifierSettings,
    RecoverSettings,
    RedactSettings,
    ReplaySettings,
    RetentionSettings,
    ServerSettings,
    SourceSettings,
    StoreOptions,
)


class Setting(msgspec.Struct, frozen=True):
    """The reader and the help sentence of a setting."""

    read: Read
    help: str
    is_reference: bool = False  # may be `env:NAME` or `file:PATH`: a secret, or a URL that may contain one


_SECOND, _HOUR, _DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
_SOON = timedelta(milliseconds=10)
_AGES = timedelta(days=36_500)
# Settings of [consume] that [[sources]] can override.
_PREFETCH = Setting(integer(1, 65_535), "Number of deliveries that may be unsettled at once.")
_CONCURRENCY = Setting(integer(1, 10_000), "Number of handlers that run at once.")
_HANDLER_TIMEOUT = Setting(duration(_SOON, _DAY), "Time limit of one attempt of a handler.")
_DEAD_LETTER = Setting(
    one_of("publish", "native", renamed={"reject": "native"}),
    "`publish`: the consumer publishes the enriched dead letter; `native`: the broker dead-letters the message itself.",
)
_MAX_DELIVERIES = Setting(
    integer(1, 1000), "Number of deliveries after which a retryable failure is dead-lettered."
)
_ATTEMPTS = Setting(integer(1, 100), "Number of attempts in the consumer process for each delivery.")
_BACKOFF = Setting(
    parse_backoff, "Delays between attempts: exponential, a list of durations, or one duration."
)
SECTIONS: Final[Mapping[str, tuple[type, Mapping[str, Setting]]]] = MappingProxyType(
    {
        "store": (
            StoreOptions,
            {
                "url": Setting(
                    text,
                    "URL of the dead-letter store: `sqlite:FILE`, `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`,"
                    " `memory:`, or `http://HOST:PORT` of a running server.",
                    is_reference=True,
                ),
                "busy_timeout": Setting(
                    duration(timedelta(0), _HOUR),
                    "SQLite: maximum time to wait for a lock of another process. PostgreSQL: for a connection or the"
                    " server.",
                ),
                "integrity_check_timeout": Setting(
                    duration(timedelta(0), _DAY), "SQLite: maximum time spent on the integrity check at startup."
                ),
                "max_bytes": Setting(
                    integer(1_048_576, 2**47), "SQLite: maximum size of the file in bytes. Unset: no limit."
                ),
                "pool_size": Setting(
                    integer(2, 1000), "PostgreSQL: number of connections of this process; half of them only read."
                ),
                "statement_timeout": Setting(
                    duration(_SOON, _DAY), "PostgreSQL: time limit of one statement."
                ),
            },
        ),
        "broker": (
            BrokerSettings,
            {
                "name": Setting(
                    broker_name,
                    "Name of the broker, stored with each letter. Unset: its kind, `rabbitmq`, `kafka` or `embedded`.",
                ),
                "url": Setting(
                    text,
                    "URL of the broker: `amqp://USER:PASSWORD@HOST:PORT/VHOST` or `kafka://HOST:PORT`. Unset:"
                    " `redrive serve` starts the embedded broker, other commands connect to this machine.",
                    is_reference=True,
                ),
                "management_url": Setting(
                    text, "URL of RabbitMQ's management API. Unset: port 15672 of the same host.", is_reference=True
                ),
                "dead_letter_queues": Setting(
                    texts, "Dead-letter queues of other systems to collect, in addition to those of `[[sources]]`."
                ),
            },
        ),
        "consume": (
            ConsumeSettings,
            {
                "prefetch": _PREFETCH,
                "concurrency": _CONCURRENCY,
                "handler_timeout": _HANDLER_TIMEOUT,
                "shutdown_timeout": Setting(
                    duration(timedelta(0), _DAY), "Time that running handlers have to finish when the consumer stops."
                ),
                "max_deliveries": _MAX_DELIVERIES,
                "attempts": _ATTEMPTS,
                "backoff": _BACKOFF,
                "provision": Setting(boolean, "Create missing queues, exchanges and topics when the consumer starts."),
                "dead_letter": _DEAD_LETTER,
                "best_effort": Setting(
                    boolean,
                    "Settle a message even if its dead letter cannot be published. The message is lost and counted in"
                    " `dlq_lost_total`.",
                ),
                "state_directory": Setting(
                    text,
                    "Directory of crash logs, which identify a message that ends its process. Unset:"
                    " `$STATE_DIRECTORY`, `$XDG_STATE_HOME/redrive` or `~/.local/state/redrive`. `none`: no logs.",
                ),
            },
        ),
        "consume.breaker": (
            ConsumeBreakerSettings,
            {
                "enabled": Setting(boolean, "Pause a source while most of its deliveries fail."),
                "failure_rate": Setting(
                    fraction, "Fraction of recent deliveries that must fail before consuming pauses."
                ),
                "window": Setting(
                    integer(1, 100_000), "Number of recent deliveries in the failure-rate window."
                ),
                "pause": Setting(
                    duration(_SOON, _DAY), "Pause before the first probe; each failed probe doubles the pause."
                ),
                "max_pause": Setting(duration(_SOON, _DAY), "Maximum pause."),
            },
        ),
        "recover": (
            RecoverSettings,
            {
                "lease": Setting(
                    duration(_SECOND, timedelta(days=30)),
                    "Time after which the claim of a worker on a letter expires unless it is renewed.",
                ),
                "poll_interval": Setting(
                    duration(timedelta(milliseconds=10), _DAY), "Interval at which workers look for due letters."
                ),
                "batch_size": Setting(integer(1, 10_000), "Maximum number of letters in one claim."),
                "max_redrives": Setting(
                    integer(1, 1000), "Number of redrives after which a letter is `dlq_failed`."
                ),
                "delays": Setting(
                    durations, "Delays before each redrive of the immediate strategy; the last one repeats."
                ),
                "off_peak_hours": Setting(hours, "Hours (0 to 23) in which the scheduled strategy redrives."),
                "time_zone": Setting(text, "Time zone of `off_peak_hours`, such as `Europe/Berlin`."),
                "recheck_interval": Setting(
                    duration(_SECOND, _DAY),
                    "Interval at which conditions are rechecked, and first pause of a circuit breaker for redrives.",
                ),
                "max_cpu": Setting(
                    fraction, "The conditional strategy redrives while the CPU usage is below this fraction."
                ),
                "max_memory": Setting(
                    fraction, "The conditional strategy redrives while the memory usage is below this fraction."
                ),
                "rate": Setting(
                    rate, "Maximum redrives per second to each source by the workers of one server. Unset: no limit."
                ),
                "workers": Setting(
                    integer(0, 1000), "Number of workers of `redrive serve`. 0: letters are only redriven on command."
                ),
                "verdict_timeout": Setting(
                    duration(_SECOND, timedelta(days=30)),
                    "Time after which a redrive without a verdict or a new dead letter is unconfirmed.",
                ),
            },
        ),
        "replay": (
            ReplaySettings,
            {
                "max_depth": Setting(
                    integer(0, 2**47), "Maximum number of messages waiting in the target of a replay."
                ),
                "min_consumers": Setting(
                    integer(0, 1000), "Minimum number of consumers of the target. 0: not checked."
                ),
                "max_failure_rate": Setting(
                    fraction,
                    "Maximum fraction of redrives to the target that failed in the last 15 minutes; not checked for a"
                    " replay with a canary.",
                ),
                "unchecked_letters": Setting(
                    integer(0, 1_000_000),
                    "A replay of at most this number of letters is never refused; failed checks are only warnings.",
                ),
            },
        ),
        "retention": (
            RetentionSettings,
            {
                "resolved": Setting(duration(_SECOND, _AGES), "Age at which resolved letters are deleted."),
                "failed": Setting(
                    duration(_SECOND, _AGES), "Age at which failed letters are written to files and archived."
                ),
                "archived": Setting(
                    duration(_SECOND, _AGES),
                    "Age at which archived letters are deleted from the store; their files are kept.",
                ),
                "archive_directory": Setting(
                    text, "Directory of these files. Unset: `archive` in the data directory."
                ),
                "interval": Setting(duration(_SECOND, _DAY), "Interval between two runs of the retention."),
                "change_log": Setting(duration(_SECOND, _AGES), "Age at which change-log entries are deleted."),
                "change_log_bytes": Setting(
                    integer(1_000_000, 2**47),
                    "Size of the change log in bytes above which the oldest entries are deleted.",
                ),
            },
        ),
        "collect": (
            CollectSettings,
            {
                "batch_size": Setting(
                    integer(1, 65_535), "Maximum number of dead letters that are received and stored together."
                ),
            },
        ),
        "embedded": (
            EmbeddedSettings,
            {
                "port": Setting(
                    integer(0, 65_535), "AMQP port of the embedded broker of `redrive serve`. 0: any free port."
                ),
                "management_port": Setting(
                    integer(0, 65_535), "Port of its management API. 0: any free port."
                ),
                "collect_all": Setting(
                    boolean, "Collect every queue `*.dlq` of the embedded broker, also those of unconfigured sources."
                ),
                "anonymous_login_user": Setting(
                    text, "User of clients that log in with the mechanism ANONYMOUS. `none`: such logins are refused."
                ),
                "anonymous_login_pass": Setting(text, "Password of this user.", is_reference=True),
                "enable_dlx": Setting(
                    boolean, "Dead-letter exchanges. `false`: their arguments are ignored with a warning."
                ),
                "enable_ttl": Setting(
                    boolean, "Expiry of messages and queues (TTL). `false`: its arguments are ignored with a warning."
                ),
                "enable_length_limit": Setting(
                    boolean, "Length limits of queues. `false`: their arguments are ignored with a warning."
                ),
            },
        ),
        "health": (
            HealthSettings,
            {
                "write_interval": Setting(
                    duration(_SECOND, _HOUR), "Interval of the test write that checks the store."
                ),
                "max_write_age": Setting(
                    duration(_SECOND, _DAY), "Age of the last successful write above which the store is unhealthy."
                ),
                "broker_interval": Setting(
                    duration(_SECOND, _HOUR), "Interval at which the existence of the collected queues is checked."
                ),
            },
        ),
        "server": (
            ServerSettings,
            {
                "data_directory": Setting(text, "Data directory of `redrive serve`."),
                "host": Setting(text, "Loopback address on which the server listens."),
                "port": Setting(integer(0, 65_535), "HTTP port of the server. 0: any free port."),
                "allowed_hosts": Setting(
                    texts,
                    "Host names that HTTP requests may use, in addition to loopback names and the listen address.",
                ),
                "key": Setting(
                    key,
                    "Key that other processes need to use the store of a running server. Unset: the key in the file"
                    " `server.key` of its data directory.",
                    is_reference=True,
                ),
            },
        ),
        "limits": (
            LimitSettings,
            {
                "letter_bytes": Setting(
                    integer(1024, 900_000_000), "Maximum size in bytes of a letter in a request or an imported file."
                ),
                "compression_ratio": Setting(
                    integer(1, 1_000_000), "Maximum ratio of the expanded to the compressed size of a letter or a file."
                ),
                "request_bytes": Setting(
                    integer(1024, 2_000_000_000),
                    "Maximum size in bytes of a request to the store of a server, compressed and expanded.",
                ),
            },
        ),
        "alerts": (
            AlertSettings,
            {
                "interval": Setting(duration(_SECOND, _HOUR), "Interval at which alert rules are evaluated."),
                "probe_interval": Setting(duration(_SECOND, _DAY), "Interval at which the broker is probed."),
                "cooldown": Setting(
                    duration(timedelta(0), _AGES),
                    "Minimum time between two alerts of an incident that has not become worse.",
                ),
                "resolve_after": Setting(
                    duration(timedelta(0), _DAY), "Time without violation after which an incident is resolved."
                ),
                "escalate_after": Setting(
                    duration(_SECOND, _AGES), "Time after which an incident without acknowledgement is escalated."
                ),
                "max_escalations": Setting(integer(0, 1000), "Maximum number of escalations of an incident."),
            },
        ),
        "redact": (
            RedactSettings,
            {
                "mode": Setting(
                    one_of("secret", "text", renamed={"parts": "secret", "whole": "text"}),
                    "`secret`: replace the secret; `text`: replace the whole text that contains a secret.",
                ),
                "terms": Setting(texts, "Words to redact."),
                "allow": Setting(texts, "Strings that are never redacted."),
                "disabled": Setting(texts, "Kinds of secrets that are not searched for."),
                "patterns": Setting(table_of_texts, "Regular expressions to redact, by a name of your choice."),
            },
        ),
    }
)  # fmt: skip
# The keys of a [[sources]] table.
_SOURCE: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "Queue or topic."),
        "prefetch": _PREFETCH,
        "concurrency": _CONCURRENCY,
        "handler_timeout": _HANDLER_TIMEOUT,
        "max_deliveries": _MAX_DELIVERIES,
        "attempts": _ATTEMPTS,
        "backoff": _BACKOFF,
        "dead_letter": _DEAD_LETTER,
        "dead_letter_queue": Setting(text, "Dead-letter queue or topic. Unset: `NAME.dlq`."),
        "dead_letter_exchange": Setting(text, "RabbitMQ: dead-letter exchange. Unset: `NAME.dlx`."),
        "dead_letter_routing_key": Setting(
            text, "RabbitMQ: routing key of dead letters. Unset: that of the message."
        ),
        "queue_type": Setting(
            one_of("quorum", "classic"), "RabbitMQ: type of the queues that are provisioned. Unset: `quorum`."
        ),
        "consumer_group": Setting(text, "Kafka: consumer group; its dead-letter topic is `GROUP.dlq`."),
        "redrive_rate": Setting(rate, "Maximum redrives per second to this source. Unset: `recover.rate`."),
    }
)  # fmt: skip
_ALERT_RULE: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "Name of a built-in rule to change, or of a new rule."),
        "measure": Setting(text, "Measure that the rule compares."),
        "warning": Setting(number, "Threshold of a warning."),
        "critical": Setting(number, "Threshold of a critical alert."),
        "below": Setting(boolean, "`true`: values below the threshold violate the rule."),
        "confirmations": Setting(
            integer(1, 1000), "Number of violations in a row before the alert is raised."
        ),
        "message": Setting(
            text,
            "Message of the alert; `{subject}`, `{queue}`, `{value}`, `{limit}` and `{next}` are replaced.",
        ),
        "enabled": Setting(boolean, "`false`: the rule is not evaluated."),
    }
)
_CONDITION: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "Name of the condition in gates, logs and metrics."),
        "url": Setting(
            check_url,
            "URL that is checked: `tcp://HOST:PORT`, `http://…`, `https://…` or `postgresql://…`; `env:NAME` reads an"
            " environment variable.",
        ),
        "timeout": Setting(duration(_SOON, timedelta(minutes=1)), "Time limit of one check."),
        "interval": Setting(duration(_SECOND, _HOUR), "Interval between two checks."),
        "sources": Setting(texts, "Letters of these sources wait for the condition, with any strategy."),
        "kinds": Setting(kinds, "Letters with these failure kinds wait for the condition, with any strategy."),
    }
)  # fmt: skip
_NOTIFIER: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(text, "Name of the notifier in logs and metrics."),
        "type": Setting(
            one_of("mail", "json", "slack", "teams", "pagerduty", "alertmanager"), "Type of the notifier."
        ),
        "min_severity": Setting(
            one_of("warning", "critical"), "Minimum severity of the alerts that are sent: `warning` or `critical`."
        ),
        "escalations_only": Setting(boolean, "Send only escalated alerts."),
        "queue_pattern": Setting(text, "Send only alerts of queues that match this pattern, such as `orders.*`."),
        "timeout": Setting(duration(_SOON, _HOUR), "Time limit of one attempt to send."),
        "url": Setting(text, "URL of the webhook; not for `mail`.", is_reference=True),
        "secret": Setting(
            text,
            "Routing key of PagerDuty, or key that signs the body of `json`; `env:NAME` reads an environment variable.",
            is_reference=True,
        ),
        "host": Setting(text, "Mail: host of the SMTP server."),
        "port": Setting(integer(1, 65_535), "Mail: port of the SMTP server. Unset: the standard port for `tls`."),
        "tls": Setting(one_of("none", "starttls", "tls"), "Mail: `none`, `starttls` or `tls`."),
        "user": Setting(text, "Mail: user name. Unset: no login."),
        "password": Setting(text, "Mail: password; `env:NAME` reads an environment variable.", is_reference=True),
        "from": Setting(text, "Mail: address of the sender."),
        "to": Setting(texts, "Mail: addresses of the recipients."),
    }
)  # fmt: skip
_MAINTENANCE_WINDOW: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "duration": Setting(duration(_SECOND, _AGES), "Length of the window."),
        "start": Setting(moment, "Start of a single window, such as `2026-11-15T22:00:00Z`."),
        "cron": Setting(text, "Start of a recurring window as a cron expression, such as `0 2 * * 0`."),
        "time_zone": Setting(text, "Time zone of `cron`."),
        "queue_pattern": Setting(
            text, "Suppress only alerts of queues that match this pattern. Unset: all alerts."
        ),
    }
)


class ListSetting(msgspec.Struct, frozen=True):
    """A list of tables, such as `[[sources]]`."""

    one: str  # what error messages call one of the tables
    kind: type
    keys: Mapping[str, Setting]
    needed: Mapping[str, str]  # required keys, each with an explanation
    distinct: str | None = None  # the key whose values must be unique


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
        "notifiers": ListSetting(
            "notifier",
            NotifierSettings,
            _NOTIFIER,
            {"name": "of your choice", "type": "such as mail or slack"},
            "name",
        ),
        "maintenance_windows": ListSetting(
            "maintenance window", MaintenanceWindowSettings, _MAINTENANCE_WINDOW, {"duration": "such as 2h"}
        ),
    }
)
# Former names, each with its new name. They are refused; only the error message uses this table.
RENAMED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "store.check_for": "store.integrity_check_timeout",
        "store.pool": "store.pool_size",
        "consume.time_budget": "consume.handler_timeout",
        "consume.stop_timeout": "consume.shutdown_timeout",
        "consume.flood_breaker": "consume.breaker.enabled",
        "consume.flood_share": "consume.breaker.failure_rate",
        "consume.flood_least": "consume.breaker.window",
        "consume.flood_pause": "consume.breaker.pause",
        "consume.flood_longest": "consume.breaker.max_pause",
        "retry": "consume",
        "retry.max_deliveries": "consume.max_deliveries",
        "retry.attempts": "consume.attempts",
        "retry.backoff": "consume.backoff",
        "recover.poll": "recover.poll_interval",
        "recover.batch": "recover.batch_size",
        "recover.steps": "recover.delays",
        "recover.recheck": "recover.recheck_interval",
        "recover.cpu_below": "recover.max_cpu",
        "recover.memory_below": "recover.max_memory",
        "recover.quiet_time": "recover.verdict_timeout",
        "replay.unchecked": "replay.unchecked_letters",
        "retention.directory": "retention.archive_directory",
        "retention.every": "retention.interval",
        "collect.queues": "broker.dead_letter_queues",
        "collect.batch": "collect.batch_size",
        "collect.discover": "embedded.collect_all",
        "serve": "server",
        "serve.data": "server.data_directory",
        "serve.host": "server.host",
        "serve.port": "server.port",
        "serve.broker_port": "embedded.port",
        "serve.management_port": "embedded.management_port",
        "serve.anonymous_login_user": "embedded.anonymous_login_user",
        "serve.anonymous_login_pass": "embedded.anonymous_login_pass",
        "serve.allowed_hosts": "server.allowed_hosts",
        "alerts.every": "alerts.interval",
        "alerts.probe_every": "alerts.probe_interval",
        "alerts.cool_down": "alerts.cooldown",
        "alerts.calm": "alerts.resolve_after",
        "alerts.escalations": "alerts.max_escalations",
        "redact.keep": "redact.allow",
        "redact.off": "redact.disabled",
        "redact.extra": "redact.patterns",
        "sources.time_budget": "sources.handler_timeout",
        "sources.group": "sources.consumer_group",
        "alert_rules.confirm": "alert_rules.confirmations",
        "alert_rules.text": "alert_rules.message",
        "alert_rules.off": "alert_rules.enabled",
        "conditions.every": "conditions.interval",
        "notify": "notifiers",
        "notifiers.kind": "notifiers.type",
        "notifiers.least": "notifiers.min_severity",
        "notifiers.escalated": "notifiers.escalations_only",
        "notifiers.queues": "notifiers.queue_pattern",
        "notifiers.sender": "notifiers.from",
        "maintenance": "maintenance_windows",
        "maintenance_windows.lasts": "maintenance_windows.duration",
        "maintenance_windows.begins": "maintenance_windows.start",
        "maintenance_windows.zone": "maintenance_windows.time_zone",
        "maintenance_windows.queues": "maintenance_windows.queue_pattern",
    }
)
