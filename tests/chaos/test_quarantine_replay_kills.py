"""A replay of bad lines is killed at every step: each line becomes one row, or is in quarantine once more."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.chaos.runs import KILLED, Case

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

OBJECTS, GOOD, FIXED = 10, 5, 2  # and lines of each object
SENT = 2  # batches of replays
WITH_COMMAS = ("--format", "csv", "--no-header", "--delimiter", ",", "--max-batch-objects", str(OBJECTS // SENT))
WITH_SEMICOLONS = (*WITH_COMMAS[:4], ";", *WITH_COMMAS[5:])
STORY = (
    Step.RECEIVED,
    Step.OBJECTS_REGISTERED,
    Step.ATTEMPT_OPENED,
    Step.ABANDONED,  # of the attempt before
    Step.PLANNED,
    Step.WRITTEN,
    Step.MANIFESTED,
    Step.RECORDED,
    Step.COMMITTING,
    Step.COMMITTED,
    Step.PUBLISHING,
    Step.ROWS_PUBLISHED,
    Step.QUARANTINE_PUBLISHED,
    Step.SETTLING,
    Step.SETTLED,
)


def write_objects(source: Path) -> None:
    for number in range(OBJECTS):
        good = [f"{number}{place},0.5,good" for place in range(GOOD)]
        fixed = [f"{number}{place};0.5;fixed" for place in range(GOOD, GOOD + FIXED)]
        (source / f"{number}.csv").write_text("\n".join([*good, *fixed, "hopeless"]) + "\n")


def rows(table: Path) -> list[tuple[str, int]]:
    found = DeltaTable(table).to_pyarrow_table(columns=["_object", "_offset"]).to_pylist()
    return sorted((row["_object"], row["_offset"]) for row in found)


def quarantined(case: Case, *options: str) -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = json.loads(
        case.command("quarantine", "list", "--table", str(case.table), "--json", *options).out
    )
    return document


def test_kills_at_every_step_of_a_replay_lose_and_double_nothing(case: Case) -> None:
    write_objects(case.source)
    first = case.ingest(*WITH_COMMAS).report
    assert (first["rows_written"], first["lines_quarantined"]) == (OBJECTS * GOOD, OBJECTS * (FIXED + 1))
    assert (first["warned_objects"], first["warned_lines"]) == (OBJECTS, OBJECTS * (FIXED + 1))
    before = rows(case.table)

    replay = ("quarantine", "replay", "--table", str(case.table), "--yes", "--json")
    case.command(*replay, code=KILLED, kill_at=Step.ANNOUNCED.value)
    assert json.loads(case.command(*replay).out)["sent"] == OBJECTS, "nothing was read yet, so they are sent once more"

    for step in STORY:
        case.ingest(*WITH_SEMICOLONS, code=KILLED, kill_at=step.value)
        found = rows(case.table)
        assert len(set(found)) == len(found), f"a row is there twice after a kill at {step}"
        assert set(before) <= set(found), f"a row was lost by a kill at {step}"
    last = case.ingest(*WITH_SEMICOLONS).report

    found = rows(case.table)
    assert len(set(found)) == len(found) == OBJECTS * (GOOD + FIXED)
    assert (last["warned_objects"], last["warned_lines"]) == (OBJECTS, OBJECTS)
    assert len(quarantined(case, "--only", "replayed")) == OBJECTS
    left = quarantined(case, "--only", "open")
    assert [(one["bad_lines"], one["good_lines"]) for one in left] == [(1, GOOD + FIXED)] * OBJECTS
    lines = DeltaTable(f"{case.table}_quarantine").to_pyarrow_table().column("raw").to_pylist()
    assert sorted(lines).count(b"hopeless") == 2 * OBJECTS, "once for each reading"
    assert len(lines) == OBJECTS * (FIXED + 1) + OBJECTS

    named = case.command(
        *replay, str(case.source / "0.csv"), "--attempt", quarantined(case, "--only", "replayed")[0]["attempt_id"]
    )
    assert json.loads(named.out)["replayed_before"] == 1, "an attempt is replayed once"
