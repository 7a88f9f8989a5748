"""Dividing objects into partitions."""

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from penstock.errors import TemporaryError, UsageError
from penstock.objects.reference import ObjectRef, decode_key
from penstock.pipeline.spark.source.datasource import PenstockSource, PlannedPartition, options_of
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import PLAN_FILE, ReadPlan, SavedPlan, make_plan
from penstock.pipeline.spark.source.reading import partition_task
from penstock.pipeline.spark.source.report import PartitionReport, ReadingId
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles

MIB = 1 << 20
OPTIONS = ReadOptions(schema_ddl="id long")


def plan_of(objects: list[ObjectRef], *, cores: int = 2, options: ReadOptions = OPTIONS) -> ReadPlan:
    return make_plan(
        objects,
        attempt_id="A",
        run=1,
        options=options,
        cores=cores,
        source="/in",
        aws=Aws(),
        quarantine=LocalFiles(Path("/q")),
        work=LocalFiles(Path("/w")),
    )


def saved_plan(plan: ReadPlan) -> SavedPlan:
    """Return the plan as an executor has it: from the driver, without the objects."""
    return SavedPlan(
        attempt_id=plan.attempt_id,
        run=plan.run,
        options=plan.options,
        partitions_count=len(plan.partitions),
        source=plan.source,
        aws=plan.aws,
        quarantine=plan.quarantine,
        work=plan.work,
    )


def ref(name: str, size_bytes: int) -> ObjectRef:
    return ObjectRef(bucket="b", key=name, size_bytes=size_bytes, etag="e")


@given(sizes=st.lists(st.tuples(st.integers(0, 300 * MIB), st.booleans()), max_size=30), cores=st.integers(1, 16))
def test_every_byte_of_every_object_is_in_one_piece(sizes: list[tuple[int, bool]], cores: int) -> None:
    objects = [ref(f"{index}{'.gz' if packed else ''}", size) for index, (size, packed) in enumerate(sizes)]
    plan = plan_of(objects, cores=cores)
    for index, (size, packed) in enumerate(sizes):
        pieces = sorted((p.start, p.stop) for part in plan.partitions for p in part if p.object == index)
        assert [start for start, _ in pieces] == [0, *[stop for _, stop in pieces[:-1]]]
        assert pieces[-1][1] == size
        assert len(pieces) == 1 or not packed
    assert all(plan.partitions)


def test_small_objects_are_packed_and_balanced() -> None:
    plan = plan_of([ref(str(index), 10_000) for index in range(5_000)])
    assert len(plan.partitions) == 2
    assert max(map(len, plan.partitions)) - min(map(len, plan.partitions)) <= 1


@pytest.mark.parametrize(
    ("objects", "size_bytes", "cores", "partitions"),
    [(1, 0, 4, 1), (100, 10_000, 4, 2), (5_000, 10_000, 4, 4), (20, 50 * MIB, 4, 4), (21, 50 * MIB, 4, 8)],
)
def test_each_core_gets_one_partition_or_as_many_as_the_others(
    objects: int, size_bytes: int, cores: int, partitions: int
) -> None:
    plan = plan_of([ref(str(index), size_bytes) for index in range(objects)], cores=cores)
    assert len(plan.partitions) == partitions


def test_a_big_plain_object_is_split_and_a_compressed_one_is_not() -> None:
    assert len(plan_of([ref("a", 500 * MIB)]).partitions) == 2
    assert len(plan_of([ref("a", 600 * MIB)]).partitions) == 4
    assert (
        len(plan_of([ref("a", 40 * MIB)], options=ReadOptions(schema_ddl="id long", format="parquet")).partitions) == 2
    )
    assert len(plan_of([ref("a.GZ", 500 * MIB)]).partitions) == 1
    assert len(plan_of([ref("a", 3 * MIB)]).partitions) == 1


def test_plans_and_reports_do_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    work = LocalFiles(tmp_path.resolve())
    replace(plan_of([ref("a", 1)]), work=work).save()
    reading = ReadingId(work.below("reports"), 0)
    reading.mark_begun()
    reading.write(PartitionReport(partition=0, drain=False, pieces=()))
    assert sorted(path.suffix for path in tmp_path.rglob("*.*")) == [".arrow", ".arrow", ".begun"]
    assert not synced
    work.write("durable", b"")
    assert len(synced) == 1


def test_a_plan_with_any_names_survives_being_stored(tmp_path: Path) -> None:
    objects = [
        ObjectRef(bucket="file", key=decode_key(b"/in/\xff\n%41 \xe6\x97\xa5"), size_bytes=1, etag="x"),
        ObjectRef(bucket="b", key="k", size_bytes=2, version_id="v", sequencer="0A"),
    ]
    work = LocalFiles(tmp_path.resolve() / decode_key(b"s\xfeb"))
    aws = Aws(region="eu-north-1", endpoint_url="http://localhost:1", profile="p", requester_pays=True)
    plan = replace(plan_of(objects), source=decode_key(b"/in/\xfe"), work=work, aws=aws)
    plan.save()
    saved = SavedPlan.load(work)
    for name in ("attempt_id", "run", "options", "source", "aws", "quarantine", "work", "reports", "quarantine_dir"):
        assert getattr(saved, name) == getattr(plan, name)
    assert saved.partitions_count == len(plan.partitions)
    assert [saved.pieces(n) for n in range(len(plan.partitions))] == [
        plan.pieces(n) for n in range(len(plan.partitions))
    ]
    assert [path.name for path in work.root.iterdir()] == [PLAN_FILE]


