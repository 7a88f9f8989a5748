"""Every public CSV file arrives complete: schema and dialect are inferred, and pandas reads the same cells.

A record is a row, or in quarantine; the files with quarantined records are listed, each with the reason. Each cell is
compared by value with the text that pandas reads in its place, as NumPy and pandas convert it, and the type of each
column with the type that pandas infers. Python's csv module counts the records and their fields.
"""

import bz2
import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from tests.conformance.formats.public_csv import PublicFile, public_files
from tests.property.source_run import Case, Found, MemoryStore, read

from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.infer import infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions
from penstock.pipeline.spark.source.plan import Piece

Texts = npt.NDArray[np.object_]
Flags = npt.NDArray[np.bool_]

PIECE_BYTES = 1 << 20
BLANKS = " \t"
# Texts that may mean NULL in columns of numbers, booleans, dates and times
NULL_MARKS = {"NA", "N/A", "n/a", "na", "NULL", "null", "Null", "None", "none", "#N/A", "#NA", "<NA>", "-", "?", "."}

# Everything that differs from comma, quote, and a header in the first line
DIALECTS: Mapping[str, CsvOptions] = {}
# Records in quarantine: the file, and how many for each reason
QUARANTINED: Mapping[str, Mapping[str, int]] = {}


@dataclass
class Totals:
    """The counts of all files, and the sentences about faults."""

    files: int = 0
    records: int = 0
    cells: int = 0
    quarantined: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.files:,} files, {self.records:,} records, {self.cells:,} cells compared, "
            f"{self.quarantined:,} records in quarantine, {len(self.faults):,} faults"
        )


def test_a_sample_of_the_public_files_arrives_complete(capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, (file for file in public_files() if file.is_of_sample))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_all_public_files_arrive_complete(capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, public_files())


def check(capsys: pytest.CaptureFixture[str], files: Iterable[PublicFile]) -> None:
    totals = Totals()
    for file in files:
        compare(file, totals)
    with capsys.disabled():
        print(f"\nPublic CSV: {totals}")  # noqa: T201 # the figures
    assert totals.files > 100
    assert not totals.faults, "\n".join(totals.faults)


def compare(file: PublicFile, totals: Totals) -> None:
    """Read one file, compare it, and add the result to the totals."""
    totals.files += 1
    options = infer(file)
    reference = Reference.of(file)
    if (found_dialect := replace(options.csv, null_marks=())) != reference.dialect:
        totals.faults.append(f"{file.name}: the dialect is {found_dialect}, not {reference.dialect}")
        return
    found = read_in_pieces(file, options)
    totals.records += reference.records
    totals.quarantined += len(found.bad)
    if (reasons := Counter(reason for *_, reason in found.bad)) != QUARANTINED.get(file.name, {}):
        totals.faults.append(f"{file.name}: in quarantine are {dict(reasons)}, such as {found.bad[:1]}")
    rows = found.table.num_rows
    if rows + len(found.bad) != reference.records or rows != len(reference.cells):
        totals.faults.append(
            f"{file.name}: {rows} rows and {len(found.bad)} records in quarantine, of {reference.records} records, "
            f"{len(reference.cells)} of them with as many fields as the header"
        )
        return
    if found.table.column_names[:-2] != reference.names:
        totals.faults.append(f"{file.name}: the columns are {found.table.column_names[:-2]}, not {reference.names}")
        return
    for place, name in enumerate(reference.names):
        texts = reference.cells.iloc[:, place].to_numpy(dtype=object)
        column = found.table.column(place).combine_chunks()
        totals.cells += len(texts)
        wrong = wrong_cells(texts, column, options.csv.null_marks)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            totals.faults.append(
                f"{file.name}: {wrong.sum()} cells of {name} ({column.type}) differ, the first is row {at}, "
                f"{texts[at]!r} read as {column[at].as_py()!r}"
            )
        if text := mistyped(texts, column.type, reference.inferred.iloc[:, place].dtype):
            totals.faults.append(f"{file.name}: {name} is {column.type}, {text}")


def infer(file: PublicFile) -> ReadOptions:
    ref = ObjectRef(bucket="b", key=file.name, size_bytes=len(file.data), etag="e")
    return infer_schema([ref], MemoryStore({file.name: file.data}), ReadOptions(format="csv")).options


