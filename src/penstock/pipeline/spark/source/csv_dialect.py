"""Find out the dialect of CSV objects from the beginning of one: delimiter, comments, lines before the data, header.

What a person gave stays as it is. A delimiter is one that cuts most records into the same number of fields, more than
one; the comma wins a draw. If there is none, all is one column. Records before the first of that length are skipped,
for example a title; so are titles that a spreadsheet padded to that length (`_header_below`). Blank lines and comments
before it are not counted: other objects may have fewer. R writes row names in a column that the header does not name.
"""

import csv as csv_module
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.messaging.wording import counted
from penstock.pipeline.spark.source.csv_escapes import BACKSLASH, detected_escape, has_escape
from penstock.pipeline.spark.source.csv_lines import is_number
from penstock.pipeline.spark.source.options import CsvOptions

DELIMITERS = (",", ";", "\t", "|")
_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_RECORDS_MAX = 1_000
_SKIPPED_MAX = 20
_SHARE_MIN = 0.75  # of the records that have the same number of fields
_FILLED_MIN = 2  # values that make a column one with data
_COMMENT = "#"
_DIGIT = re.compile("[0-9]")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]+,[0-9]+\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDialect:
    """A dialect, and a sentence for each thing about it that may surprise."""

    csv: CsvOptions
    notes: tuple[str, ...] = ()
    is_clear: bool = False  # there are several records, and most have the same number of fields, more than one


def detect(sample: str, given: CsvOptions, *, delimiter_given: bool) -> FoundDialect:
    """Return the dialect of an object that begins with the sample, as far as it is not given."""
    csv, notes = given, []
    text = sample.removeprefix("\ufeff")
    if not csv.comment and _begins_with_comments(text):
        csv = replace(csv, comment=_COMMENT)
        notes.append(f"lines that begin with {_COMMENT} are comments")
    choices = [csv.delimiter] if delimiter_given else DELIMITERS
    if not csv.escape and detected_escape(text, csv, choices):
        csv = replace(csv, escape=BACKSLASH)
        notes.append(f"{BACKSLASH} escapes quotes")
    shapes = [
        (delimiter, _shape(_records(text, dialect), dialect))
        for delimiter in choices
        for dialect in [replace(csv, delimiter=delimiter)]
    ]
    delimiter, shape = max(shapes, key=lambda each: each[1].rank)
    if shape.share < _SHARE_MIN and shape.begins_narrow:  # one column of texts with such characters in them
        delimiter, shape = next((each for each in shapes if each[1].is_one_column), (delimiter, shape))
    if shape.fields > 1 or shape.is_one_column:
        csv = replace(csv, delimiter=delimiter)
    if delimiter != given.delimiter and csv.delimiter == delimiter:
        notes.append(f"the delimiter is {_NAMES[delimiter]}")
    if shape.share < _SHARE_MIN or not (shape.fields > 1 or shape.is_one_column):
        return FoundDialect(csv=csv, notes=tuple(notes))
    is_clear = shape.fields > 1 and shape.records > 1
    skipped = shape.first_line
    reason = f"since the others have {shape.fields} fields"
    if csv.header and not shape.is_short and (below := _header_below(_records(text, csv), shape.fields)):
        skipped, reason = below, "since the header is below them" if below > 1 else "since the header is below it"
    if not csv.skip_lines and 0 < skipped <= _SKIPPED_MAX:
        csv = replace(csv, skip_lines=skipped)
        lines = "line is" if skipped == 1 else f"{skipped} lines are"
        notes.append(f"the first {lines} skipped, {reason}")
    if csv.header and shape.unnamed_first:
        csv = replace(csv, unnamed_first=True)
        notes.append("the header does not name the first column, which is _c0")
    elif csv.header and shape.is_data:
        csv = replace(csv, header=False)
        notes.append("there is no header: the first line has only numbers")
    return FoundDialect(csv=csv, notes=tuple(notes), is_clear=is_clear)


def difference(one: FoundDialect, other: FoundDialect) -> tuple[str, str] | None:
    """Return the first thing about which the dialects of two objects differ, as a phrase for each; None if none.

    An object whose dialect is not clear, such as one with a single line, differs from none.
    """
    if not (one.is_clear and other.is_clear):
        return None
    for phrase in _PHRASES:
        phrases = phrase(one.csv), phrase(other.csv)
        if phrases[0] != phrases[1]:
            return phrases
    return None


