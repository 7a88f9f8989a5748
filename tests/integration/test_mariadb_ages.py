"""Query plans of the monitor in MariaDB."""

from typing import Any

from sqlalchemy import event
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome

from penstock.ledger import Ledger


def test_processed_objects_are_counted_in_the_index_without_reading_every_object(mariadb_url: str) -> None:
    ledger = Ledger.open(mariadb_url)
    ledger.ensure_pipeline(PIPELINE)
    harness = LedgerHarness(ledger)
    claim = harness.claim(candidates(*(f"{number}" for number in range(200))))
    harness.ledger.commit(outcome(claim))
    seen: dict[str, Any] = {}

    def note(_1: object, _2: object, statement: str, parameters: Any, _3: object, _4: bool) -> None:
        seen[statement] = parameters

    event.listen(ledger.database.engine, "before_cursor_execute", note)
    assert ledger.ages.processed_count(PIPELINE).processed == 200
    event.remove(ledger.database.engine, "before_cursor_execute", note)
    (counting,) = [statement for statement in seen if "count(*)" in statement]
    with ledger.database.reading() as connection:
        (step,) = connection.exec_driver_sql(f"EXPLAIN {counting}", seen[counting]).mappings().all()
    assert (step["key"], step["Extra"]) == ("ix_objects_state", "Using where; Using index")
    ledger.close()
