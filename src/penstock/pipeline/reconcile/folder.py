"""What a local folder holds: walked by one task, which is as fast as a disk tells names and stamps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.objects.local import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner
from penstock.pipeline.reconcile.existing import EXISTING, Existing, batches


def folder_frame(spark: SparkSession, folder: str, *, excluded: Sequence[str]) -> DataFrame:
    """Rows of `EXISTING`. Raises `UsageError` for a folder that cannot be listed."""
    task = _Task(folder=folder, excluded=tuple(excluded))
    task.scanner()
    return spark.range(0, 1, 1, 1).mapInArrow(task.rows, EXISTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Travels to the executor."""

    folder: str
    excluded: Sequence[str]

    def scanner(self) -> Scanner:
        return Scanner(self.folder, store=LocalStore(self.folder), excluded=self.excluded)

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for _ in range(batch.num_rows):
                yield from batches(self._existing())

    def _existing(self) -> Iterator[Existing]:
        scanner = self.scanner()
        for chunk in scanner.chunks():
            yield from map(_existing, chunk)
        for problem in scanner.report().problems:
            yield Existing(problem=problem)


def _existing(ref: ObjectRef) -> Existing:
    changed_ns = int((ref.etag or "0-").rpartition("-")[0], 16)  # a file's etag begins with its time
    return Existing(key=ref.key_bytes, size_bytes=ref.size_bytes, etag=ref.etag, modified_at=changed_ns / 1e9)
