"""The explanations of inferred types: the value, object and line that made a column wider than most of its values."""

import gzip
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from penstock.errors import UsageError
from penstock.objects.local_store import LocalStore
from penstock.pipeline.spark.source.evidence import Cause, ColumnEvidence, evidence_from_json, short_uri
from penstock.pipeline.spark.source.infer import Inferred, infer_schema
from penstock.pipeline.spark.source.options import ReadOptions


def inferred(folder: Path, files: Mapping[str, bytes], form: str) -> Inferred:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return found_in(folder, form)


def found_in(folder: Path, form: str) -> Inferred:
    store = LocalStore(folder)
    objects = [store.describe(path) for path in sorted(folder.iterdir())]
    return infer_schema(objects, store, ReadOptions(format=form), source=str(folder))


def of(found: Inferred, column: str) -> ColumnEvidence:
    return next(one for one in found.evidence if one.column == column)


def csv(values: str, *, column: str = "v") -> bytes:
    return f"{column},other\n".encode() + b"".join(b"%s,x\n" % value.encode() for value in values.split(";"))


def test_the_value_that_made_a_column_of_numbers_text_is_named_with_object_and_line(tmp_path: Path) -> None:
    numbers = ";".join(map(str, range(115)))
    found = inferred(
        tmp_path, {"1.csv": csv(numbers, column="age"), "2.csv": csv(f"{numbers};n/x;-", column="age")}, "csv"
    )
    assert found.sentences() == ('age is STRING since "n/x" in 2.csv, line 117; 230 of 232 values are BIGINT',)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("1;2;3;x;y", 'v is STRING since "x" in a, line 5; 3 of 5 values are BIGINT'),
        ("1;2;007", 'v is STRING since "007" in a, line 4, which has leading zeros; 2 of 3 values are BIGINT'),
        ("1.5;2.5;00.5", 'v is STRING since "00.5" in a, line 4, which has leading zeros; 2 of 3 values are DOUBLE'),
        (
            "2024-05-06;2024-05-07;08/05/2024",
            'v is STRING since "08/05/2024" in a, line 4, which is written in another way; 2 of 3 values are DATE',
        ),
        (
            "1;2;99999999999999999999",
            (
                'v is DECIMAL(38,0) since "99999999999999999999" in a, line 4, which is out of range; 2 of 3 values '
                "are BIGINT"
            ),
        ),
        ("1.5;2.5;1e999", 'v is STRING since "1e999" in a, line 4, which is out of range; 2 of 3 values are DOUBLE'),
        (
            "1;2;missing;missing;3",
            'v is STRING since "missing" in a, line 4, which may mean NULL; 3 of 5 values are BIGINT',
        ),
        ("1;2;2.5", 'v is DOUBLE since "2.5" in a, line 4; 2 of 3 values are BIGINT'),
        (
            "2024-05-06;2024-05-07;2024-05-07T10:00",
            (
                'v is TIMESTAMP since "2024-05-07T10:00" in a, line 4, which is written in another way; 2 of 3 values '
                "are DATE"
            ),
        ),
        ("true;false;1", 'v is STRING since "1" in a, line 4; 2 of 3 values are BOOLEAN'),
    ],
)
def test_causes_in_csv(tmp_path: Path, values: str, sentence: str) -> None:
    found = inferred(tmp_path, {"a": csv(values)}, "csv")
    assert found.sentences() == (sentence,)


@pytest.mark.parametrize("values", ["1;2", "x;y;1;2", "1;NA;2", "1.5;2", "nan;1.5"])
def test_a_type_that_most_values_have_needs_no_explanation(tmp_path: Path, values: str) -> None:
    found = inferred(tmp_path, {"a": csv(values)}, "csv")
    assert found.explained == []
    assert of(found, "v").line == 2


