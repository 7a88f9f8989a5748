"""JSON as the outside world may send it: strict, bounded, and with a reason for every refusal.

Duties: bytes -> text (UTF-8 only), text -> values. Whatever Python's own reader lets through and two readers could take
differently is refused here: duplicate keys, NaN, numbers that overflow, lone surrogates. Raises `InvalidMessage`,
nothing else, for any input at all.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

from penstock.errors import InvalidMessage

NESTING_MAX = 100
INTEGER_DIGITS_MAX = 100
_SHOWN_CHARS_MAX = 60

_CONTAINERS = (b"{", b"[")
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_ARCHIVES = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive"}  # never inflated: a bomb has nobody to go off at

# A string (the closing quote is optional, so that an unclosed one costs one pass and no restarts) or one bracket.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE_ESCAPES = re.compile(r"\\u[dD][89a-fA-F]")


def decode(body: bytes) -> str:
    """The body as text. It must be UTF-8 without a byte order mark."""
    if body[:1] in _CONTAINERS and 0 not in body[:4]:  # as nearly all begin: none of the oddities below
        return _decoded(body)
    if not body.strip():
        raise InvalidMessage("the body is empty; expected JSON")
    if body.startswith(_UTF8_BOM):
        raise InvalidMessage("the body starts with a byte order mark; send plain UTF-8")
    for magic, kind in _ARCHIVES.items():
        if body.startswith(magic):
            raise InvalidMessage(f"the body is {kind}; send plain UTF-8")
    if body.startswith(_UTF16_BOMS) or b"\0" in body[:4]:
        raise InvalidMessage("the body is UTF-16 or UTF-32; send UTF-8")
    return _decoded(body)


def load(text: str) -> object:
    """The one JSON value that the text holds."""
    if text.startswith("\ufeff"):
        raise InvalidMessage("the text starts with a byte order mark; send plain UTF-8")
    _check_nesting(text)
    try:
        value: object = _DECODER.decode(text)
        _check_surrogates(text, value)
    except json.JSONDecodeError as error:
        raise InvalidMessage(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    return value


def show(value: object) -> str:
    """A value for a reason: one printable ASCII line of bounded length, containers by their kind only."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str() if len(value) > _SHOWN_CHARS_MAX:
            return json.dumps(value[:_SHOWN_CHARS_MAX]) + "..."
        case _:
            return json.dumps(value)


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"the body is not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}") from None


def _check_nesting(text: str) -> None:
    # Python's reader recurses in C as deep as the process's recursion limit lets it, and that limit is not ours.
    if text.count("{") + text.count("[") <= NESTING_MAX:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        match text[token.start()]:
            case "{" | "[":
                depth += 1
                if depth > NESTING_MAX:
                    raise InvalidMessage(f"the JSON is nested deeper than {NESTING_MAX} levels")
            case "}" | "]":
                depth -= 1


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
    raise InvalidMessage(f"the key {show(repeated)} appears twice in one JSON object")


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidMessage(f"{name} is not a JSON number")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidMessage(f"the number {digits[:_SHOWN_CHARS_MAX]} is too large")
    return value


def _integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS_MAX:
        raise InvalidMessage(f"an integer of {len(digits)} digits is too large; at most {INTEGER_DIGITS_MAX} are read")
    return int(digits)


def _check_surrogates(text: str, value: object) -> None:
    if "\\u" not in text or _SURROGATE_ESCAPES.search(text) is None:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"the JSON holds a lone surrogate, \\u{ord(error.object[error.start]):04x}: half a character"
        ) from None


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float, parse_int=_integer
)
