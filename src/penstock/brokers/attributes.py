"""How brokers that keep text write attributes and groups down."""

import base64
import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from penstock.messaging.message import NO_ATTRIBUTES, UNREADABLE_ATTRIBUTE, Attributes

_UNREADABLE_CHARS_MAX = 4 * 1024
_REMEMBERED_SIZE_MAX = 512


def encode_group(group: str | None) -> str:
    """Empty for no group, else a colon and the group, so that one comparison serves both."""
    return "" if group is None else f":{group}"


def decode_group(text: str) -> str | None:
    """The group that `encode_group` wrote."""
    return text[1:] if text else None


def encode_attributes(attributes: Attributes) -> str | None:
    """JSON; a binary value is a list of one base64 text, which no text value can be taken for."""
    if not attributes:
        return None
    return json.dumps(
        {
            name: value if isinstance(value, str) else [base64.b64encode(value).decode("ascii")]
            for name, value in attributes.items()
        }
    )


def decode_attributes(text: str | bytes | None) -> Attributes:
    """Return the attributes that `encode_attributes` wrote. Short texts are cached.

    Raises nothing. A text that cannot be decoded becomes one attribute, `UNREADABLE_ATTRIBUTE`, with the beginning of
    the text: a broker makes that message a dead letter, and the rest of its queue is delivered.
    """
    if not text:
        return NO_ATTRIBUTES
    return _remembered(text) if len(text) <= _REMEMBERED_SIZE_MAX else _decoded(text)


def _decoded(text: str | bytes) -> Attributes:
    try:
        fields: Mapping[str, object] = json.loads(text)
        return MappingProxyType({name: _value(value) for name, value in fields.items()})
    except (ValueError, TypeError, AttributeError, RecursionError):  # no JSON, UTF-8 or object; other types of values
        shown = text if isinstance(text, str) else bytes(text).decode("utf-8", "backslashreplace")
        return MappingProxyType({UNREADABLE_ATTRIBUTE: shown[:_UNREADABLE_CHARS_MAX]})


def _value(value: object) -> str | bytes:
    match value:
        case str():
            return value
        case [str(text)]:
            return base64.b64decode(text, validate=True)
    raise TypeError


_remembered = lru_cache(maxsize=256)(_decoded)  # nobody can write to what it answers
