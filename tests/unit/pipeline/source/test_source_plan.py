"""Dividing objects into partitions."""

import pickle
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
from penstock.pipeline.spark.source.plan import ReadPlan, make_plan
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
    assert 2 <= len(plan.partitions) <= 8
    assert max(map(len, plan.partitions)) - min(map(len, plan.partitions)) <= 1


def test_a_big_plain_object_is_split_and_a_compressed_one_is_not() -> None:
    assert len(plan_of([ref("a", 500 * MIB)]).partitions) == 6
    assert len(plan_of([ref("a.GZ", 500 * MIB)]).partitions) == 1
    assert len(plan_of([ref("a", 3 * MIB)]).partitions) == 1


def test_a_plan_with_any_names_survives_being_stored(tmp_path: Path) -> None:
    objects = [
        ObjectRef(bucket="file", key=decode_key(b"/in/\xff\n%41 \xe6\x97\xa5"), size_bytes=1, etag="x"),
        ObjectRef(bucket="b", key="k", size_bytes=2, version_id="v", sequencer="0A"),
    ]
    work = LocalFiles(tmp_path.resolve() / decode_key(b"s\xfeb"))
    aws = Aws(region="eu-north-1", endpoint_url="http://localhost:1", profile="p", requester_pays=True)
    plan = replace(plan_of(objects), source=decode_key(b"/in/\xfe"), work=work, aws=aws)
    plan.save()
    assert ReadPlan.load(work) == plan
    assert [path.name for path in work.root.iterdir()] == ["plan.json"]


def test_format_and_schema_are_checked() -> None:
    with pytest.raises(UsageError, match="format 'avro' is unknown"):
        plan_of([], options=ReadOptions(schema_ddl="id long", format="avro"))
    with pytest.raises(UsageError, match="unknown type"):
        plan_of([], options=ReadOptions(schema_ddl="id lung"))
    assert plan_of([]).options.schema_ddl == "id BIGINT"


def test_a_host_that_does_not_see_the_saved_plan_does_not_read(tmp_path: Path) -> None:
    plan = replace(plan_of([ref("a", 1)]), work=LocalFiles(tmp_path / "A" / "r1"))
    with pytest.raises(TemporaryError, match="must share the folder"):
        ReadPlan.check_seen(plan.work)
    plan.save()
    ReadPlan.check_seen(plan.work)


def test_a_plan_is_loaded_once_for_the_schema_and_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan_of([ref("a", 1)]), source=str(tmp_path), work=LocalFiles(tmp_path.resolve() / "A" / "r1"))
    plan.save()
    loads: list[Files] = []
    load = ReadPlan.load

    def counted(work: Files) -> ReadPlan:
        loads.append(work)
        return load(work)

    monkeypatch.setattr(ReadPlan, "load", counted)
    source = PenstockSource(options_of(plan))
    assert source.schema().startswith("id BIGINT")
    source = pickle.loads(pickle.dumps(source))  # as Spark does, for the process that plans the partitions
    reader = source.reader(StructType())
    (partition,) = reader.partitions()
    assert isinstance(partition, PlannedPartition)
    assert loads == [plan.work]
    in_a_task = pickle.loads(pickle.dumps(reader))
    with pytest.raises(RuntimeError, match="on the driver only"):
        in_a_task.partitions()
