"""Declare the cleanup of a pipeline's or object handler's source objects once they are processed.

Usage: ``from penstock import cleanup``, then ``ObjectSource(..., cleanup=cleanup.Delete(after="30 days"))``.

The declarations are checked as far as possible on their own and then frozen. `check_apart` compares the addresses of an
app's readers, so that no cleanup moves or deletes objects that another one reads, or moves objects to where they would
be read again. It prefers refusing one address too many: letter case, Unicode forms, links, dots and doubled slashes
count as equal, although a store may distinguish some of them.
"""

import os
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from penstock.app.paths import QUARANTINE_SUFFIX, real
from penstock.errors import UsageError
from penstock.handlers.durations import Duration, seconds_of
from penstock.storage.address import check_address, is_s3, s3_address

TAGS_MAX = 10  # per object in S3
TAG_NAME_CHARS_MAX = 128
TAG_VALUE_CHARS_MAX = 256
PROCESSED_TAG = MappingProxyType({"penstock": "processed"})
_TAG_TEXT = re.compile(r"[\w +\-=.:/@]*")
_NOTHING = re.compile(r"\s*0+(\.0+)?\s*([a-zA-Z]+)?\s*")


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the objects unchanged."""

    action: ClassVar[str] = "keep"
    removes_source: ClassVar[bool] = False  # True if the object is no longer readable at its source afterwards
    after_seconds: ClassVar[float] = 0.0


@dataclass(frozen=True, slots=True)
class Tag:
    """Add tags to the objects ``after`` this time and keep their other tags. S3 only.

    For lifecycle rules of the bucket, such as one that expires tagged objects.
    """

    tags: Mapping[str, str] = field(default_factory=lambda: PROCESSED_TAG)
    after: Duration = field(default=0, kw_only=True)
    after_seconds: float = field(init=False, repr=False)
    action: ClassVar[str] = "tag"
    removes_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_tags(self.tags)
        object.__setattr__(self, "tags", MappingProxyType(dict(self.tags)))
        object.__setattr__(self, "after_seconds", _seconds_of(self.after))


@dataclass(frozen=True, slots=True)
class Move:
    """Move the objects below ``target`` ``after`` this time, keeping the key or path they have in the source.

    The target is a folder for a source folder and s3://BUCKET/PREFIX for a source in S3. Existing objects are not
    overwritten.
    """

    target: str | PathLike[str]
    after: Duration = field(default=0, kw_only=True)
    after_seconds: float = field(init=False, repr=False)
    action: ClassVar[str] = "move"
    removes_source: ClassVar[bool] = True

    def __post_init__(self) -> None:
        text = check_address("cleanup's target", self.target)
        parts = s3_address(text).prefix.split("/") if is_s3(text) else [""]
        if parts != [""] and any(part in ("", ".", "..") for part in parts):
            raise UsageError(f"The cleanup's target {text} has a part that is empty, '.' or '..'; write it without.")
        object.__setattr__(self, "after_seconds", _seconds_of(self.after))


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the objects for good ``after`` this time, which has no default: write 0 to delete at once.

    In a versioned bucket, exactly the processed version is deleted.
    """

    after: Duration = field(kw_only=True)
    after_seconds: float = field(init=False, repr=False)
    action: ClassVar[str] = "delete"
    removes_source: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "after_seconds", _seconds_of(self.after))


Cleanup: TypeAlias = Keep | Tag | Move | Delete


def check_fits(cleanup: object, source: str | PathLike[str]) -> None:
    """Raise `UsageError` for a cleanup that is not possible for the objects of this source."""
    if not isinstance(cleanup, Keep | Tag | Move | Delete):
        raise UsageError(
            f"The source {source} has cleanup={cleanup!r}; write cleanup.Tag(...), cleanup.Move(...) or "
            "cleanup.Delete(...) of `from penstock import cleanup`."
        )
    in_s3 = is_s3(str(source))
    if isinstance(cleanup, Tag) and not in_s3:
        raise UsageError(f"The files in {source} cannot be tagged, only objects in S3; move or delete them instead.")
    if isinstance(cleanup, Move) and is_s3(str(cleanup.target)) != in_s3:
        raise UsageError(
            f"Objects of {source} cannot be moved to {cleanup.target}: a folder's files move to a folder, objects in "
            "S3 to s3://BUCKET/PREFIX."
        )


