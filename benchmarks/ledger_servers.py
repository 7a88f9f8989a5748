"""The ledger on MariaDB and PostgreSQL: a claim and a commit with no rows, with many rows, and with many workers.

python -m benchmarks.ledger_servers [--rows N] [--archived] [--objects N] [--rounds N] [--only mariadb|postgresql]

The servers are private ones on this machine, over unix sockets, with memory for all pages and every commit on disk. The
rows are those of a pipeline with batches of 5,000 objects; the claimed objects are new, with ids between theirs. With
--archived, the rows were archived, as after a retention, and only their identities remain. Concurrent workers are
processes; half of the objects that each one claims are claimed by all.
"""

import argparse
import hashlib
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sqlalchemy import Connection, create_engine, make_url, text
from tests.services.mariadb_server import MariadbServer, install_template
from tests.services.postgresql_server import PostgresqlServer

from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, BatchRecord, Candidate, ObjectClaims, ObjectResult, OriginalMessage

PIPELINE = "clicks"
BATCH = 5_000  # objects, of the rows that are there
FILL_AT_ONCE = 500_000
WORKERS = 8
WORKERS_OBJECTS = 500  # of one claim
WORKERS_SECONDS = 10.0
LEASE_SECONDS = 60.0

# One statement per database: row i of the pipeline, in the order of ids, so that every index is filled in order.
_FILL = {
    "mariadb": """
        INSERT INTO objects (pipeline, object_id, bucket, `key`, uri, uri_digest, size_bytes, etag, sequencer, state,
            attempt_id, charged, refunds, unattributed_failures, batch_seq, `rows`, lines_quarantined,
            carrier_message_id, carrier_enqueued_at, first_seen_at, ended_at)
        SELECT :pipeline, UNHEX(CONCAT(LPAD(HEX(i * :step), 16, '0'), REPEAT('0', 16))), 'landing',
            CONCAT('clicks/2024/01/', i, '.jsonl.gz'), CONCAT('s3://landing/clicks/2024/01/', i, '.jsonl.gz'),
            UNHEX(CONCAT(LPAD(HEX(i * :step), 16, '0'), REPEAT('0', 16))), 10000,
            MD5(i), LPAD(HEX(i), 16, '0'), 'processed', CONCAT('attempt-', LPAD(i DIV :batch, 10, '0')), 1, 0, 0,
            i DIV :batch + 1, 50, 0, UUID(), 1.7e9, 1.7e9, 1.7e9
        FROM (SELECT CAST(seq AS SIGNED) AS i FROM seq_0_to_{last}) numbers WHERE i >= :first
    """,
    "postgresql": """
        INSERT INTO objects (pipeline, object_id, bucket, "key", uri, uri_digest, size_bytes, etag, sequencer, state,
            attempt_id, charged, refunds, unattributed_failures, batch_seq, "rows", lines_quarantined,
            carrier_message_id, carrier_enqueued_at, first_seen_at, ended_at)
        SELECT :pipeline, digest, 'landing', convert_to('clicks/2024/01/' || i || '.jsonl.gz', 'UTF8'),
            's3://landing/clicks/2024/01/' || i || '.jsonl.gz', digest, 10000,
            md5(i::text), lpad(to_hex(i), 16, '0'), 'processed', 'attempt-' || lpad((i / :batch)::text, 10, '0'), 1, 0,
            0, i / :batch + 1, 50, 0, md5(i::text), 1.7e9, 1.7e9, 1.7e9
        FROM (SELECT i, decode(lpad(to_hex(i * CAST(:step AS bigint)), 16, '0') || repeat('0', 16), 'hex') AS digest
              FROM generate_series(CAST(:first AS bigint), {last}) AS i) numbers
    """,
}

