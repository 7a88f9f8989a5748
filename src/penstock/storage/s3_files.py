"""A prefix in S3, as a place where files lie."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, BinaryIO, NoReturn, cast

from penstock.errors import UsageError
from penstock.storage.address import S3, S3Address
from penstock.storage.aws import Aws
from penstock.storage.files import FileInfo
from penstock.storage.s3_client import bucket_client, check_nameable, delta_options, requester, service_client
from penstock.storage.s3_faults import Kind, fault_of, is_of_s3, refuse
from penstock.storage.s3_input import S3Input
from penstock.storage.s3_output import S3Output

HELD_BYTES_MAX = 1 << 20  # of a file that is read: up to it all is fetched at once
_DELETED_AT_ONCE = 1_000  # as many as S3 takes


@dataclass(frozen=True, slots=True)
class S3Files:
    """`penstock.storage.files.Files` below a prefix. Holds no client: those are this process's, see s3_client."""

    address: S3Address
    aws: Aws

    def __post_init__(self) -> None:
        check_nameable(str(self.address), self.address.prefix)

    def __str__(self) -> str:
        return str(self.address)

    @property
    def uri(self) -> str:
        return str(self.address)

    @property
    def name(self) -> str:
        return self.address.prefix.rpartition("/")[2] or self.address.bucket

    @property
    def is_local(self) -> bool:
        return False

    def store_options(self) -> Mapping[str, str]:
        with self._explained(""):
            return delta_options(self.aws, self.address.bucket)

    def below(self, path: str) -> "S3Files":
        return self._at(self._key(path.strip("/")))

    def beside(self, name: str) -> "S3Files":
        if not self.address.prefix:
            raise UsageError(f"Nothing lies beside a whole bucket: name a prefix in it, as in {self.uri}/clicks.")
        parent, slash, _ = self.address.prefix.rpartition("/")
        return self._at(f"{parent}{slash}{name}")

    def stat(self, path: str) -> FileInfo | None:
        try:
            with self._explained(path):
                head = self._bucket().head(self._key(path))
        except FileNotFoundError:
            return None
        return FileInfo(path=path, size_bytes=head["size"], modified_at=head["last_modified"].timestamp())

    def list(self, folder: str = "") -> Iterator[FileInfo]:
        root = self._key("")
        below = self._folder(folder)
        for page in self._pages(folder, Prefix=below):
            for entry in page.get("Contents", ()):
                path = entry["Key"][len(root) :].removeprefix("/")
                if path and not path.endswith("/"):  # else a folder that somebody made in AWS's console
                    yield FileInfo(path=path, size_bytes=entry["Size"], modified_at=entry["LastModified"].timestamp())

    def names(self, folder: str = "") -> Sequence[str]:
        below = self._folder(folder)
        found: list[str] = []
        for page in self._pages(folder, Prefix=below, Delimiter="/"):
            found += (entry["Key"] for entry in page.get("Contents", ()))
            found += (entry["Prefix"] for entry in page.get("CommonPrefixes", ()))
        return sorted(key[len(below) :] for key in found if key != below)

    def read(self, path: str) -> bytes:
        with self._explained(path):
            return bytes(self._bucket().get(self._key(path)).bytes())

    def write(self, path: str, data: bytes) -> None:
        with self._explained(path):
            self._bucket().put(self._key(path), data, use_multipart=False)

    def write_new(self, path: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with self._explained(path):
            try:
                self._bucket().put(self._key(path), data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    @contextmanager
    def open_input(self, path: str) -> Iterator[BinaryIO]:
        with self._explained(path):
            head = self._bucket().head(self._key(path))
        size_bytes, etag = head["size"], head["e_tag"]

        def fetch(start: int, stop: int) -> bytes:
            with self._explained(path):
                got = self._bucket().get(self._key(path), options={"range": (start, stop), "if_match": etag})
                return bytes(got.bytes())

        file: io.IOBase = S3Input(size_bytes, fetch)
        if 0 < size_bytes <= HELD_BYTES_MAX:
            file = io.BytesIO(fetch(0, size_bytes))
        with file:
            yield cast(BinaryIO, file)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        file = S3Output(
            client=service_client(self.aws),
            bucket=self.address.bucket,
            key=self._key(path),
            put=lambda data: self.write(path, data),
            size_of=lambda: self._size(path),
            explained=lambda: self._explained(path),
            extra=requester(self.aws),
        )
        try:
            yield cast(BinaryIO, file)
            file.complete()
        except BaseException:
            file.abort()
            raise

    def make_durable(self, paths: Iterable[str]) -> None:
        """What S3 has taken outlasts anything that we could do for it."""

    def delete(self, paths: Iterable[str]) -> None:
        remaining = iter(paths)
        while some := list(islice(remaining, _DELETED_AT_ONCE)):
            with self._explained(some[0]):
                answer = service_client(self.aws).delete_objects(
                    Bucket=self.address.bucket,
                    Delete={"Objects": [{"Key": self._key(path)} for path in some], "Quiet": True},
                    **requester(self.aws),
                )
            for failed in answer.get("Errors", ()):
                self._refuse_deleting(failed)

    def prune(self, folder: str) -> None:
        """There are no folders to remove."""

    # -- how -----------------------------------------------------------------------------------------------------

    def _at(self, prefix: str) -> "S3Files":
        return S3Files(replace(self.address, prefix=prefix), self.aws)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self.address.prefix, path) if part)

    def _size(self, path: str) -> int | None:
        found = self.stat(path)
        return None if found is None else found.size_bytes

    def _folder(self, folder: str) -> str:
        """What the keys of a folder begin with."""
        key = self._key(folder.strip("/"))
        return f"{key}/" if key else ""

    def _bucket(self) -> Any:
        return bucket_client(self.address.bucket, self.aws)

    def _pages(self, folder: str, **asked: str) -> Iterator[Any]:
        with self._explained(folder):
            pages = service_client(self.aws).get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self.address.bucket, **asked, **requester(self.aws))

    def _address(self, path: str) -> str:
        return f"{S3}{self.address.bucket}/{self._key(path)}"

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """What S3 refuses, but for a file that is not there, in our own words."""
        try:
            yield
        except Exception as error:
            if not is_of_s3(error):
                raise
            if fault_of(error).kind is Kind.MISSING:
                raise FileNotFoundError(f"{self._address(path)} is not there") from None
            refuse(self._address(path), error)

    def _refuse_deleting(self, failed: Mapping[str, str]) -> NoReturn:
        from botocore.exceptions import ClientError

        error = ClientError({"Error": {"Code": failed.get("Code", "")}}, "DeleteObjects")
        refuse(f"{S3}{self.address.bucket}/{failed.get('Key', '')}", error)
