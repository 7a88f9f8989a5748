"""Sentences for people: a form and its values, so that a page can show them in another language.

``text`` is the English sentence of commands. A value is a number, a text of the system, or a type below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

NAMES_MAX = 3


class Elapsed(float):
    """A duration in seconds."""


class Names(tuple[str, ...]):
    """Names, of which the first ones are shown."""

    __slots__ = ()

    @property
    def shown(self) -> tuple[list[str], int]:
        """The names to show, and the number of the others."""
        names = list(self)
        return (names, 0) if len(names) <= NAMES_MAX else (names[: NAMES_MAX - 1], len(names) - NAMES_MAX + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence, such as "{count} messages wait in {queues}", with its values."""

    form: str
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The English sentence."""
        return self.form.format(**{name: _english(value) for name, value in self.values.items()})


def sentence(form: str, /, **values: object) -> Sentence:
    """Return a sentence with these values."""
    return Sentence(form=form, values=values)


def counted_sentence(number: int, one: str, many: str, /, **values: object) -> Sentence:
    """Return the sentence for 1 or for any other number, which is ``{count}`` in it."""
    return Sentence(form=one if number == 1 else many, values={"count": number, **values})


def span(seconds: float) -> str:
    """Return a duration for people."""
    return " ".join(span_parts(seconds))


def span_parts(seconds: float) -> tuple[str, str]:
    """Return a duration as a number in the unit that fits, and that unit: d, h, min or s."""
    for unit, length_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_seconds:
            return f"{seconds / length_seconds:,.0f}", unit
    return f"{seconds:,.0f}", "s"


def rate_text(per_second: float) -> str:
    """Return a number per second with two or three digits that matter."""
    if per_second >= 10 or per_second == 0:
        return f"{per_second:,.0f}"
    return f"{per_second:.1f}" if per_second >= 0.1 else f"{per_second:.2g}"


def _english(value: object) -> str:
    if isinstance(value, Elapsed):
        return span(value)
    if isinstance(value, Names):
        names, others = value.shown
        first, last = (names, f"{others:,} more queues") if others else (names[:-1], names[-1])
        return f"{', '.join(first)} and {last}" if first else last
    return f"{value:,}" if isinstance(value, int) else str(value)
