"""Archiving rows: which leave and which stay, and that no archived object is ever claimed again."""

import pytest
from tests.conformance.ledger.desk import AFTER, PIPELINE, Desk, candidate, candidates, object_id_of, outcome
from tests.conformance.ledger.lost import replies_lost
from tests.conformance.ledger.shelf import FILE, adopt, archive, contents, ids, ids_with_row, next_file

from penstock.errors import ConfigurationError
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, ArchiveFile
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.messaging.steps import Step


def test_archiving_removes_processed_rows_and_keeps_their_identities(desk: Desk) -> None:
    claim = desk.claim(candidates("a", "b", "poison"))
    desk.ledger.commit(outcome(claim, failed={"poison": AttemptFailure.DEAD}))
    desk.claim(candidates("busy"))
    assert archive(desk.ledger)
    assert ids_with_row(desk.ledger) == ids(["poison", "busy"])
    assert desk.state("a") is ObjectState.PROCESSED
    assert desk.state("poison") is ObjectState.DEAD
    counts = desk.ledger.counts(PIPELINE)
    assert (counts[ObjectState.PROCESSED], counts[ObjectState.DEAD]) == (2, 1)
    assert desk.timeline("a") == []
    assert len(desk.timeline("poison")) == 1
    assert desk.ledger.progress(PIPELINE, ARCHIVING) == 1
    (row,) = desk.ledger.archives.all(PIPELINE)
    assert (row.uri, row.objects, row.bytes, row.source) == (FILE, 2, 100, "retired")
    assert desk.ledger.archives.count(PIPELINE) == 2
    assert [batch.objects for batch in desk.ledger.batches(PIPELINE)] == [2], "what was committed stays on record"


def test_a_late_duplicate_of_an_archived_object_ends_as_processed_and_leaves_no_trace(desk: Desk) -> None:
    desk.process("a", "b")
    archive(desk.ledger)
    before = desk.everything()
    claim = desk.claim(candidates("a", "b"))
    assert (claim.claimed, claim.busy) == ({}, {})
    assert {id: one.state for id, one in claim.ended.items()} == dict.fromkeys(ids(["a", "b"]), ObjectState.PROCESSED)
    assert desk.everything() == before


def test_a_claim_treats_archived_objects_as_ended_and_takes_the_new_ones(desk: Desk) -> None:
    desk.process("archived")
    archive(desk.ledger)
    desk.process("done")
    desk.claim(candidates("busy"))
    claim = desk.claim(candidates("archived", "busy", "done", "new"))
    assert set(claim.claimed) == ids(["new"])
    assert set(claim.busy) == ids(["busy"])
    assert set(claim.ended) == ids(["archived", "done"])
    assert desk.ledger.commit(outcome(claim)) == 3
    assert ids_with_row(desk.ledger) == ids(["busy", "done", "new"])