def test_a_line_is_counted_behind_quoted_line_breaks_a_title_and_a_byte_order_mark(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbftitle\nv,other\n" + b'1,"two\nlines"\n' * 5 + b"x,y\n"
    assert of(inferred(tmp_path, {"a": data}, "csv"), "v").line == 13
    (tmp_path / "a").unlink()
    assert of(inferred(tmp_path, {"a.gz": gzip.compress(data)}, "csv"), "v").line == 13


def test_a_line_far_inside_a_large_object_is_counted_too(tmp_path: Path) -> None:
    data = b"v,other\n" + b"1,%s\n" % (b"x" * 97) * 60_000 + b"half,%s\n" % (b"y" * 94) * 10_000
    evidence = of(inferred(tmp_path, {"a": data}, "csv"), "v")
    assert evidence.cause is Cause.MARK
    assert evidence.line is not None
    assert data.split(b"\n")[evidence.line - 1].startswith(b"half")


def test_too_far_inside_it_the_byte_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.spark.source.evidence._SEARCHED_BYTES", 10)
    data = b"v,other\n1,x\n2,x\nhalf,x\n"
    assert of(inferred(tmp_path, {"a": data}, "csv"), "v").where(str(tmp_path)) == "a, byte 16"


def test_objects_with_another_delimiter_or_header_are_named(tmp_path: Path) -> None:
    files = {"a.csv": b"id,v\n1,2\n3,4\n", "b.csv": b"id;v\n1;2\n3;4\n", "c.csv": b"id;v\n1;2\n3;4\n"}
    notes = inferred(tmp_path, files, "csv").notes
    assert notes[0] == (
        "a.csv is separated by a comma, and b.csv is separated by a semicolon: all are read like the former, so ingest "
        "those like the latter from a folder of their own"
    )


def test_an_object_without_a_header_beside_one_with_is_named(tmp_path: Path) -> None:
    files = {"a.csv": b"id,v\n1,2\n3,4\n", "b.csv": b"1,2\n3,4\n"}
    assert inferred(tmp_path, files, "csv").notes[0].startswith("a.csv has a header, and b.csv has no header: ")


def test_objects_of_a_single_line_tell_no_other_dialect(tmp_path: Path) -> None:
    files = {"a.csv": b"id,v\n1,2\n", "b.csv": b"id,v\n", "c.csv": b"one;x\n", "d.csv": b"v,id\n1,2\n"}
    assert not any("separated" in note for note in inferred(tmp_path, files, "csv").notes)


JSON = {
    "text": (b'{"v": 1}\n' * 9 + b'{"v": "two"}\n{"v": "three"}\n', '"two"', 10, Cause.TEXT),
    "null mark": (b'{"v": 1}\n' * 9 + b'{"v": "n/a"}\n', '"n/a"', 10, Cause.MARK),
    "nested": (b'{"v": 1}\n' * 9 + b'{"v": {"a": 1}}\n', '{"a": 1}', 10, Cause.NESTED),
    "list": (b'{"v": 1}\n' * 9 + b'{"v": [1]}\n', "[1]", 10, Cause.NESTED),
    "boolean": (b'{"v": 1}\n' * 9 + b'{"v": true}\n', "true", 10, Cause.TYPE),
}


@pytest.mark.parametrize("case", JSON)
def test_json_of_several_kinds_is_text(tmp_path: Path, case: str) -> None:
    data, value, line, cause = JSON[case]
    evidence = of(inferred(tmp_path, {"a": data}, "jsonl"), "v")
    assert (evidence.value, evidence.line, evidence.cause) == (value, line, cause)
    assert evidence.type == "STRING"
    assert evidence.sentence("").startswith(f"v is STRING since {value} in ")


def test_mixed_times_and_nested_fields_of_json_are_explained(tmp_path: Path) -> None:
    good = b'{"at": "2024-05-06T07:08:09Z", "o": {"n": 1, "m": "x"}}\n' * 3
    bad = b'{"at": "06.05.2024 07:08", "o": {"n": 1.5, "m": "x"}}\n'
    found = inferred(tmp_path, {"a": good, "b": bad}, "jsonl")
    assert found.ddl == "at STRING, o STRUCT<n: DOUBLE, m: STRING>"
    assert found.sentences() == (
        (
            'at is STRING since "06.05.2024 07:08" in b, line 1, which is written in another way; 3 of 4 values are '
            "TIMESTAMP"
        ),
        "o.n is DOUBLE since 1.5 in b, line 1; 3 of 4 values are BIGINT",
    )
    assert [one.column for one in found.evidence] == ["at", "o", "o.n"]


def test_the_note_about_names_that_differ_in_case_says_how_to_keep_the_second(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b'{"amount": 1, "Amount": 2}\n'}, "jsonl")
    assert found.ddl == "amount BIGINT"
    assert found.notes == (
        (
            'Amount: left out, since only case tells it from another field; evolve="rescue" (--evolve rescue) keeps '
            "its values in _rescued"
        ),
    )


