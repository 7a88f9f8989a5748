"""Objects that grow: the beginnings that the ledger remembers, and batches with only what was appended."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.conformance.ledger.archiving import archive
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, object_id_of, outcome
from tests.conformance.ledger.lost_responses import responses_lost
from tests.conformance.ledger.test_ledger_versions import (
    ADDRESS,
    REPLACED_ONE,
    bad_lines_of,
    claim,
    replaces,
    retract,
    version,
)

from penstock.errors import VersionsMoved
from penstock.ledger import Ledger
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    Beginning,
    Candidate,
    Committed,
    KnownBeginning,
    ObjectClaims,
    ObjectState,
    OnChange,
    QuarantineState,
)
from penstock.ledger.tails import ContinuedVersion
from penstock.messaging.steps import Step

LONG = '[[100,"' + "f" * 64 + '"],' + ",".join(f'[{end},"{"0" * 64}"]' for end in range(1_000)) + "]"


def beginning(size_bytes: int, *, digest: str = '[[1,"ab"]]') -> Beginning:
    return Beginning(size_bytes=size_bytes, digest=digest, reading="r" * 64)


def hold(harness: LedgerHarness, *wanted: Candidate) -> ObjectClaims:
    return claim(harness, *wanted, on_change=OnChange.TAIL)


def known(harness: LedgerHarness, held: ObjectClaims, name: str) -> KnownBeginning | None:
    return harness.ledger.beginnings(PIPELINE, held.attempt_id).get(object_id_of(name))


def result_of(held: ObjectClaims, name: str, found: Beginning | None, base: str | None) -> BatchOutcome:
    done = outcome(held, on_change=OnChange.TAIL, since_seq=held.next_seq)
    processed = [
        replace(one, beginning=found, appended_to=base) if one.object_id == object_id_of(name) else one
        for one in done.processed
    ]
    return replace(done, processed=processed)


def whole(harness: LedgerHarness, name: str, *, size_bytes: int = 100, digest: str = "d") -> Committed | None:
    held = hold(harness, version(name))
    return harness.ledger.commit(result_of(held, name, beginning(size_bytes, digest=digest), None))


def grow(harness: LedgerHarness, name: str, *, found: Beginning | None = None) -> Committed | None:
    """Process a version that was appended to the last one."""
    held = hold(harness, version(name))
    base = known(harness, held, name)
    assert base is not None
    return harness.ledger.commit(result_of(held, name, found, base.attempt_id))


def test_a_claim_finds_the_beginning_of_the_version_before(harness: LedgerHarness) -> None:
    first = hold(harness, version("v1"), version("x", key=b"x"))
    assert harness.ledger.beginnings(PIPELINE, first.attempt_id) == {}
    harness.ledger.commit(result_of(first, "v1", beginning(100, digest=LONG), None))
    held = hold(harness, version("v2"), version("y", key=b"y"))
    expected = KnownBeginning(
        beginning=beginning(100, digest=LONG), attempt_id=first.attempt_id, rows=10, lines_quarantined=1
    )
    assert harness.ledger.beginnings(PIPELINE, held.attempt_id) == {object_id_of("v2"): expected}
    harness.ledger.ensure_pipeline("other")
    elsewhere = harness.claim([version("v2")], pipeline="other", on_change=OnChange.TAIL)
    assert harness.ledger.beginnings("other", elsewhere.attempt_id) == {}


def test_appended_rows_replace_nothing_and_a_correction_replaces_those_of_all_batches(harness: LedgerHarness) -> None:
    assert whole(harness, "v1") == Committed(seq=1)
    assert grow(harness, "v2", found=beginning(200)) == Committed(seq=2, grown_objects=1, appended_rows=10)
    assert grow(harness, "v3", found=beginning(300)) == Committed(seq=3, grown_objects=1, appended_rows=10)
    assert [replaces(harness, seq) for seq in (1, 2, 3)] == [(), (), ()]
    held = hold(harness, version("v4"))
    found = known(harness, held, "v4")
    assert found is not None
    assert (found.rows, found.lines_quarantined, found.beginning) == (30, 3, beginning(300))
    corrected = harness.ledger.commit(result_of(held, "v4", beginning(400), None))
    assert corrected == Committed(seq=4, replaced_objects=1, replaced_rows=30)
    assert replaces(harness, 4) == REPLACED_ONE
    batch = harness.ledger.batch(PIPELINE, 2)
    assert batch is not None
    assert (batch.grown_objects, batch.appended_rows) == (1, 10)
    assert harness.ledger.grown_totals(PIPELINE) == (0, 0), "batches without a row in the table"


def test_an_object_that_grew_and_is_read_again_replaces_the_rows_of_all_its_batches(harness: LedgerHarness) -> None:
    whole(harness, "v1")
    grow(harness, "v2", found=beginning(200))
    assert [row.object_id for row in harness.ledger.reopenings.reopen(PIPELINE, [ADDRESS]).objects] == [
        object_id_of("v2")
    ]
    held = hold(harness, version("v2"))
    assert held.claimed[object_id_of("v2")].is_reopened
    assert known(harness, held, "v2") is None, "it would be appended to itself"
    done = harness.ledger.commit(result_of(held, "v2", beginning(200, digest="n"), None))
    assert done == Committed(seq=3, replaced_objects=1, replaced_rows=20)
    assert grow(harness, "v3", found=beginning(300)) == Committed(seq=4, grown_objects=1, appended_rows=10)
    found = known(harness, hold(harness, version("v4")), "v4")
    assert found is not None
    assert found.rows == 20, "what the second reading wrote, and what was appended to it"


def test_a_version_that_grew_while_its_beginning_waits_to_be_read_again_is_read_whole(harness: LedgerHarness) -> None:
    whole(harness, "v1")
    harness.ledger.reopenings.reopen(PIPELINE, [ADDRESS])
    held = hold(harness, version("v2"))
    assert known(harness, held, "v2") is None
    done = harness.ledger.commit(result_of(held, "v2", beginning(200), None))
    assert done == Committed(seq=2, replaced_objects=1, replaced_rows=10)
    assert grow(harness, "v3", found=beginning(300)) == Committed(seq=3, grown_objects=1, appended_rows=10)


def test_nothing_is_appended_to_a_beginning_that_was_reopened_during_the_claim(harness: LedgerHarness) -> None:
    """A reopening that had read the versions before the claim, and was committed after the claim's look."""
    first = hold(harness, version("v1"))
    harness.ledger.commit(result_of(first, "v1", beginning(100), None))
    harness.ledger.reopenings.reopen(PIPELINE, [ADDRESS])
    held = hold(harness, version("v2"))
    with pytest.raises(VersionsMoved, match="beginning"):
        harness.ledger.commit(result_of(held, "v2", beginning(200), first.attempt_id))


