"""Claims with our multi-row INSERT and with those of SQLAlchemy and the driver, alternating in one run.

python -m benchmarks.ledger_inserts [--objects N] [--rounds N] [--only mariadb|postgresql]

`ours` is the hook in penstock.ledger.dialects.mysql or postgresql; `driver` is the driver's own executemany
(PyMySQL joins rows into one statement, psycopg 3 sends them in pipeline mode); `insertmanyvalues` is SQLAlchemy's,
which neither dialect uses by default for an INSERT without RETURNING. A round claims and commits new objects with each
method. Prints medians of the claims' wall-clock time and CPU time of this process, and their ratios to ours. On a busy
machine, compare the CPU time: it excludes the server and other processes.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import event

from benchmarks.ledger_servers import LEASE_SECONDS, PIPELINE, candidate, outcome, private_server
from penstock.ledger import Ledger
from penstock.ledger.dialects.mysql import insert_in_chunks
from penstock.ledger.dialects.postgresql import insert_as_arrays

HOOKS: Mapping[str, Callable[..., bool]] = {"mariadb": insert_in_chunks, "postgresql": insert_as_arrays}
WAYS = ("ours", "driver", "insertmanyvalues")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=list(HOOKS))
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else list(HOOKS):
        with private_server(name) as server, ExitStack() as stack:
            ledgers = {way: stack.enter_context(_opened(server.fresh(), name, way)) for way in WAYS}
            _compare(name, ledgers, objects=arguments.objects, rounds=arguments.rounds)


def _compare(name: str, ledgers: Mapping[str, Ledger], *, objects: int, rounds: int) -> None:
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ledgers}
    for number in range(rounds + 1):  # the first warms up
        for way, ledger in ledgers.items():
            took = _claim(ledger, f"round-{number}", objects)
            _analyze(ledger, name)
            if number:
                seconds[way].append(took)
    medians = {way: [statistics.median(one) for one in zip(*times, strict=True)] for way, times in seconds.items()}
    for way, (wall, cpu) in medians.items():
        times_wall, times_cpu = (mine / ours for mine, ours in zip((wall, cpu), medians["ours"], strict=True))
        print(
            f"{name}: {objects:,} objects claimed, {way}: {wall:.3f} s, {times_wall:.2f} times ours; CPU {cpu:.3f} s, "
            f"{times_cpu:.2f} times ours",
            flush=True,
        )


def _claim(ledger: Ledger, attempt: str, objects: int) -> tuple[float, float]:
    """Claim and commit new objects. Return the seconds of the claim: by the wall clock, and of this process's CPU."""
    candidates = [candidate(f"{attempt}/{index}") for index in range(objects)]
    began_at, cpu_before = time.perf_counter(), time.process_time()
    claim = ledger.claim(PIPELINE, candidates, attempt_id=attempt, worker="benchmark", lease_seconds=LEASE_SECONDS)
    took = time.perf_counter() - began_at, time.process_time() - cpu_before
    assert len(claim.claimed) == objects
    ledger.commit(outcome(claim))
    return took


def _analyze(ledger: Ledger, name: str) -> None:
    """Update the statistics: with those of an empty table, MariaDB may join the claims the wrong way."""
    with ledger.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE objects" if name == "mariadb" else "ANALYZE objects")
        connection.commit()


@contextmanager
def _opened(url: str, name: str, way: str) -> Iterator[Ledger]:
    ledger = Ledger.open(url)
    engine = ledger.database.engine
    if way != "ours":
        event.remove(engine, "do_executemany", HOOKS[name])
    if way == "insertmanyvalues":
        dialect: Any = engine.dialect
        dialect.use_insertmanyvalues = dialect.use_insertmanyvalues_wo_returning = True
        dialect.supports_multivalues_insert = True
    ledger.ensure_pipeline(PIPELINE)
    try:
        yield ledger
    finally:
        ledger.close()


if __name__ == "__main__":
    main()
