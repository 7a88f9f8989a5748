"""Claims against the archiver and against imports: no object is processed twice, whichever commits first."""

import pytest
from tests.conformance.ledger.archiving import adopt, archive, ids, ids_with_row
from tests.conformance.ledger.concurrency import CLAIMERS, once_after, together
from tests.conformance.ledger.ledger_harness import (
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, ArchiveFile
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.messaging.steps import Step

ROUNDS = 6
NAMES = [f"object {number}" for number in range(40)]


def assert_ended_as_processed(harness: LedgerHarness, name: str) -> None:
    claim = harness.claim(candidates(name, "other"), attempt="late")
    assert set(claim.claimed) == ids(["other"])
    assert set(claim.ended) == ids([name])
    assert claim.ended[object_id_of(name)].state is ObjectState.PROCESSED


def test_an_archive_between_registering_and_claiming_ends_the_object_as_processed(
    shared_harness: LedgerHarness,
) -> None:
    shared_harness.process("a")

    def archive_now(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            assert archive(shared_harness.ledger)

    assert_ended_as_processed(LedgerHarness(Ledger(shared_harness.ledger.database, archive_now)), "a")
    assert ids_with_row(shared_harness.ledger) == ids(["other"])


@pytest.mark.parametrize(
    "words", ["DELETE FROM wanted", "UPDATE objects", "FROM archived_objects ... FROM wanted", "AS lease_left"]
)
def test_an_archive_after_any_statement_of_a_claim_ends_the_object_as_processed(
    server_harness: LedgerHarness, words: str
) -> None:
    server_harness.process("a")
    with once_after(server_harness.ledger, words, lambda: archive(server_harness.ledger)) as done:
        assert_ended_as_processed(server_harness, "a")
    assert done, "the claim has such a statement"
    assert ids_with_row(server_harness.ledger) == ids(["other"])


def test_an_import_between_registering_and_claiming_ends_the_object_as_processed(shared_harness: LedgerHarness) -> None:
    shared_harness.fail(AttemptFailure.RETRY, candidate("a"), "a")  # known, and free

    def import_now(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            assert adopt(shared_harness.ledger, "a").new == 1

    assert_ended_as_processed(LedgerHarness(Ledger(shared_harness.ledger.database, import_now)), "a")


def test_an_import_leaves_objects_that_a_claim_just_registered_alone(shared_harness: LedgerHarness) -> None:
    def import_now(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            adoption = adopt(shared_harness.ledger, "a")
            assert (adoption.new, set(adoption.busy)) == (0, ids(["a"]))

    claim = LedgerHarness(Ledger(shared_harness.ledger.database, import_now)).claim(candidates("a"))
    assert set(claim.claimed) == ids(["a"])


def test_concurrent_claims_and_archives_process_each_object_once(shared_harness: LedgerHarness) -> None:
    """Half of the threads process and archive, half claim objects that may be leaving at that moment."""
    ledger = shared_harness.ledger

    def run(number: int) -> list[bytes]:
        processed: list[bytes] = []
        for round_ in range(ROUNDS):
            claim = shared_harness.claim(candidates(*NAMES), attempt=f"{number}/{round_}")
            if claim.claimed:
                ledger.commit(outcome(claim))
                processed += claim.claimed
            if number % 2:
                _archive_all(ledger, f"archive {number}/{round_}")
        return processed

    processed = [id for own in together(run) for id in own]
    assert sorted(processed) == sorted(ids(NAMES)), "each object once"
    _archive_all(ledger, "last")
    assert ids_with_row(ledger) == set()
    assert ledger.counts(PIPELINE)[ObjectState.PROCESSED] == len(NAMES)
    assert set(ledger.states(PIPELINE, ids(NAMES)).values()) == {ObjectState.PROCESSED}


def test_concurrent_claims_and_imports_take_each_object_once(shared_harness: LedgerHarness) -> None:
    """Each object is either imported or claimed, never both."""

    def run(number: int) -> tuple[set[bytes], int]:
        if number % 2:
            return set(), adopt(shared_harness.ledger, *NAMES, source=f"file {number}").new
        claim = shared_harness.claim(candidates(*NAMES[number:], *NAMES[:number]), attempt=f"by {number}")
        return set(claim.claimed), 0

    fates = together(run)
    claimed = [id for own, _ in fates for id in own]
    assert len(claimed) == len(set(claimed))
    assert len(claimed) + sum(new for _, new in fates) == len(NAMES)
    assert ids_with_row(shared_harness.ledger) <= set(claimed)
    assert shared_harness.ledger.archives.count(PIPELINE) == len(NAMES) - len(claimed)
    assert len(fates) == CLAIMERS


def _archive_all(ledger: Ledger, id: str) -> None:
    found = ledger.archives.retiring(
        PIPELINE, after_seq=ledger.progress(PIPELINE, ARCHIVING), up_to_seq=1_000_000, objects_max=1_000
    )
    if found is not None:
        objects = sum(len(page) for page in ledger.archives.retired_objects(found))
        ledger.archives.retire(found, archive_id=id, file=ArchiveFile(uri="file:///x", objects=objects, bytes=1))
