"""Schemas and dialects inferred from CSV and text."""

import gzip
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.objects.local_store import LocalStore
from penstock.pipeline.spark.source.infer import Inferred, infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, as_text, from_text
from penstock.pipeline.spark.source.samples import sample_chunks


def inferred(folder: Path, files: dict[str, bytes], csv: CsvOptions | None = None, form: str = "csv") -> Inferred:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    store = LocalStore(folder)
    objects = [store.describe(folder / name) for name in sorted(files)]
    given = csv or CsvOptions()
    return infer_schema(
        objects,
        store,
        ReadOptions(format=form, csv=given),
        delimiter_given=given.delimiter != CsvOptions().delimiter,
        source=str(folder),
    )


def test_names_come_from_the_header_and_types_from_the_values(tmp_path: Path) -> None:
    data = b'id, v,ts,zip,b,s,none,day,"large"\r\n1,1,2024-05-06T07:08:09.5Z,00501,true,"",,2024-05-06,9' + b"9" * 20
    more = b"\r\n\r\n2,1.5,2024-05-06 07:08,10001,False,=1+1,,,\r\nbad\r\n"
    found = inferred(tmp_path, {"a": b"\xef\xbb\xbf" + data + more, "b.gz": gzip.compress(b"id,more\n3,x\n")})
    assert found.ddl == (
        "id BIGINT, v DOUBLE, ts TIMESTAMP, zip STRING, b BOOLEAN, s STRING, none STRING, day DATE, "
        "large DECIMAL(38,0), more STRING"
    )
    assert found.notes == (
        (
            "headers differ: only a has v, ts, zip, b, s and 3 more; only b.gz has more; where a column is missing, it "
            "is null"
        ),
    )


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ("1 2 -3", "BIGINT"),
        ("1 2.5", "DOUBLE"),
        (".5 5. 1e3 -0", "DOUBLE"),
        ("1 nan", "DOUBLE"),
        ("nan inf", "STRING"),
        ("1 99999999999999999999", "DECIMAL(38,0)"),
        ("1.5 99999999999999999999", "DOUBLE"),
        ("9" * 39, "STRING"),
        ("007 8", "STRING"),
        ("00.5 8", "STRING"),
        ("+5 8", "BIGINT"),
        ("true FALSE", "BOOLEAN"),
        ("true 1", "STRING"),
        ("yes no", "STRING"),
        ("2024-05-06", "DATE"),
        ("2024-05-06 2024-05-06T07:08", "TIMESTAMP"),
        ("2024-05-06 1", "STRING"),
        ("2024-02-30", "STRING"),
        ("1 x", "STRING"),
        ("0x1f 1", "STRING"),
    ],
)
def test_a_column_gets_the_narrowest_type_that_loses_no_value(tmp_path: Path, values: str, kind: str) -> None:
    rows = "".join(f"{value},x\n" for value in values.split())
    assert inferred(tmp_path, {"a": b"v,other\n" + rows.encode() * 3}).ddl == f"v {kind}, other STRING"


@pytest.mark.parametrize("size", [1, 30], ids=["in the first megabyte", "behind it"])
def test_a_value_anywhere_in_a_column_can_widen_it(tmp_path: Path, size: int) -> None:
    rows = b"".join(b"%d,%s\n" % (number, b"x" * 100) for number in range(1_000)) * size
    text = b"half,%s\n" % (b"y" * 100) * 8_000
    found = inferred(tmp_path, {"a": b"v,other\n" + rows + text + rows})
    assert found.ddl == "v STRING, other STRING"


def test_a_sample_of_many_large_objects_stays_small(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"v,w\n" + b"1,%s\n" % (b"x" * 100) * 30_000)
    store = LocalStore(tmp_path)
    ref = store.describe(tmp_path / "a")
    for objects in (1, 20):
        chunks = sample_chunks(ref, store, ReadOptions(format="csv"), objects=objects)
        sampled = objects * sum(len(chunk.lines) for chunk in chunks)
        assert sampled <= 4 << 20, "whole lines and blocks, so a little more than the size aimed at"


def test_texts_such_as_na_are_null_marks_of_numbers_and_text_of_strings(tmp_path: Path) -> None:
    data = b"age,country,born\n22,NA,2024-05-06\nNA,DE,N/A\n,x,\n"
    found = inferred(tmp_path, {"a": data})
    assert found.ddl == "age BIGINT, country STRING, born DATE"
    assert found.options.csv.null_marks == ("N/A", "NA")
    assert found.notes == ("N/A, NA mean NULL, except in columns of strings",)
    assert from_text(as_text(found.options)).csv == found.options.csv


def test_a_mark_beside_other_text_is_text(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"v,w\n1,NA\nNA,NA\nunknown,NA\n"})
    assert (found.ddl, found.options.csv.null_marks) == ("v STRING, w STRING", ())


