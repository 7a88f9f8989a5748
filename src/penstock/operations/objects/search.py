"""Search objects for people: a page of results within a bounded time, and the position at which the search goes on.

An exact address is found by its index. Any other text is compared with the addresses of one object after the other:
those in rare states first, such as failed ones, then the others from the newest on. A search that runs out of time
returns what it found so far, and how many objects it read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.object_lists import AttemptPosition, ObjectFilter, ObjectInList, ObjectLists, TimePosition
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import Clock
from penstock.objects.reference import LOCAL_BUCKET, uri_of

RARE_MAX = 10_000  # objects of rare states, which are all read and sorted by time
READ_FIRST = 1_000  # objects of the first query, which finds a whole page of them if many match
READ_AT_ONCE = 8_000  # objects of a later query, before the time is checked
SEARCH_SECONDS = 0.08

Step = Literal["time", "attempt", "id"]  # the orders of `ObjectLists`, in the order in which a search takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPosition:
    """The last object that a search has read. ``read`` counts the objects read up to it."""

    step: Step
    read: int = 0
    since: float = 0.0
    attempt_id: str = ""
    pipeline: str = ""
    object_id: bytes = b""

    def encode(self) -> str:
        """Return the position as text for a link."""
        values = [self.step, self.read, self.since, self.attempt_id, self.pipeline, self.object_id.hex()]
        return json.dumps(values, separators=(",", ":"))

    @staticmethod
    def decode(text: str) -> "SearchPosition":
        """Return the position that `encode` wrote. Raises `UsageError` for any other text."""
        try:
            step, read, since, attempt_id, pipeline, object_id = json.loads(text)
            if (
                step not in ("time", "attempt", "id")
                or not isfinite(since)
                or not f"{attempt_id}{pipeline}".isprintable()
            ):
                raise ValueError(text)
            return SearchPosition(
                step=step,
                read=int(read),
                since=float(since),
                attempt_id=str(attempt_id),
                pipeline=str(pipeline),
                object_id=bytes.fromhex(object_id),
            )
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise UsageError("This is no position in a list of objects: begin at its first page.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObjects:
    """A page of a search. ``after``: where it goes on; None: every object was read.

    ``read``: the objects read so far, on earlier pages as well, and whose addresses were compared if there was a text.
    """

    objects: Sequence[ObjectInList]
    read: int
    after: SearchPosition | None


def known_address(ledger: Ledger, pipelines: Sequence[str], text: str) -> str | None:
    """Return the address of the object that the text names exactly: by address, path, or bucket and key."""
    addresses = [text] if "://" in text else [uri_of(LOCAL_BUCKET, text) if text.startswith("/") else f"s3://{text}"]
    for address in addresses:
        if any(pipeline in pipelines for pipeline, _ in ledger.find(address)):
            return address
        if any(one.archive.pipeline in pipelines for one in ledger.archives.find(address)):
            return address
    return None


def search(
    ledger: Ledger,
    wanted: ObjectFilter,
    *,
    after: SearchPosition | None,
    limit: int,
    clock: Clock,
    seconds: float,
) -> FoundObjects:
    """Return the next page of up to ``limit`` objects. It ends early if it takes longer than ``seconds``."""
    found = _Search(ledger.lists, wanted, limit=limit, end_at=clock.monotonic() + seconds, clock=clock)
    return found.page(after)


class _Search:
    """One page of a search, as it is made. Used by one thread."""

    def __init__(self, lists: ObjectLists, wanted: ObjectFilter, *, limit: int, end_at: float, clock: Clock) -> None:
        self._lists = lists
        self._wanted = wanted
        self._limit = limit
        self._end_at = end_at
        self._clock = clock
        self._found: list[ObjectInList] = []
        self._read = 0
        self._rare = 0  # objects of rare states

    def page(self, after: SearchPosition | None) -> FoundObjects:
        rare, many = self._by_frequency()
        steps: list[tuple[Step, frozenset[ObjectState]]] = [
            ("time", rare),
            ("attempt", many - {ObjectState.UNPROCESSED}),
            ("id", many & {ObjectState.UNPROCESSED}),
        ]
        self._read = 0 if after is None else after.read
        begun = after is None
        for step, states in steps:
            position = after if after is not None and after.step == step else None
            begun = begun or position is not None
            if not (begun and states):
                continue
            if (ended_at := self._take(step, states, position)) is not None:
                return FoundObjects(objects=self._found, read=self._read, after=ended_at)
            if self._is_full():
                return FoundObjects(objects=self._found, read=self._read, after=_start_after(step, steps, self._read))
        return FoundObjects(objects=self._found, read=self._read, after=None)

    def _by_frequency(self) -> tuple[frozenset[ObjectState], frozenset[ObjectState]]:
        """Return the rare states among the wanted ones, of which few objects are, and the others."""
        rare: set[ObjectState] = set()
        left = RARE_MAX
        for state in sorted(self._wanted.states - {ObjectState.PROCESSED}):
            count = self._lists.count(self._of_states(frozenset({state})), up_to=left + 1)
            if count <= left:
                rare.add(state)
                left -= count
                self._rare += count
        return frozenset(rare), self._wanted.states - rare

    def _take(self, step: Step, states: frozenset[ObjectState], after: SearchPosition | None) -> SearchPosition | None:
        """Take objects of one step; return where it goes on, or None at its end."""
        wanted = self._of_states(states)
        match step:
            case "time":
                return self._take_by_time(wanted, after)
            case "attempt":
                return self._take_by_attempt(wanted, after)
            case "id":
                return self._take_by_id(wanted, after)

    def _take_by_time(self, wanted: ObjectFilter, after: SearchPosition | None) -> SearchPosition | None:
        if after is None:
            self._read += self._rare
        position = None if after is None else TimePosition(since=after.since, object_id=after.object_id)
        rows = self._lists.by_time(wanted, limit=self._left() + 1, after=position)
        if len(rows) <= self._left():
            self._found += rows
            return None
        self._found += rows[: self._left()]
        last = self._found[-1]
        return SearchPosition(step="time", read=self._read, since=last.since, object_id=last.row.object_id)

    def _take_by_attempt(self, wanted: ObjectFilter, after: SearchPosition | None) -> SearchPosition | None:
        position = None
        if after is not None and after.attempt_id:
            position = AttemptPosition(attempt_id=after.attempt_id, object_id=after.object_id)
        read = READ_FIRST
        while True:
            part = self._lists.by_attempt(wanted, limit=self._left(), read=min(read, READ_AT_ONCE), after=position)
            read *= 2
            self._found += part.objects
            self._read += part.read
            position = part.after
            if position is None:
                return None
            if self._is_full() or self._is_late():
                return SearchPosition(
                    step="attempt", read=self._read, attempt_id=position.attempt_id, object_id=position.object_id
                )

    def _take_by_id(self, wanted: ObjectFilter, after: SearchPosition | None) -> SearchPosition | None:
        left = [name for name in sorted(wanted.pipelines) if after is None or name >= after.pipeline]
        for index, pipeline in enumerate(left, start=1):
            last = after.object_id or None if after is not None and after.pipeline == pipeline else None
            while True:
                part = self._lists.by_id(
                    pipeline, wanted, ObjectState.UNPROCESSED, limit=self._left(), read=READ_AT_ONCE, after=last
                )
                self._found += part.objects
                self._read += part.read
                last = part.after
                if last is None:
                    break
                if self._is_full() or self._is_late():
                    return SearchPosition(step="id", read=self._read, pipeline=pipeline, object_id=last)
            if self._is_full() and index < len(left):
                return SearchPosition(step="id", read=self._read, pipeline=left[index])
        return None

    def _of_states(self, states: frozenset[ObjectState]) -> ObjectFilter:
        return ObjectFilter(pipelines=self._wanted.pipelines, states=states, uri_contains=self._wanted.uri_contains)

    def _left(self) -> int:
        return self._limit - len(self._found)

    def _is_full(self) -> bool:
        return len(self._found) >= self._limit

    def _is_late(self) -> bool:
        return self._clock.monotonic() >= self._end_at


def _start_after(step: Step, steps: Sequence[tuple[Step, frozenset[ObjectState]]], read: int) -> SearchPosition | None:
    """Return the beginning of the next step that has states; None if there is none."""
    names = [name for name, _ in steps]
    later = [name for name, states in steps[names.index(step) + 1 :] if states]
    return SearchPosition(step=later[0], read=read) if later else None
