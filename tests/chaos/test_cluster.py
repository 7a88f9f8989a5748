"""Ingests on a standalone cluster of two workers that have separate mounts and names, like two hosts.

The oracle checks that a run has every line exactly once. Spark's event log shows that the faults happened.
"""

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import cluster_transforms
from tests.chaos.cluster_transforms import FAULTS, WORKER
from tests.chaos.oracle import check_done, check_meanwhile, read_table
from tests.chaos.runs import KILLED, Case
from tests.chaos.s3_case import S3Case
from tests.services.aws_server import AwsServer
from tests.services.jvm import QUICK_JVM
from tests.services.spark_cluster import FROM_DRIVER, SparkCluster
from tests.services.spark_events import SparkEvents, logged_to

from penstock.messaging.steps import Step

pytestmark = pytest.mark.spark

OBJECTS = 200  # several partitions
ROUNDS = 3  # of the long test, on each kind of storage
SEED = 20261123
DRIVER_DIES_AT = (Step.ATTEMPT_OPENED, Step.PLANNED, Step.WRITTEN, Step.MANIFESTED, Step.COMMITTED, Step.ROWS_PUBLISHED)
CONF: Mapping[str, str] = {
    **FROM_DRIVER,
    "spark.pyspark.python": sys.executable,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
}


@pytest.fixture(params=[pytest.param("shared disk", marks=pytest.mark.slow), "S3"])
def either(request: pytest.FixtureRequest, tmp_path: Path, cluster: SparkCluster, moto: AwsServer) -> Iterator[Case]:
    """Return a case with source and table on a disk that all hosts share, or in S3."""
    if request.param == "S3":
        yield from prepared(S3Case(tmp_path, moto, by_queue=False, **settings(cluster)))
    else:
        yield from prepared(Case(tmp_path, **settings(cluster)))


def prepared(case: Case) -> Iterator[Case]:
    with closing(case):
        shutil.copy(cluster_transforms.__file__, case.folder)
        case.add_objects(range(OBJECTS))
        yield case


def settings(cluster: SparkCluster) -> dict[str, Any]:
    return {"spark_master": cluster.url, "spark_conf": json.dumps(CONF), "objects_max_retry_wait": 1}


class Faults:
    """The faults of `cluster_transforms.faulty`, and Spark's record of them. One instance for one test."""

    def __init__(self, cluster: SparkCluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cluster = cluster
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._rounds = 0

    def strike(self, case: Case) -> SparkEvents:
        """Ingest while all of them happen. Fails unless Spark recorded each fault and recovered."""
        faults, events = (self._folder / f"{name}-{self._rounds}" for name in ("faults", "events"))
        faults.mkdir()
        events.mkdir()
        self._rounds += 1
        self._monkeypatch.setenv(FAULTS, str(faults))
        conf = json.dumps({**CONF, **logged_to(events)})
        case.accept_transform("cluster_transforms:faulty")
        running = case.start("--transform", "cluster_transforms:faulty", spark_conf=conf)
        running.wait_until(lambda: _text(faults / WORKER) != "")
        number = self._cluster.number_of(_text(faults / WORKER))
        self._cluster.kill_worker(number)
        self._cluster.start_worker(number)
        running.end().expect(0)
        seen = SparkEvents.of(events)
        assert seen.tasks_failed == 1, f"not one task failed: {seen}"
        assert seen.tasks_done_again >= 1, f"the task that failed was not tried again: {seen}"
        assert any("137" in reason for reason in seen.executors_removed), f"no executor was killed: {seen}"
        assert seen.executors_removed.total() >= 2, f"the worker took no executor with it: {seen}"
        assert seen.stages_again >= 1, f"no stage was run again: {seen}"
        assert seen.copies_done >= 1, f"no speculative copy was quicker than its task: {seen}"
        return seen


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@pytest.fixture
def faults(cluster: SparkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(cluster, tmp_path, monkeypatch)


def test_no_death_loses_or_doubles_a_line(either: Case, faults: Faults) -> None:
    whole = either.truth()
    either.ingest(code=KILLED, kill_at=Step.WRITTEN.value)
    check_meanwhile(whole, either.mirror())
    faults.strike(either)
    check_done(whole, either.mirror())


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_repeated_kills_lose_and_duplicate_nothing(
    either: Case, faults: Faults, capsys: pytest.CaptureFixture[str]
) -> None:
    dies_at, total = random.Random(SEED), SparkEvents()
    for first in range(0, 2 * ROUNDS * OBJECTS, 2 * OBJECTS):
        either.add_objects(range(first, first + OBJECTS))
        if first:
            either.accept_transform()
        either.ingest(code=KILLED, kill_at=dies_at.choice(DRIVER_DIES_AT).value)
        check_meanwhile(either.truth(), either.mirror())
        either.add_objects(range(first + OBJECTS, first + 2 * OBJECTS))
        total += faults.strike(either)
        check_done(either.truth(), either.mirror())
    lines = Counter(place for place, _ in read_table(either.mirror()).rows)
    lost, doubled = either.truth().good.keys() - lines.keys(), lines.total() - len(lines)
    with capsys.disabled():
        print(  # noqa: T201 - the figures of a long run
            f"\n{ROUNDS} rounds, each with a driver and a worker killed; {total}; {len(lines):,} lines, "
            f"{len(lost)} lost, {doubled} doubled"
        )