@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
def test_the_delimiter_is_detected(tmp_path: Path, delimiter: str) -> None:
    data = f'id{delimiter}text\n1{delimiter}"a, b; c | d"\n2{delimiter}"1,5"\n'
    found = inferred(tmp_path, {"a": data.encode()})
    assert (found.options.csv.delimiter, found.ddl) == (delimiter, "id BIGINT, text STRING")


def test_lines_before_the_data_are_skipped(tmp_path: Path) -> None:
    data = b"Unemployment, by month\n\nSource: office\n" + b"year,month,rate\n" + b"2024,5,6.5\n" * 30
    found = inferred(tmp_path, {"a": data})
    assert found.ddl == "year BIGINT, month BIGINT, rate DOUBLE"
    assert found.options.csv.skip_lines == 3
    assert found.notes == ("the first 3 lines are skipped, since the others have 3 fields",)


CUSTOMERS = (
    b"Nr;Name;Umsatz;Seit;Ort\n" + b"17;M\xc3\xbcller;12,50;01.02.2020;K\xc3\xb6ln\n18;Meier;9,99;03.04.2021;Bonn\n"
)


@pytest.mark.parametrize(
    ("titles", "lines", "note"),
    [
        (b"Kundenliste;;;;\n", 1, "the first line is skipped, since the header is below it"),
        (
            b"Kundenliste;;;;\nStand: 01.02.2026;;;;\n",
            2,
            "the first 2 lines are skipped, since the header is below them",
        ),
        (b"Kunden\n;;Liste;;\n;;;;\n\nStand:;01.02.2026;;;\n", 5, "the first 5 lines are skipped, since the header is"),
    ],
)
def test_titles_padded_with_delimiters_are_no_header(tmp_path: Path, titles: bytes, lines: int, note: str) -> None:
    found = inferred(tmp_path, {"a": titles + CUSTOMERS})
    assert found.ddl == "Nr BIGINT, Name STRING, Umsatz STRING, Seit STRING, Ort STRING"
    assert found.options.csv.skip_lines == lines
    assert found.notes[1].startswith(note)


@pytest.mark.parametrize(
    "data",
    [
        b"Name;;;\nx;;;\ny;;;\n",
        b"Name;;;\nM;K;r;s\nN;B;t;u\nO;C;v;w\n",  # a row may look like a header
        b"Name;;;\n1;2;3;4\n5;6;7;8\n",
        b"Name;;;\nNr;Nr;A;B\n1;2;3;4\n5;6;7;8\n",
        b"Name;;;\nNr;;A;B\n1;2;3;4\n5;6;7;8\n",
        b"Name;;;\nNr;X;A;B\n1;;;\n5;;;\n",
        b"Name;;;\n" + b"x;;;\n" * 20 + b"Nr;X;A;B\n1;2;3;4\n5;6;7;8\n",
        b"Name;Ort;;\nNr;X;A;B\n1;2;3;4\n5;6;7;8\n",
    ],
)
def test_a_header_without_all_names_stays_one_if_in_doubt(tmp_path: Path, data: bytes) -> None:
    found = inferred(tmp_path, {"a": data})
    assert found.options.csv.skip_lines == 0
    assert found.ddl.startswith("Name STRING") or found.ddl.startswith("Name BIGINT")
    assert found.notes[-1].startswith("the header does not name ")


def test_row_names_and_one_column_are_no_title(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b'"","x"\n"Alabama",NA\n"Alaska",2\n"Iowa",3\n'})
    assert (found.options.csv.skip_lines, found.ddl) == (0, "_c0 STRING, x BIGINT")
    assert "the header does not name the first column, which is _c0" in found.notes


def test_columns_without_a_name_are_reported(tmp_path: Path) -> None:
    assert inferred(tmp_path, {"a": b"_c0,v,\n1,2,3\n"}).notes == ("the header does not name a column, which is _c2",)
    many = b"v" + b"," * 7 + b"\n" + b"1,2,3,4,5,6,7,8\n" * 2
    assert inferred(tmp_path, {"a": many}).notes == (
        "the header does not name 7 columns, which are _c1, _c2, _c3, _c4, _c5 and 2 more",
    )


def test_of_a_compressed_object_the_whole_sample_is_its_beginning(tmp_path: Path) -> None:
    row = b"%s,\n" % (b"x" * 100)
    data = b"v,late\n" + row * ((3 << 19) // len(row)) + b"x,1\n" * 3
    assert inferred(tmp_path, {"a.gz": gzip.compress(data)}).ddl == "v STRING, late BIGINT"


def test_a_title_and_some_bad_lines_hide_neither_delimiter_nor_header(tmp_path: Path) -> None:
    data = b"Sales report 2025, confidential\nid;name;amount\n" + b"1;x;2.5\n" * 5 + b"7;short\n"
    found = inferred(tmp_path, {"a": data})
    assert found.ddl == "id BIGINT, name STRING, amount DOUBLE"
    assert found.notes == (
        "the delimiter is a semicolon",
        "the first line is skipped, since the others have 3 fields",
    )


def test_a_title_before_two_columns_is_no_header(tmp_path: Path) -> None:
    data = b"Report\nCreated 2025\n\nid;name\n1;x\n2;y\n"
    assert inferred(tmp_path, {"a": data}).ddl == "id BIGINT, name STRING"


def test_comments_are_skipped(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"# taken, on a Monday\n# by hand\nid,v\n1,2\n# pause\n3,4\n"})
    assert (found.ddl, found.options.csv.comment) == ("id BIGINT, v BIGINT", "#")


