"""Claims with our multi-row INSERT and with the ways that SQLAlchemy and the driver have, taking turns in one run.

python -m benchmarks.ledger_inserts [--objects N] [--rounds N] [--only mariadb|postgresql]

`ours` is the hook in penstock.ledger.dialects.mysql or postgresql_rows; `driver` is the driver's own executemany
(PyMySQL joins rows into one statement, psycopg 3 sends them in pipeline mode); `insertmanyvalues` is SQLAlchemy's,
which neither dialect uses for an INSERT without RETURNING unless told to. A round claims and commits new objects each
way; printed are medians of the claims, and their ratio to ours.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import event

from benchmarks.ledger_servers import PIPELINE, claim_and_commit, private_server
from penstock.ledger import Ledger
from penstock.ledger.dialects.mysql import insert_in_parts
from penstock.ledger.dialects.postgresql import insert_as_arrays

HOOKS: Mapping[str, Callable[..., bool]] = {"mariadb": insert_in_parts, "postgresql": insert_as_arrays}
WAYS = ("ours", "driver", "insertmanyvalues")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=list(HOOKS))
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else list(HOOKS):
        with private_server(name) as fresh, ExitStack() as stack:
            ledgers = {way: stack.enter_context(_opened(fresh(), name, way)) for way in WAYS}
            _compare(name, ledgers, objects=arguments.objects, rounds=arguments.rounds)


def _compare(name: str, ledgers: Mapping[str, Ledger], *, objects: int, rounds: int) -> None:
    seconds: dict[str, list[float]] = {way: [] for way in ledgers}
    for number in range(-1, rounds):  # the first warms up
        for way, ledger in ledgers.items():
            claim_seconds, _ = claim_and_commit(ledger, f"round-{number + 1}", objects)
            if number >= 0:
                seconds[way].append(claim_seconds)
    ours = statistics.median(seconds["ours"])
    for way, times in seconds.items():
        median = statistics.median(times)
        print(
            f"{name}: {objects:,} objects claimed, {way:<16} {median:.3f} s ({min(times):.3f} to {max(times):.3f}), "
            f"{median / ours:.2f} times ours",
            flush=True,
        )


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
