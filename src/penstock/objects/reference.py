"""What an object is, and how it is told from another one.

Identity is bytes, never text: databases fold case, trailing blanks and emoji; object stores do not.
"""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property

LOCAL_BUCKET = "file"  # local files live in this pseudo-bucket; their key is the absolute real path


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
        return os.fsencode(self.key)

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
        """For people, logs and the ``_object`` column: always valid Unicode, unescaped where it can be."""
        shown = self.key_bytes.decode("utf-8", errors="backslashreplace")
        return f"file://{shown}" if self.bucket == LOCAL_BUCKET else f"s3://{self.bucket}/{shown}"
