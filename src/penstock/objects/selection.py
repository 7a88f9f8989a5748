"""Decide which objects below an address are objects of a source.

One rule for listings, notifications, reconciles and watches, so that an object is judged alike wherever it appears. It
needs no more than the key and the size. What only a listing can see, such as tables below the source and links, is left
to the scanners.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.errors import UsageError
from penstock.objects.globs import UNDERSCORED, compiled, has_wildcard, literal_prefix, may_begin, unescaped


class SkipReason(StrEnum):
    """Why an entry is not an object to process."""

    HIDDEN = "hidden"  # the name starts with a dot
    EXCLUDED = "excluded"  # a table, or an excluded folder
    SPECIAL = "special_file"  # FIFO, socket, device
    LINK_TO_SCANNED = "link_to_scanned"  # the target is found under its own name
    LINK_BROKEN = "link_broken"  # the target is missing, or the link is circular
    VANISHED = "vanished"  # deleted between listing and reading its status
    FOLDER_MARKER = "folder_marker"  # S3: an empty object whose key ends in a slash, as consoles create for a folder
    NOT_SELECTED = "not_selected"  # by the source's pattern, or by include and exclude
    UNDERSCORE = "underscore"  # a part of its path begins with _, as in _SUCCESS
    OTHER_SUFFIX = "other_suffix"  # its name does not end as those of any format


_HIDDEN = re.compile(r"(?:^|/)\.(?!\.?(?:/|\Z))")  # "." and ".." are ordinary names in S3
_UNDERSCORED = re.compile(f"(?:^|/){UNDERSCORED}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The objects of a source below a literal prefix of keys. Small and picklable, since it is sent to executors."""

    below: str = ""  # "" or with a slash at its end; patterns are relative to it
    pattern: str = ""  # "": everything
    include: tuple[str, ...] = ()  # an object matches one of these, if there are any
    exclude: tuple[str, ...] = ()  # and none of these
    in_s3: bool = True  # False: a walk decides about hidden names, since links lead into hidden folders
    skips_underscored: bool = False  # unless a pattern has the underscore
    suffixes: tuple[str, ...] = ()  # in lower case; names end with one of these, if there are any
    within: "Selection | None" = None  # a source of which this is a part

    def left_out(self, key: str, size_bytes: int) -> SkipReason | None:
        """Return why an object is not one of the source; None if it is, or if its key is not below the prefix."""
        if self.within is not None and (reason := self.within.left_out(key, size_bytes)) is not None:
            return reason
        if not key.startswith(self.below):
            is_folder = bool(self.pattern) and f"{key}/" == self.below
            return SkipReason.NOT_SELECTED if is_folder else None
        return self._judged(key[len(self.below) :], size_bytes)

    def leaves_out_folder(self, folder: str) -> SkipReason | None:
        """Return why no object below a folder can be one of the source; None if some may be."""
        if self.within is not None and (reason := self.within.leaves_out_folder(folder)) is not None:
            return reason
        if not folder.startswith(self.below):
            return None
        relative = folder[len(self.below) :]
        if self.pattern and not may_begin(self.pattern, relative):
            return SkipReason.NOT_SELECTED
        patterns = (self.pattern, *self.include)
        if self.skips_underscored and not any("_" in each for each in patterns) and _UNDERSCORED.search(relative):
            return SkipReason.UNDERSCORE
        return None

    @property
    def listed(self) -> str:
        """The longest prefix that the keys of all selected objects below ``below`` have."""
        return self.below + literal_prefix(self.pattern)

    @property
    def one_name(self) -> str | None:
        """The name of the only object, directly below the prefix; None for a pattern or a whole folder."""
        if not self.pattern or "/" in self.pattern or has_wildcard(self.pattern):
            return None
        return unescaped(self.pattern)

    def _judged(self, relative: str, size_bytes: int) -> SkipReason | None:
        if self.in_s3:
            if (not relative or relative.endswith("/")) and size_bytes == 0:  # "": the marker of the prefix itself
                return SkipReason.FOLDER_MARKER
            if _HIDDEN.search(relative):
                return SkipReason.HIDDEN
        if self.pattern and not compiled(self.pattern).fullmatch(relative):
            return SkipReason.NOT_SELECTED
        if self.include and not _matches(self.include, relative):
            return SkipReason.NOT_SELECTED
        if self.exclude and _matches(self.exclude, relative):
            return SkipReason.NOT_SELECTED
        if self.skips_underscored and _UNDERSCORED.search(relative) and not self._names_underscore(relative):
            return SkipReason.UNDERSCORE
        if self.suffixes and not relative.lower().endswith(self.suffixes):
            return SkipReason.OTHER_SUFFIX
        return None

    def _names_underscore(self, relative: str) -> bool:
        by_pattern = bool(self.pattern) and compiled(self.pattern, plain=True).fullmatch(relative) is not None
        return by_pattern or _matches(self.include, relative, plain=True)


def checked_patterns(patterns: Sequence[Any], option: str) -> tuple[str, ...]:
    """Return include or exclude patterns. Raises `UsageError` for one that matches nothing."""
    if isinstance(patterns, str):
        raise UsageError(f"{option} is {patterns!r}; write a list of patterns, such as ['*.csv'].")
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern or pattern.startswith("/") or "://" in pattern:
            raise UsageError(
                f"{option} has the pattern {pattern!r}; write one relative to the source, such as *.csv or 2026-*/."
            )
    return tuple(pattern.removeprefix("./") for pattern in patterns)


def _matches(patterns: Sequence[str], relative: str, *, plain: bool = False) -> bool:
    return any(compiled(_anywhere(pattern), plain=plain).fullmatch(relative) for pattern in patterns)


def _anywhere(pattern: str) -> str:
    """Return an include or exclude pattern relative to the source: one without a slash matches names in any folder."""
    return pattern if "/" in pattern.rstrip("/") else f"**/{pattern}"
