"""Cases of JSON: our outcome as a line and as a document, and that of spark.read.json for both.

Written anew after the ideas of JSONTestSuite (https://github.com/nst/JSONTestSuite, MIT licence): text that every
parser must accept, text that every parser must refuse, and text that it may accept. No file is copied. Most cases are
the value of a field that no column reads, so that the outcome depends on the syntax alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GOOD_ID = -1
GOOD_LINE = b'{"id":%d}\n' % GOOD_ID  # stands after each case
ROW, TWO_ROWS, NOTHING = "row", "2 rows", "nothing"
MALFORMED, INVALID_UTF8, FAILED = "malformed", "invalid UTF-8", "failed"
CORRUPT = "corrupt"
_OF_SPARK = {MALFORMED: CORRUPT, INVALID_UTF8: CORRUPT, FAILED: CORRUPT}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCase:
    """One line, or one document, and its outcomes."""

    content: bytes
    line: str
    document: str
    spark_line: str
    spark_document: str
    because: str  # a key of DIFFERENCES; empty if Spark agrees


def as_spark_says(outcome: str) -> str:
    """Return the outcome in Spark's words: bad lines and failed documents are corrupt records."""
    return ", ".join(dict.fromkeys(_OF_SPARK.get(word, word) for word in outcome.split(", ")))


def _cases(
    line: str,
    document: str,
    contents: Sequence[bytes],
    *,
    spark_line: str = "",
    spark_document: str = "",
    because: str = "",
) -> Iterator[JsonCase]:
    """Yield cases with the same outcomes; Spark's are as ours if none is given."""
    for content in contents:
        yield JsonCase(
            content=content,
            line=line,
            document=document,
            spark_line=spark_line or as_spark_says(line),
            spark_document=spark_document or as_spark_says(document),
            because=because,
        )


def _values(texts: str, *more: str | bytes) -> list[bytes]:
    """Return objects with these values, separated by blanks in the text."""
    values = [text if isinstance(text, bytes) else text.encode() for text in (*texts.split(), *more)]
    return [b'{"id":1,"v":%b}' % value for value in values]


def _accepted() -> Iterator[JsonCase]:
    """Yield what each parser must accept."""
    numbers = _values(
        "0 -0 7 -41 905.25 6e4 6E4 6e+4 6E-4 0e7 0e+7 31.5e2 5e-9999 -8.25e-700", "9" * 30, "-" + "9" * 47
    )
    yield from _cases(ROW, ROW, [*numbers, *_values("", " 3 ", f"-0.{'0' * 70}3")])
    yield from _cases(ROW, ROW, _values("true false null", " null "))
    strings = _values(
        r"""
        "" "plain" "\"\\\/\b\f\n\r\t" "\u0041\u00E9\u30ab" "\u0000" "\u001F" "\\u0041" "\\n" "\ud83e\udd80"
        "\uDBFF\uDFFE" "\uFFFF" "\uFDD0" "/*no*/" "//no" "café€𝄞"
        """,
        *('" "', '"a b "', '"\x7f"', '"\u2028\u2029"', '"\uffff"', '"\U0010ffff"', '"\U0001bfff"', '"\u200b"'),
    )
    yield from _cases(ROW, ROW, strings)
    lists = _values('[] [[]] [1,"a",null,{},[true]]', "[[]  ]", "[ 1 ,\t2 ]", "[" * 400 + "]" * 400)
    yield from _cases(ROW, ROW, lists)
    objects = _values(
        r"""
        {} {"":0} {"k":{"k":[{}]}} {"k":1,"k":2} {"k":1,"k":1} {"a\u0000b":1} {"min":-1.5e+30,"max":1.5e+30}
        """,
        *('{ "k" : "v" }', f'{{"{"k" * 70}":"{"v" * 70}"}}'),
    )
    yield from _cases(ROW, ROW, objects)
    yield from _cases(ROW, ROW, [b'{"id":1}', b'  {"id":1}\t', b'{"id":1}\r', b"{}", b'{"id":null}'])


