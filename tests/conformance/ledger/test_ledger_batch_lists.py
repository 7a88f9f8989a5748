"""Lists of batches without their files, and the last reopening of objects, on every database."""

import json

import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, object_id_of, outcome

from penstock.ledger.records import BatchRecord, OnChange, ReopeningState
from penstock.ledger.retractions import Retraction


def retract(harness: LedgerHarness, *names: str) -> None:
    uris = [one.uri for one in candidates(*names)]
    retraction = Retraction(
        pipeline=PIPELINE, attempt_id="retraction", worker="anna@host", addresses=uris, reason="wrong"
    )
    assert harness.ledger.retractions.retract(retraction).seq is not None


def test_the_newest_batches_come_first_in_pages(harness: LedgerHarness) -> None:
    for name in "abcde":
        harness.process(name)
    lists = harness.ledger.batch_lists
    assert [batch.seq for batch in lists.newest(PIPELINE, limit=3)] == [5, 4, 3]
    assert [batch.seq for batch in lists.newest(PIPELINE, limit=3, before_seq=3)] == [2, 1]
    assert lists.newest(PIPELINE, limit=3, before_seq=1) == []
    assert lists.newest("unheard of", limit=3) == []
    assert [batch.seq for batch in lists.newest(PIPELINE, limit=1, before_seq=1 << 80)] == [5]


def test_a_summary_has_the_numbers_of_its_batch(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a", "b"))
    record = BatchRecord(
        rows=20,
        lines_quarantined=2,
        bytes=200,
        manifest="[]",
        stage_seconds={"run": 1.5},
        spark_ui_url="http://spark:4040",
        transform="shop:clean",
        merge="{}",
    )
    harness.ledger.commit(outcome(claim, record=record))
    (batch,) = harness.ledger.batch_lists.newest(PIPELINE, limit=10)
    full = harness.ledger.batch(PIPELINE, 1)
    assert full is not None
    assert (batch.worker, batch.objects) == ("worker-1", 2)
    assert (batch.rows, batch.lines_quarantined, batch.bytes) == (20, 2, 200)
    assert batch.spark_ui_url == "http://spark:4040"
    assert (batch.committed_at, batch.is_merged) == (full.committed_at, True)
    assert 0 < batch.claimed_at <= batch.committed_at
    assert (batch.replaced_rows, batch.retracted_objects) == (0, 0)


def test_a_retraction_counts_the_objects_that_it_takes_out(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    retract(harness, "a", "b")
    newest, first = harness.ledger.batch_lists.newest(PIPELINE, limit=10)
    assert (newest.objects, newest.retracted_objects) == (0, 2)
    assert (first.objects, first.retracted_objects) == (2, 0)


def test_the_last_reopening_of_an_object_is_known_in_each_of_its_states(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    reopenings, a, b = harness.ledger.reopenings, object_id_of("a"), object_id_of("b")
    assert reopenings.last(PIPELINE, [a, b]) == {}
    reopenings.reopen(PIPELINE, [candidates("a")[0].uri])
    (reopened,) = reopenings.last(PIPELINE, [a, b]).values()
    assert (reopened.object_id, reopened.state, reopened.batch_seq, reopened.rows) == (a, ReopeningState.OPEN, 1, 10)
    assert reopened.read_attempt_id is None
    claim = harness.claim(candidates("a"), on_change=OnChange.REPLACE)
    harness.ledger.commit(outcome(claim, on_change=OnChange.REPLACE, since_seq=claim.next_seq))
    read = reopenings.last(PIPELINE, [a])[a]
    assert (read.state, read.read_attempt_id, read.reopened_at) == (
        ReopeningState.READ,
        claim.attempt_id,
        reopened.reopened_at,
    )


@pytest.mark.parametrize("name", ["quote'", "名前"])
def test_addresses_in_a_retraction_are_counted_whatever_their_characters(harness: LedgerHarness, name: str) -> None:
    harness.process(name)
    retract(harness, name)
    assert harness.ledger.batch_lists.newest(PIPELINE, limit=1)[0].retracted_objects == 1
    assert json.loads(harness.ledger.batch(PIPELINE, 2).record.replaces)  # type: ignore[union-attr]
