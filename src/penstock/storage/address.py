"""Addresses of local folders and S3 prefixes, as users write them."""

import re
from dataclasses import dataclass
from os import PathLike, fspath

from penstock.errors import UsageError

S3 = "s3://"
LOCAL = "file://"
_S3_SCHEMES = (S3, "s3a://", "s3n://")  # Hadoop has names of its own for S3
_LIKE_AN_ADDRESS = re.compile(r"s3:|s3//|arn:|[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Address:
    """A bucket and a prefix in it, without a slash at either end; "" is the whole bucket."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{S3}{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def folder(self) -> str:
        """Return the prefix of all keys below the address; "" for the whole bucket."""
        return f"{self.prefix}/" if self.prefix else ""

    def contains(self, bucket: str, key: str) -> bool:
        """Return True if the key is the address itself or below it.

        The comparison is literal: dots and slashes in keys mean nothing to S3.
        """
        return bucket == self.bucket and (key == self.prefix or key.startswith(self.folder))


def is_s3(address: str) -> bool:
    """Return True if the address has a scheme of S3."""
    return address.startswith(_S3_SCHEMES)


def check_address(subject: str, address: str | PathLike[str]) -> str:
    """Return the address, of S3 or of a folder, as text.

    Raises `UsageError` if it resembles another kind of address: a typo in ``s3://`` would otherwise name a local
    folder.
    """
    text = fspath(address)
    if not text:
        raise UsageError(f"The {subject} has no address; give a folder, or s3://BUCKET/PREFIX.")
    if is_s3(text):
        s3_address(text)
    elif _is_strange(text):
        raise UsageError(
            f"The {subject} {text} is neither a local folder nor s3://BUCKET/PREFIX: write one of them, with ./ before "
            "a folder that has such a name."
        )
    return text


def check_folder(subject: str, address: str | PathLike[str]) -> str:
    """Return a folder's path as text. Raises `UsageError` if it resembles an address of another kind."""
    text = fspath(address)
    if _is_strange(text):
        raise UsageError(
            f"The {subject} {text} is not a folder on this host: write a path, with ./ before a folder "
            "that has such a name."
        )
    return text


def s3_address(text: str) -> S3Address:
    """Parse ``s3://bucket/prefix``, also with s3a or s3n. Raises `UsageError` if it names no bucket."""
    bucket, _, prefix = text.partition("://")[2].partition("/")
    if not is_s3(text) or not bucket or any(character in bucket for character in "@:?#% "):
        raise UsageError(f"{text!r} is not an S3 address: write s3://BUCKET/PREFIX.")
    return S3Address(bucket=bucket, prefix=prefix.strip("/"))


def _is_strange(text: str) -> bool:
    return not text.startswith(LOCAL) and _LIKE_AN_ADDRESS.match(text) is not None
