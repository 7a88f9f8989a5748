"""Addresses, as people write them -> the files that lie there."""

import os
from pathlib import Path

from penstock.storage.address import is_s3, s3_address
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.local_files import LocalFiles
from penstock.storage.s3_files import S3Files

_FILE = "file://"


def files_at(address: str, aws: Aws) -> Files:
    """What lies at a path, a ``file://`` URI or an ``s3://`` address. Nothing is asked yet.

    Raises `UsageError` where it is none of these.
    """
    if is_s3(address):
        return S3Files(s3_address(address), aws)
    return LocalFiles(Path(os.path.realpath(_path(address))))
