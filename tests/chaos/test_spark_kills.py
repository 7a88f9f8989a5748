"""Spark is killed at the steps that its runs announce, and while it writes; running the command again recovers.
Also two ingests at once, each with its own Spark.

Kills at the other steps of the protocol run without Spark: test_kill_steps.py, test_s3_kills.py, test_sql_kills.py.
"""

import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos import transforms
from tests.chaos.oracle import attempts, check_done, check_meanwhile, query, truth
from tests.chaos.runs import FORMATS, HOOKS, KILLED, Case, write_objects
from tests.chaos.s3_case import S3Case
from tests.chaos.test_kill_steps import OBJECTS, OF_A_RUN, OPTIONS, kill_and_check
from tests.chaos.test_s3_kills import finish_and_check, prepared
from tests.chaos.test_s3_kills import kill_and_check as kill_and_check_in_s3
from tests.services.aws_server import AwsServer

# Makes a task wait before the end of a data file. Python runs it when it starts, also in Spark's workers.
HELD_FILES = f"""
import os
import time
from pathlib import Path

gate, at_gate = Path({{folder!r}}, {transforms.GATE!r}), Path({{folder!r}}, {transforms.AT_GATE!r})
fsync = os.fsync


def held(descriptor):
    path = os.readlink(f"/proc/self/fd/{{{{descriptor}}}}")
    while gate.exists() and "/table/data/" in path and ".parquet" in path:
        at_gate.touch()
        time.sleep(0.02)  # between two looks at a file that the test removes
    fsync(descriptor)


os.fsync = held
"""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize("scheme", FORMATS)
def test_killing_spark_while_it_writes_or_at_any_step_loses_nothing(spark_case: Case) -> None:
    case = spark_case
    shutil.copy(transforms.__file__, case.folder / "transforms.py")
    write_objects(case.source, range(OBJECTS))
    whole = truth(case.source)
    gate = case.folder / transforms.GATE
    gate.touch()
    writing = case.start(*OPTIONS, "--transform", "transforms:held")
    writing.wait_until((case.folder / transforms.AT_GATE).exists)
    writing.send_group(signal.SIGKILL)
    writing.end().expect(KILLED)
    gate.unlink()
    check_meanwhile(whole, case.table)
    for step in OF_A_RUN:
        kill_and_check(case, whole, step.value)
    case.ingest(*OPTIONS)
    check_done(whole, case.table)
    assert attempts(case.table)["abandoned"] >= 1 + len(OF_A_RUN), "each death abandons the batches that overlap"


def test_killing_spark_while_its_tasks_read_and_write_loses_nothing(
    spark_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = spark_case
    write_objects(case.source, range(OBJECTS))
    whole = truth(case.source)
    hooks = case.folder / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HELD_FILES.format(folder=str(case.folder)))
    gate = case.folder / transforms.GATE
    gate.touch()
    monkeypatch.setenv(HOOKS, str(hooks))
    writing = case.start(*OPTIONS)
    writing.wait_until((case.folder / transforms.AT_GATE).exists)
    assert list((case.table / "data").rglob(".*.parquet.*")), "a task has a file that is not finished"
    writing.send_group(signal.SIGKILL)
    writing.end().expect(KILLED)
    gate.unlink()
    check_meanwhile(whole, case.table)
    case.ingest(*OPTIONS)
    check_done(whole, case.table)
    assert attempts(case.table)["abandoned"] >= 1


@pytest.mark.slow  # quick: the steps with S3 in test_s3_kills, those with Spark above, both in test_cluster
def test_killing_spark_at_every_step_of_a_run_from_s3_loses_nothing(tmp_path: Path, moto: AwsServer) -> None:
    with closing(S3Case(tmp_path, moto, by_queue=False)) as case:
        whole = prepared(case)
        for step in OF_A_RUN:
            kill_and_check_in_s3(case, whole, step.value)
        finish_and_check(case, whole)


def test_two_ingests_share_the_work(spark_case: Case) -> None:
    # On Spark, because its batches are slow: an ingest with quick batches can end while it holds prefetched messages
    # for objects that the other has processed, and leave these in the queue.
    case = spark_case
    write_objects(case.source, range(80))
    whole = truth(case.source)
    both = [case.start("--max-batch-objects", "10") for _ in range(2)]
    reports = [running.end().expect(0).report for running in both]
    check_done(whole, case.table)
    assert sum(report["rows_written"] for report in reports) == len(whole.good)
    assert sum(report["lines_quarantined"] for report in reports) == len(whole.bad)
    assert sum(report["batches"] for report in reports) == query(case.table, "SELECT count(*) FROM batches")[0][0]
    assert [report["objects_processed"] + report["objects_skipped"] for report in reports] == [80, 80]
    assert max(number for (number,) in query(case.table, "SELECT charged - refunds FROM objects")) == 1
