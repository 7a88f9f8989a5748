"""The rules of the ledger that need no database: pure functions."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.ledger.records import Carrier, WorkOwner

REASON_CHARS_MAX = 4_000
PIPELINE_CHARS_MAX = 512  # as its column has it, which only some databases enforce
HANDLER_CHARS_MAX = 256
TRACEBACK_CHARS_MAX = 8_000  # with the reason below the 65,535 bytes that a text of MySQL holds
_TRACEBACK = "\nTraceback (most recent call last):\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadObjectState:
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


def revives(carrier: Carrier, dead: DeadObjectState) -> bool:
    """Whether a message gives a dead object another life, or carries one that lives again.

    It does with a replay id not yet spent on the object, or when it was enqueued after the death (sent back from a
    console, which knows no replay ids). The carrier itself, redelivered, never does, even where the broker's clock is
    ahead of the database's.
    """
    if carrier.replay_id is not None and carrier.replay_id not in dead.replay_ids:
        return True
    redelivered = carrier.message_id == dead.carrier.message_id and carrier.enqueued_at <= dead.carrier.enqueued_at
    return carrier.enqueued_at > dead.dead_at and not redelivered


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadObject:
    """The recorded end of an object that was deleted or replaced before it was read, as far as a message may know
    better."""

    carrier: Carrier
    sought_at: float | None  # messages enqueued later may know better; None: it was superseded without a look
    sequencer: str | None
    replay_ids: frozenset[str]  # spent on it


def restores(carrier: Carrier, sequencer: str | None, unread: UnreadObject) -> bool:
    """Return True if a message may know better than the recorded end of an object that was never read.

    It may with a replay id not yet spent on the object, as the announcement of a later event of its key, or if it was
    enqueued after the attempt began that first found the object missing, or found it replaced. Without a look, the
    order of events alone superseded the object: a message that has no place in that order (from a listing) makes the
    store decide. The carrier itself, redelivered, never knows better.
    """
    if carrier.replay_id is not None and carrier.replay_id not in unread.replay_ids:
        return True
    if sequencer is not None and unread.sequencer is not None and is_later(sequencer, than=unread.sequencer):
        return True
    if unread.sought_at is None:
        return sequencer is None
    old = carrier.message_id == unread.carrier.message_id and carrier.enqueued_at <= unread.carrier.enqueued_at
    return carrier.enqueued_at > unread.sought_at and not old


def latest(sequencers: Iterable[str | None]) -> str | None:
    """Return the sequencer of the latest event; None where one of them has no place in the order of events."""
    found: str | None = ""
    for sequencer in sequencers:
        if sequencer is None or found is None:
            return None
        found = sequencer if is_later(sequencer, than=found) else found
    return found or None


def work_id_of(handler: str, key: str, owner: WorkOwner | None = None) -> bytes:
    """Return the 16 bytes that identify a key of a handler: no collation can merge two of them, and no length is too
    long.

    The identity contains the app and the queue of the ``owner``. Revision 0005 and before knew the handler alone; the
    owner that took over its keys (``is_plain``) keeps these identities, so that both versions agree on every key.
    """
    if "\0" in handler:
        raise ValueError(f"the handler's name {handler!r} has a NUL in it, which separates handler and key")
    if owner is None or owner.is_plain:
        scope = handler
    else:  # begins with a NUL, as no handler's name does
        scope = "\0" + json.dumps([owner.purpose, owner.app, owner.queue, handler])
    return hashlib.sha256(f"{scope}\0{key}".encode("utf-8", "surrogatepass")).digest()[:16]


def check_pipeline(pipeline: str) -> None:
    """Raise `ConfigurationError` for an id that does not fit its column, on every database alike."""
    if (chars := len(pipeline)) > PIPELINE_CHARS_MAX:
        raise ConfigurationError(
            f"the pipeline id {pipeline[:60]}... has {chars:,} characters, and the ledger takes {PIPELINE_CHARS_MAX} "
            "at most: give the pipeline a shorter name, or the table a shorter address"
        )


def check_handler(handler: str) -> None:
    """Raise `ConfigurationError` for a handler's name that does not fit its column, on every database alike."""
    if (chars := len(handler)) > HANDLER_CHARS_MAX:
        raise ConfigurationError(
            f"the handler {handler[:60]}... has a name of {chars:,} characters, and the ledger takes "
            f"{HANDLER_CHARS_MAX} at most: give it a shorter one with name=..."
        )


def storable(text: str) -> str:
    """Text that every database takes: no NUL, no lone surrogates (file names that are not UTF-8 bring them)."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def noted(reason: str, traceback: str | None) -> str:
    """Return what an attempt keeps of a failure: its reason and, behind it, the end of the traceback."""
    if traceback is None:
        return told(reason)
    _, _, frames = f"\n{traceback}".rpartition(_TRACEBACK)
    return told(reason) + storable(_TRACEBACK + frames.rstrip()[-TRACEBACK_CHARS_MAX:])


def parted(note: str | None) -> tuple[str | None, str | None]:
    """Return the reason and the traceback of what `noted` made. Attempts of older versions have no traceback."""
    if note is None:
        return None, None
    reason, found, frames = note.partition(_TRACEBACK)
    return reason, f"{_TRACEBACK[1:]}{frames}" if found else None


def told(reason: str) -> str:
    """A reason as it is kept: storable, and no longer than a person would read."""
    return storable(reason[:REASON_CHARS_MAX])
