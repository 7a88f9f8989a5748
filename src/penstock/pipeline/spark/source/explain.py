"""Explain to a person why a line or row is bad: the field, its value and the type it should have.

Every format uses this wording, such as `field order.items[3]: "x" is not BIGINT`. Items of lists are numbered from 0,
an entry of a map is named by its key, as in `field labels["de"]`.
"""

from typing import Self

import pyarrow as pa

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.ddl import type_text

Refusal = tuple[QuarantineReason, str]  # the reason, and an explanation with at most about 300 characters

_VALUE_CHARS_MAX = 60
_TYPE_CHARS_MAX = 60
_PATH_CHARS_MAX = 120
_SEPARATORS = frozenset(".[]`\"' ")


class Misfit(ValueError):
    """A value that does not fit, or cannot be read. Containers add their names while it passes through them."""

    def __init__(self, reason: QuarantineReason, fault: str) -> None:
        super().__init__(fault)
        self.reason = reason
        self.fault = fault  # continues the sentence that begins with the field
        self.steps: list[str] = []  # from the value outwards

    def within(self, step: str) -> Self:
        """Add the name of the container that the value is in; return the same."""
        self.steps.append(step)
        return self

    @property
    def refusal(self) -> Refusal:
        path = "".join(reversed(self.steps)).removeprefix(".")
        return self.reason, f"field {_cut(path, _PATH_CHARS_MAX)}{self.fault}"


def not_of_type(value: str, kind: pa.DataType) -> Misfit:
    """Return the fault of a value, given as text, that is not of the type."""
    expected = _cut(type_text(kind), _TYPE_CHARS_MAX)
    return Misfit(QuarantineReason.WRONG_TYPE, f": {shown(value)} is not {expected}")


def not_utf8(value: str) -> Misfit:
    """Return the fault of a string, given with escapes, that is not UTF-8."""
    return Misfit(QuarantineReason.INVALID_UTF8, f": {shown(value)} is not UTF-8")


def half_a_pair(value: str) -> Misfit:
    """Return the fault of a JSON string, given as written, that no text can hold."""
    return Misfit(QuarantineReason.MALFORMED, f": {shown(value)} has half a surrogate pair")


def given_twice() -> Misfit:
    """Return the fault of a field that an object has more than once."""
    return Misfit(QuarantineReason.MALFORMED, " is given twice")


def field_step(name: str) -> str:
    """Return the step of a path to a field of an object or row."""
    plain = name.isprintable() and not _SEPARATORS.intersection(name)
    return f".{name}" if plain else f".`{shown(name)}`"


def item_step(index: int) -> str:
    """Return the step of a path to an item of a list, counted from 0."""
    return f"[{index}]"


def key_step(key: str) -> str:
    """Return the step of a path to an entry of a map."""
    return f'["{shown(key)}"]'


def shown(text: str) -> str:
    """Return text on one line and of a bounded length, with escapes for characters that do not print."""
    if len(text) <= _VALUE_CHARS_MAX and text.isprintable():
        return text
    printed = "".join(map(_printed, text[:_VALUE_CHARS_MAX]))
    return printed if printed == text else _cut(printed, _VALUE_CHARS_MAX, more=len(text) > _VALUE_CHARS_MAX)


def _printed(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _cut(text: str, chars_max: int, *, more: bool = False) -> str:
    return text[:chars_max] + "..." if more or len(text) > chars_max else text
