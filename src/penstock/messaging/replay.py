"""Replays: dead-lettered messages that return to their queue, and the attributes that they then carry.

Every dead-lettered message has exactly one replay, whichever process sends it. The replay id derives from the
message's queue, id and time. So if a process dies between sending and deleting, its successor sends the same replay.
Brokers that deduplicate drop the second one; the ledger lets a replay revive a failed object only once.

The counter attribute has the name used by AWS's sample replayer, so that the two are interchangeable.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from penstock.messaging.broker import listed_name
from penstock.messaging.death import SET_ASIDE_ATTRIBUTE, move_death_to_history, origin_id
from penstock.messaging.message import ORIGIN_ATTRIBUTE, UNREADABLE_ATTRIBUTE, Attributes, Message, Outgoing

COUNTER_ATTRIBUTE = "sqs-dlq-replay-nb"
REPLAY_ID_ATTRIBUTE = "penstock-replay-id"
COUNT_MAX = 1_000  # a higher counter is forged
_ID_CHARS_MAX = 64
_LEFT_BEHIND = frozenset({SET_ASIDE_ATTRIBUTE, UNREADABLE_ATTRIBUTE})  # they describe why it was dead-lettered


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The recorded replay of one dead-lettered message. Times are epoch seconds."""

    replay_id: str
    dead_letter_queue: str  # the queue that holds the dead-lettered message
    dead_letter_id: str
    queue: str  # the destination
    count: int  # number of this replay in a row, from 1
    due_at: float  # earliest time to send it; chosen once
    sent: bool = False  # it was sent, and the original message only remains to be deleted


class ReplayLog(Protocol):
    """A durable record of replays. Any thread may call it. Raises `TemporaryError` if it is unavailable."""

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        """Record the intent of new replays; return all of them as recorded, by replay id."""
        ...

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:
        """Return those of these replays that are recorded, by replay id."""
        ...

    def mark_sent(self, replay_ids: Sequence[str]) -> None:
        """Record that these replays were sent."""
        ...


class NoLog:
    """A `ReplayLog` that records nothing, for use without a database.

    A process that dies between sending and deleting then sends again. Waits are chosen again, with the same result.
    """

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        return {replay.replay_id: replay for replay in replays}

    def find(self, replay_ids: Sequence[str]) -> Mapping[str, Replay]:  # noqa: ARG002 - the signature is the Protocol's
        return {}

    def mark_sent(self, replay_ids: Sequence[str]) -> None:
        """Record nothing."""


def replay_id_of(dead_letter_queue: str, dead_letter_id: str) -> str:
    """Return the replay id: 32 hexadecimal digits, the same for the name, URL or ARN of a queue."""
    address = f"{listed_name(dead_letter_queue)}\0{dead_letter_id}"
    return hashlib.sha256(address.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def dead_letter_replay_id(dead_letter_queue: str, dead_letter: Message) -> str:
    """Return the replay id of a dead-lettered message in this queue.

    It includes the time of the message. A broker that lost its latest state (a failover, a file from a backup)
    assigns the same ids to other messages, which must not match the old records.
    """
    return replay_id_of(dead_letter_queue, f"{dead_letter.id}\0{dead_letter.enqueued_at:.3f}")


def replay_id_in(attributes: Attributes) -> str | None:
    """Return the replay id that the message carries; None if there is none.

    A value longer than any id is forged, and databases would have to store it.
    """
    value = attributes.get(REPLAY_ID_ATTRIBUTE)
    return value if isinstance(value, str) and len(value) <= _ID_CHARS_MAX else None


def replays_so_far(attributes: Attributes) -> int:
    """Return how often the message was replayed in a row; 0 for a value that no replayer can have written."""
    value = attributes.get(COUNTER_ATTRIBUTE)
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()) or len(value) > 9:
        return 0
    count = int(value)
    return count if count <= COUNT_MAX else 0


def replayed(dead_letter: Message, replay: Replay, *, delay_seconds: float) -> Outgoing:
    """Return the message to send for a dead-lettered one.

    Body, group and attributes stay unchanged. Its deaths move to the history, and the replay id is added, by which
    an inbox recognises it.
    """
    attributes = {
        name: value for name, value in move_death_to_history(dead_letter.attributes).items() if name not in _LEFT_BEHIND
    }
    attributes[ORIGIN_ATTRIBUTE] = origin_id(dead_letter)
    attributes[COUNTER_ATTRIBUTE] = str(replay.count)
    attributes[REPLAY_ID_ATTRIBUTE] = replay.replay_id
    return Outgoing(
        body=dead_letter.body,
        attributes=MappingProxyType(attributes),
        group=dead_letter.group,
        deduplication_id=replay.replay_id,
        delay_seconds=delay_seconds,
    )
