"""What does a program know once its settings are read?

One frozen value for each section, and `Settings` for all of them. Defaults stand here and nowhere else. The rule: what
two settings must agree on, and what they cannot be made of, is refused when a `Settings` is made.

It does not know how a value was written, nor between which limits it may be; see `table`.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

import msgspec

from redrive.errors import SettingsError
from redrive.letters import Kind
from redrive.letters.convention import Convention
from redrive.letters.redact import Redactor, check_redaction
from redrive.rules import Backoff, Classifier, Exponential, Rule, Strategy, StrategyOptions


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where dead letters are kept."""

    url: str = "sqlite:redrive.db"
    busy_timeout: timedelta = timedelta(seconds=10)
    check_for: timedelta = timedelta(seconds=2)
    max_bytes: int | None = None
    pool: int = 10
    statement_timeout: timedelta = timedelta(minutes=1)


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages come from."""

    name: str | None = None  # None: the kind of the broker
    url: str | None = None
    management_url: str | None = None


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where `redrive serve` keeps its data and listens."""

    data: str = "."
    host: str = "127.0.0.1"
    port: int = 8642
    broker_port: int = 5672
    management_port: int = 15672
    anonymous_login_user: str = "guest"
    anonymous_login_pass: str = "guest"  # noqa: S105  RabbitMQ's default
    allowed_hosts: tuple[str, ...] = ()


class EmbeddedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which extensions of AMQP the embedded broker has, of `redrive serve` and of `redrive broker`."""

    enable_dlx: bool = True
    enable_ttl: bool = True
    enable_length_limit: bool = True


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What other processes need to use the store of a running server."""

    key: str | None = None  # None: the one in the file server.key of its data directory


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What requests and imported files may expand to."""

    letter_bytes: int = 64 * 1024 * 1024
    compression_ratio: int = 200
    request_bytes: int = 256 * 1024 * 1024


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead-letter queues are drained into the store, beside those of the sources."""

    queues: tuple[str, ...] = ()
    batch: int = 500
    discover: bool = True


class ConsumeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How sources are consumed."""

    prefetch: int = 16
    concurrency: int = 5
    time_budget: timedelta = timedelta(seconds=60)
    stop_timeout: timedelta = timedelta(seconds=30)
    provision: bool = True
    dead_letter: str = "publish"
    best_effort: bool = False
    flood_breaker: bool = True
    flood_share: float = 0.8
    flood_least: int = 20
    flood_pause: timedelta = timedelta(seconds=5)
    flood_longest: timedelta = timedelta(minutes=1)
    state_directory: str | None = None


class SourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one source has of its own; what is unset is as for all of them."""

    name: str
    prefetch: int | None = None
    concurrency: int | None = None
    time_budget: timedelta | None = None
    max_deliveries: int | None = None
    attempts: int | None = None
    backoff: Backoff | None = None
    dead_letter: str | None = None
    dead_letter_queue: str | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    queue_type: str | None = None
    group: str | None = None
    redrive_rate: float | None = None


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Level one: a delivery is tried again within seconds, then given up."""

    max_deliveries: int = 3
    attempts: int = 3
    backoff: Backoff = Exponential()


class RecoverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Level two: a dead letter is sent back within minutes to days."""

    lease: timedelta = timedelta(minutes=5)
    poll: timedelta = timedelta(seconds=30)
    batch: int = 10
    max_redrives: int = 5
    steps: tuple[timedelta, ...] = StrategyOptions().steps
    off_peak_hours: tuple[int, ...] = (2, 3, 4)
    time_zone: str = "UTC"
    recheck: timedelta = timedelta(minutes=1)
    cpu_below: float = 0.80
    memory_below: float = 0.85
    workers: int = 2
    rate: float | None = None
    verdict_timeout: timedelta = timedelta(hours=1)


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """When the health check of a replay fails."""

    max_depth: int = 10_000
    min_consumers: int = 1
    max_failure_rate: float = 0.6
    unchecked: int = 10


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long letters that are done with are kept."""

    resolved: timedelta = timedelta(days=30)
    failed: timedelta = timedelta(days=90)
    archived: timedelta = timedelta(days=365)
    directory: str | None = None
    every: timedelta = timedelta(hours=1)
    change_log: timedelta = timedelta(days=30)
    change_log_bytes: int = 1_000_000_000


class RedactSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is hidden in error texts."""

    mode: str = "parts"
    terms: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    extra: Mapping[str, str] = MappingProxyType({})


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How `redrive serve` checks its store and its broker."""

    write_interval: timedelta = timedelta(seconds=10)
    max_write_age: timedelta = timedelta(seconds=30)
    broker_interval: timedelta = timedelta(seconds=10)


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the alarm is."""

    every: timedelta = timedelta(seconds=15)
    probe_every: timedelta = timedelta(seconds=60)
    cool_down: timedelta = timedelta(minutes=15)
    calm: timedelta = timedelta(minutes=2)
    escalate_after: timedelta = timedelta(minutes=30)
    escalations: int = 3


class AlertRuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is changed of a rule that is shipped, or a rule of one's own; what is unset is as it was."""

    name: str
    measure: str | None = None
    warning: float | None = None
    critical: float | None = None
    below: bool | None = None
    confirm: int | None = None
    text: str | None = None
    off: bool = False


class ConditionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A check that letters wait for; without sources and kinds, those with the conditional strategy do."""

    name: str
    url: str
    timeout: timedelta = timedelta(seconds=2)
    every: timedelta = timedelta(seconds=15)
    sources: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def with_url(self, url: str) -> "ConditionSettings":
        """The same check of another URL."""
        return msgspec.structs.replace(self, url=url)


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is told, and how."""

    name: str
    kind: str
    least: str = "warning"
    escalated: bool = False
    queues: str = "*"
    timeout: timedelta = timedelta(seconds=10)
    url: str | None = None
    secret: str | None = None
    host: str | None = None
    port: int | None = None
    tls: str = "starttls"
    user: str | None = None
    password: str | None = None
    sender: str | None = None
    to: tuple[str, ...] = ()


class MaintenanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which nobody is told."""

    lasts: timedelta
    begins: datetime | None = None
    cron: str | None = None
    zone: str = "UTC"
    queues: str = "*"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set."""

    store: StoreSettings = StoreSettings()
    broker: BrokerSettings = BrokerSettings()
    consume: ConsumeSettings = ConsumeSettings()
    retry: RetrySettings = RetrySettings()
    recover: RecoverSettings = RecoverSettings()
    replay: ReplaySettings = ReplaySettings()
    retention: RetentionSettings = RetentionSettings()
    collect: CollectSettings = CollectSettings()
    serve: ServeSettings = ServeSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    health: HealthSettings = HealthSettings()
    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    redact: RedactSettings = RedactSettings()
    alerts: AlertSettings = AlertSettings()
    conditions: tuple[ConditionSettings, ...] = ()
    alert_rules: tuple[AlertRuleSettings, ...] = ()
    notify: tuple[NotifySettings, ...] = ()
    maintenance: tuple[MaintenanceSettings, ...] = ()
    rules: tuple[Rule, ...] = ()
    sources: tuple[SourceSettings, ...] = ()
    conventions: tuple[Convention, ...] = ()
    strategies: Mapping[Kind, Strategy] = MappingProxyType({})

    def __post_init__(self) -> None:
        if self.consume.flood_longest < self.consume.flood_pause:
            raise SettingsError("consume.flood_longest: wants a duration not shorter than flood_pause")
        if self.health.max_write_age <= self.health.write_interval:
            raise SettingsError("health.max_write_age must be longer than health.write_interval")
        redact = self.redact
        check_redaction(redact.mode, redact.extra, redact.terms, redact.keep, redact.off)
        self.strategy_options()

    def classifier(self) -> Classifier:
        """What tells what an error is."""
        return Classifier(self.rules)

    def redactor(self) -> Redactor:
        """What takes secrets out of error texts."""
        redact = self.redact
        return Redactor(redact.mode, redact.extra, redact.terms, redact.keep, redact.off)  # type: ignore[arg-type]  # checked there

    def strategy_options(self) -> StrategyOptions:
        """What chooses when a dead letter is sent back."""
        names = (
            "steps",
            "off_peak_hours",
            "time_zone",
            "recheck",
            "cpu_below",
            "memory_below",
            "max_redrives",
        )
        return StrategyOptions(table=self.strategies, **{name: getattr(self.recover, name) for name in names})
