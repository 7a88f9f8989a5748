"""CSV against a plain reference: Python's csv for records, a regular expression for fields, and converters."""

import csv as csv_module
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.source_run import Case, Expected, any_pieces, check, halves, read, whole
from tests.property.source_values import DECIMAL_KINDS, DECIMALS, Malformed, WrongType, check_neighbours, day, moment

from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_lines import CsvClassifier, Layout
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions

DDL = (
    "id bigint, s string, v double, f float, t tinyint, b boolean, ts timestamp, tn timestamp_ntz, d date, "
    "n decimal(6,2), z string"
)
DIALECTS = [
    CsvOptions(),
    CsvOptions(header=False),
    CsvOptions(delimiter=";", quote="'", null_text="NA"),
    CsvOptions(delimiter="\t", quote=""),
    CsvOptions(header=False, delimiter="|", null_text="null"),
]

BOM = b"\xef\xbb\xbf"

# -- the reference ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A parser of one line of fields, as a regular expression."""

    csv: CsvOptions

    @property
    def field(self) -> str:
        quote, delimiter = re.escape(self.csv.quote), re.escape(self.csv.delimiter)
        if not quote:
            return rf"(?P<plain>[^{delimiter}\r]*)"
        return rf"{quote}(?P<quoted>(?:[^{quote}]|{quote}{quote})*){quote}|(?P<plain>(?!{quote})[^{delimiter}\r]*)"

    def split(self, line: str) -> list[tuple[str, bool]]:
        fields = []
        at = 0
        while True:
            match = re.compile(rf"(?:{self.field})(?={re.escape(self.csv.delimiter)}|\Z)").match(line, at)
            if match is None:
                raise Malformed
            quoted = match.groupdict().get("quoted")
            fields.append(
                (match["plain"], False)
                if quoted is None
                else (quoted.replace(self.csv.quote * 2, self.csv.quote), True)
            )
            at = match.end() + 1
            if at > len(line):
                return fields

    def parsed(self, data: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
        """Yield offset, bytes and fields of each record, by Python's csv. A lone carriage return is a character."""
        lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
        texts = [line.decode("utf-8", "surrogateescape") for line in lines]
        texts[:1] = [text.removeprefix("\ufeff") for text in texts[:1]]
        reader = csv_module.reader(
            [re.sub(r"\r(?!\n|\Z)", "\x01", text) for text in texts],
            delimiter=self.csv.delimiter,
            quotechar=self.csv.quote or None,
            quoting=csv_module.QUOTE_MINIMAL if self.csv.quote else csv_module.QUOTE_NONE,
        )
        at = done = 0
        for fields in reader:
            raw = b"".join(lines[done : reader.line_num])
            yield at, raw.removesuffix(b"\n").removesuffix(b"\r"), [text.replace("\x01", "\r") for text in fields]
            at += len(raw)
            done = reader.line_num
        assert done == len(lines)

    def reference(self, data: bytes) -> Expected:
        expected = Expected()
        names: list[str] | None = None if self.csv.header else list(CONVERTERS)
        for at, raw, _ in self.parsed(data):
            line = raw.removeprefix(BOM) if at == 0 else raw
            if not line.strip(b" \t".replace(self.csv.delimiter.encode(), b"")):
                pass
            elif names is None:
                names = [name.strip().lower() for name, _ in self.split(line.decode())]
            else:
                self._add(expected, at, raw, line, names)
        return expected

    def _add(self, expected: Expected, at: int, raw: bytes, line: bytes, names: Sequence[str]) -> None:
        try:
            fields = self.split(line.decode())
            if len(fields) != len(names):
                raise Malformed
            row = dict(zip(names, fields, strict=True))
            values = {name: self._value(row.get(name), name) for name in CONVERTERS}
            expected.rows.append((at, values))
        except UnicodeDecodeError:
            expected.bad.append((at, raw, "invalid UTF-8"))
        except Malformed:
            expected.bad.append((at, raw, "malformed"))
        except WrongType:
            expected.bad.append((at, raw, "wrong type"))

    def _value(self, field: tuple[str, bool] | None, name: str) -> Any:
        if field is None:
            return None
        text, quoted = field
        if text in ("", self.csv.null_text) and not (quoted and name in ("s", "z")):
            return None
        return CONVERTERS[name](text)


def integer(bits: int) -> Any:
    def convert(text: str) -> int:
        if not re.fullmatch(r"[ \t]*[+-]?[0-9]+[ \t]*", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
            raise WrongType
        return int(text)

    return convert


NUMBER = re.compile(r"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*")


def floating(greatest: float) -> Any:
    def convert(text: str) -> float:
        if re.fullmatch(r"[ \t]*[+-]?(inf|infinity|nan)[ \t]*", text, re.IGNORECASE):
            return float("nan") if "nan" in text.lower() else float(text)  # -nan is a nan
        if not NUMBER.fullmatch(text) or abs(Decimal(text.strip())) > greatest:
            raise WrongType
        return float(text)

    return convert


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise WrongType
    return text.lower() == "true"


def decimal(text: str) -> Decimal:
    if not NUMBER.fullmatch(text):
        raise WrongType
    try:
        number = Decimal(text.strip())
        cut = number.quantize(Decimal("0.01"))
    except InvalidOperation:
        raise WrongType from None
    if cut != number or abs(number) >= 10**4:
        raise WrongType
    return cut + 0  # no minus for zero


CONVERTERS: dict[str, Any] = {
    "id": integer(64),
    "s": str,
    "v": floating(1.7976931348623157e308),
    "f": floating(3.4028235677973362e38),
    "t": integer(8),
    "b": boolean,
    "ts": moment,
    "tn": lambda text: moment(text).replace(tzinfo=None),
    "d": lambda text: day(text.strip(" \t")),
    "n": decimal,
    "z": str,
}


def check_reading(contents: Sequence[bytes], partitions: Any, csv: CsvOptions, block_bytes: int) -> None:
    options = ReadOptions(schema_ddl=DDL, format="csv", csv=csv, block_bytes=block_bytes)
    check(Case(contents=contents, partitions=partitions, options=options), Plain(csv).reference)


# -- the traps, at every split boundary ------------------------------------------------------------------------------

TRAPS = {
    "plain": b"id,s\n1,a\n2,b\n",
    "another order, a name more, a name less": b"x,s,id\n1,a,2\n,,\n",
    "names in another case, with blanks": b" ID , S\n1,a\n",
    "empty and quoted empty": b'id,s,z\n,,\n"","",""\n1,"",\n',
    "quotes": b'id,s\n1,"a,b"\n2,"a ""b"" c"\n3,""""\n',
    "a quote within a field": b'id,s\n1,a"b\n2,a"b"\n3, "a"\n',
    "a quote not closed": b'id,s\n1,"a\n2,b\n3,"c\nd"\n',
    "a quote not closed, at the end": b'id,s\n1,b\n3,"c',
    "a line of a record that looks like a row": b'id,s\n1,"first\n99,second\n3"\n2,fine\n',
    "a record of many lines": b'id,s\n1,"a\n\n2,b\n3,c\n"\n4,d\n5,"e\n6,f\n7,g"\n',
    "quotes that close and open again on a line": b'id,s,z\n1,"a\nb","c\nd"\n2,e,f\n',
    "quotes that close and open a field too many": b'id,s\n1,"a\nb"x,"c\n2,d\n"\n3,e\n',
    "doubled quotes beside line breaks": b'id,s\n1,"""\n2,a\n"""\n3,""\n4,"b""\n""c"\n5,"d"\n',
    "line breaks of CRLF": b'id,s\r\n1,"a\r\n2,b"\r\n3,"c"\r\n4,"d\r\n5,e',
    "records alone": b'id,s\n"1\n2","a"\n"3","b\n4,c"\n',
    "a quote alone on its lines": b'id\n1\n"\n2\n"\n3\n"\n4\n',
    "quotes within fields beside a record": b'id,s\n1,5" a\n2,"b\n3,6" c\n4,d\n5,7"\n6,"e"\n',
    "not UTF-8 within a record": b'id,s\n1,"\xff\n2,a"\n3,\xff\n',
    "even quotes that do not close": b'id,s,z\n1,a"b,"c\n2,d"e,"f\n3,g,h\n',
    "something behind a quote": b'id,s\n1,"a"b\n2,"a" \n3,"a""\n',
    "fewer and more fields": b"id,s\n1\n1,a,b\n2,c\n,\n1,\n",
    "CRLF": b'id,s\r\n1,a\r\n\r\n2,"b"\r\nx,y\r\n3,c\r\r\n',
    "carriage returns alone": b'id,s\n1,a\rb\n2,"a\rb"\n3,\r\n\r,4\n',
    "no last newline": b"id,s\n1,a\n2,b",
    "blank lines": b"\n  \n\t\nid,s\n\n1,a\n \n\t \n2,b\n\n",
    "byte order mark": b'\xef\xbb\xbf"id",s\n1,a\n',
    "byte order mark on the second line": b"id,s\n\xef\xbb\xbf1,a\n2,b\n",
    "byte order mark and blank lines": b"\xef\xbb\xbf\n \nid,s\n1,a\n",
    "byte order mark in a string": b"s,id\n\xef\xbb\xbfa,1\n\xef\xbb\xbf,2\n",
    "invalid UTF-8": b"id,s\n1,\xff\n\xc3,a\n2,\xc3\xa9\n3,\xed\xa0\x80\n",
    "invalid UTF-8 in a field outside the schema": b"id,x\n1,\xff\n2,a\n",
    "NUL": b"id,s\n1,\x00\n\x00,a\n",
    "hexadecimal": b"id,s,t\n0x1f,a,1\n1,0x1f,0xff\n2,0X1F,3\n",
    "great numbers": b"id,v,f,n,t\n9223372036854775808,,,,\n,1e400,,,\n,,1e39,,\n,,,1e4,\n,,,,128\n,inf,-Infinity,,\n",
    "zones and fractions": b"id,ts\n1,2024-05-06\n2,2024-05-06T07:08:09.123456789Z\n3,2024-05-06 07:08+02:00\n4,x\n",
    "formulas": b"id,s\n1,=cmd|' /C calc'!A0\n2,@SUM(1)\n3,\"+1,-1\"\n",
    "one column": b's\na\n""\n"b"\n  \n c\n',
    "a header and no more": b"id,s\n",
    "a header without its newline": b"id,s",
    "empty": b"",
    "only a byte order mark": b"\xef\xbb\xbf",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_an_edge_case_is_read_like_the_reference_at_every_split_boundary(trap: str) -> None:
    data = TRAPS[trap]
    for cut in range(len(data) + 1):
        check_reading([data], halves(data, cut), CsvOptions(), block_bytes=(1, 7, 1 << 20)[cut % 3])


@pytest.mark.parametrize("block_bytes", [1, 16, 1 << 20])
def test_all_edge_cases_in_one_partition_keep_their_offsets(block_bytes: int) -> None:
    contents = list(TRAPS.values())
    check_reading(contents, whole(contents), CsvOptions(), block_bytes)


# -- anything --------------------------------------------------------------------------------------------------------

TEXTS = r"""
0 1 -1 +1 -0 007 127 128 -129 9223372036854775807 9223372036854775808 -9223372036854775808 0x1f -0x1 0X 1.0 1e2 1.5 .5
5. 1e 1_0 - + . 1e400 -1e400 9e308 1e39 3.4e38 1e-400 NaN nan -nan inf Inf INFINITY +inf infinit nanx 1f
99999.99 9999.99 10000 1e3 1e4 0.001 1.230 000000000000000000000000000000001
true True TRUE tRUE false FALSE t 1x é NA null NULL x x'y x"y ' " "" '' a"b"c =1+1 @x \ \n
2024-05-06 2024-02-30 0000-01-01x 2024-05-06T07 2024-05-06T07:08 2024-05-06T07:08:09.123456 2024-05-06T07:08:09.1234567
2024-05-06T07:08:09.1234567890 2024-05-06T07:08:09Z 2024-05-06T07:08:09.123456789+02:00 2024-05-06T07:08:09+0230
2024-05-06T07:08:09-02 2024-05-06Z 2024-05-06T24:00:00
"""
BLANKED = [
    "",
    "",
    " ",
    " 1 ",
    "\t1",
    "1 \t",
    " true",
    " x ",
    "2024-05-06 07:08:09",
    " 2024-05-06 ",
    "a,b",
    "a;b",
    "\r",
    "a\rb",
]
VALUES = st.sampled_from([*TEXTS.split(), *BLANKED])
GOOD: dict[str, list[str]] = {
    "id": ["1", "2"],
    "s": ["a", "b c", ""],
    "v": ["0.5"],
    "f": ["1.5"],
    "t": ["1"],
    "b": ["true"],
    "ts": ["2024-05-06T07:08:09Z", "2024-05-06"],
    "tn": ["2024-05-06T07:08:09"],
    "d": ["2024-05-06"],
    "n": ["1.25"],
    "z": ["", "z"],
}


@st.composite
def _fields(draw: st.DrawFn, names: Sequence[str], csv: CsvOptions) -> bytes:
    """Draw a line: mostly good, a few values odd, some quoted, and sometimes a field too few or too many."""
    odd = draw(st.sets(st.sampled_from(range(len(names))), max_size=2))
    texts = [draw(VALUES if at in odd else st.sampled_from(GOOD.get(name, ["x"]))) for at, name in enumerate(names)]
    quoted = [
        csv.quote + text.replace(csv.quote, csv.quote * 2) + csv.quote if csv.quote and draw(st.booleans()) else text
        for text in texts
    ]
    extra = draw(st.sampled_from([0] * 8 + [-1, 1]))
    return csv.delimiter.join(quoted[: len(quoted) + min(extra, 0)] + ["x"] * max(extra, 0)).encode()


ODD = st.sampled_from(
    [
        b"",
        b" ",
        b"\t",
        b"\r",
        b"\xff",
        b'"',
        b"'",
        b'1,"',
        b'",2',
        b"1;'",
        b"';2",
        b'"","',
        b'"\n1,2\n"',
        b'"a\r',
        b'"a',
        b'a"',
        b"\x00",
        b",",
        b"|",
        b"\xef\xbb\xbf1",
        b'""',
    ]
)


@st.composite
def _files(draw: st.DrawFn, csv: CsvOptions) -> bytes:
    names = list(CONVERTERS)
    lines: list[bytes] = []
    if csv.header:
        names = draw(st.permutations([*draw(st.lists(st.sampled_from(names), min_size=1, unique=True)), "x", "y y"]))
        lines = [csv.delimiter.join(names).encode()]
    body = st.one_of(_fields(names, csv), _fields(names, csv), ODD)
    ends = st.sampled_from([b"\n", b"\n", b"\r\n"])
    ended = [line + draw(ends) for line in [*lines, *draw(st.lists(body, max_size=6))]]
    data = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"])) + b"".join(ended)
    return data[:-1] if data.endswith(b"\n") and draw(st.booleans()) else data


@pytest.mark.parametrize("csv", DIALECTS, ids=repr)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), block_bytes=st.sampled_from([1, 40, 4096]))
def test_any_files_in_any_pieces_are_read_like_the_reference(
    csv: CsvOptions, data: st.DataObject, block_bytes: int
) -> None:
    contents = data.draw(st.lists(_files(csv), min_size=1, max_size=4))
    check_reading(contents, data.draw(any_pieces(contents)), csv, block_bytes)


QUOTED_DIALECTS = [CsvOptions(header=False), CsvOptions(header=False, delimiter=";", quote="'")]


@st.composite
def _quoted_files(draw: st.DrawFn, csv: CsvOptions) -> bytes:
    """Draw bytes in which every second character affects the quoting."""
    marks = [csv.quote, csv.quote, csv.delimiter, "\n", "\n", "\r\n"]
    pieces = st.sampled_from(
        [*marks, csv.quote * 2, csv.delimiter + csv.quote, csv.quote + csv.delimiter, "a", "b", " ", "\r", "é"]
    )
    mark = draw(st.sampled_from([b"", b"", b"", BOM]))
    return mark + "".join(draw(st.lists(pieces, max_size=40))).encode()


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("csv", QUOTED_DIALECTS, ids=repr)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), block_bytes=st.sampled_from([1, 5, 16, 4096]), compressed=st.sampled_from([False] * 5 + [True]))
def test_every_record_is_one_row_or_one_bad_record_for_any_cuts(
    csv: CsvOptions, columns: int, data: st.DataObject, block_bytes: int, compressed: bool
) -> None:
    contents = data.draw(st.lists(_quoted_files(csv), min_size=1, max_size=3))
    stored = [gzip.compress(content) if compressed else content for content in contents]
    ddl = ", ".join(f"c{number} string" for number in range(columns))
    found = read(
        Case(
            contents=stored,
            partitions=whole(stored) if compressed else data.draw(any_pieces(stored)),
            options=ReadOptions(schema_ddl=ddl, format="csv", csv=csv, block_bytes=block_bytes),
            suffix=".gz" if compressed else "",
        )
    )
    assert found.failures == {}
    for ref, content in zip(found.plan.objects, contents, strict=True):
        records = {
            at: (raw, fields) for at, raw, fields in Plain(csv).parsed(content) if raw.removeprefix(BOM).strip(b" \t")
        }
        rows = {at: list(row.values()) for uri, at, row in found.rows if uri == ref.uri}
        bad = {at: raw for uri, at, raw, _ in found.bad if uri == ref.uri}
        assert len(rows) + len(bad) == sum(found.counts[int(ref.key[1:].removesuffix(".gz"))])
        assert sorted([*rows, *bad]) == sorted(records)
        for at, values in rows.items():
            assert [value or "" for value in values] == records[at][1]
        for at, raw in bad.items():
            assert raw == records[at][0]


