"""docs/why/benchmarks.md lists all benchmarks, and docs/why/rolling-update.md is a generated report without losses."""

import re
from pathlib import Path

from benchmarks.__main__ import BENCHMARKS
from benchmarks.rolling_update.account import HEAD

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
PAGE = (ROOT / "docs/why/benchmarks.md").read_text(encoding="utf-8")
REPORT = (ROOT / "docs/why/rolling-update.md").read_text(encoding="utf-8")


def test_every_benchmark_is_in_the_table_of_its_kind() -> None:
    automatic, manual = (
        re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in PAGE.partition("\n## ")[0].split("These take")
    )
    assert tuple(automatic) == BENCHMARKS
    there = {path.stem for path in FOLDER.glob("*.py")} | {path.parent.name for path in FOLDER.glob("*/__main__.py")}
    assert set(manual) == there - {"__init__", "__main__"} - set(BENCHMARKS)


def test_the_rolling_update_report_has_its_head_and_shows_no_loss() -> None:
    assert REPORT.startswith(HEAD)
    assert ", **0 lost**, " in REPORT
