"""Ingests on a standalone cluster of two workers that have separate mounts and names, like two hosts.

The oracle checks that a run either has every line exactly once, or fails and commits nothing. Spark's event log shows
that the faults happened.
"""

import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import cluster_transforms
from tests.chaos.cluster_transforms import COMMANDS, FAULTS, WORKER
from tests.chaos.oracle import attempts, check_done, check_meanwhile, objects, read_table
from tests.chaos.runs import IN_PROCESS, KILLED, Case, write_objects
from tests.chaos.s3_case import S3Case
from tests.services.aws_server import AwsServer
from tests.services.spark_cluster import FROM_DRIVER, SparkCluster
from tests.services.spark_events import SparkEvents, logged_to

from penstock.messaging.steps import Step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OBJECTS = 200  # several partitions
ROUNDS = 3  # of the long test, on each kind of storage
SEED = 20261123
DRIVER_DIES_AT = (Step.ATTEMPT_OPENED, Step.PLANNED, Step.WRITTEN, Step.MANIFESTED, Step.COMMITTED, Step.ROWS_PUBLISHED)
CANNOT_WORK = 78
FAULT_PERSISTS = 75
ON_THIS_HOST = "local[2]"
CONF: Mapping[str, str] = {
    **FROM_DRIVER,
    "spark.pyspark.python": sys.executable,
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # quicker to start
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
}


@pytest.fixture
def case(tmp_path: Path, cluster: SparkCluster) -> Iterator[Case]:
    yield from prepared(Case(tmp_path, **settings(cluster)))


@pytest.fixture(params=["shared disk", "S3"])
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


@contextmanager
def mounted_later(
    cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, *mounts: Sequence[str], here: Sequence[str] = ("true",)
) -> Iterator[None]:
    """Have `cluster_transforms.meanwhile` run ``mount`` with these options on each host, and ``here`` on the driver's.

    The last option of each is the mount point. All are unmounted in the end.
    """
    hosts = [cluster.inside(number) for number in range(cluster.workers)]
    commands = [[*host, "mount", *options] for host in hosts for options in mounts]
    monkeypatch.setenv(COMMANDS, json.dumps([*commands, here]))
    try:
        yield
    finally:
        for host in hosts:
            for options in reversed(mounts):
                subprocess.run([*host, "umount", options[-1]], capture_output=True, check=False)


def check_nothing_committed(case: Case) -> None:
    """Check that no object is finished, no attempt is committed, and no row is in the table."""
    assert {state for state, _, _ in objects(case.table).values()} <= {"unprocessed"}
    assert attempts(case.table).keys() <= {"abandoned"}
    assert read_table(case.table).rows == ()


def test_a_table_that_the_hosts_do_not_share_is_refused(case: Case, apart: Path) -> None:
    case.table = apart / "table"
    ended = case.ingest(code=CANNOT_WORK)
    assert f"do not share the folder {apart}/table" in ended.err
    assert "Traceback" not in ended.err
    check_nothing_committed(case)
    assert not attempts(case.table), "something was claimed"


def test_a_source_that_the_hosts_do_not_share_is_refused(case: Case, apart: Path) -> None:
    case.source = apart / "in"
    case.source.mkdir()
    write_objects(case.source, range(8))
    ended = case.ingest(code=CANNOT_WORK)
    assert f"do not share the folder {apart}/in: the host spark-host-" in ended.err
    check_nothing_committed(case)
    assert not attempts(case.table), "something was claimed"


@pytest.mark.parametrize("folder", ["table/data", "in"])
def test_a_disk_mounted_after_the_sharing_check_loses_nothing(
    case: Case, cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    over = case.folder / folder
    over.mkdir(parents=True, exist_ok=True)
    with mounted_later(cluster, monkeypatch, ["-t", "tmpfs", "none", str(over)]):
        ended = case.ingest("--transform", "cluster_transforms:meanwhile", code=FAULT_PERSISTS)
    assert "ll hosts of the Spark cluster must share" in ended.err
    check_nothing_committed(case)
    case.module = IN_PROCESS  # the next ingest need not run on Spark
    case.ingest(spark_master=ON_THIS_HOST)
    check_done(case.truth(), case.table)


def test_objects_that_only_the_hosts_cannot_read_count_no_attempt(
    case: Case, cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the hosts, the source has other device numbers; one file is unreadable and another no regular file.

    A third file is deleted for the driver, too.
    """
    denied, refused, deleted = (next(case.source.glob(f"object-{number:04}*")) for number in (1, 2, 3))
    empty = case.folder / "empty"
    empty.mkdir()
    with mounted_later(
        cluster,
        monkeypatch,
        ["-t", "overlay", "-o", f"lowerdir={case.source}:{empty}", "none", str(case.source)],
        ["--bind", "/dev/null", str(denied)],
        ["-o", "remount,bind,nodev", str(denied)],
        ["--bind", "/dev/null", str(refused)],
        here=["rm", "-f", str(deleted)],
    ):
        ended = case.ingest("--transform", "cluster_transforms:meanwhile", code=FAULT_PERSISTS)
    assert re.search(r"on the host (spark-host-\d); .* can read it: check the mounts and permissions on \1", ended.err)
    found = objects(case.table)
    for path, expected_reason in ((denied, "Permission denied"), (refused, "not a regular file")):
        state, counted, reason = found[path.as_uri()]
        assert (state, counted) == ("unprocessed", 0)
        assert expected_reason in str(reason)
    assert Counter(state for state, _, _ in found.values())["processed"] == OBJECTS - 3
    case.ingest(spark_master=ON_THIS_HOST)
    check_done(case.truth(), case.table)
    assert objects(case.table)[deleted.as_uri()][0] == "gone"


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
