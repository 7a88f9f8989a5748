"""When failures say something of the pipeline and not of the data.

A run that breaks with nobody to blame may be the data's fault or the user's code's. What tells them apart is success:
until a batch of this process was committed, the same failure in a few batches that have no object in common stops the
pipeline before anybody dies of it. Afterwards the code is known to work, and only a long row of failures stops it.

When a refusal to read says nothing of the object.

A permission that was taken away, a policy with a mistake in it, or a disk that fails refuses one object after another.
Were each of them charged an attempt for it, all would be dead letters before anybody had looked. So a refusal is
charged while it can be the object's own: as long as no other object was refused since the last one that could be read.
"""

import threading

from penstock.errors import FaultPersists, TemporaryError, TransformError
from penstock.pipeline.engine import RunBroken

DISJOINT_FAILURES_MAX = 3  # before the first success
DISJOINT_FAILURES_LATER_MAX = 20  # after it: an upstream that changed its format, say
REFUNDED_MAX = 10_000  # objects that are remembered


class FailureStreak:
    """The failures since the last success. Any thread may call it."""

    def __init__(self, *, faults_max: int | None = None) -> None:
        """``faults_max``: how many infrastructure faults in a row are borne; None bears any number."""
        self._faults_max = faults_max
        self._lock = threading.Lock()  # every field below is written under it
        self._fingerprint: str | None = None
        self._batches: list[frozenset[bytes]] = []
        self._reprieved: set[bytes] = set()
        self._refunded: dict[bytes, int] = {}  # how often; under the lock, those of longest ago are forgotten
        self.succeeded = False  # whether a batch of this process was committed, ever
        self.faults = 0

    def clear(self) -> None:
        """A batch was committed."""
        with self._lock:
            self.succeeded = True
            self._fingerprint = None
            self._batches.clear()
            self._reprieved.clear()
            self.faults = 0

    def add(self, broken: RunBroken, object_ids: frozenset[bytes]) -> TransformError | None:
        """Record a broken run; answers the error to stop with once the cause is clearly not in the data."""
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
            f"is hardly in the data",
            broken,
        )

    def reprieve(self, object_id: bytes) -> bool:
        """An object failed alone in what would be its last attempt, and nothing succeeded in this process yet: True the
        first time, since others may succeed before it comes again."""
        with self._lock:
            known = object_id in self._reprieved
            self._reprieved.add(object_id)
        return not known

    def refund(self, object_id: bytes) -> int:
        """Record that an object failed and was not charged; answers how often that was so in this process."""
        with self._lock:
            count = self._refunded[object_id] = self._refunded.pop(object_id, 0) + 1
            if len(self._refunded) > REFUNDED_MAX:
                del self._refunded[next(iter(self._refunded))]
        return count

    def add_fault(self, fault: TemporaryError) -> int:
        """Record an infrastructure fault; return how many there were in a row. Raises `FaultPersists` after too
        many."""
        with self._lock:
            self.faults += 1
            count = self.faults
        if self._faults_max is not None and count >= self._faults_max:
            raise FaultPersists(f"{fault} ({count} times in a row). Nothing is lost; run it again when that is mended.")
        return count


def every_run_failed(broken: RunBroken) -> TransformError:
    """The error to stop with where nothing ever succeeded, and an object failed alone again and again."""
    return _stopped("every run failed, down to those of one object alone", broken)


def _stopped(why: str, broken: RunBroken) -> TransformError:
    return TransformError(
        f"{why[0].upper()}{why[1:]}: {broken}. Nothing is lost; mend the transform or the schema and run it again."
    )


OBJECTS_REMEMBERED_MAX = 1_000


class Denials:
    """The refusals of one handler or pipeline in this process. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._denied: set[bytes] = set()  # under the lock: since the last object that could be read

    def add(self, object_id: bytes) -> bool:
        """Record a refusal; answers whether others were refused too, so that this one is hardly the object's fault."""
        with self._lock:
            others = bool(self._denied - {object_id})
            if len(self._denied) < OBJECTS_REMEMBERED_MAX:
                self._denied.add(object_id)
        return others

    def clear(self) -> None:
        """An object could be read."""
        if self._denied:
            with self._lock:
                self._denied.clear()
