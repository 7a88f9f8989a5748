"""The reason of a bad line names the field, the value and the expected type, in every format and at any depth."""

import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc
from tests.property.source_run import Case, read, whole

from penstock.pipeline.spark.source.ddl import type_text
from penstock.pipeline.spark.source.explain import shown
from penstock.pipeline.spark.source.options import ReadOptions

Step = tuple[str, Any]  # a field's name, a key, or an index
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("field"), st.sampled_from(["a", "b", "c d", "é"])),
    st.tuples(st.just("item"), st.integers(0, 3)),
    st.tuples(st.just("key"), st.sampled_from(["k", "", "a\tb"])),
)
SPELLED = {"c d": "`c d`"}


def kind_of(steps: Sequence[Step], leaf: pa.DataType) -> pa.DataType:
    for sort, at in reversed(steps):
        if sort == "field":
            leaf = pa.struct([pa.field("other", pa.string()), pa.field(at, leaf)])
        elif sort == "item":
            leaf = pa.list_(pa.field("element", leaf))
        else:
            leaf = pa.map_(pa.string(), leaf)
    return leaf


def value_of(steps: Sequence[Step], leaf: Any, *, maps: type) -> Any:
    # before it in a list are values with null in its place: pyarrow 26 writes ORC wrongly for a null struct in a list
    good: Any = None
    for sort, at in reversed(steps):
        if sort == "field":
            leaf, good = {at: leaf}, {at: good}
        elif sort == "item":
            leaf, good = [*[good] * at, leaf], [good]
        else:
            leaf, good = maps([("first", good), (at, leaf)]), maps([("first", good)])
    return leaf


def path_of(steps: Sequence[Step]) -> str:
    parts = {"field": ".{}", "item": "[{}]", "key": '["{}"]'}
    return "v" + "".join(parts[sort].format(SPELLED.get(at, shown(str(at)))) for sort, at in steps)


def as_jsonl(steps: Sequence[Step], leaf: Any, kind: pa.DataType) -> bytes:
    return json.dumps({"v": value_of(steps, leaf, maps=dict)}).encode() + b"\n"


def as_json(steps: Sequence[Step], leaf: Any, kind: pa.DataType) -> bytes:
    return b"[" + as_jsonl(steps, leaf, kind) + b"]"


def as_file(
    write: Callable[[pa.Table, io.BytesIO], None], steps: Sequence[Step], leaf: Any, kind: pa.DataType
) -> bytes:
    data = io.BytesIO()
    write(pa.table({"v": pa.array([value_of(steps, leaf, maps=list)], kind)}), data)
    return data.getvalue()


FORMATS: dict[str, Callable[[Sequence[Step], Any, pa.DataType], bytes]] = {
    "jsonl": as_jsonl,
    "json": as_json,
    "parquet": partial(as_file, pq.write_table),
    "orc": partial(as_file, orc.write_table),
}


def explanation(format_name: str, content: bytes, ddl: str) -> str:
    found = read(
        Case(contents=[content], partitions=whole([content]), options=ReadOptions(schema_ddl=ddl, format=format_name))
    )
    assert (found.rows, found.failures) == ([], {})
    (detail,) = found.details
    return detail


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=30, deadline=None)
@given(steps=st.lists(STEPS, max_size=4))
def test_a_value_that_does_not_fit_is_named_with_its_place_and_the_expected_type(
    format_name: str, steps: Sequence[Step]
) -> None:
    content = FORMATS[format_name](steps, "x\x1b", kind_of(steps, pa.string()))
    detail = explanation(format_name, content, f"v {type_text(kind_of(steps, pa.int64()))}")
    assert detail == f'field {path_of(steps)}: "x\\u001b" is not BIGINT'


@pytest.mark.parametrize("text", ["x", "x\x1b[2J", "é\u2028\u202e", "x" * 500, "\x00" * 500])
@pytest.mark.parametrize("format_name", ["csv", *FORMATS])
def test_a_value_is_shown_on_one_line_and_in_bounded_length(format_name: str, text: str) -> None:
    content = f"v\n{text}\n".encode() if format_name == "csv" else FORMATS[format_name]([], text, pa.string())
    detail = explanation(format_name, content, "v DECIMAL(38,10)")
    assert detail.startswith('field v: "')
    assert detail.endswith("is not DECIMAL(38,10)")
    assert detail.isprintable()
    assert len(detail) < 110


def test_a_long_type_is_cut() -> None:
    fields = ", ".join(f"field_{number}: BIGINT" for number in range(200))
    detail = explanation("jsonl", b'{"v":5}\n', f"v STRUCT<{fields}>")
    assert detail == "field v: 5 is not STRUCT<field_0: BIGINT, field_1: BIGINT, field_2: BIGINT, fi..."


def test_a_string_that_is_not_utf8_is_named_inside_of_a_struct() -> None:
    strings = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    data = io.BytesIO()
    pq.write_table(pa.table({"v": pa.StructArray.from_arrays([strings], ["s"])}), data)
    assert explanation("parquet", data.getvalue(), "v STRUCT<s: STRING>") == 'field v.s: "a\\\\xff" is not UTF-8'


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b'{"v":{"w":1,"w":1}}', "field v.w is given twice"),
        (b'{"v":{"w":"\\ud800"}}', 'field v.w: "\\ud800" has half a surrogate pair'),
        (b'{"v":[1]}', "field v: [1] is not STRUCT<w: STRING>"),
        (b'{"v":5', "Expecting ',' delimiter at character 6"),
        (b"5", "not a JSON object"),
    ],
)
def test_other_faults_are_named_as_well(line: bytes, detail: str) -> None:
    assert explanation("jsonl", line + b"\n", "v STRUCT<w: STRING>") == detail
