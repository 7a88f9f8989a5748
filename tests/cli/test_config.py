"""`penstock admin config`: the value of each setting and its origin, and whether the stop budget fits."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call

from penstock.cli.config import PlatformName
from penstock.config import Audience, Settings, audience, dotted, load_settings
from penstock.errors import ConfigurationError
from penstock.handlers.durations import duration_text
from penstock.operations.doctor.checks import machine_checks
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.shutdown_budget import PLATFORMS, plan

USAGE, CONFIGURATION = 2, 78


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_setting(penstock: Call) -> dict[str, dict[str, Any]]:
    return {row["setting"]: row for row in penstock("admin", "config", "show", "--json").document}


def test_every_setting_is_shown_with_its_origin(penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = here / "secrets"
    secrets.mkdir()
    (secrets / "penstock_ledger").write_text("postgresql://me:hush@db/penstock\n")
    (here / "penstock.toml").write_text(
        "[worker]\nconcurrency = 7\n[spark.conf]\n'spark.ssl.keyPassword' = 'hush'\na = '1'\n"
    )
    monkeypatch.setenv("PENSTOCK_WORKER_LEASE", "20")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(secrets))
    rows = by_setting(penstock)
    shown = [name for name in Settings.model_fields if audience(name) not in (Audience.ADVANCED, Audience.HIDDEN)]
    assert list(rows) == [dotted(name) for name in Settings.model_fields if name in (*shown, "spark_conf")]
    everything = penstock("admin", "config", "show", "--all", "--json").document
    assert [row["setting"] for row in everything] == [
        dotted(name) for name in Settings.model_fields if name != "kill_at"
    ]
    found = {name: (rows[name]["value"], rows[name]["origin"]) for name in rows}
    assert found["ledger"] == ("postgresql://me:***@db/penstock", f"secrets directory {secrets}")
    assert found["worker.concurrency"] == (7, "penstock.toml")
    assert found["spark.conf"] == ({"spark.ssl.keyPassword": "***", "a": "1"}, "penstock.toml")
    assert found["worker.lease"] == ("20s", "PENSTOCK_WORKER_LEASE")
    assert found["data_dir"] == (".penstock", "default")
    result = penstock("admin", "config", "show")
    assert "PENSTOCK_WORKER_LEASE" in result.out
    assert "hush" not in result.out + result.err
    assert result.err == "Advanced settings at their defaults are left out; --all shows them.\n"
    assert penstock("admin", "config", "show", "--all").err == ""


def test_a_variable_that_names_no_setting_is_a_warning(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PORT", "tcp://10.0.0.1:80")  # set by Kubernetes for a service called penstock
    assert penstock("admin", "config", "show", "--json").err == ""
    monkeypatch.setenv("PENSTOCK_WORKER_CONCURENCY", "7")
    result = penstock("admin", "config", "show", "--json")
    assert result.exit_code == 0
    assert "PENSTOCK_WORKER_CONCURENCY is not a setting" in result.err
    assert "Did you mean PENSTOCK_WORKER_CONCURRENCY?" in result.err
    (finding,) = [found for found in machine_checks_until("settings") if found.check == "settings"]
    assert finding.level is FindingLevel.WARNING
    assert "PENSTOCK_WORKER_CONCURENCY" in finding.found


def machine_checks_until(check: str) -> list[Any]:
    found = []
    for finding in machine_checks({}):
        found.append(finding)
        if finding.check == check:
            break
    return found


def test_an_invalid_setting_is_a_configuration_error(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_CONCURRENCY", "0")
    result = penstock("admin", "config", "show")
    assert result.exit_code == CONFIGURATION
    assert "concurrency" in result.err


@pytest.mark.parametrize(
    ("arguments", "stop_timeout", "drain", "line"),
    [
        (("ecs",), 30, 22, '"stopTimeout": 30'),
        (("fargate", "--stop-timeout", "2m"), 120, 112, '"stopTimeout": 120'),
        (("kubernetes", "--stop-timeout", "60", "--pre-stop", "5"), 55, 47, "terminationGracePeriodSeconds: 60"),
        (("systemd",), 90, 82, "TimeoutStopSec=90"),
        (("docker", "--stop-timeout", "45", "--drain", "10 s"), 45, 10, "stop_grace_period: 45s"),
        (("kubernetes", "--stop-timeout", "1 min", "--pre-stop", "0s"), 60, 52, "terminationGracePeriodSeconds: 60"),
    ],
)
def test_a_budget_that_fits_shows_the_lines_to_write(
    penstock: Call, arguments: tuple[str, ...], stop_timeout: float, drain: float, line: str
) -> None:
    document = penstock("admin", "config", "check-budget", "--platform", *arguments, "--json").document
    assert document["stop_timeout_seconds"] == stop_timeout
    assert document["platform_line"] == line
    (part,) = [part for part in document["parts"] if part["name"].startswith("drain")]
    assert part["seconds"] == drain
    assert document["parts"][-1]["ends_at_seconds"] <= document["platform_seconds"]
    result = penstock("admin", "config", "check-budget", "--platform", *arguments)
    assert line in result.out
    drained = f' and drain = "{duration_text(drain)}"' if "--drain" in arguments else ""
    assert document["setting_line"] == f'stop_timeout = "{duration_text(stop_timeout)}"{drained}'
    assert f"  {document['setting_line']}    in the section [worker] of penstock.toml\n" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("docker", "--stop-timeout", "9"), "docker grants 9 s: the worker needs at least 10 s"),
        (("kubernetes", "--pre-stop", "25"), "of which the hook before the signal takes 25 s"),
        (("ecs", "--drain", "25"), "draining for 25 s does not fit a stop timeout of 30 s"),
        (("fargate", "--stop-timeout", "121"), "at most 120 s"),
        (("systemd", "--pre-stop", "1"), "has no hook"),
        (("ecs", "--stop-timeout", "inf"), "inf s is not a valid stop timeout; give at most 86,400 s."),
        (("ecs", "--stop-timeout", "1e9"), "1e+09 s is not a valid stop timeout"),
        (("ecs", "--drain", "inf"), "inf s is not a valid stop timeout"),
        (("kubernetes", "--pre-stop", "inf"), "inf s is not a valid stop timeout"),
    ],
)
def test_a_budget_that_cannot_fit_is_a_configuration_error_in_one_line(
    penstock: Call, arguments: tuple[str, ...], words: str
) -> None:
    result = penstock("admin", "config", "check-budget", "--platform", *arguments)
    assert (result.exit_code, result.out) == (CONFIGURATION, "")
    (line,) = result.err.splitlines()
    assert words in line
    assert not line.endswith("..")


@pytest.mark.parametrize("name", ["platform_seconds", "pre_stop_seconds", "drain_seconds"])
def test_nan_is_refused_as_a_budget(name: str) -> None:
    options: dict[str, Any] = {name: float("nan")}
    with pytest.raises(ConfigurationError, match="nan s is not a valid stop timeout"):
        plan("kubernetes", **options)


def test_an_infinite_stop_timeout_is_refused(penstock: Call) -> None:
    result = penstock("worker", "shop:app", "--stop-timeout", "inf")
    assert (result.exit_code, result.out) == (CONFIGURATION, "")
    (line,) = result.err.splitlines()
    assert "worker.stop_timeout" in line


def test_every_platform_has_a_name_and_a_plan_that_the_settings_accept() -> None:
    assert [name.value for name in PlatformName] == list(PLATFORMS)
    for name in PLATFORMS:
        planned = plan(name)
        settings = load_settings(worker_stop_timeout=planned.stop_timeout_seconds)
        assert settings.worker_stop_timeout == planned.stop_timeout_seconds
        assert sum(part.seconds for part in planned.parts) == planned.platform_seconds


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--stop-timeout", "soon"), "--stop-timeout 'soon' is not a duration: write seconds, or a text such as 90s"),
        (("--stop-timeout", "-1"), "--stop-timeout is -1 s; give at least 0 s."),
        (("--drain", "5 parsecs"), "--drain '5 parsecs' is not a duration"),
    ],
)
def test_an_invalid_duration_is_a_usage_error(penstock: Call, options: tuple[str, str], words: str) -> None:
    result = penstock("admin", "config", "check-budget", "--platform", "ecs", *options)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert words in result.err
