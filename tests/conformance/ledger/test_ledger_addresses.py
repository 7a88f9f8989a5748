"""Addresses whose rows the ledger cannot tell from its processed versions: withdrawn ones, and those of two objects."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, object_id_of
from tests.conformance.ledger.test_ledger_versions import (
    ADDRESS,
    REPLACED_ONE,
    claim,
    commit,
    process,
    replaces,
    retract,
    version,
)

from penstock.ledger.records import (
    AttemptFailure,
    Committed,
    ImportedBatch,
    ImportedObject,
    LedgerRepair,
    OnChange,
)


def z() -> Any:
    return version("z", key=b"z")


def withdraw(harness: LedgerHarness, *seqs: int) -> None:
    """Repair the ledger: the table shows other objects in these batches, which were committed after a rollback."""
    batches = [
        ImportedBatch(
            seq=seq,
            attempt_id=f"imported-{seq}",
            objects=[
                ImportedObject(candidate=version(name, key=name.encode()), rows=10, lines_quarantined=0)
                for name in ("z",) * (seq == 2) + ("w",) * (seq == 3)
            ],
            on_change=OnChange.REPLACE,
        )
        for seq in seqs
    ]
    next_seq = max(seqs) + 1
    harness.ledger.repair(
        LedgerRepair(
            pipeline=PIPELINE,
            seen_next_seq=next_seq,
            next_seq=next_seq,
            table_schema=None,
            imported=batches,
            withdrawn=list(seqs),
        )
    )


def end_late_duplicate(harness: LedgerHarness, name: str) -> None:
    """Let a late message of this version arrive again: its run finds another one in the store."""
    held = claim(harness, version(name))
    assert held.claimed
    assert commit(harness, held, failed={name: AttemptFailure.SUPERSEDED}) is None


def test_a_withdrawn_version_still_replaces_the_rows_in_the_table(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"), z())
    withdraw(harness, 2)
    assert process(harness, version("v2")) == Committed(seq=3, replaced_objects=1, replaced_rows=10)
    assert replaces(harness, 3) == REPLACED_ONE


def test_so_does_one_whose_earlier_version_is_not_processed_any_more(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"), z())
    end_late_duplicate(harness, "v1")
    withdraw(harness, 2)
    process(harness, version("v2"))
    assert replaces(harness, 3) == REPLACED_ONE, "the table has had the rows of v1 since batch 1"


def test_so_does_a_new_version_after_it(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"), z())
    end_late_duplicate(harness, "v1")
    withdraw(harness, 2)
    process(harness, version("v3"), version("other", key=b"other"))
    assert replaces(harness, 3) == REPLACED_ONE


def test_a_version_that_came_back_in_a_withdrawn_batch_replaces_its_own_rows(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"), z())
    process(harness, version("v1"), version("w", key=b"w"))
    withdraw(harness, 2, 3)
    process(harness, version("v1"))
    assert replaces(harness, 4) == REPLACED_ONE, "the table has had its rows since batch 1"


def test_in_a_pipeline_that_adds_versions_nothing_withdrawn_is_replaced(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"), z())
    withdraw(harness, 2)
    held = claim(harness, version("v2"), on_change=OnChange.ADD)
    assert commit(harness, held, on_change=OnChange.ADD) == Committed(seq=3)
    assert replaces(harness, 3) == ()


def test_withdrawals_of_other_objects_and_pipelines_replace_nothing(harness: LedgerHarness) -> None:
    harness.ledger.ensure_pipeline("other")
    process(harness, version("v1"))
    process(harness, version("v2"), z())
    withdraw(harness, 2)
    elsewhere = harness.claim([version("v3")], pipeline="other", on_change=OnChange.REPLACE)
    assert commit(harness, elsewhere, pipeline="other") == Committed(seq=1)
    assert process(harness, version("x", key=b"x")) == Committed(seq=3)


# Addresses of two objects


def spelled(name: str, key: bytes) -> Any:
    """Return a version whose address an earlier Penstock gave to another key, too."""
    return replace(version(name, key=key), uri=ADDRESS)


def shared(harness: LedgerHarness, *names: str, pipeline: str = PIPELINE) -> Sequence[str]:
    found = harness.ledger.of_several_objects(pipeline, [object_id_of(name) for name in names])
    return [name for name in names if object_id_of(name) in found]


def test_an_object_whose_address_another_processed_one_has_is_found(harness: LedgerHarness) -> None:
    process(harness, version("v1"))
    process(harness, version("v2"), z())
    assert shared(harness, "v1", "v2", "z") == []
    held = claim(harness, spelled("literal", b"literal"))
    assert shared(harness, "v2", "literal") == ["literal"], "it has no rows yet"
    commit(harness, held, failed={"literal": AttemptFailure.DEAD})
    added = claim(harness, spelled("literal-2", b"literal"), on_change=OnChange.ADD)
    commit(harness, added, on_change=OnChange.ADD)
    assert shared(harness, "v1", "v2", "literal", "z") == ["v1", "v2", "literal"]
    retract(harness)
    assert shared(harness, "v1", "v2", "literal-2") == [], "no row of theirs is in the table"