@pytest.mark.parametrize("archived", [False, True])
def test_a_reopened_version_is_not_appended_to_one_that_it_replaced(harness: LedgerHarness, archived: bool) -> None:
    whole(harness, "v1")
    if archived:
        archive(harness.ledger)
    held = claim(harness, version("v2"), on_change=OnChange.REPLACE)
    harness.ledger.commit(outcome(held, on_change=OnChange.REPLACE, since_seq=held.next_seq))
    harness.ledger.reopenings.reopen(PIPELINE, [ADDRESS])
    held = hold(harness, version("v2"), version("other", key=b"other"))
    assert known(harness, held, "v2") is None
    done = harness.ledger.commit(result_of(held, "v2", beginning(200), None))
    assert done == Committed(seq=3, replaced_objects=1, replaced_rows=10)


def test_a_version_that_ends_within_a_line_is_no_beginning_and_its_rows_count(harness: LedgerHarness) -> None:
    whole(harness, "v1")
    grow(harness, "v2", found=None)
    held = hold(harness, version("v3"))
    assert known(harness, held, "v3") is None
    done = harness.ledger.commit(result_of(held, "v3", beginning(300), None))
    assert done == Committed(seq=3, replaced_objects=1, replaced_rows=20)


@pytest.mark.parametrize("rule", [OnChange.ADD, OnChange.REPLACE])
def test_a_version_of_another_rule_ends_the_beginning(harness: LedgerHarness, rule: OnChange) -> None:
    whole(harness, "v1")
    held = claim(harness, version("v2"), on_change=rule)
    harness.ledger.commit(outcome(held, on_change=rule, since_seq=held.next_seq))
    assert known(harness, hold(harness, version("v3")), "v3") is None


def test_a_retracted_object_has_no_beginning(harness: LedgerHarness) -> None:
    whole(harness, "v1")
    grow(harness, "v2", found=beginning(200))
    retract(harness)
    held = hold(harness, version("v3"))
    assert known(harness, held, "v3") is None
    assert harness.ledger.commit(result_of(held, "v3", beginning(300), None)) == Committed(seq=4)


def test_a_beginning_whose_version_moved_to_the_archive_is_found(harness: LedgerHarness) -> None:
    whole(harness, "v1")
    assert archive(harness.ledger)
    assert grow(harness, "v2", found=beginning(200)) == Committed(seq=2, grown_objects=1, appended_rows=10)
    assert archive(harness.ledger, "archive-2", up_to_seq=2)
    held = hold(harness, version("v3"))
    done = harness.ledger.commit(result_of(held, "v3", None, None))
    assert done == Committed(seq=3, replaced_objects=1, replaced_rows=20)