_FILL_ARCHIVED = {
    "mariadb": """
        INSERT INTO archived_objects (pipeline, object_id, uri_digest, archive_id)
        SELECT :pipeline, digest, digest, CONCAT('archive-', LPAD(i DIV :batch, 10, '0'))
        FROM (SELECT CAST(seq AS SIGNED) AS i, UNHEX(CONCAT(LPAD(HEX(seq * :step), 16, '0'), REPEAT('0', 16))) AS digest
              FROM seq_0_to_{last}) numbers WHERE i >= :first
    """,
    "postgresql": """
        INSERT INTO archived_objects (pipeline, object_id, uri_digest, archive_id)
        SELECT :pipeline, digest, digest, 'archive-' || lpad((i / :batch)::text, 10, '0')
        FROM (SELECT i, decode(lpad(to_hex(i * CAST(:step AS bigint)), 16, '0') || repeat('0', 16), 'hex') AS digest
              FROM generate_series(CAST(:first AS bigint), {last}) AS i) numbers
    """,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Median times."""

    claim_seconds: float
    commit_seconds: float

    def __str__(self) -> str:
        return f"claim {self.claim_seconds:.3f} s, commit {self.commit_seconds:.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--archived", action="store_true")
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=list(_FILL))
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else list(_FILL):
        with private_server(name) as server:
            _measure(name, server.fresh, arguments)


def _measure(name: str, fresh: Callable[[], str], arguments: argparse.Namespace) -> None:
    empty = _times(fresh(), objects=arguments.objects, rounds=arguments.rounds)
    print(f"{name}: {arguments.objects:,} objects on an empty ledger: {empty}", flush=True)
    full_url = fresh()
    began_at = time.perf_counter()
    fill(name, full_url, arguments.rows, archived=arguments.archived)
    kind = "archived identities" if arguments.archived else "rows"
    print(f"{name}: {arguments.rows:,} {kind} written in {time.perf_counter() - began_at:.0f} s", flush=True)
    full = _times(full_url, objects=arguments.objects, rounds=arguments.rounds)
    claim, commit = full.claim_seconds / empty.claim_seconds, full.commit_seconds / empty.commit_seconds
    print(f"{name}: the same on {arguments.rows:,} {kind}: {full}: {claim:.2f} and {commit:.2f} times", flush=True)
    claimed, taken_twice, failed = _crowd(full_url)
    print(
        f"{name}: {WORKERS} workers at once, {WORKERS_OBJECTS} objects a claim: {claimed / WORKERS_SECONDS:,.0f} "
        f"objects a second claimed and committed, {taken_twice} of them twice, {failed} errors",
        flush=True,
    )


def _times(url: str, *, objects: int, rounds: int) -> Times:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    _round(ledger, "warming", objects)
    claims, commits = zip(*(_round(ledger, f"round-{number}", objects) for number in range(rounds)), strict=True)
    ledger.close()
    return Times(claim_seconds=statistics.median(claims), commit_seconds=statistics.median(commits))


def _round(ledger: Ledger, attempt: str, objects: int) -> tuple[float, float]:
    candidates = [candidate(f"{attempt}/{index}") for index in range(objects)]
    began_at = time.perf_counter()
    claim = ledger.claim(PIPELINE, candidates, attempt_id=attempt, worker="benchmark", lease_seconds=LEASE_SECONDS)
    claimed_at = time.perf_counter()
    ledger.commit(outcome(claim))
    assert len(claim.claimed) == objects
    return claimed_at - began_at, time.perf_counter() - claimed_at


def fill(name: str, url: str, rows: int, *, archived: bool) -> None:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    ledger.close()
    step = 2**62 // rows
    with connected(url) as connection:
        for first in range(0, rows, FILL_AT_ONCE):
            last = min(first + FILL_AT_ONCE, rows) - 1
            statement = (
                (_FILL_ARCHIVED if archived else _FILL)[name]
                .replace("{last}", str(last))
                .replace("seq_0_to", f"seq_{first}_to")
            )
            connection.execute(text(statement), {"pipeline": PIPELINE, "first": first, "batch": BATCH, "step": step})
        table = "archived_objects" if archived else "objects"
        analyze(connection, table)
        assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == rows


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Yield a connection that is not the ledger's: statements of a fill take longer than the ledger's limit."""
    driver = "mysql+pymysql" if make_url(url).get_backend_name() in ("mysql", "mariadb") else "postgresql+psycopg"
    engine = create_engine(make_url(url).set(drivername=driver), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def analyze(connection: Connection, table: str) -> None:
    """Renew the statistics of a table, which its planner reads."""
    is_mariadb = connection.dialect.name in ("mysql", "mariadb")
    connection.exec_driver_sql(f"{'ANALYZE TABLE' if is_mariadb else 'VACUUM ANALYZE'} {table}")


def _crowd(url: str) -> tuple[int, int, int]:
    """The number of objects that all workers committed, of those committed more than once, and of errors."""
    spawning = multiprocessing.get_context("spawn")
    barrier = spawning.Barrier(WORKERS)
    with spawning.Manager() as manager:
        collected = manager.list()
        processes = [
            spawning.Process(target=_worker, args=(url, number, barrier, collected)) for number in range(WORKERS)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        reports = list(collected)
    committed = [name for names, _ in reports for name in names]
    failed = sum(errors for _, errors in reports) + WORKERS - len(reports)
    return len(committed), len(committed) - len(set(committed)), failed


def _worker(url: str, number: int, barrier: "multiprocessing.synchronize.Barrier", collected: "list[object]") -> None:
    ledger = Ledger.open(url)
    committed: list[bytes] = []
    errors = 0
    barrier.wait()
    ends_at = time.monotonic() + WORKERS_SECONDS
    for turn in count():
        if time.monotonic() > ends_at:
            break
        attempt = f"crowd-{number}-{turn}"
        half = WORKERS_OBJECTS // 2
        candidates = [candidate(f"all/{turn}/{index}") for index in range(half)]
        candidates += [candidate(f"{attempt}/{index}") for index in range(half)]
        try:
            claim = ledger.claim(
                PIPELINE, candidates, attempt_id=attempt, worker=f"{number}", lease_seconds=LEASE_SECONDS
            )
            if claim.claimed:
                ledger.commit(outcome(claim))
                committed += claim.claimed
        except Exception as error:  # errors that would reach the user
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            errors += 1
    ledger.close()
    collected.append((committed, errors))


def candidate(name: str) -> Candidate:
    key = f"clicks/2024/02/{name}.jsonl.gz"
    digest = hashlib.sha256(key.encode()).digest()[:16]
    return Candidate(
        object_id=bytes([digest[0] & 0x3F]) + digest[1:],  # among those that are there
        bucket="landing",
        key=key.encode(),
        size_bytes=10_000,
        uri=f"s3://landing/{key}",
        etag=digest.hex(),
        sequencer="0055AED6DCD90281E5",
        original_message=OriginalMessage(message_id=digest.hex(), enqueued_at=1.7e9),
    )


def outcome(claim: ObjectClaims) -> BatchOutcome:
    results = [ObjectResult(object_id=object_id, rows=50, lines_quarantined=0) for object_id in claim.claimed]
    return BatchOutcome(
        pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=results, record=BatchRecord(rows=50 * len(results))
    )


@contextmanager
def private_server(name: str, *, memory_gb: int = 8) -> Iterator[MariadbServer | PostgresqlServer]:
    """Yield a running server with this much memory for pages."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        server = _mariadb(Path(folder), memory_gb) if name == "mariadb" else _postgresql(memory_gb)
        server.start()
        try:
            yield server
        finally:
            server.close()


def _mariadb(folder: Path, memory_gb: int) -> MariadbServer:
    words: Sequence[str] = (f"--innodb-buffer-pool-size={memory_gb}G", "--innodb-log-file-size=1G")
    return MariadbServer(folder=folder / "server", template=install_template(folder), configuration=words)


def _postgresql(memory_gb: int) -> PostgresqlServer:
    return PostgresqlServer(configuration={"shared_buffers": f"{memory_gb}GB", "max_wal_size": f"{memory_gb // 2}GB"})


if __name__ == "__main__":
    main()
