"""What did the operator ask for?

One TOML file and the environment, read once, checked whole, turned into frozen values: whoever holds a `Settings`
holds something that can work. `SECTIONS` is every setting there is: its name, how it is read, its default and what
it means; the reference in the documentation is made of the same table.

The environment wins over the file: `REDRIVE_STORE_URL` is `url` in `[store]`. What is unknown, of the wrong type
or out of range is refused with one line that says where it stands and what to write instead.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec

from redrive.errors import SettingsError, did_you_mean, use_instead
from redrive.letters import Kind
from redrive.letters.convention import Convention, conventions_from_config
from redrive.letters.redact import Redactor
from redrive.rules import (
    Backoff,
    Classifier,
    Exponential,
    Rule,
    Strategy,
    StrategyOptions,
    format_duration,
    parse_backoff,
    parse_duration,
    rules_from_config,
    strategies_from_config,
)

FILE_NAME: Final = "redrive.toml"
_PREFIX: Final = "REDRIVE_"
Read: TypeAlias = Callable[[Any], Any]


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

    url: str | None = None
    management_url: str | None = None


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where `redrive serve` keeps its data and listens."""

    data: str = "."
    host: str = "127.0.0.1"
    port: int = 8642
    broker_port: int = 5672
    management_port: int = 15672


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
    quiet_time: timedelta = timedelta(hours=1)


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long letters that are done with are kept."""

    resolved: timedelta = timedelta(days=30)
    failed: timedelta = timedelta(days=90)
    archived: timedelta = timedelta(days=365)
    directory: str | None = None
    every: timedelta = timedelta(hours=1)


class RedactSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is hidden in error texts."""

    mode: str = "parts"
    terms: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    extra: Mapping[str, str] = MappingProxyType({})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set."""

    store: StoreSettings = StoreSettings()
    broker: BrokerSettings = BrokerSettings()
    consume: ConsumeSettings = ConsumeSettings()
    retry: RetrySettings = RetrySettings()
    recover: RecoverSettings = RecoverSettings()
    retention: RetentionSettings = RetentionSettings()
    collect: CollectSettings = CollectSettings()
    serve: ServeSettings = ServeSettings()
    redact: RedactSettings = RedactSettings()
    rules: tuple[Rule, ...] = ()
    sources: tuple[SourceSettings, ...] = ()
    conventions: tuple[Convention, ...] = ()
    strategies: Mapping[Kind, Strategy] = MappingProxyType({})

    def __post_init__(self) -> None:
        if self.consume.flood_longest < self.consume.flood_pause:
            raise SettingsError("consume.flood_longest: wants a duration not shorter than flood_pause")
        self.redactor()  # what they cannot be made of is refused here, not at the first dead letter
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


# --- reading one value -----------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError("wants text that is not empty")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise SettingsError("wants a list of texts, none of them empty")
    return tuple(value)


def _table(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise SettingsError("wants a table of texts")
    return value


def _whole(least: int, most: int) -> Read:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise SettingsError(f"wants a whole number between {least} and {most}")
        return value

    return read


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError("wants true or false")
    return value


def _one_of(*words: str) -> Read:
    def read(value: Any) -> str:
        if value not in words:
            raise SettingsError(f"wants one of {', '.join(words)}{did_you_mean(value, words)}")
        return str(value)

    return read


def _hours(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise SettingsError("wants a list of hours such as [2, 3, 4]")
    return tuple(_whole(0, 23)(hour) for hour in value)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise SettingsError("wants a share between 0 and 1, such as 0.8")
    return float(value)


def _duration(least: timedelta, most: timedelta) -> Read:
    def read(value: Any) -> timedelta:
        if not isinstance(value, str):
            raise SettingsError('wants a duration with its unit, such as "30s" or "5m"')
        duration = parse_duration(value)
        if not least <= duration <= most:
            raise SettingsError(
                f"wants a duration between {format_duration(least)} and {format_duration(most)}"
            )
        return duration

    return read


def _durations(value: Any) -> tuple[timedelta, ...]:
    if not isinstance(value, list) or not value:
        raise SettingsError('wants a list of durations such as ["1m", "5m"]')
    return tuple(_duration(timedelta(0), timedelta(days=365))(item) for item in value)


# --- every setting ---------------------------------------------------------------------------------------


class Setting(msgspec.Struct, frozen=True):
    """How a setting is read, and what it means."""

    read: Read
    help: str


_SECOND, _HOUR, _DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
_SOON = timedelta(milliseconds=10)
_AGES = timedelta(days=36_500)
# What holds for all sources, and may hold otherwise for one.
_PREFETCH = Setting(_whole(1, 65_535), "deliveries that may be out and unsettled")
_CONCURRENCY = Setting(_whole(1, 10_000), "handlers that run at the same time")
_TIME_BUDGET = Setting(_duration(_SOON, _DAY), "how long a handler may take for one attempt")
_DEAD_LETTER = Setting(
    _one_of("publish", "reject"), "`publish`: write the enriched letter; `reject`: leave it to the broker"
)
_MAX_DELIVERIES = Setting(_whole(1, 1000), "deliveries before a retryable failure is given up")
_ATTEMPTS = Setting(_whole(1, 100), "attempts in the process, for each delivery")
_BACKOFF = Setting(parse_backoff, "waits between attempts: exponential, a list, or one duration")
SECTIONS: Final[Mapping[str, tuple[type, Mapping[str, Setting]]]] = MappingProxyType(
    {
        "store": (
            StoreSettings,
            {
                "url": Setting(
                    _text,
                    "where dead letters are kept: `sqlite:FILE`, `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`,"
                    " `memory:` or `http://HOST:PORT`",
                ),
                "busy_timeout": Setting(_duration(timedelta(0), _HOUR), "how long to wait for another process"),
                "check_for": Setting(_duration(timedelta(0), _DAY), "how long to look for damage on opening"),
                "max_bytes": Setting(_whole(1_048_576, 2**47), "the file never grows beyond; unset: no limit"),
                "pool": Setting(_whole(2, 1000), "PostgreSQL: connections of this process, half of them for reading"),
                "statement_timeout": Setting(
                    _duration(_SOON, _DAY), "PostgreSQL: how long one statement may take"
                ),
            },
        ),
        "broker": (
            BrokerSettings,
            {
                "url": Setting(
                    _text,
                    "where messages come from: `amqp://USER:PASSWORD@HOST:PORT/VHOST`; unset: that of this machine",
                ),
                "management_url": Setting(_text, "its management API; unset: port 15672 of the same host"),
            },
        ),
        "consume": (
            ConsumeSettings,
            {
                "prefetch": _PREFETCH,
                "concurrency": _CONCURRENCY,
                "time_budget": _TIME_BUDGET,
                "stop_timeout": Setting(_duration(timedelta(0), _DAY), "how long handlers may take on stopping"),
                "provision": Setting(_yes_or_no, "make missing queues and exchanges on starting"),
                "dead_letter": _DEAD_LETTER,
                "best_effort": Setting(_yes_or_no, "settle even if the dead letter cannot be written, and count it"),
                "flood_breaker": Setting(_yes_or_no, "pause a source when most of what it delivers fails"),
                "flood_share": Setting(_share, "the share of failures that is most"),
                "flood_least": Setting(_whole(1, 100_000), "the deliveries that are looked at"),
                "flood_pause": Setting(_duration(_SOON, _DAY), "the first pause; each failed probe doubles it"),
                "flood_longest": Setting(_duration(_SOON, _DAY), "the longest pause"),
            },
        ),
        "retry": (
            RetrySettings,
            {"max_deliveries": _MAX_DELIVERIES, "attempts": _ATTEMPTS, "backoff": _BACKOFF},
        ),
        "recover": (
            RecoverSettings,
            {
                "lease": Setting(_duration(_SECOND, timedelta(days=30)), "how long a worker may hold a letter"),
                "poll": Setting(_duration(timedelta(milliseconds=10), _DAY), "how often workers look for letters"),
                "batch": Setting(_whole(1, 10_000), "letters claimed at once"),
                "max_redrives": Setting(_whole(1, 1000), "redrives before a letter is `dlq_failed`"),
                "steps": Setting(_durations, "waits of the immediate strategy; the last one repeats"),
                "off_peak_hours": Setting(_hours, "hours of the scheduled strategy"),
                "time_zone": Setting(_text, "the zone of those hours, such as `Europe/Berlin`"),
                "recheck": Setting(
                    _duration(_SECOND, _DAY),
                    "how often the conditional strategy looks again, and the first pause of a breaker that opens",
                ),
                "cpu_below": Setting(_share, "the conditional strategy waits for a CPU below this share"),
                "memory_below": Setting(_share, "the conditional strategy waits for memory below this share"),
                "workers": Setting(_whole(0, 1000), "workers of `redrive serve`; 0: nothing is sent back by itself"),
                "quiet_time": Setting(
                    _duration(_SECOND, timedelta(days=30)),
                    "a redrive without a verdict is then presumed to be processed",
                ),
            },
        ),
        "retention": (
            RetentionSettings,
            {
                "resolved": Setting(_duration(_SECOND, _AGES), "resolved letters are deleted after this time"),
                "failed": Setting(
                    _duration(_SECOND, _AGES), "failed letters go to files and are archived after this time"
                ),
                "archived": Setting(_duration(_SECOND, _AGES), "archived letters are in files only after this time"),
                "directory": Setting(_text, "where those files are kept; unset: `archive` in the data directory"),
                "every": Setting(_duration(_SECOND, _DAY), "how often it looks"),
            },
        ),
        "collect": (
            CollectSettings,
            {
                "queues": Setting(_texts, "dead-letter queues of other systems, beside those of `[[sources]]`"),
                "batch": Setting(_whole(1, 65_535), "dead letters collected at once"),
                "discover": Setting(_yes_or_no, "collect every queue `*.dlq` of the embedded broker, named or not"),
            },
        ),
        "serve": (
            ServeSettings,
            {
                "data": Setting(_text, "the data directory of `redrive serve`"),
                "host": Setting(_text, "the loopback address it listens on"),
                "port": Setting(_whole(0, 65_535), "its port for HTTP; 0: any free one"),
                "broker_port": Setting(_whole(0, 65_535), "the embedded broker's port for AMQP; 0: any free one"),
                "management_port": Setting(
                    _whole(0, 65_535), "the embedded broker's port for its management API; 0: any free one"
                ),
            },
        ),
        "redact": (
            RedactSettings,
            {
                "mode": Setting(_text, "`parts`: hide the secret; `whole`: replace the whole text"),
                "terms": Setting(_texts, "words to hide"),
                "keep": Setting(_texts, "texts never hidden"),
                "off": Setting(_texts, "kinds not looked for"),
                "extra": Setting(_table, "regular expressions to hide, by a name of one's own"),
            },
        ),
    }
)  # fmt: skip
# The keys of a [[sources]] table.
SOURCE: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        "name": Setting(_text, "the queue or topic"),
        "prefetch": _PREFETCH,
        "concurrency": _CONCURRENCY,
        "time_budget": _TIME_BUDGET,
        "max_deliveries": _MAX_DELIVERIES,
        "attempts": _ATTEMPTS,
        "backoff": _BACKOFF,
        "dead_letter": _DEAD_LETTER,
        "dead_letter_queue": Setting(_text, "where its dead letters lie; unset: `NAME.dlq`"),
        "dead_letter_exchange": Setting(_text, "the exchange they go through; unset: `NAME.dlx`"),
        "dead_letter_routing_key": Setting(_text, "the routing key they get; unset: the message's own"),
        "queue_type": Setting(
            _one_of("quorum", "classic"), "what `redrive provision` makes; unset: `quorum`"
        ),
        "group": Setting(_text, "Kafka: its consumer group, whose dead letters lie in `GROUP.dlq`"),
    }
)


def _sources(tables: Any) -> tuple[SourceSettings, ...]:
    if not isinstance(tables, list):
        raise SettingsError("sources: write a list, one [[sources]] table for each source")
    sources: list[SourceSettings] = []
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, dict):
            raise SettingsError(f"source {number}: write it as a table with a name")
        if "name" not in table:
            raise SettingsError(f"source {number}: needs a 'name', the queue or topic")
        for key in table:
            _check_known(f"unknown setting '{key}' of source {number}", key, SOURCE)
        values = {
            key: _one(f"source {number}: {key}", SOURCE[key].read, value) for key, value in table.items()
        }
        sources.append(SourceSettings(**values))
        if [source.name for source in sources].count(values["name"]) > 1:
            raise SettingsError(f"source {number}: '{values['name']}' is named twice; write one table for it")
    return tuple(sources)


_OTHERS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "rules": rules_from_config,
        "sources": _sources,
        "conventions": conventions_from_config,
        "strategies": strategies_from_config,
    }
)


# --- reading all -----------------------------------------------------------------------------------------


def load(path: Path | None = None, environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings in the file and the environment. No path: `redrive.toml` here, or defaults if there is none."""
    table = load_table(path)
    try:
        read(table)
    except SettingsError as error:
        raise SettingsError(f"{path or FILE_NAME}: {error}") from None
    return read(table, environ)  # what is wrong now, is wrong with the environment


