"""What a diagnosis names."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """The attempt that brought it to its end after all."""

    ts: str
    worker: str | None
    attempt_id: str | None
    attempt: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One object or message, and what befell it when."""

    kind: str  # object or message
    name: str  # its address, or its id
    place: str | None  # its pipeline, or its queue
    ts: str
    worker: str | None
    attempt_id: str | None = None
    attempt: int | None = None
    reason: str | None = None
    times: int = 1
    later: Later | None = None
    worker_last_ts: str | None = None  # of the last line that the worker wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnoses:
    """The five, each in the order of time."""

    wrongly_processed: Sequence[Found]  # skipped as already processed, and never finished before
    failed: Sequence[Found]  # given up on; ``later``: finished nevertheless
    finished: Sequence[Found]  # when and by whom, for what is wrong in the table; ``times``: how often
    died: Sequence[Found]  # an attempt without an end, and none after it
    interrupted: Sequence[Found]  # by a stop; ``later``: the attempt that finished it
    remarks: Sequence[str]  # what these logs cannot tell

    @property
    def is_wrong(self) -> bool:
        """Whether somebody should look."""
        return bool(self.wrongly_processed or self.died)
