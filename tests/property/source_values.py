"""Plain parsers of days and times, for the references of all formats."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from penstock.pipeline.spark.source.blocks import Decoder


class Malformed(Exception):
    pass


class WrongType(Exception):
    pass


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongType
    return value


MOMENT = re.compile(
    r"\s*(\d{4})-(\d\d?)-(\d\d?)(?:[T ](\d\d?)(?::(\d\d?)(?::(\d\d?)(?:\.(\d*))?)?)?"
    r"\s*(Z|UTC|GMT|UT|([+-])(\d\d?)(?::?(\d\d))?)?)?\s*",
    re.ASCII,
)


def moment(value: Any) -> datetime:
    match = MOMENT.fullmatch(text(value))
    if match is None:
        raise WrongType
    year, month, day, hour, minute, second = (int(part or 0) for part in match.group(1, 2, 3, 4, 5, 6))
    digits = match[7] or ""
    hours, minutes = int(match[10] or 0), int(match[11] or 0)
    if hours > 23 or minutes > 59:
        raise WrongType
    shift = timedelta(hours=hours, minutes=minutes) * (-1 if match[9] == "-" else 1)
    try:
        return datetime(year, month, day, hour, minute, second, int(digits.ljust(6, "0")[:6]), tzinfo=UTC) - shift
    except ValueError:
        raise WrongType from None


def day(value: Any) -> date:
    match = re.fullmatch(r"\s*(\d{4})-(\d\d?)-(\d\d?)\s*", text(value), re.ASCII)
    if match is None:
        raise WrongType
    try:
        return date(*map(int, match.groups()))
    except ValueError:
        raise WrongType from None


DECIMAL_KINDS = st.sampled_from(
    [(38, 0), (30, 30), (38, 38), (38, 9), (29, 0), (10, 2), (19, 0), (18, 18), (5, 5), (1, 0)]
)
DECIMALS = st.one_of(
    st.from_regex(r"-?(?:0|[1-9][0-9]{0,44})(?:\.[0-9]{1,44})?(?:[eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.sampled_from(
        ["9" * 38, "-" + "9" * 38, "9" * 39, "0." + "9" * 30, "0." + "9" * 38, "1" + "0" * 38, "0e99", "-0"]
    ),
    st.builds(
        "{}{}e{}".format, st.sampled_from(["1", "9" * 29, "12"]), st.sampled_from(["", "0" * 20]), st.integers(-45, 45)
    ),
)


def check_neighbours(decoder: Decoder, lines: Sequence[bytes], bad_line: bytes) -> None:
    """Check that each line has the same result alone, among the others, and beside a bad line."""
    alone = [decoder.decode(line) for line in lines]
    together = decoder.decode(b"".join(lines))
    beside = decoder.decode(b"".join([*lines, bad_line]))
    for found, more in ((together, 0), (beside, 1)):
        assert found.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]
        found_bad = [(bad.raw, bad.reason, bad.detail) for bad in found.bad]
        assert found_bad[: len(found_bad) - more] == [
            (bad.raw, bad.reason, bad.detail) for one in alone for bad in one.bad
        ]