def _refused() -> Iterator[JsonCase]:
    """Yield what each parser must refuse."""
    numbers = """
        +7 - --7 07 -07 7. -7. .7 -.7 .-7 7.e2 .7e2 7e 7E 7e+ 7E- 7.0e 7.0e+ 7e2.5 7ee2 7e+-2 1.2.3 0x1F 1_000 \uff17 7a
        7-2 1+1 -x 7H-3 7@ nan infinity
    """
    yield from _cases(MALFORMED, FAILED, _values(numbers, "- 7", "1 000"))
    yield from _cases(INVALID_UTF8, FAILED, _values("", b"7\xe9", b"7e\xe9"))
    names = "tru fals nul True TRUE Null None undefined truex <null> * ï"
    yield from _cases(MALFORMED, FAILED, _values(names, ""))
    strings = r"""
        "\x41" "\a" "\U0041" "\u12" "\u12G4" "\uzzzz" "\" "\\\" "\é" plain "open "a"b" \u0022a\u0022 \n
        "\ud83e\" "\ud83e\u" "\ud83e\udd8" "\ud83e\x"
    """
    yield from _cases(MALFORMED, FAILED, _values(strings, '"a\tb"', '"a\0b"', '"a\x1fb"', '"\\\t"', '"\\\0"'))
    lists = """
        [1,] [1,,] [,1] [,] [1,,2] [1:2] ["a":1] [ [1 [1, ["a [1]] [2[3]] [1]x [*] [<1>] [\u2060] [false,nul [{ [{} (1)
    """
    yield from _cases(MALFORMED, FAILED, _values(lists, "[1 2]", "[1,\f2]", '["\v"]', "[\0]", '["a"\\f]'))
    yield from _cases(MALFORMED, FAILED, _values("", "[" * 100_000, '[{"":' * 30_000))
    objects = """
        {"k":1,} {"k":1,,} {"k":1,,"l":2} {,} {"k"} {"k":} {"k"::1} {"k",1} {"k";1} {:1} {k:1} {1:1} {8e999:1} {null:1}
        {"k":1,"l"} {"k":1 {"k":"v {"k": {"k" {"k { {, {[ {] {"k":/*no*/1} {"k":1}/**/ {"k":1}# {["k"]:1} {🦀}
        {"k":truth}
    """
    yield from _cases(MALFORMED, FAILED, _values(objects, '{"k" 1}', '{"k":1 2}', '{"k":1 // no'))
    yield from _cases(INVALID_UTF8, FAILED, _values("", b'{"\xb9":1,}'))
    single_quotes = [*_values("'single' {'k':1}"), b"{'id':1}"]
    yield from _cases(MALFORMED, FAILED, single_quotes, spark_line=ROW, spark_document=ROW, because="single quotes")
    yield from _cases(MALFORMED, FAILED, [*_values("{'k'"), b"{'id:1}"])
    lines = """
        nul aå * { } [ ] {] 1] " {id:1} ({"id":1}) [{"id":1} [{"id":1},]
    """
    yield from _cases(MALFORMED, FAILED, [line.encode() for line in lines.split()])
    yield from _cases(MALFORMED, FAILED, [b'{"id":1,\f"v":2}', b'\xe2\x81\xa0{"id":1}', b'\xc2\xa0{"id":1}'])
    after = """
        {"id":1}, {"id":1}} {"id":1}] {"id":1}# {"id":1}// {"id":1}/**/ {"id":1}/ {"id":1},{"id":2}
    """
    trailing = [b'{"id":1} x', b'{"id":1}\0', b'{"id":1}\f', *(line.encode() for line in after.split())]
    trailing += _values("{}}")
    yield from _cases(MALFORMED, FAILED, trailing, spark_line=ROW, spark_document=ROW, because="text after a value")
    yield from _cases(INVALID_UTF8, FAILED, [b'\xef\xbb{"id":1}', b"\xe9"])
    yield from _cases(MALFORMED, FAILED, [b'{"id":1,"v":"two\nlines"}'])


