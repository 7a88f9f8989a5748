"""Filters and options of dead letters in addresses and forms. The names of fields are those of the CLI's options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from penstock.dead_letters.filters import DeadLetterFilter
from penstock.errors import UsageError
from penstock.handlers.durations import seconds_of
from penstock.objects.reference import LOCAL_BUCKET, uri_of
from penstock.operations.dead_letters.actions import CANARY_SECONDS, ReplayOptions
from penstock.operations.dead_letters.selection import DeadLetterSelection, Tier

FILTERS: Mapping[str, str] = {
    "group": "Error group",
    "error": "Error contains",
    "queue": "Queue",
    "tier": "Tier",
    "handler": "Handler",
    "object": "Object",
    "older_than": "Older than",
    "younger_than": "Younger than",
    "attribute": "Attribute",
    "id": "Message id",
}
OPTIONS: Mapping[str, str] = {"limit": "At most", "to": "Destination", "rate": "Rate", "canary": "Canaries"}
TIERS: Mapping[str, str] = {"dlq": "DLQ", "dead": "Final DLQ"}
FIELD_CHARS_MAX = 4_000
CANARIES_MAX = 100
COUNT_MAX = 1_000_000_000
RATE_MIN, RATE_MAX = 0.01, 1_000_000.0
_VERBATIM = frozenset({"queue"})

Fields = Mapping[str, object]  # of an address or a form: strings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQuery:
    """A selection with its fields as a person gave them, for links and hidden inputs."""

    selection: DeadLetterSelection
    given: Mapping[str, str] = field(default_factory=dict)  # without empty ones

    @property
    def is_filtered(self) -> bool:
        """True if there is any condition."""
        return bool(self.given.keys() - {"limit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuery:
    """The options of a replay, with their fields."""

    options: ReplayOptions
    given: Mapping[str, str]


def dead_letter_query(fields: Fields) -> DeadLetterQuery:
    """Return the selection that the fields describe. Raises `UsageError` for a malformed field."""
    given = _given(fields, (*FILTERS, "limit"))
    tier, attribute = given.get("tier"), given.get("attribute")
    if tier is not None and tier not in TIERS:
        raise UsageError(f"There is no tier {tier}: dlq and dead are the two.")
    wanted = DeadLetterFilter(
        handler=given.get("handler"),
        error=given.get("error"),
        group=given.get("group"),
        older_than_seconds=_seconds(given, "older_than"),
        younger_than_seconds=_seconds(given, "younger_than"),
        attributes={} if attribute is None else dict([_pair(attribute)]),
        object_uri=_object(given.get("object")),
        ids=frozenset(given["id"].split()) if "id" in given else frozenset(),
    )
    selection = DeadLetterSelection(
        queue=given.get("queue"),
        tier=cast("Tier | None", tier),
        wanted=wanted,
        limit=_count(given, "limit", least=1, most=COUNT_MAX),
    )
    return DeadLetterQuery(selection=selection, given=given)


def replay_query(fields: Fields) -> ReplayQuery:
    """Return the options of a replay. Raises `UsageError` for a malformed field."""
    given = _given(fields, ("to", "rate", "canary"))
    options = ReplayOptions(
        to=given.get("to"),
        rate=_rate(given),
        canaries=_count(given, "canary", least=0, most=CANARIES_MAX) or 0,
        canary_seconds=CANARY_SECONDS,
    )
    return ReplayQuery(options=options, given=given)


def count_in(fields: Fields, name: str) -> int | None:
    """Return the number in a field, which may have separators; None if it has none."""
    return _count(_given(fields, (name,)), name, least=0, most=COUNT_MAX)


def _given(fields: Fields, names: tuple[str, ...]) -> dict[str, str]:
    """Return the fields that are not empty. Spaces around them are left out, but in names that may have them."""
    found = {
        name: value if name in _VERBATIM else value.strip()
        for name in names
        if isinstance(value := fields.get(name), str) and value.strip()
    }
    if long := next((name for name, value in found.items() if len(value) > FIELD_CHARS_MAX), None):
        raise UsageError(f"The field {long} has more than {FIELD_CHARS_MAX:,} characters: shorten it.")
    return found


def _seconds(given: Mapping[str, str], name: str) -> float | None:
    return None if name not in given else seconds_of(FILTERS[name], given[name])


def _count(given: Mapping[str, str], name: str, *, least: int, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    digits = text.replace(",", "")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 12 or not least <= int(digits) <= most:
        raise UsageError(f"{_label(name)}: {text} is no number from {least:,} to {most:,}.")
    return int(digits)


def _rate(given: Mapping[str, str]) -> float | None:
    text = given.get("rate")
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not RATE_MIN <= rate <= RATE_MAX:  # also true for NaN
        raise UsageError(f"Rate: {text} is no number of messages per second from {RATE_MIN:g} to {RATE_MAX:,.0f}.")
    return rate


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"Attribute: {text} is not of the form NAME=VALUE.")
    return name, value


def _object(text: str | None) -> str | None:
    """Return an object's address as ledger and log have it. A path is that of a local file."""
    return text if text is None or "://" in text else uri_of(LOCAL_BUCKET, text)


def _label(name: str) -> str:
    return {**FILTERS, **OPTIONS}.get(name, name)
