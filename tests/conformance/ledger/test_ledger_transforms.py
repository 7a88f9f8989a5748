"""The name of the transform that made a pipeline's rows."""

import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome, seq_of

from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.migrate import downgrade
from penstock.ledger.records import BatchRecord, ImportedBatch, LedgerRepair, ObjectClaims, PipelineRow

CLEAN, TIDY = "cleaning:clean", "shop:Tidy.__call__"


def commit(harness: LedgerHarness, claim: ObjectClaims, transform: str | None) -> int | None:
    return seq_of(harness.ledger.commit(outcome(claim, record=BatchRecord(transform=transform))))


def process(harness: LedgerHarness, name: str, transform: str | None) -> int | None:
    return commit(harness, harness.claim(candidates(name)), transform)


def row_of(ledger: Ledger) -> PipelineRow:
    row = ledger.pipeline(PIPELINE)
    assert row is not None
    return row


def transforms(ledger: Ledger) -> list[str | None]:
    return [batch.record.transform for batch in ledger.batches(PIPELINE)]


@pytest.mark.parametrize("name", [CLEAN, ""])
def test_the_first_batch_with_a_known_transform_records_it(harness: LedgerHarness, name: str) -> None:
    assert row_of(harness.ledger).transform is None
    process(harness, "a", None)
    assert row_of(harness.ledger).transform is None
    process(harness, "b", name)
    process(harness, "c", name)
    process(harness, "d", None)
    assert row_of(harness.ledger).transform == name
    assert transforms(harness.ledger) == [None, name, name, None]


@pytest.mark.parametrize(("first", "second"), [(CLEAN, TIDY), (CLEAN, ""), ("", CLEAN)])
def test_a_batch_of_another_transform_is_refused_if_both_began_before_the_first_commit(
    harness: LedgerHarness, first: str, second: str
) -> None:
    ours, theirs = harness.claim(candidates("a")), harness.claim(candidates("b"))
    assert commit(harness, ours, first) == 1
    before = harness.everything()
    with pytest.raises(UsageError, match=r"are made with.*, as another process recorded meanwhile"):
        commit(harness, theirs, second)
    assert harness.everything() == before
    assert commit(harness, theirs, first) == 2


def test_after_a_change_of_the_name_running_workers_may_go_on(harness: LedgerHarness) -> None:
    process(harness, "a", CLEAN)
    running = harness.claim(candidates("b"))
    assert harness.ledger.replace_transform(row_of(harness.ledger), TIDY)
    assert commit(harness, running, CLEAN) == 2
    process(harness, "c", TIDY)
    assert row_of(harness.ledger).transform == TIDY
    assert transforms(harness.ledger) == [CLEAN, CLEAN, TIDY]
    with pytest.raises(UsageError, match="without a transform"):
        process(harness, "d", "")


def test_the_name_is_replaced_only_as_it_was_seen(harness: LedgerHarness) -> None:
    unknown = row_of(harness.ledger)
    assert harness.ledger.replace_transform(unknown, "")
    assert not harness.ledger.replace_transform(unknown, CLEAN), "another process was faster"
    none = row_of(harness.ledger)
    assert none.transform == ""
    assert harness.ledger.replace_transform(none, "名前:<lambda>")
    assert row_of(harness.ledger).transform == "名前:<lambda>"
    assert (none.source_schema, none.next_seq) == (unknown.source_schema, unknown.next_seq)


def test_a_repair_records_the_transform_of_the_newest_imported_batch(harness: LedgerHarness) -> None:
    process(harness, "a", CLEAN)
    imported = [
        ImportedBatch(seq=3, attempt_id="second", objects=(), record=BatchRecord(transform=TIDY)),
        ImportedBatch(seq=2, attempt_id="first", objects=(), record=BatchRecord(transform=CLEAN)),
    ]
    repair = LedgerRepair(pipeline=PIPELINE, seen_next_seq=2, next_seq=4, table_schema=None, imported=imported)
    harness.ledger.repair(repair)
    assert row_of(harness.ledger).transform == TIDY
    assert transforms(harness.ledger) == [CLEAN, CLEAN, TIDY]
    unknown = [ImportedBatch(seq=4, attempt_id="third", objects=())]
    harness.ledger.repair(
        LedgerRepair(pipeline=PIPELINE, seen_next_seq=4, next_seq=5, table_schema=None, imported=unknown)
    )
    assert row_of(harness.ledger).transform == TIDY


def test_a_ledger_of_0012_knows_no_name_until_its_next_batch(shared_url: str) -> None:
    ledger = Ledger.open(shared_url)
    ledger.ensure_pipeline(PIPELINE)
    harness = LedgerHarness(ledger)
    process(harness, "a", CLEAN)
    with ledger.database.writing() as connection:
        downgrade(connection, "0012")
    ledger.close()
    again = LedgerHarness(Ledger.open(shared_url), harness.numbers)
    assert (row_of(again.ledger).transform, transforms(again.ledger)) == (None, [None])
    process(again, "b", TIDY)
    assert (row_of(again.ledger).transform, transforms(again.ledger)) == (TIDY, [None, TIDY])
    again.ledger.close()
