"""The settings as frozen values: one class per section, and `Settings` for all of them.

Defaults are defined here and nowhere else. `Settings` refuses settings that contradict each other, and patterns and
time zones that cannot be used. Limits of single values are in `table`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

import msgspec

from redrive.errors import SettingsError
from redrive.letters import FailureKind
from redrive.letters.convention import Convention
from redrive.letters.redact import Redactor, check_redaction
from redrive.rules import Backoff, Classifier, Exponential, Rule, Strategy, StrategyOptions


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The dead-letter store."""

    url: str = "sqlite:redrive.db"
    busy_timeout: timedelta = timedelta(seconds=10)
    integrity_check_timeout: timedelta = timedelta(seconds=2)
    max_bytes: int | None = None
    pool_size: int = 10
    statement_timeout: timedelta = timedelta(minutes=1)


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that messages are consumed from and redriven to."""

    name: str | None = None  # None: the kind of the broker
    url: str | None = None
    management_url: str | None = None
    dead_letter_queues: tuple[str, ...] = ()


class EmbeddedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The embedded broker of `redrive serve`; the extensions of AMQP also of `redrive broker`."""

    port: int = 5672
    management_port: int = 15672
    collect_all: bool = True
    anonymous_login_user: str = "guest"
    anonymous_login_pass: str = "guest"  # noqa: S105  RabbitMQ's default
    enable_dlx: bool = True
    enable_ttl: bool = True
    enable_length_limit: bool = True


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`redrive serve`: its data directory, its HTTP port, and the key of its store."""

    data_directory: str = "."
    host: str = "127.0.0.1"
    port: int = 8642
    allowed_hosts: tuple[str, ...] = ()
    key: str | None = None  # None: the key in the file server.key of the data directory


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Size limits of requests to the store of a server and of imported files."""

    letter_bytes: int = 64 * 1024 * 1024
    compression_ratio: int = 200
    request_bytes: int = 256 * 1024 * 1024


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the server moves dead letters from dead-letter queues to the store."""

    batch_size: int = 500


class ConsumeBreakerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The circuit breaker that pauses a source while most of its deliveries fail."""

    enabled: bool = True
    failure_rate: float = 0.8
    window: int = 20
    pause: timedelta = timedelta(seconds=5)
    max_pause: timedelta = timedelta(minutes=1)


class ConsumeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How sources are consumed, and how often a failing delivery is retried."""

    prefetch: int = 16
    concurrency: int = 5
    handler_timeout: timedelta = timedelta(seconds=60)
    shutdown_timeout: timedelta = timedelta(seconds=30)
    max_deliveries: int = 3
    attempts: int = 3
    backoff: Backoff = Exponential()
    provision: bool = True
    dead_letter: str = "publish"
    best_effort: bool = False
    state_directory: str | None = None
    breaker: ConsumeBreakerSettings = ConsumeBreakerSettings()


class SourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one source; an unset option has the value of `[consume]` or `[recover]`."""

    name: str
    prefetch: int | None = None
    concurrency: int | None = None
    handler_timeout: timedelta | None = None
    max_deliveries: int | None = None
    attempts: int | None = None
    backoff: Backoff | None = None
    dead_letter: str | None = None
    dead_letter_queue: str | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    queue_type: str | None = None
    consumer_group: str | None = None
    redrive_rate: float | None = None


class RecoverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How dead letters are redriven."""

    lease: timedelta = timedelta(minutes=5)
    poll_interval: timedelta = timedelta(seconds=30)
    batch_size: int = 10
    max_redrives: int = 5
    delays: tuple[timedelta, ...] = StrategyOptions().delays
    off_peak_hours: tuple[int, ...] = (2, 3, 4)
    time_zone: str = "UTC"
    recheck_interval: timedelta = timedelta(minutes=1)
    max_cpu: float = 0.80
    max_memory: float = 0.85
    workers: int = 2
    rate: float | None = None
    verdict_timeout: timedelta = timedelta(hours=1)


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the health check before a replay."""

    max_depth: int = 10_000
    min_consumers: int = 1
    max_failure_rate: float = 0.6
    unchecked_letters: int = 10


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long closed letters and the change log are kept."""

    resolved: timedelta = timedelta(days=30)
    failed: timedelta = timedelta(days=90)
    archived: timedelta = timedelta(days=365)
    archive_directory: str | None = None
    interval: timedelta = timedelta(hours=1)
    change_log: timedelta = timedelta(days=30)
    change_log_bytes: int = 1_000_000_000


class RedactSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Removal of secrets from error texts."""

    mode: str = "secret"
    terms: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    patterns: Mapping[str, str] = MappingProxyType({})


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How `redrive serve` checks its store and its broker."""

    write_interval: timedelta = timedelta(seconds=10)
    max_write_age: timedelta = timedelta(seconds=30)
    broker_interval: timedelta = timedelta(seconds=10)


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and limits of alerts."""

    interval: timedelta = timedelta(seconds=15)
    probe_interval: timedelta = timedelta(seconds=60)
    cooldown: timedelta = timedelta(minutes=15)
    resolve_after: timedelta = timedelta(minutes=2)
    escalate_after: timedelta = timedelta(minutes=30)
    max_escalations: int = 3


class AlertRuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a built-in alert rule, or a new rule; an unset key keeps the built-in value."""

    name: str
    measure: str | None = None
    warning: float | None = None
    critical: float | None = None
    below: bool | None = None
    confirmations: int | None = None
    message: str | None = None
    enabled: bool = True


class ConditionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A check that letters wait for; without sources and kinds, letters with the conditional strategy."""

    name: str
    url: str
    timeout: timedelta = timedelta(seconds=2)
    interval: timedelta = timedelta(seconds=15)
    sources: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def with_url(self, url: str) -> "ConditionSettings":
        """The same check with another URL."""
        return msgspec.structs.replace(self, url=url)


class NotifierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of alerts, and how they are sent to it."""

    name: str
    type: str
    min_severity: str = "warning"
    escalations_only: bool = False
    queue_pattern: str = "*"
    timeout: timedelta = timedelta(seconds=10)
    url: str | None = None
    secret: str | None = None
    host: str | None = None
    port: int | None = None
    tls: str = "starttls"
    user: str | None = None
    password: str | None = None
    from_: str | None = None  # the key is `from`
    to: tuple[str, ...] = ()


class MaintenanceWindowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A period in which no alerts are sent."""

    duration: timedelta
    start: datetime | None = None
    cron: str | None = None
    time_zone: str = "UTC"
    queue_pattern: str = "*"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings."""

    store: StoreOptions = StoreOptions()
    broker: BrokerSettings = BrokerSettings()
    consume: ConsumeSettings = ConsumeSettings()
    recover: RecoverSettings = RecoverSettings()
    replay: ReplaySettings = ReplaySettings()
    retention: RetentionSettings = RetentionSettings()
    collect: CollectSettings = CollectSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    health: HealthSettings = HealthSettings()
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    redact: RedactSettings = RedactSettings()
    alerts: AlertSettings = AlertSettings()
    conditions: tuple[ConditionSettings, ...] = ()
    alert_rules: tuple[AlertRuleSettings, ...] = ()
    notifiers: tuple[NotifierSettings, ...] = ()
    maintenance_windows: tuple[MaintenanceWindowSettings, ...] = ()
    rules: tuple[Rule, ...] = ()
    sources: tuple[SourceSettings, ...] = ()
    conventions: tuple[Convention, ...] = ()
    strategies: Mapping[FailureKind, Strategy] = MappingProxyType({})

    def __post_init__(self) -> None:
        if self.consume.breaker.max_pause < self.consume.breaker.pause:
            raise SettingsError("consume.breaker.max_pause must not be shorter than consume.breaker.pause")
        if self.health.max_write_age <= self.health.write_interval:
            raise SettingsError("health.max_write_age must be longer than health.write_interval")
        redact = self.redact
        check_redaction(redact.mode, redact.patterns, redact.terms, redact.allow, redact.disabled)
        self.strategy_options()

    def classifier(self) -> Classifier:
        """Create the classifier of errors."""
        return Classifier(self.rules)

    def redactor(self) -> Redactor:
        """Create the redactor of error texts."""
        redact = self.redact
        return Redactor(redact.mode, redact.patterns, redact.terms, redact.allow, redact.disabled)  # type: ignore[arg-type]  # checked there

    def strategy_options(self) -> StrategyOptions:
        """Create the options that decide when a dead letter is redriven."""
        names = (
            "delays",
            "off_peak_hours",
            "time_zone",
            "recheck_interval",
            "max_cpu",
            "max_memory",
            "max_redrives",
        )
        return StrategyOptions(table=self.strategies, **{name: getattr(self.recover, name) for name in names})
