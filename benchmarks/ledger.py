"""The time of ledger operations: claim and commit 5,000 objects in a file, two objects in memory, and works.

python benchmarks/ledger.py [--objects N] [--rounds N] [--works N]
"""

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeVar

from penstock.ledger import Ledger
from penstock.ledger.records import (
    BatchOutcome,
    BatchRecord,
    Candidate,
    ObjectClaims,
    ObjectResult,
    OriginalMessage,
    WorkClaimResult,
    WorkDone,
)

PIPELINE = "file:///benchmark"

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--works", type=int, default=3_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _report("in a file, WAL, synchronous FULL", Ledger.open(Path(folder, "ledger.db")), arguments)
        _report_works("in a file, WAL, synchronous FULL", Ledger.open(Path(folder, "works.db")), arguments.works)
    small = argparse.Namespace(objects=2, rounds=2_000)
    _report("in memory", Ledger.open("sqlite://"), small)
    _report_works("in memory", Ledger.open("sqlite://"), arguments.works)


def _report(place: str, ledger: Ledger, arguments: argparse.Namespace) -> None:
    ledger.ensure_pipeline(PIPELINE)
    attempts = (f"attempt-{number}" for number in count())
    times = [_round(ledger, attempts, arguments.objects, number) for number in range(arguments.rounds)]
    ledger.close()
    claim, extend, commit = (statistics.median(column) * 1_000 for column in zip(*times, strict=True))
    print(
        f"{place}: {arguments.objects} objects, median of {arguments.rounds}: "
        f"claim {claim:.3f} ms, extend {extend:.3f} ms, commit {commit:.3f} ms"
    )


def _report_works(place: str, ledger: Ledger, works: int) -> None:
    """In one thread, begin and finish each key, and then begin it again as a duplicate."""

    def begin(number: int, attempt: str) -> WorkClaimResult:
        return ledger.begin_work("handler", f"{number}", attempt_id=attempt, worker="benchmark", lease_seconds=60.0)

    def complete(number: int) -> bool:
        begin(number, f"attempt-{number}")
        return ledger.finish_work(f"attempt-{number}", outcome="null")

    finished, finish_seconds = _timed(lambda: [complete(number) for number in range(works)])
    met, meet_seconds = _timed(lambda: [begin(number, f"duplicate-{number}") for number in range(works)])
    ledger.close()
    assert all(finished)
    assert all(isinstance(status, WorkDone) for status in met)
    print(
        f"{place}: {works} works: begun and finished {works / finish_seconds:,.0f} a second, "
        f"duplicates told {works / meet_seconds:,.0f} a second"
    )


def _round(ledger: Ledger, attempts: Iterator[str], objects: int, number: int) -> tuple[float, float, float]:
    candidates = [_candidate(f"{number}/{index}") for index in range(objects)]
    attempt = next(attempts)
    claim, claim_seconds = _timed(
        lambda: ledger.claim(PIPELINE, candidates, attempt_id=attempt, worker="benchmark", lease_seconds=60.0)
    )
    _, extend_seconds = _timed(lambda: ledger.extend(attempt, lease_seconds=60.0))
    committed, commit_seconds = _timed(lambda: ledger.commit(_outcome(claim)))
    assert len(claim.claimed) == objects
    assert committed is not None
    assert committed.seq == number + 1
    return claim_seconds, extend_seconds, commit_seconds


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - start


def _candidate(name: str) -> Candidate:
    key = f"/benchmark/landing/2024/01/{name}.jsonl.gz"
    return Candidate(
        object_id=hashlib.sha256(key.encode()).digest()[:16],
        bucket="file",
        key=key.encode(),
        size_bytes=10_000,
        uri=f"file://{key}",
        etag="17f0-2710",
        original_message=OriginalMessage(message_id=name, enqueued_at=0.0),
    )


def _outcome(claim: ObjectClaims) -> BatchOutcome:
    results = [ObjectResult(object_id=object_id, rows=50, lines_quarantined=0) for object_id in claim.claimed]
    return BatchOutcome(
        pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=results, record=BatchRecord(rows=50 * len(results))
    )


if __name__ == "__main__":
    main()