_PHRASES: Sequence[Callable[[CsvOptions], str]] = (
    lambda csv: f"is separated by {_NAMES.get(csv.delimiter, repr(csv.delimiter))}",
    lambda csv: "has a header" if csv.header else "has no header",
    lambda csv: f"has {counted(csv.skip_lines, 'line')} before the data",
    lambda csv: (
        "has a header without a name for the first column" if csv.unnamed_first else "has a name for each column"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordShape:
    """The records of a sample under one delimiter."""

    records: int
    fields: int  # of most records
    share: float  # of the records that have so many
    first_line: int  # of the header, or of the first record without one; 0 if only blank lines and comments precede it
    begins_narrow: bool  # the first record has one field
    is_short: bool  # the header has one field less than the records
    unnamed_first: bool
    is_data: bool  # the first record consists of numbers
    quotes: int  # fields with a quote in them, which a wrong delimiter leaves there
    delimiters: int  # fields with another delimiter in them, decimal commas aside

    @property
    def is_one_column(self) -> bool:
        return self.fields == 1 and self.share == 1.0

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, int, int, float, int]:
        regular = self.share >= _SHARE_MIN
        leads = not self.unnamed_first, not self.first_line
        return self.fields > 1, regular, *leads, -self.quotes, -self.delimiters, self.share, self.fields


_NO_RECORDS = _RecordShape(
    records=0,
    fields=0,
    share=0.0,
    first_line=0,
    begins_narrow=False,
    is_short=False,
    unnamed_first=False,
    is_data=False,
    quotes=0,
    delimiters=0,
)


def _shape(records: Sequence["_Record"], csv: CsvOptions) -> _RecordShape:
    if not records:
        return _NO_RECORDS
    fields, found = Counter(len(record.fields) for record in records).most_common(1)[0]
    first = next(number for number, record in enumerate(records) if len(record.fields) == fields)
    # then it is the last field that has no name
    trails = all(not record.fields[-1] for record in records if len(record.fields) == fields)
    header = records[first - 1].fields if first else ()
    is_short = first > 0 and len(header) == fields - 1 > 0 and not any(map(is_number, header))
    # a header of one name looks like a title; row names come with a number
    is_short = is_short and (fields > 2 or any(map(_is_number, records[first].fields)))
    first -= is_short
    return _RecordShape(
        records=len(records),
        fields=fields,
        share=(found + is_short) / (len(records) - first),
        first_line=records[first].line if first else 0,
        begins_narrow=len(records[0].fields) == 1,
        is_short=is_short,
        unnamed_first=is_short and not trails,
        is_data=not is_short and all(_is_number(text) for text in records[first].fields),
        quotes=sum(csv.quote in text for record in records for text in record.fields) if csv.quote else 0,
        delimiters=sum(_holds_delimiter(text, csv) for record in records for text in record.fields),
    )


def _header_below(records: Sequence["_Record"], fields: int) -> int:
    """Return the line of a header below titles that are padded with delimiters; 0 if it is in doubt.

    The first record of the usual length must have a single text, and none below it more than half of the fields, until
    one that names all fields, each differently. Data may begin like that too. So there must be a column whose values
    below have digits and whose name has none.
    """
    regular = [record for record in records if len(record.fields) == fields]
    filled = [sum(bool(text.strip()) for text in record.fields) for record in regular]
    place = next((number for number, count in enumerate(filled) if number and 2 * count > fields), 0)
    if fields < 2 or not place or filled[0] != 1 or (fields == 2 and not regular[0].fields[0].strip()):
        return 0  # R's header of row names and one column looks like a title in the second
    names = [text.strip() for text in regular[place].fields]
    if not all(names) or len({name.lower() for name in names}) < fields or any(map(_is_number, names)):
        return 0
    below = [
        [text for text in column if text.strip()]
        for column in zip(*(r.fields for r in regular[place + 1 :]), strict=True)
    ]
    if sum(len(texts) >= _FILLED_MIN for texts in below) < 2:
        return 0
    if not any(
        len(texts) >= _FILLED_MIN and all(map(_DIGIT.search, texts)) and not _DIGIT.search(name)
        for name, texts in zip(names, below, strict=True)
    ):
        return 0
    return regular[place].line


def _is_number(text: str) -> bool:
    return is_number(text) or _DECIMAL_COMMA.fullmatch(text) is not None


def _holds_delimiter(text: str, csv: CsvOptions) -> bool:
    others = (delimiter for delimiter in DELIMITERS if delimiter != csv.delimiter)
    return any(other in text for other in others) and not _DECIMAL_COMMA.fullmatch(text)


class _Record(NamedTuple):
    line: int  # its first one, from 0
    fields: Sequence[str]


def _records(text: str, csv: CsvOptions) -> list[_Record]:
    """Return the first records after the skipped lines, without blank lines and comments."""
    lines = io.StringIO(text, newline="").readlines()
    if csv.comment:
        lines = ["\n" if line.startswith(csv.comment) else line for line in lines]
    reader = csv_module.reader(
        lines[csv.skip_lines :],
        delimiter=csv.delimiter,
        quotechar=csv.quote or None,
        escapechar=csv.escape if has_escape(csv) else None,
        quoting=csv_module.QUOTE_MINIMAL if csv.quote else csv_module.QUOTE_NONE,
    )
    records: list[_Record] = []
    line = 0
    with suppress(csv_module.Error):  # a field longer than the module's limit
        for fields in reader:
            if any(fields):
                records.append(_Record(line=line, fields=fields))
            line = reader.line_num
            if len(records) > _RECORDS_MAX:
                break
    return records


def _begins_with_comments(text: str) -> bool:
    """Return True if the text begins with lines that begin with #, of which the last is no header of the next line."""
    lines = [line for line in text.splitlines()[: _RECORDS_MAX + 1] if line.strip()]
    count = next((number for number, line in enumerate(lines) if not line.startswith(_COMMENT)), len(lines))
    if not 0 < count < len(lines):
        return False
    header, row = lines[count - 1], lines[count]
    return not any(header.count(delimiter) == row.count(delimiter) > 0 for delimiter in DELIMITERS)
