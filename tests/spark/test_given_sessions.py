"""A session of the user's is neither changed nor stopped, however it reaches Penstock and however the run ends."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.pipeline.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

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


def check_story(name: str, folder: Path) -> None:
    ended = run_story(name, folder)
    assert ended.returncode == 0, ended.stderr[-6000:]


def test_a_session_of_the_user_stays_as_it_was_also_in_another_thread_and_its_end_in_a_run_is_one_sentence(
    tmp_path: Path,
) -> None:
    """Sessions of Penstock's own, one after the other, then leave the process as it was."""
    check_story("of_the_user", tmp_path)


def test_the_spark_of_a_bare_context_is_used_and_left_running(tmp_path: Path) -> None:
    check_story("bare_context", tmp_path)
