"""Settings: where they come from, and what a person is told of one that does not fit."""

import re
import traceback as tracebacks
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.config import (
    SETTINGS_FILE,
    Settings,
    load_effective,
    load_settings,
    shown,
    unknown_variables,
    with_flags,
)
from penstock.config.settings import EXAMPLES
from penstock.errors import ConfigurationError
from penstock.messaging.addresses import MASK


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of the test's own, without settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_go_before_the_environment_and_that_before_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / SETTINGS_FILE).write_text("max_objects = 1\nmax_attempts = 1\nlease_seconds = 20\n")
    monkeypatch.setenv("PENSTOCK_MAX_OBJECTS", "2")
    monkeypatch.setenv("PENSTOCK_MAX_ATTEMPTS", "2")
    settings = load_settings(max_objects=3, max_attempts=None)
    assert (settings.max_objects, settings.max_attempts, settings.lease_seconds) == (3, 2, 20.0)


def test_a_setting_that_does_not_fit_is_named_with_all_its_names() -> None:
    with pytest.raises(ConfigurationError, match=r"lease_seconds .*PENSTOCK_LEASE_SECONDS.*penstock\.toml.*given 1"):
        load_settings(lease_seconds=1)


def test_a_setting_there_is_not_is_refused(here: Path) -> None:
    (here / SETTINGS_FILE).write_text("max_object = 1\n")
    with pytest.raises(ConfigurationError, match=r"toml has no setting max_object; did you mean max_objects\?"):
        load_settings()
    (here / SETTINGS_FILE).write_text("colour = 1\n")
    with pytest.raises(ConfigurationError, match=r"no setting colour; `penstock config show` lists"):
        load_settings()


def test_a_variable_that_is_no_json_is_not_blamed_on_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_QUEUES", "greetings=2")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert str(caught.value) == 'PENSTOCK_QUEUES cannot be read: it holds JSON, such as {"orders": 2}.'


def test_a_list_where_a_table_belongs_is_told_how_to_write_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "penstock.toml").write_text('queues = ["orders"]\n')
    with pytest.raises(ConfigurationError, match="setting queues") as caught:
        load_settings()
    (example,) = re.findall(r"Write such as (.*) in penstock.toml, or PENSTOCK_QUEUES='(.*)'\.$", str(caught.value))
    (here / "penstock.toml").write_text(example[0])
    assert load_settings().queues == {"orders": 2}
    monkeypatch.setenv("PENSTOCK_QUEUES", example[1])
    assert load_settings().queues == {"orders": 2}


def test_a_secret_that_is_no_json_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "penstock_spark_conf").write_text("{bad")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(here))
    with pytest.raises(ConfigurationError, match="file penstock_spark_conf in PENSTOCK_SECRETS_DIR cannot be read"):
        load_settings()


def test_every_table_has_an_example_that_fits() -> None:
    tables = {name for name, value in load_settings() if isinstance(value, dict | list)}
    assert set(EXAMPLES) == tables
    assert load_settings(**EXAMPLES).queues == EXAMPLES["queues"]


def test_a_file_that_is_no_toml_is_named(here: Path) -> None:
    (here / SETTINGS_FILE).write_text("lease_seconds = \n")
    with pytest.raises(ConfigurationError, match=r"penstock\.toml in the current folder cannot be read"):
        load_settings()


def test_state_is_a_folder_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", "s3://lake/state")
    with pytest.raises(
        ConfigurationError, match=r"setting state .* does not fit: .*s3://lake/state is no folder of this"
    ):
        load_settings()


def test_secrets_go_before_the_file_and_after_the_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = here / "secrets"
    secrets.mkdir()
    for name in ("broker", "ledger", "state"):
        (secrets / f"penstock_{name}").write_text("of the secrets\n")
    (here / SETTINGS_FILE).write_text("broker = 'of the file'\nservice = 'of the file'\n")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(secrets))
    monkeypatch.setenv("PENSTOCK_LEDGER", "of the environment")
    settings = load_settings(state="of the flag")
    assert (settings.broker, settings.ledger) == ("of the secrets", "of the environment")
    assert (settings.state, settings.service) == ("of the flag", "of the file")
    origins = load_effective(state="of the flag").origins
    assert (origins["broker"], origins["ledger"]) == (f"secrets directory {secrets}", "PENSTOCK_LEDGER")
    assert (origins["state"], origins["service"], origins["queues"]) == ("flag", SETTINGS_FILE, "default")


def test_a_secrets_directory_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", "/nowhere")
    with pytest.raises(ConfigurationError, match="PENSTOCK_SECRETS_DIR names /nowhere, which is no folder"):
        load_settings()


def test_a_secret_that_cannot_be_read_is_not_blamed_on_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "penstock_broker").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(here))
    with pytest.raises(ConfigurationError, match=r"secret .* cannot be read: .*broker.*Secrets") as caught:
        load_settings()
    assert SETTINGS_FILE not in str(caught.value)


