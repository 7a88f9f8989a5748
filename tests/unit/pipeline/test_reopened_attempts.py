"""Reopened objects in a batch: under every rule their rows replace the earlier ones, on a real ledger."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from tests.unit.pipeline.test_attempt import PIPELINE, Engine, Pipeline, ref, result
from tests.unit.pipeline.test_change_rules import committed_rules

from penstock.errors import TableError
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, ObjectRow, ObjectState, OnChange, replaced_objects
from penstock.ledger.reopenings import KEPT
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.objects.notification import announce
from penstock.pipeline.engine import ReadFailure, RunRequest, RunResult
from penstock.pipeline.refusals import ALONE, OTHER_ADDRESSES, OVERTAKEN


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with closing(Ledger.open("sqlite://")) as opened:
        opened.ensure_pipeline(PIPELINE)
        yield opened


def with_schema(request: RunRequest) -> RunResult:
    """Return the result of a run for a table whose first batch sets its schema."""
    is_first = request.objects[0].key == "first"
    return replace(result(request), schema_id=0 if is_first else 1, new_schema="{}" if is_first else None)


def reopen(ledger: Ledger, *names: str) -> None:
    assert len(ledger.reopenings.reopen(PIPELINE, [ref(name).uri for name in names]).objects) == len(names)


def row_of(ledger: Ledger, name: str) -> ObjectRow:
    ((_, row),) = ledger.find(ref(name).uri)
    return row


@pytest.mark.parametrize("rule", list(OnChange))
def test_the_rows_of_a_reopened_object_replace_its_earlier_ones_under_every_rule(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, rule: OnChange
) -> None:
    engine = Engine(with_schema)
    pipeline = Pipeline(ledger, engine, on_change=rule)
    assert pipeline.run("first") == [Ack()]
    reopen(ledger, "first")
    engine.answer = lambda request: replace(result(request), schema_id=1)
    rules = committed_rules(ledger, monkeypatch)
    assert pipeline.run("first") == [Ack()]
    assert engine.requests[-1].current_only
    assert rules == [rule if rule.replaces else OnChange.REPLACE]
    batch = ledger.batch(PIPELINE, 2)
    assert batch is not None
    assert replaced_objects(batch.record.replaces) == (ref("first").uri,)


@pytest.mark.parametrize("rule", list(OnChange))
def test_objects_beside_a_reopened_one_wait_unless_the_rule_replaces_rows(ledger: Ledger, rule: OnChange) -> None:
    engine = Engine(with_schema)
    pipeline = Pipeline(ledger, engine, on_change=rule)
    pipeline.run("first")
    reopen(ledger, "first")
    engine.answer = lambda request: replace(result(request), schema_id=1)
    again, new = pipeline.run("first", "new")
    assert again == Ack()
    if rule.replaces:
        assert new == Ack()
        return
    assert isinstance(new, Release)
    assert new.uncounted
    assert (row_of(ledger, "new").state, row_of(ledger, "new").reason) == (ObjectState.UNPROCESSED, ALONE)
    assert pipeline.run("new") == [Ack()]
    assert engine.requests[-1].current_only is (rule is OnChange.REFUSE)


def test_rows_with_other_addresses_do_not_replace_those_of_a_reopened_object(ledger: Ledger) -> None:
    engine = Engine(with_schema)
    pipeline = Pipeline(ledger, engine, on_change=OnChange.REPLACE)
    pipeline.run("first")
    reopen(ledger, "first")
    engine.answer = lambda request: replace(result(request), schema_id=1, has_addresses=False)
    again, new = pipeline.run("first", "new")
    assert isinstance(again, DeadLetter)
    row = row_of(ledger, "first")
    assert (row.state, row.batch_seq) == (ObjectState.DEAD, 1)
    assert (row.reason or "").startswith(OTHER_ADDRESSES)
    assert isinstance(new, Release)
    assert new.uncounted
    assert pipeline.run("new") == [Ack()]
    assert ledger.batch(PIPELINE, 3) is None


def test_a_version_processed_since_is_not_removed_where_versions_are_added(ledger: Ledger) -> None:
    engine = Engine(with_schema)
    pipeline = Pipeline(ledger, engine)
    pipeline.run("first")
    reopen(ledger, "first")
    engine.answer = lambda request: replace(result(request), schema_id=1)
    changed = replace(ref("first"), etag="2")
    assert pipeline.run_bodies(announce(changed)) == [Ack()]
    assert pipeline.run("first") == [Ack()]
    rows = {row.etag: row for _, row in ledger.find(ref("first").uri)}
    assert {row.state for row in rows.values()} == {ObjectState.PROCESSED}
    assert (rows["1"].batch_seq, rows["2"].batch_seq, len(engine.requests)) == (1, 2, 2)
    assert rows["1"].reason == f"{KEPT}: {OVERTAKEN}"


def test_an_object_that_was_replaced_is_settled_and_keeps_its_rows(ledger: Ledger) -> None:
    engine = Engine(with_schema)
    pipeline = Pipeline(ledger, engine, on_change=OnChange.REPLACE)
    pipeline.run("first")
    reopen(ledger, "first")
    changed = ReadFailure(failure=AttemptFailure.SUPERSEDED, reason="it has another version")
    engine.answer = lambda request: result(request, {ref("first").object_id: changed})
    assert pipeline.run("first") == [Ack()]
    row = row_of(ledger, "first")
    assert (row.state, row.batch_seq, row.rows) == (ObjectState.PROCESSED, 1, 2)


@pytest.mark.parametrize("rule", [OnChange.ADD, OnChange.REFUSE])
def test_a_reopened_object_is_not_read_if_no_row_may_leave_the_table(ledger: Ledger, rule: OnChange) -> None:
    def refuse() -> None:
        raise TableError("rows stay")

    engine = Engine(with_schema)
    pipeline = Pipeline(ledger, engine, on_change=rule, check_removal=refuse)
    assert pipeline.run("first") == [Ack()], "it replaces nothing"
    reopen(ledger, "first")
    with pytest.raises(TableError, match="rows stay"):
        pipeline.run("first")
    assert len(engine.requests) == 1
    assert row_of(ledger, "first").state is ObjectState.UNPROCESSED
