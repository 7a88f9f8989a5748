"""The lines of an attempt, as a replay finds them in the files of the quarantine."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from penstock.app.paths import TablePaths, table_paths
from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    BatchRecord,
    Candidate,
    ObjectResult,
    OnChange,
    OriginalMessage,
)
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.objects.replays import replay_of
from penstock.pipeline.batch_record import run_files
from penstock.pipeline.quarantine_lines import QuarantineLines
from penstock.pipeline.quarantined import bad_lines
from penstock.pipeline.spark.engine import replay_places
from penstock.pipeline.spark.source.places import ranges_of
from penstock.pipeline.spark.source.quarantine import QuarantineFile
from penstock.sinks.manifest import encode
from penstock.sinks.registry import open_sink

A, B = (ObjectRef(bucket=LOCAL_BUCKET, key=f"/in/{name}", size_bytes=9, etag="1-9") for name in "ab")


@pytest.fixture
def where(tmp_path: Path) -> TablePaths:
    return table_paths(tmp_path / "table")


@pytest.fixture
def ledger(where: TablePaths) -> Iterator[Ledger]:
    with closing(Ledger.open("sqlite://")) as opened:
        opened.ensure_pipeline(where.pipeline)
        yield opened


@pytest.fixture
def lines(where: TablePaths, ledger: Ledger) -> QuarantineLines:
    return QuarantineLines(
        ledger, open_sink(where.quarantine, scheme=where.scheme, pipeline=where.pipeline), pipeline=where.pipeline
    )


def quarantine(
    where: TablePaths,
    ledger: Ledger,
    attempt: str,
    found: Sequence[tuple[ObjectRef, int, bytes]],
    *,
    place: str = "_offset",
) -> None:
    """Commit an attempt that found these bad lines."""
    refs = {ref.object_id: ref for ref, _, _ in found}
    wanted = [
        Candidate(
            object_id=ref.object_id,
            bucket=ref.bucket,
            key=ref.key_bytes,
            size_bytes=ref.size_bytes,
            uri=ref.uri,
            original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
            etag=ref.etag,
        )
        for ref in refs.values()
    ]
    ledger.claim(where.pipeline, wanted, attempt_id=attempt, worker="w", lease_seconds=60.0)
    file = QuarantineFile(where.quarantine, run_files(attempt, 0), 0)
    for ref, offset, raw in found:
        file.add(ref.uri, offset, raw, "malformed", "no object")
    written = file.finish()
    assert written is not None
    processed = [
        ObjectResult(object_id=id, rows=1, lines_quarantined=sum(one.object_id == id for one, _, _ in found))
        for id in refs
    ]
    ledger.commit(
        BatchOutcome(
            pipeline=where.pipeline,
            attempt_id=attempt,
            processed=processed,
            record=BatchRecord(quarantine_manifest=encode([written])),
            bad=bad_lines(refs, processed, attempt_id=attempt, place=place),
        )
    )


def test_the_places_are_those_of_the_attempt_and_the_object(
    where: TablePaths, ledger: Ledger, lines: QuarantineLines
) -> None:
    quarantine(where, ledger, "one", [(A, 0, b"xyz"), (A, 7, b""), (B, 3, b"x")])
    changed = ObjectRef(bucket=A.bucket, key=A.key, size_bytes=8, etag="2-8")
    quarantine(where, ledger, "two", [(changed, 5, b"later")])
    wanted = [replay_of(A, "one"), B, replay_of(B, "one"), replay_of(changed, "two")]
    places, failed = replay_places(wanted, lines, "_offset")
    assert failed == {}
    assert places == {
        wanted[0].object_id: ranges_of([(0, 3), (7, 0)], place="_offset"),
        wanted[2].object_id: ranges_of([(3, 1)], place="_offset"),
        wanted[3].object_id: ranges_of([(5, 5)], place="_offset"),
    }


def test_a_replay_of_unknown_lines_fails_for_good_and_alone(
    where: TablePaths, ledger: Ledger, lines: QuarantineLines
) -> None:
    quarantine(where, ledger, "one", [(A, 0, b"xyz")])
    quarantine(where, ledger, "two", [(B, 2, b"xyz")], place="_row")
    forged, of_rows, good = replay_of(A, "another"), replay_of(B, "two"), replay_of(A, "one")
    places, failed = replay_places([forged, of_rows, good], lines, "_offset")
    assert places.keys() == {good.object_id}
    assert {failure.failure for failure in failed.values()} == {AttemptFailure.DEAD}
    assert failed[forged.object_id].reason == f"the ledger knows no bad lines of {A.uri} in the attempt another"
    assert failed[of_rows.object_id].reason.startswith(f"the bad lines of {B.uri} were found by _row")


def test_lines_that_are_no_longer_all_there_fail_the_replay(
    where: TablePaths, ledger: Ledger, lines: QuarantineLines
) -> None:
    quarantine(where, ledger, "one", [(A, 0, b"xyz")])
    for path in Path(str(where.quarantine)).rglob("*.parquet"):
        path.unlink()
    _, failed = replay_places([replay_of(A, "one")], lines, "_offset")
    (failure,) = failed.values()
    assert "has 0 lines of file:///in/a, and the attempt one quarantined 1" in failure.reason


def test_a_replay_of_a_version_that_was_replaced_fails_for_good(
    where: TablePaths, ledger: Ledger, lines: QuarantineLines
) -> None:
    quarantine(where, ledger, "one", [(A, 0, b"xyz")])
    changed = ObjectRef(bucket=A.bucket, key=A.key, size_bytes=8, etag="2-8")
    wanted = Candidate(
        object_id=changed.object_id,
        bucket=changed.bucket,
        key=changed.key_bytes,
        size_bytes=8,
        uri=changed.uri,
        original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
        etag=changed.etag,
    )
    claim = ledger.claim(
        where.pipeline, [wanted], attempt_id="two", worker="w", lease_seconds=60.0, on_change=OnChange.REPLACE
    )
    ledger.commit(
        BatchOutcome(
            pipeline=where.pipeline,
            attempt_id="two",
            processed=[ObjectResult(object_id=changed.object_id, rows=1, lines_quarantined=0)],
            on_change=OnChange.REPLACE,
            since_seq=claim.next_seq,
        )
    )
    places, failed = replay_places([replay_of(A, "one")], lines, "_offset")
    assert places == {}
    (failure,) = failed.values()
    assert failure.failure is AttemptFailure.DEAD
    assert "rows left the table with batch 2" in failure.reason
