"""Folders that the hosts of a cluster do not share, or only some objects of which they can read.

An ingest fails and commits nothing, or loses and counts nothing. All ingests share a session.
"""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.chaos.cluster_transforms import COMMANDS
from tests.chaos.oracle import attempts, check_done, objects, read_table
from tests.chaos.runs import IN_PROCESS, Case, write_objects
from tests.chaos.test_cluster import CONF, OBJECTS, prepared, settings
from tests.services.one_session import OneSession
from tests.services.spark_cluster import SparkCluster

pytestmark = pytest.mark.spark

CANNOT_WORK = 78
FAULT_PERSISTS = 75


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, cluster: SparkCluster) -> Iterator[OneSession]:
    with closing(OneSession(tmp_path_factory.mktemp("session"), master=cluster.url, conf=CONF)) as made:
        yield made


@pytest.fixture
def case(tmp_path: Path, cluster: SparkCluster, session: OneSession) -> Iterator[Case]:
    """Return a case whose ingests share a session."""
    made = Case(tmp_path, **settings(cluster))
    made.session = session
    yield from prepared(made)


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
    assert not read_table(case.table).rows


@pytest.mark.slow
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


@pytest.mark.parametrize("folder", [pytest.param("table/data", marks=pytest.mark.slow), "in"])
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
    case.ingest()
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
    case.accept_transform()  # the former would mount once more
    case.ingest()
    check_done(case.truth(), case.table)
    assert objects(case.table)[deleted.as_uri()][0] == "gone"
