"""The spellings of numbers and times that both JSON and CSV read, each as a check of one text."""

import math
import re
import struct
from binascii import a2b_base64
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from decimal import Decimal

_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ](?:[01][0-9]|2[0-3])(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?)?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?)?",
)
_LOOSE_MOMENT = re.compile(
    r"\s*(?P<day>[0-9]{4}-[0-9]{1,2}-[0-9]{1,2})"
    r"(?:[T ](?P<time>[0-9]{1,2}(?::[0-9]{1,2}(?::[0-9]{1,2}(?:\.(?P<fraction>[0-9]*))?)?)?)"
    r"\s*(?:(?P<utc>Z|UTC|GMT|UT)|(?P<sign>[+-])(?P<hours>[0-9]{1,2})(?::?(?P<minutes>[0-9]{2}))?)?)?\s*",
    re.ASCII,
)
_FRACTION_DIGITS_MAX = 9
_DAY = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DIGITS_CUT_MAX = 38  # of a decimal: zeros beyond the places of its type


def is_moment(text: str) -> bool:
    """Return True if the text is a time, as the table in jsonl_lines.py defines it."""
    return _is_day(_MOMENT.fullmatch(text))


def is_date(text: str) -> bool:
    """Return True if the text is a date."""
    return _is_day(_DAY.fullmatch(text))


def respelled_moment(text: str) -> str | None:
    """Return a time that Spark reads too, such as "2024-5-6 7:8 UTC", in a spelling of `is_moment`, else None."""
    match = _LOOSE_MOMENT.fullmatch(text)
    if match is None:
        return None
    spelling = _two_digits(match["day"], "-")
    if match["time"]:
        spelling += "T" + _two_digits(match["time"].partition(".")[0], ":")
    if match["fraction"]:
        spelling += "." + match["fraction"][:_FRACTION_DIGITS_MAX]
    if match["utc"]:
        spelling += "Z"
    elif match["sign"]:
        spelling += match["sign"] + _two_digits(match["hours"], ":") + (match["minutes"] or "00")
    return spelling if is_moment(spelling) else None


def respelled_date(text: str) -> str | None:
    """Return a day that Spark reads too, such as "2024-5-6", in the spelling of `is_date`; None if it is none."""
    spelling = _two_digits(text.strip(), "-")
    return spelling if is_date(spelling) else None


def is_base64(text: str) -> bool:
    """Return True if `from_base64` accepts the text."""
    try:
        from_base64(text)
    except ValueError:
        return False
    return True


def from_base64(text: str) -> bytes:
    """Return the bytes that a text is the base64 of: standard alphabet, padded, one line. Raises `ValueError`."""
    return a2b_base64(text, strict_mode=True)


def fits_float(number: float, bits: int) -> bool:
    """Return True if a parsed number is finite, also when stored in ``bits`` bits."""
    if not math.isfinite(number):
        return False
    try:
        struct.pack("<f" if bits == 32 else "<d", number)
    except OverflowError:
        return False
    return True


def decimal_check(precision: int, scale: int) -> Callable[[str], bool]:
    """Return the check for a number, given as text, that a decimal type holds exactly."""

    def fits(text: str) -> bool:
        if _NUMBER.fullmatch(text) is None:
            return False
        number = Decimal(text)
        _, found, exponent_written = number.as_tuple()
        if -int(exponent_written) - scale > _DIGITS_CUT_MAX:
            return False
        if number == 0:
            return True
        last = next(index for index, digit in enumerate(reversed(found)) if digit)  # trailing zeros need no digit
        exponent = int(exponent_written) + last
        return exponent >= -scale and len(found) - last + exponent <= precision - scale

    return fits


def _two_digits(text: str, between: str) -> str:
    return between.join(part.rjust(2, "0") for part in text.split(between))


def _is_day(match: re.Match[str] | None) -> bool:
    if match is None:
        return False
    year, month, day = (int(part) for part in match.groups())
    with suppress(ValueError):
        # Arrow has a year 0, which is a leap year like 400; Python's calendar begins with year 1
        date(year or 400, month, day)
        return True
    return False