LAYOUT = Layout(fields=len(CONVERTERS), indexes=tuple(range(len(CONVERTERS))))


@pytest.mark.parametrize("csv", DIALECTS, ids=repr)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), repeat=st.sampled_from([1, 1, 40]))
def test_a_line_has_the_same_result_alone_and_among_others(csv: CsvOptions, data: st.DataObject, repeat: int) -> None:
    decoder = CsvDecoder(parse_ddl(DDL), csv, LAYOUT)
    names = list(CONVERTERS)
    lines = data.draw(st.lists(st.one_of(_fields(names, csv), ODD), min_size=1, max_size=20)) * repeat
    together = decoder.decode(b"".join(line + b"\n" for line in lines))
    rows = iter(together.rows.to_pylist())
    bad = iter(together.bad)
    for line in lines:
        alone = decoder.decode(line + b"\n")
        assert repr(alone.rows.to_pylist()) == repr([next(rows) for _ in range(alone.rows.num_rows)])
        for found in alone.bad:
            other = next(bad)
            assert (found.raw, found.reason, found.detail) == (other.raw, other.reason, other.detail)
    assert (next(rows, None), next(bad, None)) == (None, None)


@settings(max_examples=300, deadline=None)
@given(
    kind=DECIMAL_KINDS,
    texts=st.lists(DECIMALS, min_size=1, max_size=6),
    quoted=st.booleans(),
)
def test_a_decimal_has_the_same_result_alone_and_beside_a_bad_line(
    kind: tuple[int, int], texts: list[str], quoted: bool
) -> None:
    schema = pa.schema([pa.field("n", pa.decimal128(*kind))])
    decoder = CsvDecoder(schema, CsvOptions(), Layout(fields=1, indexes=(0,)))
    mark = '"' if quoted else ""
    check_neighbours(decoder, [f"{mark}{text}{mark}\n".encode() for text in texts], b"x,y\n")


