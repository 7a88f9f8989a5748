"""Schemas as DDL text."""

import pyarrow as pa
import pytest

from penstock.errors import UsageError
from penstock.pipeline.spark.source.ddl import format_ddl, parse_ddl


def test_every_type_is_read_and_written() -> None:
    text = (
        "a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE, g BOOLEAN, h STRING, i DATE, j TIMESTAMP, "
        "k TIMESTAMP_NTZ, l DECIMAL(10,0), m ARRAY<STRUCT<x: INT, `y z`: ARRAY<STRING>>>, `n``o` DECIMAL(38,38)"
    )
    assert format_ddl(parse_ddl(text)) == text
    assert format_ddl(parse_ddl(text.lower())) == text


def test_spark_s_other_spellings_of_types_are_accepted() -> None:
    assert format_ddl(parse_ddl("a: long, b real, c dec(3), d numeric(3, 1) comment 'it', e array < byte >")) == (
        "a BIGINT, b FLOAT, c DECIMAL(3,0), d DECIMAL(3,1), e ARRAY<TINYINT>"
    )
    assert parse_ddl("date date").field("date").type == pa.date32()


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("", "is empty"),
        ("id", "ends where the type"),
        ("id lung", "unknown type 'lung'"),
        ("id bigint,", "ends where a column's name"),
        ("id bigint v double", "has 'v' where a comma"),
        ("id bigint; drop", "cannot be read at ';"),
        ("m map<map<string,int>,int>", "a map as the key"),
        ("m interval", "has type interval"),
        ("m array<interval>", "has type interval"),
        ("m variant", "has type variant"),
        ("m varchar(3)", "has type varchar"),
        ("id bigint not null", "is NOT NULL"),
        ("a int, A int", "appears twice"),
        ("s struct<a: int, A: int>", "appears twice"),
        ("_object string", "adds itself"),
        ("n decimal(39,1)", "at most 38 digits"),
        ("n decimal(3,4)", "scale within"),
        ("n decimal(x)", "a number for the decimal"),
        ("a array<int", "has the end where '>'"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "nested deeper"),
        ("'a' int", "where a column's name"),
        ("a int comment b", "the comment's text"),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(ddl: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_ddl(ddl)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
