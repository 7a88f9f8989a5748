"""Distinguish failures of the pipeline or its infrastructure from failures of single objects.

`FailureStreak`: a run that breaks without naming an object may be the fault of the data or of the user's code. A
success decides. Until this process has committed a batch, the same failure in a few batches without a common object
stops the pipeline, before any object is dead-lettered. After that the code is known to work, and only a longer
series of failures stops it.

`Denials`: a revoked permission, a wrong policy or a failing disk denies one object after another. If each denial
counted as an attempt, all objects would be dead-lettered before a person has looked. So a denial counts only while it
may be specific to the object: as long as no other object was denied since the last successful read.
"""

import threading

from penstock.errors import FaultPersists, TemporaryError, TransformError
from penstock.pipeline.engine import RunBroken

DISJOINT_FAILURES_MAX = 3  # before the first success
DISJOINT_FAILURES_LATER_MAX = 20  # after it; e.g. an upstream changed its format
UNCOUNTED_MAX = 10_000  # objects with a remembered number of uncounted attempts

OBJECTS_REMEMBERED_MAX = 1_000


class FailureStreak:
    """The failures since the last success of one pipeline or object handler in this process. Thread-safe."""

    def __init__(self, *, faults_max: int | None = None) -> None:
        """``faults_max`` limits the infrastructure faults in a row; None means no limit."""
        self._faults_max = faults_max
        self._lock = threading.Lock()  # every field below is written under it
        self._fingerprint: str | None = None
        self._batches: list[frozenset[bytes]] = []
        self._granted: set[bytes] = set()
        self._uncounted: dict[bytes, int] = {}  # uncounted attempts by object id; the least recent are dropped
        self.succeeded = False  # True once this process has committed a batch
        self.faults = 0

    def clear(self) -> None:
        """Record a success: a batch was committed."""
        with self._lock:
            self.succeeded = True
            self._fingerprint = None
            self._batches.clear()
            self._granted.clear()
            self.faults = 0

    def add(self, broken: RunBroken, object_ids: frozenset[bytes]) -> TransformError | None:
        """Record a broken run. Return the error to stop with if the cause is clearly not in the data."""
        with self._lock:
            if broken.fingerprint != self._fingerprint:
                self._fingerprint = broken.fingerprint
                self._batches.clear()
            self._batches = [batch for batch in self._batches if not batch & object_ids]
            self._batches.append(object_ids)
            count = len(self._batches)
        if count < (DISJOINT_FAILURES_LATER_MAX if self.succeeded else DISJOINT_FAILURES_MAX):
            return None
        return _stopped(
            f"{count} batches in a row with no object in common failed with the same error, so the cause "
            f"is probably not in the data",
            broken,
        )

    def grant_last_attempt(self, object_id: bytes) -> bool:
        """Grant an object one more attempt, once. Return True the first time.

        Called when an object failed alone in its last attempt and this process has had no success: others may succeed
        before the object is delivered again.
        """
        with self._lock:
            known = object_id in self._granted
            self._granted.add(object_id)
        return not known

    def add_uncounted(self, object_id: bytes) -> int:
        """Record a failure that was not counted as an attempt. Return how many the object has had in this process."""
        with self._lock:
            count = self._uncounted[object_id] = self._uncounted.pop(object_id, 0) + 1
            if len(self._uncounted) > UNCOUNTED_MAX:
                del self._uncounted[next(iter(self._uncounted))]
        return count

    def add_fault(self, fault: TemporaryError, *, known: int) -> int:
        """Record an infrastructure fault. Return the number in a row, or raise `FaultPersists` at the limit.

        ``known`` is that number when the failed work began. If work that overlaps with it has counted a fault since,
        both failed in one outage: this one is not counted, and the result is 0.
        """
        with self._lock:
            if self.faults > known:
                return 0
            self.faults += 1
            count = self.faults
        if self._faults_max is not None and count >= self._faults_max:
            raise FaultPersists(f"{fault} ({count} times in a row). Nothing is lost; fix the cause and run it again.")
        return count


def every_run_failed(broken: RunBroken) -> TransformError:
    """Return the error to stop with if nothing has ever succeeded and an object has failed alone repeatedly."""
    return _stopped("every run failed, down to those of one object alone", broken)


class Denials:
    """Access denials of one handler or pipeline in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._denied: set[bytes] = set()  # objects denied since the last successful read; written under the lock

    def add(self, object_id: bytes) -> bool:
        """Record a denial. Return True if other objects were denied too: it is probably not the object's fault."""
        with self._lock:
            others = bool(self._denied - {object_id})
            if len(self._denied) < OBJECTS_REMEMBERED_MAX:
                self._denied.add(object_id)
        return others

    def clear(self) -> None:
        """Record a successful read."""
        if self._denied:
            with self._lock:
                self._denied.clear()


def _stopped(why: str, broken: RunBroken) -> TransformError:
    return TransformError(
        f"{why[0].upper()}{why[1:]}: {broken}. Nothing is lost; fix the transform or the schema and run it again."
    )
