"""JSON documents against Python's own parser, and objects read as they are."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.source_run import Case, Found, read, whole

from penstock.pipeline.spark.source.documents import looks_like_document
from penstock.pipeline.spark.source.options import ReadOptions, checked

DDL = "id bigint, name string, at struct<x: double>, tags array<string>"
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        "at": st.none() | st.fixed_dictionaries({"x": st.floats(allow_nan=False, allow_infinity=False)}),
        "tags": st.none() | st.lists(st.sampled_from(["a", "[", "}", '"', "\\", "\n"]), max_size=3),
        "unknown": st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=2)),
    },
)
LAYOUTS: list[dict[str, Any]] = [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}]


def found_in(*contents: bytes, suffix: str = "", ddl: str = DDL, block_bytes: int = 1 << 20) -> Found:
    options = ReadOptions(schema_ddl=ddl, format="json", block_bytes=block_bytes)
    return read(Case(contents=contents, partitions=whole(contents), options=options, suffix=suffix))


def expected(rows: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(number, {name: row.get(name) for name in ("id", "name", "at", "tags")}) for number, row in enumerate(rows)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(ROWS, max_size=6),
    layout=st.sampled_from(LAYOUTS),
    shape=st.sampled_from(["array", "values", "arrays"]),
    block_bytes=st.sampled_from([1, 30, 1 << 20]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_every_object_of_a_document_is_a_row_with_its_number(
    rows: list[dict[str, Any]], layout: dict[str, Any], shape: str, block_bytes: int, encoding: str
) -> None:
    match shape:
        case "array":
            text = json.dumps(rows, **layout)
        case "values":
            text = "\n\n".join(json.dumps(row, **layout) for row in rows)
        case _:
            text = json.dumps(rows, **layout) + " [ ] " + json.dumps(rows, **layout)
            rows = rows * 2
    found = found_in(text.encode(encoding), block_bytes=block_bytes)
    assert (found.failures, found.bad) == ({}, [])
    assert [(number, row) for _, number, row in found.rows] == expected(rows)


def test_a_value_that_is_no_row_is_a_bad_row_and_the_others_are_read() -> None:
    found = found_in(b'[{"id": 1},\n 7, {"id": "x"},\n {"id":\n 2}]', block_bytes=12)
    assert [(number, row["id"]) for _, number, row in found.rows] == [(0, 1), (3, 2)]
    assert [(number, raw, reason) for _, number, raw, reason in found.bad] == [
        (1, b"7", "malformed"),
        (2, b'{"id": "x"}', "wrong type"),
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'[{"id": 1}, {"id": 2}', "is not JSON: Expecting ',' delimiter at line 1, character 22"),
        (b'[{"id": 1},]', "is not JSON: "),
        (b'{"id": 1}\n{"id": ', "is not JSON: Expecting value at line 2"),
        (b'{"id": 1} x', "is not JSON: Expecting value at line 1, character 11"),
        (b'[{"id": 1, "name": "\xff"}]', "is not UTF-8, at byte 20"),
        (b"[" * 100_000, "is JSON nested too deeply"),
    ],
)
def test_a_damaged_document_fails_alone(content: bytes, reason: str) -> None:
    found = found_in(b'[{"id": 1}]', content)
    assert list(found.failures) == [1]
    assert found.failures[1].startswith(f"s3://b/k1 {reason}")
    assert [(uri, row["id"]) for uri, _, row in found.rows if uri == "s3://b/k0"] == [("s3://b/k0", 1)]


def test_compressed_and_empty_documents_are_read() -> None:
    found = found_in(gzip.compress(b'[{"id": 1}]'), gzip.compress(b" "), b"", suffix=".json.gz")
    assert (found.failures, [row["id"] for *_, row in found.rows]) == ({}, [1])


@pytest.mark.parametrize(
    ("beginning", "is_document"),
    [
        (b'{"id": 1}\n{"id": 2}\n', False),
        (b'\n {"id": 1}', False),
        (b'[{"id": 1},\n', True),
        (b"\xef\xbb\xbf[", True),
        (b'{\n  "id": 1\n}', True),
        ("[]".encode("utf-16"), True),
        (b"", False),
        (b'{"long": "' + b"x" * 100, False),
        (b'{"id": 1, "na\n{"id": 2}\n', False),
        (b'{"id": 1}{"id": 2}\n', True),
        (b'{"id": [1,\n2]}\n', True),
        (b"nonsense\n", False),
    ],
)
def test_a_document_is_recognised_by_its_beginning(beginning: bytes, is_document: bool) -> None:
    assert looks_like_document(beginning) is is_document


def test_an_object_read_as_it_is_is_one_row() -> None:
    contents = [b"\x00\xff", b""]
    options = checked(ReadOptions(format="binary"))
    found = read(Case(contents=contents, partitions=whole(contents), options=options, suffix=".gz"))
    assert [(number, row) for _, number, row in found.rows] == [
        (0, {"path": "s3://b/k0.gz", "length": 2, "content": b"\x00\xff"}),
        (0, {"path": "s3://b/k1.gz", "length": 0, "content": b""}),
    ]


def test_a_number_of_very_many_digits_concerns_its_own_row_only() -> None:
    digits = b"1" * 5_000  # Python's own parser refuses more than 4,300
    found = found_in(b'[{"id": %s}, {"unknown": %s, "id": 2}]' % (digits, digits))
    assert ([row["id"] for *_, row in found.rows], [at for _, at, *_ in found.bad]) == ([2], [0])
    assert not looks_like_document(b'{"id": %s}\n{"id": 1}\n' % digits)
    assert not looks_like_document(b'{"id": %s' % (b"[" * 60_000))


@pytest.mark.parametrize("constant", ["NaN", "-NaN", "Inf", "-Inf", "INF", "+INF", "-INF", "Infinity", "+Infinity"])
def test_constants_are_those_of_lines(constant: str) -> None:
    values = [f'{{"d":{constant},"x":["Inf\\"",[{constant}]]}}', f'{{"d":1,"x":{constant}}}']
    contents = {"json": "[" + ",\n".join(values) + "]", "jsonl": "".join(f"{value}\n" for value in values)}
    found = {}
    for format_name, text in contents.items():
        options = ReadOptions(schema_ddl="d double", format=format_name, evolve="rescue")
        case = Case(contents=[text.encode()], partitions=whole([text.encode()]), options=options)
        result = read(case)
        assert not result.failures
        assert not result.bad
        found[format_name] = repr([row for _, _, row in result.rows])
    assert found["json"] == found["jsonl"]


@pytest.mark.parametrize("text", ['[{"d":1Inf}]', '[{"x":[Inf2]}]', '[{"x":-+INF}]', "[{Inf:1}]", '[{"x":nullINF}]'])
def test_text_that_only_resembles_a_constant_is_not_json(text: str) -> None:
    options = ReadOptions(schema_ddl="d double", format="json")
    found = read(Case(contents=[text.encode()], partitions=whole([text.encode()]), options=options))
    assert "is not JSON" in found.failures[0]