def load_table(path: Path | None = None) -> dict[str, Any]:
    """What the file says, as it stands there, checked for nothing but its form."""
    if path is None:
        path = Path(FILE_NAME)
        if not path.exists():
            return {}
    try:
        return _from_toml(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; write it as TOML") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None


def _from_toml(text: str) -> dict[str, Any]:
    """The table, or a ValueError; that is also what Python raises for a number of more than 4300 digits."""
    table = tomllib.loads(text)
    repr(table)  # in hexadecimal such a number is read; it could not be shown by whoever refuses it
    return table


def read(table: Mapping[str, Any], environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings in a table, as TOML gives it, and in the environment."""
    sections = {name: _section(name, value) for name, value in table.items()}
    for section, name, value in _from_environment(environ):
        sections.setdefault(section, {})[name] = value
    fields: dict[str, Any] = {}
    for section, values in sections.items():
        if section in _OTHERS:
            fields[section] = _OTHERS[section](values)
        else:
            kind, known = SECTIONS[section]
            fields[section] = kind(**{n: _one(f"{section}.{n}", known[n].read, v) for n, v in values.items()})
    return Settings(**fields)


def _section(name: str, value: Any) -> Any:
    _check_known(f"unknown section [{name}]", name, (*SECTIONS, *_OTHERS))
    if name in _OTHERS:
        return value
    if not isinstance(value, dict):
        raise SettingsError(f"'{name}' is a section: write [{name}] on a line of its own")
    for key in value:
        _check_known(f"unknown setting '{key}' in [{name}]", key, SECTIONS[name][1])
    return dict(value)


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """(section, name, value) of each variable that names a setting."""
    found: list[tuple[str, str, Any]] = []
    for variable, text in sorted(environ.items()):
        section, _, name = variable.removeprefix(_PREFIX).lower().partition("_")
        if not variable.startswith(_PREFIX) or section not in SECTIONS:
            continue
        _check_known(
            f"unknown variable {variable}: [{section}] has no such setting", name, SECTIONS[section][1]
        )
        found.append((section, name, _from_text(text)))
    return found


def _from_text(text: str) -> Any:
    """A variable as TOML would read it; what TOML cannot read is plain text."""
    try:
        return _from_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _one(where: str, read_value: Read, value: Any) -> Any:
    try:
        return read_value(value)
    except SettingsError as error:
        raise SettingsError(f"{where} = {value!r:.60}: {error}") from None


def _check_known(message: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        raise SettingsError(message + use_instead(word, known))
