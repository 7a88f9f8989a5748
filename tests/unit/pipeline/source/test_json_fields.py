"""Fields of JSON lines: cut out as written, and those without a column found by Arrow as by Python."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.pipeline.spark.source.blocks import Lines
from penstock.pipeline.spark.source.ddl import TIMESTAMP, parse_ddl
from penstock.pipeline.spark.source.exact_json import exact_json
from penstock.pipeline.spark.source.json_fields import UnknownFinder, as_object, kind_of, members
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.rescue import open_jsonl

DDL = "id bigint, s struct<a: int, b: array<struct<c: string>>>, l array<int>"


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        ' { "a" : 1.50 , "b":"x\\"y" ,"c": [1, {"d": null}],"é":true } ',
        '{"a":12345678901234567890123456789012345678901234567890}',
        '{"a":1,"a":2}',
        '{"\\ud800":"\\udfff"}',
    ],
)
def test_members_are_as_written(line: str) -> None:
    found = members(line)
    assert json.loads("{" + ",".join(f"{one.key}:{one.text}" for one in found) + "}") == json.loads(line)
    assert all(one.text in line for one in found)


@pytest.mark.parametrize("line", ["", "[1]", '{"a":}', '{"a" 1}', '{"a":1,}', '{"a":1 "b":2}', "{{", '{"a":' * 9_000])
def test_other_values_than_objects_cannot_be_cut(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        members(line)


def test_rescued_text_is_json_with_all_digits() -> None:
    line = '{"a":1.50,"b":NaN,"c":{"d":-Infinity,"e":1e400},"f":-Inf}'
    assert as_object(members(line)) == '{"a":1.50,"b":"NaN","c":{"d":"-Infinity","e":1e400},"f":"-Inf"}'
    values = {"n": Decimal("1.10"), "f": float("nan"), "b": b"\xff", "t": ("x", None, True, 1.5)}
    assert exact_json(values) == '{"n":1.10,"f":"nan","b":"\\\\xff","t":["x",null,true,1.5]}'


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["9007199254740993", "2.5"], pa.string()),  # a double would round it
        (["9223372036854775808"], pa.decimal128(38, 0)),
        (["true", "null"], pa.bool_()),
        (['"2024-05-06T07:08:09Z"'], TIMESTAMP),
        (['"2024-05-06T07:08:09Z"', '"x"'], pa.string()),
        (["1", '"x"'], pa.string()),
        (["[1]", "[]"], pa.list_(pa.field("element", pa.int64()))),
        (['{"a":1}', '{"b":"x"}'], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        (["null"], None),
        (["{}", "[]"], None),
        (['{"a":1,"A":2}'], None),
    ],
)
def test_a_new_column_gets_the_narrowest_type_for_its_values(values: list[str], kind: pa.DataType | None) -> None:
    (found,) = zip(*(members(f'{{"x":{value}}}') for value in values), strict=True)
    assert kind_of(one.value for one in found) == kind


LINES = [
    b'{"id":1}',
    b'{"id":1,"x":1,"s":{"a":1,"z":2}}',
    b'{"x":null,"s":null,"l":[1]}',
    b'{"y":{"deep":[{}]},"s":{"b":[{"c":"v"},{"c":"v","q":1}]}}',
    b'{"s":{"b":[]},"x":2.5}',
    b'{"s":{"b":null,"z":null},"y":{}}',
]


@pytest.mark.parametrize("more", [[], [b'{"x":"text"}'], [b'{"x":-Inf,"w":1}'], [b'{"x":1,"x":2}']])
def test_arrow_and_python_find_the_same_fields(more: list[bytes]) -> None:
    """The added lines make Arrow refuse a window."""
    lines = LINES * 30 + more + LINES
    block = b"".join(line + b"\n" for line in lines)
    starts = Lines.of(block).starts
    fast, slow = UnknownFinder(parse_ddl(DDL)), UnknownFinder(parse_ddl(DDL))
    slow._is_wide = True
    found, expected = fast.find(block, starts), slow.find(block, starts)
    assert {name: rows.tolist() for name, rows in found.items()} == {n: rows.tolist() for n, rows in expected.items()}
    assert {"x", "y", "s.z", "s.b.q"} <= found.keys()


def test_bad_lines_between_do_not_shift_the_rows() -> None:
    lines = [b"nope", b"", b'{"id":1}', b'{"id":2,"x":1}', b"nope", b'{"id":3}', b'{"id":4,"x":1}']
    decoded = open_jsonl(parse_ddl("id bigint"), ReadOptions()).decode(b"".join(line + b"\n" for line in lines))
    assert decoded.rows.column("id").take(pa.array(decoded.unknown["x"].rows)).to_pylist() == [2, 4]


@pytest.mark.parametrize("evolve", ["rescue", "add"])
def test_a_line_that_cannot_be_cut_does_not_shift_the_rows(evolve: str) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    lines = ['{"id":1,"x":1}', f'{{"id":2,"x":{deep}}}', '{"id":3}', '{"id":4,"x":1}']
    decoder = open_jsonl(parse_ddl("id bigint"), ReadOptions(evolve=evolve))
    decoded = decoder.decode("".join(f"{line}\n" for line in lines).encode())
    assert decoded.rows.column("id").to_pylist() == [1, 3, 4]
    assert decoded.unknown["x"].rows.tolist() == [0, 2]
    assert decoded.rows.column("_rescued").to_pylist() == ['{"x":1}', None, '{"x":1}']


def test_keys_that_are_ids_are_found_without_a_column_for_each() -> None:
    block = b"".join(b'{"id":%d,"u":{"k%d":1,"k%d":2}}\n' % (n, n, n + 7) for n in range(4_000))
    finder = UnknownFinder(parse_ddl("id bigint"))
    assert {name: len(rows) for name, rows in finder.find(block, Lines.of(block).starts).items()} == {"u": 4_000}
    assert finder._is_wide
    assert finder.find(b'{"v":1}\n', np.array([0])).keys() == {"v"}
