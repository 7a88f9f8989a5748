"""Starting a session, and finding in the log of its JVM why Spark did not start."""

import logging
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark import SparkContext

from penstock.errors import ConfigurationError
from penstock.pipeline.spark import classic
from penstock.pipeline.spark.class_archive import ClassArchive
from penstock.pipeline.spark.classic import (
    LAUNCHER_OPTIONS,
    ClassicRuntime,
    SessionSettings,
    _conf,
    _environment,
    _not_of_py4j,
    _own_conf,
    _planning_folder,
    complaint,
    start_session,
)
from penstock.pipeline.spark.conf import QUERY_LOGGERS

WARNINGS = """WARNING: Using incubator modules: jdk.incubator.vector
2026-01-01T03:30:49.516 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            'Exception in thread "main" org.apache.spark.SparkException: Master must start with local\n\tat a.B\n',
            "Master must start with local.",
        ),
        ("Error: Could not create the Java Virtual Machine.\n", "Could not create the Java Virtual Machine."),
        ("Error occurred during initialization of VM\nToo small maximum heap\n", "Too small maximum heap."),
        ("Error: Unable to access jarfile\nError: again\n", "Unable to access jarfile."),
    ],
)
def test_the_first_error_in_the_log_is_the_reason(log: str, reason: str) -> None:
    assert complaint(WARNINGS + log) == reason


def test_a_log_without_an_error_has_no_reason() -> None:
    assert complaint(WARNINGS) is None
    assert complaint("") is None


@pytest.mark.parametrize(
    ("master", "here", "once"),
    [
        ("local", True, True),
        ("local[*]", True, True),
        ("local[4]", True, True),
        ("local[4, 1]", True, True),
        ("local[4,3]", True, False),
        ("local-cluster[2,1,1024]", False, False),
        ("spark://host:7077", False, False),
        ("yarn", False, False),
        ("k8s://https://host", False, False),
    ],
)
def test_the_master_determines_where_tasks_run_and_how_often(master: str, here: bool, once: bool) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    runtime = ClassicRuntime(spark)
    assert (runtime.is_local, runtime.tasks_run_once) == (here, once)


@pytest.mark.parametrize(
    ("master", "conf", "attempts"),
    [
        ("local[4]", {}, 1),
        ("local[4]", {"spark.task.maxFailures": "7"}, 1),  # which Spark ignores
        ("local[*, 3]", {}, 3),
        ("spark://host:7077", {}, 4),
        ("yarn", {"spark.task.maxFailures": "7"}, 7),
    ],
)
def test_the_master_and_a_setting_determine_how_often_a_task_is_started(
    master: str, conf: dict[str, str], attempts: int
) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: conf))
    assert ClassicRuntime(spark).task_attempts_max == attempts


def test_a_session_of_penstock_is_classic_although_the_defaults_of_spark_choose_connect(tmp_path: Path) -> None:
    settings = SessionSettings(
        master="local[1]",
        java_home=tmp_path,
        scratch=tmp_path,
        log=tmp_path / "spark.log",
        extra_conf={"spark.api.mode": "connect"},
    )
    assert _conf(settings).get("spark.api.mode") == "classic"


def test_the_log_configuration_of_the_jvm_exists(tmp_path: Path) -> None:
    settings = SessionSettings(
        master="local[1]", java_home=tmp_path, scratch=tmp_path, log=tmp_path / "spark.log", driver_memory="1g"
    )
    option = _own_conf(settings)["spark.driver.extraJavaOptions"].split()[0]
    assert Path(urlsplit(option.removeprefix("-Dlog4j2.configurationFile=")).path).is_file()


@pytest.mark.parametrize(
    ("master", "program", "is_needed"),
    [
        ("spark://host:7077", "./penstock/bin/python", True),
        ("spark://host:7077", "penstock/bin/python", True),
        ("spark://host:7077", "/opt/bin/python3", False),
        ("spark://host:7077", "python3", False),
        ("spark://host:7077", "../penstock/bin/python", False),
        ("local[2]", "./penstock/bin/python", False),
    ],
)
def test_on_this_host_a_relative_path_of_the_executors_python_leads_to_this_python(
    tmp_path: Path, master: str, program: str, is_needed: bool
) -> None:
    settings = SessionSettings(
        master=master,
        java_home=tmp_path,
        scratch=tmp_path / "a scratch",
        log=tmp_path / "spark.log",
        extra_conf={"spark.pyspark.python": program},
    )
    conf: Any = Conf({"spark.driver.defaultJavaOptions": "-Da=b"})
    folder = _planning_folder(settings, conf)
    assert (folder is not None) is is_needed
    if folder is not None:
        done = subprocess.run([program, "-c", "import sys; print(sys.executable)"], cwd=folder, capture_output=True)
        assert done.stdout.decode().strip() == sys.executable
        assert conf["spark.driver.defaultJavaOptions"] == f"-Da=b -Duser.dir={Path.cwd()}"


@pytest.mark.parametrize(
    ("line", "is_needed"),
    [
        ("spark.pyspark.python ./penstock/bin/python", True),
        ("  spark.pyspark.python=./penstock/bin/python", True),
        ("spark.pyspark.python : ./penstock/bin/python  ", True),
        ("# spark.pyspark.python ./penstock/bin/python", False),
        ("spark.pyspark.python.other ./penstock/bin/python", False),
        ("spark.pyspark.python /opt/bin/python3", False),
    ],
)
def test_a_relative_path_in_the_clusters_defaults_leads_to_this_python_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, is_needed: bool
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.defaultJavaOptions  -Da=b -Dc=d\n{line}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    settings = SessionSettings(
        master="spark://host:7077", java_home=tmp_path, scratch=tmp_path / "scratch", log=tmp_path / "spark.log"
    )
    conf: Any = Conf()
    folder = _planning_folder(settings, conf)
    assert (folder is not None) is is_needed
    if folder is not None:
        assert (folder / "penstock/bin/python").exists()
        assert conf["spark.driver.defaultJavaOptions"] == f"-Da=b -Dc=d -Duser.dir={Path.cwd()}"


def test_spark_conf_wins_over_the_clusters_defaults_and_these_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.pyspark.python ./defaults/python\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/python")
    settings = SessionSettings(
        master="yarn", java_home=tmp_path, scratch=tmp_path / "scratch", log=tmp_path / "spark.log"
    )
    conf: Any = Conf()
    assert _planning_folder(settings, conf) == tmp_path / "scratch" / "planning"
    assert [path.name for path in (tmp_path / "scratch" / "planning").iterdir()] == ["defaults"]
    assert _planning_folder(replace(settings, extra_conf={"spark.pyspark.python": "/opt/bin/python3"}), conf) is None


@pytest.mark.parametrize("with_filter", [False, True], ids=["the first start", "after a session"])
def test_a_start_that_fails_leaves_loggers_and_environment_as_they_were(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, with_filter: bool
) -> None:
    for name in ("_active_spark_context", "_gateway", "_jvm"):  # of a session that tests of this process share
        monkeypatch.setattr(SparkContext, name, None)
    root = logging.getLogger()
    if with_filter:  # as an earlier session of the process leaves it
        root.addFilter(_not_of_py4j)
        request.addfinalizer(lambda: root.removeFilter(_not_of_py4j))
    names = (*QUERY_LOGGERS, "py4j")
    levels = [logging.getLogger(name).level for name in names]
    filters, environment = list(logging.getLogger().filters), dict(os.environ)

    with pytest.raises(ConfigurationError, match=r"Spark did not start: "):
        start_session(
            SessionSettings(
                master="local[1]",
                java_home=tmp_path / "no-java",
                scratch=tmp_path / "scratch",
                log=tmp_path / "spark.log",
            )
        )

    assert [logging.getLogger(name).level for name in names] == levels
    assert logging.getLogger().filters == filters
    assert dict(os.environ) == environment


class Conf(dict[str, str]):
    """Settings of Spark, without a JVM."""

    def set(self, name: str, value: str) -> None:
        self[name] = value


def test_only_a_jvm_that_runs_tasks_gets_the_archive_and_the_daemon(tmp_path: Path) -> None:
    def conf(master: str, **own: str) -> Any:
        settings = SessionSettings(
            master=master, java_home=tmp_path, scratch=tmp_path / "s", log=tmp_path / "spark.log", extra_conf=own
        )
        return _conf(settings, ClassArchive(file=tmp_path / "a b.jsa", java_home=tmp_path, list_file=tmp_path / "list"))

    local = conf("local[2]")
    options = shlex.split(local.get("spark.driver.extraJavaOptions"))
    assert options[-1] == f"-XX:DumpLoadedClassList={tmp_path / 'list'}"
    assert local.get("spark.python.daemon.module") == "penstock.pipeline.spark.worker_daemon"
    cluster = conf("spark://host:7077")
    assert cluster.get("spark.driver.extraJavaOptions") is None
    assert cluster.get("spark.python.daemon.module") is None
    own = conf("local[2]", **{"spark.driver.extraJavaOptions": "-Xint", "spark.python.daemon.module": "mine"})
    assert own.get("spark.driver.extraJavaOptions") == "-Xint"
    assert own.get("spark.python.daemon.module") == "mine"


def test_the_daemon_of_a_spark_that_is_not_the_installed_one_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "_find_spark_home", lambda: str(tmp_path))
    settings = SessionSettings(
        master="local[2]", java_home=tmp_path, scratch=tmp_path / "s", log=tmp_path / "spark.log"
    )
    assert "spark.python.daemon.module" not in _own_conf(settings)


def test_the_launcher_starts_quickly_unless_the_user_has_options_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SessionSettings(
        master="local[2]", java_home=tmp_path, scratch=tmp_path / "s", log=tmp_path / "spark.log"
    )
    monkeypatch.delenv("SPARK_LAUNCHER_OPTS", raising=False)
    assert _environment(settings)["SPARK_LAUNCHER_OPTS"] == LAUNCHER_OPTIONS
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "-Xmx64m")
    assert _environment(settings)["SPARK_LAUNCHER_OPTS"] == "-Xmx64m"


@pytest.mark.parametrize(
    ("default", "own", "is_ours"),
    [
        ("", {}, True),
        ("", {"spark.pyspark.python": sys.executable}, True),
        ("", {"spark.pyspark.python": "/opt/python/bin/python3"}, False),
        ("spark.pyspark.python /opt/python/bin/python3", {}, False),
        ("spark.pyspark.python /opt/python/bin/python3", {"spark.pyspark.python": sys.executable}, True),
        ("spark.python.daemon.module theirs", {}, False),
    ],
)
def test_workers_of_another_python_run_the_daemon_of_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str, own: dict[str, str], is_ours: bool
) -> None:
    """That Python may have no PySpark, or another one than the JVM's, and Spark brings its own sources."""
    (tmp_path / "spark-defaults.conf").write_text(f"{default}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = SessionSettings(
        master="local[1]", java_home=tmp_path, scratch=tmp_path, log=tmp_path / "spark.log", extra_conf=own
    )
    daemon = _conf(settings).get("spark.python.daemon.module")
    assert daemon == ("penstock.pipeline.spark.worker_daemon" if is_ours else None)
