"""Remembered schemas: stored and read back with their origin, changed, and compared."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import UsageError
from penstock.objects.local_store import LocalStore
from penstock.pipeline.spark.source.differences import (
    Against,
    Difference,
    check_table,
    differences,
    replaced_columns,
    table_differences,
)
from penstock.pipeline.spark.source.infer import infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, as_text, from_text
from penstock.pipeline.spark.source.remembered import NOTHING, How, Remembered, inferred_now, remembered_of

NOW = 1_700_000_000.5


def remembered(folder: Path, data: bytes, form: str = "jsonl") -> Remembered:
    path = folder / "a"
    path.write_bytes(data)
    store = LocalStore(folder)
    found = infer_schema([store.describe(path)], store, ReadOptions(format=form), source=str(folder))
    return inferred_now(found, at=NOW, source=str(folder))


def read_back(one: Remembered) -> Remembered:
    found = remembered_of(one.ddl, one.text())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b'{"v": 1, "o": {"n": 1}}\n{"v": 2, "o": {"n": 1}}\n{"v": "\\ud800", "o": {"n": 1.5}}\n', "jsonl"),
        ("id;näme\n1;\x00\n2;3\n4;5\n".encode(), "csv"),
        (b"line\n", "text"),
    ],
)
def test_stored_schemas_are_read_back(tmp_path: Path, data: bytes, form: str) -> None:
    one = remembered(tmp_path, data, form)
    again = read_back(one)
    text = one.text()
    assert text is not None
    assert text.isascii(), "every database stores it"
    assert (again.ddl, again.origin) == (one.ddl, one.origin)
    assert again.columns == one.columns
    assert again.read is not None
    assert one.read is not None
    assert as_text(again.read) == as_text(one.read)


def test_earlier_versions_read_the_dialect_beside_the_origin(tmp_path: Path) -> None:
    text = remembered(tmp_path, b"id;v\n1;2\n3;4\n", "csv").text()
    assert text is not None
    assert (from_text(text).format, from_text(text).csv.delimiter) == ("csv", ";")


def test_schemas_of_earlier_versions_have_no_origin() -> None:
    assert remembered_of(None, None) is None
    assert remembered_of("id BIGINT", None) == Remembered(ddl="id BIGINT", read=None, origin=None)
    found = remembered_of("id BIGINT", as_text(ReadOptions(format="csv")))
    assert found is not None
    assert found.origin is None
    assert found.read == ReadOptions(format="csv")
    assert [(column.name, column.origin) for column in found.columns] == [("id", None)]
    assert Remembered(ddl="id BIGINT", read=None, origin=None).text() is None


def test_columns_that_stay_keep_their_origin(tmp_path: Path) -> None:
    before = remembered(tmp_path, b'{"a": 1, "b": 1, "o": {"n": 1, "m": 1.5}}\n')
    assert before.read is not None
    ddl = "A BIGINT, b STRING, o STRUCT<n: BIGINT>, c DATE"
    after = read_back(before.changed(ddl, before.read, how=How.SET, at=NOW + 1, source=""))
    assert {column.name: column.origin.how for column in after.columns if column.origin} == {
        "A": How.INFERRED,
        "b": How.SET,
        "o": How.SET,
        "c": How.SET,
    }
    assert after.origin is not None
    assert (after.origin.how, after.origin.dialect, after.origin.source) == (How.SET, How.INFERRED, str(tmp_path))
    other = after.changed(ddl, replace(before.read, format="json"), how=How.GIVEN, at=NOW + 2, source="s3://b/p")
    assert other.origin is not None
    assert (other.origin.dialect, other.origin.source) == (How.GIVEN, "s3://b/p")
    assert [column.origin.how for column in other.columns if column.origin] == [How.INFERRED, How.SET, How.SET, How.SET]


def test_a_column_whose_type_another_version_changed_has_no_origin(tmp_path: Path) -> None:
    one = remembered(tmp_path, b'{"a": 1}\n')
    changed = remembered_of("a STRING", one.text())
    assert changed is not None
    assert [column.origin for column in changed.columns] == [None]


def found(one: Difference) -> tuple[str, str | None, str | None]:
    return one.name, one.remembered, one.found


def test_differences_name_the_value_that_made_them(tmp_path: Path) -> None:
    before = remembered(tmp_path, b'{"a": 1, "gone": 1, "o": {"n": 1}}\n')
    after = remembered(tmp_path, b'{"A": 1, "new": "x", "o": {"n": 1}}\n' * 3 + b'{"A": 1, "o": {"n": 1.5}}\n')
    new, nested, gone = differences(before, after, Against.OBJECTS, source=str(tmp_path))
    assert found(new) == ("new", None, "STRING")
    assert new.reason == 'not remembered, so not read; new is STRING: all 3 values are STRING, such as "x" in a, line 1'
    assert (new.object, new.line) == (f"file://{tmp_path}/a", 1)
    assert found(nested) == ("o", "STRUCT<n: BIGINT>", "STRUCT<n: DOUBLE>")
    assert nested.reason == "o.n is DOUBLE since 1.5 in a, line 4; 3 of 4 values are BIGINT"
    assert found(gone) == ("gone", "BIGINT", None)
    assert differences(before, before, Against.OBJECTS, source="") == []


def test_a_difference_inside_a_struct_is_explained_by_the_fields_that_differ(tmp_path: Path) -> None:
    zips = b'{"addr": {"city": "x", "zip": 1, "at": [{"n": 1}]}}\n{"addr": {"city": "x", "zip": "a"}}\n' * 3
    before = remembered(tmp_path, zips)
    after = remembered(tmp_path, zips + b'{"addr": {"city": "y", "zip": "b", "country": "z", "at": [{"m": 1}]}}\n')
    [change] = differences(before, after, Against.OBJECTS, source=str(tmp_path))
    assert change.reason == "addr.at.m is new; addr.country is new"
    [back] = differences(after, before, Against.OBJECTS, source=str(tmp_path))
    assert back.reason == "no object of the sample has addr.at.m; no object of the sample has addr.country"
    [given] = differences(before, after, Against.GIVEN, source="")
    assert given.reason == "as given"


def test_few_differences_inside_a_struct_are_named(tmp_path: Path) -> None:
    before = remembered(tmp_path, b'{"o": {"a": 1, "t": "2024-05-06"}}\n')
    after = remembered(tmp_path, b'{"o": {"a": true, "t": "2024-05-06", "c": 1, "d": 1, "e": 1}}\n')
    [change] = differences(before, after, Against.OBJECTS, source=str(tmp_path))
    assert change.reason == "o.a is BOOLEAN; o.c is new; o.d is new; 1 other field differs"


def test_a_dialect_is_compared_option_by_option() -> None:
    before = Remembered(ddl="a INT", read=ReadOptions(format="csv"), origin=None)
    csv = CsvOptions(delimiter=";", header=False, null_marks=("NA", "-"), skip_lines=2)
    after = Remembered(ddl="a INT", read=ReadOptions(format="csv", csv=csv), origin=None)
    assert [found(one) for one in differences(before, after, Against.GIVEN, source="")] == [
        ("header", "yes", "no"),
        ("delimiter", '","', '";"'),
        ("null_marks", "none", "NA, -"),
        ("skip_lines", "0", "2"),
    ]
    other = replace(after, read=ReadOptions(format="jsonl"))
    assert [found(one) for one in differences(before, other, Against.GIVEN, source="")] == [("format", "csv", "jsonl")]
    assert differences(NOTHING, after, Against.GIVEN, source="")[0].name == "a"


TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("tags", pa.list_(pa.field("item", pa.large_string()))),
        ("at", pa.timestamp("us", tz="UTC")),
        ("_object", pa.string()),
        ("_offset", pa.int64()),
    ]
)


def test_the_table_is_compared_by_its_types_and_without_the_readers_columns() -> None:
    one = Remembered(ddl="id BIGINT, tags ARRAY<STRING>, at TIMESTAMP", read=None, origin=None)
    assert table_differences(one, TABLE) == []
    check_table(one.ddl, TABLE, uri="t")
    check_table(f"{one.ddl}, more DATE", TABLE, uri="t")
    other = replace(one, ddl="id INT, tags ARRAY<STRING>, more DATE")
    assert [found(each) for each in table_differences(other, TABLE)] == [
        ("id", "INT", "BIGINT"),
        ("at", None, "TIMESTAMP"),
        ("more", "DATE", None),
    ]


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("id INT, tags ARRAY<STRING>, at TIMESTAMP", "The column id is BIGINT in the table t and would become INT"),
        (
            "id BIGINT, tags ARRAY<INT>, at TIMESTAMP",
            "tags is ARRAY<STRING> in the table t and would become ARRAY<INT>",
        ),
        ("id BIGINT, at TIMESTAMP", r"The table t has a column tags \(ARRAY<STRING>\), and the schema would lack it"),
        ("ID BIGINT, tags ARRAY<STRING>, at TIMESTAMP", "The column ID would be written to the table t, which spells"),
    ],
)
def test_rows_that_would_not_fit_the_table_are_refused(ddl: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        check_table(ddl, TABLE, uri="t")


def test_single_columns_replace_those_of_their_name() -> None:
    assert replaced_columns("id INT, v DOUBLE", ["V string", "w date, x int"]) == "id INT, v STRING, w DATE, x INT"
    assert replaced_columns("", ["v string"]) == "v STRING"
    with pytest.raises(UsageError, match="'v' appears twice"):
        replaced_columns("id INT", ["v int, v int"])


def test_the_stored_text_stays_small_whatever_the_values_are(tmp_path: Path) -> None:
    row = json.dumps({f"column {number}": "x" * 10_000 for number in range(100)})
    text = remembered(tmp_path, f"{row}\n".encode() * 3).text()
    assert text is not None
    assert len(text) < 100_000
