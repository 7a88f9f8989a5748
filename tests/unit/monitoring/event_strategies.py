"""Hypothesis strategies for events, by the types of their fields, and a reader for JSON logs."""

import dataclasses
import inspect
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from penstock import events
from penstock.events import DeliverySettled, Event
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

_SPECIAL_CHARACTERS = "\n\r\t\0\x1b\x7f\x85\x9b\u2028\u202e\ufeff\ud800\udcff\"'\\ =|{}"
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()) | st.sampled_from(_SPECIAL_CHARACTERS), max_size=60)
_INTEGERS = st.integers(min_value=-(2**63), max_value=2**63)
_SETTLEMENTS: st.SearchStrategy[Settlement] = (
    st.just(Ack())
    | st.builds(Release, delay_seconds=st.floats(), reason=st.none() | ANY_TEXT)
    | st.builds(DeadLetter, reason=ANY_TEXT, exception=st.none() | ANY_TEXT, traceback=st.none() | ANY_TEXT)
)
_STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    str: ANY_TEXT,
    str | None: st.none() | ANY_TEXT,
    int: _INTEGERS,
    int | None: st.none() | _INTEGERS,
    float: st.floats(),
    float | None: st.none() | st.floats(),
    bool: st.booleans(),
    tuple[str, ...]: st.lists(ANY_TEXT, max_size=3).map(tuple),
    tuple[tuple[int, str], ...]: st.lists(st.tuples(_INTEGERS, ANY_TEXT), max_size=3).map(tuple),
    Mapping[str, int]: st.dictionaries(ANY_TEXT, _INTEGERS, max_size=3),
    Mapping[str, str]: st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3),
    BaseException | None: st.none() | ANY_TEXT.map(ValueError),
    Ack: st.just(Ack()),
    Settlement: _SETTLEMENTS,
    tuple[Settlement, ...]: st.lists(_SETTLEMENTS, max_size=3).map(tuple),
}
_FREQUENT_VALUES = {  # values that select a log row, so that each is generated often
    "outcome": ("retry", "dead", "gone", "superseded", "drained", "interrupted", "forced"),
    "error_type": ("Reject", "ValueError"),
}


def event_types() -> Iterator[type[Event]]:
    """Yield every event type."""
    for _, member in inspect.getmembers(events, inspect.isclass):
        if issubclass(member, Event):
            yield member


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    """Return a strategy for events of this type with any values."""
    hints = get_type_hints(kind)
    fields = {field.name: _strategy(field.name, hints[field.name]) for field in dataclasses.fields(kind)}
    if kind is DeliverySettled:
        fields["settlement"] = fields["settlement"].filter(lambda one: not isinstance(one, Ack))  # a `DeliveryAcked`
    return st.builds(kind, **fields)


def _strategy(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    strategy = _STRATEGIES[hint]
    return strategy | st.sampled_from(_FREQUENT_VALUES[name]) if name in _FREQUENT_VALUES else strategy


def lines_in(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return the lines of a JSON log."""
    return [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]
