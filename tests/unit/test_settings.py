"""Settings are read whole or refused in one line that says where it stands and what to write."""

import contextlib
import os
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.letters import FailureKind
from redrive.rules import DelayList, Exponential, Fixed, Strategy
from redrive.settings import FILE_NAME, LISTS, RENAMED, SECTIONS, Settings, load, read, variable_name


def refusal(table: dict[str, Any], environ: dict[str, str] | None = None) -> str:
    """The one line with which these settings are refused."""
    with pytest.raises(SettingsError) as problem:
        read(table, environ or {})
    message = str(problem.value)
    assert "\n" not in message
    return message


def from_file(path: Path, text: str | bytes, environ: dict[str, str] | None = None) -> Settings:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, environ or {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.toml"


# --- where they come from --------------------------------------------------------------------------------


def test_nothing_said_means_the_defaults() -> None:
    settings = read({})
    assert settings == Settings()
    assert settings.store.url == "sqlite:redrive.db"
    assert settings.store.max_bytes is None
    assert settings.consume.max_deliveries == 3
    assert settings.recover.lease == timedelta(minutes=5)
    assert settings.recover.poll_interval == timedelta(seconds=30)
    assert settings.recover.max_redrives == 5
    assert settings.recover.delays == tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 30, 60))
    assert settings.recover.off_peak_hours == (2, 3, 4)


def test_every_setting_has_a_default_a_reader_and_a_meaning() -> None:
    for section, (kind, known) in SECTIONS.items():
        nested = {name.removeprefix(f"{section}.") for name in SECTIONS if name.startswith(f"{section}.")}
        assert {*known, *nested} == set(kind.__struct_fields__), section  # type: ignore[attr-defined]
        assert isinstance(attrgetter(section)(Settings()), kind)
        assert all(setting.help for setting in known.values())


def test_a_file_is_read(file: Path) -> None:
    settings = from_file(
        file,
        """
        [store]
        url = "memory:"
        busy_timeout = "250ms"
        max_bytes = 1_048_576
        [consume]
        backoff = ["1s", "5s", "stop"]
        [recover]
        delays = ["1m", "1h30m"]
        off_peak_hours = [0, 23]
        time_zone = "Europe/Berlin"
        max_cpu = 1
        [redact]
        mode = "text"
        terms = ["Falcon"]
        patterns = { ticket = "T-[0-9]{4}" }
        """,
    )
    assert settings.store.url == "memory:"
    assert settings.store.busy_timeout == timedelta(milliseconds=250)
    assert settings.store.max_bytes == 2**20
    assert settings.consume.backoff == DelayList(timedelta(seconds=1), timedelta(seconds=5), then="stop")
    assert settings.recover.delays == (timedelta(minutes=1), timedelta(minutes=90))
    assert settings.recover.off_peak_hours == (0, 23)
    assert settings.recover.max_cpu == 1.0
    assert settings.redactor().clean("about Falcon") == settings.redactor().clean("code T-1234")
    assert settings.strategy_options().time_zone == "Europe/Berlin"


def test_without_a_path_the_file_here_is_read_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load() == Settings()
    Path(FILE_NAME).write_text("[recover]\nbatch_size = 7\n", "utf-8")
    assert load().recover.batch_size == 7


