"""The reader against a plain reference: json.loads and simple converters, line by line."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.property.source_run import Case, Expected, any_pieces, check, halves, whole
from tests.property.source_values import (
    DECIMAL_KINDS,
    DECIMALS,
    Malformed,
    WrongType,
    check_neighbours,
    day,
    moment,
    text,
)

from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.jsonl import JsonlDecoder
from penstock.pipeline.spark.source.jsonl_lines import Classifier
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

DDL = (
    "id bigint, t tinyint, v double, f float, s string, b boolean, ts timestamp, tn timestamp_ntz, d date, "
    "n decimal(6,2), l array<int>, o struct<k: smallint, w: string, e: array<date>, t: timestamp>, "
    "m array<timestamp_ntz>, y binary"
)
DDL_WITH_MAP = f"{DDL}, p map<string, int>"  # no block is parsed before each of its lines was checked
DDLS = st.sampled_from([DDL, DDL_WITH_MAP])

# -- the reference ---------------------------------------------------------------------------------------------------


def reference(data: bytes, ddl: str = DDL) -> Expected:
    fields = {name: FIELDS[name] for name in parse_ddl(ddl).names}
    expected = Expected()
    at = 0
    for ended in re.findall(rb"[^\n]*\n|[^\n]+", data):
        raw = ended.removesuffix(b"\n").removesuffix(b"\r")
        line = raw.removeprefix(b"\xef\xbb\xbf") if at == 0 else raw
        if line.strip(b" \t\r"):
            try:
                expected.rows.append((at, reference_row(line.decode(), fields)))
            except UnicodeDecodeError:
                expected.bad.append((at, raw, "invalid UTF-8"))
            except Malformed:
                expected.bad.append((at, raw, "malformed"))
            except WrongType:
                expected.bad.append((at, raw, "wrong type"))
        at += len(ended)
    return expected


def reference_row(line: str, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return convert_object(line.strip(BLANKS), fields)


def members(source: str) -> Iterator[tuple[str, str]]:
    """Yield the names in an object with the source text of their values."""
    at = 1
    while (match := re.compile(r"[\s,]*(?=\")").match(source, at)) is not None:
        name, at = DECODER.raw_decode(source, match.end())
        start = re.compile(r"\s*:\s*").match(source, at).end()  # type: ignore[union-attr] # the text is JSON
        _, at = DECODER.raw_decode(source, start)
        yield name, source[start:at]


def items(source: str) -> Iterator[str]:
    """Yield the source text of the items of an array."""
    at = 1
    while (start := re.compile(r"[\s,]*").match(source, at).end()) < len(source) - 1:  # type: ignore[union-attr] # as above
        _, at = DECODER.raw_decode(source, start)
        yield source[start:at]


def convert_object(source: str, fields: dict[str, Any]) -> dict[str, Any]:
    if re.fullmatch(r"\[\s*\]", source):
        source = "{}"
    if not source.startswith("{"):
        raise WrongType
    row: dict[str, Any] = {}
    for name, found in members(source):
        if name in row:
            raise Malformed
        if name in fields:
            row[name] = None if found == "null" else fields[name](found)
    return {name: row.get(name) for name in fields}


def mapping(convert: Any) -> Any:
    def convert_all(source: str) -> list[tuple[str, Any]]:
        names = [name for name, _ in members(source)] if source.startswith("{") else []
        return list(convert_object(source, dict.fromkeys(names, convert)).items())

    return convert_all


def parsed(convert: Any, parse_int: Any = int) -> Any:
    """Return the converter of source text for one of a parsed value."""
    return lambda source: convert(json.loads(source, parse_int=parse_int, parse_float=Decimal, parse_constant=float))


def string(source: str) -> str:
    if not source.startswith('"'):
        return source
    found: str = json.loads(source)
    if re.search("[\ud800-\udfff]", found):
        raise Malformed
    return found


def binary(value: Any) -> bytes:
    if not re.fullmatch(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", text(value), re.ASCII):
        raise WrongType
    return base64.b64decode(value)


def integer(bits: int) -> Any:
    def convert(value: Any) -> int:
        if type(value) is not int or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise WrongType
        return value

    return convert


def floating(greatest: float) -> Any:
    def convert(value: Any) -> float:
        if type(value) is float or value in CONSTANTS:  # NaN and the infinities stay as they are
            return float(value)
        if type(value) not in (int, Decimal) or abs(value) > greatest:
            raise WrongType
        return float(value)

    return convert


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongType
    return value


def decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise WrongType
    if isinstance(value, str) and not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value, re.ASCII):
        raise WrongType
    try:
        number = Decimal(value)
        cut = number.quantize(Decimal("0.01"))
    except InvalidOperation:
        raise WrongType from None
    if cut != number or abs(number) >= 10**4:
        raise WrongType
    return cut


def array(convert: Any) -> Any:
    def convert_all(source: str) -> list[Any]:
        if not source.startswith("["):
            raise WrongType
        return [None if item == "null" else convert(item) for item in items(source)]

    return convert_all


BLANKS = " \t\r\n"
DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
CONSTANTS = ("NaN", "INF", "-INF", "+INF", "Infinity", "-Infinity", "+Infinity")
FIELDS: dict[str, Any] = {
    "id": parsed(integer(64)),
    "t": parsed(integer(8)),
    # a decimal keeps the sign of -0
    "v": parsed(floating(1.7976931348623157e308), parse_int=Decimal),
    "f": parsed(floating(3.4028235677973362e38), parse_int=Decimal),
    "s": string,
    "b": parsed(boolean),
    "ts": parsed(moment),
    "tn": parsed(lambda value: moment(value).replace(tzinfo=None)),
    "d": parsed(day),
    "n": parsed(decimal),
    "l": array(parsed(integer(32))),
    "o": lambda source: convert_object(
        source, {"k": parsed(integer(16)), "w": string, "e": array(parsed(day)), "t": parsed(moment)}
    ),
    "m": array(parsed(lambda value: moment(value).replace(tzinfo=None))),
    "p": mapping(parsed(integer(32))),
    "y": parsed(binary),
}

# -- reading ----------------------------------------------------------------------------------------------------------


def check_reading(
    contents: Sequence[bytes], partitions: Sequence[Sequence[Piece]], block_bytes: int, ddl: str = DDL
) -> None:
    options = ReadOptions(schema_ddl=ddl, block_bytes=block_bytes)
    check(Case(contents=contents, partitions=partitions, options=options), lambda data: reference(data, ddl))


# -- the traps, at every split boundary ------------------------------------------------------------------------------

TRAPS = {
    "null first": b'null\n{"id":1}\n',
    "two on one line": b'{"id":1}\n{"id":2}{"id":3}\n{"id":4}\n',
    "one across two lines": b'{"id":1}\n{"id":\n2}\n{"id":3}\n',
    "both, keeping the count": b'{"id":1}{"id":2}\n{"id":\n3}\n{"id":4}\n',
    "nested across two lines": b'{"o":{}\n{"id":1}}\n{"id":3}\n',
    "a newline in a string": b'{"s":"}\n{"}\n{"id":3}\n',
    "invalid UTF-8": b'{"s":"\xff"}\n{"x":"\xc3"}\n\xed\xa0\x80\n{"id":3}\n',
    "CRLF": b'{"id":1}\r\n\r\n{"id":2}\r\nx\r\n',
    "no last newline": b'{"id":1}\n{"id":2}',
    "only a bad line, no newline": b"nonsense",
    "blank lines": b'\n\n  \t\n{"id":1}\n\n',
    "byte order mark": b'\xef\xbb\xbf{"id":1}\n{"id":2}\n',
    "byte order mark on a bad line": b"\xef\xbb\xbfx\n{}\n",
    "byte order mark later": b'{}\n\xef\xbb\xbf{"id":2}\n',
    "lines of three bytes first": b'{}\n{"id":2}\n',
    "a list, a string": b'[{"id":1}]\n"{}"\n{"id":2}\n',
    "blanks around": b' {"id":1} \n\t{"id":2}\r\n\x0b{"id":3}\n',
    "NUL": b'{"id":1}\x00\n{"id":2}\n\x00\n{"s":"\x00"}\n{"s":"\\u0000"}\n',
    "any value as text": b'{"s":1.10}\n{"s":{"a": [1, 2.0] }}\n{"s":1e400,"x":1e400}\n{"s":-0}\n{"s":["\\ud800"]}\n',
    "maps": b'{"p":{"a":1,"b":null}}\n{"p":[]}\n{"p":{"a":1,"a":2}}\n{"p":{"a":"x"}}\n{"p":null}\n{"p":[1]}\n',
    "surrogates": b'{"s":"\\ud800"}\n{"s":"\\ud83d\\ude00"}\n{"x":"\\udc00"}\n',
    "duplicate": b'{"id":1,"id":2}\n{"x":1,"x":2}\n{"o":{"k":1,"k":2}}\n{"o":{"z":1,"z":2}}\n',
    "integers": b'{"t":128}\n{"t":127}\n{"id":1.0}\n{"n":1e8}\n',
    "Info is no number": b'{"id":"Info","id":01}\n{"id":"NaN","t":[1,]}\n{"s":"-Inf"\n',
    "great numbers": b'{"v":1e400}\n{"v":9e308}\n{"x":1e400}\n{"f":1e39}\n{"v":NaN}\n',
    "fractions of a second": b'{"ts":"2024-05-06T07:08:09.1234567"}\n{"ts":"2024-05-06T07:08:09.123456789+02:00"}\n'
    b'{"o":{"t":"2024-05-06T07:08:09.999999999Z"}}\n{"m":["2024-05-06T07:08:09.1234567",null,"2024-05-06"]}\n'
    b'{"o":null,"s":"2024-05-06T07:08:09.1234567"}\n{"ts":"2024-05-06T07:08:09.1234567890"}\n{"m":null}\n{"m":[]}\n',
    "empty": b"",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_an_edge_case_is_read_like_the_reference_at_every_split_boundary(trap: str) -> None:
    data = TRAPS[trap]
    for cut in range(len(data) + 1):
        ddl = (DDL, DDL_WITH_MAP)[cut % 2]
        check_reading([data], halves(data, cut), block_bytes=(1, 7, 1 << 20)[cut % 3], ddl=ddl)


@pytest.mark.parametrize("block_bytes", [1, 3, 16, 1 << 20])
def test_all_edge_cases_in_one_partition_keep_their_offsets(block_bytes: int) -> None:
    contents = list(TRAPS.values())
    check_reading(contents, whole(contents), block_bytes)


# -- anything --------------------------------------------------------------------------------------------------------

VALUE_TEXTS = r"""
null true false 0 1 -1 -0 127 128 -129 32768 2147483648 9223372036854775807 9223372036854775808 1.0 1e2 1.5 0.1 -1.25
1.230 1e400 -1e400 9e308 1e39 3.4e38 1e-400 NaN Infinity -Infinity 01 +1 .5 5. 1e 0x1 - tru Nan
"" "x" "1" "1.5" "+1" ".5" "5." "99999.99" 9999.99 10000 1e3 1e4 0.001
"-INF" "+Infinity" "Inf" "aGk=" "aGk" "a+/b" "é" "\u00e9" "\ud800" "\ud83d\ude00" "\x" "\u12" "a\/b" "Info" "NaN"
["2024-05-06T07:08:09.1234567",null,"2024-05-06T07Z"]
[] [1] [1,null] [1,"x"] [1.5] [1,] [2147483648] [[1]] nonsense { } [ ]
{"":1} {"a":null,"b":"x"} {"\ud800":1} [[],{}] {"w":[1,{"a":"\ud800"}]} {"z":"\ud800","w":1e400}
{} {"k":1} {"k":"1"} {"k":40000} {"w":"y","k":null} {"w":1} {"e":["2024-02-29",null]} {"e":["2023-02-29"]}
{"t":"2024-05-06T07:08:09.1234567"} {"t":"2024-05-06T07:08:09.1Z"} {"k":1,"k":2} {"z":1,"z":2} {"k":1,} {"z":{"k":"no"}}
"2024-05-06" "2024-02-30" "2024-5-6" "0000-01-01x" "2024-05-06T07" "2024-05-06T07:08" "2024-05-06T07:08:09"
"2024-05-06T24:00:00" "2024-05-06T07:08:09.123456" "2024-05-06T07:08:09.1234567" "2024-05-06T07:08:09.Z"
"2024-05-06T07:08:09.123456789Z" "2024-05-06T07:08:09.1234567890" "2024-05-06T07:08:09.999999999+02:00"
"2024-05-06T07:08:09Z" "2024-05-06T07:08:09+02:00" "2024-05-06T07:08:09+0230" "2024-05-06T07:08:09-02"
"2024-05-06T07:08:09+24:00" "2024-05-06Z" "2024-05-06T07:08:09+02:" "2024-05-06T07:08:60"
"""
BLANK_VALUES = ['"2024-05-06 07:08:09"', '" 2024-05-06"', '"2024-05-06T07:08:09 Z"', '"a\tb"', "[1, 2 ]", '{"k" : 1 }']
VALUES = st.sampled_from([*VALUE_TEXTS.split(), *BLANK_VALUES])
NAMES = st.sampled_from([*FIELDS, "x", "", "\\u0069d", "ID"])


@st.composite
def _objects(draw: st.DrawFn) -> bytes:
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=4))
    blank = draw(st.sampled_from(["", "", "", " ", "\t"]))
    return ("{" + ("," + blank).join(f'"{name}"{blank}:{value}' for name, value in members) + "}").encode()


GOOD = st.integers(0, 99).map(lambda number: b'{"id":%d,"s":"row","v":0.5}' % number)
ODD_JSON = [
    b"null",
    b"[]",
    b"{",
    b"}",
    b"{}",
    b"{}{}",
    b'{"id":',
    b"2}",
    b"{}x",
    b" {} ",
    b"{},{}",
    b"{}}",
    b'{"o":{}',
    b"//",
]
ODD_BYTES = [
    b"",
    b" ",
    b"\r",
    b"\xff",
    b'{"s":"\xff"}',
    b"\xef\xbb\xbf{}",
    b'{"s":"',
    b'"}',
    b"\x00",
    b"{}\x00",
    b'{"id":1}}',
]
ODD = st.sampled_from([*ODD_JSON, *ODD_BYTES])
LINES = st.one_of(GOOD, GOOD, _objects(), ODD)
ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"])


@st.composite
def _files(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.tuples(LINES, ENDS), max_size=8))
    data = b"".join(line + end for line, end in lines)
    mark = draw(st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf"]))
    return mark + (data[:-1] if data and draw(st.booleans()) else data)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    contents=st.lists(_files(), min_size=1, max_size=4),
    block_bytes=st.sampled_from([1, 8, 40, 4096]),
    ddl=DDLS,
)
def test_any_files_in_any_pieces_are_read_like_the_reference(
    data: st.DataObject, contents: list[bytes], block_bytes: int, ddl: str
) -> None:
    check_reading(contents, data.draw(any_pieces(contents)), block_bytes, ddl)


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(st.one_of(LINES, _objects()), min_size=1, max_size=30), repeat=st.sampled_from([1, 1, 40]))
@example(lines=[b'{"v":Inf}', b'{"v":9e308}', b'{"f":-Inf,"x":1}'], repeat=1)
def test_a_line_has_the_same_result_alone_and_among_others(lines: list[bytes], repeat: int) -> None:
    decoder = JsonlDecoder(parse_ddl(DDL))
    lines = [line.replace(b"\n", b"") for line in lines] * repeat
    together = decoder.decode(b"".join(line + b"\n" for line in lines))
    rows = iter(together.rows.to_pylist())
    bad = iter(together.bad)
    for line in lines:
        alone = decoder.decode(line + b"\n")
        assert repr(alone.rows.to_pylist()) == repr([next(rows) for _ in range(alone.rows.num_rows)])
        for found in alone.bad:
            other = next(bad)
            assert (found.raw, found.reason, found.detail) == (other.raw, other.reason, other.detail)
    assert next(rows, None) is None
    assert next(bad, None) is None


@settings(max_examples=300, deadline=None)
@given(
    kind=DECIMAL_KINDS,
    texts=st.lists(DECIMALS, min_size=1, max_size=6),
    quoted=st.booleans(),
)
@example(kind=(38, 0), texts=["9" * 38], quoted=False)
@example(kind=(38, 0), texts=["1e-39"], quoted=False)
@example(kind=(30, 30), texts=["0." + "9" * 30], quoted=True)
def test_a_decimal_has_the_same_result_alone_and_beside_a_bad_line(
    kind: tuple[int, int], texts: list[str], quoted: bool
) -> None:
    schema = pa.schema([pa.field("n", pa.decimal128(*kind)), pa.field("o", pa.list_(pa.decimal128(*kind)))])
    mark = '"' if quoted else ""
    lines = [f'{{"n":{mark}{text}{mark},"o":[{mark}{text}{mark}]}}\n'.encode() for text in texts]
    check_neighbours(JsonlDecoder(schema), lines, b"x\n")


@settings(max_examples=500, deadline=None)
@given(
    line=_objects(), at=st.integers(0, 200), byte=st.integers(0, 255), how=st.sampled_from(["set", "drop", "add", ""])
)
def test_the_classifier_never_refuses_a_line_that_the_block_decoder_accepts(
    line: bytes, at: int, byte: int, how: str
) -> None:
    at %= len(line) + 1
    line = {
        "set": line[:at] + bytes([byte]) + line[at + 1 :],
        "drop": line[:at] + line[at + 1 :],
        "add": line[:at] + bytes([byte]) + line[at:],
        "": line,
    }[how].replace(b"\n", b"")
    try:
        line.decode()
    except UnicodeDecodeError:
        return
    decoded = JsonlDecoder(parse_ddl(DDL)).decode(line + b"\n")
    if decoded.rows.num_rows:
        assert Classifier(parse_ddl(DDL)).reason(line) is None
