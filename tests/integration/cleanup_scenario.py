"""A pipeline's history without Spark, and `penstock admin cleanup` as a separate process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import update
from tests.services.forked_process import run_forked
from ulid import ULID

from penstock.app.paths import TablePaths, declared_table_paths
from penstock.app.tables import Tables
from penstock.config import load_settings
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, BatchRecord, Candidate, ObjectResult, OriginalMessage
from penstock.ledger.schema import batches
from penstock.objects.reference import ObjectRef
from penstock.sinks.manifest import encode
from penstock.sinks.parquet import list_files
from penstock.sinks.schema import encode as encode_schema

ROOT = Path(__file__).parents[2]
APP = "tests.integration.cleanup_app:app"
PIPELINE = "clicks"
SCHEMA = pa.schema([("id", pa.int64())])
KILLED = -9
DAY_SECONDS = 86_400.0


@dataclass(kw_only=True)
class CleanupScenario:
    """One pipeline of an app, whose source is ``source``."""

    folder: Path
    source: str
    variables: Mapping[str, str]  # the environment variables that select its cleanup
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> TablePaths:
        settings = load_settings(data_dir=str(self.folder / ".penstock"))
        return declared_table_paths(PIPELINE, self.folder / "lake" / PIPELINE, settings)

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        (self.folder / ".penstock").mkdir(exist_ok=True)
        ledger = Ledger.open(self.folder / ".penstock" / "ledger.db")
        ledger.ensure_pipeline(PIPELINE)
        yield ledger
        ledger.close()

    def process(self, refs: Sequence[ObjectRef]) -> None:
        """Commit one batch, with its file written and not yet published."""
        with self.ledger() as ledger:
            attempt_id = str(ULID())
            candidates = [
                Candidate(
                    object_id=ref.object_id,
                    bucket=ref.bucket,
                    key=ref.key_bytes,
                    size_bytes=ref.size_bytes,
                    uri=ref.uri,
                    original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
                    version_id=ref.version_id,
                    etag=ref.etag,
                )
                for ref in refs
            ]
            claim = ledger.claim(PIPELINE, candidates, attempt_id=attempt_id, worker="w", lease_seconds=600.0)
            assert len(claim.claimed) == len(refs)
            where, directory = self.where, f"data/{attempt_id}/r0"
            folder = Path(str(where.table)) / directory
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"id": list(range(len(refs)))}, schema=SCHEMA), folder / "a.parquet")
            files = list_files(where.table, directory, partition_by=(), schema=SCHEMA)
            row, schema = ledger.ensure_pipeline(PIPELINE), encode_schema(SCHEMA)
            ledger.commit(
                BatchOutcome(
                    pipeline=PIPELINE,
                    attempt_id=attempt_id,
                    processed=[ObjectResult(object_id=ref.object_id, rows=1, lines_quarantined=0) for ref in refs],
                    record=BatchRecord(manifest=encode(files)),
                    schema_id=row.schema_id,
                    new_schema=None if row.table_schema == schema else schema,
                )
            )

    def publish(self) -> None:
        with self.ledger() as ledger:
            Tables(self.where, ledger, bus=Bus()).publish()

    def age(self, *, seconds: float) -> None:
        """Make the commit of every batch that much older."""
        statement = update(batches).values(committed_at=batches.c.committed_at - seconds)
        with self.ledger() as ledger:
            ledger.database.transact(lambda connection: connection.execute(statement))

    def call(self, *options: str, kill_at: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `penstock admin cleanup` to its end."""
        return run_forked(
            [sys.executable, "-m", "penstock", "admin", "cleanup", APP, PIPELINE, *options],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                "CLEANUP_SOURCE": self.source,
                "CLEANUP_TABLE": str(self.folder / "lake" / PIPELINE),
                **self.variables,
                **self.environment,
                **variables,
                **({} if kill_at is None else {"PENSTOCK_KILL_AT": kill_at}),
            },
            start_new_session=True,  # a step kills the whole process group
            timeout=120,
        )

    def clean(self, *options: str, **variables: str) -> dict[str, Any]:
        """Run the command, and return its report."""
        ended = self.call("--json", *options, **variables)
        assert ended.returncode == 0, ended.stderr
        report: dict[str, Any] = json.loads(ended.stdout)
        return report