def test_a_header_that_begins_with_a_hash_is_a_header(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"#id,v\n1,2\n"})
    assert (found.ddl, found.options.csv.comment) == ("`#id` BIGINT, v BIGINT", "")


def test_a_first_column_without_a_name_is_numbered(tmp_path: Path) -> None:
    assert inferred(tmp_path, {"a": b'"","v"\n"1",2\n'}).ddl == "_c0 BIGINT, v BIGINT"
    found = inferred(tmp_path, {"a": b"v,w\na,1,2\nb,3,4\n"})
    assert (found.ddl, found.options.csv.unnamed_first) == ("_c0 STRING, v BIGINT, w BIGINT", True)


def test_a_first_line_of_numbers_is_no_header(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"1,2.5\n3,4\n"})
    assert (found.ddl, found.options.csv.header) == ("_c0 BIGINT, _c1 DOUBLE", False)
    assert inferred(tmp_path, {"a": b"id,2024\n3,4\n"}).ddl == "id BIGINT, `2024` BIGINT"


def test_without_a_header_columns_are_numbered(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"1;NA\n2;x\n"}, CsvOptions(header=False, delimiter=";", null_text="NA"))
    assert found.ddl == "_c0 BIGINT, _c1 STRING"


def test_a_repeated_name_is_numbered_and_one_of_the_readers_columns_left_out(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"id,x,X,_object\n"})
    assert found.ddl == "id STRING, x STRING, X_2 STRING"
    assert found.notes == ("'_object': left out, since no column can have this name",)


def test_nothing_to_infer_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can be read as csv with a column"):
        inferred(tmp_path, {"a": b"", "b": b"\n\n", "c.gz": b"no gzip", "d": b'"open\n'})


def test_text_always_has_one_column(tmp_path: Path) -> None:
    assert inferred(tmp_path, {"a": b'{"id":1}\n'}, form="text").ddl == "value STRING"


def test_blank_lines_and_comments_of_one_object_skip_no_line_of_another(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"# x\n# y\n\nid,v\n1,2\n3,4\n", "b": b"# x\nid,v\n5,6\n"})
    assert (found.options.csv.skip_lines, found.options.csv.comment) == (0, "#")
    assert found.ddl == "id BIGINT, v BIGINT"


def test_quotes_in_comments_are_characters(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b'# c,"x\n# d\nid,v\n1,"2"\n3,4\n# q,"\n5,6\n'})
    assert (found.ddl, found.options.csv.header) == ("id BIGINT, v BIGINT", True)


def test_a_single_column_of_numbers_has_no_header(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"1\n2\n3\n"})
    assert (found.ddl, found.options.csv.header) == ("_c0 BIGINT", False)


def test_a_single_column_of_texts_is_not_cut_at_commas(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"text\nhello, world\nfoo\nbar, baz, qux\nx\n"})
    assert (found.ddl, found.options.csv.delimiter) == ("text STRING", ";")


@pytest.mark.parametrize(("header", "names"), [(b"", "_c0 _c1"), (b"a;b\n", "a b")], ids=["no header", "a header"])
def test_decimal_commas_do_not_separate_fields(tmp_path: Path, header: bytes, names: str) -> None:
    found = inferred(tmp_path, {"a": header + b"1,5;2,5\n3,5;4,5\n"})
    assert (found.options.csv.delimiter, found.options.csv.skip_lines) == (";", 0)
    assert found.ddl == ", ".join(f"{name} STRING" for name in names.split())


def test_a_delimiter_at_the_end_of_every_row_shifts_no_column(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"a,b\n1,2,\n3,4,\n"})
    assert (found.options.csv.unnamed_first, found.options.csv.skip_lines) == (False, 0)
    assert found.ddl == "a STRING, b STRING"


def test_a_delimiter_may_be_given_by_its_name(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"a\tb\n1\t2\n"}, CsvOptions(delimiter="\\t"))
    assert (found.ddl, found.options.csv.delimiter) == ("a BIGINT, b BIGINT", "\t")
    with pytest.raises(UsageError, match="';;' is not one ASCII character"):
        inferred(tmp_path, {"a": b"a;;b\n"}, CsvOptions(delimiter=";;"))


@pytest.mark.parametrize("values", ["1e400;2", "-+inf;1.5", " 2024-05-06;2024-05-06 07:08"])
def test_no_type_is_inferred_that_refuses_a_value_of_the_sample(tmp_path: Path, values: str) -> None:
    rows = "".join(f"{value},x\n" for value in values.split(";"))
    assert inferred(tmp_path, {"a": b"v,other\n" + rows.encode()}).ddl == "v STRING, other STRING"
