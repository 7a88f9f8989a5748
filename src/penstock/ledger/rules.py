"""Rules of the ledger that need no database: pure functions."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.ledger.records import OriginalMessage, WorkOwner

REASON_CHARS_MAX = 4_000
PIPELINE_CHARS_MAX = 512  # the size of its column, which only some databases enforce
HANDLER_CHARS_MAX = 256
NEVER = 1e15  # epoch seconds beyond any clock; not every database accepts infinity
TRACEBACK_CHARS_MAX = 8_000  # together with the reason below the 65,535 bytes of a MySQL TEXT
_TRACEBACK = "\nTraceback (most recent call last):\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedObjectState:
    """A failed object as `revives` sees it: its original message, last failure and replays already used."""

    original_message: OriginalMessage
    dead_at: float
    replay_ids: frozenset[str]


def made_with(transform: str) -> str:
    """Return the name of a transform, as `BatchRecord` has it, as the end of a sentence."""
    return f"with the transform {transform}" if transform else "without a transform"


def retry_id(pipeline: str, object_id: bytes, ended_at: float | None) -> str:
    """Return the replay id of the messages that `penstock objects retry` sends for one end of an object."""
    end = f"{pipeline}\0{object_id.hex()}\0{ended_at or 0.0:.6f}"
    return hashlib.sha256(end.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_later(sequencer: str, than: str) -> bool:
    """Return True if one event of a key is later than another.

    Amazon S3's rule ("Event message structure" in its user guide): right-pad the shorter sequencer with zeros, then
    compare as text.
    """
    width = max(len(sequencer), len(than))
    return sequencer.ljust(width, "0") > than.ljust(width, "0")


def revives(message: OriginalMessage, dead: FailedObjectState) -> bool:
    """Return True if a message revives a failed object, or may become the original message of a revived one.

    It revives the object if its replay id has not been used for the object, or if it was enqueued after the failure
    (resent from a broker's console, which sets no replay id). A redelivery of the original message never does, even if
    the broker's clock is ahead of the database's.
    """
    if message.replay_id is not None and message.replay_id not in dead.replay_ids:
        return True
    redelivered = (
        message.message_id == dead.original_message.message_id
        and message.enqueued_at <= dead.original_message.enqueued_at
    )
    return message.enqueued_at > dead.dead_at and not redelivered


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadObject:
    """The recorded end of an object deleted or replaced before it was read; input of `restores`."""

    original_message: OriginalMessage
    # messages enqueued later may override the end; None: superseded without a check of the store
    sought_at: float | None
    sequencer: str | None
    replay_ids: frozenset[str]  # replays already used for it


def restores(message: OriginalMessage, sequencer: str | None, unread: UnreadObject) -> bool:
    """Return True if a message may override the recorded end of an object that was never read.

    It may if its replay id has not been used for the object, if it is the notification of a later event of the key, or
    if it was enqueued after the start of the attempt that first found the object missing or replaced. If the object was
    superseded by the order of events alone, without a check of the store, a message without a sequencer (from a
    listing) may too: the store then decides. A redelivery of the original message never does.
    """
    if message.replay_id is not None and message.replay_id not in unread.replay_ids:
        return True
    if sequencer is not None and unread.sequencer is not None and is_later(sequencer, than=unread.sequencer):
        return True
    if unread.sought_at is None:
        return sequencer is None
    old = (
        message.message_id == unread.original_message.message_id
        and message.enqueued_at <= unread.original_message.enqueued_at
    )
    return message.enqueued_at > unread.sought_at and not old


def latest(sequencers: Iterable[str | None]) -> str | None:
    """Return the sequencer of the latest event; None if any of them is None, because the order is then unknown."""
    found: str | None = ""
    for sequencer in sequencers:
        if sequencer is None or found is None:
            return None
        found = sequencer if is_later(sequencer, than=found) else found
    return found or None


def work_id_of(handler: str, key: str, owner: WorkOwner | None = None) -> bytes:
    """Return the 16 bytes that identify a key of a handler. Being a hash, they suit any collation and key length.

    The identity contains the app and the queue of the ``owner``. Revision 0005 and before used the handler alone. The
    owner that took over those keys (``is_plain``) keeps these identities, so that both versions agree on every key.
    """
    if "\0" in handler:
        raise ValueError(f"the handler's name {handler!r} contains a NUL, which separates handler and key")
    if owner is None or owner.is_plain:
        scope = handler
    else:  # begins with a NUL, which no handler's name contains
        scope = "\0" + json.dumps([owner.purpose, owner.app, owner.queue, handler])
    return hashlib.sha256(f"{scope}\0{key}".encode("utf-8", "surrogatepass")).digest()[:16]


def check_pipeline(pipeline: str) -> None:
    """Raise `ConfigurationError` if the id does not fit its column, on every database alike."""
    if (chars := len(pipeline)) > PIPELINE_CHARS_MAX:
        raise ConfigurationError(
            f"the pipeline id {pipeline[:60]}... has {chars:,} characters, and the ledger takes {PIPELINE_CHARS_MAX} "
            "at most: give the pipeline a shorter name, or the table a shorter address"
        )


def check_handler(handler: str) -> None:
    """Raise `ConfigurationError` if the handler's name does not fit its column, on every database alike."""
    if (chars := len(handler)) > HANDLER_CHARS_MAX:
        raise ConfigurationError(
            f"the handler {handler[:60]}... has a name of {chars:,} characters, and the ledger takes "
            f"{HANDLER_CHARS_MAX} at most: give it a shorter one with name=..."
        )


def storable(text: str) -> str:
    """Return text that every database accepts: no NUL, no lone surrogates (from file names that are not UTF-8)."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def failure_note(reason: str, traceback: str | None) -> str:
    """Return the failure note that an attempt stores: the reason, followed by the end of the traceback."""
    if traceback is None:
        return stored_reason(reason)
    _, _, frames = f"\n{traceback}".rpartition(_TRACEBACK)
    return stored_reason(reason) + storable(_TRACEBACK + frames.rstrip()[-TRACEBACK_CHARS_MAX:])


def split_note(note: str | None) -> tuple[str | None, str | None]:
    """Return the reason and the traceback of a `failure_note`. Attempts of older versions have no traceback."""
    if note is None:
        return None, None
    reason, found, frames = note.partition(_TRACEBACK)
    return reason, f"{_TRACEBACK[1:]}{frames}" if found else None


def stored_reason(reason: str) -> str:
    """Return a reason as it is stored: in storable characters and truncated."""
    return storable(reason[:REASON_CHARS_MAX])
