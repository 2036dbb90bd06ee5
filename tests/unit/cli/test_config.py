"""`redrive config` shows no secret, and calls only settings right that the other commands accept."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from redrive.cli.root import cli
from redrive.errors import SettingsError
from redrive.settings import hide_secrets, load
from redrive.transports import open_transport
from redrive.transports.upkeep import upkeep_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(cli, ["config", *words], env=environ)


def refusal(result: Result) -> str:
    assert isinstance(result.exception, SettingsError), result.output
    return str(result.exception)


# --- secrets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:redrive.db", "sqlite:redrive.db"),
        ("amqp://guest@host/shop", "amqp://guest@host/shop"),
        ("amqp://u:s3cret@host:5672/shop", "amqp://u:…@host:5672/shop"),
        ("amqp://u:s3@cret@host/shop", "amqp://u:…@host/shop"),
        ("amqp://u:s3/cret@host/shop", "amqp://u:…@host/shop"),
        ("amqp://u:s3?cret@host/shop", "amqp://u:…@host/shop"),
        ("postgresql://host/db?user=u&password=s3cret", "postgresql://host/db?user=u&password=…"),
        ("postgresql://host/db?user=a@b&password=s3cret#x", "postgresql://host/db?user=a@b&password=…#x"),
        ("postgresql://u:s3cret@host/db?sslpassword=s3cret", "postgresql://u:…@host/db?sslpassword=…"),
        ("postgresql:///db?host=/run&pass%77ord=s3cret", "postgresql:///db?host=/run&pass%77ord=…"),
        ("postgresql://host/db?PASSWORD=s3cret;sslmode=require", "postgresql://host/db?PASSWORD=…;sslmode=require"),
        ("kafkas://u:s3cret@k:9093/?ssl.key.password=s3cret", "kafkas://u:…@k:9093/?ssl.key.password=…"),
        ("kafkas://k/?ssl.key.pem=s3cret&group=a", "kafkas://k/?ssl.key.pem=…&group=a"),
        ("https://host/hook?access_token=s3cret&api-key=s3cret", "https://host/hook?access_token=…&api-key=…"),
        ("postgresql://host/db?sslkey=/etc/key.pem&passfile=/x", "postgresql://host/db?sslkey=/etc/key.pem&passfile=/x"),
    ],
)  # fmt: skip
def test_hide_secrets_hides_passwords_before_the_host_and_in_the_query(url: str, shown: str) -> None:
    assert hide_secrets(url) == shown


@pytest.mark.parametrize("words", [("show",), ("show", "--json"), ("check",)], ids=" ".join)
def test_config_prints_no_password_of_a_query(words: tuple[str, ...]) -> None:
    result = run(
        *words,
        REDRIVE_STORE_URL="postgresql://host/db?user=u&password=s3cret&sslpassword=s3cret",
        REDRIVE_BROKER_URL="kafkas://u:s3cret@k:9093/?ssl.key.password=s3cret",
    )
    assert result.exit_code == 0, result.exception
    assert "s3cret" not in result.output
    assert "postgresql://host/db?user=u&password=" in result.output


# --- values that are kept elsewhere ----------------------------------------------------------------------


def test_setting_is_read_from_a_variable_or_a_file(folder: Path) -> None:
    (folder / "store-url").write_text("postgresql://u:s3cret@host/db\n")
    (folder / "redrive.toml").write_text(
        '[store]\nurl = "file:store-url"\n[broker]\nurl = "env:SHOP_BROKER"\n'
        '[[notifiers]]\nname = "ops"\ntype = "slack"\nurl = "env:SLACK"\n'
    )
    environ = {"SHOP_BROKER": "amqp://u:s3cret@host/shop", "SLACK": "https://hooks.example/T/s3cret"}
    settings = load(None, environ)
    assert settings.store.url == "postgresql://u:s3cret@host/db"
    assert settings.broker.url == "amqp://u:s3cret@host/shop"
    assert settings.notifiers[0].url == "https://hooks.example/T/s3cret"
    assert run("check", **environ).exit_code == 0
    shown = run("show", **environ)
    assert "s3cret" not in shown.output
    assert 'url = "file:store-url"' in shown.output
    assert 'url = "env:SHOP_BROKER"' in shown.output
    assert 'url = "env:SLACK"' in shown.output


def test_reference_that_cannot_be_read_is_refused_where_it_is_used_and_by_config_check(folder: Path) -> None:
    (folder / "redrive.toml").write_text('[broker]\nurl = "env:SHOP_BROKER"\n')
    url = load(None, {}).broker.url
    assert url == "env:SHOP_BROKER", "a command that does not use it does not need it"
    for use in (open_transport, upkeep_of):
        with pytest.raises(SettingsError, match="the variable SHOP_BROKER is not set"):
            use(url)
    assert refusal(run("check")) == "broker.url = 'env:SHOP_BROKER': the variable SHOP_BROKER is not set"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('[store]\nurl = "file:missing"', "store.url = 'file:missing': the file missing cannot be read: "),
        ('[store]\nurl = "file:empty"', "store.url = 'file:empty': the file empty is empty"),
        ('[store]\nurl = "postgre://h/db"', "is not a store; write sqlite:FILE, postgresql://… or memory:"),
        ('[store]\nurl = "sqlite:"', "store.url = 'sqlite:' is not a store"),
        ('[broker]\nurl = "ampq://host/"', "unknown scheme 'ampq'; did you mean 'amqp'?"),
        ('[broker]\nurl = "amqp://host:port/"', "broker URL: "),
        ('[broker]\nurl = "amqp://host/"\nmanagement_url = "host:15672"', "management URL: "),
    ],
)
def test_config_check_refuses_what_other_commands_refuse(folder: Path, settings: str, says: str) -> None:
    (folder / "empty").write_text("\n")
    (folder / "redrive.toml").write_text(settings)
    assert says in refusal(run("check"))
