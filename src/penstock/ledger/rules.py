"""The rules of the ledger that need no database: pure functions."""

import hashlib
from dataclasses import dataclass

from penstock.ledger.records import Carrier

REASON_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadObject:
    """What decides whether a dead object lives again, and who carries it then: the carrier on record, when it died
    last, and every replay spent on it."""

    carrier: Carrier
    dead_at: float
    replay_ids: frozenset[str]


def is_later(sequencer: str, than: str) -> bool:
    """Whether one event of a key came after another one.

    Amazon S3's rule ("Event message structure" in its user guide): right-pad the shorter sequencer with zeros, compare
    as text.
    """
    width = max(len(sequencer), len(than))
    return sequencer.ljust(width, "0") > than.ljust(width, "0")


def revives(carrier: Carrier, dead: DeadObject) -> bool:
    """Whether a message gives a dead object another life, or carries one that lives again.

    It does with a replay id not yet spent on the object, or when it was enqueued after the death (sent back from a
    console, which knows no replay ids). The carrier itself, redelivered, never does, even where the broker's clock is
    ahead of the database's.
    """
    if carrier.replay_id is not None and carrier.replay_id not in dead.replay_ids:
        return True
    redelivered = carrier.message_id == dead.carrier.message_id and carrier.enqueued_at <= dead.carrier.enqueued_at
    return carrier.enqueued_at > dead.dead_at and not redelivered


def work_id_of(handler: str, key: str) -> bytes:
    """16 bytes that stand for a key of a handler: no collation can merge two of them, and no length is too long."""
    if "\0" in handler:
        raise ValueError(f"the handler's name {handler!r} has a NUL in it, which parts handler and key")
    return hashlib.sha256(f"{handler}\0{key}".encode("utf-8", "surrogatepass")).digest()[:16]


def storable(text: str) -> str:
    """Text that every database takes: no NUL, no lone surrogates (file names that are not UTF-8 bring them)."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def told(reason: str) -> str:
    """A reason as it is kept: storable, and no longer than a person would read."""
    return storable(reason[:REASON_CHARS_MAX])
