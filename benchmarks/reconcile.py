"""Reconcile: an S3 Inventory in Parquet against a ledger in MariaDB, PostgreSQL or SQLite, both read anew each round.

    python -m benchmarks.reconcile [--database mariadb|postgresql|sqlite] [--objects 10000000] [--missing 1000]
                                   [--rounds 3] [--hold] [--ledger URL --inventory MANIFEST]

First creates both sides: a private server whose ledger has a processed row for each object except the missing ones, and
an inventory of all of them in 16 files. Then each round reads the inventory, computes the identities, reads the known
ids over connections of the executors, and joins; it must find exactly the missing ones. ``known`` and ``existing`` are
reads of one side alone. CPU seconds are those of Spark, its Python workers and the server together: on a shared machine
they are more reliable than wall-clock time. ``--hold`` keeps the server up until Enter is pressed, and prints the
values of the last two options for another measurement against it.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.ledger.known_ids import ID_BYTES
from penstock.objects.reference import ObjectRef
from penstock.pipeline.reconcile.alone import ReconcileScope
from penstock.pipeline.reconcile.existing import object_id
from penstock.pipeline.reconcile.inventory import inventory_frame
from penstock.pipeline.reconcile.manifest import Inventory, find_inventory
from penstock.pipeline.reconcile.missing import find_missing, jobs, known_frame
from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.runtime import Session
from penstock.storage.address import s3_address
from penstock.storage.aws import Aws

BUCKET, BELOW, PIPELINE = "landing", "in", "bench"
CORES = 2
FILES = 16
FILLED_AT_ONCE = 200_000  # rows, where Python makes them
MODIFIED_AT = 1_700_000_000
COLUMNS = (
    "pipeline, object_id, bucket, {key}, uri, uri_digest, size_bytes, etag, state, attempt_id, charged, refunds, "
    "unattributed_failures, batch_seq, {rows}, lines_quarantined, carrier_message_id, carrier_enqueued_at, "
    "first_seen_at, ended_at"
)
INDEXES = {
    "ix_objects_state": "state, pipeline, object_id",
    "ix_objects_attempt": "attempt_id",
    "ix_objects_uri": "uri_digest, pipeline",
}

MARIADB_FILL = f"""
INSERT INTO objects ({COLUMNS.format(key="`key`", rows="`rows`")})
SELECT '{PIPELINE}', UNHEX(LEFT(SHA2(CONCAT('{BUCKET}', CHAR(0), k, CHAR(0), e, '+', s), 256), 32)), '{BUCKET}', k,
  CONCAT('s3://{BUCKET}/', k), UNHEX(LEFT(SHA2(CONCAT('s3://{BUCKET}/', k), 256), 32)), s, e, 'processed',
  '01HZX3V6Q0000000000000000A', 1, 0, 0, n DIV 5000, 100, 0, '01HZX3V6Q0000000000000000B', 1.7e9, 1.7e9, 1.7e9
FROM (SELECT seq n, MD5(seq) e, 1000 + seq s, CONCAT('{BELOW}/', LPAD(seq DIV 100000, 5, '0'), '/part-',
  LPAD(seq, 10, '0'), '.jsonl.gz') k FROM seq_0_to_{{last}} WHERE seq MOD {{every}} <> 0) made
ORDER BY 2
"""
POSTGRESQL_FILL = f"""
INSERT INTO objects ({COLUMNS.format(key="key", rows="rows")})
SELECT '{PIPELINE}', substring(sha256(convert_to('{BUCKET}', 'UTF8') || '\\x00'::bytea || convert_to(k, 'UTF8') ||
  '\\x00'::bytea || convert_to(e || '+' || s, 'UTF8')) FROM 1 FOR 16), '{BUCKET}', convert_to(k, 'UTF8'),
  's3://{BUCKET}/' || k, substring(sha256(convert_to('s3://{BUCKET}/' || k, 'UTF8')) FROM 1 FOR 16), s, e, 'processed',
  '01HZX3V6Q0000000000000000A', 1, 0, 0, n / 5000, 100, 0, '01HZX3V6Q0000000000000000B', 1.7e9, 1.7e9, 1.7e9
FROM (SELECT n, md5(n::text) e, 1000 + n s, '{BELOW}/' || lpad((n / 100000)::text, 5, '0') || '/part-' ||
  lpad(n::text, 10, '0') || '.jsonl.gz' k FROM generate_series(0, {{last}}) n WHERE n % {{every}} <> 0) made
