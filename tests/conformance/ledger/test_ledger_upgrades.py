"""Ledgers of earlier revisions, with data in them, upgraded and downgraded, on every persistent database."""

from typing import Any

import pytest
from sqlalchemy import Select, Table, inspect, select, update
from tests.conformance.ledger.ledger_harness import (
    AFTER,
    HANDLER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.errors import ConfigurationError
from penstock.ledger import Ledger
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.migrate import downgrade, newest_revision
from penstock.ledger.records import AttemptFailure, ObjectState, WorkBegun, WorkDone, WorkOwner
from penstock.ledger.schema import metadata, objects, works

pytestmark = pytest.mark.usefixtures("migrations")

SINCE_0001 = {
    "works",
    "tellings",
    "archives",
    "archived_objects",
    "progress",
    "reconciliations",
    "quarantined",
    "replays",
    "table_commits",
    "reopenings",
    "audit",
    "owners",
}
COLUMNS_SINCE_0001 = {
    "spark_ui_url",
    "missed_at",
    "sought_at",
    "source_options",
    "unknown_fields",
    "added_columns",
    "transform",
    "replaces",
    "replaced_objects",
    "replaced_rows",
}


def of_revision(url: str, revision: str) -> LedgerHarness:
    """Create a ledger as an older Penstock left it, with data."""
    harness = LedgerHarness(Ledger.open(url))
    harness.ledger.ensure_pipeline(PIPELINE)
    harness.process("a", "b")
    harness.fail(AttemptFailure.DEAD, candidate("c"), "c")
    harness.claim(candidates("d"))
    with harness.ledger.database.writing() as connection:
        downgrade(connection, revision)
    return harness


def rows_of_0001(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    with ledger.database.reading() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(_columns_of_0001(table))), key=repr)
            for name, table in metadata.tables.items()
            if name not in SINCE_0001
        }


def _columns_of_0001(table: Table) -> Select[Any]:
    return select(*(column for column in table.columns if column.name not in COLUMNS_SINCE_0001))


def table_names(ledger: Ledger) -> set[str]:
    with ledger.database.reading() as connection:
        return set(inspect(connection).get_table_names())


def test_a_ledger_with_data_upgrades_from_0001_and_downgrades_again(shared_url: str) -> None:
    old = of_revision(shared_url, "0001")
    assert not SINCE_0001 & table_names(old.ledger)
    rows = rows_of_0001(old.ledger)
    old.ledger.close()

    ledger = Ledger.open(shared_url)
    harness = LedgerHarness(ledger, old.numbers)
    assert rows_of_0001(ledger) == rows
    assert isinstance(harness.begin(attempt="first"), WorkBegun)
    assert ledger.finish_work("first", outcome="null")
    assert isinstance(harness.begin(), WorkDone)

    with ledger.database.writing() as connection:
        downgrade(connection, "0001")
    assert not SINCE_0001 & table_names(ledger)
    assert rows_of_0001(ledger) == rows
    ledger.close()

    again = Ledger.open(shared_url)
    assert again.work(HANDLER, "k") is None
    harness = LedgerHarness(again, old.numbers)
    assert isinstance(harness.begin(), WorkBegun)
    assert harness.claim(candidates("a")).ended
    again.close()


def test_a_ledger_with_objects_to_be_read_again_is_not_downgraded_below_0016(shared_url: str) -> None:
    ledger = Ledger.open(shared_url)
    ledger.ensure_pipeline(PIPELINE)
    harness = LedgerHarness(ledger)
    harness.process("a")
    addresses = [candidate("a").uri]
    ledger.reopenings.reopen(PIPELINE, addresses)
    with pytest.raises(ConfigurationError, match="to be read again"), ledger.database.writing() as connection:
        downgrade(connection, "0015")
    assert ledger.reopenings.withdraw(PIPELINE, addresses).withdrawn
    with ledger.database.writing() as connection:
        downgrade(connection, "0015")
    assert "reopenings" not in table_names(ledger)
    ledger.close()
    again = Ledger.open(shared_url)
    assert len(again.reopenings.reopen(PIPELINE, addresses).objects) == 1, "as a ledger of 0015 has processed it"
    again.close()


