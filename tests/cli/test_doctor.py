"""`penstock doctor`, without the Spark job of its last check (tests/spark has that)."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Call, CommandResult
from tests.cli.scene import Scene

from penstock.app.scope import ScopeRequest
from penstock.errors import ConfigurationError
from penstock.ledger.records import AttemptFailure
from penstock.operations.doctor import checks
from penstock.operations.doctor.checks import STARTING_SPARK, SparkNeed, machine_checks, state_checks
from penstock.operations.doctor.findings import FindingLevel
from penstock.sinks.registry import DEFAULT_SCHEME, SINKS

CHECK_FOUND_PROBLEMS = 3
SPARK_RUNS = "runs"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "run_trial_job", lambda: (FindingLevel.OK, SPARK_RUNS))


def levels(result: CommandResult) -> dict[str, str]:
    return {line.split("  ")[1].strip(): line.split()[0] for line in _checks(result)}


def _checks(result: CommandResult) -> list[str]:
    return [
        " ".join(line.split(" ")[:1]) + "  " + line[9:22] for line in result.out.splitlines() if line[0] not in " R"
    ]


def test_a_working_machine_passes_every_check(penstock: Call, scene: Scene) -> None:
    result = penstock("doctor")
    assert (result.exit_code, result.err) == (0, f"{STARTING_SPARK}\n")
    assert list(levels(result)) == ["python", "settings", "disk", "spark extra", "java", "spark", "table"]
    assert set(levels(result).values()) <= {"ok", "warning"}
    document = penstock("doctor", "--json").document
    assert [finding["check"] for finding in document] == list(levels(result))


def test_a_note_is_printed_before_spark_starts(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def spark() -> tuple[FindingLevel, str]:
        seen.append(capfd.readouterr().err)
        return FindingLevel.OK, SPARK_RUNS

    monkeypatch.setattr(checks, "run_trial_job", spark)
    result = penstock("doctor", "--json")
    assert (result.exit_code, seen) == (0, [f"{STARTING_SPARK}\n"])


@pytest.mark.parametrize(("ledger", "server"), [("mariadb_url", "MariaDB 1"), ("postgresql_url", "PostgreSQL 1")])
def test_the_ledgers_server_is_checked(
    penstock: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    ledger: str,
    server: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_LEDGER", request.getfixturevalue(ledger))
    found = {one["check"]: one for one in penstock("doctor", "--json").document}
    assert found["ledger"]["level"] == found["ledger server"]["level"] == "ok"
    assert found["ledger server"]["found"].startswith(server)
    assert "differs by 0 s" in found["ledger server"]["found"] or "differs by 1 s" in found["ledger server"]["found"]


def test_a_local_ledger_with_a_remote_broker_fails_and_names_its_pipelines(
    app_scene: Scene, shop: str, tmp_path: Path
) -> None:
    app_scene.process("a")
    module = tmp_path / "shop_of_the_scene.py"
    module.write_text(module.read_text().replace("App()", "App(broker='redis://127.0.0.1:1')"))
    (found,) = (one for one in state_checks(ScopeRequest(app=shop)) if one.check == "ledger")
    assert found.level is FindingLevel.FAILED
    assert "the work of clicks, views would be done once per host" in found.found


def test_without_a_table_in_the_folder_no_table_is_checked(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "table" not in levels(penstock("doctor"))
    result = penstock("doctor", "--table", "nothing")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert levels(result)["table"] == "failed"


def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("penstock.pipeline.spark.java.find_spec", lambda name: None)


def _no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.extra.find_spec", lambda name: None)


def test_an_untested_deltalake_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, DEFAULT_SCHEME, replace(SINKS[DEFAULT_SCHEME], tested=((0, 1, 0), (0, 2, 0))))
    found = next(one for one in machine_checks({}, spark=SparkNeed.NEEDED) if one.check == "spark extra")
    assert found.level is FindingLevel.WARNING
    assert "is outside the range that Penstock is tested with, >=0.1.0,<0.2.0: install one of those" in found.found


def _bad_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_BATCH_OBJECTS", "abc")


@pytest.mark.parametrize(
    ("break_setup", "check", "advice", "without"),
    [
        (_no_java, "java", "set JAVA_HOME", "spark"),
        (_no_extra, "spark extra", "pip install 'penstock[spark]'", "spark"),
        (_bad_setting, "settings", "PENSTOCK_OBJECTS_MAX_BATCH_OBJECTS", None),
    ],
)
def test_a_missing_part_is_reported_with_a_remedy_and_the_other_checks_continue(
    penstock: Call,
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    break_setup: Callable[[pytest.MonkeyPatch], None],
    check: str,
    advice: str,
    without: str | None,
) -> None:
    break_setup(monkeypatch)
    result = penstock("doctor")
    starts = "" if without == "spark" else f"{STARTING_SPARK}\n"
    assert (result.exit_code, result.err) == (CHECK_FOUND_PROBLEMS, starts)
    assert levels(result)[check] == "failed"
    assert advice in result.out
    assert levels(result)["table"] == (
        "failed" if check == "spark extra" else "ok"
    )  # a table cannot be read without the extra
    assert ("spark" in levels(result)) is (without != "spark")


def test_an_app_without_pipelines_needs_no_spark(
    penstock: Call, app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_java(monkeypatch)
    _no_extra(monkeypatch)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "app_without_pipelines.py").write_text("from penstock import App\napp = App()\n")
    result = penstock("doctor", "--app", "app_without_pipelines:app")
    assert result.exit_code == 0, result.out
    assert not {"spark extra", "java", "spark"} & levels(result).keys()
    assert levels(result)["ledger"] == "ok"


def test_an_app_with_pipelines_needs_spark(
    penstock: Call, app_scene: Scene, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_java(monkeypatch)
    result = penstock("doctor", "--app", shop)
    assert (result.exit_code, levels(result)["java"]) == (CHECK_FOUND_PROBLEMS, "failed")


@pytest.mark.parametrize("app", [None, "nothing:app"])
def test_missing_spark_is_a_warning_if_it_may_be_needed(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch, app: str | None
) -> None:
    _no_java(monkeypatch)
    result = penstock("doctor") if app is None else penstock("doctor", "--app", app)
    assert result.exit_code == (0 if app is None else CHECK_FOUND_PROBLEMS)
    assert levels(result)["java"] == "warning"
    assert "-> Only pipelines and `penstock ingest` need it" in result.out


def test_a_spark_that_does_not_start_is_reported(penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ConfigurationError("Spark did not start (no).")

    monkeypatch.setattr(checks, "run_trial_job", broken)
    result = penstock("doctor", "--json")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert '"Spark did not start (no)."' in result.out


def test_a_check_that_raises_does_not_stop_the_others(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "run_trial_job", lambda: 1 / 0)
    result = penstock("doctor")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert "ZeroDivisionError" in result.out
    assert levels(result)["table"] == "ok"


def test_a_nearly_full_disk_and_failed_objects_are_warnings(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "FREE_BYTES_MIN", 2**80)
    scene.fail("a", AttemptFailure.DEAD, "bad")
    result = penstock("doctor")
    assert result.exit_code == 0
    assert (levels(result)["disk"], levels(result)["table"]) == ("warning", "warning")
    assert "-> Free some space" in result.out
    assert "-> `penstock status` shows more, `penstock dead list` the reasons." in result.out
    assert "failed objects: 1" in result.out


def test_the_data_directory_of_an_app_is_checked_too(penstock: Call, app_scene: Scene) -> None:
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    result = penstock("doctor")
    assert result.exit_code == 0
    found = levels(result)
    assert [found.get(check) for check in ("broker", "ledger", "stopping", "app")] == ["ok", "ok", "ok", "warning"]
    assert "table" not in found
    assert "the state here: failed objects: 1" in result.out
    assert "22 of the 30 s" in result.out


def test_problems_of_an_apps_data_directory_are_reported_and_the_rest_continues(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app_scene.where.state / "queue.db").write_text(
        "this is no database, and long enough to be recognized as none" * 40
    )
    monkeypatch.setenv("PENSTOCK_WORKER_DRAIN", "100")
    result = penstock("doctor")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    found = levels(result)
    assert [found[check] for check in ("broker", "ledger", "stopping")] == ["failed", "ok", "failed"]
    assert "app" not in found  # it would repeat the broker's error


def test_all_well_is_not_printed_beside_a_failed_check(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_DRAIN", "100")
    result = penstock("doctor")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert "all well" not in result.out
    assert "these checks failed: stopping" in result.out
    assert levels(result)["app"] == "warning"
    assert re.fullmatch(r"Result: failed: (.*, )?stopping; warnings: (.*, )?app\.", result.out.splitlines()[-1])


def test_findings_name_the_app(penstock: Call, app_scene: Scene, shop: str) -> None:
    result = penstock("doctor", "--app", shop)
    assert f"{shop}: all well" in result.out
    assert result.out.count("ledger.db") == 1


def test_a_table_and_an_app_are_both_checked(penstock: Call, scene: Scene, app_scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    result = penstock("doctor")
    assert {"app", "table"} <= levels(result).keys()
    assert f"-> `penstock status --table {scene.where.table}` shows more" in result.out


@pytest.mark.parametrize(
    ("app_code", "level"),
    [("App()", "warning"), ("App.from_config()", None), ("App(broker='sqlite:///own.db')", None)],
)
def test_an_app_that_ignores_the_broker_address_in_the_environment_is_a_warning(
    penstock: Call, app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app_code: str, level: str | None
) -> None:
    (tmp_path / "passing_over.py").write_text(f"from penstock import App\napp = {app_code}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "passing_over", raising=False)
    monkeypatch.setenv("PENSTOCK_BROKER", f"sqlite:///{tmp_path}/elsewhere.db")
    result = penstock("doctor", "--app", "passing_over:app")
    assert levels(result).get("app settings") == level
    assert ("App.from_config()" in result.out) == (level is not None)


def test_an_app_that_cannot_be_found_fails_the_check(penstock: Call, app_scene: Scene) -> None:
    result = penstock("doctor", "--app", "nothing:app")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert levels(result)["app"] == "failed"
