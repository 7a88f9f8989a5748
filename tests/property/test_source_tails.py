"""Two versions of an object, read one after the other: rows and bad lines are those of the second one, read whole.

The second version is longer, corrected, shorter or the same, and both are cut into pieces anywhere.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.source_run import MemoryStore

from penstock.ledger.records import KnownBeginning
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.beginnings import beginning_of, reading_of, usable_beginnings
from penstock.pipeline.spark.source.options import ReadOptions, checked
from penstock.pipeline.spark.source.plan import make_plan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import ReadingId
from penstock.pipeline.spark.source.summary import summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

OPTIONS = {
    "jsonl": checked(ReadOptions(schema_ddl="id bigint, t string", block_bytes=64)),
    "csv": checked(ReadOptions(schema_ddl="id bigint, t string", format="csv", block_bytes=64)),
    "text": checked(ReadOptions(format="text", block_bytes=64)),
}
LINES = {
    "jsonl": ['{"id": 1}\n', '{"id": 2, "t": "ü"}\r\n', "junk\n", "\n", '{"id": 3', "}\n", '{"id": "x"}\n'],
    "csv": ["id,t\n", "1,a\n", '2,"b\nc"\r\n', '"', 'd"\n', "x,y\n", "\n", "3,e", '4,"f,\n\ng"\n'],
    "text": ["a line\n", "ü\r\n", "\n", "half", "\ufeff", "more\n"],
}


@dataclass(frozen=True, kw_only=True)
class Read:
    """The rows and bad lines of one version, by place."""

    rows: Sequence[tuple[int, Mapping[str, Any]]]
    bad: Sequence[tuple[int, bytes]]
    known: KnownBeginning | None
    grew: bool = False
    bytes: int = 0
    failed: bool = False


def read(data: bytes, format: str, cuts: Sequence[int], known: KnownBeginning | None = None) -> Read:
    """Read a version in pieces that are cut at these shares of it, in percent."""
    options, ref = OPTIONS[format], ObjectRef(bucket="b", key="k", size_bytes=len(data), etag=f"{len(data)}")
    reading = reading_of(options, "t")
    beginnings = usable_beginnings({} if known is None else {ref.object_id: known}, [ref], options, reading=reading)
    begin = beginnings[0].beginning.size_bytes if beginnings else 0
    at: Sequence[int] = sorted({begin + (len(data) - begin) * share // 100 for share in cuts} - {begin, len(data)})
    for run in range(20):
        with tempfile.TemporaryDirectory() as folder:
            root = LocalFiles(Path(folder))
            plan = make_plan(
                [ref],
                attempt_id="a",
                run=run,
                options=options,
                cores=1,
                source="b",
                aws=Aws(),
                quarantine=root.below("quarantine"),
                work=root.below("work"),
                cuts={0: at} if at else {},
                hashes=True,
                beginnings=beginnings,
            )
            plan.save()
            rows = []
            for partition in range(len(plan.partitions)):
                task = partition_task(plan, partition)
                for batch in read_partition(task, MemoryStore({"k": data}), ReadingId(task.reports, partition)):
                    rows += batch.to_pylist()
            summary = summarise(plan)
            bad = [
                (row["offset"], row["raw"])
                for file in summary.quarantine
                for row in pq.read_table(f"{plan.quarantine}/{file.path}").to_pylist()
            ]
        if summary.recut:
            at = list(summary.recut[0])
            continue
        found = summary.readings.get(0)
        beginning = None if found is None else beginning_of(ref, found.beginning, reading=reading)
        return Read(
            rows=sorted((row.pop("_offset"), row) for row in rows),
            bad=sorted(bad),
            known=None
            if beginning is None
            else KnownBeginning(beginning=beginning, attempt_id="a", rows=len(rows), lines_quarantined=len(bad)),
            grew=found is not None and found.grew,
            bytes=0 if found is None else found.bytes,
            failed=found is None,
        )
    raise AssertionError("cut again and again")


def versions(format: str) -> st.SearchStrategy[tuple[bytes, bytes]]:
    """Return the contents of two versions, of which the second one nearly always begins with the first."""
    text = st.lists(st.sampled_from(LINES[format]), max_size=12).map("".join)
    grown = st.tuples(text, text).map(lambda two: (two[0].encode(), (two[0] + two[1]).encode()))
    return st.one_of(grown, grown, st.tuples(text, text).map(lambda two: (two[0].encode(), two[1].encode())))


CUTS = st.lists(st.integers(1, 99), max_size=3)


def check(format: str, contents: tuple[bytes, bytes], cuts: Sequence[Sequence[int]]) -> Read:
    """Read two versions, compare them with the second one read whole, and return what the second reading gave."""
    before, data = contents
    first = read(before, format, cuts[0])
    second = read(data, format, cuts[1], first.known)
    whole = read(data, format, ())
    if whole.failed:  # such as CSV with a header of other names, which only its first data line shows
        return second
    kept = first if second.grew else Read(rows=(), bad=(), known=None)
    assert [*kept.rows, *second.rows] == list(whole.rows)
    assert [*kept.bad, *second.bad] == list(whole.bad)
    if second.grew:
        assert data.startswith(before)
        assert second.bytes == len(data) - len(before)
    assert (second.known is None) == (whole.known is None)
    if second.known is not None:  # and the version after them begins with it, too
        longer = data + LINES[format][1].encode()
        third = read(longer, format, cuts[0], second.known)
        assert third.grew
        assert [*whole.rows, *third.rows] == list(read(longer, format, ()).rows)
    return second


@pytest.mark.parametrize("format", OPTIONS)
@settings(max_examples=30)
@given(data=st.data())
def test_two_readings_give_the_second_version(format: str, data: st.DataObject) -> None:
    check(format, data.draw(versions(format)), data.draw(st.tuples(CUTS, CUTS)))


@pytest.mark.slow
@pytest.mark.parametrize("format", OPTIONS)
@settings(max_examples=1_500)
@given(data=st.data())
def test_two_readings_give_the_second_version_of_many(format: str, data: st.DataObject) -> None:
    check(format, data.draw(versions(format)), data.draw(st.tuples(CUTS, CUTS)))


@pytest.mark.parametrize(
    ("format", "before", "data", "grew"),
    [
        ("jsonl", b'{"id": 1}\n', b'{"id": 1}\n{"id": 2}\n', True),
        ("jsonl", b'{"id": 1}', b'{"id": 1}\n{"id": 2}\n', False),  # its line was not complete
        ("jsonl", b'{"id": 1}\n', b'{"id": 3}\n{"id": 2}\n', False),
        ("jsonl", b'{"id": 1}\n{"id": 2}\n', b'{"id": 1}\n', False),
        ("jsonl", b'{"id": 1}\n', b'{"id": 2}\n', False),
        ("jsonl", b"\n", b'\n{"id": 2}\n', True),
        ("jsonl", b"", b'{"id": 2}\n', False),
        ("jsonl", b'\xff\xfe{\x00"\x00\n\x00', b'\xff\xfe{\x00"\x00\n\x00\n\x00', False),
        ("csv", b"id,t\n", b"id,t\n1,a\n", True),
        ("csv", b"\n", b"\nid,t\n1,a\n", True),
        ("csv", b'id,t\n1,"a\n', b'id,t\n1,"a\n"\n', False),  # it ended within quotes
        ("csv", b'id,t\n1,"a\nb"\n', b'id,t\n1,"a\nb"\n2,"c\nd"\n', True),
        ("text", b"a\n", b"a\nb", True),
    ],
)
@pytest.mark.parametrize("cuts", [(), (50,), (30, 60, 90)])
def test_the_beginning_is_not_read_again_if_it_is_the_same(
    format: str, before: bytes, data: bytes, grew: bool, cuts: Sequence[int]
) -> None:
    assert check(format, (before, data), (cuts, cuts)).grew is grew
