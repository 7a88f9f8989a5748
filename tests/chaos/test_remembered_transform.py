"""The name of the transform: recorded by a commit, and back after a repair of a lost ledger."""

import shutil

from tests.chaos import transforms
from tests.chaos.oracle import query
from tests.chaos.runs import Case

from penstock.app.paths import LEDGER_FILE

HALTED, USAGE = 1, 2
REMEMBERED = "SELECT transform FROM pipelines"


def test_a_commit_records_the_name_and_a_repair_brings_it_back(case: Case) -> None:
    shutil.copy(transforms.__file__, case.folder / "transforms.py")
    case.add_objects(range(3))
    case.ingest()
    assert query(case.table, REMEMBERED) == [("",)]
    for file in (case.table / "_penstock").glob(f"{LEDGER_FILE}*"):
        file.unlink()
    case.ingest(code=HALTED)
    assert query(case.table, REMEMBERED) == [(None,)]
    case.command("admin", "repair", "--table", case.address, "--yes", "--adopt")
    assert query(case.table, REMEMBERED) == [("",)]
    refused = case.ingest("--transform", "transforms:nothing", code=USAGE)
    assert "were made without a transform, and this ingest has the transform transforms:nothing" in refused.err
