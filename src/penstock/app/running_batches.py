"""Collect the batches that a worker processes, with Spark's progress, for its record."""

import threading
from dataclasses import dataclass, replace

from penstock.events import (
    AttemptAbandoned,
    BatchClaimed,
    BatchCommitted,
    BatchProgressed,
    BatchWritten,
    Event,
    RunFailed,
)

RUNNING_MAX = 20  # batches in a record, the newest ones
BATCH_EVENTS = frozenset({AttemptAbandoned, BatchClaimed, BatchCommitted, BatchProgressed, BatchWritten, RunFailed})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A batch that a worker has claimed and not ended."""

    pipeline: str
    attempt_id: str
    objects: int
    bytes: int  # stored size of these objects
    tasks_done: int = 0  # of Spark
    tasks: int = 0  # those that are known so far; 0: Spark has not begun
    is_written: bool = False  # its files are written, and it is about to be committed


class RunningBatches:
    """The running batches of one worker. Thread-safe.

    A batch whose objects all failed ends without an event, so readers compare these with the ledger's open attempts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[str, RecordedRun] = {}  # by attempt, oldest first; under the lock

    def __call__(self, event: Event) -> None:
        with self._lock:
            match event:
                case BatchClaimed():
                    self._add(event)
                case BatchProgressed() if (known := self._batches.get(event.attempt_id)) is not None:
                    self._batches[event.attempt_id] = replace(known, tasks_done=event.tasks_done, tasks=event.tasks)
                case BatchWritten() if (known := self._batches.get(event.attempt_id)) is not None:
                    self._batches[event.attempt_id] = replace(known, is_written=True)
                case BatchCommitted() | AttemptAbandoned() | RunFailed():
                    self._batches.pop(event.attempt_id, None)
                case _:
                    pass

    def newest(self) -> tuple[RecordedRun, ...]:
        """Return the running batches, the oldest first; of many only the newest ones."""
        with self._lock:
            return tuple(self._batches.values())

    def _add(self, event: BatchClaimed) -> None:
        self._batches[event.attempt_id] = RecordedRun(
            pipeline=event.pipeline, attempt_id=event.attempt_id, objects=event.objects, bytes=event.bytes
        )
        while len(self._batches) > RUNNING_MAX:
            del self._batches[next(iter(self._batches))]
