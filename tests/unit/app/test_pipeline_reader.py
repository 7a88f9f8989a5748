"""The reader of pipelines counts processed objects rarely: counting them reads an index entry for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from penstock.app.system_health import COUNT_SECONDS_MIN, RECOUNT_REST_FACTOR, PipelineReader
from penstock.ledger.queries import ProcessedCount, UnprocessedObjects
from penstock.ledger.records import ObjectState, QuarantineWarning
from penstock.testing import FakeClock

PIPELINE = "clicks"
COUNTING_SECONDS = 2.0


@dataclass(kw_only=True)
class CountedLedger:
    """A ledger in which a full count takes two seconds. ``replacing``: its next batch replaces objects."""

    clock: FakeClock
    processed: int = 10
    replacing: bool = False
    counted_at: list[float] = field(default_factory=list)  # of full counts

    @property
    def ages(self) -> "CountedLedger":
        return self

    quarantines = ages

    def warning(self, _: str) -> QuarantineWarning:
        return QuarantineWarning()

    def reconciliations(self) -> tuple[()]:
        return ()

    def waiting(self, _: str, *, overdue_after_seconds: float) -> UnprocessedObjects:
        return UnprocessedObjects(objects=dict[ObjectState, int](), oldest_age_seconds=0.0, overdue=0, committed_seq=1)

    def processed_count(self, _: str) -> ProcessedCount:
        self.counted_at.append(self.clock.monotonic())
        self.clock.advance(COUNTING_SECONDS)
        self.replacing = False
        return ProcessedCount(processed=self.processed, seq=1)

    def updated_count(self, _: str, count: ProcessedCount) -> ProcessedCount:
        return replace(count, is_exact=count.is_exact and not self.replacing)


@pytest.fixture
def ledger() -> CountedLedger:
    return CountedLedger(clock=FakeClock())


def read_for(reader: PipelineReader, ledger: CountedLedger, *, seconds: float) -> None:
    """Read every two seconds, as the dashboard does."""
    ends_at = ledger.clock.monotonic() + seconds
    while ledger.clock.monotonic() < ends_at:
        (health,) = reader.read(ledger, [PIPELINE], has_settled=lambda *_: True)  # type: ignore[arg-type]
        assert health.objects[ObjectState.PROCESSED] == ledger.processed
        ledger.clock.advance(2.0)


def intervals(ledger: CountedLedger) -> Mapping[float, float]:
    return dict(pairwise(ledger.counted_at))


def test_a_count_is_updated_and_rarely_taken_anew(ledger: CountedLedger) -> None:
    reader = PipelineReader(overdue_after_seconds=60.0, clock=ledger.clock)
    read_for(reader, ledger, seconds=1_900.0)
    assert len(ledger.counted_at) == 1
    read_for(reader, ledger, seconds=COUNT_SECONDS_MIN)
    assert len(ledger.counted_at) == 2


@pytest.mark.parametrize("why", ["replaced", "repaired"])
def test_counting_takes_a_hundredth_of_the_time_if_the_count_is_always_in_doubt(
    ledger: CountedLedger, why: str
) -> None:
    reader = PipelineReader(overdue_after_seconds=60.0, clock=ledger.clock)
    for _ in range(50):
        read_for(reader, ledger, seconds=20.0)
        if why == "replaced":
            ledger.replacing = True
        else:
            reader.count_anew()
    assert len(ledger.counted_at) > 3, "it is counted again"
    assert min(end - start for start, end in intervals(ledger).items()) >= RECOUNT_REST_FACTOR * COUNTING_SECONDS


def test_a_small_ledger_is_counted_at_once(ledger: CountedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.COUNTING_SECONDS", 0.0)
    reader = PipelineReader(overdue_after_seconds=60.0, clock=ledger.clock)
    read_for(reader, ledger, seconds=2.0)
    ledger.replacing, ledger.processed = True, 9
    read_for(reader, ledger, seconds=2.0)
    assert len(ledger.counted_at) == 2
