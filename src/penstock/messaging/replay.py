"""A replay: a dead letter that goes back to its queue, and what the message then carries.

Every letter has one replay, whoever sends it: the id is made of the letter's own place and moment, so a replayer that
died between sending and deleting, and the one that comes after it, send the same one. Brokers that know a
deduplication id again drop the second; the ledger lets it revive a dead object once.

The counter has the name that AWS's sample replayer gives it, so that either can stand in for the other.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from penstock.messaging.broker import listed_name
from penstock.messaging.death import SET_ASIDE_ATTRIBUTE, origin_id, with_past
from penstock.messaging.message import ORIGIN_ATTRIBUTE, UNREADABLE_ATTRIBUTE, Attributes, Message, Outgoing

COUNTER_ATTRIBUTE = "sqs-dlq-replay-nb"
REPLAY_ID_ATTRIBUTE = "penstock-replay-id"
COUNT_MAX = 1_000  # a counter that says more is forged
_ID_CHARS_MAX = 64
_LEFT_BEHIND = frozenset({SET_ASIDE_ATTRIBUTE, UNREADABLE_ATTRIBUTE})  # they describe why it was dead-lettered


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One letter's way back, as it is on record. Times are epoch seconds."""

    replay_id: str
    letter_queue: str  # where the letter lies
    letter_id: str
    queue: str  # where it goes
    count: int  # this is its n-th replay in a row, from 1
    due_at: float  # not before; chosen once
    sent: bool = False  # it is in its queue again, so that its letter is only to be deleted


class ReplayLog(Protocol):
    """What is known of replays, durably. Any thread may call it. Raises `TemporaryError` when it is away."""

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        """Record the intent of those not on record yet; answers all as they stand on record, by replay id."""
        ...

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:
        """Those of these that are on record, by replay id."""
        ...

    def sent(self, replay_ids: Sequence[str]) -> None:
        """They are in their queues again."""
        ...


class NoLog:
    """Nothing is known: a `ReplayLog` for where there is no database. Then a replayer that dies between sending and
    deleting sends once more, and waits are chosen anew, which come out the same."""

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        return {replay.replay_id: replay for replay in replays}

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:  # noqa: ARG002 - the signature is the Protocol's
        return {}

    def sent(self, replay_ids: Sequence[str]) -> None:
        """Nobody remembers it."""


def replay_id_of(letter_queue: str, letter_id: str) -> str:
    """32 hexadecimal digits; the same for the same letter, always and everywhere, however its queue is called."""
    place = f"{listed_name(letter_queue)}\0{letter_id}"
    return hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def letter_replay_id(letter_queue: str, letter: Message) -> str:
    """The id of the replay of the letter that lies there.

    Its moment is part of it, as a broker that lost its last moments (a failover, a file from a backup) gives the ids
    of then to other letters, and what is on record of those must not be taken for these.
    """
    return replay_id_of(letter_queue, f"{letter.id}\0{letter.enqueued_at:.3f}")


def replay_id_in(attributes: Attributes) -> str | None:
    """The replay that the message came by; None where none says so. What is longer than any id is forged: databases
    would have to keep it."""
    value = attributes.get(REPLAY_ID_ATTRIBUTE)
    return value if isinstance(value, str) and len(value) <= _ID_CHARS_MAX else None


def replays_so_far(attributes: Attributes) -> int:
    """How often the message was replayed in a row. What no replayer can have written counts as never."""
    value = attributes.get(COUNTER_ATTRIBUTE)
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()) or len(value) > 9:
        return 0
    count = int(value)
    return count if count <= COUNT_MAX else 0


def replayed(letter: Message, replay: Replay, *, delay_seconds: float) -> Outgoing:
    """Return the message to send for a letter: body, group and attributes as they were, with its deaths in its past and
    the id by which an inbox knows it."""
    attributes = {name: value for name, value in with_past(letter.attributes).items() if name not in _LEFT_BEHIND}
    attributes[ORIGIN_ATTRIBUTE] = origin_id(letter)
    attributes[COUNTER_ATTRIBUTE] = str(replay.count)
    attributes[REPLAY_ID_ATTRIBUTE] = replay.replay_id
    return Outgoing(
        body=letter.body,
        attributes=MappingProxyType(attributes),
        group=letter.group,
        deduplication_id=replay.replay_id,
        delay_seconds=delay_seconds,
    )