@pytest.mark.parametrize("failure", [AttemptFailure.DELETED, AttemptFailure.SUPERSEDED])
def test_objects_that_0007_found_missing_or_replaced_are_restored_by_later_notifications(
    shared_url: str, failure: AttemptFailure
) -> None:
    """Their rows have the time at which they ended, and not that of the check."""
    old = of_revision(shared_url, newest_revision())
    for name in ("e", "f"):
        old.fail(failure, candidate(name), name)
    with old.ledger.database.writing() as connection:
        downgrade(connection, "0007")
    old.ledger.close()

    ledger = Ledger.open(shared_url)
    harness = LedgerHarness(ledger, old.numbers)
    with ledger.database.reading() as connection:
        assert set(connection.execute(select(objects.c.missed_at, objects.c.sought_at))) == {(None, None)}
    assert set(harness.claim([candidate("e", message="m-2")]).ended) == {object_id_of("e")}, (
        "sent before the object ended"
    )
    claim = harness.claim([candidate("e", message="m-3", enqueued_at=AFTER)])
    ledger.commit(outcome(claim))
    assert harness.state("e") is ObjectState.PROCESSED
    again = harness.claim([candidate("f", message="m-2", replay="r-1")])
    assert (set(again.claimed), again.claimed[object_id_of("f")].attempts) == ({object_id_of("f")}, 1)
    ledger.close()


def test_a_key_held_or_completed_by_a_worker_of_0005_stays_for_its_whole_retention(
    shared_harness: LedgerHarness,
) -> None:
    """An old worker takes a key that a newer one freed, and leaves the expiry that was set then."""
    ledger = shared_harness.ledger
    begun = ledger.begin_work(
        HANDLER,
        "k",
        attempt_id="new",
        worker="new",
        lease_seconds=60.0,
        owner=WorkOwner(app="shop", queue="orders", is_plain=True),
        retention_seconds=3_600.0,
    )
    assert isinstance(begun, WorkBegun)
    ledger.end_work("new", outcome="failed", reason="")

    def change(**values: object) -> None:
        with ledger.database.writing() as connection:
            connection.execute(update(works).values(values))

    change(expires_at=DatabaseNow() - 10.0)
    change(state="open", attempt_id="old", ended_at=None)
    assert ledger.forget_works(limit=10) == 0, "it is in progress"
    change(state="done", ended_at=DatabaseNow(), outcome="null")
    assert ledger.forget_works(limit=10) == 0, "it was completed just now"
    change(ended_at=DatabaseNow() - 3_610.0)
    assert ledger.forget_works(limit=10) == 1


def test_a_key_taken_over_and_completed_by_a_worker_of_0005_is_forgotten_eventually(
    shared_harness: LedgerHarness,
) -> None:
    """An old worker sets no expiry, and the newer one that it took the key from had recorded none yet."""
    ledger = shared_harness.ledger
    owner = WorkOwner(app="shop", queue="orders", is_plain=True)
    begun = ledger.begin_work(
        HANDLER, "k", attempt_id="new", worker="new", lease_seconds=60.0, owner=owner, retention_seconds=3_600.0
    )
    assert isinstance(begun, WorkBegun)

    def complete(*, seconds_ago: float) -> None:
        with ledger.database.writing() as connection:
            ended = {"state": "done", "attempt_id": "old", "ended_at": DatabaseNow() - seconds_ago, "outcome": "null"}
            connection.execute(update(works).values(ended))

    def forgotten(handler: str = HANDLER) -> int:
        return ledger.forget_works(limit=10, older_than_seconds=60.0, handler=handler)

    complete(seconds_ago=3_590.0)
    assert forgotten() == 0, "it has a retention of its own"
    complete(seconds_ago=3_610.0)
    assert [forgotten("other"), forgotten()] == [0, 1]
