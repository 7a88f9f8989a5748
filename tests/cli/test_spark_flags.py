"""Flags for the origin of the Spark session, and the file for spark-submit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Call

CONFIGURATION, USAGE = 78, 2
SHOP = """
from penstock import App

app = App.from_config()

@app.handler("orders")
def book(order): ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write an app into a module that has the name of one of Penstock's packages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(SHOP)
    return "app:app"


def test_the_file_for_spark_submit_is_the_command_line_and_finds_modules_of_the_user(penstock: Call, shop: str) -> None:
    script = Path(penstock("--script").out.strip())
    assert script.suffix == ".py"  # spark-submit runs no other files
    # Python puts the folder of a file that it runs first on its path, where Penstock's package `app` would be found.
    ended = subprocess.run(
        [sys.executable, str(script), "admin", "replayer", shop, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PENSTOCK_LOG_FORMAT": "json"},
    )
    assert ended.returncode == 0, ended.stderr


def test_several_worker_processes_cannot_share_the_driver_of_spark_submit(
    penstock: Call, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    result = penstock("worker", shop, "--processes", "2")
    assert result.exit_code == USAGE
    assert "2 worker processes cannot share the Spark driver of one spark-submit" in result.err


@pytest.mark.parametrize("command", ["worker app:app", "run app:app clicks", "ingest in table"])
def test_a_session_that_is_no_word_and_no_function_is_refused(penstock: Call, shop: str, command: str) -> None:
    result = penstock(*command.split(), "--spark-session", "clsuter")
    assert result.exit_code == CONFIGURATION
    assert "spark.session" in result.err
    assert "it should be auto, own, current or MODULE:FUNCTION, not 'clsuter'.\n" in result.err
