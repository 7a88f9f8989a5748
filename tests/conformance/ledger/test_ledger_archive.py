"""Rows that leave for the archive: what goes and what stays, and that nothing of it is ever claimed again."""

import pytest
from tests.conformance.ledger.desk import AFTER, PIPELINE, Desk, candidate, candidates, object_id_of, outcome
from tests.conformance.ledger.lost import replies_lost
from tests.conformance.ledger.shelf import FILE, adopt, archive, contents, hot, ids, next_file

from penstock.errors import ConfigurationError
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, ArchiveFile
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.messaging.steps import Step


def test_processed_rows_leave_and_their_identities_stay(desk: Desk) -> None:
    claim = desk.claim(candidates("a", "b", "poison"))
    desk.ledger.commit(outcome(claim, failed={"poison": AttemptFailure.DEAD}))
    desk.claim(candidates("busy"))
    assert archive(desk.ledger)
    assert hot(desk.ledger) == ids(["poison", "busy"])
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


def test_a_claim_sorts_what_is_archived_from_what_is_not(desk: Desk) -> None:
    desk.process("archived")
    archive(desk.ledger)
    desk.process("done")
    desk.claim(candidates("busy"))
    claim = desk.claim(candidates("archived", "busy", "done", "new"))
    assert set(claim.claimed) == ids(["new"])
    assert set(claim.busy) == ids(["busy"])
    assert set(claim.ended) == ids(["archived", "done"])
    assert desk.ledger.commit(outcome(claim)) == 3
    assert hot(desk.ledger) == ids(["busy", "done", "new"])


