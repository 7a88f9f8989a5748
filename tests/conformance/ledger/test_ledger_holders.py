"""Workers and their open claims, on every database."""

import pytest
from tests.conformance.ledger.ledger_harness import (
    HANDLER,
    LEASE_SECONDS,
    OVER,
    PIPELINE,
    LedgerHarness,
    candidates,
    outcome,
)

from penstock.ledger import holders


def test_holders_are_counted_over_keys_and_objects(harness: LedgerHarness) -> None:
    harness.begin("k1", attempt="a1", worker="one")
    harness.begin("k2", attempt="a2", worker="one")
    harness.claim(candidates("x", "y"), worker="one")
    harness.begin("k3", attempt="a3", worker="two", lease_seconds=OVER)
    now = harness.ledger.now()
    found = {holder.worker: holder for holder in harness.ledger.holders.all()}
    assert {worker: holder.claims for worker, holder in found.items()} == {"one": 3, "two": 1}
    assert now - LEASE_SECONDS < found["one"].since <= now < found["one"].lease_until
    assert found["two"].lease_until < now


def test_ended_claims_are_held_by_none(harness: LedgerHarness) -> None:
    harness.begin("done", attempt="a1")
    harness.ledger.finish_work("a1", outcome="1")
    harness.begin("freed", attempt="a2")
    harness.ledger.end_work("a2", outcome="failed", reason="no")
    harness.process("x")
    claim = harness.claim(candidates("y"))
    harness.ledger.abandon(claim.attempt_id, reason="no", outcome="failed", uncounted=False, unattributed=False)
    assert harness.ledger.holders.all() == []
    assert harness.ledger.holders.claims_of("worker-1", limit=10) == []


def test_the_claims_of_a_worker_name_keys_and_objects(harness: LedgerHarness) -> None:
    harness.begin("k1", attempt="a1", worker="one")
    claim = harness.claim(candidates("x", "y"), worker="one")
    harness.begin("k2", attempt="a2", worker="two")
    found = harness.ledger.holders.claims_of("one", limit=10)
    assert {(claim.attempt_id, claim.owner, claim.key, claim.objects) for claim in found} == {
        ("a1", HANDLER, "k1", None),
        (claim.attempt_id, PIPELINE, None, 2),
    }
    assert all(0 < claim.lease_seconds_left <= LEASE_SECONDS for claim in found)
    assert harness.ledger.commit(outcome(claim)) is not None
    assert [claim.attempt_id for claim in harness.ledger.holders.claims_of("one", limit=10)] == ["a1"]


def test_only_the_oldest_claims_are_listed(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "OBJECT_COUNTS_MAX", 1)
    for number in range(3):
        harness.begin(f"k{number}", attempt=f"a{number}", worker="one")
        harness.claim(candidates(f"x{number}"), worker="one")
    found = harness.ledger.holders.claims_of("one", limit=2)
    assert sorted(claim.key for claim in found if claim.key is not None) == ["k0", "k1"]
    assert sorted(str(claim.objects) for claim in found if claim.key is None) == ["1", "None"]
    assert [claim.since for claim in found] == sorted(claim.since for claim in found)
    assert len(harness.ledger.holders.all(limit=0)) == 0


def test_a_worker_with_a_name_that_no_database_stores_as_it_is(harness: LedgerHarness) -> None:
    harness.begin("k", attempt="a", worker="w\0\udcff")
    assert [claim.key for claim in harness.ledger.holders.claims_of("w\0\udcff", limit=1)] == ["k"]
