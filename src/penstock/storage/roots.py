"""Convert addresses, as users write them, to `Files`."""

import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from penstock.errors import UsageError
from penstock.storage.address import is_s3, s3_address
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def files_at(address: str, aws: Aws) -> Files:
    """Return the files at a path, a ``file://`` URI or an ``s3://`` address, without any access yet.

    Raises `UsageError` for any other address.
    """
    if is_s3(address):
        return S3Files(s3_address(address), aws)
    return LocalFiles(Path(os.path.realpath(_path(address))))


def _path(address: str) -> str:
    if not _SCHEME.match(address):
        return address
    parts = urlsplit(address)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise UsageError(f"{address!r} is not a location for files: write a path, file:///PATH or s3://BUCKET/PREFIX.")
    return os.fsdecode(unquote_to_bytes(address.partition("://")[2].removeprefix("localhost")))
