"""The summary of read reports, and the files that a failed or stopped reading leaves behind."""

import bz2
import gzip
import os
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from penstock.errors import ObjectUnreadable, TemporaryError, UsageError
from penstock.objects.local_store import LocalObjectReader, LocalStore
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.infer import infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions
from penstock.pipeline.spark.source.plan import Piece, ReadPlan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import FailureKind, ReadingId
from penstock.pipeline.spark.source.summary import summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

LINE = b'{"id":1}\n'


def plan_of(tmp_path: Path, contents: dict[str, bytes], **options: object) -> ReadPlan:
    """Return a plan with one partition for each object."""
    source = tmp_path / "in"
    source.mkdir()
    for name, data in contents.items():
        (source / name).write_bytes(data)
    refs = [LocalStore(source).describe(source / name) for name in contents]
    return ReadPlan(
        attempt_id="A",
        run=2,
        options=ReadOptions(schema_ddl="id bigint", **options),  # type: ignore[arg-type] # the caller's options, by name
        objects=refs,
        partitions=[[Piece(object=index, start=0, stop=ref.size_bytes)] for index, ref in enumerate(refs)],
        source=str(source),
        aws=Aws(),
        quarantine=LocalFiles(tmp_path / "q"),
        work=LocalFiles(tmp_path / "w"),
    )


def read(plan: ReadPlan, partition: int, *, drain: bool = False, store: LocalStore | None = None) -> int:
    task = partition_task(plan, partition, drain=drain)
    reading = ReadingId(plan.reports, partition)
    return sum(
        batch.num_rows for batch in read_partition(task, store or LocalStore(plan.source, remembers=False), reading)
    )


def start_and_stop(plan: ReadPlan, partition: int) -> None:
    """Read one batch and stop, as a limit does."""
    reading = ReadingId(plan.reports, partition)
    batches = read_partition(partition_task(plan, partition), LocalStore(plan.source, remembers=False), reading)
    next(batches)
    batches.close()  # type: ignore[attr-defined] # it is a generator


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_a_reading_stopped_early_leaves_neither_report_nor_quarantine(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": (LINE + b"no\n") * 50_001}, block_bytes=1 << 16)
    start_and_stop(plan, 0)
    assert summarise(plan).missing == (0,)
    assert files(tmp_path / "q") == []
    read(plan, 0, drain=True)
    summary = summarise(plan)
    assert (summary.rows, summary.lines_quarantined, summary.missing) == (50_001, 50_001, ())
    assert summary.exclude == {}


def test_repeated_readings_count_once_and_have_one_quarantine_file(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE + b"no\r\n", "b": b""})
    for _ in range(3):
        read(plan, 0)
    read(plan, 1)
    summary = summarise(plan)
    assert len(files(tmp_path / "q")) == 3
    [file] = summary.quarantine
    assert pq.read_table(tmp_path / "q" / file.path).to_pylist() == [
        {
            "object": plan.objects[0].uri,
            "offset": len(LINE),
            "raw": b"no",
            "reason": "malformed",
            "detail": "Expecting value at character 0",
        }
    ]
    assert file.path.startswith("data/A/r2/part-00000-")
    assert file.size_bytes == (tmp_path / "q" / file.path).stat().st_size
    assert (summary.rows, summary.lines_quarantined, summary.bytes) == (1, 1, len(LINE) + 4)
    assert summary.readings[1].rows == 0
    assert [dict(summary.readings[index].reasons) for index in (0, 1)] == [{"malformed": 1}, {}]


def test_readings_that_disagree_exclude_the_object(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE, "b": LINE})
    read(plan, 0)
    read(plan, 1)
    Path(plan.objects[0].key).unlink()
    read(plan, 0)
    summary = summarise(plan)
    assert summary.exclude[0].kind is FailureKind.DISAGREED
    assert "No such file" in summary.exclude[0].reason
    assert (list(summary.readings), summary.failures) == ([1], {})


def test_readings_of_which_one_was_refused_exclude_the_object_as_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE})
    read(plan, 0)
    path = Path(plan.objects[0].key)
    path.rename(path.with_name("before"))
    path.mkdir()
    read(plan, 0)
    assert summarise(plan).exclude[0].kind is FailureKind.REFUSED


@pytest.mark.parametrize("begun", [True, False])
def test_a_failure_after_a_reading_began_excludes_the_object(tmp_path: Path, begun: bool) -> None:
    plan = plan_of(tmp_path, {"a": LINE})
    if begun:
        start_and_stop(plan, 0)
    Path(plan.objects[0].key).unlink()
    read(plan, 0, drain=not begun)
    assert summarise(plan).exclude[0].kind is FailureKind.DELETED