def _left_open() -> Iterator[JsonCase]:
    """Yield what a parser may accept, and what is no row although it is JSON."""
    both_rows = {"spark_line": ROW, "spark_document": ROW}
    yield from _cases(ROW, ROW, _values("NaN Infinity -Infinity +Infinity -INF +INF"))
    more = _values("Inf INF -Inf -NaN")
    corrupt = {"spark_line": CORRUPT, "spark_document": CORRUPT}
    yield from _cases(ROW, ROW, more, **corrupt, because="spellings of NaN and infinity")
    yield from _cases(MALFORMED, FAILED, _values("+NaN"))
    too_large = _values("8e999 -8e999", f"6.5e+00{'9' * 60}")
    yield from _cases(ROW, ROW, too_large)
    lone_surrogates = r"""
        "\ud83e" "\udd80" "\ud83e\u0041" "\udd80\ud83e" "\ud83e\n" "\ud83e\ud83e\n" "\ud83ex"
    """
    yield from _cases(ROW, ROW, _values(lone_surrogates))
    no_text = [
        b'"\xff"',
        b'"caf\xe9"',
        b'"\x80"',
        b'"\xe2\x82"',
        b'"\xfc\x80\x80\x80\x80\xaf"',
        b'"\\u\xe5"',
        b'"\\\xe5"',
    ]
    yield from _cases(INVALID_UTF8, FAILED, _values("", *no_text))
    no_character = _values("", b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"')
    yield from _cases(INVALID_UTF8, FAILED, no_character, **both_rows, because="bytes that are not UTF-8")
    utf16 = ['{"id":1}'.encode("utf-16-le"), '{"id":1}'.encode("utf-16-be")]
    yield from _cases(MALFORMED, FAILED, utf16, **both_rows, because="UTF-16 without a byte order mark")
    yield from _cases(NOTHING, NOTHING, [b"", b"   "])
    yield from _cases(
        NOTHING, NOTHING, [b"\xef\xbb\xbf"], spark_document=CORRUPT, because="a byte order mark and no more"
    )
    yield from _cases(ROW, ROW, [b'\xef\xbb\xbf{"id":1}'])
    yield from _cases(MALFORMED, MALFORMED, [b'{"id":1,"id":2}'], **both_rows, because="a field given twice")
    yield from _cases(MALFORMED, MALFORMED, [b"[1]", b"7", b"-0.5", b'"a"', b'""', b"true", b"null"])
    yield from _cases(MALFORMED, ROW, [b'{\n  "id": 1\n}'])
    arrays = "arrays in JSON lines"
    yield from _cases(MALFORMED, ROW, [b'[{"id":1}]'], spark_line=ROW, because=arrays)
    yield from _cases(MALFORMED, TWO_ROWS, [b'[{"id":1},{"id":2}]'], spark_line=TWO_ROWS, because=arrays)
    yield from _cases(MALFORMED, NOTHING, [b"[]", b"[][]"], spark_line=NOTHING, because=arrays)
    pretty = [b'[\n  {"id": 1},\n  {"id": 2}\n]']
    yield from _cases("row, malformed", TWO_ROWS, pretty, spark_line="2 rows, corrupt", because="text after a value")
    several = [b'[{"id":1}][{"id":2}]', b'{"id":1}{"id":2}', b'{"id":1} {"id":2}']
    yield from _cases(MALFORMED, TWO_ROWS, several, **both_rows, because="several values in a row")
    yield from _cases(
        TWO_ROWS, TWO_ROWS, [b'{"id":1}\n\n{"id":2}'], spark_document=ROW, because="several values in a row"
    )
    yield from _cases(MALFORMED, "row, malformed", [b'{"id":1} "x"'], **both_rows, because="several values in a row")


ACCEPTED = tuple(_accepted())
JSON_CASES = (*ACCEPTED, *_refused(), *_left_open())