@settings(max_examples=500, deadline=None)
@given(
    line=_fields(list(CONVERTERS), CsvOptions()),
    at=st.integers(0, 200),
    byte=st.integers(0, 255),
    how=st.sampled_from(["set", "drop", "add", ""]),
)
def test_the_classifier_never_refuses_a_line_that_the_decoder_accepts(
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
    decoded = CsvDecoder(parse_ddl(DDL), CsvOptions(), LAYOUT).decode(line + b"\n")
    if decoded.rows.num_rows:
        assert CsvClassifier(parse_ddl(DDL), CsvOptions(), LAYOUT).reason(line) is None


def test_a_quote_in_a_comment_takes_no_line_with_it() -> None:
    csv = CsvOptions(comment="#")
    content = b'a,b\n1,2\n# note,"x\n3,4\n# y",z\n5,"6\n# not a comment\n"\n7,8\n'
    for cut in range(len(content)):
        found = read(
            Case(
                contents=[content],
                partitions=halves(content, cut),
                options=ReadOptions(schema_ddl="a int, b string", format="csv", csv=csv),
            )
        )
        assert (found.failures, found.bad) == ({}, [])
        rows = sorted((at, row["a"], row["b"]) for _, at, row in found.rows)
        assert rows == [(4, 1, "2"), (18, 3, "4"), (29, 5, "6\n# not a comment\n"), (52, 7, "8")], cut


@pytest.mark.parametrize("neighbour", [b"", b"x\n"], ids=["alone", "beside a bad line"])
def test_a_return_outside_of_quotes_is_bad_in_a_record_of_several_lines_too(neighbour: bytes) -> None:
    content = b'a,b\n"1\r\n\r",x\ry\n"1\r\n\r",2\n' + neighbour
    options = ReadOptions(schema_ddl="a string, b string", format="csv")
    found = read(Case(contents=[content], partitions=whole([content]), options=options))
    assert [row for *_, row in found.rows] == [{"a": "1\r\n\r", "b": "2"}]
    assert found.bad[0][1:] == (4, b'"1\r\n\r",x\ry', "malformed")
