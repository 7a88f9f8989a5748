import tomllib
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.pipeline import extra
from penstock.sinks.registry import DEFAULT_SCHEME, SINKS, untested


def test_the_installed_extra_is_accepted() -> None:
    extra.require_spark(DEFAULT_SCHEME)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name in {"pyspark", "deltalake"} else object())
    with pytest.raises(ConfigurationError) as caught:
        extra.require_spark(DEFAULT_SCHEME)
    assert str(caught.value) == (
        "Pipelines run on Spark, and pyspark, deltalake cannot be found here: run pip install 'penstock[spark]'."
    )


def test_an_iceberg_table_names_its_own_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "pyiceberg" else object())
    with pytest.raises(ConfigurationError) as caught:
        extra.require_spark("iceberg")
    assert str(caught.value) == (
        "The table is in the format iceberg, and pyiceberg cannot be found here: run pip install 'penstock[iceberg]'."
    )


def test_all_missing_extras_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name in {"pyspark", "pyiceberg"} else object())
    with pytest.raises(ConfigurationError, match=r"run pip install 'penstock\[iceberg,spark\]'\.$"):
        extra.require_spark("iceberg")


def test_on_a_cluster_with_its_own_spark_the_extra_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "deltalake" else object())
    with pytest.raises(ConfigurationError, match=r"and deltalake cannot be found here: .* 'penstock\[pipeline\]'\.$"):
        extra.require_spark(DEFAULT_SCHEME)


def test_the_client_of_spark_connect_has_an_extra_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    extra.require_connect()
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name.startswith("grpc") else object())
    with pytest.raises(ConfigurationError) as caught:
        extra.require_connect()
    assert str(caught.value) == (
        "Spark Connect needs the packages of its client, and grpc, grpc_status cannot be found here: run pip install "
        "'penstock[connect]'."
    )


@pytest.mark.parametrize("version", ["1.6.6", "1.6.7", "1.6.10", "1.6.6.post1"])
def test_a_tested_deltalake_is_accepted(version: str) -> None:
    assert untested(DEFAULT_SCHEME, version) is None


@pytest.mark.parametrize("version", ["0.25.5", "1.5.1", "1.6", "1.6.3", "1.7.0", "1.10.0", "2.0.0", "1", "2", "odd"])
def test_another_deltalake_is_reported_with_the_tested_range(version: str) -> None:
    assert untested(DEFAULT_SCHEME, version) == (
        f"deltalake {version} is outside the range that Penstock is tested with, >=1.6.6,<1.7.0"
    )


def test_the_tested_range_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    tested = SINKS[DEFAULT_SCHEME].tested
    assert tested is not None
    first, end = (".".join(map(str, one)) for one in tested)
    assert f"deltalake>={first},<{end}" in project["optional-dependencies"]["pipeline"]