def test_the_environment_wins_over_the_file(file: Path) -> None:
    text = "[recover]\nbatch_size = 7\npoll_interval = '1s'\n"
    settings = from_file(file, text, {"REDRIVE_RECOVER_BATCH_SIZE": "8", "REDRIVE_STORE_URL": "memory:"})
    assert settings.recover.batch_size == 8
    assert settings.recover.poll_interval == timedelta(seconds=1)
    assert settings.store.url == "memory:"


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("REDRIVE_STORE_URL", "sqlite:/var/lib/x.db", "sqlite:/var/lib/x.db"),
        ("REDRIVE_STORE_URL", '"sqlite:x.db"', "sqlite:x.db"),
        ("REDRIVE_STORE_BUSY_TIMEOUT", "3s", timedelta(seconds=3)),
        ("REDRIVE_STORE_MAX_BYTES", "2_000_000", 2_000_000),
        ("REDRIVE_CONSUME_BACKOFF", "10s", Fixed(timedelta(seconds=10))),
        (
            "REDRIVE_CONSUME_BACKOFF",
            "exponential 2s x3 cap 1m ±10%",
            Exponential(timedelta(seconds=2), 3, jitter=0.1),
        ),
        ("REDRIVE_RECOVER_OFF_PEAK_HOURS", "[1, 2]", (1, 2)),
        ("REDRIVE_RECOVER_DELAYS", '["1m", "2m"]', (timedelta(minutes=1), timedelta(minutes=2))),
        ("REDRIVE_RECOVER_MAX_CPU", "0.5", 0.5),
        ("REDRIVE_RECOVER_TIME_ZONE", "Asia/Tokyo", "Asia/Tokyo"),
        ("REDRIVE_REDACT_TERMS", "['one', 'two']", ("one", "two")),
        ("REDRIVE_REDACT_PATTERNS", "{ticket = 'T-[0-9]{4}'}", {"ticket": "T-[0-9]{4}"}),
    ],
)
def test_a_variable_is_read_as_the_file_would_be(variable: str, text: str, value: object) -> None:
    section, name = variable.removeprefix("REDRIVE_").lower().split("_", 1)
    assert getattr(getattr(read({}, {variable: text}), section), name) == value


def test_variables_of_others_are_left_alone() -> None:
    others = {
        "REDRIVE": "x",
        "REDRIVE_REQUIRE_SERVICES": "1",
        "STORE_URL": "x",
        "redrive_store_url": "x",
        "PATH": "/",
    }
    assert read({}, others) == Settings()


def test_nested_table_is_read_from_file_and_environment() -> None:
    table = {"consume": {"prefetch": 3, "breaker": {"pause": "1s", "window": 7}}}
    consume = read(table, {"REDRIVE_CONSUME_BREAKER_WINDOW": "9"}).consume
    assert (consume.prefetch, consume.breaker.pause, consume.breaker.window) == (3, timedelta(seconds=1), 9)
    alone = read({}, {"REDRIVE_CONSUME_BREAKER_ENABLED": "false"}).consume
    assert alone == msgspec.structs.replace(
        Settings().consume, breaker=msgspec.structs.replace(Settings().consume.breaker, enabled=False)
    )


def test_rules_and_strategies_come_from_the_file(file: Path) -> None:
    settings = from_file(
        file,
        """
        [strategies]
        timeout = "scheduled"
        [[rules]]
        name = "dup"
        kind = "business"
        text = "duplicate invoice"
        [[rules]]
        name = "later"
        kind = "unavailable"
        status = 418
        """,
    )
    assert [rule.name for rule in settings.rules] == ["dup", "later"]
    assert settings.classifier().classify_text("E", "Duplicate invoice 7").rule == "dup"
    assert settings.strategies == {FailureKind.TIMEOUT: Strategy.SCHEDULED}
    assert settings.strategy_options().strategy_for(FailureKind.TIMEOUT) is Strategy.SCHEDULED
    assert settings.strategy_options().strategy_for(FailureKind.NETWORK) is Strategy.IMMEDIATE


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"stroe": {}}, "unknown section [stroe]; did you mean 'store'?"),
        ({"zzz": {}}, "unknown section [zzz]; use one of store, broker, consume, recover, "),
        ({"store": {"ulr": "x"}}, "unknown setting 'ulr' in [store]; did you mean 'url'?"),
        ({"store": {"zzzzz": 1}}, "unknown setting 'zzzzz' in [store]; use one of url, busy_timeout"),
        ({"store": {"lease": "5m"}}, "unknown setting 'lease' in [store]"),
        ({"store": 5}, "'store' is a section; write [store] on a separate line"),
        ({"store": "sqlite:x"}, "'store' is a section"),
        ({"store": []}, "'store' is a section"),
        ({"rules": {}}, "rules: write a list"),
        ({"rules": [{"name": "r", "kind": "busines", "text": "x"}]}, "did you mean 'business'?"),
        ({"strategies": []}, "strategies: write a table"),
        ({"strategies": {"timeot": "manual"}}, "did you mean 'timeout'?"),
        ({"strategies": {"timeout": "manul"}}, "did you mean 'manual'?"),
        ({"redact": {"mode": "hole"}}, "redact.mode = 'hole': must be one of secret, text"),
        ({"redact": {"patterns": {"bad": "("}}}, "bad"),
        ({"redact": {"disabled": ["nonsense"]}}, "nonsense"),
        ({"recover": {"time_zone": "Mars/Base"}}, "unknown time zone 'Mars/Base'"),
    ],
)
def test_what_is_unknown_is_refused_with_what_to_write_instead(table: dict[str, Any], says: str) -> None:
    assert says in refusal(table)


