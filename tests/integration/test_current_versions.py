"""Reading only current versions: in a bucket that keeps versions, each object is compared with the current one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.services.aws_server import AwsServer

from penstock.objects.reference import ObjectRef
from penstock.objects.replays import replay_of
from penstock.objects.stores import replaced, store_at
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.places import ranges_of
from penstock.pipeline.spark.source.plan import Piece, ReadPlan, SavedPlan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import FailureKind, ReadingId
from penstock.pipeline.spark.source.summary import summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

BUCKET = "landing"
SOURCE = f"s3://{BUCKET}/in"
LINE = b'{"id": 1}\n'


@pytest.fixture
def versioned(moto: AwsServer) -> Any:
    client = moto.client("s3")
    client.create_bucket(Bucket=BUCKET)
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return client


def put(s3: Any, key: str, body: bytes) -> ObjectRef:
    """Store an object, and return the reference that its notification would have."""
    response: Mapping[str, Any] = s3.put_object(Bucket=BUCKET, Key=key, Body=body)
    return ObjectRef(
        bucket=BUCKET,
        key=key,
        size_bytes=len(body),
        etag=response["ETag"].strip('"'),
        version_id=response["VersionId"],
    )


def plan_of(
    objects: Sequence[ObjectRef], folder: Path, moto: AwsServer, partitions: Sequence[Sequence[Piece]]
) -> ReadPlan:
    return ReadPlan(
        attempt_id="A",
        run=0,
        options=ReadOptions(schema_ddl="id long"),
        objects=objects,
        partitions=partitions,
        source=SOURCE,
        aws=moto.aws,
        quarantine=LocalFiles(folder / "quarantine"),
        work=LocalFiles(folder / "work"),
        current_only=True,
    )


def read(plan: ReadPlan) -> list[str]:
    """Read all partitions as executors do, from the saved plan; return the address of each row."""
    plan.save()
    saved = SavedPlan.load(plan.work)
    store = store_at(plan.source, plan.aws)
    return [
        address
        for number in range(len(plan.partitions))
        for batch in read_partition(partition_task(saved, number), store, ReadingId(plan.reports, number))
        for address in batch.column("_object").to_pylist()
    ]


def whole(objects: Sequence[ObjectRef]) -> list[list[Piece]]:
    return [[Piece(object=number, start=0, stop=ref.size_bytes) for number, ref in enumerate(objects)]]


def test_a_version_that_was_replaced_yields_no_rows_and_is_superseded(
    versioned: Any, moto: AwsServer, tmp_path: Path
) -> None:
    old, other = put(versioned, "in/a", LINE), put(versioned, "in/b", LINE)
    new = put(versioned, "in/a", LINE * 2)
    plan = plan_of([old, new, other], tmp_path, moto, whole([old, new, other]))
    assert sorted(read(plan)) == [new.uri, new.uri, other.uri]
    summary = summarise(plan)
    assert {number: failure.kind for number, failure in summary.failures.items()} == {0: FailureKind.SUPERSEDED}
    assert not summary.exclude, "no row was released"


def test_without_the_check_every_version_is_read(versioned: Any, moto: AwsServer, tmp_path: Path) -> None:
    old, new = put(versioned, "in/a", LINE), put(versioned, "in/a", LINE)
    plan = replace(plan_of([old, new], tmp_path, moto, whole([old, new])), current_only=False)
    assert read(plan) == [old.uri, new.uri]


def test_a_version_whose_key_was_deleted_is_not_read(versioned: Any, moto: AwsServer, tmp_path: Path) -> None:
    ref = put(versioned, "in/a", LINE)
    versioned.delete_object(Bucket=BUCKET, Key="in/a")
    plan = plan_of([ref], tmp_path, moto, whole([ref]))
    assert read(plan) == []
    assert summarise(plan).failures[0].kind is FailureKind.DELETED


def test_an_old_version_that_was_cut_is_left_out_of_the_batch(versioned: Any, moto: AwsServer, tmp_path: Path) -> None:
    """Only its first piece is checked. The rows of the others are in the run, so it is repeated without them."""
    old = put(versioned, "in/a", LINE * 2)
    put(versioned, "in/a", LINE)
    pieces = [[Piece(object=0, start=0, stop=5)], [Piece(object=0, start=5, stop=old.size_bytes)]]
    plan = plan_of([old], tmp_path, moto, pieces)
    assert len(read(plan)) == 1
    summary = summarise(plan)
    assert summary.exclude[0].kind is FailureKind.SUPERSEDED
    assert not len(summary.readings)


def test_a_replay_reads_the_bad_lines_of_a_version_that_is_not_current(
    versioned: Any, moto: AwsServer, tmp_path: Path
) -> None:
    ref = put(versioned, "in/a", LINE)
    versioned.delete_object(Bucket=BUCKET, Key="in/a")
    replay = replay_of(ref, "attempt")
    plan = replace(
        plan_of([replay], tmp_path, moto, whole([ref])), places={0: ranges_of([(0, len(LINE))], place="_offset")}
    )
    assert read(plan) == [ref.uri], "its other rows are in the table: the commit decides whether they still are"


def test_objects_in_a_folder_need_no_check_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(LINE)
    store = store_at(str(tmp_path), Aws())
    assert replaced(store, [ObjectRef(bucket="file", key=str(file), size_bytes=1, etag="old")]) == {}
