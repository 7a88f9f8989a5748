"""Write values as JSON with exact numbers."""

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


class Number(str):
    """A JSON number, as written."""

    __slots__ = ()


class Constant(str):
    """NaN, Infinity or -Infinity, which are no JSON."""

    __slots__ = ()


def exact_json(value: Any) -> str:
    """Return a value as JSON with exact numbers; what JSON lacks (times, bytes, NaN) as text."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(name)}:{exact_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(exact_json, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    if value is None or isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, int | float | Decimal) and math.isfinite(value):
        return str(value)
    return json.dumps(value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value))
