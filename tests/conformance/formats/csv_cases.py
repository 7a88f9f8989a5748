"""Cases of CSV, with our rows and bad lines, and those of spark.read.csv where they differ.

Written anew after csv-spectrum (https://github.com/max-mapper/csv-spectrum) and after the test resources of Apache
Spark (sql/core/src/test/resources/test-data), plus each spelling of a value that readers treat differently. No file is
copied.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from penstock.pipeline.spark.source.options import CsvOptions

MALFORMED, WRONG_TYPE, INVALID_UTF8 = "malformed", "wrong type", "invalid UTF-8"
Rows = Sequence[tuple[Any, ...]]

_SPARK_NAMES = {
    "header": "header",
    "delimiter": "sep",
    "quote": "quote",
    "comment": "comment",
    "null_text": "nullValue",
}
_NO_CHARACTER = "\0"
_DIALECT = CsvOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvCase:
    """One file. Values of rows are those that `shown` returns."""

    name: str
    data: bytes
    ddl: str = "id BIGINT, s STRING"
    csv: CsvOptions = _DIALECT
    rows: Rows = ()
    bad: Sequence[str] = ()  # the reason of each bad line
    fails: bool = False  # the whole file
    spark: tuple[Rows, int] | None = None  # Spark's rows and number of corrupt records; None: as ours
    because: str = ""  # a key of DIFFERENCES

    @property
    def spark_options(self) -> Mapping[str, object]:
        """Return Spark's options for RFC 4180 and the dialect of the case."""
        given = {each.name: getattr(self.csv, each.name) for each in fields(CsvOptions)}
        return {
            "header": True,
            "multiLine": True,
            "escape": self.csv.quote or _NO_CHARACTER,
            **{
                _SPARK_NAMES[name]: value or (_NO_CHARACTER if name == "quote" else value)
                for name, value in given.items()
                if value != getattr(_DIALECT, name)
            },
        }


def shown(row: Iterable[Any]) -> tuple[Any, ...]:
    """Return values that can be compared and written down: times, decimals, NaN and infinity as text."""
    return tuple(_shown(value) for value in row)


