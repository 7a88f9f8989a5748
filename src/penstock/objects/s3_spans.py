"""Spans of keys: a prefix in S3, cut into parts that can be listed side by side.

S3 tells keys in order and nothing of how many there are. So the tree of their beginnings is walked, character by
character and the shallow ones first, asking each time for the next key behind all that begin so, until there are enough
branches. Where to cut is a guess; that each key is in exactly one span is not, wherever the cuts are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.storage.address import S3Address
from penstock.storage.aws import Aws
from penstock.storage.s3_client import requester, service_client

PAGE_KEYS = 1_000  # S3 gives no more at once
PROBES_MAX = 600  # requests: a second or two of looking, before thousands of pages are read
_LAST = "\U0010ffff"  # behind every character that comes after a beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The keys behind ``after``, up to and with ``until``; None: to the end."""

    after: str = ""
    until: str | None = None

    def holds(self, key: str) -> bool:
        """In S3's order, which is that of UTF-8: so is Python's, by code points."""
        return key > self.after and (self.until is None or key <= self.until)


WHOLE = Span()

Peek = Callable[[str, str], str | None]
"""``peek(beginning, after)``: the first key that begins so and comes behind ``after``; None where there is none."""


def s3_spans(address: S3Address, aws: Aws, *, parts: int, whole_keys_max: int = PAGE_KEYS) -> Sequence[Span]:
    """Spans of what lies below a prefix, about so many; one where it is few keys. Raises what boto3 does."""

    def listed(beginning: str, after: str, keys_max: int) -> Any:
        return service_client(aws).list_objects_v2(
            Bucket=address.bucket, Prefix=beginning, StartAfter=after, MaxKeys=keys_max, **requester(aws)
        )

    def peek(beginning: str, after: str) -> str | None:
        found = listed(beginning, after, 1).get("Contents", ())
        return str(found[0]["Key"]) if found else None

    if not listed(address.folder, "", whole_keys_max).get("IsTruncated"):
        return [WHOLE]
    return spans(peek, address.folder, parts=parts)


def spans(peek: Peek, below: str, *, parts: int, probes_max: int = PROBES_MAX) -> Sequence[Span]:
    """Spans that together are all keys below a beginning."""
    cuts = sorted(_branches(_Bounded(peek, probes_max), below, parts))[1:]
    ends = [*cuts, None]
    return [Span(after=after, until=until) for after, until in zip(["", *cuts], ends, strict=True)]


class _Bounded:
    """A peek that answers nothing more once it was asked often enough."""

    def __init__(self, peek: Peek, probes_max: int) -> None:
        self._peek = peek
        self._left = probes_max

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def __call__(self, beginning: str, after: str) -> str | None:
        if self.is_spent:
            return None
        self._left -= 1
        return self._peek(beginning, after)


def _branches(peek: _Bounded, below: str, parts: int) -> Sequence[str]:
    """The first keys of about so many branches, in no order."""
    first = peek(below, "")
    if first is None:
        return []
    open_ones = deque([(below, first)])
    ended: list[str] = []
    while open_ones and len(open_ones) + len(ended) < parts and not peek.is_spent:
        beginning, first = open_ones.popleft()
        trunk = _trunk(peek, beginning, first)
        children = list(_children(peek, trunk, first))
        if len(children) == 1:  # one key alone
            ended.append(first)
        else:
            open_ones.extend(children)
    return [*ended, *(first for _, first in open_ones)]


def _trunk(peek: Peek, beginning: str, first: str) -> str:
    """As much of the first key as all keys that begin so have in common, found by halving."""
    common, beyond = len(beginning), len(first) + 1
    while beyond - common > 1:
        middle = common + 1 if common == len(beginning) else (common + beyond) // 2  # mostly they part at once
        if peek(beginning, first[:middle] + _LAST) is None:
            common = middle
        else:
            beyond = middle
    return first[:common]


def _children(peek: Peek, trunk: str, first: str) -> Iterator[tuple[str, str]]:
    """The beginnings that are longer by one character, each with its first key."""
    key: str | None = first
    while key is not None:
        child = key[: len(trunk) + 1]
        yield child, key
        key = peek(trunk, key if child == trunk else child + _LAST)
        if key is not None and key.startswith(child) and child != trunk:  # the last character that there is
            return