def names_of_settings() -> set[str]:
    sections = {f"{section}.{name}" for section, (_, known) in SECTIONS.items() for name in known}
    return sections | {f"{section}.{key}" for section in LISTS for key in LISTS[section].keys}


@pytest.mark.parametrize("old", RENAMED)
def test_renamed_setting_is_refused_with_its_new_name(old: str) -> None:
    new = RENAMED[old]
    known = names_of_settings()
    assert old not in known
    section, _, name = old.partition(".")
    if not name:
        assert new in {*SECTIONS, *LISTS}
        assert refusal({section: []}) == f"unknown section [{section}]; did you mean '{new}'?"
        return
    assert new in known
    if section in LISTS:
        assert refusal({section: [{name: "x"}]}).endswith(f"; did you mean '{new}'?")
        return
    assert refusal({section: {name: "x"}}).endswith(f"; did you mean '{new}'?")
    variable = refusal({}, {variable_name(old): "x"})
    assert variable == f"unknown variable {variable_name(old)}; did you mean '{variable_name(new)}'?"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"consume": {"dead_letter": "reject"}}, "must be one of publish, native; did you mean 'native'?"),
        ({"redact": {"mode": "whole"}}, "must be one of secret, text; did you mean 'text'?"),
        ({"redact": {"mode": "parts"}}, "must be one of secret, text; did you mean 'secret'?"),
        ({"consume": {"breaker": {"puase": "1s"}}}, "unknown setting 'puase' in [consume.breaker]"),
        ({"consume": {"breaker": True}}, "'consume.breaker' is a section; write [consume.breaker]"),
        ({"consume.breaker": {"pause": "1s"}}, "unknown section [consume.breaker]"),
        ({"consume": {"breaker": {"pause": "2m"}}}, "consume.breaker.max_pause must not be shorter"),
        ({"retry": {"zzz": 1}}, "unknown section [retry]; did you mean 'consume'?"),
    ],
)
def test_renamed_values_and_nested_tables_are_checked(table: dict[str, Any], says: str) -> None:
    assert says in refusal(table)


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        (
            "REDRIVE_STORE_ULR",
            "unknown variable REDRIVE_STORE_ULR; did you mean 'url'?",
        ),
        ("REDRIVE_RECOVER_ZZZZZ", "use one of lease, poll_interval"),
        ("REDRIVE_CONSUME_BREAKER_PUASE", "did you mean 'breaker_pause'?"),
        ("REDRIVE_STORE_", "unknown variable REDRIVE_STORE_"),
        ("REDRIVE_STORE", "unknown variable REDRIVE_STORE"),
    ],
)
def test_an_unknown_variable_is_refused(variable: str, says: str) -> None:
    assert says in refusal({}, {variable: "x"})


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("store.url", 5, "must be a non-empty string"),
    ("store.url", "  ", "must be a non-empty string"),
    ("store.url", True, "must be a non-empty string"),
    ("store.busy_timeout", 5, "must be a duration with a unit"),
    ("store.busy_timeout", "5", "add a unit, such as '5s'"),
    ("store.busy_timeout", "soon", "is not a duration"),
    ("store.max_bytes", "big", "must be an integer between 1048576 and"),
    ("store.max_bytes", 2e6, "must be an integer"),
    ("store.max_bytes", True, "must be an integer"),
    ("consume.backoff", 5, "is not a back-off"),
    ("consume.backoff", "exponential soon", "cannot read 'soon'"),
    ("consume.backoff", [], "a list of delays needs at least one"),
    ("recover.batch_size", "ten", "must be an integer between 1 and 10000"),
    ("recover.delays", "1m", "must be a list of durations"),
    ("recover.delays", [], "must be a list of durations"),
    ("recover.delays", [5], "must be a duration with a unit"),
    ("recover.off_peak_hours", 2, "must be a list of hours"),
    ("recover.off_peak_hours", [], "must be a list of hours"),
    ("recover.off_peak_hours", ["2"], "must be an integer between 0 and 23"),
    ("recover.max_cpu", "0.8", "must be a number above 0 and up to 1"),
    ("recover.max_cpu", True, "must be a number above 0 and up to 1"),
    ("recover.max_cpu", float("nan"), "must be a number above 0 and up to 1"),
    ("redact.terms", "one", "must be a list of non-empty strings"),
    ("redact.terms", ["one", " "], "must be a list of non-empty strings"),
    ("redact.allow", [5], "must be a list of non-empty strings"),
    ("redact.patterns", [], "must be a table of strings"),
    ("redact.patterns", {"a": 5}, "must be a table of strings"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG_TYPES)
