"""The identity of an object's version.

Identity is computed from bytes, never from text: databases fold case, trailing blanks and emoji; object stores do not.
"""

import hashlib
import re
from dataclasses import dataclass, field

LOCAL_BUCKET = "file"  # pseudo-bucket of local files; their key is the absolute real path

S3_KEY_BYTES_MAX = 1_024
PATH_BYTES_MAX = 4_096  # Linux's PATH_MAX

_ESCAPED = re.compile(r"\\x[89a-f][0-9a-f]")  # a byte outside UTF-8 as `uri_of` writes it


def encode_key(key: str) -> bytes:
    """Return the bytes of a key: UTF-8 with surrogate escapes, whatever the locale, since object ids depend on it."""
    return key.encode("utf-8", "surrogateescape")


def decode_key(key: bytes) -> str:
    """Return the text of a key. `encode_key` restores exactly the same bytes, even if they are not valid UTF-8."""
    return key.decode("utf-8", errors="surrogateescape")


def key_bytes_max(bucket: str) -> int:
    """Return the maximum length of a key in this bucket."""
    return PATH_BYTES_MAX if bucket == LOCAL_BUCKET else S3_KEY_BYTES_MAX


def uri_of(bucket: str, key: str) -> str:
    r"""Return the address for people, logs and the ``_object`` column: valid Unicode, a different one for each key.

    Bytes outside UTF-8 are escaped, such as \xff. A key with such bytes, or with text that looks like one of them, has
    its own backslashes doubled; every other key is shown as it is.
    """
    shown = key if key.isascii() else encode_key(key).decode("utf-8", errors="backslashreplace")
    if "\\" in shown and is_escaped(shown):
        shown = encode_key(key.replace("\\", "\\\\")).decode("utf-8", errors="backslashreplace")
    return f"file://{shown}" if bucket == LOCAL_BUCKET else f"s3://{bucket}/{shown}"


def is_escaped(uri: str) -> bool:
    """Return True if the address is not simply the key: earlier versions gave two keys the same one, see `uri_of`."""
    return _ESCAPED.search(uri) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """One version of one object.

    ``key`` may hold surrogate escapes if a local file name is not UTF-8; ``key_bytes`` is authoritative. ``version_id``
    is set if the store keeps versions. Otherwise ``etag`` and ``size_bytes`` tell versions apart (a local file's etag
    contains its modification time).
    """

    bucket: str
    key: str
    size_bytes: int
    version_id: str | None = None
    etag: str | None = None
    sequencer: str | None = None  # orders the versions of a key; not part of the identity
    # Computed when it is first needed. A cached_property would cost a dict for each of 100,000 objects.
    _object_id: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def key_bytes(self) -> bytes:
        return encode_key(self.key)

    @property
    def object_id(self) -> bytes:
        """The first 16 bytes of sha256(bucket, 0, key, 0, version id or etag+size).

        The same whether derived from a notification, a listing or an inventory.
        """
        if self._object_id is not None:
            return self._object_id
        version = self.version_id if self.version_id is not None else f"{self.etag or ''}+{self.size_bytes}"
        parts = (self.bucket.encode(), self.key_bytes, version.encode())
        object_id = hashlib.sha256(b"\0".join(parts)).digest()[:16]
        object.__setattr__(self, "_object_id", object_id)
        return object_id

    @property
    def uri(self) -> str:
        """The address for people, logs and the ``_object`` column; see `uri_of`."""
        return uri_of(self.bucket, self.key)


class ObjectFacts:
    """The facts of one version of one object, for a user's function: what its reference says."""

    _ref: ObjectRef

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @property
    def uri(self) -> str:
        """The object's address for people and logs. Always valid Unicode."""
        return self._ref.uri

    @property
    def bucket(self) -> str:
        return self._ref.bucket

    @property
    def key(self) -> str:
        """The exact key, neither decoded nor cleaned: do not use it as a path. Bytes of file names that are not UTF-8
        appear as surrogate escapes."""
        return self._ref.key

    @property
    def key_bytes(self) -> bytes:
        return self._ref.key_bytes

    @property
    def size_bytes(self) -> int:
        """The size as stored."""
        return self._ref.size_bytes

    @property
    def version_id(self) -> str | None:
        return self._ref.version_id

    @property
    def etag(self) -> str | None:
        return self._ref.etag
