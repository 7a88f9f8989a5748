"""Fields of JSON lines without a column: counted exactly, without effect on the declared ones, whatever came before.

One decoder reads several blocks, and between them, and inside them, fields appear and change their types. The oracle
reads every line with Python's parser.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.blocks import Decoded
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.jsonl import JsonlDecoder
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.rescue import open_jsonl

DDL = "id bigint, s struct<a: int, t: timestamp, l: array<struct<b: double>>>, n decimal(9,2), d date, y binary"
NAMES: Mapping[str, Any] = {"id": None, "s": {"a": None, "t": None, "l": {"b": None}}, "n": None, "d": None, "y": None}

SCALARS = st.sampled_from(
    ["null", "1", "-0.5", "1e400", "9" * 400, "true", '"x"', '""', '"2024-05-06T07:08:09Z"', '"é"', '"\\ud800"', "NaN"]
)
UNKNOWN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(st.sampled_from("pqb"), inner), max_size=2).map(lambda pairs: _object(pairs))
    ),
    max_leaves=4,
)
OTHERS = st.sampled_from(["x", "Y", "y ", "ID", "s.z", "s.l.z", "", "é", "q\\u0000", "k1", "k2"])
# fields of which a struct or an object may have one more; a name may be given twice if it has no column
MORE = st.lists(st.tuples(OTHERS, UNKNOWN), max_size=2)
ITEMS = st.lists(
    st.just("null")
    | st.tuples(st.sampled_from([[], [("b", "1.5")]]), MORE).map(lambda two: _object([*two[0], *two[1]])),
    max_size=2,
).map(lambda items: f"[{','.join(items)}]")
TIMES = st.sampled_from(["null", '"2024-05-06T07:08:09"', '"2024-05-06T07:08:09.123456789Z"'])
PLACES = st.tuples(
    st.lists(
        st.tuples(st.just("a"), st.just("7")) | st.tuples(st.just("t"), TIMES) | st.tuples(st.just("l"), ITEMS),
        max_size=3,
        unique_by=lambda pair: pair[0],
    ),
    st.lists(st.tuples(st.sampled_from(["z", "A", "x"]), UNKNOWN), max_size=2),
).map(lambda two: _object([*two[0], *two[1]]))
DECLARED = {
    "id": st.integers(-(1 << 63), (1 << 63) - 1).map(str) | st.just("null"),
    "s": PLACES | st.just("null"),
    "n": st.sampled_from(["1.25", "-99", '"3.5"', "null"]),
    "d": st.sampled_from(['"2024-05-06"', "null"]),
    "y": st.sampled_from(['"aGk="', "null"]),
}
WRONG = st.sampled_from(["nope", '{"id":"x","x":1}', '{"id":1}{"x":1}', '{"n":1e9,"x":2}', '{"id":1,"id":2}', ""])


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}":{text}' for name, text in pairs) + "}"


@st.composite
def lines(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 19)) == 0:
        return draw(WRONG)
    declared = draw(st.lists(st.sampled_from(list(DECLARED)), unique=True))
    pairs = [(name, draw(DECLARED[name])) for name in declared]
    return _object(draw(st.permutations([*pairs, *draw(MORE)])))


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    """Draw blocks in which most lines repeat a few, so that fields and types are met again."""
    few = draw(st.lists(lines(), min_size=1, max_size=5))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        some = draw(st.lists(st.sampled_from(few) | lines(), min_size=1, max_size=8))
        found.append("".join(f"{line}\n" for line in some * draw(st.sampled_from([1, 1, 40]))).encode())
    return found


SPELLED = (
    [b'{"s":{"z":1}}\n{"s":{"z":1},"s.z":2}\n{"s.z":2}\n'] * 2,  # two fields with one path
    [b'{"x":null}\n', b'{"x":1}\n', b'{"x":"a"}\n{"x":1}\n', b'{"x":{"p":[]}}\n', b'{"x":{"p":[{"q":1}]}}\n'],
    [b'{"id":1,"x":1}\n', b'{"id":2,"x":1,"x":null}\n', b'{"id":3,"x":1e400}\n{"id":4,"x":"\\ud800"}\n'],
    [b'{"s":{"a":1,"z":0}}\n', b'{"s":{"t":"2024-05-06T07:08:09.123456789Z","z":2}}\n', b'{"s":{"z":[1,"x"]}}\n'],
)


@given(several=blocks(), evolve=st.sampled_from(["none", "rescue", "add"]))
@example(several=SPELLED[0], evolve="none")
@example(several=SPELLED[1], evolve="none")
@example(several=SPELLED[2], evolve="rescue")
@example(several=SPELLED[3], evolve="add")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_fields_are_counted_and_declared_ones_are_the_same_in_every_block(several: list[bytes], evolve: str) -> None:
    schema = parse_ddl(DDL)
    decoder = open_jsonl(schema, ReadOptions(schema_ddl=DDL, evolve=evolve))
    for block in several:
        decoded = decoder.decode(block)
        alone = JsonlDecoder(schema).decode(block)  # it ignores all other fields
        if evolve == "none":
            assert decoded.bad == alone.bad
            assert decoded.starts.tolist() == alone.starts.tolist()
        kept = {start: row for row, start in enumerate(decoded.starts.tolist())}
        shared = [start for start in alone.starts.tolist() if start in kept]
        rows = decoded.rows.select(schema.names).take(pa.array([kept[start] for start in shared], pa.int64()))
        expected = alone.rows.filter(pa.array([start in kept for start in alone.starts.tolist()], pa.bool_()))
        assert rows.to_pylist() == expected.to_pylist()
        decoded.rows.validate(full=True)
        _check_counts(block, decoded)


@pytest.mark.parametrize("change", ["none", "type", "field", "bad line"])
def test_a_change_far_into_a_later_block_is_counted(change: str) -> None:
    line = b'{"id":1,"x":2,"s":{"a":1,"z":"v"},"w":[{"p":1}]}\n'
    changed = {
        "none": line,
        "type": b'{"id":1,"x":"text","s":{"z":[true]},"w":0}\n',
        "field": b'{"id":1,"new":2,"s":{"new":"v"}}\n',
        "bad line": b'{"id":"x","new":1}\n',
    }[change]
    decoder = open_jsonl(parse_ddl(DDL), ReadOptions(schema_ddl=DDL))
    for block in (line * 2_000, line * 1_500 + changed + line * 1_500, line * 2_000):
        _check_counts(block, decoder.decode(block))


NESTED = {
    "lists": lambda depth: "[" * depth + "1" + "]" * depth,
    "objects": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "behind brackets in a string": lambda depth: '["]]}\\"[{",' + "[" * depth + "NaN" + "]" * depth + "]",
}


@pytest.mark.parametrize("evolve", ["none", "rescue", "add"])
@pytest.mark.parametrize("depth", [63, 65, 600, 100_000])
@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
def test_a_field_that_is_nested_deeply_is_counted_or_in_quarantine(
    nested: Callable[[int], str], depth: int, evolve: str
) -> None:
    lines = ['{"id":1,"w":1}', f'{{"id":2,"u":{nested(depth)},"z":2}}', f'{{"s":{{"z":{nested(depth)}}},"w":[1]}}']
    decoder = open_jsonl(parse_ddl(DDL), ReadOptions(schema_ddl=DDL, evolve=evolve))
    decoded = decoder.decode("".join(f"{line}\n" for line in lines).encode())
    if evolve != "none" and depth > 1_000:  # Python cannot cut them
        assert [bad.raw.decode() for bad in decoded.bad] == lines[1:]
        assert {path: found.rows.tolist() for path, found in decoded.unknown.items()} == {"w": [0]}
        return
    assert {path: found.rows.tolist() for path, found in decoded.unknown.items()} == {
        "w": [0, 2],
        "u": [1],
        "z": [1],
        "s.z": [2],
    }
    if evolve != "none":
        kept = decoded.rows.column("_rescued")[1].as_py()
        assert kept == f'{{"u":{nested(depth)},"z":2}}'.replace("NaN", '"NaN"')


def _check_counts(block: bytes, decoded: Decoded) -> None:
    """Check which rows, and which lines that are bad for a wrong type, have each field."""
    rows = {path: found.rows.tolist() for path, found in decoded.unknown.items() if len(found.rows)}
    assert rows == _counted(block, decoded.starts)
    places = [place for place, bad in enumerate(decoded.bad) if bad.reason is QuarantineReason.WRONG_TYPE]
    in_bad = _counted(block, np.array([decoded.bad[place].start for place in places], dtype=np.int64))
    expected = {path: [places[line] for line in found] for path, found in in_bad.items()}
    assert {path: found.bad.tolist() for path, found in decoded.unknown.items() if len(found.bad)} == expected


def _counted(block: bytes, starts: Any) -> dict[str, list[int]]:
    """Return the rows that have each field without a column."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row, start in enumerate(starts.tolist()):
        line = block[start : block.index(b"\n", start)]
        for path in set(_paths(json.loads(line, parse_int=str, object_pairs_hook=_fields), NAMES)):
            found[path].append(row)
    return dict(found)


def _fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object; a null does not replace a value of the same name."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if value is not None or name not in fields:
            fields[name] = value
    return fields


def _paths(value: Any, names: Mapping[str, Any]) -> Iterator[str]:
    for name, item in value.items():
        if item is None:
            continue
        if name not in names:
            yield name
        elif names[name] is not None:
            for one in item if isinstance(item, list) else [item]:
                if isinstance(one, dict):
                    yield from (f"{name}.{path}" for path in _paths(one, names[name]))


@pytest.mark.parametrize("constant", ["-Inf", "+INF", "-INF", "-NaN", "+Infinity", "[-Inf]", '{"a":-Inf}'])
def test_a_constant_in_a_field_without_a_column_is_read_alone_and_beside_a_bad_line(constant: str) -> None:
    line = f'{{"id":1,"x":{constant}}}\n'.encode()
    decoder = open_jsonl(parse_ddl(DDL), ReadOptions(schema_ddl=DDL))
    for block in (line, b"nope\n" + line, line + b'{"id":"x"}\n' + line):
        decoded = decoder.decode(block)
        assert decoded.rows.column("id").to_pylist() == [1] * block.count(line)
        assert decoded.unknown["x"].rows.tolist() == list(range(block.count(line)))
