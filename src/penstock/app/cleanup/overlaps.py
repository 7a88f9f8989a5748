"""Whether two addresses can name one object, so that what is moved to the one would be read from the other.

Better one address too many refused than one too few: letter case, Unicode spelling, links, dots and doubled slashes are
looked through, although a store may tell some of them apart.
"""

import os
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from penstock.app.cleanup.declaration import Cleanup, Keep, Move
from penstock.app.places import QUARANTINE_SUFFIX, real
from penstock.errors import UsageError
from penstock.storage.address import is_s3, s3_address

Address = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Something of an app that reads a source: a pipeline, or an object handler."""

    name: str
    source: Address
    cleanup: Cleanup = field(default_factory=Keep)
    table: Address | None = None


def overlap(one: Address, other: Address) -> bool:
    """Whether one is the other, or lies in it."""
    if is_s3(str(one)) != is_s3(str(other)):
        return False
    if any(_within(a, b) or _within(b, a) for a in _spellings(one) for b in _spellings(other)):
        return True
    return not is_s3(str(one)) and (_is_folder_above(one, other) or _is_folder_above(other, one))


def check_apart(readers: Sequence[Reader]) -> None:
    """Raise `UsageError` where one reader's cleanup would take away what another one reads, or where moved objects
    would come to lie where something is read or written: there they would announce themselves once more."""
    for reader in readers:
        if isinstance(reader.cleanup, Move):
            _check_target(reader, reader.cleanup.target, readers)
        if reader.cleanup.takes_away:
            for other in readers:
                if other is not reader and overlap(reader.source, other.source):
                    raise UsageError(
                        f"The cleanup of {reader.name} would {reader.cleanup.action} what {other.name} reads too "
                        f"({reader.source} and {other.source}); tag the objects, or keep them."
                    )


def _check_target(reader: Reader, target: Address, readers: Sequence[Reader]) -> None:
    for other in readers:
        if overlap(target, other.source):
            whose = "its own source" if other is reader else f"the source of {other.name}"
            raise UsageError(
                f"The cleanup of {reader.name} would move objects to {target}, which overlaps with {whose} "
                f"({other.source}): they would announce themselves again; name a target that lies apart from it."
            )
        for place in _written(other):
            if overlap(target, place):
                raise UsageError(
                    f"The cleanup of {reader.name} would move objects to {target}, where the tables of {other.name} "
                    f"are ({place}); name a target that lies apart from them."
                )


def _written(reader: Reader) -> Iterator[str]:
    if reader.table is not None:
        table = str(reader.table).rstrip("/")
        yield from (table, f"{table}{QUARANTINE_SUFFIX}")


def _spellings(address: Address) -> Iterator[str]:
    """Ways to write it, each beginning with what stands above it."""
    if is_s3(str(address)):
        found = s3_address(str(address))
        path = f"/{found.bucket}/{found.prefix}"
        ways = {path, re.sub(r"/+", "/", path), posixpath.normpath(path)}
    else:
        ways = {str(real(address)), os.path.normpath(real(address))}
    for way in ways:
        yield unicodedata.normalize("NFC", unicodedata.normalize("NFC", way).casefold()).rstrip("/")


def _within(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer}/")


def _is_folder_above(outer: Address, inner: Address) -> bool:
    """Whether the one is the other or above it by what the file system says: two names of one folder, mounts."""
    above = real(outer)
    return above.exists() and any(_same(above, folder) for folder in (real(inner), *real(inner).parents))


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