def test_a_failure_before_any_row_is_only_a_failure(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE, "b.gz": gzip.compress(LINE * 9)[:-1]})
    Path(plan.objects[0].key).unlink()
    assert (read(plan, 0), read(plan, 1)) == (0, 0)
    summary = summarise(plan)
    assert {index: failure.kind for index, failure in summary.failures.items()} == {
        0: FailureKind.DELETED,
        1: FailureKind.CORRUPT,
    }
    assert summary.exclude == {}


def test_a_gzip_cut_off_at_any_byte_yields_no_row(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(b'{"id":%d}\n' % number for number in range(40)))
    plan = plan_of(tmp_path, {f"{length:04}.gz": data[:length] for length in range(1, len(data))}, block_bytes=32)
    plan = replace(plan, partitions=[[piece for part in plan.partitions for piece in part]])
    assert read(plan, 0) == 0
    summary = summarise(plan)
    assert len(summary.failures) == len(data) - 1
    assert all("truncated gzip" in failure.reason for failure in summary.failures.values())
    assert {failure.kind for failure in summary.failures.values()} == {FailureKind.CORRUPT}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.gz", gzip.compress(LINE * 9)[:-8] + b"\0" * 8),
        ("a.gz", gzip.compress(LINE * 9) + b"more"),
        ("a.gz", LINE * 9),
        ("a.zst", zstandard.compress(LINE * 9)[:-1]),
        ("a.bz2", bz2.compress(LINE * 9)[:-1]),
    ],
    ids=["checksum", "bytes behind", "no gzip", "zstd", "bzip2"],
)
def test_bytes_that_cannot_be_inflated_are_corrupt(tmp_path: Path, name: str, data: bytes) -> None:
    plan = plan_of(tmp_path, {name: data})
    assert read(plan, 0) == 0
    assert summarise(plan).failures[0].kind is FailureKind.CORRUPT


class _Rewriting(LocalStore):
    """A store whose files change once they are open."""

    def open(self, ref: ObjectRef) -> LocalObjectReader:
        reader = super().open(ref)
        os.utime(ref.key, ns=(1, 1))
        return reader


def test_a_gzip_that_is_rewritten_while_it_is_read_is_superseded_and_not_corrupt(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a.gz": gzip.compress(LINE * 9)[:-1]})
    read(plan, 0, store=_Rewriting(plan.source, remembers=False))
    assert summarise(plan).failures[0].kind is FailureKind.SUPERSEDED


def test_a_gzip_whose_reading_is_interrupted_is_no_failure_of_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, {"a.gz": gzip.compress(LINE * 9)})
    whole = LocalObjectReader.read

    def broken(reader: LocalObjectReader, size_bytes: int = -1, /) -> bytes:
        if data := whole(reader, 10):
            return data
        raise TemporaryError("the connection broke")

    monkeypatch.setattr(LocalObjectReader, "read", broken)
    with pytest.raises(TemporaryError, match="the connection broke"):
        read(plan, 0)


def test_damage_beyond_the_verified_limit_excludes_the_object(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, {"a.gz": gzip.compress(LINE * 1_000)[:-1]}, block_bytes=64, inflated_bytes_verified_max=128
    )
    assert read(plan, 0) > 0
    summary = summarise(plan)
    assert summary.exclude[0].kind is FailureKind.CORRUPT
    assert (dict(summary.failures), dict(summary.readings)) == ({}, {})


def test_a_split_object_with_one_failed_piece_is_excluded(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE * 10})
    halves = [[Piece(object=0, start=0, stop=45)], [Piece(object=0, start=45, stop=90)]]
    plan = replace(plan, partitions=halves)
    read(plan, 0)
    Path(plan.objects[0].key).unlink()
    read(plan, 1)
    assert summarise(plan).exclude[0].kind is FailureKind.DELETED


def test_too_many_bad_lines_exclude_the_object(tmp_path: Path) -> None:
    contents = {"a": LINE + b"no\n", "b": LINE * 2 + b"no\n", "c": b""}
    plan = plan_of(tmp_path, contents, quarantine_ratio_max=0.4)
    for partition in range(3):
        read(plan, partition)
    summary = summarise(plan)
    assert {index: failure.kind for index, failure in summary.exclude.items()} == {0: FailureKind.QUARANTINE_RATIO}
    assert "1 of its 2 lines is bad, more than the limit of 40%" in summary.exclude[0].reason
    assert list(summary.readings) == [1, 2]


def test_a_line_over_the_limit_fails_the_object(tmp_path: Path) -> None:
    long = b'{"s":"' + b"x" * 1_000 + b'"}\n'
    plan = plan_of(tmp_path, {"a": LINE + long, "b": long + LINE, "c": long[:-1]}, line_bytes_max=500, block_bytes=64)
    for partition in range(3):
        read(plan, partition)
    summary = summarise(plan)
    assert sorted({**summary.failures, **summary.exclude}) == [0, 1, 2]
    assert "a line of more than 500 bytes at offset 9" in summary.exclude[0].reason


