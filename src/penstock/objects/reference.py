"""What an object is, and how it is told from another one.

Identity is bytes, never text: databases fold case, trailing blanks and emoji; object stores do not.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

LOCAL_BUCKET = "file"  # local files live in this pseudo-bucket; their key is the absolute real path

S3_KEY_BYTES_MAX = 1_024
PATH_BYTES_MAX = 4_096  # Linux's PATH_MAX


def encode_key(key: str) -> bytes:
    """A key's bytes. UTF-8 with surrogate escapes, whatever the process's locale says: identity hangs on it."""
    return key.encode("utf-8", errors="surrogateescape")


def decode_key(key: bytes) -> str:
    """The text of a key, from which `encode_key` gets the same bytes back, whatever they are."""
    return key.decode("utf-8", errors="surrogateescape")


def key_bytes_max(bucket: str) -> int:
    """How long a key in that bucket can be."""
    return PATH_BYTES_MAX if bucket == LOCAL_BUCKET else S3_KEY_BYTES_MAX


def uri_of(bucket: str, key: str) -> str:
    """For people, logs and the ``_object`` column: always valid Unicode, unescaped where it can be."""
    shown = encode_key(key).decode("utf-8", errors="backslashreplace")
    return f"file://{shown}" if bucket == LOCAL_BUCKET else f"s3://{bucket}/{shown}"


@dataclass(frozen=True, kw_only=True)
class ObjectRef:
    """One version of one object.

    ``key`` may hold surrogate escapes where a local file name is not UTF-8; ``key_bytes`` is the truth.
    ``version_id`` is the store's version where it keeps versions; else ``etag`` and ``size_bytes`` tell versions apart
    (a local file's etag is made of its modification time).
    """

    bucket: str
    key: str
    size_bytes: int
    version_id: str | None = None
    etag: str | None = None
    sequencer: str | None = None  # orders the versions of a key; identifies nothing

    @property
    def key_bytes(self) -> bytes:
        return encode_key(self.key)

    @cached_property
    def object_id(self) -> bytes:
        """16 bytes: sha256(bucket, 0, key, 0, version id or etag+size), cut.

        Derivable from a notification as well as from a listing or an inventory.
        """
        version = self.version_id if self.version_id is not None else f"{self.etag or ''}+{self.size_bytes}"
        parts = (self.bucket.encode(), self.key_bytes, version.encode())
        return hashlib.sha256(b"\0".join(parts)).digest()[:16]

    @property
    def uri(self) -> str:
        """For people, logs and the ``_object`` column: `uri_of` bucket and key."""
        return uri_of(self.bucket, self.key)
