"""Settings: where they come from, and what a person is told of one that does not fit."""

from pathlib import Path

import pytest

from penstock.config import SETTINGS_FILE, load_settings
from penstock.errors import ConfigurationError


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
    with pytest.raises(ConfigurationError, match="max_object "):
        load_settings()


def test_a_variable_that_is_no_json_is_not_blamed_on_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SPARK_CONF", "{bad")
    with pytest.raises(ConfigurationError, match=r"environment cannot be read: .*spark_conf") as caught:
        load_settings()
    assert SETTINGS_FILE not in str(caught.value)


def test_a_file_that_is_no_toml_is_named(here: Path) -> None:
    (here / SETTINGS_FILE).write_text("lease_seconds = \n")
    with pytest.raises(ConfigurationError, match=r"penstock\.toml in the current folder cannot be read"):
        load_settings()
