"""The lag of tables, as the monitor measures it."""

from pathlib import Path

import pytest

from penstock.app.jobs.monitor.ledger import TableWatch
from penstock.app.paths import table_paths


class FakeTable:
    """A table with the method that `TableWatch` calls."""

    def __init__(self) -> None:
        self.shown = 0
        self.reads = 0

    def shown_to(self, after_seq: int, up_to_seq: int) -> int:
        self.reads += 1
        return max(after_seq, min(self.shown, up_to_seq))


class FakeLedger:
    """A ledger whose batch n was committed 100 * n seconds ago."""

    @property
    def ages(self) -> "FakeLedger":
        return self

    def seconds_since_commit(self, pipeline: str, seq: int) -> float | None:
        assert pipeline == "clicks"
        return 100.0 * seq


def test_the_lag_is_the_age_of_the_oldest_batch_that_is_not_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, ledger = FakeTable(), FakeLedger()
    watch = TableWatch({"clicks": table_paths(tmp_path / "clicks")}, ledger=lambda: ledger)  # type: ignore[arg-type,return-value]  # a fake with the methods that are called
    monkeypatch.setattr(watch, "_open_tables", lambda *_: table)
    assert watch.lag_seconds("clicks", 0) == 0.0
    assert table.reads == 0  # nothing was committed, so no table was opened
    assert watch.lag_seconds("clicks", 3) == 100.0
    table.shown = 2
    assert watch.lag_seconds("clicks", 3) == 300.0
    assert watch.unpublished("clicks", 3) == 1
    table.shown = 3
    assert watch.lag_seconds("clicks", 3) == 0.0
    reads = table.reads
    assert watch.lag_seconds("clicks", 3) == 0.0
    assert table.reads == reads
    assert watch.lag_seconds("an object handler", 1) is None