def quoted_plan(tmp_path: Path, content: bytes, **options: object) -> ReadPlan:
    plan = plan_of(tmp_path, {"a": content}, format="csv", csv=CsvOptions(header=False), **options)
    return replace(plan, options=replace(plan.options, schema_ddl="id bigint, s string"))


def test_an_unclosed_quote_quarantines_the_rest_of_the_object(tmp_path: Path) -> None:
    plan = quoted_plan(tmp_path, b'1,a\n2,"b\n' + b"3,c\n" * 100)
    assert read(plan, 0) == 1
    summary = summarise(plan)
    assert (summary.rows, summary.lines_quarantined, summary.failures) == (1, 1, {})
    reason = "malformed: a quote that is not closed before the end of the object"
    assert list(summary.readings[0].samples) == [(4, reason)]


def test_a_sample_of_the_bad_lines_of_each_object_is_reported(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE + b"no\n" * 20, "b": LINE})
    for partition in range(2):
        read(plan, partition)
    summary = summarise(plan)
    assert [offset for offset, _ in summary.readings[0].samples] == [9 + 3 * n for n in range(10)]
    assert all(reason.startswith("malformed: ") for _, reason in summary.readings[0].samples)
    assert list(summary.readings[1].samples) == []


def test_a_quoted_record_over_the_line_limit_fails_the_object(tmp_path: Path) -> None:
    plan = quoted_plan(tmp_path, b'1,a\n2,"b\n' + b"3,c\n" * 100, line_bytes_max=300, block_bytes=64)
    read(plan, 0)
    summary = summarise(plan)
    assert "a quoted field at offset 4 that does not end within 300 bytes" in summary.exclude[0].reason


class ChangingStore(LocalStore):
    """A store that touches each file between opening it and the end of reading."""

    def open(self, ref: ObjectRef) -> LocalObjectReader:
        reader = super().open(ref)
        os.utime(ref.key, ns=(1, 1))
        return reader


def test_a_file_that_changes_during_the_reading_yields_no_row(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE})
    assert read(plan, 0, store=ChangingStore(plan.source)) == 0
    assert summarise(plan).failures[0].kind is FailureKind.SUPERSEDED


class FaultyStore(LocalStore):
    """A store on a machine that is out of descriptors."""

    def open(self, ref: ObjectRef) -> LocalObjectReader:
        raise TemporaryError("too many open files")


def test_a_fault_of_the_machine_is_not_a_fault_of_the_object(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE})
    with pytest.raises(TemporaryError):
        read(plan, 0, store=FaultyStore(plan.source))
    assert summarise(plan).missing == (0,)


def test_a_schema_is_inferred_from_the_lines(tmp_path: Path) -> None:
    lines = [
        b'{"id": 1, "v": 1, "ts": "2024-05-06T07:08:09Z", "mixed": 1, "none": null, "tags": [], "Id": 3}',
        b'{"id": 2, "v": 1.5, "ts": "2024-05-06 07:08:09.5", "mixed": "x", "tags": ["a"]}',
        b'{"o": {"k": true, "z": {}}, "e": {}, "f": [{}]}',
        b"nonsense",
        b'{"o": {"w": 1}, "_object": "mine", "odd name": 99999999999999999999, "day": "2024-05-06"}',
    ]
    first = b"\xef\xbb\xbf" + b"\n".join(lines[:3])
    plan = plan_of(tmp_path, {"a": first, "b.gz": gzip.compress(b"\n".join(lines))})
    assert infer_schema(plan.objects, LocalStore(plan.source)).ddl == (
        "id BIGINT, v DOUBLE, ts TIMESTAMP, mixed STRING, none STRING, tags ARRAY<STRING>, "
        "o STRUCT<k: BOOLEAN, w: BIGINT>, `odd name` DECIMAL(38,0), day STRING"
    )


def test_rounding_of_whole_numbers_is_noted(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, {"a": b'{"large": 9007199254740993, "beside": 9007199254740993}\n{"beside": 1.5, "Large": 1}\n'}
    )
    inferred = infer_schema(plan.objects, LocalStore(plan.source))
    assert inferred.ddl == "large BIGINT, beside DOUBLE"
    assert [note.partition(":")[0] for note in inferred.notes] == ["beside", "Large"]


def test_nothing_to_infer_from_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": b"", "b": b"no\n[1]\n{}\n", "c.gz": b"no gzip"})
    with pytest.raises(UsageError, match="No object of the sample"):
        infer_schema(plan.objects, LocalStore(plan.source))


def test_errors_of_the_local_store_are_reported_unchanged(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"a": LINE})
    outside = LocalStore(tmp_path / "elsewhere")
    with pytest.raises(ObjectUnreadable):
        outside.open(plan.objects[0])
    read(plan, 0, store=outside)
    assert summarise(plan).failures[0].kind is FailureKind.UNREADABLE
