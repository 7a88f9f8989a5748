"""When failures say something of the pipeline and not of the data.

A fingerprint that breaks several batches in a row, with no object in common and no success in between, is the user's
code or the table: going on would only use up everybody's attempts.
"""

from penstock.errors import FaultPersists, TemporaryError, TransformError
from penstock.pipeline.engine import RunBroken

DISJOINT_FAILURES_MAX = 3


class FailureStreak:
    """The failures since the last success. Written by the run thread alone."""

    def __init__(self, *, faults_max: int | None = None) -> None:
        """``faults_max``: how many infrastructure faults in a row are borne; None bears any number."""
        self._faults_max = faults_max
        self._fingerprint: str | None = None
        self._batches: list[frozenset[bytes]] = []
        self.faults = 0

    def clear(self) -> None:
        """A batch was committed."""
        self._fingerprint = None
        self._batches.clear()
        self.faults = 0

    def add(self, broken: RunBroken, object_ids: frozenset[bytes]) -> TransformError | None:
        """Record a broken run; answers the error to stop with once the cause is clearly not in the data."""
        if broken.fingerprint != self._fingerprint:
            self._fingerprint = broken.fingerprint
            self._batches.clear()
        self._batches = [batch for batch in self._batches if not batch & object_ids]
        self._batches.append(object_ids)
        if len(self._batches) < DISJOINT_FAILURES_MAX:
            return None
        return TransformError(
            f"{len(self._batches)} batches in a row with no object in common failed with the same error, so the cause "
            f"is hardly in the data: {broken}. Nothing is lost; mend the transform or the schema and run it again."
        )

    def add_fault(self, fault: TemporaryError) -> None:
        """Record an infrastructure fault; raises it once there were too many in a row."""
        self.faults += 1
        if self._faults_max is not None and self.faults >= self._faults_max:
            raise FaultPersists(
                f"{fault} ({self.faults} times in a row). Nothing is lost; run it again when that is mended."
            )
