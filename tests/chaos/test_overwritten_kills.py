"""A publisher that puts back an overwritten commit is killed at each step; the next one completes its work."""

import signal
import sys
from pathlib import Path

import pytest
from tests.chaos import publish_once
from tests.conformance.publishing.shared_table import SharedTable
from tests.services.forked_process import run_forked

from penstock.ledger import Ledger
from penstock.messaging.steps import Step
from penstock.storage.local import LocalFiles

SECONDS_MAX = 120.0


def publish(folder: Path, *step: str) -> int:
    """Publish in a process group of its own; return its exit code."""
    command = [sys.executable, "-m", publish_once.__name__, str(folder), *step]
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'src'}"}
    return run_forked(command, cwd=root, env=environment, start_new_session=True, timeout=SECONDS_MAX).returncode


@pytest.mark.parametrize("step", [Step.REPUBLISHING, Step.REPUBLISHED])
def test_a_killed_publisher_leaves_each_row_once(tmp_path: Path, step: Step) -> None:
    folder = tmp_path.resolve()
    ledger = Ledger.open(folder / "ledger.db")
    table = SharedTable(files=LocalFiles(folder / "clicks"), ledger=ledger)
    table.published(1)
    late = table.foreign_append(100)
    table.published(2)
    table.published(3)
    late.put()
    table.batch(4)
    assert publish(folder, step.value) == -signal.SIGKILL
    assert (2 in table.ids()) is (step is Step.REPUBLISHED)
    assert publish(folder) == 0
    table.assert_complete(100)
    ledger.close()
