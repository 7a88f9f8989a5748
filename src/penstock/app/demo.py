"""The main job on files of its own, killed once in the middle, with a proof at the end."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.app.demo_data import SCHEMA, DemoData, write_logs
from penstock.app.places import Places, places
from penstock.app.state import open_state
from penstock.errors import PenstockError, UsageError
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Step
from penstock.objects.announcement import announce
from penstock.objects.local import LocalStore
from penstock.objects.scanner import Scanner

DUPLICATED = 50  # objects announced twice before the ingest announces them once more
BATCH_OBJECTS = 100
KILL_AT = f"{Step.WRITTEN.value}:2"  # Spark has written the second batch, and nothing of it is recorded
RUN_SECONDS_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlaces:
    """Where the demo's files and tables lie, in one folder of its own."""

    logs: Path
    tables: Places

    @staticmethod
    def under(folder: Path) -> "DemoPlaces":
        """Raises `UsageError` for a folder that holds something already."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not empty; give another folder with --dir, or remove it.")
        return DemoPlaces(logs=folder / "logs", tables=places(folder / "access_log"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the table holds, counted by reading it, beside what the files hold."""

    rows: int
    rows_expected: int
    rows_twice: int  # the same line of the same object more than once
    quarantined: int
    quarantined_expected: int
    dead: int
    dead_expected: int

    @property
    def holds(self) -> bool:
        """Whether every good line is there once, every bad one in quarantine, and the broken object alone dead."""
        return (
            self.rows == self.rows_expected
            and self.rows_twice == 0
            and self.quarantined == self.quarantined_expected
            and self.dead == self.dead_expected
        )


def prepare(where: DemoPlaces) -> DemoData:
    """Write the files, and announce some of them twice as S3 may."""
    data = write_logs(where.logs)
    scanner = Scanner(where.logs, store=LocalStore(where.logs))
    refs = [ref for chunk in scanner.chunks() for ref in chunk][:DUPLICATED]
    with open_state(where.tables.state) as state:
        queue = where.tables.queue(where.logs.resolve())
        state.broker.send(queue, [Outgoing(body=announce(ref)) for ref in refs for _ in range(2)])
    return data


def run_ingest(where: DemoPlaces, *, kill_at: str | None = None) -> Mapping[str, Any] | None:
    """`penstock ingest` in a process of its own; answers its report, or None when it was killed as asked."""
    command = [sys.executable, "-m", "penstock", "ingest", str(where.logs), str(where.tables.table)]
    command += ["--schema", SCHEMA, "--max-objects", str(BATCH_OBJECTS), "--json"]
    environment = {**os.environ, **({"PENSTOCK_KILL_AT": kill_at} if kill_at else {})}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, start_new_session=True, timeout=RUN_SECONDS_MAX, check=False
    )
    if kill_at is not None and done.returncode < 0:
        return None
    if done.returncode not in (0, 3):
        raise PenstockError(f"the ingest of the demo ended with exit code {done.returncode}; its words are above")
    report: Mapping[str, Any] = json.loads(done.stdout)
    return report


def prove(where: DemoPlaces, data: DemoData, report: Mapping[str, Any]) -> Proof:
    """Read the tables back through deltalake, without ledger or manifests, and count."""
    from penstock.sinks.delta import open_dataset

    lines = open_dataset(where.tables.table).to_table(columns=["_object", "_offset"])
    distinct = lines.group_by(["_object", "_offset"]).aggregate([]).num_rows
    quarantined = open_dataset(where.tables.quarantine).count_rows()
    return Proof(
        rows=lines.num_rows,
        rows_expected=data.good_lines,
        rows_twice=lines.num_rows - distinct,
        quarantined=quarantined,
        quarantined_expected=data.bad_lines,
        dead=report["objects_dead"],
        dead_expected=1,
    )
