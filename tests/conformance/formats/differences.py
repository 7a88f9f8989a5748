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
        ours="NaN, Infinity and -Infinity; in JSON lines also Inf, -Inf and -NaN",
        spark="NaN, Infinity and -Infinity, +Infinity, +INF and -INF",
        reason="no standard; these three are common to Python, JavaScript's JSON5 and Java",
    ),
    "numbers beyond a double": Difference(
        ours="bad line, also if no column reads the field", spark="infinity", reason="the number is not infinite"
    ),
    "half a surrogate pair": Difference(
        ours="bad line, also if no column reads the field", spark="a question mark", reason=_LOSS
    ),
    "bytes that are not UTF-8": Difference(
        ours="bad line, with its bytes; as a document, a failed file",
        spark="replacement characters in CSV; in JSON, some are read as characters that they do not encode",
        reason=_LOSS,
    ),
    "UTF-16": Difference(
        ours="in JSON documents with a byte order mark", spark="also in lines, also without a mark", reason="a guess"
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
}
