"""The rule for objects that change, from the table's columns to the commit: on a real ledger and a scripted engine."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.pipeline.test_attempt import PIPELINE, Engine, Pipeline, result

from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, OnChange
from penstock.messaging.settlement import Ack, Release


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with closing(Ledger.open("sqlite://")) as opened:
        opened.ensure_pipeline(PIPELINE)
        yield opened


def with_rule(ledger: Ledger, engine: Engine, rule: Callable[[], OnChange]) -> Pipeline:
    """Return a pipeline each of whose batches reads this rule."""
    pipeline = Pipeline(ledger, engine)
    pipeline._around = replace(pipeline._around, change_rule=rule)
    return pipeline


def committed_rules(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[OnChange]:
    """Return a list to which each commit appends its rule for objects that change."""
    rules: list[OnChange] = []
    commit = ledger.commit

    def record(outcome: BatchOutcome) -> Any:
        rules.append(outcome.on_change)
        return commit(outcome)

    monkeypatch.setattr(ledger, "commit", record)
    return rules


def test_each_batch_reads_the_rule_for_objects_that_change(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's first batch sets its columns, and these may decide."""
    rules = committed_rules(ledger, monkeypatch)
    engine, now = Engine(), iter((OnChange.REPLACE, OnChange.ADD))
    pipeline = with_rule(ledger, engine, lambda: next(now))
    assert (pipeline.run("a"), pipeline.run("b")) == ([Ack()], [Ack()])
    assert [request.current_only for request in engine.requests] == [True, False]
    assert rules == [OnChange.REPLACE, OnChange.ADD]


def test_rows_that_do_not_name_their_objects_are_added(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = committed_rules(ledger, monkeypatch)
    engine = Engine(lambda request: replace(result(request), has_addresses=False))
    assert with_rule(ledger, engine, lambda: OnChange.REPLACE).run("a") == [Ack()]
    assert with_rule(ledger, engine, lambda: OnChange.REFUSE).run("b") == [Ack()]
    assert rules == [OnChange.ADD, OnChange.REFUSE]


def test_a_batch_waits_for_a_ledger_that_does_not_return_the_rule(ledger: Ledger) -> None:
    engine = Engine()

    def away() -> OnChange:
        raise TemporaryError("the ledger is away")

    settled = with_rule(ledger, engine, away).run("a")
    assert isinstance(settled[0], Release)
    assert settled[0].uncounted
    assert not engine.requests
