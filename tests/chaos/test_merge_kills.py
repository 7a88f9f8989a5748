"""Changes are merged by key on Spark, and the process group is killed at every step: no key is there twice or lost.

In CI the same is tested without Spark, with publishers that die: `tests/property/test_merging.py` and
`tests/conformance/publishing/test_merging.py`.
"""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.chaos.runs import KILLED, ON_SPARK, Running, environment

from penstock.messaging.steps import Step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OBJECTS, LINES, KEYS = 8, 25, 40
STEPS = (
    Step.ATTEMPT_OPENED,
    Step.WRITTEN,
    Step.DELETES_WRITTEN,
    Step.MANIFESTED,
    Step.RECORDED,
    Step.COMMITTING,
    Step.COMMITTED,
    Step.PUBLISHING,
    Step.REWRITTEN,
    Step.ROWS_PUBLISHED,
    Step.SETTLED,
)
OPTIONS = ("--schema", "id long, at long, op string, v double", "--merge-key", "id", "--order-by", "at",
           "--delete-when", "op = 'D'", "--merge-drop", "op", "--max-batch-objects", "2", "--json")  # fmt: skip


def write_changes(folder: Path) -> dict[int, float]:
    """Write objects of changes, and return the value of each key after all of them."""
    rng = random.Random(3)
    folder.mkdir()
    last: dict[int, dict[str, Any]] = {}
    orders = iter(rng.sample(range(10_000), OBJECTS * LINES))  # no two changes have the same
    for number in range(OBJECTS):
        changes: list[dict[str, Any]] = [
            {"id": rng.randrange(KEYS), "at": next(orders), "op": rng.choice("IUUD"), "v": rng.random()}
            for _ in range(LINES)
        ]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(change) + "\n" for change in changes))
        for change in changes:
            if change["id"] not in last or last[change["id"]]["at"] < change["at"]:
                last[change["id"]] = change
    return {id: change["v"] for id, change in last.items() if change["op"] != "D"}


def run(folder: Path, name: str, **settings: object) -> Any:
    arguments = ["ingest", str(folder / "in"), str(folder / "t"), *OPTIONS]
    running = Running(arguments, module=ON_SPARK, folder=folder, name=name, environment=environment(**settings))
    return running.end()


def rows_of(table: Path) -> list[tuple[int, float]]:
    found: pa.Table = DeltaTable(table).to_pyarrow_table(columns=["id", "v"])
    return sorted((row["id"], row["v"]) for row in found.to_pylist())


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_a_step_changes_nothing_in_the_end(tmp_path: Path, step: Step, nth: int) -> None:
    expected = write_changes(tmp_path / "in")
    run(tmp_path, "killed", kill_at=f"{step.value}:{nth}").expect(KILLED)
    report = run(tmp_path, "finished").expect(0).report
    assert rows_of(tmp_path / "t") == sorted(expected.items())
    assert (report["objects_dead"], report["objects_unfinished"]) == (0, 0)
