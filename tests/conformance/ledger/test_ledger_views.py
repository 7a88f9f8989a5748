"""The ledger's views for people, and every query of the docs, on every database."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidate, outcome

from penstock.ledger.records import AttemptFailure, Candidate, WorkOwner

PAGE = (Path(__file__).parents[3] / "docs" / "run" / "ledger.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Reading it with SQL")[1].split("\n## ")[0]
QUERIES = re.findall(r"```sql\n(.*?)```", SECTION, re.DOTALL)


def rows_of(harness: LedgerHarness, query: str) -> list[dict[str, Any]]:
    with harness.ledger.database.reading() as connection:
        return [dict(row._mapping) for row in connection.execute(text(query))]


def as_utc(value: Any) -> datetime:
    """Return a time that a driver returned, with a time zone."""
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def named(key: str) -> Candidate:
    return candidate(key, key=key.encode())


@pytest.fixture
def filled_harness(harness: LedgerHarness) -> LedgerHarness:
    """Return a ledger with at least one row of every kind."""
    harness.ledger.commit(outcome(harness.claim([named("2026-01-01/a"), named("2026-01-01/b")])))
    harness.fail(AttemptFailure.DEAD, named("2026-01-02/bad"), "2026-01-02/bad")
    harness.claim([named("2026-01-03/now")], worker="worker-7")
    owner = WorkOwner(app="shop", queue="orders")
    harness.ledger.begin_work(
        "take", "order-42", attempt_id="w", worker="worker-7", lease_seconds=60.0, owner=owner, retention_seconds=60.0
    )
    assert harness.ledger.finish_work("w", outcome='{"paid":42}')
    return harness


def test_the_docs_have_five_queries() -> None:
    assert len(QUERIES) == 5


def test_each_query_of_the_docs_returns_the_documented_rows(filled_harness: LedgerHarness) -> None:
    states, failed, working, batches, keys = (rows_of(filled_harness, query) for query in QUERIES)
    assert [(row["pipeline"], row["status"], row["objects"]) for row in states] == [
        (PIPELINE, "dead", 1),
        (PIPELINE, "processed", 2),
        (PIPELINE, "processing", 1),
    ]
    assert [(row["object_key"], row["attempts"], row["reason"]) for row in failed] == [
        ("2026-01-02/bad", 1, "2026-01-02/bad is dead")
    ]
    assert [(row["worker"], row["object_key"]) for row in working] == [("worker-7", "2026-01-03/now")]
    assert [row["object_key"] for row in batches] == ["2026-01-01/a", "2026-01-01/b"]
    assert {(row["batch_seq"], row["rows_read"]) for row in batches} == {(1, 10)}
    assert [(row["app"], row["queue"], row["status"], row["outcome"]) for row in keys] == [
        ("shop", "orders", "done", '{"paid":42}')
    ]


def test_views_return_times_and_an_object_is_updated_when_its_attempt_begins_and_ends(
    filled_harness: LedgerHarness,
) -> None:
    rows = rows_of(filled_harness, "SELECT status, created_at, updated_at FROM penstock_objects")
    now = datetime.now(UTC)
    for row in rows:
        created, updated = as_utc(row["created_at"]), as_utc(row["updated_at"])
        assert abs((now - created).total_seconds()) < 600
        assert updated >= created
    (key,) = rows_of(filled_harness, "SELECT updated_at, expires_at FROM penstock_keys")
    assert abs((as_utc(key["expires_at"]) - as_utc(key["updated_at"])).total_seconds() - 60.0) < 0.01


def test_objects_are_filtered_by_age(filled_harness: LedgerHarness) -> None:
    assert filled_harness.ledger.objects(PIPELINE, older_than_seconds=3_600.0) == []
    assert len(filled_harness.ledger.objects(PIPELINE, older_than_seconds=-1.0)) == 4
