"""A session of the user's is neither changed nor stopped, however it reaches Penstock and however the run ends."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.pipeline.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


def run_story(
    name: str, folder: Path, without: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a function of `given_session_story` as a program of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment = {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAVA_HOME": str(find_java(os.environ).home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **variables,
    }
    for variable in without:
        environment.pop(variable, None)
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.given_session_story", name, str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_session_of_the_user_is_neither_changed_nor_stopped(tmp_path: Path) -> None:
    ended = run_story("of_the_user", tmp_path)
    assert ended.returncode == 0, ended.stderr[-6000:]
