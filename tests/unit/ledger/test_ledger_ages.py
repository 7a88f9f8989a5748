"""Query plans of the monitor's queries in SQLite: by the states of unprocessed objects, never through all rows."""

from typing import Any

from sqlalchemy import event

from penstock.ledger import Ledger

PIPELINE = "clicks"


def test_every_query_of_the_monitor_uses_an_index() -> None:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    seen: dict[str, Any] = {}

    def record(_1: object, _2: object, statement: str, parameters: Any, _3: object, _4: bool) -> None:
        seen[statement] = parameters

    event.listen(ledger.database.engine, "before_cursor_execute", record)
    ledger.ages.waiting(PIPELINE, overdue_after_seconds=1.0)
    ledger.ages.updated_count(PIPELINE, ledger.ages.processed_count(PIPELINE))
    ledger.ages.seconds_since_commit(PIPELINE, 1)
    event.remove(ledger.database.engine, "before_cursor_execute", record)
    with ledger.database.reading() as connection:
        plans = {
            statement: [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            for statement, parameters in seen.items()
            if "FROM" in statement
        }
    assert len(plans) == 7
    steps = [step for plan in plans.values() for step in plan]
    assert [step for step in steps if step.startswith("SCAN")] == []
    by_state = [step for step in steps if "ix_objects_state (state=? AND pipeline=?)" in step]
    assert len(by_state) == 3  # waiting objects by state and in total; processed objects
    ledger.close()
