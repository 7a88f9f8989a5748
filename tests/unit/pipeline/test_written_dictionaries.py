"""Texts in dictionaries are written as such: the files hold the same values and bounds, in fewer bytes."""

import platform
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipeline.spark import direct
from penstock.pipeline.spark.arrow_writer import WriteTask
from penstock.sinks.parquet import statistics
from penstock.storage.local import LocalFiles

SCHEMA = pa.schema([("n", pa.int64()), ("_object", pa.string())])
ROWS = 10_000


def batch(*texts: str, unused: str = "zzz") -> pa.RecordBatch:
    """Return rows with these texts, each many times in a row, from a dictionary that has another one as well."""
    indices = pa.array([number for number in range(len(texts)) for _ in range(ROWS)], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array([*texts, unused]))
    return pa.RecordBatch.from_arrays([pa.array(range(len(column)), pa.int64()), column], names=SCHEMA.names)


def written(folder: Path, *batches: pa.RecordBatch) -> Path:
    task = WriteTask.of(SCHEMA, files=LocalFiles(folder), directory="d")
    (result,) = task.results(batches)
    assert result.column("fault").to_pylist() == [None]
    return folder / str(result.column("path")[0].as_py())


def test_batches_with_other_dictionaries_are_written_with_one(tmp_path: Path) -> None:
    path = written(tmp_path, batch("s3://b/1"), batch("s3://b/2", "s3://b/1"))
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    assert table["_object"].to_pylist() == ["s3://b/1"] * ROWS + ["s3://b/2"] * ROWS + ["s3://b/1"] * ROWS
    found = pq.read_metadata(path).row_group(0).column(1)
    assert found.total_uncompressed_size < ROWS  # as plain texts: twelve bytes for each of three times as many rows
    bounds = statistics(pq.read_metadata(path), SCHEMA)
    assert (bounds["minValues"]["_object"], bounds["maxValues"]["_object"]) == ("s3://b/1", "s3://b/2")


def test_long_texts_in_a_dictionary_have_bounds(tmp_path: Path) -> None:
    path = written(tmp_path, batch("k" * 5_000, "m" * 5_000, unused="z" * 5_000))
    bounds = statistics(pq.read_metadata(path), SCHEMA)
    assert bounds["minValues"]["_object"] == "k" * 32
    assert bounds["maxValues"]["_object"].startswith("m" * 31)


@pytest.mark.parametrize(
    ("libc", "chosen", "backends"), [("glibc", "", ["system"]), ("glibc", "mimalloc", []), ("", "", [])]
)
def test_a_task_allocates_with_glibc_unless_another_allocator_is_chosen(
    libc: str, chosen: str, backends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", chosen)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(pa, "set_memory_pool", lambda pool: used.append(pool.backend_name))
    direct._allocate_plainly()
    assert used == backends
