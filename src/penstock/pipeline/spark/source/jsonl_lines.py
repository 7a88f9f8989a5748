"""The meaning of one JSON line: the rule that blocks and single lines share, and the reasons for refusing a line.

A line is the text between two newlines, without a carriage return before the newline.

===================  ==============================================================================================
line or value        result
===================  ==============================================================================================
only blanks          skipped: no row, not quarantined
not UTF-8            "invalid UTF-8"
not one JSON object  "malformed": no JSON, null, a list, two objects, half of one; a declared field given twice
field missing, null  null
field undeclared     ignored, whatever it holds, as long as the line is JSON
integers             a JSON number without fraction and exponent, within the type's range
float, double        any JSON number within the type's range; NaN, Infinity, Inf, INF, also with a sign or in quotes
decimal(p, s)        a number, or one in a string, that p digits, s of them after the point, hold exactly
boolean              true or false
string               a JSON string, without half a surrogate pair ("malformed"); any other value as its source text
timestamp            "2024-05-06T07:08:09.123456+02:00": T or a blank; six digits of the fraction are kept; with no zone
                     it is UTC; the time may end after day, hour or minute; numbers of one digit, UTC or GMT as the
                     zone, and blanks are read too. timestamp_ntz takes the same, as UTC
date                 "2024-05-06", "2024-5-6"
binary               a string of base64
array, struct, map   an array, an object, an object, by these same rules; [] is an empty struct or map
any other value      "wrong type"
===================  ==============================================================================================

Arrow's JSON reader makes every value, from the line or from an equal one in its own spelling (json_values.py). The
classifier here explains why a line was refused, and finds refused lines among many quickly. It must never refuse a line
that Arrow accepts under the guards.
"""

import json

import pyarrow as pa

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.blocks import Refused
from penstock.pipeline.spark.source.explain import Misfit, Refusal
from penstock.pipeline.spark.source.json_values import Fields, Line, syntax_error, walk

BLANKS = b" \t\r\n"  # JSON's whitespace; other control characters are not blanks


class Classifier:
    """Explain why a JSON line is rejected under a schema, and spell others so that Arrow reads them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._row = Fields(pa.struct(list(schema)))

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
        """Return a line that seems good as Arrow reads it, the same object if it needs no edit. Raises `Refused`.

        ``line`` is valid UTF-8 and not blank.
        """
        text = Line(line.decode())
        try:
            if not text.takes("{", text.blank_end(0)):
                raise _unless_malformed(text, (QuarantineReason.MALFORMED, "not a JSON object"))
            walk(text, self._row)
        except json.JSONDecodeError as error:
            raise _malformed(error) from None
        except Misfit as misfit:
            raise _unless_malformed(text, misfit.refusal) from None
        except RecursionError:
            return line  # nested deeper than Python's limit; Arrow accepts it
        return line if text.is_unchanged else text.edited.encode()


def _malformed(error: json.JSONDecodeError) -> Refused:
    return Refused(QuarantineReason.MALFORMED, f"{error.msg} at character {error.pos}")


def _unless_malformed(line: Line, refusal: Refusal) -> Refused:
    """Return the refusal of a line, which is that it is not JSON if it is not."""
    error = syntax_error(line)
    return Refused(*refusal) if error is None else _malformed(error)
