"""The driver checks objects again that executors on other hosts could not read."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ObjectRefused, TemporaryError
from penstock.objects.local_store import LocalStore
from penstock.pipeline.spark.run import reread_on_driver
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import ReadPlan
from penstock.pipeline.spark.source.report import FailureKind, ObjectFailure
from penstock.pipeline.spark.source.summary import NO_READINGS, Summary
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

CONTENT = b'{"id":1}\n' * 100


@pytest.fixture
def plan(tmp_path: Path) -> ReadPlan:
    source = tmp_path.resolve() / "in"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_bytes(CONTENT)
    store = LocalStore(source)
    return ReadPlan(
        attempt_id="A",
        run=0,
        options=ReadOptions(schema_ddl="id bigint"),
        objects=[store.describe(source / name) for name in ("a", "b")],
        partitions=[],
        source=str(source),
        aws=Aws(),
        quarantine=LocalFiles(tmp_path / "q"),
        work=LocalFiles(tmp_path / "w"),
    )


def summary(failures: dict[int, ObjectFailure], exclude: dict[int, ObjectFailure] | None = None) -> Summary:
    return Summary(readings=NO_READINGS, failures=failures, exclude=exclude or {}, recut={}, missing=(), quarantine=())


def failure(kind: FailureKind) -> ObjectFailure:
    return ObjectFailure(kind=kind, reason="file:///in/a: Input/output error", host="spark-7")


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.DENIED])
def test_a_refusal_is_the_hosts_fault_if_the_driver_can_read_the_object(plan: ReadPlan, kind: FailureKind) -> None:
    found = reread_on_driver(summary({0: failure(kind)}, {1: failure(kind)}), plan)
    assert [each.kind for each in (found.failures[0], found.exclude[1])] == [FailureKind.HOST] * 2
    assert "on the host spark-7" in found.failures[0].reason
    assert "check the mounts and permissions on spark-7" in found.failures[0].reason


def test_a_refusal_is_the_objects_fault_if_the_driver_cannot_open_it_either(plan: ReadPlan) -> None:
    path = Path(plan.objects[0].key)
    path.rename(path.with_name("elsewhere"))
    path.mkdir()
    given = summary({0: failure(FailureKind.REFUSED)})
    assert reread_on_driver(given, plan) == given


def test_the_driver_reads_the_range_that_could_not_be_read(plan: ReadPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def pread(descriptor: int, length_bytes: int, offset: int) -> bytes:
        raise OSError(5, f"{length_bytes} at {offset}")

    monkeypatch.setattr(os, "pread", pread)
    opened = failure(FailureKind.REFUSED)
    given = summary({0: replace(opened, offset=300, length_bytes=50), 1: opened})
    found = reread_on_driver(given, plan)
    assert [each.kind for each in found.failures.values()] == [FailureKind.REFUSED, FailureKind.HOST]


@pytest.mark.parametrize("kind", [FailureKind.UNREADABLE, FailureKind.QUARANTINE_RATIO, FailureKind.TOO_LARGE])
def test_a_fault_of_the_content_is_never_the_hosts_fault(plan: ReadPlan, kind: FailureKind) -> None:
    given = summary({0: failure(kind)})
    assert reread_on_driver(given, plan) == given


def test_a_corrupt_file_is_read_again_as_another_host_may_see_other_bytes(plan: ReadPlan) -> None:
    given = summary({0: failure(FailureKind.CORRUPT)}, {1: failure(FailureKind.CORRUPT)})
    found = reread_on_driver(given, plan)
    assert (found.failures[0].kind, found.exclude[1].kind) == (FailureKind.UNREADABLE, FailureKind.UNREADABLE)
    in_s3 = replace(plan, source="s3://bucket/in")  # the same bytes for all hosts
    assert reread_on_driver(given, in_s3) == given


@pytest.mark.parametrize("kind", [FailureKind.DELETED, FailureKind.SUPERSEDED])
def test_an_object_that_the_driver_sees_is_not_deleted_by_another_host(plan: ReadPlan, kind: FailureKind) -> None:
    with pytest.raises(TemporaryError, match=r"The host spark-7 does not see .* must share the folder"):
        reread_on_driver(summary({0: failure(kind)}), plan)


def test_a_file_that_the_driver_does_not_see_either_is_deleted(plan: ReadPlan) -> None:
    Path(plan.objects[0].key).unlink()
    given = summary({0: failure(FailureKind.DELETED)})
    assert reread_on_driver(given, plan) == given


def test_a_failure_has_its_host_and_range() -> None:
    found = ObjectFailure.of(ObjectRefused("in/a: Input/output error", offset=300, length_bytes=50))
    assert (found.kind, found.offset, found.length_bytes) == (FailureKind.REFUSED, 300, 50)
    assert found.host == os.uname().nodename
