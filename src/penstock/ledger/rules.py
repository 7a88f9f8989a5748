"""The rules of the ledger that need no database: pure functions."""

from dataclasses import dataclass

from penstock.ledger.records import Carrier

REASON_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a dead object died: its carrier, when, and every replay that was ever spent on it."""

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


def revives(carrier: Carrier, death: Death) -> bool:
    """Whether a message gives a dead object another life.

    It does with a replay id not yet spent on the object, or when it was enqueued after the death (sent back from a
    console, which knows no replay ids). The carrier itself, redelivered, never does, even where the broker's clock is
    ahead of the database's.
    """
    if carrier.replay_id is not None and carrier.replay_id not in death.replay_ids:
        return True
    redelivered = carrier.message_id == death.carrier.message_id and carrier.enqueued_at <= death.carrier.enqueued_at
    return carrier.enqueued_at > death.dead_at and not redelivered


def storable(text: str) -> str:
    """Text that every database takes: no NUL, no lone surrogates (file names that are not UTF-8 bring them)."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def told(reason: str) -> str:
    """A reason as it is kept: storable, and no longer than a person would read."""
    return storable(reason[:REASON_CHARS_MAX])