def test_format_and_schema_are_checked() -> None:
    with pytest.raises(UsageError, match="format 'xml' is unknown"):
        plan_of([], options=ReadOptions(schema_ddl="id long", format="xml"))
    with pytest.raises(UsageError, match="unknown type"):
        plan_of([], options=ReadOptions(schema_ddl="id lung"))
    assert plan_of([]).options.schema_ddl == "id BIGINT"


def test_a_host_that_does_not_see_the_saved_plan_does_not_read(tmp_path: Path) -> None:
    plan = replace(plan_of([ref("a", 1)]), work=LocalFiles(tmp_path / "A" / "r1"))
    for read in (lambda: SavedPlan.load(plan.work), lambda: partition_task(saved_plan(plan), 0)):
        with pytest.raises(TemporaryError, match=r"does not see .* must share the folder"):
            read()
    plan.save()
    assert partition_task(SavedPlan.load(plan.work), 0).pieces == plan.pieces(0)


def test_a_host_that_sees_only_a_part_of_the_saved_plan_does_not_read(tmp_path: Path) -> None:
    plan = replace(plan_of([ref("a", 1)]), work=LocalFiles(tmp_path / "A" / "r1"))
    plan.save()
    path = tmp_path / "A" / "r1" / PLAN_FILE
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TemporaryError, match=r"cannot read .* must share the folder"):
        SavedPlan.load(plan.work)


def test_a_plan_is_loaded_once_for_the_schema_and_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan_of([ref("a", 1)]), source=str(tmp_path), work=LocalFiles(tmp_path.resolve() / "A" / "r1"))
    plan.save()
    loads: list[Files] = []
    load = SavedPlan.load

    def counted(work: Files) -> SavedPlan:
        loads.append(work)
        return load(work)

    monkeypatch.setattr(SavedPlan, "load", counted)
    source = PenstockSource(options_of(plan))
    assert source.schema().startswith("`id` BIGINT")
    source = pickle.loads(pickle.dumps(source))  # as Spark does, for the process that plans the partitions
    reader = source.reader(StructType())
    (partition,) = reader.partitions()
    assert partition == PlannedPartition(0)
    assert loads == [plan.work]


def test_spark_carries_no_objects_to_the_tasks(tmp_path: Path) -> None:
    sizes = []
    for count in (100, 10_000):
        work = LocalFiles(tmp_path.resolve() / str(count))
        plan = replace(plan_of([ref(f"{index:06}", 10) for index in range(count)]), source=str(tmp_path), work=work)
        plan.save()
        reader = PenstockSource(options_of(plan)).reader(StructType())
        sizes.append(max(len(pickle.dumps(sent)) for sent in (reader, *reader.partitions())))
    assert sizes[1] < sizes[0] + 100


def test_an_object_that_claims_a_size_over_the_limit_is_one_piece() -> None:
    plan = plan_of([ref("a", 2**62), ref("b", 10)])
    assert sorted((p.object, p.start, p.stop) for part in plan.partitions for p in part) == [(0, 0, 2**62), (1, 0, 10)]


@given(
    refs=st.lists(
        st.builds(
            ObjectRef,
            bucket=st.text(st.characters(codec="ascii")),
            key=st.binary(min_size=1).map(decode_key),
            size_bytes=st.integers(0, 1 << 33),
            version_id=st.none() | st.text(),
            etag=st.none() | st.text(),
            sequencer=st.none() | st.text(),
        ),
        max_size=30,
    ),
    cores=st.integers(1, 4),
)
def test_every_partition_of_a_saved_plan_is_read_back_as_planned(refs: list[ObjectRef], cores: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = replace(plan_of(refs, cores=cores), work=LocalFiles(Path(folder).resolve()))
        plan.save()
        saved = SavedPlan.load(plan.work)
        assert saved.partitions_count == len(plan.partitions)
        for partition in range(len(plan.partitions)):
            assert saved.pieces(partition) == plan.pieces(partition)


def test_many_small_objects_and_a_few_large_ones_make_partitions_of_about_equal_cost() -> None:
    sizes = [*[90 * MIB] * 3, *[1_000] * 6_000]
    plan = plan_of([ref(str(index), size) for index, size in enumerate(sizes)], cores=4)
    costs = [sum((64 << 10) + piece.stop - piece.start for piece in part) for part in plan.partitions]
    assert max(costs) - min(costs) < 2 * ((64 << 10) + 1_000)