def test_another_pipeline_has_an_archive_of_its_own(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    desk.ledger.ensure_pipeline("other")
    assert set(desk.claim(candidates("a"), pipeline="other").claimed) == ids(["a"])
    assert desk.ledger.counts("other")[ObjectState.PROCESSED] == 0


def test_a_replay_and_a_late_redrive_find_an_archived_object_done(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    claim = desk.claim([candidate("a", message="m-2", enqueued_at=AFTER, replay="r-1")])
    assert claim.ended[object_id_of("a")].state is ObjectState.PROCESSED


def test_an_export_contains_everything_that_is_known(desk: Desk) -> None:
    desk.fail(AttemptFailure.RETRY, candidate("a", version_id="v-1", sequencer="0A"), "a")
    desk.process("a")
    (row,) = desk.ledger.objects(PIPELINE)
    timeline = desk.ledger.attempts_of(PIPELINE, object_id_of("a"))
    (one,) = contents(desk.ledger, next_file(desk.ledger))
    assert (one.row, list(one.timeline)) == (row, list(timeline))
    assert len(timeline) == 2
    assert one.sequencer == "0A"


def test_batches_go_in_order_as_many_as_fit_and_a_large_one_alone(desk: Desk) -> None:
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


def test_one_of_two_archivers_wins_and_the_other_changes_nothing(desk: Desk) -> None:
    desk.process("a")
    retiring = next_file(desk.ledger)
    file = ArchiveFile(uri=FILE, objects=1, bytes=1)
    assert desk.ledger.archives.retire(retiring, archive_id="first", file=file)
    before = desk.everything()
    assert not desk.ledger.archives.retire(retiring, archive_id="second", file=file)
    assert desk.everything() == before


def test_a_file_that_holds_other_rows_than_would_leave_is_refused(desk: Desk) -> None:
    desk.process("a", "b")
    before = desk.everything()
    file = ArchiveFile(uri=FILE, objects=1, bytes=1)
    with pytest.raises(ConfigurationError, match="2 processed objects"):
        desk.ledger.archives.retire(next_file(desk.ledger), archive_id="short", file=file)
    assert desk.everything() == before


def test_a_file_that_was_swept_away_never_counts(desk: Desk) -> None:
    desk.process("a")
    assert desk.ledger.archives.disown(PIPELINE, "archive-1")
    before = desk.everything()
    assert not archive(desk.ledger, "archive-1")
    assert desk.everything() == before
    assert desk.ledger.archives.all(PIPELINE) == []
    assert archive(desk.ledger, "archive-2")
    assert desk.state("a") is ObjectState.PROCESSED


def test_a_file_that_counts_is_not_swept_away(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    before = desk.everything()
    assert not desk.ledger.archives.disown(PIPELINE, "archive-1")
    assert desk.everything() == before


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_without_an_answer_is_looked_into(desk: Desk, committed: bool) -> None:
    desk.process("a")
    retiring, file = next_file(desk.ledger), ArchiveFile(uri=FILE, objects=1, bytes=1)
    with replies_lost(desk.ledger.database.engine, times=1, committed=committed):
        assert desk.ledger.archives.retire(retiring, archive_id="archive-1", file=file)
    assert hot(desk.ledger) == set()
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


def test_a_claimer_that_dies_makes_no_row_anew(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)

    def die(step: Step) -> None:
        assert step is Step.OBJECTS_REGISTERED
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Desk(Ledger(desk.ledger.database, die)).claim(candidates("a", "new"), attempt="died")
    assert hot(desk.ledger) == ids(["new"])
    assert (desk.state("a"), desk.state("new")) == (ObjectState.PROCESSED, ObjectState.PROCESSING)


def test_find_leads_to_the_archive(desk: Desk) -> None:
    desk.process("a")
    archive(desk.ledger)
    uri = candidate("a").uri
    assert desk.ledger.find(uri) == []
    (found,) = desk.ledger.archives.find(uri)
    assert (found.object_id, found.archive.pipeline, found.archive.uri) == (object_id_of("a"), PIPELINE, FILE)
    assert desk.ledger.archives.find("s3://landing/other") == []


def test_other_versions_are_counted_wherever_they_are(desk: Desk) -> None:
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


# Objects that somebody else processed


def test_adopted_objects_are_never_claimed(desk: Desk) -> None:
    adoption = adopt(desk.ledger, "a", "b")
    assert (adoption.new, adoption.known, adoption.busy, adoption.replaced) == (2, 0, (), {})
    claim = desk.claim(candidates("a", "b", "c"))
    assert set(claim.claimed) == ids(["c"])
    assert set(claim.ended) == ids(["a", "b"])
    assert desk.ledger.counts(PIPELINE)[ObjectState.PROCESSED] == 2
    (row,) = desk.ledger.archives.all(PIPELINE)
    assert (row.uri, row.objects, row.source) == (None, 2, "done.csv")


def test_adopting_again_adds_nothing(desk: Desk) -> None:
    adopt(desk.ledger, "a", "b")
    before = desk.everything()
    again = adopt(desk.ledger, "a", "b")
    assert (again.new, again.known) == (0, 2)
    assert desk.everything() == before
    more = adopt(desk.ledger, "b", "c")
    assert (more.new, more.known) == (1, 1)
    assert [row.objects for row in desk.ledger.archives.all(PIPELINE)] == [3]


def test_what_is_at_work_or_known_is_left_alone_and_the_rest_replaced(desk: Desk) -> None:
    desk.process("done")
    desk.fail(AttemptFailure.RETRY, candidate("waiting"), "waiting")
    desk.fail(AttemptFailure.DEAD, candidate("dead"), "dead")
    claim = desk.claim(candidates("busy"))
    names = ["done", "waiting", "dead", "busy", "new"]
    looked = desk.ledger.adoptions.preview(PIPELINE, candidates(*names))
    adoption = adopt(desk.ledger, *names)
    assert adoption == looked
    assert (adoption.new, adoption.known, set(adoption.busy)) == (3, 1, ids(["busy"]))
    assert adoption.replaced == {ObjectState.UNPROCESSED: 1, ObjectState.DEAD: 1}
    assert hot(desk.ledger) == ids(["done", "busy"])
    assert desk.timeline("dead") == []
    assert desk.ledger.commit(outcome(claim)) == 2, "the attempt at work is not disturbed"
    revival = desk.claim([candidate("dead", enqueued_at=AFTER, replay="r-1")])
    assert revival.ended[object_id_of("dead")].state is ObjectState.PROCESSED


def test_looking_changes_nothing(desk: Desk) -> None:
    before = desk.everything()
    assert desk.ledger.adoptions.preview(PIPELINE, candidates("a")).new == 1
    assert desk.everything() == before


def test_each_file_that_was_imported_is_an_archive_of_its_own(desk: Desk) -> None:
    adopt(desk.ledger, "a")
    adopt(desk.ledger, "a", "b", source="other.csv")
    assert sorted((row.source, row.objects) for row in desk.ledger.archives.all(PIPELINE)) == [
        ("done.csv", 1),
        ("other.csv", 1),
    ]
