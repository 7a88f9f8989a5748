"""The audit log of actions on queues: entries are begun, ended once, and read in pages."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from ulid import ULID

from penstock.ledger import Ledger
from penstock.ledger import dead_letters as module


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger.open("sqlite://")
    yield ledger
    ledger.close()


@pytest.fixture
def ids_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate one ULID per second, since ULIDs of one millisecond have no order."""
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr(module, "ULID", lambda: ULID.from_timestamp(next(seconds)))


def begin(ledger: Ledger, action: str = "replay", **details: object) -> str:
    return ledger.audits.begin(action, queue="q-dlq", who="ana@host", details=details)


def test_an_entry_that_never_ended_has_no_outcome(ledger: Ledger) -> None:
    entry = begin(ledger, filter="error=timeout", canary=1)
    (row,) = ledger.audits.latest(limit=10)
    assert (row.id, row.action, row.queue, row.who) == (entry, "replay", "q-dlq", "ana@host")
    assert row.details == {"filter": "error=timeout", "canary": 1}
    assert (row.messages, row.outcome, row.ended_at) == (0, None, None)


def test_an_ended_entry_has_its_outcome_and_number_of_messages(ledger: Ledger) -> None:
    ledger.audits.end(begin(ledger), messages=3, outcome="interrupted")
    (row,) = ledger.audits.latest(limit=10)
    assert (row.messages, row.outcome) == (3, "interrupted")
    assert row.ended_at is not None
    assert row.ended_at >= row.began_at


def test_only_the_first_end_counts_and_changes_only_its_own_entry(ledger: Ledger) -> None:
    entry, other = begin(ledger), begin(ledger, "purge")
    ledger.audits.end(entry, messages=3, outcome="done")
    ledger.audits.end(entry, messages=9, outcome="failed")
    rows = {row.id: row for row in ledger.audits.latest(limit=10)}
    assert (rows[entry].messages, rows[entry].outcome) == (3, "done")
    assert rows[other].outcome is None


@pytest.mark.usefixtures("ids_in_order")
def test_pages_are_newest_first_without_gaps(ledger: Ledger) -> None:
    entries = [begin(ledger) for _ in range(5)]
    pages, before = [], None
    while page := ledger.audits.latest(limit=2, before=before):
        pages.append([row.id for row in page])
        before = page[-1].id
    assert pages == [entries[:2:-1], entries[2:0:-1], entries[:1]]


@pytest.mark.usefixtures("ids_in_order")
def test_entries_are_filtered_by_user_queue_and_action(ledger: Ledger) -> None:
    def add(who: str, queue: str, action: str) -> str:
        return ledger.audits.begin(action, queue=queue, who=who, details={})

    ann, bob = add("Ann@host", "orders-dlq", "replay"), add("bob_b@host", "mails-dlq", "purge")

    def ids(**filters: Any) -> list[str]:
        return [row.id for row in ledger.audits.latest(limit=10, **filters)]

    assert ids(who_contains="ann") == [ann]
    assert ids(who_contains="b_b") == [bob]
    assert ids(who_contains="o%t") == []
    assert ids(queue_contains="DLQ") == [bob, ann]
    assert ids(queue_contains="mails", action="purge") == [bob]
    assert ids(action="pur") == []
    assert ids(action="replay", before=bob) == [ann]
    assert ids(who_contains="\0") == []
    assert ledger.audits.actions() == ["purge", "replay"]


def test_text_that_no_database_accepts_is_stored_escaped(ledger: Ledger) -> None:
    ledger.audits.begin("purge", queue="q\0", who="a\udcff", details={"filter": "b\0\udcff 日本"})
    (row,) = ledger.audits.latest(limit=1)
    assert (row.queue, row.who, row.details) == ("q\\x00", "a\\udcff", {"filter": "b\0\udcff 日本"})


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        ({"objects": ["s3://landing/" + "ä" * 900] * 2_000}, 16),
        ({"ids": ["x" * 26] * 5_000}, 64),
        ({"error": "x" * 100_000}, None),
        ({"attributes": {"tenant": "x" * 100_000}}, None),
    ],
)
def test_details_too_large_for_the_column_are_truncated(
    ledger: Ledger, details: dict[str, Any], kept: int | None
) -> None:
    begin(ledger, **details)
    (row,) = ledger.audits.latest(limit=1)
    assert len(json.dumps(row.details)) <= module.DETAILS_BYTES_MAX
    ((name, given),) = details.items()
    if kept is None:
        assert row.details == {name: given[:500] if name == "error" else {"tenant": "x" * 500}}
    else:
        assert row.details[name][:kept] == [each[:500] for each in given[:kept]]
        assert row.details[name][kept:] == [f"and {len(given) - kept:,} more"]
