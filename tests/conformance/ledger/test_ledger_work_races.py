"""Concurrent work on one key: threads, processes, and killed processes."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from unittest import mock

import pytest
from sqlalchemy import PoolProxiedConnection
from tests.conformance.ledger.concurrency import CLAIMERS, DEADLINE_SECONDS, spawning, together
from tests.conformance.ledger.ledger_harness import HANDLER, LEASE_SECONDS, OVER, LedgerHarness

from penstock.ledger import Ledger
from penstock.ledger.records import WorkBegun, WorkBusy, WorkClaimResult, WorkDone, WorkEnd, WorkState

ROUNDS = 10
KEYS = 20
ZOMBIE_TRIES = 20


def begun(results: list[WorkClaimResult]) -> list[int]:
    """Return the numbers of the claimers that won."""
    return [number for number, standing in enumerate(results) if isinstance(standing, WorkBegun)]


def all_begin(harness: LedgerHarness, key: str, *, by: str) -> list[WorkClaimResult]:
    """Let every claimer begin the same key, each with an attempt of its own: ``<key> <by> <number>``."""

    def begin(number: int) -> WorkClaimResult:
        return harness.begin(key, attempt=f"{key} {by} {number}")

    return together(begin)


# Threads


def test_one_claimer_wins_a_key_and_all_get_its_result_afterwards(shared_harness: LedgerHarness) -> None:
    for round_ in range(ROUNDS):
        key = f"key {round_}"
        results = all_begin(shared_harness, key, by="by")
        (winner,) = begun(results)
        kinds = Counter(type(standing) for standing in results)
        assert kinds == {WorkBegun: 1, WorkBusy: CLAIMERS - 1}
        assert shared_harness.ledger.finish_work(f"{key} by {winner}", outcome=f'"{winner}"')
        repeated = all_begin(shared_harness, key, by="again")
        assert {done.outcome for done in repeated if isinstance(done, WorkDone)} == {f'"{winner}"'}
        assert all(standing == repeated[0] for standing in repeated)


def test_one_claimer_takes_over_an_expired_attempt(shared_harness: LedgerHarness) -> None:
    for round_ in range(ROUNDS):
        key = f"key {round_}"
        shared_harness.begin(key, attempt=f"{key} slow", lease_seconds=OVER)
        results = all_begin(shared_harness, key, by="by")
        (winner,) = begun(results)
        won = results[winner]
        assert isinstance(won, WorkBegun)
        assert won.previous is not None
        assert (won.previous.attempt_id, won.previous.outcome) == (f"{key} slow", WorkEnd.EXPIRED)
        assert shared_harness.work(key).attempts == 2


def test_finishing_against_a_takeover_has_one_winner(shared_harness: LedgerHarness) -> None:
    for round_ in range(ROUNDS):
        key = f"key {round_}"
        shared_harness.begin(key, attempt=f"{key} slow", lease_seconds=OVER)

        def race(number: int, key: str = key) -> str:
            if number % 2:
                return f"finished {shared_harness.ledger.finish_work(f'{key} slow', outcome='null')}"
            return type(shared_harness.begin(key, attempt=f"{key} by {number}")).__name__

        results = Counter(together(race))
        half = CLAIMERS // 2
        if shared_harness.work(key).state is WorkState.DONE:
            assert results == {"finished True": half, "WorkDone": half}
        else:
            assert results == {"finished False": half, "WorkBegun": 1, "WorkBusy": half - 1}


def test_threads_with_expired_leases_complete_each_key_once(shared_harness: LedgerHarness) -> None:
    """Each thread works through all keys as a handler would. In its first tries every attempt is a zombie: its lease
    has expired. Later ones have leases that hold, or the threads could take a key from each other forever.
    """
    keys = [f"key {number}" for number in range(6)]
    deadline = time.monotonic() + DEADLINE_SECONDS

    def work(number: int) -> list[str]:
        effects, left, tries = [], keys[number % len(keys) :] + keys[: number % len(keys)], 0
        while left:
            assert time.monotonic() < deadline
            key, tries = left.pop(0), tries + 1
            attempt = f"{key} by {number}, {tries}"
            lease_seconds = OVER if tries <= ZOMBIE_TRIES else DEADLINE_SECONDS
            standing = shared_harness.begin(key, attempt=attempt, worker=f"{number}", lease_seconds=lease_seconds)
            if isinstance(standing, WorkBegun):
                shared_harness.ledger.extend_work(attempt, lease_seconds=lease_seconds)
                if tries == 1:
                    shared_harness.ledger.end_work(attempt, outcome="failed", reason="the first always fails")
                elif shared_harness.ledger.finish_work(attempt, outcome=f'"{attempt}"'):
                    effects.append(key)
            if not isinstance(standing, WorkDone):
                left.append(key)
        return effects

    effects = Counter(key for own in together(work) for key in own)
    assert effects == dict.fromkeys(keys, 1)
    assert len(shared_harness.ledger.works(HANDLER, state=WorkState.DONE)) == len(keys)


def test_forgetting_leaves_work_that_begins_meanwhile_alone(shared_harness: LedgerHarness) -> None:
    for round_ in range(ROUNDS):
        key = f"key {round_}"
        shared_harness.begin(key, attempt=f"{key} first")
        shared_harness.ledger.end_work(f"{key} first", outcome="given_back", reason="")

        def race(number: int, key: str = key) -> WorkClaimResult | int:
            if number % 2:
                return shared_harness.ledger.forget_works(older_than_seconds=-1.0, limit=10)
            return shared_harness.begin(key, attempt=f"{key} by {number}")

        results = together(race)
        (winner,) = [number for number, result in enumerate(results) if isinstance(result, WorkBegun)]
        assert sum(result for result in results if isinstance(result, int)) <= 1
        row = shared_harness.work(key)
        assert (row.state, row.attempt_id) == (WorkState.OPEN, f"{key} by {winner}")


# Processes. Each gets its work by arguments and responds through a pipe.


def begin_all(url: str, number: int, go: Barrier, sender: Connection) -> None:
    ledger = Ledger.open(url)
    go.wait(DEADLINE_SECONDS)
    harness, won = LedgerHarness(ledger), []
    for key in range(KEYS):
        if isinstance(harness.begin(f"{key}", attempt=f"{key} by {number}"), WorkBegun):
            won.append(key)
            assert ledger.finish_work(f"{key} by {number}", outcome=f"{number}")
    sender.send(won)
    ledger.close()


def test_processes_complete_each_key_once(shared_url: str) -> None:
    processes, barrier = 4, spawning.Barrier(4)
    pipes = [spawning.Pipe(duplex=False) for _ in range(processes)]
    children = [
        spawning.Process(target=begin_all, args=(shared_url, number, barrier, pipe[1]))
        for number, pipe in enumerate(pipes)
    ]
    for child in children:
        child.start()
    won: Counter[int] = Counter()
    for pipe, _ in pipes:
        assert pipe.poll(DEADLINE_SECONDS), "a process did not respond"
        won.update(pipe.recv())
    for child in children:
        child.join(DEADLINE_SECONDS)
    assert [child.exitcode for child in children] == [0] * processes
    assert won == dict.fromkeys(range(KEYS), 1)


def _begin(ledger: Ledger) -> None:
    ledger.begin_work(HANDLER, "k", attempt_id="killed", worker="killed", lease_seconds=LEASE_SECONDS)


def _finish(ledger: Ledger) -> None:
    ledger.finish_work("killed", outcome='"by the killed"')


def _fail(ledger: Ledger) -> None:
    ledger.end_work("killed", outcome="failed", reason="as passed")


def die_in(url: str, act: Callable[[Ledger], None], committed: bool) -> None:
    """Be killed around the COMMIT of this action, before or after it."""
    ledger = Ledger.open(url)
    if act is not _begin:
        _begin(ledger)
    dialect = ledger.database.engine.dialect
    do_commit = dialect.do_commit

    def fatal(connection: PoolProxiedConnection) -> None:
        if committed:
            do_commit(connection)
        os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(dialect, "do_commit", fatal):
        act(ledger)


@pytest.mark.parametrize(
    ("act", "committed", "abandoned", "previous"),
    [
        pytest.param(_begin, False, 0, None, id="before it began"),
        pytest.param(_begin, True, 1, WorkEnd.EXPIRED, id="after it began"),
        pytest.param(_finish, False, 1, WorkEnd.EXPIRED, id="before it finished"),
        pytest.param(_finish, True, 0, None, id="after it finished"),
        pytest.param(_fail, False, 1, WorkEnd.EXPIRED, id="before it failed"),
        pytest.param(_fail, True, 0, WorkEnd.FAILED, id="after it failed"),
    ],
)
def test_another_process_continues_after_one_killed_around_a_commit(
    shared_url: str, act: Callable[[Ledger], None], committed: bool, abandoned: int, previous: WorkEnd | None
) -> None:
    child = spawning.Process(target=die_in, args=(shared_url, act, committed))
    child.start()
    child.join(DEADLINE_SECONDS)
    assert child.exitcode == -signal.SIGKILL

    ledger = Ledger.open(shared_url)
    harness = LedgerHarness(ledger)
    if abandoned:
        assert isinstance(harness.begin(), WorkBusy)
    assert ledger.abandon_worker_works("killed") == abandoned
    standing = harness.begin(attempt="next")
    if act is _finish and committed:
        assert isinstance(standing, WorkDone)
        assert standing.outcome == '"by the killed"'
    else:
        assert isinstance(standing, WorkBegun)
        assert (standing.previous.outcome if standing.previous else None) is previous
        assert ledger.finish_work("next", outcome="null")
    ledger.close()
