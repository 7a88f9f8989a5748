"""A filtered read finds the same rows as a full one, whatever statistics the log has.

deltalake 1.6 drops rows if a log has bounds of a file for some columns and not for others (see
`penstock.sinks.delta.statistics`). These files are like that; other readers and types are in `test_readers`.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.conformance.sinks.kit import DeltaKit, append, loaded

from penstock.sinks.delta.sink import open_dataset
from penstock.sinks.parquet import list_files
from penstock.storage.local import LocalFiles

FIRST_COLUMNS = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("flag", pa.bool_()), ("nested", pa.struct([("x", pa.int64())]))]
)
COLUMNS = FIRST_COLUMNS.append(pa.field("score", pa.float64()))
BATCHES = [
    (FIRST_COLUMNS, [{"id": 1, "name": "a", "flag": True, "nested": {"x": 1}}, {"id": 2}]),
    (COLUMNS, [{"id": 3, "name": "c" * 100, "flag": False, "nested": {"x": 3}, "score": 0.5}, {"id": 4}]),
    (FIRST_COLUMNS, [{"id": 5}]),
    (COLUMNS, [{"id": None, "score": float("nan")}]),
]
FILTERS = {
    "added column": pc.field("score") > 0.1,
    "added column is null": pc.field("score").is_null(),
    "added column is not null": pc.field("score").is_valid(),
    "string": pc.field("name") == "c" * 100,
    "string is null": pc.field("name").is_null(),
    "boolean": pc.field("flag") == pc.scalar(True),
    "boolean is null": pc.field("flag").is_null(),
    "struct is null": pc.field("nested").is_null(),
    "in a struct": pc.field("nested", "x") == 3,
    "number": pc.field("id") > 2,
    "number is null": pc.field("id").is_null(),
    "one or the other": (pc.field("score") > 0.1) | (pc.field("id") == 1),
    "not": ~(pc.field("id") == 1),
}


@pytest.fixture
def table(root: Path) -> Path:
    sink = DeltaKit().sink(root)
    for seq, (schema, rows) in enumerate(BATCHES, start=1):
        attempt_id = f"01K0{seq:022d}"
        run = f"data/{attempt_id}/r1"
        (root / run).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), root / run / "part-0.parquet")
        sink.ensure_schema(schema)
        files = list_files(LocalFiles(root), run, partition_by=(), schema=schema)
        loaded(sink).append(append(seq, attempt_id, *files))
    return root


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("wanted", FILTERS)
def test_a_filtered_read_finds_the_same_rows_as_a_full_one(table: Path, wanted: str, checkpointed: bool) -> None:
    if checkpointed:
        DeltaTable(str(table)).create_checkpoint()
    expected = ids(open_dataset(LocalFiles(table)).to_table().filter(FILTERS[wanted]))
    assert expected, "a filter that finds nothing proves nothing"
    assert ids(open_dataset(LocalFiles(table)).to_table(filter=FILTERS[wanted])) == expected


def ids(rows: Any) -> list[int]:
    return sorted(-1 if id is None else id for id in rows["id"].to_pylist())