def test_a_value_of_the_wrong_type_is_refused_where_it_stands(name: str, value: Any, says: str) -> None:
    section, setting = name.split(".")
    message = refusal({section: {setting: value}})
    assert message.startswith(f"{name} = ")
    assert says in message


# (setting, just below, lowest, highest, just above)
LIMITS: list[tuple[str, Any, Any, Any, Any]] = [
    ("store.busy_timeout", "-1s", "0s", "1h", "1h1us"),
    ("store.integrity_check_timeout", "-1us", "0s", "1d", "1d1us"),
    ("store.max_bytes", 2**20 - 1, 2**20, 2**47, 2**47 + 1),
    ("consume.max_deliveries", 0, 1, 1000, 1001),
    ("consume.attempts", 0, 1, 100, 101),
    ("recover.lease", "999ms", "1s", "30d", "30d1us"),
    ("recover.poll_interval", "9ms", "10ms", "1d", "1d1us"),
    ("recover.batch_size", 0, 1, 10_000, 10_001),
    ("recover.max_redrives", -1, 1, 1000, 1001),
    ("recover.delays", ["-1s"], ["0s"], ["365d"], ["365d1us"]),
    ("recover.off_peak_hours", [-1], [0], [23], [24]),
    ("recover.recheck_interval", "0s", "1s", "1d", "1d1us"),
    ("recover.max_cpu", 0, 0.000001, 1, 1.000001),
    ("recover.max_memory", -0.5, 0.5, 1.0, 85),
    ("consume.backoff", "-1s", "0s", "3650d", "3651d"),
]


@pytest.mark.parametrize(("name", "below", "lowest", "highest", "above"), LIMITS)
def test_limits_are_kept_exactly(name: str, below: Any, lowest: Any, highest: Any, above: Any) -> None:
    section, setting = name.split(".")
    for fine in (lowest, highest):
        read({section: {setting: fine}})
    for wrong in (below, above):
        assert refusal({section: {setting: wrong}}).startswith(f"{name} = ")


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "0",
        "9" * 30,
        "1e400",
        "nan",
        "inf",
        "true",
        "''",
        "{}",
        "[]",
        "1970-01-01",
        "-0.0",
        "\x00",
        "\udcff",
    ],
)
def test_absurd_variables_are_refused_for_every_setting_or_taken(text: str) -> None:
    for section, (_, known) in SECTIONS.items():
        for name in known:
            try:
                settings = read({}, {variable_name(f"{section}.{name}"): text})
            except SettingsError as error:
                assert "\n" not in str(error)  # noqa: PT017  both ways are right, another error is not
            else:
                assert isinstance(settings, Settings)


