"""The effects of handlers: a file with one record per message, memory-mapped by writers and readers.

So a handler records its work, with the time, in a few hundred nanoseconds and without Redis. Every contestant writes
the same records; node/effects.ts and ruby/sidekiq_peer.rb do it outside Python.
"""

import mmap
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

RECORD = struct.Struct("<dddQd")  # sent at, first and last start (epoch seconds), starts, ended at
TIME = struct.Struct("<d")
STARTED = struct.Struct("<ddQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The history of one message. Times are 0 until they occur; handlers that do nothing do not record their end."""

    sent_at: float
    first_start_at: float
    last_start_at: float
    starts: int
    ended_at: float


class Effects:
    """The file as one process sees it. One message's record is written by one thread at a time."""

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)

    @classmethod
    def make(cls, file: Path, messages: int) -> "Effects":
        """Create an empty file for that many messages."""
        file.write_bytes(bytes(RECORD.size * messages))
        return cls(file)

    def sending(self, number: int) -> None:
        TIME.pack_into(self._map, number * RECORD.size, time.time())

    def started(self, number: int) -> None:
        now, at = time.time(), number * RECORD.size + TIME.size
        first, _, starts = STARTED.unpack_from(self._map, at)
        STARTED.pack_into(self._map, at, first or now, now, starts + 1)

    def ended(self, number: int) -> None:
        TIME.pack_into(self._map, number * RECORD.size + TIME.size + STARTED.size, time.time())

    def read(self, numbers: Sequence[int]) -> Iterator[Effect]:
        for number in numbers:
            sent_at, first, last, starts, ended_at = RECORD.unpack_from(self._map, number * RECORD.size)
            yield Effect(sent_at=sent_at, first_start_at=first, last_start_at=last, starts=starts, ended_at=ended_at)

    def close(self) -> None:
        self._map.close()
