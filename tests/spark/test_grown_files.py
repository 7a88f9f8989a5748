"""Files that grow, on Spark: only what was appended is read, and the table is what reading the whole file gives."""

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.services.forked_process import run_forked

from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

Load = Callable[..., IngestReport]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def load(tmp_path: Path, source: Path, spark: SparkSession) -> Load:
    def call(table: str = "t", **options: Any) -> IngestReport:
        options = {"schema": "id bigint", "on_change": "tail", **options}
        request = IngestRequest(source=str(source), table=str(tmp_path / table), **options)
        return ingest(request, stop=StopSignal(), spark=spark)

    return call


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def rows_in(table: Path) -> list[tuple[Any, ...]]:
    """Return all rows with their places, and the file name of their object."""
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted((row["_object"].rpartition("/")[2], row["_offset"], row["id"]) for row in found)


def test_of_a_file_that_grew_only_the_appended_lines_are_read(tmp_path: Path, source: Path, load: Load) -> None:
    file = source / "a.jsonl"
    file.write_text('{"id": 1}\n{"id": "bad"}\n')
    (source / "b.jsonl").write_text('{"id": 3}\n')
    first = load()
    assert (first.grown_objects, first.rows_written, first.lines_quarantined) == (0, 2, 1)

    append(file, '{"id": 2}\n{"id": 4}\n')
    grown = load()
    assert (grown.grown_objects, grown.appended_rows, grown.replaced_objects) == (1, 2, 0)
    assert (grown.rows_written, grown.lines_quarantined) == (2, 0), "the bad line of the beginning is not found twice"
    append(file, '{"id": 5}\n')
    assert load().appended_rows == 1
    assert rows_in(tmp_path / "t") == [
        ("a.jsonl", 0, 1),
        ("a.jsonl", 24, 2),
        ("a.jsonl", 34, 4),
        ("a.jsonl", 44, 5),
        ("b.jsonl", 0, 3),
    ]

    file.write_text('{"id": 9}\n{"id": "bad"}\n{"id": 2}\n{"id": 4}\n{"id": 5}\n{"id": 6}\n')
    corrected = load()
    assert (corrected.grown_objects, corrected.replaced_objects, corrected.replaced_rows) == (0, 1, 4)
    assert rows_in(tmp_path / "t")[0] == ("a.jsonl", 0, 9)
    assert len(rows_in(tmp_path / "t")) == 6

    file.write_text('{"id": 9}\n')
    assert (load().replaced_rows, rows_in(tmp_path / "t")) == (5, [("a.jsonl", 0, 9), ("b.jsonl", 0, 3)])
    append(file, '{"id": 7}')  # its last line is not complete
    assert load().appended_rows == 1
    append(file, "7}\n")
    completed = load()
    assert (completed.grown_objects, completed.replaced_rows) == (0, 2)
    assert completed.lines_quarantined == 1, "the line that was completed is read as it is now"


def test_csv_that_grew_has_its_header_at_the_beginning_and_records_of_several_lines(
    tmp_path: Path, source: Path, load: Load
) -> None:
    file = source / "a.csv"
    file.write_text('name,id\n"x\ny",1\n')
    load(schema="id bigint, name string", format="csv")
    append(file, '"z\n\nz",2\nw,3\n')
    grown = load(schema="id bigint, name string", format="csv")
    assert (grown.grown_objects, grown.appended_rows) == (1, 2)
    assert rows_in(tmp_path / "t") == [("a.csv", 8, 1), ("a.csv", 16, 2), ("a.csv", 25, 3)]
    append(file, '"open\n')  # a quote that is not closed yet
    assert load(schema="id bigint, name string", format="csv").grown_objects == 1
    append(file, 'closed",4\n')
    closed = load(schema="id bigint, name string", format="csv")
    assert (closed.grown_objects, closed.replaced_rows) == (0, 3)
    assert rows_in(tmp_path / "t")[-1] == ("a.csv", 29, 4)


def test_a_file_that_shrinks_to_its_beginning_and_comes_back(tmp_path: Path, source: Path, load: Load) -> None:
    """A-B-A: the longer version begins with the shorter one both times."""
    file = source / "a.jsonl"
    file.write_text('{"id": 1}\n')
    load()
    append(file, '{"id": 2}\n')
    assert load().grown_objects == 1
    long = file.stat()
    file.write_text('{"id": 1}\n')
    assert load().replaced_rows == 2
    append(file, '{"id": 2}\n')
    os.utime(file, ns=(long.st_atime_ns, long.st_mtime_ns))
    back = load()
    assert (back.grown_objects, back.appended_rows) == (1, 1)
    assert rows_in(tmp_path / "t") == [("a.jsonl", 0, 1), ("a.jsonl", 10, 2)]


def test_bad_lines_of_the_beginning_are_read_again_from_the_file_that_grew(
    tmp_path: Path, source: Path, load: Load
) -> None:
    file, table = source / "a.jsonl", tmp_path / "t"
    file.write_text('{"id": 1}\n{"id": "2"}\n')
    assert load(schema="id int").lines_quarantined == 1
    append(file, '{"id": 3}\n')
    assert load(schema="id int").grown_objects == 1
    sent = run_forked(
        [sys.executable, "-m", "penstock", "quarantine", "replay", "--table", str(table), "--yes", "--json"],
        timeout=300.0,
    )
    assert sent.returncode == 0, sent.stderr
    assert json.loads(sent.stdout)["sent"] == 1
    replayed = load(schema="id int")
    assert (replayed.objects_replayed, replayed.rows_written, replayed.lines_quarantined) == (1, 0, 1)
    assert load(schema="id int").objects_dead == 0
    append(file, '{"id": 4}\n')
    assert load(schema="id int, more string").replaced_rows == 2, "what was read with other columns is no beginning"
    assert [row[2] for row in rows_in(table)] == [1, 3, 4]


def test_a_large_file_and_the_lines_appended_to_it_are_read_in_pieces(tmp_path: Path, source: Path, load: Load) -> None:
    """Several tasks read both the file and its end, so each has the digest of its piece."""
    file = source / "a.jsonl"
    lines = 400_000
    file.write_text("".join(f'{{"id": {number}, "pad": "{"x" * 20}"}}\n' for number in range(lines)))
    assert file.stat().st_size > 12 << 20
    load()
    with sqlite3.connect(tmp_path / "t" / "_penstock" / "ledger.db") as ledger:
        (digest,) = ledger.execute("SELECT digest FROM beginnings").fetchone()
    assert len(json.loads(digest)) > 1
    append(file, "".join(f'{{"id": {number}, "pad": "{"x" * 20}"}}\n' for number in range(lines, 2 * lines)))
    assert load().appended_rows == lines
    assert load().objects_processed == 0
    append(file, '{"id": 0}\n')
    assert load().appended_rows == 1
    assert len(rows_in(tmp_path / "t")) == 2 * lines + 1
