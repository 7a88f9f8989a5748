"""The meaning of one CSV line: the rule that blocks and single lines share, and the reasons for refusing a line.

A line is the text between two newlines, without a carriage return before the newline. A record is one line;
csv_records.py cuts out records of several lines as bad ones before they reach this module.

===================  ==============================================================================================
line or value        result
===================  ==============================================================================================
only blanks          skipped: no row, not quarantined (a delimiter is not a blank)
not UTF-8            "invalid UTF-8"
fields               separated by delimiters; one that begins with the quote ends at the next single quote, and two
                     quotes inside it are one. In a field that does not begin with it the quote is a character
badly quoted         "malformed": no closing quote on the line, or text after it; a carriage return in an unquoted
                     field (a file with such line ends is one line and is not read)
another number of    "malformed". The header sets the number; without a header, the schema
fields
empty, or null text  NULL. A quoted one is NULL only in columns other than strings: there "" is an empty string
integers             digits, optionally with a sign; hexadecimal ones are refused
float, double        a decimal number within the type's range; NaN, Inf and Infinity in any case
decimal(p, s)        a number that p digits, s of them after the point, hold exactly
boolean              true or false, in any case
string               the field as it is, including blanks and text that a spreadsheet would run as a formula
timestamp            as in JSON lines (jsonl_lines.py)
date                 "2024-05-06", "2024-5-6"
binary               the bytes of the field
any other value      "wrong type"
===================  ==============================================================================================

Blanks around numbers and dates are ignored. Arrow's CSV reader makes every value (see csv.py). The classifier here
explains why a line was refused and finds refused lines among many quickly. It must never refuse a line that Arrow
accepts under the guards; when unsure, it accepts and leaves the decision to Arrow.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from penstock.events.objects import QuarantineReason
from penstock.messaging.wording import counted, worded
from penstock.pipeline.spark.source.blocks import Refused
from penstock.pipeline.spark.source.explain import Refusal, field_step, not_of_type
from penstock.pipeline.spark.source.options import CsvOptions
from penstock.pipeline.spark.source.spellings import (
    decimal_check,
    fits_float,
    is_date,
    is_moment,
    respelled_date,
    respelled_moment,
)

TRUE_TEXTS, FALSE_TEXTS = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_BLANKS = " \t"
_INTEGER = re.compile(r"-?0*([0-9]*)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[+-]?(?:inf|nan)", re.IGNORECASE)  # with any suffix: Arrow decides


class Misquoted(ValueError):
    """A line that cannot be split into fields; the text gives the reason."""


class Field(NamedTuple):
    """One field, without its quotes."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Maps columns to fields of a line; the place is None for a column that the object lacks."""

    fields: int
    indexes: tuple[int | None, ...]  # one per column of the schema


def is_blank(line: bytes, csv: CsvOptions) -> bool:
    """Return True if the line is not a row: blank, or a comment; ``line`` comes without its newline."""
    if csv.comment and line.startswith(csv.comment.encode()):
        return True
    return not line.removesuffix(b"\r").strip(blanks(csv))


def blanks(csv: CsvOptions) -> bytes:
    """Return the bytes that count as blanks."""
    return _BLANKS.replace(csv.delimiter, "").encode()


def split(line: str, csv: CsvOptions) -> list[Field]:
    """Split a line without its ending into fields. Raises `Misquoted`."""
    fields: list[Field] = []
    at = 0
    while True:
        if csv.quote and line.startswith(csv.quote, at):
            end = _closing(line, at + 1, csv.quote)
            fields.append(Field(line[at + 1 : end].replace(csv.quote * 2, csv.quote), True))
            at = end + 1
            if at < len(line) and line[at] != csv.delimiter:
                raise Misquoted(f"characters behind a closing quote at character {at}")
        else:
            end = line.find(csv.delimiter, at)
            fields.append(Field(line[at : end if end >= 0 else len(line)], False))
            if "\r" in fields[-1].text:
                raise Misquoted("a carriage return without a newline")
            at = end if end >= 0 else len(line)
        if at >= len(line):
            return fields
        at += 1


class _Column(NamedTuple):
    """A declared column with its place, the check of its fields, and the spelling for Arrow of those that fail it."""

    field: pa.Field
    place: int
    check: Callable[[str], bool]
    respelling: Callable[[str], str]