def test_each_pipeline_has_its_own_archive(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    desk.ledger.ensure_pipeline("other")
    assert set(desk.claim(candidates("a"), pipeline="other").claimed) == ids(["a"])
    assert desk.ledger.counts("other")[ObjectState.PROCESSED] == 0


def test_a_late_replay_finds_an_archived_object_processed(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    claim = desk.claim([candidate("a", message="m-2", enqueued_at=AFTER, replay="r-1")])
    assert claim.ended[object_id_of("a")].state is ObjectState.PROCESSED


def test_an_archived_object_contains_its_row_timeline_and_sequencer(desk: Desk) -> None:
    desk.fail(AttemptFailure.RETRY, candidate("a", version_id="v-1", sequencer="0A"), "a")
    desk.process("a")
    (row,) = desk.ledger.objects(PIPELINE)
    timeline = desk.ledger.attempts_of(PIPELINE, object_id_of("a"))
    (one,) = contents(desk.ledger, next_file(desk.ledger))
    assert (one.row, list(one.timeline)) == (row, list(timeline))
    assert len(timeline) == 2
    assert one.sequencer == "0A"


def test_batches_are_archived_in_order_up_to_the_limit_and_a_large_one_alone(desk: Desk) -> None:
    for names in (["a"], ["b", "c"], ["d", "e", "f", "g"], ["h"]):
        desk.process(*names)
    first = next_file(desk.ledger, objects_max=3)
    assert [batch.seq for batch in first.batches] == [1, 2]
    assert [batch.seq for batch in next_file(desk.ledger, objects_max=3, up_to_seq=1).batches] == [1]
    assert desk.ledger.archives.retire(first, archive_id="one", file=ArchiveFile(uri=FILE, objects=3, bytes=1))
    second = next_file(desk.ledger, objects_max=3)
    assert (second.after_seq, [batch.seq for batch in second.batches]) == (2, [3])
    assert len(contents(desk.ledger, second)) == 4
    assert desk.ledger.archives.retiring(PIPELINE, after_seq=4, up_to_seq=10, objects_max=3) is None


def test_the_second_of_two_archivers_changes_nothing(desk: Desk) -> None:
    desk.process("a")
    retiring = next_file(desk.ledger)
    file = ArchiveFile(uri=FILE, objects=1, bytes=1)
    assert desk.ledger.archives.retire(retiring, archive_id="first", file=file)
    before = desk.everything()
    assert not desk.ledger.archives.retire(retiring, archive_id="second", file=file)
    assert desk.everything() == before


def test_a_file_with_another_number_of_objects_is_refused(desk: Desk) -> None:
    desk.process("a", "b")
    before = desk.everything()
    file = ArchiveFile(uri=FILE, objects=1, bytes=1)
    with pytest.raises(ConfigurationError, match="2 processed objects"):
        desk.ledger.archives.retire(next_file(desk.ledger), archive_id="short", file=file)
    assert desk.everything() == before


def test_a_disowned_file_never_becomes_an_archive(desk: Desk) -> None:
    desk.process("a")
    assert desk.ledger.archives.disown(PIPELINE, "archive-1")
    before = desk.everything()
    assert not archive(desk.ledger, "archive-1")
    assert desk.everything() == before
    assert desk.ledger.archives.all(PIPELINE) == []
    assert archive(desk.ledger, "archive-2")
    assert desk.state("a") is ObjectState.PROCESSED


def test_an_archive_in_use_cannot_be_disowned(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    before = desk.everything()
    assert not desk.ledger.archives.disown(PIPELINE, "archive-1")
    assert desk.everything() == before


@pytest.mark.parametrize("committed", [True, False])
def test_an_archive_commit_without_a_response_takes_effect_once(desk: Desk, committed: bool) -> None:
    desk.process("a")
    retiring, file = next_file(desk.ledger), ArchiveFile(uri=FILE, objects=1, bytes=1)
    with replies_lost(desk.ledger.database.engine, times=1, committed=committed):
        assert desk.ledger.archives.retire(retiring, archive_id="archive-1", file=file)
    assert ids_with_row(desk.ledger) == set()
    assert desk.ledger.archives.count(PIPELINE) == 1


def test_an_archiver_that_dies_before_its_commit_changes_nothing(desk: Desk) -> None:
    desk.process("a")
    before = desk.everything()

    def die(step: Step) -> None:
        if step is Step.ARCHIVING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive(Ledger(desk.ledger.database, die))
    assert desk.everything() == before
    assert archive(desk.ledger, "again")


def test_a_claimer_that_dies_creates_no_row_for_an_archived_object(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)

    def die(step: Step) -> None:
        assert step is Step.OBJECTS_REGISTERED
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Desk(Ledger(desk.ledger.database, die)).claim(candidates("a", "new"), attempt="died")
    assert ids_with_row(desk.ledger) == ids(["new"])
    assert (desk.state("a"), desk.state("new")) == (ObjectState.PROCESSED, ObjectState.PROCESSING)


def test_find_locates_an_object_in_its_archive(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    uri = candidate("a").uri
    assert desk.ledger.find(uri) == []
    (found,) = desk.ledger.archives.find(uri)
    assert (found.object_id, found.archive.pipeline, found.archive.uri) == (object_id_of("a"), PIPELINE, FILE)
    assert desk.ledger.archives.find("s3://landing/other") == []


def test_other_versions_are_counted_in_the_ledger_and_in_archives(desk: Desk) -> None:
    key = b"/landing/same"
    for name in ("old", "older"):
        desk.ledger.commit(outcome(desk.claim([candidate(name, key=key)])))
    desk.process("alone")
    archive(desk.ledger)
    desk.claim([candidate("new", key=key)])
    assert desk.ledger.other_versions(PIPELINE, [object_id_of("new")]) == 1
    assert desk.ledger.other_versions(PIPELINE, [object_id_of("old")]) == 1
    assert desk.ledger.other_versions(PIPELINE, [object_id_of("old"), object_id_of("older")]) == 2
    assert desk.ledger.other_versions(PIPELINE, [object_id_of("alone")]) == 0


# Objects that another system processed


def test_adopted_objects_are_never_claimed(desk: Desk) -> None:
    adoption = adopt(desk.ledger, "a", "b")
    assert (adoption.new, adoption.known, adoption.busy, adoption.replaced) == (2, 0, (), {})
    claim = desk.claim(candidates("a", "b", "c"))
    assert set(claim.claimed) == ids(["c"])
    assert set(claim.ended) == ids(["a", "b"])
    assert desk.ledger.counts(PIPELINE)[ObjectState.PROCESSED] == 2
    (row,) = desk.ledger.archives.all(PIPELINE)
    assert (row.uri, row.objects, row.source) == (None, 2, "done.csv")


def test_adopting_the_same_objects_again_adds_nothing(desk: Desk) -> None:
    adopt(desk.ledger, "a", "b")
    before = desk.everything()
    again = adopt(desk.ledger, "a", "b")
    assert (again.new, again.known) == (0, 2)
    assert desk.everything() == before
    more = adopt(desk.ledger, "b", "c")
    assert (more.new, more.known) == (1, 1)
    assert [row.objects for row in desk.ledger.archives.all(PIPELINE)] == [3]


def test_adopting_keeps_claimed_and_processed_objects_and_replaces_the_others(desk: Desk) -> None:
    desk.process("done")
    desk.fail(AttemptFailure.RETRY, candidate("waiting"), "waiting")
    desk.fail(AttemptFailure.DEAD, candidate("dead"), "dead")
    claim = desk.claim(candidates("busy"))
    names = ["done", "waiting", "dead", "busy", "new"]
    previewed = desk.ledger.adoptions.preview(PIPELINE, candidates(*names))
    adoption = adopt(desk.ledger, *names)
    assert adoption == previewed
    assert (adoption.new, adoption.known, set(adoption.busy)) == (3, 1, ids(["busy"]))
    assert adoption.replaced == {ObjectState.UNPROCESSED: 1, ObjectState.DEAD: 1}
    assert ids_with_row(desk.ledger) == ids(["done", "busy"])
    assert desk.timeline("dead") == []
    assert desk.ledger.commit(outcome(claim)) == 2, "the attempt at work is not disturbed"
    revival = desk.claim([candidate("dead", enqueued_at=AFTER, replay="r-1")])
    assert revival.ended[object_id_of("dead")].state is ObjectState.PROCESSED


def test_a_preview_of_an_adoption_changes_nothing(desk: Desk) -> None:
    before = desk.everything()
    assert desk.ledger.adoptions.preview(PIPELINE, candidates("a")).new == 1
    assert desk.everything() == before


def test_each_imported_file_is_an_archive_of_its_own(desk: Desk) -> None:
    adopt(desk.ledger, "a")
    adopt(desk.ledger, "a", "b", source="other.csv")
    assert sorted((row.source, row.objects) for row in desk.ledger.archives.all(PIPELINE)) == [
        ("done.csv", 1),
        ("other.csv", 1),
    ]