@pytest.mark.parametrize("absurd", ["9" * 5000, "0x" + "9" * 5000], ids=["decimal", "hexadecimal"])
@pytest.mark.parametrize("where", ["file", "environment"])
def test_a_number_of_thousands_of_digits_is_refused(file: Path, where: str, absurd: str) -> None:
    text, environ = "", {"REDRIVE_STORE_MAX_BYTES": absurd}
    if where == "file":
        text, environ = f"[store]\nmax_bytes = {absurd}\n", {}
    with pytest.raises(SettingsError):
        from_file(file, text, environ)


@pytest.mark.parametrize("text", ['["a\\nb"]\n', '[store]\n"a\\nb" = 1\n'], ids=["section", "setting"])
def test_a_name_with_a_line_end_is_refused_in_one_line(file: Path, text: str) -> None:
    with pytest.raises(SettingsError) as problem:
        from_file(file, text)
    assert "\n" not in str(problem.value)


@given(
    st.dictionaries(
        st.sampled_from([*SECTIONS, "rules", "strategies"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=5,
        ),
        max_size=3,
    )
)
def test_any_table_is_read_or_refused(table: dict[str, Any]) -> None:
    with contextlib.suppress(SettingsError):
        assert isinstance(read(table), Settings)


@given(
    st.sampled_from([(section, name) for section, (_, known) in SECTIONS.items() for name in known]),
    st.recursive(
        st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates() | st.datetimes(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=4,
    ),
)
def test_any_value_of_any_setting_is_read_or_refused_in_one_line(where: tuple[str, str], value: Any) -> None:
    section, name = where
    outer, _, inner = section.partition(".")
    try:
        read({outer: {inner: {name: value}} if inner else {name: value}})
    except SettingsError as error:
        assert "\n" not in str(error)  # noqa: PT017


# --- files that are none ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe[\x00s\x00", "is not UTF-8 text; write it as TOML"),
        (b"[store]\nurl = 'caf\xe9'\n", "is not UTF-8 text"),
        (b"[store\n", "is not valid TOML"),
        (b"{'store': 1}", "is not valid TOML"),
        (b"[store]\nurl = 'a'\nurl = 'b'\n", "is not valid TOML"),
        (b"a = " + b"[" * 5000, "is not valid TOML"),
        (b"\x00" * 100, "is not valid TOML"),
        (b"\x89PNG\r\n\x1a\n", "is not UTF-8 text"),
        (b"[stroe]\n", "unknown section [stroe]; did you mean 'store'?"),
    ],
)
def test_a_file_that_is_no_settings_is_refused_by_its_name(file: Path, content: bytes, says: str) -> None:
    with pytest.raises(SettingsError) as problem:
        from_file(file, content)
    message = str(problem.value)
    assert message.startswith(str(file))
    assert says in message
    assert "\n" not in message


def test_an_empty_file_is_all_defaults(file: Path) -> None:
    assert from_file(file, b"") == Settings()
    assert from_file(file, b"# nothing\n\n") == Settings()


def test_a_missing_file_a_directory_and_a_file_below_a_file_are_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, says in [
        (tmp_path / "missing.toml", os.strerror(2)),
        (tmp_path, os.strerror(21)),
        (plain / "x.toml", os.strerror(20)),
        (loop, os.strerror(40)),
        (tmp_path / ("x" * 300), os.strerror(36)),
    ]:
        with pytest.raises(SettingsError) as problem:
            load(path)
        assert str(problem.value) == f"{path} cannot be read: {says}"


def test_settings_made_by_hand_are_checked_as_well() -> None:
    with pytest.raises(SettingsError, match="unknown time zone"):
        Settings(recover=msgspec.structs.replace(Settings().recover, time_zone="Mars/Base"))
    with pytest.raises(SettingsError, match="redaction mode"):
        Settings(redact=msgspec.structs.replace(Settings().redact, mode="hole"))


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().store.url = "memory:"  # type: ignore[misc]
