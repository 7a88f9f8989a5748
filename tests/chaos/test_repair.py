"""A ledger is restored from a backup that is older than its table; real ingests, checked by the oracle.

Publishing halts, a repair is killed at each of its steps and run again, and in the end every good line is in the table
once.
"""

import json
import shutil
from pathlib import Path

import pytest
from tests.chaos.oracle import check_done, check_meanwhile, truth
from tests.chaos.runs import KILLED, Case, write_objects

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

HALTED = 1
OPTIONS = ("--max-batch-objects", "10")


def ledger_files(case: Case) -> list[Path]:
    return sorted((case.table / "_penstock").glob("ledger.db*"))


def test_a_ledger_restored_from_a_backup_is_repaired_without_loss_or_duplicates(case: Case, tmp_path: Path) -> None:
    write_objects(case.source, range(10))
    case.ingest(*OPTIONS)
    backup = tmp_path / "backup"
    backup.mkdir()
    for file in ledger_files(case):
        shutil.copy(file, backup)
    write_objects(case.source, range(10, 25))
    case.ingest(*OPTIONS)
    for file in ledger_files(case):
        file.unlink()
    for file in backup.iterdir():
        shutil.copy(file, case.table / "_penstock")
    write_objects(case.source, range(25, 30))
    case.ingest(*OPTIONS, code=HALTED)

    repair = ["admin", "repair", "--table", str(case.table), "--yes", "--json"]
    for step in (Step.REPAIRING, Step.REPAIRED):
        case._start(repair, kill_at=step.value).end().expect(KILLED)
    (found,) = json.loads(case.command(*repair).out)

    assert found["needed"] is False
    check_meanwhile(truth(case.source), case.table)
    case.command("admin", "gc", "--table", str(case.table))
    report = case.ingest(*OPTIONS).report
    assert report["objects_skipped"] >= 25
    check_done(truth(case.source), case.table)
