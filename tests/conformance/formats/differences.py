"""The differences from spark.read that the suites of JSON and CSV found, each with its reason.

The keys are used by json_cases.py and csv_cases.py; docs/use/formats.md has the same list for users.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference: our result, Spark's result, and the reason for ours."""

    ours: str
    spark: str
    reason: str


_LOSS = "Spark loses data without a trace"

DIFFERENCES: Mapping[str, Difference] = {
    "single quotes": Difference(
        ours="bad line",
        spark="a string",
        reason="not JSON: readers of the same file in other languages refuse it",
    ),
    "text after a value": Difference(
        ours="bad line; as a document, a failed file", spark="the row, and the rest is ignored", reason=_LOSS
    ),
    "several values in a row": Difference(
        ours="bad line; as a document, a row for each", spark="the first one, and the others are ignored", reason=_LOSS
    ),
    "spellings of NaN and infinity": Difference(
        ours="those of Spark, and also Inf, INF, -Inf and -NaN",
        spark="NaN, Infinity, -Infinity, +Infinity, +INF and -INF",
        reason="no standard; Arrow's reader, which reads most lines, knows more",
    ),
    "numbers beyond a double": Difference(ours="bad line", spark="infinity", reason="the number is not infinite"),
    "bytes that are not UTF-8": Difference(
        ours="bad line, with its bytes; as a document, a failed file",
        spark="replacement characters in CSV; in JSON, some are read as characters that they do not encode",
        reason=_LOSS,
    ),
    "UTF-16 without a byte order mark": Difference(
        ours="bad line; as a document, a failed file", spark="read in JSON", reason="the encoding is a guess"
    ),
    "UTF-16": Difference(
        ours="read, with a byte order mark", spark="in CSV, corrupt records", reason="Windows writes it"
    ),
    "a byte order mark and no more": Difference(
        ours="an empty file", spark="a corrupt record, as a document", reason="nothing is lost"
    ),
    "a field given twice": Difference(
        ours="bad line, if a column reads the field", spark="the last value", reason=_LOSS
    ),
    "arrays in JSON lines": Difference(
        ours="bad line; the format json reads it", spark="a row for each object", reason="one line is one row"
    ),
    "empty strings in quotes": Difference(
        ours='"" is an empty string, and a text for NULL in quotes is itself, in columns of strings',
        spark="NULL",
        reason="quotes are how writers tell the two apart",
    ),
    "CRLF in quotes": Difference(ours="kept", spark="a newline", reason="a value is stored as it is"),
    "lines of blanks": Difference(
        ours="skipped", spark="with multiLine a corrupt record, else skipped", reason="they hold no record"
    ),
    "columns by name": Difference(
        ours="a header names the columns: any order, missing ones are NULL, unknown ones ignored",
        spark="by place, and a record with another number of fields is corrupt",
        reason="files of one source differ in the order of columns",
    ),
    "blanks around numbers": Difference(
        ours="ignored around numbers and dates", spark="a corrupt record", reason="files aligned by hand are common"
    ),
    "digits of other scripts": Difference(ours="bad line", spark="read", reason="other readers refuse them"),
    "Java's spellings of numbers": Difference(
        ours="bad line", spark="1.5d and 2f are numbers, 0x1p3 is 8", reason="more likely names than numbers"
    ),
    "digits beyond a decimal's places": Difference(ours="bad line", spark="rounded", reason=_LOSS),
    "thousands separators": Difference(
        ours="bad line", spark="commas in decimals are dropped", reason="1,5 would become 15"
    ),
    "dates and times without a day": Difference(
        ours="bad line",
        spark="2024 and 2024-05 are the first day, a time alone is one of today",
        reason="a number such as 2024 is not a day, and today is not in the file",
    ),
    "times in a column of dates": Difference(ours="bad line", spark="the date", reason=_LOSS),
    "names of zones": Difference(
        ours="Z, UTC and offsets",
        spark="also names such as Europe/Berlin",
        reason="their rules change with each release",
    ),
    "text after a closing quote": Difference(
        ours="bad line, also if a backslash precedes the quote",
        spark="the field with its quotes; without escape='\"', a backslash escapes a quote",
        reason="where the field ends is a guess",
    ),
    "a quote that is never closed": Difference(
        ours="one bad record, to the end of the file", spark="a row with all of it as text", reason="it is not a value"
    ),
    "carriage returns alone": Difference(
        ours="no line end; in a field without quotes a bad line", spark="a line end, or text", reason="see RFC 4180"
    ),
}
