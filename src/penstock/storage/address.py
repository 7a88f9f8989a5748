"""Addresses in S3, as people write them."""

from dataclasses import dataclass

from penstock.errors import UsageError

S3 = "s3://"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Address:
    """A bucket and a prefix in it, without a slash at either end; "" is the whole bucket."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{S3}{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def folder(self) -> str:
        """What the keys below it begin with; "" for the whole bucket."""
        return f"{self.prefix}/" if self.prefix else ""

    def holds(self, bucket: str, key: str) -> bool:
        """Whether a key is the address or below it, literally: dots and slashes in keys mean nothing to S3."""
        return bucket == self.bucket and (key == self.prefix or key.startswith(self.folder))


def is_s3(address: str) -> bool:
    """Whether it is meant to be one."""
    return address.startswith(S3)


def s3_address(text: str) -> S3Address:
    """The address in ``s3://bucket/prefix``. Raises `UsageError` where that names no bucket."""
    bucket, _, prefix = text.removeprefix(S3).partition("/")
    if not is_s3(text) or not bucket or any(character in bucket for character in "@:?#% "):
        raise UsageError(f"{text!r} is no address in S3: write s3://BUCKET/PREFIX.")
    return S3Address(bucket=bucket, prefix=prefix.strip("/"))
