"""Reading all known ids in bulk, and the record of reconciliations."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from tests.conformance.ledger.ledger_harness import (
    BEFORE,
    OVER,
    PIPELINE,
    LedgerHarness,
    candidates,
    object_id_of,
    outcome,
)

from penstock.errors import TemporaryError
from penstock.ledger import Ledger, known_ids
from penstock.ledger.known_ids import ID_BYTES, IDS_END, KnownIds, known_ids_at
from penstock.ledger.pipelines import ReconcileResult
from penstock.ledger.records import AttemptFailure
from penstock.ledger.schema import archived_objects

NOW = time.time()


def known(blobs: Iterator[bytes]) -> list[bytes]:
    """Return the ids, each as often as it was read."""
    found: list[bytes] = []
    for blob in blobs:
        assert len(blob) % ID_BYTES == 0
        found += [blob[at : at + ID_BYTES] for at in range(0, len(blob), ID_BYTES)]
    return found


def ids(*names: str) -> list[bytes]:
    return sorted(map(object_id_of, names))


def archive(harness: LedgerHarness, object_ids: Sequence[bytes], *, pipeline: str = PIPELINE) -> None:
    rows = [
        {"pipeline": pipeline, "object_id": object_id, "uri_digest": object_id, "archive_id": "a"}
        for object_id in object_ids
    ]
    harness.ledger.database.transact(lambda connection: connection.execute(insert(archived_objects), rows))


def test_an_empty_ledger_knows_no_ids(harness: LedgerHarness) -> None:
    assert known(harness.ledger.known_ids(PIPELINE)) == []


def test_ended_live_and_archived_objects_are_known_and_no_others(harness: LedgerHarness) -> None:
    harness.process("processed-1", "processed-2")
    for name, failure in {
        "dead": AttemptFailure.DEAD,
        "gone": AttemptFailure.DELETED,
        "superseded": AttemptFailure.SUPERSEDED,
    }.items():
        harness.ledger.commit(outcome(harness.claim(candidates(name)), failed={name: failure}))
    harness.ledger.commit(outcome(harness.claim(candidates("waits")), failed={"waits": AttemptFailure.RETRY}))
    released = harness.claim(candidates("released"))
    harness.ledger.abandon(released.attempt_id, reason="stop", outcome="given_back", uncounted=True, unattributed=False)
    harness.claim(candidates("late"), lease_seconds=OVER, pipeline="other")  # claims abandon expired attempts
    harness.claim(candidates("live"))
    harness.claim(candidates("over"), lease_seconds=OVER)
    archive(harness, ids("archived"))
    expected = ids("processed-1", "processed-2", "dead", "live", "archived")
    assert sorted(known(harness.ledger.known_ids(PIPELINE))) == expected, (
        "objects that exist were not deleted or replaced"
    )
    expected = ids("processed-1", "processed-2", "dead", "gone", "superseded", "live", "archived")
    assert sorted(known(harness.ledger.known_ids(PIPELINE, seen_at=BEFORE))) == expected, "it was, since it was seen"


def test_each_pipeline_knows_only_its_own_objects(harness: LedgerHarness) -> None:
    harness.ledger.ensure_pipeline("other")
    harness.process("mine")
    harness.ledger.commit(outcome(harness.claim(candidates("theirs"), pipeline="other"), pipeline="other"))
    archive(harness, ids("theirs too"), pipeline="other")
    assert known(harness.ledger.known_ids(PIPELINE)) == ids("mine")
    assert sorted(known(harness.ledger.known_ids("other"))) == ids("theirs", "theirs too")


def test_a_range_includes_its_start_and_excludes_its_end(harness: LedgerHarness) -> None:
    edges = [bytes(ID_BYTES), (1 << 127).to_bytes(ID_BYTES, "big"), b"\xff" * ID_BYTES, b"\x7f" + b"\0" * 15]
    archive(harness, edges)
    middle = 1 << 127
    assert sorted(known(harness.ledger.known_ids(PIPELINE, 0, middle))) == [edges[0], edges[3]]
    assert sorted(known(harness.ledger.known_ids(PIPELINE, middle, IDS_END))) == [edges[1], edges[2]]
    assert known(harness.ledger.known_ids(PIPELINE, middle, middle)) == []


@pytest.mark.parametrize("chunk_ids", [1, 7, 100])
def test_small_chunks_contain_every_id_once(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch, chunk_ids: int
) -> None:
    names = [f"object-{number}" for number in range(500)]
    archive(harness, list(map(object_id_of, names)))
    monkeypatch.setattr(known_ids, "CHUNK_IDS", chunk_ids)
    assert sorted(known(harness.ledger.known_ids(PIPELINE))) == ids(*names)


def test_truncated_results_are_requested_in_smaller_ranges(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"object-{number}" for number in range(300)]
    archive(harness, list(map(object_id_of, names)))
    monkeypatch.setattr(known_ids, "_CONCAT_BYTES_MAX", 20 * ID_BYTES)
    assert sorted(known(harness.ledger.known_ids(PIPELINE))) == ids(*names)


def test_a_read_that_fails_temporarily_is_repeated(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.process("a", "b")
    faults = iter([TemporaryError("away"), TemporaryError("away")])
    real = harness.ledger.database.reading

    def reading() -> Any:
        for fault in faults:
            raise fault
        return real()

    monkeypatch.setattr(known_ids, "_WAIT_SECONDS_MAX", 0.01)
    monkeypatch.setattr(harness.ledger.database, "reading", reading)
    assert sorted(known(KnownIds(harness.ledger.database).between(PIPELINE, 0, IDS_END, seen_at=NOW))) == ids("a", "b")
    faults = iter([TemporaryError("away")] * 100)
    with pytest.raises(TemporaryError):
        known(KnownIds(harness.ledger.database).between(PIPELINE, 0, IDS_END, seen_at=NOW))


def test_another_process_reads_known_ids_by_the_url(shared_harness: LedgerHarness) -> None:
    shared_harness.process("a", "b")
    url = shared_harness.ledger.secret_url
    assert sorted(known(known_ids_at(url, PIPELINE, 0, IDS_END, seen_at=NOW))) == ids("a", "b")


def test_the_url_for_other_processes_has_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(Ledger.open("sqlite:///a?b.db")) as ledger:
        url = ledger.secret_url
    monkeypatch.chdir("/")
    assert known(known_ids_at(url, PIPELINE, 0, IDS_END, seen_at=NOW)) == []


def test_the_latest_reconciliation_is_recorded(harness: LedgerHarness) -> None:
    assert harness.ledger.reconciliation(PIPELINE) is None
    assert harness.ledger.seconds_since_reconciliation(PIPELINE) is None
    first = ReconcileResult(
        pipeline=PIPELINE, as_of=1.0, source="s3://landing/a\0", listed=10, missing=3, sent=2, seconds=0.5
    )
    second = ReconcileResult(
        pipeline=PIPELINE, as_of=2.0, source="s3://landing", listed=11, missing=0, sent=0, seconds=1.5
    )
    for comparison in (first, second, second):
        harness.ledger.record_reconciliation(comparison)
    found = harness.ledger.reconciliation(PIPELINE)
    assert found is not None
    assert (found.as_of, found.source, found.listed, found.missing, found.sent) == (2.0, "s3://landing", 11, 0, 0)
    assert found.seconds == 1.5
    assert found.finished_at > 1_000_000_000
    seconds = harness.ledger.seconds_since_reconciliation(PIPELINE)
    assert seconds is not None
    assert 0 <= seconds < 60
    assert list(harness.ledger.reconciliations()) == [found]