def test_a_row_of_a_document_is_named_by_its_number(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a.json": b'[{"v": 1}, {"v": 2}, {"v": 99999999999999999999}]'}, "json")
    assert found.sentences() == (
        (
            "v is DECIMAL(38,0) since 99999999999999999999 in a.json, row 2, which is out of range; 2 of 3 values are "
            "BIGINT"
        ),
    )


def test_files_whose_own_schemas_differ_are_named(tmp_path: Path) -> None:
    for name, values in (("a", [1]), ("b", [2]), ("c", ["x"])):
        pq.write_table(pa.table({"v": values, "w": [1.5]}), tmp_path / f"{name}.parquet")
    found = found_in(tmp_path, "parquet")
    assert found.ddl == "v STRING, w DOUBLE"
    assert found.sentences() == ("v is STRING since it is STRING in c.parquet; 2 of 3 objects have it as BIGINT",)


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_an_empty_object_is_left_out_and_named(tmp_path: Path, form: str) -> None:
    table = pa.table({"v": [1]})
    if form == "parquet":
        pq.write_table(table, tmp_path / "b")
    else:
        orc.write_table(table, tmp_path / "b")
    (tmp_path / "a").write_bytes(b"")
    found = found_in(tmp_path, form)
    assert (found.ddl, found.notes) == ("v BIGINT", ("a is empty and tells nothing about the schema",))
    for number in range(30):
        (tmp_path / f"a{number}").write_bytes(b"")
    found = found_in(tmp_path, form)
    assert found.ddl == "v BIGINT"
    assert found.notes == ("31 objects, such as a, are empty and tell nothing about the schema",)


@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "jsonl", "json"])
def test_only_empty_objects_are_one_clear_error(tmp_path: Path, form: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(
        UsageError, match=r"All 2 objects of the source are empty \(file.*/a\), so no schema can be inf"
    ):
        found_in(tmp_path, form)
    (tmp_path / "b").unlink()
    with pytest.raises(UsageError, match="The only object of the source is empty"):
        found_in(tmp_path, form)


def test_few_explanations_are_shown_and_text_goes_first(tmp_path: Path) -> None:
    columns = 9
    header = ",".join(f"c{number}" for number in range(columns))
    rows = [["1"] * columns] * 3 + [["1.5"] * (columns - 1) + ["x"]]
    data = "\n".join([header, *(",".join(row) for row in rows)])
    sentences = inferred(tmp_path, {"a": data.encode()}, "csv").sentences()
    assert len(sentences) == 6
    assert sentences[0].startswith('c8 is STRING since "x" in a, line 5')
    assert sentences[-1] == "4 more columns explained by `penstock admin schema show`"


def test_long_values_are_cut_and_braces_are_characters(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"{a}": csv("1;2;" + "{x}" * 40), "{b}": b""}, "csv")
    assert of(found, "v").value == '"' + "{x}" * 20 + '..."'
    assert found.notes == ("{b} is empty and tells nothing about the schema",)
    assert "in {a}, line 4" in found.sentences()[1]


def test_evidence_survives_json(tmp_path: Path) -> None:
    for one in inferred(tmp_path, {"a": csv("1;2;x")}, "csv").evidence:
        assert evidence_from_json(one.as_json()) == one


@pytest.mark.parametrize(
    ("uri", "source", "shown"),
    [
        ("file:///in/a/b.csv", "/in", "a/b.csv"),
        ("s3://bucket/in/b.csv", "s3://bucket/in", "b.csv"),
        ("file:///other/b.csv", "/in", "file:///other/b.csv"),
        ("file:///in/b.csv", "", "file:///in/b.csv"),
    ],
)
def test_objects_are_called_by_their_place_below_the_source(uri: str, source: str, shown: str) -> None:
    assert short_uri(uri, source) == shown
