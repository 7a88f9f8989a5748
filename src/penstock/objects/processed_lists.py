"""Read lists of objects that another system has processed, with the same identities as notifications and listings.

A list is JSON with one object per line, or CSV with a header. The fields are ``uri``, or ``bucket`` and ``key``;
``size`` (or ``size_bytes``); ``etag``; ``version_id``. Keys and paths are not percent-encoded. Relative paths are
resolved in the current folder.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.messaging.wording import counted
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef, encode_key, key_bytes_max

_LOCAL, _S3 = "file://", "s3://"
_FIELDS = frozenset({"uri", "bucket", "key", "size", "size_bytes", "etag", "version_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """One line of a list: an object, or a problem."""

    line: int
    ref: ObjectRef | None
    problem: str = ""
    has_version: bool = True  # True if the line has a version_id, even an empty one for an S3 object without versions


class _NoObjectError(Exception):
    """A line does not describe an object; the message is the reason."""


def read_list(lines: Iterable[bytes]) -> Iterator[ListedObject]:
    """Yield every line that is not blank, in order."""
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(numbered, None)
    if first is None:
        return
    if first[1].lstrip(b"\xef\xbb\xbf \t").startswith(b"{"):
        yield _json_entry(*first)
        for number, line in numbered:
            yield _json_entry(number, line)
    else:
        yield from _csv_entries(first, numbered)


def _json_entry(number: int, line: bytes) -> ListedObject:
    try:
        fields = json.loads(line.decode("utf-8-sig", "surrogateescape"))
    except ValueError as error:
        return ListedObject(line=number, ref=None, problem=f"is not JSON: {error}")
    if not isinstance(fields, dict):
        return ListedObject(line=number, ref=None, problem="is not a JSON object")
    return _listed(number, fields)


def _csv_entries(first: tuple[int, bytes], numbered: Iterator[tuple[int, bytes]]) -> Iterator[ListedObject]:
    header = _cells(first[1].removeprefix(b"\xef\xbb\xbf"))
    names = [name.strip().lower() for name in header]
    if not ({"uri"} <= {*names} or {"bucket", "key"} <= {*names}):
        problem = "is neither JSON nor a CSV header with uri, or bucket and key"
        yield ListedObject(line=first[0], ref=None, problem=problem)
        return
    for number, line in numbered:
        cells = _cells(line)
        if len(cells) != len(names):
            problem = f"has {counted(len(cells), 'field')}, and the header {len(names)}"
            yield ListedObject(line=number, ref=None, problem=problem)
        else:
            yield _listed(number, dict(zip(names, cells, strict=True)))


def _cells(line: bytes) -> list[str]:
    """Split a line of CSV. A key with a line break is not supported in CSV, only in JSON."""
    return next(csv.reader([line.decode("utf-8", "surrogateescape").rstrip("\r\n")]), [])


def _listed(number: int, fields: Mapping[str, Any]) -> ListedObject:
    try:
        return ListedObject(line=number, ref=_reference(fields), has_version="version_id" in fields)
    except _NoObjectError as error:
        return ListedObject(line=number, ref=None, problem=str(error))


def _reference(fields: Mapping[str, Any]) -> ObjectRef:
    has_version = {name: fields[name] for name in _FIELDS if fields.get(name) not in (None, "")}
    bucket, key = _named(has_version)
    version_id = None if has_version.get("version_id") == "null" else _text(has_version, "version_id")
    etag = (_text(has_version, "etag") or "").strip('"') or None
    size_bytes = _size(has_version)
    if bucket == LOCAL_BUCKET and etag is None:
        return _as_it_is(key)
    if version_id is None and (etag is None or size_bytes is None):
        raise _NoObjectError("needs version_id, or etag and size, to tell which version was processed")
    return ObjectRef(bucket=bucket, key=key, size_bytes=size_bytes or 0, version_id=version_id, etag=etag)


def _named(has_version: Mapping[str, Any]) -> tuple[str, str]:
    uri = _text(has_version, "uri")
    if uri is None:
        bucket, key = _text(has_version, "bucket"), _text(has_version, "key")
    elif uri.startswith(_S3):
        bucket, _, key = uri.removeprefix(_S3).partition("/")
    else:
        bucket, key = LOCAL_BUCKET, _path(uri)
    if not bucket or not key:
        raise _NoObjectError("identifies no object: it needs uri, or bucket and key")
    if len(encode_key(key)) > key_bytes_max(bucket):
        raise _NoObjectError(f"has a key of more than {key_bytes_max(bucket):,} bytes")
    return bucket, key


def _path(uri: str) -> str:
    """Return a file's path. A relative path must exist, since it may also be a key whose bucket was forgotten."""
    path = uri.removeprefix(_LOCAL)
    if path.startswith("/"):
        return path
    if "://" not in uri and "\0" not in uri and Path(uri).is_file():
        return str(Path(uri).resolve())
    raise _NoObjectError(f"names {uri!r}, which is neither s3://BUCKET/KEY nor file:///PATH nor a file path")


def _text(has_version: Mapping[str, Any], name: str) -> str | None:
    value = has_version.get(name)
    if value is not None and not isinstance(value, str):
        raise _NoObjectError(f"has {name}={value!r}, which is not text")
    return value


def _size(has_version: Mapping[str, Any]) -> int | None:
    value = has_version.get("size", has_version.get("size_bytes"))
    if value is None:
        return None
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = -1
    if isinstance(value, bool | float) or size < 0:
        raise _NoObjectError(f"has the size {value!r}, which is not a number of bytes")
    return size


def _as_it_is(path: str) -> ObjectRef:
    """Return the current version of a file whose version the list does not contain."""
    try:
        return LocalStore("/").describe(encode_key(path))
    except PenstockError as error:
        raise _NoObjectError(f"has no etag, and the file cannot be read: {error}") from error
