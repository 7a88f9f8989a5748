"""Batches that add columns: killed at each step, and at once with other batches that add the same or other ones.

The oracle reads the table with deltalake and the source with json: each value is in a column or in ``_rescued``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.chaos.oracle import query
from tests.chaos.overlap import is_held, open_gate, shut_gate
from tests.chaos.runs import KILLED, Case
from tests.property.evolution_walks import columns_of, holds

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

ADD = ("--evolve", "add")
BY_TWO = (*ADD, "--max-batch-objects", "2")
KILLS = (
    f"{Step.WRITTEN}:1",
    Step.COLUMNS_FOUND.value,
    f"{Step.PLANNED}:2",  # of the second run
    f"{Step.WRITTEN}:2",
    Step.MANIFESTED.value,
    Step.RECORDED.value,
    Step.COMMITTING.value,
    Step.COMMITTED.value,
    Step.PUBLISHING.value,
    Step.ROWS_PUBLISHED.value,
    Step.SETTLING.value,
)


def write(case: Case, number: int, *rows: Mapping[str, Any]) -> Path:
    """Write an object whose rows have these fields besides the declared ones."""
    path = case.source / f"object-{number:04}.jsonl"
    path.write_text("".join(json.dumps({"id": number * 1_000 + at, **row}) + "\n" for at, row in enumerate(rows)))
    return path


def rows_of(case: Case) -> dict[int, dict[str, Any]]:
    found = DeltaTable(str(case.table)).to_pyarrow_table().to_pylist()
    rows = {row["id"]: row for row in found}
    assert len(rows) == len(found), "a row is there twice"
    return rows


def check(case: Case) -> dict[int, dict[str, Any]]:
    """Check that each value of each object is in the table; return its rows by id."""
    rows = rows_of(case)
    sources = [json.loads(text) for path in case.source.iterdir() for text in path.read_text().splitlines()]
    assert sorted(rows) == sorted(source["id"] for source in sources)
    for source in sources:
        row = rows[source["id"]]
        rescued = json.loads(row["_rescued"] or "{}")
        for name, value in source.items():
            assert rescued.get(name) == value or holds(row.get(name), value), (name, value, row)
    return rows


def columns(case: Case) -> dict[str, str]:
    return columns_of(case.table, declared=("id", "v", "s"))


def added(case: Case) -> Mapping[str, str]:
    ((text,),) = query(case.table, "SELECT added_columns FROM pipelines")
    return dict(json.loads(text))


QUICK = {
    f"{Step.WRITTEN}:2",
    Step.COLUMNS_FOUND.value,
    Step.COMMITTED.value,
}  # the next test kills at every step, in turn


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in QUICK else pytest.mark.slow) for step in KILLS]
)
def test_a_kill_of_a_batch_that_adds_columns_loses_no_value(case: Case, step: str) -> None:
    write(case, 0, {"v": 1.5, "x": 1}, {"x": "no number", "s": 5})
    write(case, 1, {"y": [True]}, {"v": "text"})
    case.ingest(*ADD, code=KILLED, kill_at=step)
    report = case.ingest(*ADD).report
    check(case)
    assert set(columns(case)) == {"x", "y"} == set(added(case))
    assert report["objects_dead"] == 0


def test_kills_in_turn_while_the_schema_changes_lose_no_value(case: Case) -> None:
    for number, step in enumerate(KILLS):
        write(case, number, {f"f{number}": number, "x": number}, {"x": "text" if number % 2 else 1.5})
        case.ingest(*ADD, code=KILLED, kill_at=step)
    case.ingest(*ADD)
    check(case)
    assert set(columns(case)) == {"x", *(f"f{number}" for number in range(len(KILLS)))}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"x": 1}, {"y": 2}),  # other columns
        ({"x": 1}, {"x": 2}),  # the same one
        ({"x": 1}, {"x": "text"}),  # of two types
        ({"x": 1}, {"x": 2, "y": "text"}),
        ({"name": 1}, {"Name": 2}),  # one name for a table
    ],
)
def test_two_batches_at_once_add_columns_and_both_are_committed(
    case: Case, first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    for number in range(4):
        write(case, number, first if number < 2 else second, {})
    shut_gate(case)  # holds the first batch after it has read the columns that are known
    running = case.start(*BY_TWO)
    running.wait_until(lambda: is_held(case) and bool(query(case.table, "SELECT 1 FROM batches")))
    open_gate(case)
    running.end().expect(0)
    check(case)
    assert set(columns(case)) == set(added(case))
    assert {name.lower() for name in columns(case)} == {name.lower() for name in (*first, *second)}


def test_a_later_ingest_knows_the_columns_that_an_earlier_one_added(case: Case) -> None:
    write(case, 0, {"x": 1})
    case.ingest(*ADD)
    write(case, 1, {"x": 2}, {"z": 1})
    report = case.ingest().report  # without --evolve
    rows = rows_of(case)
    assert (rows[1_000]["x"], rows[1_001]["x"], rows[1_000]["_rescued"]) == (2, None, None)
    assert (report["unknown_fields"], report["unknown_objects"]) == ({"z": 1}, 1)
    assert report["schema"].endswith("x BIGINT")
    assert case.show(case.source / "object-0001.jsonl")["unknown_fields"] == {"z": 1}


def test_fields_are_counted_without_any_option(case: Case) -> None:
    write(case, 0, {"x": 1, "v": 1.0}, {"x": None}, {"y": {"z": 1}})
    write(case, 1, {"x": 1})
    report = case.ingest().report
    assert (report["unknown_fields"], report["unknown_objects"]) == ({"x": 2, "y": 1}, 2)
    shown = case.show(case.source / "object-0000.jsonl")["unknown_fields"]
    assert shown == {"x": 1, "y": 1}
