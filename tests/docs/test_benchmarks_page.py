"""docs/why/benchmarks.md names every benchmark, and which of them `make bench` runs; the account of a rolling update is
the one that its script writes."""

import re
from pathlib import Path

from benchmarks.__main__ import BENCHMARKS
from benchmarks.rolling_update.account import HEAD

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
PAGE = (ROOT / "docs/why/benchmarks.md").read_text(encoding="utf-8")
ACCOUNT = (ROOT / "docs/why/rolling-update.md").read_text(encoding="utf-8")


def test_every_benchmark_is_in_the_table_of_its_kind() -> None:
    by_themselves, by_hand = (
        re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in PAGE.partition("\n## ")[0].split("These take")
    )
    assert tuple(by_themselves) == BENCHMARKS
    there = {path.stem for path in FOLDER.glob("*.py")} | {path.parent.name for path in FOLDER.glob("*/__main__.py")}
    assert set(by_hand) == there - {"__init__", "__main__"} - set(BENCHMARKS)


def test_the_rolling_update_report_has_its_head_and_shows_no_loss() -> None:
    assert ACCOUNT.startswith(HEAD)
    assert ", **0 lost**, " in ACCOUNT
