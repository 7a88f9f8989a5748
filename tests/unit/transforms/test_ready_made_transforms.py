"""Ready-made transforms: their options, their merges, and the schemas that they give."""

import json
import subprocess
import sys

import pytest
from tests.conformance.formats.outcomes import read_each

from penstock.errors import UsageError
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.transforms import Debezium, Dms, debezium, debezium_flattened, dms

COLUMNS = "id BIGINT, name STRING"


@pytest.mark.parametrize(("transform", "operation"), [(debezium, "d"), (debezium_flattened, "d"), (dms, "D")])
def test_the_merge_uses_the_columns_that_the_transform_adds(transform: Debezium | Dms, operation: str) -> None:
    assert transform.merge(key=["id", "region"]) == Merge(
        key=["id", "region"], order_by="_position", delete_when=f"_op = '{operation}'", drop="_op"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"order": "lsn"}, "order='lsn'; write one of log, time"),
        ({"flattened": True, "ignore_tombstones": True}, "leave out ignore_tombstones"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Debezium(**options)  # type: ignore[arg-type] # wrong on purpose


def test_dms_needs_the_name_of_its_timestamp_column() -> None:
    with pytest.raises(UsageError, match="empty timestamp_column"):
        Dms(timestamp_column="")


def test_flattened_events_have_no_schema_of_their_own() -> None:
    with pytest.raises(UsageError, match=r"add\.fields adds, such as 'id BIGINT, __op STRING"):
        debezium_flattened.schema(COLUMNS)


@pytest.mark.parametrize("wrapped", [False, True])
def test_lines_of_debezium_are_read_by_the_schema_with_the_source_block_as_text(wrapped: bool) -> None:
    source = '{"connector": "mysql", "file": "mysql-bin.000003", "pos": 484, "row": 0}'
    line = f'{{"before": null, "after": {{"id": 1, "name": "a"}}, "source": {source}, "op": "c", "ts_ms": 5}}'
    content = f'{{"schema": {{"type": "struct"}}, "payload": {line}}}' if wrapped else line
    options = ReadOptions(schema_ddl=debezium.schema(COLUMNS, wrapped=wrapped), format="jsonl")
    ((rows, bad, failed),) = read_each([f"{content}\nnull\n".encode()], options)
    (row,) = rows
    event = row["payload"] if wrapped else row
    assert event["after"] == {"id": 1, "name": "a"}
    assert json.loads(event["source"]) == json.loads(source)
    assert (len(bad), failed) == (1, False)  # null, the value of a tombstone, is no object


def test_rows_of_dms_are_read_by_the_schema_with_and_without_op() -> None:
    options = ReadOptions(schema_ddl=dms.schema(COLUMNS), format="csv")
    loaded, changed = read_each(
        [b"id,name,dms_timestamp\n1,a,2026-01-01 10:00:00.000000\n", b"Op,dms_timestamp,id,name\nD,2026-01-02,1,a\n"],
        options,
    )
    assert [(row["Op"], row["id"], row["dms_timestamp"]) for row in loaded[0] + changed[0]] == [
        (None, 1, "2026-01-01 10:00:00.000000"),
        ("D", 1, "2026-01-02"),
    ]


def test_importing_them_loads_no_spark() -> None:
    code = "import sys, penstock.transforms; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
