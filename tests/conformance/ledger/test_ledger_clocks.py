"""Leases go by the database's clock: a worker's own clock neither takes nor keeps a lease (row 85 of the inputs)."""

import time
from collections.abc import Iterator

import pytest
from tests.conformance.ledger.ledger_harness import (
    LEASE_SECONDS,
    OVER,
    PIPELINE,
    LedgerHarness,
    candidates,
    object_id_of,
    outcome,
)

from penstock.errors import ClaimLost
from penstock.ledger import Ledger
from penstock.ledger.records import Committed, WorkBusy

A = object_id_of("a")
DAY_SECONDS = 86_400.0


@pytest.fixture(params=["mariadb_url", "postgresql_url"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a server: SQLite has no clock but its host's."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def harness(url: str) -> Iterator[LedgerHarness]:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    yield LedgerHarness(ledger)
    ledger.close()


@pytest.mark.parametrize("off_seconds", [DAY_SECONDS, -DAY_SECONDS])
def test_row_85_a_worker_with_a_wrong_clock_takes_no_lease(
    harness: LedgerHarness, url: str, monkeypatch: pytest.MonkeyPatch, off_seconds: float
) -> None:
    held = harness.claim(candidates("a"), attempt="held")
    harness.begin("k", attempt="work")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + off_seconds)
    skewed = LedgerHarness(Ledger.open(url), harness.numbers)
    claim = skewed.claim(candidates("a", "b"), attempt="skewed")
    assert set(claim.claimed) == {object_id_of("b")}
    assert 0 < claim.busy[A] <= LEASE_SECONDS
    result = skewed.begin("k", attempt="other")
    assert isinstance(result, WorkBusy)
    assert 0 < result.seconds <= LEASE_SECONDS
    assert skewed.ledger.abandon_expired(PIPELINE) == []
    skewed.ledger.close()
    assert harness.ledger.commit(outcome(held)) == Committed(seq=1)


def test_an_expired_lease_is_expired_for_a_worker_whose_clock_is_late(
    harness: LedgerHarness, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = harness.claim(candidates("a"), attempt="lost", lease_seconds=OVER)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - DAY_SECONDS)
    late = LedgerHarness(Ledger.open(url), harness.numbers)
    assert set(late.claim(candidates("a"), attempt="next").claimed) == {A}
    late.ledger.close()
    with pytest.raises(ClaimLost):
        harness.ledger.commit(outcome(lost))
