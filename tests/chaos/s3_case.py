"""Ingests from S3, through notifications in SQS, into a table in S3, checked on a download of the table.

The files are written into a folder and uploaded. The table is downloaded into the folder that the oracle reads, which
also has the ledger.
"""

import shutil
from pathlib import Path
from urllib.parse import quote

from tests.chaos.oracle import Truth
from tests.chaos.runs import DELTA, ON_SPARK, Case, Content
from tests.chaos.runs import LEASE_SECONDS as HOST_LEASE_SECONDS
from tests.services.aws_server import AwsServer
from tests.services.s3_scene import Announced, Way

LAKE = "lake"
PREFIX = "in"
LEASE_SECONDS = 5  # SQS knows no holders: messages of a killed process become visible when the lease ends


class S3Case(Case):
    """Buckets and a queue at one server, and all processes that use them."""

    def __init__(
        self,
        folder: Path,
        server: AwsServer,
        *,
        module: str = ON_SPARK,
        by_queue: bool = True,
        way: Way = "sqs",
        content: Content | None = None,
        scheme: str = DELTA,
        **settings: object,
    ) -> None:
        """Without ``by_queue``, ingests list the bucket. ``settings`` are as for every case."""
        # With listings, the queue is a file of this host, and a killed process is detected at once. So the lease can
        # be long enough for a busy machine.
        lease_seconds = LEASE_SECONDS if by_queue else HOST_LEASE_SECONDS
        settings = {"aws_endpoint_url": server.url, "worker_lease": lease_seconds, **settings}
        super().__init__(folder, module=module, content=content, scheme=scheme, **settings)
        self._by_queue = by_queue
        self._landing = Announced(server, way)
        self._s3, self._sqs = server.client("s3"), server.client("sqs")
        self._s3.create_bucket(Bucket=LAKE)

    @property
    def arguments(self) -> tuple[str, ...]:
        queue = ("--queue", self._landing.queue_arn) if self._by_queue else ()
        return self._remote, self.address, "--data-dir", str(self.table / "_penstock"), *queue

    @property
    def address(self) -> str:
        return self._address_of(f"s3://{LAKE}/table")

    def add_objects(self, numbers: range) -> None:
        self.upload(self.content.write(self.source, numbers))

    def upload(self, paths: list[Path]) -> None:
        for path in paths:
            self._landing.put(f"{PREFIX}/{path.name}", path.read_bytes())

    def truth(self) -> Truth:
        """Return the lines of the folder's files, under their names in S3."""
        return self.content.truth(self.source, at=self._remote)

    def mirror(self) -> Path:
        """Download both tables and the work folder, and return the path for the oracle."""
        quarantine = self.table.with_name(f"{self.table.name}_quarantine")
        parts = [self.table / part for part in ("data", "_delta_log", "metadata", "_penstock/work")]
        for folder in (*parts, quarantine):
            shutil.rmtree(folder, ignore_errors=True)
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=LAKE):
            for entry in page.get("Contents", ()):
                target = self.folder / entry["Key"]
                assert target.is_relative_to(self.folder), quote(entry["Key"])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self._s3.get_object(Bucket=LAKE, Key=entry["Key"])["Body"].read())
        return self.table

    def waiting(self) -> int:
        """Return the number of messages in the queue, in any state."""
        if not self._by_queue:
            return 0
        names = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]
        found = self._sqs.get_queue_attributes(QueueUrl=self._landing.queue_url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    @property
    def _remote(self) -> str:
        return f"s3://{self._landing.bucket}/{PREFIX}"
