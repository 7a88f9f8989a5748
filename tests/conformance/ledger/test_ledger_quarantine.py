"""Which objects have bad lines, whether a person should know, and what became of the lines."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.conformance.ledger.ledger_harness import (
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.errors import ClaimLost
from penstock.ledger.records import (
    BadLines,
    ImportedBatch,
    ImportedObject,
    LedgerRepair,
    ObjectResult,
    QuarantineRow,
    QuarantineState,
    QuarantineWarning,
)

OTHER = "file:///lake/views"


def bad_lines(name: str, *, rows: int, lines: int, pipeline: str = PIPELINE) -> BadLines:
    one = candidate(name)
    return BadLines(
        object_id=one.object_id,
        replay_id=object_id_of(f"replay of {name}"),
        bucket=one.bucket,
        key=one.key,
        uri=one.uri,
        size_bytes=one.size_bytes,
        version_id=None,
        etag="etag",
        place="_offset",
        rows=rows,
        lines_quarantined=lines,
        reason="malformed: no comma",
    )


def commit(
    harness: LedgerHarness,
    *bad: BadLines,
    names: Sequence[str] = ("a",),
    replays: Sequence[str] = (),
    pipeline: str = PIPELINE,
) -> str:
    """Process the objects of these names with these bad lines; return the attempt."""
    harness.ledger.ensure_pipeline(pipeline)
    claim = harness.claim(candidates(*names), pipeline=pipeline)
    wanted = outcome(claim, pipeline=pipeline, bad=bad, replays=[object_id_of(name) for name in replays])
    assert harness.ledger.commit(wanted) is not None
    return claim.attempt_id


def rows(harness: LedgerHarness) -> list[QuarantineRow]:
    return sorted(harness.ledger.quarantines.rows(PIPELINE), key=lambda row: row.bad.uri)


@pytest.mark.parametrize(
    ("good", "bad", "warns"), [(95, 5, False), (94, 5, True), (0, 1, True), (10_000, 500, False), (10_000, 600, True)]
)
def test_more_than_a_twentieth_of_bad_lines_is_a_warning(
    harness: LedgerHarness, good: int, bad: int, warns: bool
) -> None:
    attempt = commit(harness, bad_lines("a", rows=good, lines=bad))
    (row,) = rows(harness)
    assert row == QuarantineRow(
        pipeline=PIPELINE,
        attempt_id=attempt,
        bad=bad_lines("a", rows=good, lines=bad),
        warns=warns,
        state=QuarantineState.OPEN,
        recorded_at=row.recorded_at,
        ended_at=None,
    )
    assert row.recorded_at == pytest.approx(harness.ledger.now(), abs=60.0)
    warning = QuarantineWarning(objects=1, lines=bad) if warns else QuarantineWarning()
    assert harness.ledger.quarantines.warning(PIPELINE) == warning
    assert harness.ledger.quarantines.warning(OTHER) == QuarantineWarning()


def test_an_attempt_that_does_not_count_leaves_no_row(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"))
    harness.ledger.abandon(claim.attempt_id, reason="t", outcome="failed", uncounted=False, unattributed=False)
    with pytest.raises(ClaimLost):
        harness.ledger.commit(outcome(claim, bad=[bad_lines("a", rows=1, lines=1)]))
    assert rows(harness) == []


def test_a_commit_that_is_repeated_records_its_rows_once(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"))
    wanted = outcome(claim, bad=[bad_lines("a", rows=1, lines=1)])
    assert harness.ledger.commit(wanted) == harness.ledger.commit(wanted)
    assert len(rows(harness)) == 1


def test_a_replay_ends_the_warning_of_its_source(harness: LedgerHarness) -> None:
    commit(harness, bad_lines("a", rows=1, lines=4), bad_lines("b", rows=1, lines=2), names=("a", "b"))
    assert harness.ledger.quarantines.warning(PIPELINE) == QuarantineWarning(objects=2, lines=6)
    replay, other = object_id_of("replay of a"), object_id_of("no replay")
    assert harness.ledger.quarantines.of_replays(PIPELINE, [replay, other]) == {replay: rows(harness)[0]}
    commit(harness, names=["replay of a"], replays=["replay of a"])
    a, b = rows(harness)
    assert (a.state, b.state) == (QuarantineState.REPLAYED, QuarantineState.OPEN)
    assert a.ended_at is not None
    assert harness.ledger.quarantines.warning(PIPELINE) == QuarantineWarning(objects=1, lines=2)


def test_lines_that_are_bad_again_are_measured_by_the_whole_object(harness: LedgerHarness) -> None:
    commit(harness, bad_lines("a", rows=90, lines=10))
    commit(harness, bad_lines("replay of a", rows=6, lines=4), names=["replay of a"], replays=["replay of a"])
    (row,) = harness.ledger.quarantines.rows(PIPELINE, state=QuarantineState.OPEN)
    assert (row.bad.rows, row.bad.lines_quarantined, row.warns) == (96, 4, False)
    assert harness.ledger.quarantines.warning(PIPELINE) == QuarantineWarning()


def test_only_open_lines_are_dismissed_and_once(harness: LedgerHarness) -> None:
    commit(harness, bad_lines("a", rows=0, lines=1), bad_lines("b", rows=0, lines=1), names=("a", "b"))
    commit(harness, names=["replay of a"], replays=["replay of a"])
    ids = [object_id_of(name) for name in ("a", "b", "unknown")]
    assert harness.ledger.quarantines.dismiss(OTHER, ids) == 0
    assert harness.ledger.quarantines.dismiss(PIPELINE, ids) == 1
    assert harness.ledger.quarantines.dismiss(PIPELINE, ids) == 0
    assert [row.state for row in rows(harness)] == [QuarantineState.REPLAYED, QuarantineState.DISMISSED]
    assert harness.ledger.quarantines.warning(PIPELINE) == QuarantineWarning()


def test_dismissed_lines_can_still_be_replayed(harness: LedgerHarness) -> None:
    commit(harness, bad_lines("a", rows=0, lines=1))
    harness.ledger.quarantines.dismiss(PIPELINE, [object_id_of("a")])
    commit(harness, names=["replay of a"], replays=["replay of a"])
    assert rows(harness)[0].state is QuarantineState.REPLAYED


def test_rows_are_found_by_address_text_and_page(harness: LedgerHarness) -> None:
    names = ("a", "b", "c")
    commit(harness, *(bad_lines(name, rows=100 * (name == "c"), lines=1) for name in names), names=names)
    commit(harness, bad_lines("a", rows=0, lines=1), pipeline=OTHER)
    found = harness.ledger.quarantines
    assert [row.pipeline for row in found.find(PIPELINE, candidate("a").uri)] == [PIPELINE]
    assert found.find(PIPELINE, "s3://landing/none") == []
    assert {row.bad.uri for row in found.rows(PIPELINE, uri_contains="LANDING/B")} == {candidate("b").uri}
    assert {row.bad.uri for row in found.rows(PIPELINE, only_warnings=True)} == {
        candidate("a").uri,
        candidate("b").uri,
    }
    first = found.rows(PIPELINE, limit=2)
    rest = found.rows(PIPELINE, limit=2, after=first[-1].bad.object_id)
    assert {row.bad.uri for row in (*first, *rest)} == {candidate(name).uri for name in names}


def test_a_replay_is_no_other_version_of_its_object(harness: LedgerHarness) -> None:
    key = candidate("a").key
    commit(harness, bad_lines("a", rows=0, lines=1))
    replay = candidate("replay of a", key=key)
    harness.ledger.commit(outcome(harness.claim([replay]), replays=[replay.object_id]))
    assert harness.ledger.other_versions(PIPELINE, [object_id_of("a")]) == 0
    harness.ledger.commit(outcome(harness.claim([candidate("a, changed", key=key)])))
    assert harness.ledger.other_versions(PIPELINE, [object_id_of("a")]) == 1


def test_a_batch_finds_its_way_back_from_its_attempt(harness: LedgerHarness) -> None:
    attempt = commit(harness)
    found = harness.ledger.batch_of(attempt)
    assert found is not None
    assert (found.seq, found.attempt_id) == (1, attempt)
    assert harness.ledger.batch_of("unknown") is None


def test_a_repair_imports_bad_lines_and_replays(harness: LedgerHarness) -> None:
    bad = replace(bad_lines("a", rows=0, lines=3), reason=None)

    def imported(seq: int, name: str, **more: object) -> ImportedBatch:
        objects = [ImportedObject(candidate=candidate(name), rows=0, lines_quarantined=3)]
        return ImportedBatch(seq=seq, attempt_id=f"imported-{seq}", objects=objects, **more)  # type: ignore[arg-type]

    first = imported(1, "a", bad=[bad])
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=1, next_seq=2, table_schema=None, imported=[first])
    )
    assert harness.ledger.quarantines.warning(PIPELINE) == QuarantineWarning(objects=1, lines=3)
    second = imported(2, "replay of a", replays=[object_id_of("replay of a")])
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=2, next_seq=3, table_schema=None, imported=[second])
    )
    assert [row.state for row in rows(harness)] == [QuarantineState.REPLAYED]


def test_a_batch_that_a_repair_withdraws_takes_its_rows_with_it(harness: LedgerHarness) -> None:
    commit(harness, bad_lines("a", rows=0, lines=3))
    commit(harness, bad_lines("replay of a", rows=0, lines=2), names=["replay of a"], replays=["replay of a"])
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=3, next_seq=2, table_schema=None, withdrawn=[2])
    )
    (row,) = rows(harness)
    assert (row.bad.uri, row.state, row.ended_at) == (candidate("a").uri, QuarantineState.OPEN, None)


def test_five_thousand_bad_objects_and_replays_take_one_commit(harness: LedgerHarness) -> None:
    names = [f"o{number}" for number in range(5_000)]
    commit(harness, *(bad_lines(name, rows=0, lines=1) for name in names), names=names)
    replays = [f"replay of {name}" for name in names]
    commit(harness, names=replays, replays=replays)
    assert harness.ledger.quarantines.warning(PIPELINE) == QuarantineWarning()


def test_results_without_bad_lines_leave_no_row(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"))
    result = ObjectResult(object_id=object_id_of("a"), rows=1, lines_quarantined=1)  # a function read its lines
    harness.ledger.commit(replace(outcome(claim), processed=[result]))
    assert rows(harness) == []