def read_in_pieces(file: PublicFile, options: ReadOptions) -> Found:
    """Read a file as a run does: a plain one in pieces, a compressed one whole."""
    size = len(file.data)
    edges = [0, size] if file.is_compressed else [*range(0, size, PIECE_BYTES), size]
    partitions = [[Piece(object=0, start=start, stop=stop)] for start, stop in pairwise(edges)]
    return read(
        Case(
            contents=[file.data],
            partitions=partitions,
            options=options,
            suffix=".csv.bz2" if file.is_compressed else ".csv",
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The same file as other readers see it."""

    dialect: CsvOptions
    names: Sequence[str]
    records: int  # without the header
    cells: pd.DataFrame  # texts of the records that have as many fields as the header
    inferred: pd.DataFrame  # the same with the types that pandas infers

    @staticmethod
    def of(file: PublicFile) -> "Reference":
        data = bz2.decompress(file.data) if file.is_compressed else file.data
        dialect = DIALECTS.get(file.name, CsvOptions())
        lines = io.StringIO(data.decode(errors="surrogateescape"), newline="")
        header, *records = [record for record in csv.reader(lines, delimiter=dialect.delimiter) if record]
        widths = Counter(map(len, records))
        if widths[len(header) + 1] > len(records) / 2:  # row names of R
            header.insert(0, "")
            dialect = replace(dialect, unnamed_first=True)
        regular = [record for record in records if len(record) == len(header) and is_utf8(record)]
        if len(regular) < len(records):  # pandas cannot read the file whole
            text = io.StringIO()
            csv.writer(text, delimiter=dialect.delimiter).writerows([header, *regular])
            data = text.getvalue().encode()

        def by_pandas(**how: Any) -> pd.DataFrame:
            names = list(range(len(header)))
            return pd.read_csv(
                io.BytesIO(data), sep=dialect.delimiter, header=None, names=names, skiprows=1, index_col=False, **how
            )

        return Reference(
            dialect=dialect,
            names=column_names(header),
            records=len(records),
            cells=by_pandas(dtype=str, keep_default_na=False),
            inferred=by_pandas(low_memory=False),
        )


def is_utf8(record: Sequence[str]) -> bool:
    try:
        "".join(record).encode()
    except UnicodeEncodeError:
        return False
    return True


def column_names(header: Sequence[str]) -> list[str]:
    """Return names of columns: _c0 for a first one without a name, P95_2 for a second P95 or p95."""
    names: list[str] = []
    counts: Counter[str] = Counter()
    for place, text in enumerate(header):
        name = text.strip() or f"_c{place}"
        counts[name.lower()] += 1
        names.append(name if counts[name.lower()] == 1 else f"{name}_{counts[name.lower()]}")
    return names


def wrong_cells(texts: Texts, column: pa.Array, marks: Sequence[str]) -> Flags:
    """Return a flag per cell, set if the value is not the one of its text."""
    assert set(marks) <= NULL_MARKS
    is_text = pa.types.is_string(column.type)
    null = column.is_null().to_numpy(zero_copy_only=False)
    empty = texts == ""
    means_null = empty if is_text else empty | np.isin(texts, list(marks))
    wrong: Flags = null & ~means_null
    kept = ~null
    values = column.filter(pa.array(kept))
    wrong[kept] = differing(texts[kept], values)
    return wrong


def differing(texts: Texts, values: pa.Array) -> Flags:
    """Return a flag per text, set if it is not written for the value."""
    kind = values.type
    if pa.types.is_string(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False) != texts, dtype=np.bool_)
    stripped = np.array([text.strip(BLANKS) for text in texts], dtype=object)
    expected, found = _CONVERTED[kind](stripped), values
    if pa.types.is_floating(kind):
        numbers = found.to_numpy(zero_copy_only=False)
        return np.asarray(~((expected == numbers) | (np.isnan(expected) & np.isnan(numbers))), dtype=np.bool_)
    if pa.types.is_decimal(kind):
        return np.asarray(np.array(found.to_pylist(), dtype=object) != expected, dtype=np.bool_)
    if pa.types.is_temporal(kind):
        found = found.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    return np.asarray(found.to_numpy(zero_copy_only=False) != expected, dtype=np.bool_)


_CONVERTED: Mapping[pa.DataType, Callable[[Texts], npt.NDArray[Any]]] = {
    pa.int64(): lambda texts: np.array([int(text) for text in texts], dtype=np.int64),
    pa.float64(): lambda texts: texts.astype(np.float64),
    pa.bool_(): lambda texts: np.array([{"true": True, "false": False}[text.lower()] for text in texts]),
    pa.decimal128(38, 0): lambda texts: np.array([Decimal(text) for text in texts], dtype=object),
    pa.date32(): lambda texts: texts.astype("datetime64[D]").astype(np.int32),
    pa.timestamp("us", tz="UTC"): lambda texts: pd.to_datetime(texts, utc=True, format="ISO8601").as_unit("us").asi8,
}


def mistyped(texts: Texts, kind: pa.DataType, by_pandas: Any) -> str:
    """Return a sentence if pandas finds numbers or booleans in a column that is of strings here."""
    if not pa.types.is_string(kind) or by_pandas.kind not in "iufb":
        return ""
    filled = [text for text in texts if text]
    if NULL_MARKS.issuperset(filled) or any(
        text.lstrip("+-")[:1] == "0" and text.lstrip("+-")[1:2].isdigit() for text in filled
    ):
        return ""  # a column of marks alone is text, and numbers with leading zeros may be names
    return f"pandas finds {by_pandas}: {filled[:5]}"
