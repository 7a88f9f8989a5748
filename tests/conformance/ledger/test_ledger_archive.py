"""Archiving rows: which leave and which stay, and that no archived object is ever claimed again."""

import pytest
from tests.conformance.ledger.archiving import FILE, adopt, archive, contents, ids, ids_with_row, next_file
from tests.conformance.ledger.ledger_harness import (
    AFTER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)
from tests.conformance.ledger.lost_responses import responses_lost

from penstock.errors import ConfigurationError
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, ArchiveFile
from penstock.ledger.records import AttemptFailure, Committed, ObjectState
from penstock.messaging.steps import Step


def test_archiving_removes_processed_rows_and_keeps_their_identities(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a", "b", "poison"))
    harness.ledger.commit(outcome(claim, failed={"poison": AttemptFailure.DEAD}))
    harness.claim(candidates("busy"))
    assert archive(harness.ledger)
    assert ids_with_row(harness.ledger) == ids(["poison", "busy"])
    assert harness.state("a") is ObjectState.PROCESSED
    assert harness.state("poison") is ObjectState.DEAD
    counts = harness.ledger.counts(PIPELINE)
    assert (counts[ObjectState.PROCESSED], counts[ObjectState.DEAD]) == (2, 1)
    assert harness.timeline("a") == []
    assert len(harness.timeline("poison")) == 1
    assert harness.ledger.progress(PIPELINE, ARCHIVING) == 1
    (row,) = harness.ledger.archives.all(PIPELINE)
    assert (row.uri, row.objects, row.bytes, row.source) == (FILE, 2, 100, "retired")
    assert harness.ledger.archives.count(PIPELINE) == 2
    assert [batch.objects for batch in harness.ledger.batches(PIPELINE)] == [2], "committed batches stay in the ledger"


def test_a_late_duplicate_of_an_archived_object_ends_as_processed_and_leaves_no_trace(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    archive(harness.ledger)
    before = harness.everything()
    claim = harness.claim(candidates("a", "b"))
    assert (claim.claimed, claim.busy) == ({}, {})
    assert {id: one.state for id, one in claim.ended.items()} == dict.fromkeys(ids(["a", "b"]), ObjectState.PROCESSED)
    assert harness.everything() == before


def test_a_claim_treats_archived_objects_as_ended_and_takes_the_new_ones(harness: LedgerHarness) -> None:
    harness.process("archived")
    archive(harness.ledger)
    harness.process("done")
    harness.claim(candidates("busy"))
    claim = harness.claim(candidates("archived", "busy", "done", "new"))
    assert set(claim.claimed) == ids(["new"])
    assert set(claim.busy) == ids(["busy"])
    assert set(claim.ended) == ids(["archived", "done"])
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=3)
    assert ids_with_row(harness.ledger) == ids(["busy", "done", "new"])


def test_each_pipeline_has_its_own_archive(harness: LedgerHarness) -> None:
    harness.process("a")
    archive(harness.ledger)
    harness.ledger.ensure_pipeline("other")
    assert set(harness.claim(candidates("a"), pipeline="other").claimed) == ids(["a"])
    assert harness.ledger.counts("other")[ObjectState.PROCESSED] == 0


def test_a_late_replay_finds_an_archived_object_processed(harness: LedgerHarness) -> None:
    harness.process("a")
    archive(harness.ledger)
    claim = harness.claim([candidate("a", message="m-2", enqueued_at=AFTER, replay="r-1")])
    assert claim.ended[object_id_of("a")].state is ObjectState.PROCESSED


def test_an_archived_object_contains_its_row_timeline_and_sequencer(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("a", version_id="v-1", sequencer="0A"), "a")
    harness.process("a")
    (row,) = harness.ledger.objects(PIPELINE)
    timeline = harness.ledger.attempts_of(PIPELINE, object_id_of("a"))
    (one,) = contents(harness.ledger, next_file(harness.ledger))
    assert (one.row, list(one.timeline)) == (row, list(timeline))
    assert len(timeline) == 2
    assert one.sequencer == "0A"


def test_batches_are_archived_in_order_up_to_the_limit_and_a_large_one_alone(harness: LedgerHarness) -> None:
    for names in (["a"], ["b", "c"], ["d", "e", "f", "g"], ["h"]):
        harness.process(*names)
    first = next_file(harness.ledger, objects_max=3)
    assert [batch.seq for batch in first.batches] == [1, 2]
    assert [batch.seq for batch in next_file(harness.ledger, objects_max=3, up_to_seq=1).batches] == [1]
    assert harness.ledger.archives.retire(first, archive_id="one", file=ArchiveFile(uri=FILE, objects=3, bytes=1))
    second = next_file(harness.ledger, objects_max=3)
    assert (second.after_seq, [batch.seq for batch in second.batches]) == (2, [3])
    assert len(contents(harness.ledger, second)) == 4
    assert harness.ledger.archives.retiring(PIPELINE, after_seq=4, up_to_seq=10, objects_max=3) is None


def test_the_second_of_two_archivers_changes_nothing(harness: LedgerHarness) -> None:
    harness.process("a")
    retiring = next_file(harness.ledger)
    file = ArchiveFile(uri=FILE, objects=1, bytes=1)
    assert harness.ledger.archives.retire(retiring, archive_id="first", file=file)
    before = harness.everything()
    assert not harness.ledger.archives.retire(retiring, archive_id="second", file=file)
    assert harness.everything() == before


def test_a_file_with_another_number_of_objects_is_refused(harness: LedgerHarness) -> None:
    harness.process("a", "b")
    before = harness.everything()
    file = ArchiveFile(uri=FILE, objects=1, bytes=1)
    with pytest.raises(ConfigurationError, match="2 processed objects"):
        harness.ledger.archives.retire(next_file(harness.ledger), archive_id="short", file=file)
    assert harness.everything() == before


def test_a_disowned_file_never_becomes_an_archive(harness: LedgerHarness) -> None:
    harness.process("a")
    assert harness.ledger.archives.disown(PIPELINE, "archive-1")
    before = harness.everything()
    assert not archive(harness.ledger, "archive-1")
    assert harness.everything() == before
    assert harness.ledger.archives.all(PIPELINE) == []
    assert archive(harness.ledger, "archive-2")
    assert harness.state("a") is ObjectState.PROCESSED


def test_an_archive_in_use_cannot_be_disowned(harness: LedgerHarness) -> None:
    harness.process("a")
    archive(harness.ledger)
    before = harness.everything()
    assert not harness.ledger.archives.disown(PIPELINE, "archive-1")
    assert harness.everything() == before


@pytest.mark.parametrize("committed", [True, False])
def test_an_archive_commit_without_a_response_takes_effect_once(harness: LedgerHarness, committed: bool) -> None:
    harness.process("a")
    retiring, file = next_file(harness.ledger), ArchiveFile(uri=FILE, objects=1, bytes=1)
    with responses_lost(harness.ledger.database.engine, times=1, committed=committed):
        assert harness.ledger.archives.retire(retiring, archive_id="archive-1", file=file)
    assert ids_with_row(harness.ledger) == set()
    assert harness.ledger.archives.count(PIPELINE) == 1


def test_an_archiver_that_dies_before_its_commit_changes_nothing(harness: LedgerHarness) -> None:
    harness.process("a")
    before = harness.everything()

    def die(step: Step) -> None:
        if step is Step.ARCHIVING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive(Ledger(harness.ledger.database, die))
    assert harness.everything() == before
    assert archive(harness.ledger, "again")


def test_a_claimer_that_dies_creates_no_row_for_an_archived_object(harness: LedgerHarness) -> None:
    harness.process("a")
    archive(harness.ledger)

    def die(step: Step) -> None:
        assert step is Step.OBJECTS_REGISTERED
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LedgerHarness(Ledger(harness.ledger.database, die)).claim(candidates("a", "new"), attempt="died")
    assert ids_with_row(harness.ledger) == ids(["new"])
    assert (harness.state("a"), harness.state("new")) == (ObjectState.PROCESSED, ObjectState.PROCESSING)


def test_find_locates_an_object_in_its_archive(harness: LedgerHarness) -> None:
    harness.process("a")
    archive(harness.ledger)
    uri = candidate("a").uri
    assert harness.ledger.find(uri) == []
    (found,) = harness.ledger.archives.find(uri)
    assert (found.object_id, found.archive.pipeline, found.archive.uri) == (object_id_of("a"), PIPELINE, FILE)
    assert harness.ledger.archives.find("s3://landing/other") == []


def test_other_versions_are_counted_in_the_ledger_and_in_archives(harness: LedgerHarness) -> None:
    key = b"/landing/same"
    for name in ("old", "older"):
        harness.ledger.commit(outcome(harness.claim([candidate(name, key=key)])))
    harness.process("alone")
    archive(harness.ledger)
    harness.claim([candidate("new", key=key)])
    assert harness.ledger.other_versions(PIPELINE, [object_id_of("new")]) == 1
    assert harness.ledger.other_versions(PIPELINE, [object_id_of("old")]) == 1
    assert harness.ledger.other_versions(PIPELINE, [object_id_of("old"), object_id_of("older")]) == 2
    assert harness.ledger.other_versions(PIPELINE, [object_id_of("alone")]) == 0


# Objects that another system processed


def test_adopted_objects_are_never_claimed(harness: LedgerHarness) -> None:
    adoption = adopt(harness.ledger, "a", "b")
    assert (adoption.new, adoption.known, adoption.busy, adoption.replaced) == (2, 0, (), {})
    claim = harness.claim(candidates("a", "b", "c"))
    assert set(claim.claimed) == ids(["c"])
    assert set(claim.ended) == ids(["a", "b"])
    assert harness.ledger.counts(PIPELINE)[ObjectState.PROCESSED] == 2
    (row,) = harness.ledger.archives.all(PIPELINE)
    assert (row.uri, row.objects, row.source) == (None, 2, "done.csv")


def test_adopting_the_same_objects_again_adds_nothing(harness: LedgerHarness) -> None:
    adopt(harness.ledger, "a", "b")
    before = harness.everything()
    again = adopt(harness.ledger, "a", "b")
    assert (again.new, again.known) == (0, 2)
    assert harness.everything() == before
    more = adopt(harness.ledger, "b", "c")
    assert (more.new, more.known) == (1, 1)
    assert [row.objects for row in harness.ledger.archives.all(PIPELINE)] == [3]


def test_adopting_keeps_claimed_and_processed_objects_and_replaces_the_others(harness: LedgerHarness) -> None:
    harness.process("done")
    harness.fail(AttemptFailure.RETRY, candidate("waiting"), "waiting")
    harness.fail(AttemptFailure.DEAD, candidate("dead"), "dead")
    claim = harness.claim(candidates("busy"))
    names = ["done", "waiting", "dead", "busy", "new"]
    previewed = harness.ledger.adoptions.preview(PIPELINE, candidates(*names))
    adoption = adopt(harness.ledger, *names)
    assert adoption == previewed
    assert (adoption.new, adoption.known, set(adoption.busy)) == (3, 1, ids(["busy"]))
    assert adoption.replaced == {ObjectState.UNPROCESSED: 1, ObjectState.DEAD: 1}
    assert ids_with_row(harness.ledger) == ids(["done", "busy"])
    assert harness.timeline("dead") == []
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=2), "the running attempt is not disturbed"
    revival = harness.claim([candidate("dead", enqueued_at=AFTER, replay="r-1")])
    assert revival.ended[object_id_of("dead")].state is ObjectState.PROCESSED


def test_a_preview_of_an_adoption_changes_nothing(harness: LedgerHarness) -> None:
    before = harness.everything()
    assert harness.ledger.adoptions.preview(PIPELINE, candidates("a")).new == 1
    assert harness.everything() == before


def test_each_imported_file_is_an_archive_of_its_own(harness: LedgerHarness) -> None:
    adopt(harness.ledger, "a")
    adopt(harness.ledger, "a", "b", source="other.csv")
    assert sorted((row.source, row.objects) for row in harness.ledger.archives.all(PIPELINE)) == [
        ("done.csv", 1),
        ("other.csv", 1),
    ]