def test_rows_appended_to_a_version_that_is_not_the_last_one_are_refused(harness: LedgerHarness) -> None:
    whole(harness, "v1")
    old = hold(harness, version("v2"))
    base = known(harness, old, "v2")
    assert base is not None
    grow(harness, "v3", found=beginning(200))
    before = harness.everything()
    with pytest.raises(VersionsMoved, match="another version"):
        harness.ledger.commit(result_of(old, "v2", beginning(150), base.attempt_id))
    held = hold(harness, version("v4"))
    claimed = harness.everything()
    with pytest.raises(VersionsMoved, match="the beginning of an object that grew"):
        harness.ledger.commit(result_of(held, "v4", beginning(250), base.attempt_id))
    assert harness.everything() == claimed != before


def test_a_shorter_version_and_the_longer_one_again(harness: LedgerHarness) -> None:
    whole(harness, "v1")
    grow(harness, "v2", found=beginning(200))
    assert whole(harness, "v1") == Committed(seq=3, replaced_objects=1, replaced_rows=20)
    assert grow(harness, "v2", found=beginning(200)) == Committed(seq=4, grown_objects=1, appended_rows=10)
    late = hold(harness, version("v1"))
    failed = {"v1": AttemptFailure.SUPERSEDED}
    assert harness.ledger.commit(outcome(late, failed=failed, on_change=OnChange.TAIL)) is None
    held = hold(harness, version("v3"))
    found = known(harness, held, "v3")
    assert found is not None
    assert found.rows == 20, "also of a version whose late duplicate was found outdated"
    done = harness.ledger.commit(result_of(held, "v3", None, None))
    assert done == Committed(seq=5, replaced_objects=1, replaced_rows=20)


def test_bad_lines_of_the_beginning_stay_until_it_is_replaced(harness: LedgerHarness) -> None:
    held = hold(harness, version("v1"))
    bad = [bad_lines_of("v1", "replay")]
    harness.ledger.commit(replace(result_of(held, "v1", beginning(100), None), bad=bad))
    replay = version("replay")
    continued = harness.ledger.quarantines.continued
    assert continued(PIPELINE, [replay.object_id]) == {}
    grow(harness, "v2", found=beginning(200))
    assert _bad_states(harness) == [QuarantineState.OPEN]
    later = ContinuedVersion(size_bytes=100, version_id=None, etag="etag")
    assert continued(PIPELINE, [replay.object_id]) == {replay.object_id: later}
    assert continued("other", [replay.object_id]) == {}
    again = hold(harness, replay)
    done = outcome(again, on_change=OnChange.TAIL, since_seq=again.next_seq, replays=[replay.object_id])
    assert harness.ledger.commit(done) == Committed(seq=3)
    assert _bad_states(harness) == [QuarantineState.REPLAYED]
    held = hold(harness, version("v3"))
    found = known(harness, held, "v3")
    assert found is not None, "a replay is no version"
    grown = harness.ledger.commit(result_of(held, "v3", beginning(300), found.attempt_id))
    assert grown == Committed(seq=4, grown_objects=1, appended_rows=10)
    assert whole(harness, "v4") == Committed(seq=5, replaced_objects=1, replaced_rows=40)
    assert continued(PIPELINE, [replay.object_id]) == {}
    (row,) = harness.ledger.quarantines.find(PIPELINE, ADDRESS)
    assert row.replaced_seq == 5


def _bad_states(harness: LedgerHarness) -> Sequence[QuarantineState]:
    return [row.state for row in harness.ledger.quarantines.find(PIPELINE, ADDRESS)]


@pytest.mark.parametrize("committed", [True, False])
def test_appended_rows_whose_response_is_lost_are_committed_once(harness: LedgerHarness, committed: bool) -> None:
    whole(harness, "v1")
    held = hold(harness, version("v2"))
    base = known(harness, held, "v2")
    assert base is not None
    done = result_of(held, "v2", beginning(200), base.attempt_id)
    with responses_lost(harness.ledger.database.engine, times=1, committed=committed):
        result = harness.ledger.commit(done)
    assert result == Committed(seq=2, grown_objects=1, appended_rows=10)
    assert harness.ledger.commit(done) == result


@pytest.mark.parametrize("step", [Step.COMMITTING, Step.COMMITTED])
def test_a_death_leaves_all_of_the_appended_rows_or_nothing(harness: LedgerHarness, step: Step) -> None:
    class Died(BaseException):
        pass

    def dying(reached: Step) -> None:
        if reached is step:
            raise Died

    whole(harness, "v1")
    held = hold(harness, version("v2"))
    base = known(harness, held, "v2")
    assert base is not None
    done = result_of(held, "v2", beginning(200), base.attempt_id)
    before = harness.everything()
    with pytest.raises(Died):
        Ledger(harness.ledger.database, dying).commit(done)
    assert (harness.everything() == before) is (step is Step.COMMITTING)
    assert harness.ledger.commit(done) == Committed(seq=2, grown_objects=1, appended_rows=10)
    assert harness.state("v2") is ObjectState.PROCESSED
