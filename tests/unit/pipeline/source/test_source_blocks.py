"""Blocks of lines, large enough for the search for bad lines to narrow them down."""

import numpy as np

from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.jsonl import JsonlDecoder

DECODER = JsonlDecoder(parse_ddl("id bigint, v double, d date"))


def test_a_few_bad_lines_among_many_are_located() -> None:
    bad = {
        7: b"null",
        1_000: b'{"id":"x"}',
        1_001: b'{"d":"2024-02-30"}',
        9_999: b"\xff",
        20_000: b'{"id":1}{"id":2}',
        30_000: b'{"v":9e308}',
    }
    blank = {5, 25_000}
    lines = [bad.get(n, b" \r" if n in blank else b'{"id":%d,"v":0.5}' % n) + b"\n" for n in range(40_000)]
    decoded = DECODER.decode(b"".join(lines))
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    kept = [n for n in range(40_000) if n not in bad and n not in blank]
    assert decoded.rows.column("id").to_pylist() == kept
    assert decoded.starts.tolist() == starts[kept].tolist()
    assert [(line.start, line.raw, line.reason.value) for line in decoded.bad] == [
        (starts[7], b"null", "malformed"),
        (starts[1_000], b'{"id":"x"}', "wrong type"),
        (starts[1_001], b'{"d":"2024-02-30"}', "wrong type"),
        (starts[9_999], b"\xff", "invalid UTF-8"),
        (starts[20_000], b'{"id":1}{"id":2}', "malformed"),
        (starts[30_000], b'{"v":9e308}', "wrong type"),
    ]


def test_only_bad_lines_yield_no_row() -> None:
    decoded = DECODER.decode(b"null\n" * 3_000)
    assert (decoded.rows.num_rows, len(decoded.bad)) == (0, 3_000)
    assert decoded.rows.schema == parse_ddl("id bigint, v double, d date")


def test_a_line_nested_deeper_than_python_s_recursion_limit_is_a_row() -> None:
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"id":1}\n'
    decoded = DECODER.decode(b"no\n" + deep + b'{"id":"x"}\n')
    assert decoded.rows.column("id").to_pylist() == [1]
    assert [line.raw for line in decoded.bad] == [b"no", b'{"id":"x"}']


def test_infinite_numbers_are_values_only_if_written_as_such() -> None:
    decoded = DECODER.decode(b'{"v":Infinity}\n{"v":-Infinity}\n{"v":NaN}\n{"v":2e308}\n')
    assert repr(decoded.rows.column("v").to_pylist()) == "[inf, -inf, nan]"
    assert [line.raw for line in decoded.bad] == [b'{"v":2e308}']


def test_numbers_of_any_length_are_read_correctly() -> None:
    digits = b"1" * 5_000
    decoded = DECODER.decode(b'{"id":%s}\n{"v":0.%s}\n{"x":%s}\n' % (digits, digits, digits))
    assert decoded.rows.column("v").to_pylist() == [float("0." + digits.decode()), None]
    assert [(line.raw[:6], line.reason.value) for line in decoded.bad] == [(b'{"id":', "wrong type")]


def test_a_decimal_never_exceeds_its_declared_precision() -> None:
    decoder = JsonlDecoder(parse_ddl("n decimal(10,2), l array<decimal(3,1)>"))
    lines = [b'{"n":1e8}', b'{"n":12345678.91}', b'{"l":["99.9",1e2]}', b'{"n":"1e7"}', b'{"n":1.001}', b'{"n":"NaN"}']
    decoded = decoder.decode(b"\n".join(lines) + b"\n")
    assert [str(value) for value in decoded.rows.column("n").to_pylist()] == ["12345678.91", "10000000.00"]
    assert {line.reason.value for line in decoded.bad} == {"wrong type"}
    assert [line.raw for line in decoded.bad] == [lines[0], lines[2], lines[4], lines[5]]
