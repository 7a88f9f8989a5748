"""Query plans for versions that change: no statement reads all objects, archived objects or bad lines of a pipeline."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from tests.conformance.ledger.archiving import archive
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidate, object_id_of, outcome
from tests.conformance.ledger.test_ledger_versions import retract

from penstock.ledger.records import BadLines, Candidate, OnChange

CROWD = 1_000  # objects, in two versions each; the first ones are archived
TABLES = ("objects", "archived_objects", "quarantined")
NARROW = ("object_id", "attempt_id", "uri_digest", "replay_id")

Steps = Sequence[str]


def version(number: int, name: str) -> Candidate:
    return candidate(f"{number} {name}", key=f"/landing/{number}".encode())


def bad_lines(number: int, name: str) -> BadLines:
    one = version(number, name)
    return BadLines(
        object_id=one.object_id,
        replay_id=object_id_of(f"replay {number} {name}"),
        bucket=one.bucket,
        key=one.key,
        uri=one.uri,
        size_bytes=100,
        version_id=None,
        etag=None,
        place="_offset",
        rows=10,
        lines_quarantined=5,
    )


def process(harness: LedgerHarness, wanted: Sequence[Candidate], **fields: Any) -> None:
    held = harness.claim(wanted, on_change=OnChange.REPLACE)
    harness.ledger.commit(outcome(held, on_change=OnChange.REPLACE, since_seq=held.next_seq, **fields))


@contextmanager
def plans_of(harness: LedgerHarness) -> Iterator[dict[str, Steps]]:
    """Collect the plan of each statement that reads these tables, as the database makes it for this execution."""
    found: dict[str, Steps] = {}
    engine = harness.ledger.database.engine
    explain = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"

    def explain_first(connection: Any, _1: Any, statement: str, parameters: Any, _2: Any, many: bool) -> None:
        if many or not any(table in statement for table in TABLES) or statement.startswith("INSERT"):
            return
        cursor = connection.connection.cursor()
        cursor.execute(f"{explain} {statement}", parameters)
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        found[statement] = _STEPS[engine.dialect.name](statement, rows)
        cursor.close()

    event.listen(engine, "before_cursor_execute", explain_first)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", explain_first)


def _names_of(statement: str) -> set[str]:
    """Return the names of these tables in a statement, with their aliases."""
    aliases = re.findall(rf"\b({'|'.join(TABLES)}) AS (\w+)", statement)
    return {*TABLES, *(alias for _, alias in aliases)}


def _sqlite_steps(statement: str, rows: Sequence[dict[str, Any]]) -> Steps:
    names = _names_of(statement)
    steps = [str(row["detail"]) for row in rows]
    return [
        step
        for step in steps
        if step.split()[1] in names and not any(f"{narrow}=?" in step or f"{narrow}>?" in step for narrow in NARROW)
    ]


def _postgresql_steps(_: str, rows: Sequence[dict[str, Any]]) -> Steps:
    lines = [str(row["QUERY PLAN"]).strip() for row in rows]
    scans = [(line, " ".join(lines[number + 1 : number + 3])) for number, line in enumerate(lines) if "Scan" in line]
    return [
        f"{line}: {conditions}"
        for line, conditions in scans
        if re.search(rf" on ({'|'.join(TABLES)})\b", line)
        and ("Seq Scan" in line or not any(narrow in line or narrow in conditions for narrow in NARROW))
    ]


def _mariadb_steps(statement: str, rows: Sequence[dict[str, Any]]) -> Steps:
    names = _names_of(statement)
    return [
        str(row)
        for row in rows
        if row["table"] in names
        and (row["type"] in ("ALL", "index") or (row["key"] == "PRIMARY" and row["type"] == "ref"))
    ]


_STEPS = {"sqlite": _sqlite_steps, "postgresql": _postgresql_steps, "mysql": _mariadb_steps, "mariadb": _mariadb_steps}


def analyse(harness: LedgerHarness) -> None:
    """Give the database statistics of all rows, as it makes them itself within a minute."""
    with harness.ledger.database.writing() as connection:
        for table in TABLES:
            word = "TABLE " if connection.dialect.name in ("mysql", "mariadb") else ""
            connection.exec_driver_sql(f"ANALYZE {word}{table}").close()


@pytest.mark.parametrize("has_statistics", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_statement_for_changed_objects_reads_the_whole_pipeline(
    harness: LedgerHarness, has_statistics: bool
) -> None:
    crowd = range(CROWD)
    process(
        harness, [version(number, "old") for number in crowd], bad=[bad_lines(number, "old") for number in crowd[::2]]
    )
    assert archive(harness.ledger, up_to_seq=1)
    process(
        harness, [version(number, "new") for number in crowd], bad=[bad_lines(number, "new") for number in crowd[::2]]
    )
    process(harness, [version(number, "newer") for number in crowd[300:]])
    if has_statistics:
        analyse(harness)
    ids = [version(number, name).object_id for number in (1, 2, 600) for name in ("old", "new", "newer")]
    with plans_of(harness) as plans:
        process(harness, [version(1, "newer"), version(2, "old"), version(600, "new"), version(CROWD, "old")])
        replay = candidate("replay 4 new", key=b"/landing/4")
        process(harness, [replay, version(6, "newer")], replays=[replay.object_id])
        harness.ledger.known_among(PIPELINE, ids, seen_at=0.0, on_change=OnChange.REPLACE)
        harness.ledger.changed(PIPELINE, ids)
        harness.ledger.replaced(PIPELINE, ids)
        retract(harness)
    assert len(plans) > 25
    assert {statement: steps for statement, steps in plans.items() if steps} == {}
