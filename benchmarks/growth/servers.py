"""The ledger on MariaDB and PostgreSQL, by the number of processed objects that it has.

The calls are those of `benchmarks.growth.ledger`, the servers those of `benchmarks.ledger_servers`: private ones on
this machine, over unix sockets, every commit on disk. Filled by SQL with the rows of a pipeline with batches of 5,000
objects. CPU time is that of the client and of all the server's processes.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sqlalchemy import text
from tests.services.mariadb_server import MariadbServer
from tests.services.postgresql_server import PostgresqlServer

from benchmarks.growth.curves import Curve, Series
from benchmarks.growth.ledger import PIPELINE, UNITS, Calls
from benchmarks.growth.processes import cpu_seconds
from benchmarks.ledger_servers import BATCH, analyze, candidate, connected, fill, private_server
from penstock.ledger import Ledger

_NAMES = {"MariaDB": "mariadb", "PostgreSQL": "postgresql"}
_MEMORY_GB = 6  # for pages: all of ten million objects
_DIRTY_PAGES = 100  # that an idle server may have
_OBJECT_ATTEMPTS = (
    "INSERT INTO object_attempts (pipeline, object_id, attempt_id) SELECT pipeline, object_id, attempt_id FROM objects"
)
# Row i of the attempts and batches; {numbers} is a table with a column i.
_NUMBERS = {
    "mariadb": "(SELECT CAST(seq AS SIGNED) AS i FROM seq_0_to_{last}) numbers",
    "postgresql": "generate_series(0, {last}) AS numbers(i)",
}
_ATTEMPT = {
    "mariadb": "CONCAT('attempt-', LPAD(i, 10, '0'))",
    "postgresql": "'attempt-' || lpad(i::text, 10, '0')",
}
_QUOTED = {"mariadb": "`rows`", "postgresql": '"rows"'}
_ATTEMPTS = """
    INSERT INTO attempts (id, pipeline, state, worker, started_at, ended_at, lease_until, heartbeat_seq)
    SELECT {attempt}, :pipeline, 'committed', 'growth', 1.7e9, 1.7e9, 1.7e9, 1 FROM {numbers}
"""
_BATCHES = """
    INSERT INTO batches (pipeline, seq, attempt_id, schema_id, manifest, quarantine_manifest, objects, {rows},
        lines_quarantined, bytes, committed_at, stage_seconds)
    SELECT :pipeline, i + 1, {attempt}, 1, REPEAT('x', 2000), '', :batch, 50 * :batch, 0, 10000 * :batch, 1.7e9, '{{}}'
    FROM {numbers}
"""


def measure(sizes: Sequence[int], folder: Path) -> Sequence[Curve]:  # noqa: ARG001 - servers choose their folders
    units = {f"{call}, {shown}": unit for shown in _NAMES for call, unit in UNITS.items()}
    series = Series("servers", units)
    for size in sizes:
        for shown, name in _NAMES.items():
            with private_server(name, memory_gb=_MEMORY_GB) as server:
                url = server.fresh()
                if size:
                    _fill(name, url, size)
                    _flush(server)
                pid = server.pid

                def measured(operation: str, count: int = 1, shown: str = shown, pid: int = pid) -> Any:
                    return series.of(f"{operation}, {shown}", count, more=lambda: cpu_seconds(pid))

                _measure(url, size, measured)
        series.done(size)
    return series.curves()


def _measure(url: str, size: int, measured: Callable[..., AbstractContextManager[None]]) -> None:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    Calls(ledger=ledger, size=size, candidate=candidate, measured=measured).measure()
    ledger.close()


def _flush(server: MariadbServer | PostgresqlServer) -> None:
    """Write the pages of the fill to disk, which the server would otherwise do during the measurement."""
    if isinstance(server, PostgresqlServer):
        server.sql("CHECKPOINT")
        return
    server.sql("SET GLOBAL innodb_max_dirty_pages_pct = 0")
    while int(server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")[0][1]) > _DIRTY_PAGES:
        time.sleep(1.0)
    server.sql("SET GLOBAL innodb_max_dirty_pages_pct = 90")


def _fill(name: str, url: str, size: int) -> None:
    fill(name, url, size, archived=False)
    last = (size - 1) // BATCH
    numbers = _NUMBERS[name].format(last=last)
    words = {"attempt": _ATTEMPT[name], "numbers": numbers, "rows": _QUOTED[name]}
    with connected(url) as connection:
        for statement in (_ATTEMPTS, _BATCHES):
            connection.execute(text(statement.format(**words)), {"pipeline": PIPELINE, "batch": BATCH})
        connection.execute(text(_OBJECT_ATTEMPTS))
        connection.execute(text("UPDATE pipelines SET next_seq = :next"), {"next": last + 2})
        for table in ("attempts", "batches", "object_attempts"):
            analyze(connection, table)