class CsvClassifier:
    """Explain why a CSV line is rejected under a schema."""

    def __init__(self, schema: pa.Schema, csv: CsvOptions, layout: Layout) -> None:
        self._csv = csv
        self._fields = layout.fields
        self._nulls = {in_strings: null_texts(csv, in_strings=in_strings) for in_strings in (True, False)}
        self._columns = [
            _Column(field, index, _check(field.type), _respelling(field.type))
            for field, index in zip(schema, layout.indexes, strict=True)
            if index is not None
        ]

    def reason(self, line: bytes) -> Refusal | None:
        """Return the reason and a short explanation for a person; None for a line that seems good.

        ``line`` is valid UTF-8 and not blank.
        """
        try:
            self.mended(line)
        except Refused as refused:
            return refused.reason, refused.detail
        return None

    def mended(self, line: bytes) -> bytes:
        """Return a line that seems good in the spelling that Arrow reads: the same object if that is its own.

        ``line`` is valid UTF-8 and not blank. Raises `Refused`.
        """
        try:
            found = split(line.decode().removesuffix("\r"), self._csv)
        except Misquoted as misquoted:
            raise Refused(QuarantineReason.MALFORMED, str(misquoted)) from None
        if len(found) != self._fields:
            raise Refused(
                QuarantineReason.MALFORMED,
                f"{counted(len(found), 'field')} where {worded(self._fields, '{} is', '{} are')} expected",
            )
        edited = {}
        for column in self._columns:
            if not self._is_read(column, found):
                edited[column.place] = found[column.place]._replace(text=_respelled(column, found[column.place].text))
        if not edited:
            return line
        fields = (edited.get(index, field) for index, field in enumerate(found))
        return self._csv.delimiter.join(map(self._written, fields)).encode()

    def _is_read(self, column: "_Column", found: Sequence[Field]) -> bool:
        """Return True if Arrow reads the field as it is."""
        text, quoted = found[column.place]
        is_string = pa.types.is_string(column.field.type)
        return (text in self._nulls[is_string] and not (quoted and is_string)) or column.check(text)

    def _written(self, field: Field) -> str:
        quote = self._csv.quote
        return f"{quote}{field.text.replace(quote, quote * 2)}{quote}" if field.quoted else field.text


def _respelled(column: _Column, text: str) -> str:
    """Return the field as Arrow reads it. Raises `Refused` if it is not of the column's type."""
    spelling = column.respelling(text)
    if not column.check(spelling):
        misfit = not_of_type(f'"{text}"', column.field.type).within(field_step(column.field.name))
        raise Refused(*misfit.refusal)
    return spelling


def is_number(text: str) -> bool:
    """Return True if the text of a field is a number, blanks around it aside."""
    return _NUMBER.fullmatch(text.strip(_BLANKS)) is not None


def is_special(text: str) -> bool:
    """Return True if the text is NaN or infinity, in any spelling that a column of doubles reads."""
    return text.removeprefix("-" if text.startswith("-") else "+").lower() in ("nan", "inf", "infinity")


def null_texts(csv: CsvOptions, *, in_strings: bool = True) -> list[str]:
    """Return the texts that mean NULL, for columns of strings or for all others."""
    texts = ["", csv.null_text] if csv.null_text else [""]
    return texts if in_strings else [*texts, *csv.null_marks]


def _closing(line: str, at: int, quote: str) -> int:
    """Return the position of the quote that closes the field."""
    while (at := line.find(quote, at)) >= 0:
        if not line.startswith(quote, at + 1):
            return at
        at += 2
    raise Misquoted("a quote that is not closed on its line")


def _check(kind: pa.DataType) -> Callable[[str], bool]:
    """Return the check for a non-null field."""
    if pa.types.is_integer(kind):
        return _integer_check(kind.bit_width)
    if pa.types.is_floating(kind):
        bits = kind.bit_width
        return lambda text: _is_float(text.strip(_BLANKS), bits)
    if pa.types.is_decimal(kind):
        fits = decimal_check(kind.precision, kind.scale)
        return lambda text: fits(text.strip(_BLANKS))
    if pa.types.is_boolean(kind):
        return lambda text: text in TRUE_TEXTS or text in FALSE_TEXTS
    if pa.types.is_timestamp(kind):
        return is_moment
    if pa.types.is_date(kind):
        return lambda text: is_date(text.strip(_BLANKS))
    return lambda _: True


def _respelling(kind: pa.DataType) -> Callable[[str], str]:
    """Return the function that returns a field in the spelling that Arrow reads, or one that `_check` refuses too."""
    if pa.types.is_integer(kind):
        return lambda text: re.sub(r"^([ \t]*)\+(?=[0-9])", r"\1", text)
    if pa.types.is_boolean(kind):
        return str.lower
    if pa.types.is_timestamp(kind):
        return lambda text: respelled_moment(text) or text
    if pa.types.is_date(kind):
        return lambda text: respelled_date(text) or text
    return lambda text: text


def _integer_check(bits: int) -> Callable[[str], bool]:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def fits(text: str) -> bool:
        match = _INTEGER.fullmatch(text.strip(_BLANKS))
        if match is None or not match[0].removeprefix("-") or len(match[1]) > 20:
            return False
        return least <= int(match[1] or 0) * (-1 if match[0].startswith("-") else 1) <= most

    return fits


def _is_float(text: str, bits: int) -> bool:
    if _NO_NUMBER.match(text):
        return True
    return _NUMBER.fullmatch(text) is not None and fits_float(float(text), bits)
