"""The meaning of one JSON line: the rule that blocks and single lines share, and the reasons for refusing a line.

A line is the text between two newlines, without a carriage return before the newline.

===================  ==============================================================================================
line or value        result
===================  ==============================================================================================
only blanks          skipped: no row, not quarantined
not UTF-8            "invalid UTF-8"
not one JSON object  "malformed": no JSON, null, a list, two objects, half an object, a lone surrogate; an exponent
                     beyond 308 in a number that no column reads; a declared field given twice
field missing, null  null
field undeclared     ignored, as long as the line is JSON
integers             a JSON number without fraction and exponent, within the type's range
float, double        any JSON number within the type's range, and NaN, Infinity, Inf and these with a minus
decimal(p, s)        a number, or one in a string, that p digits, s of them after the point, hold exactly
boolean              true or false
string               a JSON string; numbers are not converted to text
timestamp            "2024-05-06T07:08:09.123456+02:00": T or a blank, at most nine digits of fraction, of which six are
                     kept; without a zone it is UTC; the time may end after day, hour or minute. timestamp_ntz takes the
                     same, as UTC
date                 "2024-05-06"
array, struct        an array, an object, by these same rules
any other value      "wrong type"
===================  ==============================================================================================

Arrow's JSON reader decides and makes every value (see jsonl.py). The classifier here explains why a line was refused
and finds refused lines among many quickly. It must never refuse a line that Arrow accepts under the guards; when
unsure, it accepts and leaves the decision to Arrow.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from penstock.events.objects import QuarantineReason

BLANKS = b" \t\r\n"  # JSON's whitespace; other control characters are not blanks
Check = Callable[[Any], bool]
# Python's parser stops at one of these, Arrow's does not: Arrow decides
_ARROW_SPELLINGS = re.compile(r"-?(?:Inf|NaN)")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ](?:[01][0-9]|2[0-3])(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?)?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?)?",
)
_DIGITS_CUT_MAX = 38  # of a decimal: zeros beyond the places of its type
_DAY = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")


class Classifier:
    """Explain why a JSON line is rejected under a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = _Fields({field.name: _check(field.type) for field in schema})

    def reason(self, line: bytes) -> tuple[QuarantineReason, str] | None:
        """Return the reason and a short explanation for a person; None for a line that seems good.

        ``line`` is valid UTF-8 and not blank.
        """
        try:
            value = _DECODER.decode(line.decode())
        except json.JSONDecodeError as error:
            if _ARROW_SPELLINGS.match(error.doc, error.pos):
                return None
            return QuarantineReason.MALFORMED, f"{error.msg} at character {error.pos}"
        except RecursionError:
            return None  # nested deeper than Python's limit; Arrow accepts it
        if not isinstance(value, dict):
            return QuarantineReason.MALFORMED, "not a JSON object"
        try:
            wrong = self._fields.wrong(value)
        except _Twice as twice:
            return QuarantineReason.MALFORMED, f"field {twice} is given twice"
        return (QuarantineReason.WRONG_TYPE, f"field {wrong}") if wrong is not None else None


def is_moment(text: str) -> bool:
    """Return True if the text is a time, as the table above defines it."""
    return _is_day(_MOMENT.fullmatch(text))


def is_date(text: str) -> bool:
    """Return True if the text is a date."""
    return _is_day(_DAY.fullmatch(text))


def fits_float(number: float, bits: int) -> bool:
    """Return True if a parsed number is finite, also when stored in ``bits`` bits."""
    if not math.isfinite(number):
        return False
    try:
        struct.pack("<f" if bits == 32 else "<d", number)
    except OverflowError:
        return False
    return True


def decimal_check(precision: int, scale: int) -> Check:
    """Return the check for a number, given as text, that a decimal type holds exactly."""

    def fits(value: object) -> bool:
        if type(value) not in (_Integer, _Float, str):
            return False
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            return False
        if not number.is_finite():
            return True
        _, found, exponent_written = number.as_tuple()
        if -int(exponent_written) - scale > _DIGITS_CUT_MAX:
            return False
        if number == 0:
            return True
        last = next(index for index, digit in enumerate(reversed(found)) if digit)  # trailing zeros need no digit
        exponent = int(exponent_written) + last
        return exponent >= -scale and len(found) - last + exponent <= precision - scale

    return fits


class _Integer(str):
    """A JSON number without fraction and exponent, as written."""

    __slots__ = ()


class _Float(str):
    """Any other JSON number, as written."""

    __slots__ = ()


class _Constant(str):
    """NaN, Infinity or -Infinity."""

    __slots__ = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    repeated = _Repeated(value)
    names = [name for name, _ in pairs]
    repeated.twice = frozenset(name for name in value if names.count(name) > 1)
    return repeated


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_Integer, parse_float=_Float, parse_constant=_Constant)


class _Repeated(dict[str, Any]):
    """A JSON object that has a name more than once."""

    __slots__ = ("twice",)
    twice: frozenset[str]


class _Twice(Exception):
    """A declared field is given twice."""


class _Fields:
    """The declared fields of one object, with the checks of their values."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks

    def wrong(self, value: Mapping[str, Any]) -> str | None:
        """Return the first field whose value does not fit; None if all fit. Raises `_Twice`."""
        if isinstance(value, _Repeated):
            for name in self._checks:
                if name in value.twice:
                    raise _Twice(name)
        for name, check in self._checks.items():
            found = value.get(name)
            if found is not None and not check(found):
                return name
        return None

    def fit(self, value: object) -> bool:
        return isinstance(value, dict) and self.wrong(value) is None


def _check(kind: pa.DataType) -> Check:
    """Return the check for a non-null value."""
    if pa.types.is_integer(kind):
        return _integer_check(kind.bit_width)
    if pa.types.is_floating(kind):
        return _float_check(kind.bit_width)
    if pa.types.is_decimal(kind):
        return decimal_check(kind.precision, kind.scale)
    if pa.types.is_boolean(kind):
        return lambda value: value is True or value is False
    if pa.types.is_timestamp(kind):
        return lambda value: type(value) is str and is_moment(value)
    if pa.types.is_date(kind):
        return lambda value: type(value) is str and is_date(value)
    if pa.types.is_list(kind):
        return _list_check(_check(kind.value_type))
    if pa.types.is_struct(kind):
        return _Fields({field.name: _check(field.type) for field in kind}).fit
    return lambda value: type(value) is str


def _integer_check(bits: int) -> Check:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return lambda value: type(value) is _Integer and len(value) <= 20 and least <= int(value) <= most


def _float_check(bits: int) -> Check:
    def fits(value: object) -> bool:
        if type(value) is _Constant:
            return True
        return type(value) in (_Integer, _Float) and fits_float(float(value), bits)  # type: ignore[arg-type] # both are text

    return fits


def _is_day(match: re.Match[str] | None) -> bool:
    if match is None:
        return False
    year, month, day = (int(part) for part in match.groups())
    with suppress(ValueError):
        # Arrow has a year 0, which is a leap year like 400; Python's calendar begins with year 1
        date(year or 400, month, day)
        return True
    return False


def _list_check(check: Check) -> Check:
    return lambda value: type(value) is list and all(item is None or check(item) for item in value)