ORDER BY 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The amount of data. Every ``every``-th object is missing."""

    objects: int
    missing: int

    @property
    def every(self) -> int:
        return self.objects // self.missing


def reference(number: int) -> ObjectRef:
    """Return the object of that number, as Spark and the servers generate it, too."""
    import hashlib

    key = f"{BELOW}/{number // 100_000:05}/part-{number:010}.jsonl.gz"
    etag = hashlib.md5(str(number).encode()).hexdigest()
    return ObjectRef(bucket=BUCKET, key=key, size_bytes=1_000 + number, etag=etag)


# --- data


def make_inventory(spark: Session, folder: Path, objects: int) -> Path:
    """Write the inventory's files and manifest as S3 does, and return the manifest's path."""
    made = spark.range(0, objects, 1, FILES).selectExpr(
        f"'{BUCKET}' AS bucket",
        f"concat('{BELOW}/', lpad(CAST(id DIV 100000 AS STRING), 5, '0'), '/part-', lpad(CAST(id AS STRING), 10, '0'), "
        "'.jsonl.gz') AS key",
        "1000 + id AS size",
        f"timestamp_seconds({MODIFIED_AT}) AS last_modified_date",
        "md5(CAST(CAST(id AS STRING) AS BINARY)) AS e_tag",
        "'STANDARD' AS storage_class",
    )
    made.write.mode("overwrite").parquet(str(folder / "data"))
    files = sorted((folder / "data").glob("*.parquet"))
    columns = "optional binary bucket (STRING); optional binary key (STRING); optional int64 size; "
    columns += "optional int64 last_modified_date (TIMESTAMP(MICROS,true)); optional binary e_tag (STRING); "
    manifest = {
        "sourceBucket": BUCKET,
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "creationTimestamp": str((MODIFIED_AT + 86_400) * 1_000),
        "fileFormat": "Parquet",
        "fileSchema": f"message s3.inventory {{ {columns}optional binary storage_class (STRING); }}",
        "files": [{"key": f"data/{file.name}", "size": file.stat().st_size} for file in files],
    }
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest))
    return path


@contextmanager
def mariadb(sizes: Sizes) -> Iterator[str]:
    import pymysql
    from tests.services.mariadb_server import MariadbServer, install_template

    with tempfile.TemporaryDirectory() as folder:
        template = install_template(Path(folder))
        options = ("--innodb-buffer-pool-size=2G", "--innodb-flush-log-at-trx-commit=2", "--innodb-log-file-size=512M")
        server = MariadbServer(folder=Path(folder) / "server", template=template, configuration=options).start()
        with closing(server):
            url = server.fresh()
            Ledger.open(url).close()
            database = url.partition("?")[0].rpartition("/")[2]
            with closing(pymysql.connect(unix_socket=str(server.socket), user="root", database=database)) as connection:
                cursor = connection.cursor()
                for name in INDEXES:
                    cursor.execute(f"DROP INDEX {name} ON objects")
                cursor.execute(MARIADB_FILL.format(last=sizes.objects - 1, every=sizes.every))
                connection.commit()
                for name, columns in INDEXES.items():
                    cursor.execute(f"CREATE INDEX {name} ON objects ({columns})")
                cursor.execute("ANALYZE TABLE objects")
            yield url


@contextmanager
def postgresql(sizes: Sizes) -> Iterator[str]:
    import psycopg
    from tests.services.postgresql_server import PostgresqlServer

    settings = {"shared_buffers": "2GB", "max_wal_size": "8GB", "maintenance_work_mem": "512MB", "work_mem": "512MB"}
    with closing(PostgresqlServer(configuration=settings).start()) as server:
        url = server.fresh()
        Ledger.open(url).close()
        with psycopg.connect(url, autocommit=True) as connection:
            for name in INDEXES:
                connection.execute(f"DROP INDEX {name}")
            connection.execute(POSTGRESQL_FILL.format(last=sizes.objects - 1, every=sizes.every))
            for name, columns in INDEXES.items():
                connection.execute(f"CREATE INDEX {name} ON objects ({columns})")
            connection.execute("VACUUM ANALYZE objects")
        yield url


@contextmanager
def sqlite(sizes: Sizes) -> Iterator[str]:
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        Ledger.open(file).close()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for name in INDEXES:
                connection.execute(f"DROP INDEX {name}")
            names = COLUMNS.format(key="key", rows="rows")
            statement = f"INSERT INTO objects ({names}) VALUES ({', '.join('?' * len(names.split(',')))})"
            numbers = [number for number in range(sizes.objects) if number % sizes.every]
            for start in range(0, len(numbers), FILLED_AT_ONCE):
                connection.executemany(statement, map(_row, numbers[start : start + FILLED_AT_ONCE]))
            for name, columns in INDEXES.items():
                connection.execute(f"CREATE INDEX {name} ON objects ({columns})")
            connection.commit()
        yield f"sqlite:///{file}"


def _row(number: int) -> tuple[Any, ...]:
    ref = reference(number)
    columns = (PIPELINE, ref.object_id, BUCKET, ref.key_bytes, ref.uri, ref.object_id, ref.size_bytes, ref.etag)
    ids = "01HZX3V6Q0000000000000000A", "01HZX3V6Q0000000000000000B"
    return (*columns, "processed", ids[0], 1, 0, 0, number // 5_000, 100, 0, ids[1], 1.7e9, 1.7e9, 1.7e9)


DATABASES: dict[str, Callable[[Sizes], Any]] = {"mariadb": mariadb, "postgresql": postgresql, "sqlite": sqlite}


# --- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The session, table and objects that every round uses."""

    spark: Session
    ledger: Ledger
    inventory: Inventory
    sizes: Sizes

    def existing(self) -> Any:
        return inventory_frame(self.spark, self.inventory, s3_address(f"s3://{BUCKET}/{BELOW}"), all_versions=False)

    def known(self) -> Any:
        return known_frame(self.spark, self.ledger, PIPELINE, seen_at=time.time())

    def whole(self) -> None:
        before = self.inventory.manifest.created_at - 900
        scope = ReconcileScope(bucket=BUCKET, below=f"{BELOW}/", before=before)
        found = find_missing(self.existing(), self.known(), scope)
        with closing(found):
            lost = sum(prefix.missing for prefix in found.prefixes()) and found.count
            wanted = {reference(number).object_id for number in range(0, self.sizes.objects, self.sizes.every)}
            ids = {ref.object_id for chunk in found.chunks(limit=None) for ref in chunk}
            if (found.listed, lost, ids) != (self.sizes.objects, len(wanted), wanted):
                raise SystemExit(f"found {lost:,} of {len(wanted):,} missing among {found.listed:,} listed")

    def alone(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()


def timed(work: Callable[[], None]) -> str:
    began_at, cpu_before = time.perf_counter(), cpu_seconds(os.getpid())
    work()
    return f"{time.perf_counter() - began_at:.1f} s ({cpu_seconds(os.getpid()) - cpu_before:.0f} s of CPU)"


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including those that have ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    except OSError:  # it has just ended
        return 0.0
    own = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(int(child)) for child in children)