def _shown(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return str(value) if isinstance(value, float) and not isfinite(value) else value


CSV_CASES = (
    CsvCase(
        name="delimiters in quotes",
        data=b'id,s\n1,"Anytown, ""Western"", 8123"\n2,plain\n',
        rows=((1, 'Anytown, "Western", 8123'), (2, "plain")),
    ),
    CsvCase(
        name="empty fields",
        data=b'id,s\n1,\n2,""\n,x\n"",y\n',
        rows=((1, None), (2, ""), (None, "x"), (None, "y")),
        spark=(((1, None), (2, None), (None, "x"), (None, "y")), 0),
        because="empty strings in quotes",
    ),
    CsvCase(
        name="CRLF",
        data=b'id,s\r\n1,""\r\n2,b\r\n',
        rows=((1, ""), (2, "b")),
        spark=(((1, None), (2, "b")), 0),
        because="empty strings in quotes",
    ),
    CsvCase(
        name="doubled quotes",
        data=b'id,s\n1,"say ""ah"" now"\n2,""""\n3,""""""\n',
        rows=((1, 'say "ah" now'), (2, '"'), (3, '""')),
    ),
    CsvCase(
        name="JSON in a field",
        data=b'id,s\n1,"{""at"": [0.5, ""x""], ""to"": {}}"\n',
        rows=((1, '{"at": [0.5, "x"], "to": {}}'),),
    ),
    CsvCase(
        name="line break in quotes",
        data=b'id,s\n1,"Long ago \nand far away"\n2,b\n',
        rows=((1, "Long ago \nand far away"), (2, "b")),
    ),
    CsvCase(
        name="CRLF in quotes",
        data=b'id,s\r\n1,"Long ago\r\nand far away"\r\n2,b\r\n',
        rows=((1, "Long ago\r\nand far away"), (2, "b")),
        spark=(((1, "Long ago\nand far away"), (2, "b")), 0),
        because="CRLF in quotes",
    ),
    CsvCase(
        name="quotes and line breaks",
        data=b'id,s\n1,"he \n""said"" \nso"\n2,"\n"\n',
        rows=((1, 'he \n"said" \nso'), (2, "\n")),
    ),
    CsvCase(
        name="UTF-8", data="id,s\n1,ʤ\n2,37°36'37.8″N\n3,🦀\n".encode(), rows=((1, "ʤ"), (2, "37°36'37.8″N"), (3, "🦀"))
    ),
    CsvCase(name="byte order mark", data=b"\xef\xbb\xbfid,s\n1,a\n", rows=((1, "a"),)),
    CsvCase(name="no line end at the end", data=b"id,s\n1,a\n2,b", rows=((1, "a"), (2, "b"))),
    CsvCase(name="blank lines", data=b"id,s\n\n1,a\n\n\n2,b\n\n", rows=((1, "a"), (2, "b"))),
    CsvCase(
        name="lines of blanks",
        data=b"id,s\n1,a\n   \n2,b\n \t \n",
        rows=((1, "a"), (2, "b")),
        spark=(((1, "a"), (2, "b")), 2),
        because="lines of blanks",
    ),
    CsvCase(name="a header alone", data=b"id,s\n"),
    CsvCase(name="no header", data=b"1,a\n2,b\n", csv=CsvOptions(header=False), rows=((1, "a"), (2, "b"))),
    CsvCase(
        name="sparse",
        data=b"a,b,c\n1,,\n,1,\n,,1\n,,\n",
        ddl="a BIGINT, b BIGINT, c BIGINT",
        rows=((1, None, None), (None, 1, None), (None, None, 1), (None, None, None)),
    ),
    CsvCase(
        name="comments",
        data=b"~ made by hand\nid,s\n~ 1,x\n1,a\n\n2,~b\n 3~,c\n",
        csv=CsvOptions(comment="~"),
        rows=((1, "a"), (2, "~b")),
        bad=(WRONG_TYPE,),
    ),
    CsvCase(
        name="blanks before a comment and a quote",
        data=b'~ begins\nid,s\n ~ 1,x\n1, "a" \n',
        csv=CsvOptions(comment="~"),
        rows=((1, ' "a" '),),
        bad=(WRONG_TYPE,),
    ),
    CsvCase(
        name="tabs",
        data=b'id\ts\n1\ta b\n\n2\t\n3\t"a\tb"\n',
        csv=CsvOptions(delimiter="\t"),
        rows=((1, "a b"), (2, None), (3, "a\tb")),
    ),
    CsvCase(
        name="bars and single quotes",
        data=b"id|s\n'1'|'ab|c'\n\n2| 'no'\n3|\n",
        csv=CsvOptions(delimiter="|", quote="'"),
        rows=((1, "ab|c"), (2, " 'no'"), (3, None)),
    ),
    CsvCase(name="no quote", data=b'id,s\n1,"a\n2,b"\n', csv=CsvOptions(quote=""), rows=((1, '"a'), (2, 'b"'))),
    CsvCase(
        name="a text for NULL",
        data=b'id,s\n1,-\n-,"-"\n2,a-\n',
        csv=CsvOptions(null_text="-"),
        rows=((1, None), (None, "-"), (2, "a-")),
        spark=(((1, None), (None, None), (2, "a-")), 0),
        because="empty strings in quotes",
    ),
    CsvCase(
        name="too few fields",
        data=b"id,s,t\n1,a,b\nalone\n2,c\n3,d,e\n",
        ddl="id BIGINT, s STRING, t STRING",
        rows=((1, "a", "b"), (3, "d", "e")),
        bad=(MALFORMED, MALFORMED),
    ),
    CsvCase(name="too many fields", data=b"id,s\n1,a\n2,b,c\n3,d,\n", rows=((1, "a"),), bad=(MALFORMED, MALFORMED)),
    CsvCase(
        name="columns of a header in another order",
        data=b"s,id\na,1\nb,2\n",
        rows=((1, "a"), (2, "b")),
        spark=((), 2),
        because="columns by name",
    ),
    CsvCase(
        name="a column more in the header",
        data=b"id,x,s\n1,y,a\n2,,b\n",
        rows=((1, "a"), (2, "b")),
        spark=((), 2),
        because="columns by name",
    ),
    CsvCase(
        name="a column less in the header",
        data=b"id\n1\n2\n",
        rows=((1, None), (2, None)),
        spark=((), 2),
        because="columns by name",
    ),
    CsvCase(name="letter case of names", data=b"ID, S \n1,a\n", rows=((1, "a"),)),
    CsvCase(
        name="blanks around values",
        data=b"id,s\n 1 , a \n2\t,\tb\n",
        rows=((1, " a "), (2, "\tb")),
        spark=((), 2),
        because="blanks around numbers",
    ),
    CsvCase(name="blanks for a number", data=b"id,s\n  ,a\n", bad=(WRONG_TYPE,)),
    CsvCase(
        name="whole numbers",
        data=b"n\n7\n-41\n007\n-0\n9223372036854775807\n",
        ddl="n BIGINT",
        rows=((7,), (-41,), (7,), (0,), (9223372036854775807,)),
    ),
    CsvCase(name="a plus before a whole number", data=b"n\n+7\n", ddl="n BIGINT", rows=((7,),)),
    CsvCase(
        name="no whole numbers",
        data=b"n\n7.0\n1e3\n0x1F\n7a\n--7\n9223372036854775808\n",
        ddl="n BIGINT",
        bad=(WRONG_TYPE,) * 6,
    ),
    CsvCase(
        name="digits of other scripts",
        data="n\n\uff17\n\u0667\n".encode(),
        ddl="n BIGINT",
        bad=(WRONG_TYPE,) * 2,
        spark=(((7,), (7,)), 0),
        because="digits of other scripts",
    ),
    CsvCase(
        name="narrow integers", data=b"n\n127\n128\n-128\n", ddl="n TINYINT", rows=((127,), (-128,)), bad=(WRONG_TYPE,)
    ),
    CsvCase(
        name="fractions",
        data=b"n\n0.5\n-1e-3\n.5\n5.\n+2.5E+3\n3\n1e-400\n",
        ddl="n DOUBLE",
        rows=((0.5,), (-0.001,), (0.5,), (5.0,), (2500.0,), (3.0,), (0.0,)),
    ),
    CsvCase(
        name="NaN and infinity",
        data=b"n\nNaN\nInf\n-Inf\nInfinity\n-Infinity\n",
        ddl="n DOUBLE",
        rows=(("nan",), ("inf",), ("-inf",), ("inf",), ("-inf",)),
    ),
    CsvCase(
        name="other spellings of NaN and infinity",
        data=b"n\nnan\n+Inf\ninf\nINFINITY\n-NaN\n",
        ddl="n DOUBLE",
        rows=(("nan",), ("inf",), ("inf",), ("inf",), ("nan",)),
        spark=((("nan",),), 4),
        because="spellings of NaN and infinity",
    ),
    CsvCase(
        name="a number beyond a double",
        data=b"n\n1e400\n",
        ddl="n DOUBLE",
        bad=(WRONG_TYPE,),
        spark=((("inf",),), 0),
        because="numbers beyond a double",
    ),
    CsvCase(
        name="Java's suffixes of numbers",
        data=b"n\n1.5d\n2f\n0x1p3\n",
        ddl="n DOUBLE",
        bad=(WRONG_TYPE,) * 3,
        spark=(((1.5,), (2.0,), (8.0,)), 0),
        because="Java's spellings of numbers",
    ),
    CsvCase(name="no fractions", data=b"n\n1.5.2\nx\n1 000\n1_000\n", ddl="n DOUBLE", bad=(WRONG_TYPE,) * 4),
    CsvCase(
        name="decimals",
        data=b"n\n12.3\n-0.01\n999.99\n1e1\n",
        ddl="n DECIMAL(5,2)",
        rows=(("12.30",), ("-0.01",), ("999.99",), ("10.00",)),
    ),
    CsvCase(
        name="digits beyond a decimal's places",
        data=b"n\n1.005\n",
        ddl="n DECIMAL(5,2)",
        bad=(WRONG_TYPE,),
        spark=((("1.01",),), 0),
        because="digits beyond a decimal's places",
    ),
    CsvCase(name="a number beyond a decimal", data=b"n\n1000\n", ddl="n DECIMAL(5,2)", bad=(WRONG_TYPE,)),
    CsvCase(
        name="thousands separators",
        data=b"n;s\n1,234.5;a\n",
        ddl="n DECIMAL(8,2), s STRING",
        csv=CsvOptions(delimiter=";"),
        bad=(WRONG_TYPE,),
        spark=((("1234.50", "a"),), 0),
        because="thousands separators",
    ),
    CsvCase(
        name="booleans",
        data=b"b,s\ntrue,a\nFalse,b\nTRUE,c\n",
        ddl="b BOOLEAN, s STRING",
        rows=((True, "a"), (False, "b"), (True, "c")),
    ),
    CsvCase(name="other booleans", data=b"b\ntRuE\n", ddl="b BOOLEAN", rows=((True,),)),
    CsvCase(name="no booleans", data=b"b\n1\nyes\nt\n", ddl="b BOOLEAN", bad=(WRONG_TYPE,) * 3),
    CsvCase(
        name="dates",
        data=b"d,s\n2024-02-29,a\n1969-12-31,b\n0001-01-01,c\n9999-12-31,d\n",
        ddl="d DATE, s STRING",
        rows=(("2024-02-29", "a"), ("1969-12-31", "b"), ("0001-01-01", "c"), ("9999-12-31", "d")),
    ),
    CsvCase(name="days and months of one digit", data=b"d\n2024-5-6\n", ddl="d DATE", rows=(("2024-05-06",),)),
    CsvCase(
        name="short dates",
        data=b"d\n2024-05\n2024\n",
        ddl="d DATE",
        bad=(WRONG_TYPE,) * 2,
        spark=((("2024-05-01",), ("2024-01-01",)), 0),
        because="dates and times without a day",
    ),
    CsvCase(
        name="a time in a column of dates",
        data=b"d\n2024-05-06T10:11:12\n2024-05-06 10:11\n",
        ddl="d DATE",
        bad=(WRONG_TYPE, WRONG_TYPE),
        spark=((("2024-05-06",), ("2024-05-06",)), 0),
        because="times in a column of dates",
    ),
    CsvCase(
        name="no dates",
        data=b"d\n2024-02-30\n2024-a5-06\n06/05/2024\n20240506\nyesterday\n",
        ddl="d DATE",
        bad=(WRONG_TYPE,) * 5,
    ),
    CsvCase(
        name="times",
        data=b"t\n2024-05-06 07:08:09\n2024-05-06T07:08:09.5\n2024-05-06T07:08:09Z\n2024-05-06T07:08:09.123456+02:00\n"
        b"2024-05-06 07:08\n2024-05-06\n1969-12-31T23:59:59.999999\n",
        ddl="t TIMESTAMP",
        rows=(
            ("2024-05-06T07:08:09+00:00",),
            ("2024-05-06T07:08:09.500000+00:00",),
            ("2024-05-06T07:08:09+00:00",),
            ("2024-05-06T05:08:09.123456+00:00",),
            ("2024-05-06T07:08:00+00:00",),
            ("2024-05-06T00:00:00+00:00",),
            ("1969-12-31T23:59:59.999999+00:00",),
        ),
    ),
    CsvCase(
        name="digits beyond microseconds",
        data=b"t\n2024-05-06T07:08:09.123456789Z\n",
        ddl="t TIMESTAMP",
        rows=(("2024-05-06T07:08:09.123456+00:00",),),
    ),
    CsvCase(
        name="zones with two or four digits",
        data=b"t\n2024-05-06T07:08:09+0200\n2024-05-06T07:08:09-03\n",
        ddl="t TIMESTAMP",
        rows=(("2024-05-06T05:08:09+00:00",), ("2024-05-06T10:08:09+00:00",)),
    ),
    CsvCase(
        name="times that end with the hour",
        data=b"t\n2024-05-06T07\n",
        ddl="t TIMESTAMP",
        rows=(("2024-05-06T07:00:00+00:00",),),
    ),
    CsvCase(
        name="the zone UTC",
        data=b"t\n2024-05-06T07:08:09UTC\n",
        ddl="t TIMESTAMP",
        rows=(("2024-05-06T07:08:09+00:00",),),
    ),
    CsvCase(
        name="names of zones",
        data=b"t\n2024-05-06T07:08:09 Europe/Berlin\n",
        ddl="t TIMESTAMP",
        bad=(WRONG_TYPE,),
        spark=((("2024-05-06T05:08:09+00:00",),), 0),
        because="names of zones",
    ),
    CsvCase(
        name="times of one digit",
        data=b"t\n2024-5-6 7:8:9\n",
        ddl="t TIMESTAMP",
        rows=(("2024-05-06T07:08:09+00:00",),),
    ),
    CsvCase(
        name="short times",
        data=b"t\n2024-05\n2024\n",
        ddl="t TIMESTAMP",
        bad=(WRONG_TYPE,) * 2,
        spark=((("2024-05-01T00:00:00+00:00",), ("2024-01-01T00:00:00+00:00",)), 0),
        because="dates and times without a day",
    ),
    CsvCase(
        name="blanks around times",
        data=b"t\n 2024-05-06 07:08:09 \n",
        ddl="t TIMESTAMP",
        rows=(("2024-05-06T07:08:09+00:00",),),
    ),
    CsvCase(
        name="no times",
        data=b"t\n2024-05-06T25:00:00\n2024-05-06T07:61\nnoon\n06/05/2024 07:08\n",
        ddl="t TIMESTAMP",
        bad=(WRONG_TYPE,) * 4,
    ),
    CsvCase(
        name="a wrong value among good ones",
        data=b's,d\n"good",1999-08-01\n"bad",1999-a8-01\n"good",1999-08-02\n',
        ddl="s STRING, d DATE",
        rows=(("good", "1999-08-01"), ("good", "1999-08-02")),
        bad=(WRONG_TYPE,),
    ),
    CsvCase(name="a quote inside a field", data=b'id,s\n1,a"b"c\n2,5" pipe\n', rows=((1, 'a"b"c'), (2, '5" pipe'))),
    CsvCase(
        name="text after a closing quote",
        data=b'id,s\n1,"ab"c\n2,d\n',
        rows=((2, "d"),),
        bad=(MALFORMED,),
        spark=(((1, '"ab"c'), (2, "d")), 0),
        because="text after a closing quote",
    ),
    CsvCase(
        name="a quote that is not doubled",
        data=b'id,s\n1,"say "ah" now"\n2,d\n',
        rows=((2, "d"),),
        bad=(MALFORMED,),
        spark=(((1, '"say "ah" now"'), (2, "d")), 0),
        because="text after a closing quote",
    ),
    CsvCase(
        name="a quote that is never closed",
        data=b'id,s\n1,a\n2,"b\n3,c\n',
        rows=((1, "a"),),
        bad=(MALFORMED,),
        spark=(((1, "a"), (2, "b\n3,c\n")), 0),
        because="a quote that is never closed",
    ),
    CsvCase(
        name="escapes with a backslash",
        data=b'id,s\n1,"say \\"ah\\" now"\n2,a\\b\n',
        rows=((2, "a\\b"),),
        bad=(MALFORMED,),
        spark=(((1, '"say \\"ah\\" now"'), (2, "a\\b")), 0),
        because="text after a closing quote",
    ),
    CsvCase(
        name="Latin-1",
        data=b"id,s\n1,caf\xe9\n2,b\n",
        rows=((2, "b"),),
        bad=(INVALID_UTF8,),
        spark=(((1, "caf�"), (2, "b")), 0),
        because="bytes that are not UTF-8",
    ),
    CsvCase(
        name="bytes that no text has",
        data=b"id,s\n1,\xff\xfe\n2,b\n",
        rows=((2, "b"),),
        bad=(INVALID_UTF8,),
        spark=(((1, "��"), (2, "b")), 0),
        because="bytes that are not UTF-8",
    ),
    CsvCase(
        name="carriage returns as line ends",
        data=b"id,s\r1,a\r2,b\r",
        fails=True,
        spark=(((1, "a"), (2, "b")), 0),
        because="carriage returns alone",
    ),
    CsvCase(
        name="a carriage return in a field",
        data=b'id,s\n1,a\rb\n2,"c\rd"\n',
        rows=((2, "c\rd"),),
        bad=(MALFORMED,),
        spark=(((1, "a\rb"), (2, "c\rd")), 0),
        because="carriage returns alone",
    ),
    CsvCase(name="NUL", data=b"id,s\n1,a\0b\n", rows=((1, "a\x00b"),)),
    CsvCase(name="formulas", data=b"id,s\n1,=1+1\n2,@x\n3,-2+3\n", rows=((1, "=1+1"), (2, "@x"), (3, "-2+3"))),
    CsvCase(name="decimal commas", data=b"id;s\n1;3,14\n", csv=CsvOptions(delimiter=";"), rows=((1, "3,14"),)),
    CsvCase(name="empty", data=b""),
    CsvCase(name="UTF-16", data="id,s\n1,a\n".encode("utf-16"), rows=((1, "a"),), spark=((), 2), because="UTF-16"),
)
