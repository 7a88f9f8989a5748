"""Leases go by the database's clock: a worker's own clock neither takes nor keeps a lease (row 85 of the inputs)."""

import time
from collections.abc import Iterator

import pytest
from tests.conformance.ledger.desk import LEASE_SECONDS, OVER, PIPELINE, Desk, candidates, object_id_of, outcome

from penstock.errors import ClaimLost
from penstock.ledger import Ledger
from penstock.ledger.records import WorkBusy

A = object_id_of("a")
DAY_SECONDS = 86_400.0


@pytest.fixture(params=["mariadb_url", "postgresql_url"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a server: SQLite has no clock but its host's."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def desk(url: str) -> Iterator[Desk]:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    yield Desk(ledger)
    ledger.close()


@pytest.mark.parametrize("off_seconds", [DAY_SECONDS, -DAY_SECONDS])
def test_row_85_a_worker_whose_clock_is_off_steals_no_lease(
    desk: Desk, url: str, monkeypatch: pytest.MonkeyPatch, off_seconds: float
) -> None:
    held = desk.claim(candidates("a"), attempt="held")
    desk.begin("k", attempt="work")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + off_seconds)
    skewed = Desk(Ledger.open(url), desk.numbers)
    claim = skewed.claim(candidates("a", "b"), attempt="skewed")
    assert set(claim.claimed) == {object_id_of("b")}
    assert 0 < claim.busy[A] <= LEASE_SECONDS
    result = skewed.begin("k", attempt="other")
    assert isinstance(result, WorkBusy)
    assert 0 < result.seconds <= LEASE_SECONDS
    assert skewed.ledger.abandon_expired(PIPELINE) == []
    skewed.ledger.close()
    assert desk.ledger.commit(outcome(held)) == 1


def test_an_expired_lease_is_expired_for_a_worker_whose_clock_is_late(
    desk: Desk, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = desk.claim(candidates("a"), attempt="lost", lease_seconds=OVER)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - DAY_SECONDS)
    late = Desk(Ledger.open(url), desk.numbers)
    assert set(late.claim(candidates("a"), attempt="next").claimed) == {A}
    late.ledger.close()
    with pytest.raises(ClaimLost):
        desk.ledger.commit(outcome(lost))