def test_flags_change_settings_and_are_checked_as_they_are() -> None:
    settings = load_settings()
    assert with_flags(settings, concurrency=5, queues=None).concurrency == 5
    assert with_flags(settings, concurrency=None) == settings
    with pytest.raises(ConfigurationError, match=r"concurrency .*greater than or equal to 1, given 0"):
        with_flags(settings, concurrency=0)
    with pytest.raises(ConfigurationError, match=r"queues\.a \(flag, PENSTOCK_QUEUES"):
        with_flags(settings, queues={"a": 0})


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 86_401.0])
def test_a_stop_timeout_has_a_bound(seconds: float) -> None:
    assert load_settings(stop_timeout_seconds=86_400.0).stop_timeout_seconds == 86_400.0
    with pytest.raises(ConfigurationError, match=r"stop_timeout_seconds .* does not fit"):
        load_settings(stop_timeout_seconds=seconds)
    with pytest.raises(ConfigurationError, match=r"stop_timeout_seconds .* does not fit"):
        with_flags(load_settings(), stop_timeout_seconds=seconds)


def test_variables_that_name_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_LEASE_SECOND", "penstock_broker", "PENSTOCK_SECRETS_DIR", "PENSTOCKED"):
        monkeypatch.setenv(name, "")
    assert unknown_variables() == ["PENSTOCK_LEASE_SECOND"]


@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("broker", "redis://:hush@host:6379/0", "redis://:***@host:6379/0"),
        ("broker", "redis://me:p/hush?hush#hush@host", "redis://me:***@host"),
        ("broker", "redis:/me:hush@host", "***"),
        ("broker", "me:hush@host", "***"),
        ("broker", "redis://h?pasword=hush", "redis://h?pasword=***"),
        ("broker", "redis://hush@127.0.0.1:7399/0", "redis://***@127.0.0.1:7399/0"),
        ("broker", "redis:h?pasword=hush", "***"),
        ("broker", "redis://h?pass=hush&db=1", "redis://h?pass=***&db=1"),
        ("ledger", "mysql://me:p@ss:w@db/x?ssl=1", "mysql://me:***@db/x?ssl=1"),
        ("ledger", "postgresql://db/x?user=me&password=hush&a=b", "postgresql://db/x?user=me&password=***&a=***"),
        ("ledger", "sqlite:///a@b:c.db", "sqlite:///a@b:c.db"),
        ("api_token", "hush", "***"),
        ("api_token", {"a": "hush"}, "***"),
        ("db_password", None, None),
        ("notify_urls", ["slack://hush"], "***"),
        ("notify_urls", {"a": "slack://hush"}, "***"),
        ("notify_urls.0", ["slack://hush"], "***"),
        ("notify_urls", [], []),
        ("broker", ["redis://:hush@host", "me:hush@host"], ["redis://:***@host", "***"]),
        ("ledger", ("mysql://me:hush@db",), ["mysql://me:***@db"]),
        ("spark_conf", [{"fs.s3a.secret.key": "hush"}], [{"fs.s3a.secret.key": "***"}]),
        ("spark_conf", {"fs.s3a.secret.key": "hush", "fs.s3a.access.key": "hush", "a": 1}, {"a": 1}),
    ],
)
def test_secrets_are_masked(name: str, value: object, masked: object) -> None:
    found = shown(name, value)
    assert "hush" not in str(found)
    if isinstance(found, dict):
        found = {key: inner for key, inner in found.items() if inner != MASK}
    assert found == masked


def test_a_secret_is_not_in_the_sentence_about_it(here: Path) -> None:
    (here / SETTINGS_FILE).write_text("[spark_conf]\nsome_password = 12345\n")
    with pytest.raises(ConfigurationError, match="spark_conf") as caught:
        load_settings()
    assert "12345" not in str(caught.value)


def test_a_secret_is_not_in_the_traceback_of_an_error_that_nobody_caught(here: Path) -> None:
    settings, secret = load_settings(), "hush"  # a traceback shows lines of this file, too
    (here / SETTINGS_FILE).write_text(f'notify_urls = "slack://{secret}"\n')
    loads: list[Callable[[], Settings]] = [
        load_settings,
        lambda: with_flags(settings, notify_urls=f"slack://{secret}"),
    ]
    for load in loads:
        with pytest.raises(ConfigurationError, match=r"notify_urls .* does not fit: .*given '\*\*\*'") as caught:
            load()
        assert secret not in "".join(tracebacks.format_exception(caught.value))


def test_the_region_may_be_named_as_most_of_awss_tools_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert load_settings().aws.region == "eu-central-1"
    assert load_settings(aws_region="eu-west-1").aws.region == "eu-west-1"
