"""Replays: the bad lines that one attempt found in an object, read once more.

A replay is an object of its own in the protocol, so the claim and the commit of objects also make a replay count once.
It has the bucket, key and size of its source; its version is that of the source followed by ``#replay=`` and the
attempt that quarantined the lines. Only a store that opens the object needs the source's version.
"""

from dataclasses import replace

from penstock.objects.reference import ObjectRef

_MARK = "#replay="


def replay_of(ref: ObjectRef, attempt_id: str) -> ObjectRef:
    """Return the replay of the lines that an attempt found bad in this version, which may be a replay itself."""
    source = source_of(ref)
    if source.version_id is not None:
        return replace(source, version_id=f"{source.version_id}{_MARK}{attempt_id}", sequencer=None)
    return replace(source, etag=f"{source.etag or ''}{_MARK}{attempt_id}", sequencer=None)


def source_of(ref: ObjectRef) -> ObjectRef:
    """Return the version that a store can open: the replay's source, or the object itself if it is no replay."""
    if not is_replay(ref.version_id, ref.etag):
        return ref
    if ref.version_id is not None:
        return replace(ref, version_id=ref.version_id.partition(_MARK)[0])
    return replace(ref, etag=(ref.etag or "").partition(_MARK)[0] or None)


def is_replay(version_id: str | None, etag: str | None) -> bool:
    """Return True if a version is that of a replay."""
    return _MARK in (version_id if version_id is not None else etag or "")


def replayed_attempt(ref: ObjectRef) -> str | None:
    """Return the attempt whose lines are read again; None if the object is no replay."""
    version = ref.version_id if ref.version_id is not None else ref.etag or ""
    return version.partition(_MARK)[2] or None
