"""What this process brought to its end, counted from events."""

from collections import Counter

from penstock.events import BatchCommitted, Event, ObjectFailed
from penstock.ledger.records import ObjectState


class Tally:
    """A listener. Written by the threads that emit, read when they are done."""

    def __init__(self) -> None:
        self.rows = 0
        self.lines_quarantined = 0
        self.batches = 0
        self.objects_processed = 0
        self.failed: Counter[str] = Counter()  # objects by outcome: retry, dead, gone, superseded

    @property
    def objects(self) -> Counter[ObjectState]:
        """Objects by the terminal state that they came to."""
        terminal = (ObjectState.DEAD, ObjectState.GONE, ObjectState.SUPERSEDED)
        ended = {state: self.failed[str(state)] for state in terminal}
        return Counter({ObjectState.PROCESSED: self.objects_processed, **ended})

    def __call__(self, event: Event) -> None:
        match event:
            case BatchCommitted():
                self.rows += event.rows
                self.lines_quarantined += event.lines_quarantined
                self.batches += 1
                self.objects_processed += event.objects
            case ObjectFailed():
                self.failed[event.outcome] += 1
            case _:
                pass