def measure(stage: Stage, rounds: int) -> None:
    for number in range(rounds):
        known = timed(lambda: stage.alone(stage.known()))
        existing = timed(lambda: stage.alone(stage.existing().select(object_id(BUCKET).alias("object_id"))))
        whole = timed(stage.whole)
        load = os.getloadavg()[0]
        print(
            f"round {number + 1}: known {known}, existing {existing}, reconcile {whole}; load {load:.1f} on "
            f"{os.cpu_count()} cores",
            flush=True,
        )


def session(folder: Path) -> Session:
    settings = SessionSettings(
        master=f"local[{CORES}]",
        java_home=find_java(os.environ).home,
        scratch=folder / "scratch",
        log=folder / "spark.log",
        driver_memory="2g",
    )
    return start_session(settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=DATABASES, default="mariadb")
    parser.add_argument("--objects", type=int, default=10_000_000)
    parser.add_argument("--missing", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--ledger")
    parser.add_argument("--inventory", type=Path)
    given = parser.parse_args()
    sizes = Sizes(objects=given.objects, missing=given.missing)
    folder = Path(tempfile.mkdtemp(prefix="reconcile-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        spark = session(folder)
        stack.callback(end_session, spark, at_once=False, seconds=10.0)
        began_at = time.perf_counter()
        manifest = given.inventory or make_inventory(spark, folder / "inventory", sizes.objects)
        url = given.ledger or stack.enter_context(DATABASES[given.database](sizes))
        ledger = stack.enter_context(closing(Ledger.open(url)))
        print(f"{sizes.objects:,} objects and rows made in {time.perf_counter() - began_at:.0f} s", flush=True)
        known_bytes = ID_BYTES * (sizes.objects - sizes.missing) / 1e6
        print(f"{given.database}: {sizes.missing:,} missing; known ids are {known_bytes:,.0f} MB", flush=True)
        stage = Stage(spark=spark, ledger=ledger, inventory=find_inventory(str(manifest), Aws()), sizes=sizes)
        with jobs(spark, "benchmark", PIPELINE, Bus()):  # formats its failures while Spark still runs
            measure(stage, given.rounds)
        if given.hold:
            input(f"--ledger '{url}' --inventory {manifest}\nEnter ends it. ")


if __name__ == "__main__":
    main()
