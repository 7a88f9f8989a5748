"""Repeated readings of the status scan what grows with a pipeline rarely."""

from itertools import pairwise
from pathlib import Path

import pytest

from penstock.app.scope import Scope
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.operations.status.status import DETAILS_SECONDS, SCAN_SHARE, StatusReader
from penstock.testing import FakeClock


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_scans_take_at_most_a_hundredth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    clock, scanned_at = FakeClock(), list[float]()
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger.open(url)
    ledger.ensure_pipeline("clicks")
    ledger.close()

    def replaced_totals(_: Ledger, pipeline: str) -> tuple[int, int]:
        """Take time, as the sum of many batches does."""
        assert pipeline == "clicks"
        scanned_at.append(clock.monotonic())
        clock.advance(seconds)
        return 0, 0

    monkeypatch.setattr(Ledger, "replaced_totals", replaced_totals)
    settings = Settings(data_dir=str(tmp_path), ledger=url)
    reader = StatusReader(Scope(settings=settings, served={}), clock=clock)
    for _ in range(150):
        assert reader.read().pipelines[0].pipeline == "clicks"
        clock.advance(2.0)
    rest_seconds = max(DETAILS_SECONDS, SCAN_SHARE * seconds)
    rests = [later - earlier for earlier, later in pairwise(scanned_at)]
    assert rests
    assert all(rest_seconds <= rest < rest_seconds + 4.0 for rest in rests)
