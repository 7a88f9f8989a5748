"""Every format in every situation: the rows of a file, its bad lines, and the reason if it fails.

The table in docs/use/formats.md says the same in words. If a situation cannot exist for a format, its test shows what
happens instead.
"""

import bz2
import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tests.conformance.formats.cell_formats import (
    FORMATS,
    BadLine,
    CellFormat,
    Fails,
    Outcome,
    Placed,
    Unnoticed,
    rows_of,
)
from tests.property.source_run import Case, Found, read

from penstock.errors import UsageError
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source import plan
from penstock.pipeline.spark.source.added import new_columns, with_added
from penstock.pipeline.spark.source.options import ReadOptions, checked
from penstock.pipeline.spark.source.plan import PieceColumns, make_plan
from penstock.pipeline.spark.source.report import FailureKind
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

every_format = pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
CUT_BYTES = 9  # within the last record
MORE = {"more": 7}  # a field that no column takes


@pytest.fixture(autouse=True)
def plans_cut_small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans cut files of some kilobytes like large ones."""
    monkeypatch.setattr(plan, "_OBJECT_COST_BYTES", 0)
    monkeypatch.setattr(plan, "_PARTITION_COST_MIN", 1_000)


@every_format
def test_plain(kind: CellFormat) -> None:
    contents = [kind.write(rows_of(20)), kind.write(rows_of(1, first=20)), kind.write(rows_of(3, first=21))]
    check_rows(kind, contents, read_all(kind, contents))


@every_format
def test_gz(kind: CellFormat) -> None:
    check_compressed(kind, gzip.compress, "gzip", ".gz")


@every_format
def test_bz2(kind: CellFormat) -> None:
    check_compressed(kind, bz2.compress, "bzip2", ".bz2")


@every_format
def test_zstd(kind: CellFormat) -> None:
    check_compressed(kind, zstandard.compress, "zstd", ".zst")


def check_compressed(kind: CellFormat, compress: Callable[[bytes], bytes], codec: str, suffix: str) -> None:
    """Read compressed objects, a truncated one, and one with a plain name. The first would be cut if it were plain."""
    contents = [kind.write(rows_of(3_000)), kind.write(rows_of(20)), kind.write([])]
    packed = [compress(content) for content in contents]
    cut_off = packed[0][:-CUT_BYTES]
    found = read_all(kind, packed, suffix=suffix)
    truncated = read_all(kind, [cut_off], suffix=suffix)
    unnamed = read_all(kind, [packed[0]])
    if kind.format == "binary":
        check_rows(kind, packed, found)
        check_rows(kind, [cut_off], truncated)
        check_rows(kind, [packed[0]], unnamed)
    elif kind.compressed is not None:
        for number in range(len(packed)):
            check_failed(found, number, kind.compressed)
        check_failed(truncated, 0, kind.compressed)
        check_failed(unnamed, 0, kind.compressed)
    else:
        check_rows(kind, contents, found)
        assert pieces_in(found) == [1, 1, 1]
        check_failed(truncated, 0, Fails(f"is a truncated {codec}: it ends after [0-9]+ inflated bytes"))
        reason = rf"is {codec} and not named so: give it a name that ends in \{suffix}"
        check_failed(unnamed, 0, Fails(reason, FailureKind.UNREADABLE))


@every_format
def test_split(kind: CellFormat) -> None:
    content = kind.write(rows_of(3_000, **MORE))
    found = read_all(kind, [content])
    check_rows(kind, [content], found)
    assert unknown_in(found) == ({0: {"more": 3_000}} if kind.has_fields else {})
    assert (pieces_in(found)[0] > 1) == kind.is_cut
    if kind.format != "csv":  # it was cut within records, so its pieces were read again, in one partition
        assert (sum(count > 0 for count in found.rows_by_partition) > 1) == kind.is_cut


@every_format
def test_cut_off_within_the_last_record(kind: CellFormat) -> None:
    check_damaged(kind, kind.write(rows_of(20))[:-CUT_BYTES], kind.cut_off)


@every_format
def test_cut_off_before_the_last_record(kind: CellFormat) -> None:
    content = kind.write(rows_of(1_000))
    check_damaged(kind, content[: kind.last_record(content)], kind.ends_before_it)


def test_cut_off_within_the_last_value_of_csv() -> None:
    kind = FORMATS["csv"]
    content = kind.write(rows_of(20)).removesuffix(b"75\n")
    assert content.endswith(b",4.")
    check_damaged(kind, content, Unnoticed())


@every_format
def test_overwritten_end(kind: CellFormat) -> None:
    check_damaged(kind, kind.write(rows_of(20))[:-CUT_BYTES] + b"\xff" * CUT_BYTES, kind.overwritten)


def check_damaged(kind: CellFormat, content: bytes, outcome: Outcome) -> None:
    """Read a damaged file between two good ones, which have all of their rows."""
    good = kind.write(rows_of(20))
    found = read_all(kind, [good, content, good])
    assert rows_in(found, 0) == expected(kind, good, "s3://b/k0")
    assert rows_in(found, 2) == expected(kind, good, "s3://b/k2")
    match outcome:
        case Fails():
            check_failed(found, 1, outcome)
            assert found.bad == []
        case BadLine(reason, detail):
            start = kind.last_record(content)
            assert rows_in(found, 1) == expected(kind, content[:start], "s3://b/k1")
            assert found.bad == [("s3://b/k1", start, content[start:], reason)]
            assert re.fullmatch(detail, found.details[0])
            assert found.failures == {}
        case Unnoticed():
            check_rows(kind, [good, content, good], found)


@every_format
def test_empty(kind: CellFormat) -> None:
    found = read_all(kind, [b""])
    match kind.format:
        case "reader":
            check_failed(found, 0, Fails(".*ParseError: no element found.*", FailureKind.UNREADABLE))
        case "binary":
            check_rows(kind, [b""], found)
        case _:
            assert (found.rows, found.bad, found.failures, found.counts) == ([], [], {}, {0: (0, 0)})


@every_format
def test_without_rows(kind: CellFormat) -> None:
    content = kind.write([]) or b"\n"
    found = read_all(kind, [content])
    check_rows(kind, [content], found)
    assert len(found.rows) == (0 if kind.has_fields else 1)


@every_format
def test_wrong_type(kind: CellFormat) -> None:
    rows = rows_of(5)
    rows[2]["price"] = "x"
    content = kind.write(rows)
    if not kind.has_fields:
        check_wrong_type_of_a_fixed_column(kind, content)
        return
    placed = kind.read(content)
    place, wrong = placed.pop(2)
    after, _ = placed[2]

    found = read_all(kind, [content])
    assert rows_in(found, 0) == placed
    assert (found.failures, found.counts) == ({}, {0: (4, 1)})
    ((uri, at, raw, reason),) = found.bad
    assert (uri, at, reason) == ("s3://b/k0", place, "wrong type")
    assert found.details == ['field price: "x" is not DECIMAL(9,2)']
    if kind.format in ("jsonl", "csv"):
        assert raw == content[place:after].removesuffix(b"\n")
    else:
        assert json.loads(raw) == wrong

    rescued = read_all(kind, [content], evolve="rescue")
    values = [row | {"_rescued": None} for _, row in placed]
    values.insert(2, wrong | {"price": None, "_rescued": '{"price":"x"}'})
    assert [row for _, row in rows_in(rescued, 0)] == values
    assert (rescued.bad, rescued.failures, rescued.counts) == ([], {}, {0: (5, 0)})
    assert wrong_types_in(rescued) == {0: {"price": 1}}
    assert unknown_in(rescued) == {}


def check_wrong_type_of_a_fixed_column(kind: CellFormat, content: bytes) -> None:
    if kind.format == "text":
        with pytest.raises(UsageError, match="The format text gives one column of strings, not value BIGINT"):
            read_all(kind, [content], ddl="value BIGINT")
        return
    found = read_all(kind, [content], ddl="length TINYINT")
    assert (found.rows, found.failures, found.counts) == ([], {}, {0: (0, 1)})
    assert found.bad == [("s3://b/k0", 0, b'{"length":%d}' % len(content), "wrong type")]
    assert found.details == [f"field length: {len(content)} is not TINYINT"]


@every_format
def test_unknown_field(kind: CellFormat) -> None:
    contents = [kind.write(rows_of(5)), kind.write(rows_of(5, first=5, **MORE))]
    found = read_all(kind, contents)
    check_rows(kind, contents, found)
    if not kind.has_fields:
        assert unknown_in(found) == {}
        check_refused(kind, contents, "rescue")
        check_refused(kind, contents, "fail")
        return
    assert unknown_in(found) == {1: {"more": 5}}

    rescued = read_all(kind, contents, evolve="rescue")
    assert (rescued.bad, rescued.failures, unknown_in(rescued)) == ([], {}, {1: {"more": 5}})
    for number, text in enumerate((None, kind.rescued)):
        assert rows_in(rescued, number) == expected(kind, contents[number], "", _rescued=text)

    strict = read_all(kind, contents, evolve="fail")
    assert rows_in(strict, 0) == expected(kind, contents[0], "")
    first, _ = kind.read(contents[1])[0]
    place = f"line at byte {first}" if kind.format in ("jsonl", "csv") else f"row {first}"
    reason = f"has the field 'more', first in the {place}, and no column takes it: add a column to the schema, or .*"
    check_failed(strict, 1, Fails(reason, FailureKind.UNKNOWN_FIELD))


@every_format
def test_unknown_field_in_bad_lines(kind: CellFormat) -> None:
    content = kind.write(rows_of(400, price="x", **MORE))
    if not kind.has_fields:
        check_refused(kind, [content], "fail")
        return
    found = read_all(kind, [content])
    assert (found.rows, len(found.bad), found.failures) == ([], 400, {})
    assert unknown_in(found) == {0: {"more": 400}}
    assert wrong_types_in(found) == {}

    strict = read_all(kind, [content], evolve="fail")
    assert strict.kinds[0] is FailureKind.UNKNOWN_FIELD
    place = "line at byte" if kind.format in ("jsonl", "csv") else "row"
    assert f"has the field 'more', first in the {place}" in strict.failures[0]
    assert 0 not in strict.counts

    rescued = read_all(kind, [content], evolve="rescue")
    assert (len(rescued.rows), rescued.bad, unknown_in(rescued)) == (400, [], {0: {"more": 400}})
    assert wrong_types_in(rescued) == {0: {"price": 400}}


@every_format
def test_new_column(kind: CellFormat) -> None:
    earlier, later = kind.write(rows_of(5)), kind.write(rows_of(5, first=5, **MORE))
    if not kind.has_fields:
        check_refused(kind, [earlier, later], "add")
        return
    found = read_all(kind, [earlier, later], evolve="add")
    assert unknown_in(found) == {1: {"more": 5}}
    added = new_columns(found.readings, found.plan.options, None, added_before=0)
    assert added == {"more": "BIGINT"}

    again = read_all(kind, [earlier, later], evolve="add", added=added)
    assert (again.bad, again.failures, unknown_in(again)) == ([], {}, {})
    assert rows_in(again, 0) == expected(kind, earlier, "", more=None, _rescued=None)
    assert rows_in(again, 1) == expected(kind, later, "", more=7, _rescued=None)

    retyped = kind.write(rows_of(5, more="seven"))
    next_batch = read_all(kind, [retyped], evolve="add", added=added)
    assert (next_batch.bad, next_batch.failures, unknown_in(next_batch)) == ([], {}, {})
    assert wrong_types_in(next_batch) == {0: {"more": 5}}
    assert rows_in(next_batch, 0) == expected(kind, retyped, "", more=None, _rescued='{"more":"seven"}')


def check_refused(kind: CellFormat, contents: Sequence[bytes], evolve: str) -> None:
    with pytest.raises(UsageError, match=f"The format {kind.format} has no other fields than its columns"):
        read_all(kind, contents, evolve=evolve)


# -- read objects, and compare with the oracle -----------------------------------------------------------------------


def read_all(
    kind: CellFormat,
    contents: Sequence[bytes],
    *,
    suffix: str = "",
    ddl: str = "",
    evolve: str = "none",
    added: Mapping[str, str] | None = None,
) -> Found:
    """Read objects in the pieces that a run plans. ``added``: columns of earlier batches."""
    options = ReadOptions(schema_ddl=ddl or kind.ddl, format=kind.format, reader=kind.reader, evolve=evolve)
    options = with_added(checked(options), added or {})
    refs = [
        ObjectRef(bucket="b", key=f"k{number}{suffix}", size_bytes=len(content), etag="e")
        for number, content in enumerate(contents)
    ]
    nowhere = LocalFiles(Path("nowhere"))
    planned = make_plan(
        refs, attempt_id="A", run=1, options=options, cores=4, source="", aws=Aws(), quarantine=nowhere, work=nowhere
    )
    return read(Case(contents=contents, partitions=planned.partitions, options=options, suffix=suffix))


def rows_in(found: Found, number: int) -> Placed:
    """Return the rows of one object in the order of their places."""
    uri = found.plan.objects[number].uri
    return sorted(((at, row) for of, at, row in found.rows if of == uri), key=lambda placed: placed[0])


def expected(kind: CellFormat, content: bytes, uri: str, **more: Any) -> Placed:
    """Return the rows that the oracle reads, with the declared columns and some more."""
    columns = {"id", "name", "price"}
    placed = kind.read(content)
    if kind.format == "binary":
        return [(at, row | {"path": uri}) for at, row in placed]
    if kind.has_fields:
        return [(at, {name: row[name] for name in row.keys() & columns} | more) for at, row in placed]
    return placed


def check_rows(kind: CellFormat, contents: Sequence[bytes], found: Found) -> None:
    """Check that all objects are read, that each row is there once, and that nothing else is reported."""
    wanted = [expected(kind, content, ref.uri) for content, ref in zip(contents, found.plan.objects, strict=True)]
    assert [rows_in(found, number) for number in range(len(contents))] == wanted
    assert (found.bad, found.failures) == ([], {})
    assert found.counts == {number: (len(rows), 0) for number, rows in enumerate(wanted)}


def check_failed(found: Found, number: int, fails: Fails) -> None:
    """Check that an object failed with the reason, and gives neither rows nor counts."""
    uri = found.plan.objects[number].uri
    assert re.fullmatch(f"{re.escape(uri)} {fails.reason}", found.failures[number])
    assert found.kinds[number] is fails.kind
    assert number not in found.counts


def pieces_in(found: Found) -> list[int]:
    """Return the number of pieces of each object."""
    counts: list[int] = np.bincount(PieceColumns.of(found.plan.partitions).objects).tolist()
    return counts


def unknown_in(found: Found) -> dict[int, dict[str, int]]:
    """Return the rows with each field that no column takes, by object."""
    return {
        number: {name: field.rows for name, field in unknown.fields.items()}
        for number, unknown in found.readings.unknown.items()
        if unknown.fields
    }


def wrong_types_in(found: Found) -> dict[int, dict[str, int]]:
    """Return the rows with a rescued value of another type, by object and column."""
    return {
        number: dict(unknown.wrong_type) for number, unknown in found.readings.unknown.items() if unknown.wrong_type
    }
