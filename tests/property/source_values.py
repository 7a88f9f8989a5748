"""Plain readings of days and times, for the references of all formats."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any


class Malformed(Exception):
    pass


class WrongType(Exception):
    pass


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongType
    return value


MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?(Z|([+-])(\d\d):?(\d\d)?)?)?", re.ASCII
)


def moment(value: Any) -> datetime:
    match = MOMENT.fullmatch(text(value))
    if match is None or (match[10] and match[0].endswith(":")):
        raise WrongType
    year, month, day, hour, minute, second = (int(part or 0) for part in match.group(1, 2, 3, 4, 5, 6))
    micros = int((match[7] or "0").ljust(6, "0")[:6])
    hours, minutes = int(match[10] or 0), int(match[11] or 0)
    if hours > 23 or minutes > 59:
        raise WrongType
    shift = timedelta(hours=hours, minutes=minutes) * (-1 if match[9] == "-" else 1)
    try:
        return datetime(year, month, day, hour, minute, second, micros, tzinfo=UTC) - shift
    except ValueError:
        raise WrongType from None


def day(value: Any) -> date:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text(value), re.ASCII):
        raise WrongType
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise WrongType from None
