import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "run_tests.py"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def report(*cases: str) -> bytes:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>".encode()


PASSED = "<testcase classname='tests.unit.test_one' name='a' time='0.5'/>"
FAILED = "<testcase name='b'><failure message='no'/></testcase>"
BROKEN = "<testcase name='c'><error message='fixture'/></testcase>"
EXCUSED = "<testcase name='d'><skipped type='pytest.skip' message='not applicable: no Java here'/></testcase>"
SKIPPED = "<testcase name='e'><skipped type='pytest.skip' message='Redis is not there'/></testcase>"
EXPECTED = "<testcase name='f'><skipped type='pytest.xfail' message='known'/></testcase>"


def test_passed_failed_and_skipped_tests_are_counted(runner: ModuleType) -> None:
    outcome = runner.judge(1, report(PASSED, PASSED, FAILED, BROKEN, EXPECTED, EXCUSED, SKIPPED))
    assert runner.totals(outcome, lint_complaint=None, in_ci=False) == (3, 2, 2)


def test_in_ci_an_unexcused_skip_is_a_failure(runner: ModuleType) -> None:
    outcome = runner.judge(0, report(PASSED, EXCUSED, SKIPPED))
    assert runner.totals(outcome, lint_complaint=None, in_ci=True) == (1, 1, 1)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-11, None),  # the interpreter crashed: no report
        (5, report()),  # no test was chosen
        (0, report()),
        (2, report(PASSED)),  # interrupted
        (3, report(PASSED)),  # an internal error of pytest
        (1, report(PASSED)),  # failed, and the report does not name the failure
    ],
)
def test_an_unsuccessful_run_is_a_failure(runner: ModuleType, code: int, text: bytes | None) -> None:
    outcome = runner.judge(code, text)
    assert outcome.complaint
    assert runner.totals(outcome, lint_complaint=None, in_ci=False)[1] == 1


def test_a_successful_run_is_not_a_failure(runner: ModuleType) -> None:
    assert runner.totals(runner.judge(0, report(PASSED)), lint_complaint=None, in_ci=False) == (1, 0, 0)


def test_the_closing_line_is_the_last_one_and_counts_a_failed_linter(
    runner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = runner.judge(0, report(PASSED, EXCUSED))
    assert runner.conclude(outcome, lint_complaint="Lint failed: mypy.", in_ci=True) == 1
    printed = capsys.readouterr().out
    assert "Lint failed: mypy." in printed
    assert printed.endswith("\n1 passed, 1 failed, 1 skipped\n")
    assert runner.conclude(outcome, lint_complaint=None, in_ci=True) == 0


def test_the_slowest_tests_come_first_and_each_folder_has_its_sum(
    runner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = "<testcase classname='tests.cli.test_two' name='b[x/y]' time='2.25'/>"
    runner.print_durations(runner.judge(0, report(PASSED, slow, slow)).seconds)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines.index(["2.2", "tests/cli/test_two.py::b[x/y]"]) < lines.index(["0.5", "tests/unit/test_one.py::a"])
    assert ["4", "2", "tests/cli"] in lines
    assert ["4", "2", "tests/cli/test_two.py"] in lines


def test_the_load_of_the_cores_is_printed_where_it_is_known(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "core_seconds", lambda: (40.0, 20.0))
    runner.print_load(30.0, (10.0, 10.0))
    assert capsys.readouterr().out == "\n== pytest took 30 s, and 30 s of the cores, which were busy 75%\n"
    runner.print_load(30.0, None)
    assert capsys.readouterr().out == ""


def test_every_linter_runs_and_the_failed_ones_are_named(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, code in {"first": 1, "second": 0, "third": 2}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(runner, "BIN", tmp_path)
    assert runner.lint([("first", "."), ("second",), ("third",)]) == "Lint failed: first, third."
    assert runner.lint([("second",)]) is None


def test_the_report_of_the_previous_run_is_kept(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "REPORTS", tmp_path)
    for text in ("one", "two"):
        runner.fresh_report("everything").write_text(text)
    assert (tmp_path / "everything.xml").read_text() == "two"
    assert (tmp_path / "previous" / "everything.xml").read_text() == "one"


@pytest.fixture
def policy(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that packages ask before they start a service, on a machine without one."""
    path = tmp_path / "policy-rc.d"
    monkeypatch.setattr(runner, "SERVICE_POLICY", path)
    return path


@pytest.mark.usefixtures("policy")
def test_root_installs_the_missing_tools_of_the_tests(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(
        runner.shutil, "which", lambda tool: None if tool in ("gcc", "redis-server") else f"/bin/{tool}"
    )
    monkeypatch.setattr(runner.os, "geteuid", lambda: 0)
    monkeypatch.setattr(runner.subprocess, "run", lambda command, **options: ran.append(command))
    runner.install_tools()
    update, install = ran
    assert update[-1] == "update"
    assert {"gcc", "libc6-dev", "redis-server"} <= set(install)
    assert not {"jq", "nodejs", "npm"} & set(install)


def test_no_package_starts_its_service(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, policy: Path) -> None:
    answers: list[int] = []
    run = subprocess.run
    monkeypatch.setattr(runner.shutil, "which", lambda tool: None if tool == "promtool" else f"/bin/{tool}")
    monkeypatch.setattr(runner.os, "geteuid", lambda: 0)
    # Bound before it is replaced. This apt-get runs the policy, as a package does during its installation.
    run_policy = lambda *_, **__: answers.append(run([policy, "prometheus", "start"], check=False).returncode)  # noqa: E731
    monkeypatch.setattr(runner.subprocess, "run", run_policy)
    runner.install_tools()
    assert answers == [101, 101]
    assert not policy.exists()


def test_an_existing_policy_of_the_machine_is_kept(runner: ModuleType, policy: Path) -> None:
    policy.write_text("the machine's own")
    with runner.services_stopped():
        assert policy.read_text() == "the machine's own"
    assert policy.read_text() == "the machine's own"


@pytest.mark.usefixtures("policy")
def test_npm_is_installed_only_together_with_node(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    missing = {"npm"}
    monkeypatch.setattr(runner.shutil, "which", lambda tool: None if tool in missing else f"/bin/{tool}")
    monkeypatch.setattr(runner.os, "geteuid", lambda: 0)
    monkeypatch.setattr(runner.subprocess, "run", lambda command, **options: ran.append(command))
    runner.install_tools()
    assert not ran
    missing.add("node")
    runner.install_tools()
    assert ran[-1][-2:] == ["nodejs", "npm"]
