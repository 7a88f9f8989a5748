"""How brokers that keep text write attributes and groups down."""

import base64
import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from penstock.messaging.message import NO_ATTRIBUTES, Attributes

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
    """The attributes that `encode_attributes` wrote. What many messages have alike is read once."""
    if not text:
        return NO_ATTRIBUTES
    return _remembered(text) if len(text) <= _REMEMBERED_SIZE_MAX else _decoded(text)


def _decoded(text: str | bytes) -> Attributes:
    fields: Mapping[str, str | list[str]] = json.loads(text)
    return MappingProxyType(
        {name: value if isinstance(value, str) else base64.b64decode(value[0]) for name, value in fields.items()}
    )


_remembered = lru_cache(maxsize=256)(_decoded)  # nobody can write to what it answers
