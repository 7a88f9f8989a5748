"""From a source's address to the store that reads it."""

from penstock.objects.local import LocalStore
from penstock.objects.store import ObjectStore
from penstock.storage.address import is_s3, s3_address
from penstock.storage.aws import Aws


def store_at(source: str, aws: Aws, *, remembers: bool = True) -> ObjectStore:
    """Return the store for a folder's real path, or for s3://BUCKET/PREFIX. ``remembers``: see `LocalRoot`."""
    if is_s3(source):
        from penstock.objects.s3 import S3Store

        return S3Store(s3_address(source), aws)
    return LocalStore(source, remembers=remembers)
