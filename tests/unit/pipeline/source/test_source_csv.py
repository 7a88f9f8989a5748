"""CSV: its header, its options, and blocks large enough for the search for bad lines to narrow them down."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import ObjectUnreadable, UsageError
from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_lines import Layout
from penstock.pipeline.spark.source.csv_records import header_names, layout_of
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions, checked

SCHEMA = parse_ddl("id bigint, s string, d date")
DECODER = CsvDecoder(SCHEMA, CsvOptions(), Layout(fields=3, indexes=(0, 1, 2)))


def indexes(header: str, csv: CsvOptions | None = None) -> tuple[int | None, ...]:
    return layout_of(header.encode(), SCHEMA, csv or CsvOptions(), "u").indexes


def test_columns_are_matched_by_the_names_in_the_header() -> None:
    assert indexes("d,s,id") == (2, 1, 0)
    assert indexes(' ID ,"S",other') == (0, 1, None)
    assert indexes("other;other;s", CsvOptions(delimiter=";")) == (None, 2, None)
    assert indexes("anything", CsvOptions(header=False)) == (0, 1, 2)


def test_repeated_and_missing_names_are_numbered() -> None:
    assert header_names(b'x,X,,x,"",x_2', CsvOptions(), "a") == ["x", "X_2", "_c2", "x_3", "_c4", "x_2_2"]
    assert header_names(b"v,w", CsvOptions(unnamed_first=True), "a") == ["_c0", "v", "w"]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"id;s;d", "names no column of the schema, it begins 'id;s;d'"),
        (b"", "names no column"),
        (b'id,"s', "a header with a quote that is not closed"),
        (b"id\rs\r1\r2", "a header with a carriage return without a newline"),
        (b"id,\xff", "a header that is not UTF-8, at byte 3"),
    ],
)
def test_an_invalid_header_makes_the_object_unreadable(header: bytes, words: str) -> None:
    with pytest.raises(ObjectUnreadable) as raised:
        layout_of(header, SCHEMA, CsvOptions(), "s3://b/k")
    assert words in str(raised.value)
    assert str(raised.value).startswith("s3://b/k has a header")


def test_a_few_bad_lines_among_many_are_located() -> None:
    bad = {
        7: (b"1", "malformed"),
        1_000: (b"x,a,", "wrong type"),
        1_001: (b"1,,2024-02-30", "wrong type"),
        9_999: (b"1,\xff,", "invalid UTF-8"),
        20_000: (b'1,"a,', "malformed"),
        25_000: (b'1,a"b,"c', "malformed"),
        30_000: (b"1,a,,", "malformed"),
    }
    blank = {5: b"", 25_001: b" \r"}
    lines = [blank.get(n, bad[n][0] if n in bad else b'%d,"a",2024-05-06' % n) + b"\n" for n in range(40_000)]
    decoded = DECODER.decode(b"".join(lines))
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    kept = [n for n in range(40_000) if n not in bad and n not in blank]
    assert decoded.rows.column("id").to_pylist() == kept
    assert decoded.starts.tolist() == starts[kept].tolist()
    assert [(line.start, line.raw, line.reason.value) for line in decoded.bad] == [
        (starts[n], raw, reason) for n, (raw, reason) in bad.items()
    ]


@pytest.mark.parametrize(("line", "detail"), [(b"1", "1 field where 3 are expected"), (b"1,a", "2 fields where 3 are")])
def test_a_bad_line_has_the_number_of_its_fields(line: bytes, detail: str) -> None:
    (bad,) = DECODER.decode(line + b"\n").bad
    assert bad.detail.startswith(detail)


def test_only_bad_lines_yield_no_row() -> None:
    decoded = DECODER.decode(b"nonsense\n" * 3_000)
    assert (decoded.rows.num_rows, len(decoded.bad)) == (0, 3_000)
    assert decoded.rows.schema == SCHEMA


def test_a_quoted_empty_field_is_an_empty_string_and_not_a_number() -> None:
    decoded = DECODER.decode(b'"","",""\n,,\n"1","a","2024-05-06"\n')
    assert decoded.rows.column("id").to_pylist() == [None, None, 1]
    assert decoded.rows.column("s").to_pylist() == ["", None, "a"]
    assert decoded.rows.column("d").null_count == 2


@pytest.mark.parametrize("kind", ["bigint", "double", "decimal(4,2)", "boolean", "date", "timestamp", "timestamp_ntz"])
def test_a_quoted_empty_field_is_null_for_every_type_but_strings(kind: str) -> None:
    decoder = CsvDecoder(parse_ddl(f"s string, x {kind}"), CsvOptions(), Layout(fields=2, indexes=(0, 1)))
    decoded = decoder.decode(b'"",""\n' * 3)
    assert (decoded.rows.to_pylist(), decoded.bad) == ([{"s": "", "x": None}] * 3, ())


def test_the_null_text_is_null_in_addition_to_the_empty_field() -> None:
    decoder = CsvDecoder(SCHEMA, CsvOptions(null_text="NA"), Layout(fields=3, indexes=(0, 1, 2)))
    decoded = decoder.decode(b'NA,NA,NA\n"NA","NA",""\n,,\nna,,\n')
    assert decoded.rows.column("s").to_pylist() == [None, "NA", None]
    assert decoded.rows.column("id").null_count == 3
    assert [line.raw for line in decoded.bad] == [b"na,,"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ReadOptions(format="text", schema_ddl="a string, b string"), "one column of strings"),
        (ReadOptions(format="text", schema_ddl="a bigint"), "one column of strings"),
        (ReadOptions(format="csv", schema_ddl="a array<int>"), "no place for a list or struct, as in a ARRAY<INT>"),
        (ReadOptions(format="csv", schema_ddl="a struct<b: int>"), "no place for a list or struct"),
        (ReadOptions(format="csv"), "schema is empty"),
        (ReadOptions(format="csv", schema_ddl="a int", csv=CsvOptions(delimiter="||")), "delimiter '||'"),
        (ReadOptions(format="csv", schema_ddl="a int", csv=CsvOptions(delimiter="")), "delimiter ''"),
        (ReadOptions(format="csv", schema_ddl="a int", csv=CsvOptions(delimiter="é")), "delimiter 'é'"),
        (ReadOptions(format="csv", schema_ddl="a int", csv=CsvOptions(delimiter="\n")), r"delimiter '\n'"),
        (ReadOptions(format="csv", schema_ddl="a int", csv=CsvOptions(quote=",")), "quote ','"),
        (ReadOptions(format="csv", schema_ddl="a int", csv=CsvOptions(quote="''")), "quote"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(options: ReadOptions, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        checked(options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_escaped_tab_is_a_tab() -> None:
    options = ReadOptions(format="csv", schema_ddl="a int", csv=CsvOptions(delimiter=r"\t"))
    assert checked(options).csv == replace(options.csv, delimiter="\t")


def test_text_needs_no_schema_and_accepts_a_column_name() -> None:
    assert checked(ReadOptions(format="text")).schema_ddl == "value STRING"
    assert checked(ReadOptions(format="text", schema_ddl="line string")).schema_ddl == "line STRING"


@pytest.mark.parametrize(
    ("csv", "words"),
    [
        (CsvOptions(escape="\\\\"), "escape"),
        (CsvOptions(escape=","), "escape"),
        (CsvOptions(comment="//"), "comment"),
        (CsvOptions(comment='"'), "comment"),
        (CsvOptions(skip_lines=-1), "lines to skip"),
        (CsvOptions(nulls=("a\nb",)), "null text"),
    ],
)
def test_an_invalid_dialect_is_refused_in_one_sentence(csv: CsvOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        checked(ReadOptions(schema_ddl="s string", format="csv", csv=csv))
    assert str(refused.value).count(". ") == 0


def test_null_texts_mean_null_in_every_column_unless_quoted() -> None:
    csv = CsvOptions(header=False, nulls=("NA", "-"))
    decoder = CsvDecoder(parse_ddl("s string, n long"), csv, Layout(fields=2, indexes=(0, 1)))
    rows = decoder.decode(b'NA,1\n"NA",-\n-,"NA"\nx,2\n').rows.to_pylist()
    assert rows == [{"s": None, "n": 1}, {"s": "NA", "n": None}, {"s": None, "n": None}, {"s": "x", "n": 2}]