def cleanup_of(action: str | None, *, after: str | None, target: str | None) -> Cleanup:
    """Return the cleanup that command-line options ask for.

    Raises `UsageError` for options that contradict each other.
    """
    if (action == "move") != (target is not None):
        raise UsageError("--cleanup move and --cleanup-to ADDRESS go together: the one needs the other.")
    if action in (None, "keep"):
        if after is not None:
            raise UsageError("--cleanup-after needs --cleanup tag, move or delete.")
        return Keep()
    if action == "delete":
        if after is None:
            raise UsageError("--cleanup delete needs --cleanup-after, such as 30d; 0 for at once.")
        return Delete(after=after)
    if action == "tag":
        return Tag(after=after or 0)
    if action == "move" and target is not None:
        return Move(target, after=after or 0)
    raise UsageError(f"--cleanup {action} is not known; it is tag, move or delete.")


def _seconds_of(after: Duration) -> float:
    """Return the seconds of a duration, which unlike other durations may be 0 in any notation."""
    nothing = after == timedelta(0) if isinstance(after, timedelta) else after == 0
    if nothing or (isinstance(after, str) and _NOTHING.fullmatch(after)):
        return 0.0
    return seconds_of("after", after)


def _check_tags(tags: object) -> None:
    if not isinstance(tags, Mapping) or not 1 <= len(tags) <= TAGS_MAX:
        raise UsageError(f"cleanup.Tag takes 1 to {TAGS_MAX} tags, such as {{'penstock': 'processed'}}, not {tags!r}.")
    for name, value in tags.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"The tag {name!r}: {value!r} is not text.")
        if not 1 <= len(name) <= TAG_NAME_CHARS_MAX or len(value) > TAG_VALUE_CHARS_MAX or name.startswith("aws:"):
            raise UsageError(
                f"The tag {name!r} does not fit: S3 takes names of 1 to {TAG_NAME_CHARS_MAX} characters that do not "
                f"begin with aws:, and values of up to {TAG_VALUE_CHARS_MAX}."
            )
        if not (_TAG_TEXT.fullmatch(name) and _TAG_TEXT.fullmatch(value)):
            raise UsageError(f"The tag {name!r}: {value!r} does not fit: letters, digits, blanks and + - = . _ : / @.")


Address = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReader:
    """The source, cleanup and table of one pipeline or object handler."""

    name: str
    source: Address
    cleanup: Cleanup = field(default_factory=Keep)
    table: Address | None = None


def overlap(one: Address, other: Address) -> bool:
    """Return True if the addresses are equal or one lies inside the other."""
    if is_s3(str(one)) != is_s3(str(other)):
        return False
    if any(_within(a, b) or _within(b, a) for a in _spellings(one) for b in _spellings(other)):
        return True
    return not is_s3(str(one)) and (_is_folder_above(one, other) or _is_folder_above(other, one))


def check_apart(readers: Sequence[SourceReader]) -> None:
    """Raise `UsageError` if a cleanup conflicts with another reader of the app.

    A cleanup must not move or delete objects that another reader reads, and must not move objects to an address where
    objects are read or tables are written: that would trigger notifications for them again.
    """
    for reader in readers:
        if isinstance(reader.cleanup, Move):
            _check_target(reader, reader.cleanup.target, readers)
        if reader.cleanup.removes_source:
            for other in readers:
                if other is not reader and overlap(reader.source, other.source):
                    raise UsageError(
                        f"The cleanup of {reader.name} would {reader.cleanup.action} objects that {other.name} also "
                        f"reads ({reader.source} and {other.source}); tag the objects, or keep them."
                    )


def _check_target(reader: SourceReader, target: Address, readers: Sequence[SourceReader]) -> None:
    for other in readers:
        if overlap(target, other.source):
            whose = "its own source" if other is reader else f"the source of {other.name}"
            raise UsageError(
                f"The cleanup of {reader.name} would move objects to {target}, which overlaps with {whose} "
                f"({other.source}): they would announce themselves again; name a target that lies apart from it."
            )
        for written in _written(other):
            if overlap(target, written):
                raise UsageError(
                    f"The cleanup of {reader.name} would move objects to {target}, where the tables of {other.name} "
                    f"are ({written}); name a target that lies apart from them."
                )


def _written(reader: SourceReader) -> Iterator[str]:
    if reader.table is not None:
        table = str(reader.table).rstrip("/")
        yield from (table, f"{table}{QUARANTINE_SUFFIX}")


def _spellings(address: Address) -> Iterator[str]:
    """Yield the spellings of an address that may name the same object, normalised so that a parent is a prefix."""
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
    """Return True if the file system reports the same folder, or a parent: two names of one folder, or mounts."""
    above = real(outer)
    return above.exists() and any(_same(above, folder) for folder in (real(inner), *real(inner).parents))


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


__all__ = ["Cleanup", "Delete", "Keep", "Move", "Tag"]
