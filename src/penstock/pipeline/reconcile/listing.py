"""What S3 lists below a prefix: spans of keys side by side, a task each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.objects.s3_listing import is_archived, reference
from penstock.objects.s3_pages import Entry, S3Pages
from penstock.objects.s3_spans import Span, s3_spans
from penstock.pipeline.reconcile.existing import EXISTING, Existing, batches
from penstock.pipeline.session import cores
from penstock.storage.address import S3Address
from penstock.storage.aws import Aws

SPANS_MIN = 32
SPANS_A_CORE = 4  # spans are of unequal lengths


def listing_frame(spark: SparkSession, address: S3Address, aws: Aws, *, all_versions: bool) -> DataFrame:
    """Rows of `EXISTING`: what is there now, or every version of it.

    Raises `UsageError`, `ConfigurationError` and `TemporaryError` for a prefix that cannot be listed.
    """
    next(iter(S3Pages(address, aws, page_keys=1)), None)  # whether we may: in our own words, before tasks begin
    spans = s3_spans(address, aws, parts=max(SPANS_MIN, SPANS_A_CORE * cores(spark)))
    task = _Task(address=address, aws=aws, spans=spans, all_versions=all_versions)
    return spark.range(0, len(spans), 1, len(spans)).mapInArrow(task.rows, EXISTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Travels to the executors."""

    address: S3Address
    aws: Aws
    spans: Sequence[Span]
    all_versions: bool

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from batches(self._existing(self.spans[number]))

    def _existing(self, span: Span) -> Iterator[Existing]:
        for page in S3Pages(self.address, self.aws, span=span, all_versions=self.all_versions):
            for entry in page.entries:
                yield _existing(self.address.bucket, entry)


def _existing(bucket: str, entry: Entry) -> Existing:
    ref = reference(bucket, entry)
    return Existing(
        key=ref.key_bytes,
        size_bytes=ref.size_bytes,
        version_id=ref.version_id,
        etag=ref.etag,
        modified_at=entry["LastModified"].timestamp(),
        is_archived=is_archived(entry),
    )
