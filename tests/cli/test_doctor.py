"""`penstock doctor`, without the Spark job of its last check (tests/spark has that)."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Said
from tests.cli.scene import Scene

from penstock.app.scope import ScopeRequest
from penstock.errors import ConfigurationError
from penstock.ledger.records import AttemptFailure
from penstock.operations.doctor import checks
from penstock.operations.doctor.checks import SparkNeed, machine_checks, state_checks
from penstock.operations.doctor.findings import FindingLevel
from penstock.sinks.registry import DEFAULT_SCHEME, SINKS

CHECK_FOUND_PROBLEMS = 3
WELL = "runs"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_spark", lambda environ: (FindingLevel.OK, WELL))


def verdicts(said: Said) -> dict[str, str]:
    return {line.split("  ")[1].strip(): line.split()[0] for line in _checks(said)}


def _checks(said: Said) -> list[str]:
    return [" ".join(line.split(" ")[:1]) + "  " + line[9:22] for line in said.out.splitlines() if line[0] not in " R"]


def test_a_machine_that_is_well(penstock: Call, scene: Scene) -> None:
    said = penstock("doctor")
    assert (said.exit_code, said.err) == (0, "")
    assert list(verdicts(said)) == ["python", "settings", "disk", "spark extra", "java", "spark", "table"]
    assert set(verdicts(said).values()) <= {"ok", "warning"}
    document = penstock("doctor", "--json").document
    assert [finding["check"] for finding in document] == list(verdicts(said))


@pytest.mark.parametrize(("ledger", "server"), [("mariadb_url", "MariaDB 1"), ("postgresql_url", "PostgreSQL 1")])
def test_the_ledgers_server_is_asked(
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


def test_a_ledger_apart_is_reported_with_the_names_of_what_records_in_it(
    app_scene: Scene, shop: str, tmp_path: Path
) -> None:
    app_scene.process("a")
    module = tmp_path / "shop_of_the_scene.py"
    module.write_text(module.read_text().replace("App()", "App(broker='redis://127.0.0.1:1')"))
    (found,) = (one for one in state_checks(ScopeRequest(app=shop)) if one.check == "ledger")
    assert found.level is FindingLevel.FAILED
    assert "what clicks, views did once would be done once a host" in found.found


def test_without_a_table_here_there_is_nothing_to_say_of_one(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "table" not in verdicts(penstock("doctor"))
    said = penstock("doctor", "--table", "nothing")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    assert verdicts(said)["table"] == "failed"


def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("penstock.pipeline.spark.java.find_spec", lambda name: None)


def _no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.extra.find_spec", lambda name: None)


def test_an_untested_deltalake_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, DEFAULT_SCHEME, replace(SINKS[DEFAULT_SCHEME], tested=((0, 1, 0), (0, 2, 0))))
    found = next(one for one in machine_checks({}, spark=SparkNeed.NEEDED) if one.check == "spark extra")
    assert found.level is FindingLevel.WARNING
    assert "is outside the range that Penstock is tested with, >=0.1.0,<0.2.0: install one of those" in found.found


def _bad_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_BATCH_OBJECTS", "abc")


@pytest.mark.parametrize(
    ("spoil", "check", "advice", "without"),
    [
        (_no_java, "java", "set JAVA_HOME", "spark"),
        (_no_extra, "spark extra", "pip install 'penstock[spark]'", "spark"),
        (_bad_setting, "settings", "PENSTOCK_OBJECTS_MAX_BATCH_OBJECTS", None),
    ],
)
def test_what_is_missing_is_reported_with_what_to_do_and_the_other_checks_continue(
    penstock: Call,
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch], None],
    check: str,
    advice: str,
    without: str | None,
) -> None:
    spoil(monkeypatch)
    said = penstock("doctor")
    assert (said.exit_code, said.err) == (CHECK_FOUND_PROBLEMS, "")
    assert verdicts(said)[check] == "failed"
    assert advice in said.out
    assert verdicts(said)["table"] == (
        "failed" if check == "spark extra" else "ok"
    )  # a table cannot be read without it
    assert ("spark" in verdicts(said)) is (without != "spark")


def test_an_app_without_pipelines_needs_no_spark(
    penstock: Call, app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_java(monkeypatch)
    _no_extra(monkeypatch)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "app_without_pipelines.py").write_text("from penstock import App\napp = App()\n")
    said = penstock("doctor", "--app", "app_without_pipelines:app")
    assert said.exit_code == 0, said.out
    assert not {"spark extra", "java", "spark"} & verdicts(said).keys()
    assert verdicts(said)["ledger"] == "ok"


def test_an_app_with_pipelines_needs_spark(
    penstock: Call, app_scene: Scene, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_java(monkeypatch)
    said = penstock("doctor", "--app", shop)
    assert (said.exit_code, verdicts(said)["java"]) == (CHECK_FOUND_PROBLEMS, "failed")


@pytest.mark.parametrize("app", [None, "nothing:app"])
def test_missing_spark_is_a_warning_if_it_may_be_needed(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch, app: str | None
) -> None:
    _no_java(monkeypatch)
    said = penstock("doctor") if app is None else penstock("doctor", "--app", app)
    assert said.exit_code == (0 if app is None else CHECK_FOUND_PROBLEMS)
    assert verdicts(said)["java"] == "warning"
    assert "-> Only pipelines and `penstock ingest` need it" in said.out


def test_a_spark_that_does_not_run(penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(environ: object) -> None:
        raise ConfigurationError("Spark did not start (no).")

    monkeypatch.setattr(checks, "_spark", broken)
    said = penstock("doctor", "--json")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    assert '"Spark did not start (no)."' in said.out


def test_a_check_that_breaks_does_not_break_the_doctor(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_spark", lambda environ: 1 / 0)
    said = penstock("doctor")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    assert "ZeroDivisionError" in said.out
    assert verdicts(said)["table"] == "ok"


def test_a_disk_that_is_nearly_full_and_a_table_with_dead_objects_are_warned_of(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "FREE_BYTES_MIN", 2**80)
    scene.fail("a", AttemptFailure.DEAD, "bad")
    said = penstock("doctor")
    assert said.exit_code == 0
    assert (verdicts(said)["disk"], verdicts(said)["table"]) == ("warning", "warning")
    assert "-> Free some space" in said.out
    assert "-> `penstock status` shows more, `penstock dead list` the reasons." in said.out
    assert "failed objects: 1" in said.out


def test_the_state_of_an_app_is_looked_at_too(penstock: Call, app_scene: Scene) -> None:
    app_scene.fail("a", AttemptFailure.DEAD, "bad")
    said = penstock("doctor")
    assert said.exit_code == 0
    found = verdicts(said)
    assert [found.get(check) for check in ("broker", "ledger", "stopping", "app")] == ["ok", "ok", "ok", "warning"]
    assert "table" not in found
    assert "the state here: failed objects: 1" in said.out
    assert "22 of the 30 s" in said.out


def test_what_is_wrong_with_the_state_of_an_app_is_reported_and_the_rest_continues(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app_scene.where.state / "queue.db").write_text("this is no database, and long enough to be told from one" * 40)
    monkeypatch.setenv("PENSTOCK_WORKER_DRAIN", "100")
    said = penstock("doctor")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    found = verdicts(said)
    assert [found[check] for check in ("broker", "ledger", "stopping")] == ["failed", "ok", "failed"]
    assert "app" not in found  # it would say the broker's error once more


def test_all_is_not_well_beside_a_check_that_failed(
    penstock: Call, app_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_DRAIN", "100")
    said = penstock("doctor")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    assert "all well" not in said.out
    assert "these checks failed: stopping" in said.out
    assert verdicts(said)["app"] == "warning"
    assert re.fullmatch(r"Result: failed: (.*, )?stopping; warnings: (.*, )?app\.", said.out.splitlines()[-1])


def test_an_app_is_called_by_its_name(penstock: Call, app_scene: Scene, shop: str) -> None:
    said = penstock("doctor", "--app", shop)
    assert f"{shop}: all well" in said.out
    assert said.out.count("ledger.db") == 1


def test_a_table_and_an_app_are_both_looked_at(penstock: Call, scene: Scene, app_scene: Scene) -> None:
    scene.fail("a", AttemptFailure.DEAD, "bad")
    said = penstock("doctor")
    assert {"app", "table"} <= verdicts(said).keys()
    assert f"-> `penstock status --table {scene.where.table}` shows more" in said.out


@pytest.mark.parametrize(
    ("made", "verdict"),
    [("App()", "warning"), ("App.from_config()", None), ("App(broker='sqlite:///own.db')", None)],
)
def test_an_app_that_passes_over_the_address_in_the_environment_is_warned_of(
    penstock: Call, app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, verdict: str | None
) -> None:
    (tmp_path / "passing_over.py").write_text(f"from penstock import App\napp = {made}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "passing_over", raising=False)
    monkeypatch.setenv("PENSTOCK_BROKER", f"sqlite:///{tmp_path}/elsewhere.db")
    said = penstock("doctor", "--app", "passing_over:app")
    assert verdicts(said).get("app settings") == verdict
    assert ("App.from_config()" in said.out) == (verdict is not None)


def test_an_app_that_cannot_be_found_is_a_problem(penstock: Call, app_scene: Scene) -> None:
    said = penstock("doctor", "--app", "nothing:app")
    assert said.exit_code == CHECK_FOUND_PROBLEMS
    assert verdicts(said)["app"] == "failed"
