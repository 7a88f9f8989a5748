"""Read objects in memory as a run reads them, and compare the result with that of a plain reference."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece, ReadPlan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import FailureKind, ReadingId
from penstock.pipeline.spark.source.summary import ObjectReadings, summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

Reference = Callable[[bytes], "Expected"]


@dataclass
class Expected:
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # (offset, values)
    bad: list[tuple[int, bytes, str]] = field(default_factory=list)  # (offset, raw, reason)


@dataclass
class MemoryReader:
    ref: ObjectRef
    data: bytes
    at: int = 0

    def read(self, size_bytes: int = -1, /) -> bytes:
        found = self.data[self.at :] if size_bytes < 0 else self.data[self.at : self.at + size_bytes]
        self.at += len(found)
        return found

    def pread(self, offset: int, length_bytes: int) -> bytes:
        return self.data[offset : offset + length_bytes]

    def verify(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


@dataclass
class MemoryStore:
    objects: dict[str, bytes]

    def open(self, ref: ObjectRef) -> MemoryReader:
        return MemoryReader(ref, self.objects[ref.key])

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        return self.objects[ref.key][offset : offset + length_bytes]


@dataclass(frozen=True)
class Case:
    """Objects, their partitions, and the read options."""

    contents: Sequence[bytes]
    partitions: Sequence[Sequence[Piece]]
    options: ReadOptions
    suffix: str = ""  # appended to every name
    places: Mapping[int, bytes] = field(default_factory=dict)  # of replays


@dataclass
class Found:
    """The result of a run. ``bad``: (uri, offset, raw, reason)."""

    plan: ReadPlan
    table: pa.Table  # all rows
    bad: list[tuple[str, int, bytes, str]]
    failures: dict[int, str]
    kinds: dict[int, FailureKind]  # of the failures
    details: list[str]
    counts: dict[int, tuple[int, int]]
    rows_by_partition: list[int]
    readings: ObjectReadings

    @cached_property
    def rows(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Return the rows as (uri, offset, values)."""
        position = format_of(self.plan.options.format).position.name
        return [(row.pop("_object"), row.pop(position), row) for row in self.table.to_pylist()]


def read(case: Case) -> Found:
    """Read all partitions once, and once more if objects were cut within records, as the engine does."""
    found = _read(case)
    if not isinstance(found, Found):
        case = replace(case, partitions=_recut(case, found))
        found = _read(case)
    assert isinstance(found, Found), "the new cuts are within records again"
    return found


def _recut(case: Case, recut: Mapping[int, Sequence[int]]) -> list[list[Piece]]:
    """Return the partitions without those objects, plus one with their new pieces."""
    kept = [[piece for piece in partition if piece.object not in recut] for partition in case.partitions]
    edges = {number: [0, *cuts, len(case.contents[number])] for number, cuts in recut.items()}
    assert all(offsets == sorted(offsets) for offsets in edges.values())
    pieces = [
        Piece(object=number, start=start, stop=stop) for number, at in edges.items() for start, stop in pairwise(at)
    ]
    return [*kept, pieces]


def _read(case: Case) -> Found | Mapping[int, Sequence[int]]:
    refs = [
        ObjectRef(bucket="b", key=f"k{number}{case.suffix}", size_bytes=len(data), etag="e")
        for number, data in enumerate(case.contents)
    ]
    store = MemoryStore({ref.key: data for ref, data in zip(refs, case.contents, strict=True)})
    with tempfile.TemporaryDirectory() as folder:
        plan = ReadPlan(
            attempt_id="A",
            run=1,
            options=case.options,
            objects=refs,
            partitions=case.partitions,
            source="",
            aws=Aws(),
            quarantine=LocalFiles(Path(folder, "quarantine")),
            work=LocalFiles(Path(folder, "work")),
            places=case.places,
        )
        tables: list[pa.Table] = []
        for number in range(len(case.partitions)):
            task = partition_task(plan, number)
            batches = list(read_partition(task, store, ReadingId(plan.reports, number)))
            tables.append(pa.Table.from_batches(batches, schema=plan.options.columns))
            tables[-1].validate(full=True)
        summary = summarise(plan)
        if summary.recut:
            return summary.recut
        bad = [
            row
            for file in summary.quarantine
            for row in pq.read_table(Path(folder, "quarantine", file.path)).to_pylist()
        ]
    assert summary.missing == ()
    failures = {**summary.failures, **summary.exclude}
    return Found(
        plan=plan,
        table=pa.concat_tables(tables),
        bad=[(row["object"], row["offset"], row["raw"], row["reason"]) for row in bad],
        details=[row["detail"] for row in bad],
        failures={number: failure.reason for number, failure in failures.items()},
        kinds={number: failure.kind for number, failure in failures.items()},
        counts={number: (reading.rows, reading.lines_quarantined) for number, reading in summary.readings.items()},
        rows_by_partition=[table.num_rows for table in tables],
        readings=summary.readings,
    )


def check(case: Case, reference: Reference) -> None:
    """Compare rows, offsets, quarantine and summary with the reference, exactly."""
    found = read(case)
    expected = [reference(data) for data in case.contents]
    uris = [ref.uri for ref in found.plan.objects]
    wanted = [(uri, at, row) for uri, one in zip(uris, expected, strict=True) for at, row in one.rows]
    assert canonical(sorted(found.rows, key=lambda row: row[:2])) == canonical(sorted(wanted, key=lambda row: row[:2]))
    assert sorted(found.bad) == sorted(
        (uri, *line) for uri, one in zip(uris, expected, strict=True) for line in one.bad
    )
    assert found.failures == {}
    assert found.counts == {number: (len(one.rows), len(one.bad)) for number, one in enumerate(expected)}


def canonical(rows: Any) -> str:
    """Return text for comparison, in which NaN equals itself, column f has float precision, and UTC has one name."""
    for _, _, row in rows:
        if row.get("f") is not None:
            row["f"] = float(np.float32(row["f"]))
    return repr(rows).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


def whole(contents: Sequence[bytes]) -> list[list[Piece]]:
    """Return one partition with all of every object."""
    return [[Piece(object=number, start=0, stop=len(data)) for number, data in enumerate(contents)]]


def halves(data: bytes, cut: int) -> list[list[Piece]]:
    """Return one object in two partitions."""
    return [[Piece(object=0, start=0, stop=cut)], [Piece(object=0, start=cut, stop=len(data))]]


@st.composite
def any_pieces(draw: st.DrawFn, contents: Sequence[bytes]) -> list[list[Piece]]:
    """Cut the objects anywhere, and spread the pieces over three partitions."""
    partitions: list[list[Piece]] = [[], [], []]
    for number, content in enumerate(contents):
        cuts = draw(st.lists(st.integers(0, len(content)), max_size=3).map(sorted))
        for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
            partitions[draw(st.integers(0, 2))].append(Piece(object=number, start=start, stop=stop))
    return partitions
