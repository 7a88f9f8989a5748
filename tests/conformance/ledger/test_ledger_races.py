"""Concurrent claims and commits: threads of one process, several processes, and killed processes."""

import os
import signal
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import pytest
from tests.conformance.ledger.concurrency import CLAIMERS, DEADLINE_SECONDS, spawning, together
from tests.conformance.ledger.ledger_harness import (
    OVER,
    PIPELINE,
    LedgerHarness,
    candidates,
    object_id_of,
    outcome,
    seq_of,
)

from penstock.errors import ClaimLost
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptState, ObjectClaims, ObjectState
from penstock.messaging.steps import Step

NAMES = [f"object {number}" for number in range(200)]


def slices(number: int) -> Sequence[str]:
    """Return overlapping thirds of the names, in another order for each claimer."""
    turned = NAMES[number * 25 :] + NAMES[: number * 25]
    return turned[:70] if number % 2 else turned[70::-1]


def assert_each_claimed_once(claims: Sequence[set[bytes]]) -> None:
    taken = Counter(object_id for claimed in claims for object_id in claimed)
    assert set(taken.values()) == {1}


def test_row_65_threads_share_the_same_objects_without_overlap(shared_harness: LedgerHarness) -> None:
    def claim(number: int) -> set[bytes]:
        return set(shared_harness.claim(candidates(*NAMES), attempt=f"by {number}").claimed)

    claims = together(claim)
    assert_each_claimed_once(claims)
    assert sum(map(len, claims)) == len(NAMES)


def test_overlapping_claims_never_deadlock(shared_harness: LedgerHarness) -> None:
    claims = together(lambda n: set(shared_harness.claim(candidates(*slices(n)), attempt=f"by {n}").claimed))
    assert_each_claimed_once(claims)
    wanted = {name for number in range(CLAIMERS) for name in slices(number)}
    assert set().union(*claims) == {object_id_of(name) for name in wanted}


def test_threads_on_an_in_memory_ledger_take_turns() -> None:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    harness = LedgerHarness(ledger)
    claims = together(lambda n: set(harness.claim(candidates(*NAMES), attempt=f"by {n}").claimed))
    assert_each_claimed_once(claims)
    ledger.close()


def test_concurrent_commits_leave_no_gap_in_the_sequence(shared_harness: LedgerHarness) -> None:
    def process(number: int) -> list[int | None]:
        claims = [shared_harness.claim(candidates(f"{number}/{n}"), attempt=f"{number}/{n}") for n in range(5)]
        return [seq_of(shared_harness.ledger.commit(outcome(claim))) for claim in claims]

    seqs = [seq for own in together(process) for seq in own]
    assert sorted(seq for seq in seqs if seq is not None) == list(range(1, CLAIMERS * 5 + 1))
    times = [batch.committed_at for batch in shared_harness.ledger.batches(PIPELINE)]
    assert times == sorted(times), "batches are numbered in the order of their commits"


def test_concurrent_commits_of_one_attempt_make_one_batch(shared_harness: LedgerHarness) -> None:
    claim = shared_harness.claim(candidates("a", "b"))
    assert together(lambda _: seq_of(shared_harness.ledger.commit(outcome(claim)))) == [1] * CLAIMERS
    assert len(shared_harness.ledger.batches(PIPELINE)) == 1


def test_a_commit_against_a_takeover_has_one_winner(shared_harness: LedgerHarness) -> None:
    for round_ in range(5):
        claim = shared_harness.claim(candidates(f"{round_}"), attempt=f"old {round_}", lease_seconds=OVER)

        def race(number: int, claim: ObjectClaims = claim, round_: int = round_) -> str:
            if number % 2:
                try:
                    return f"committed {shared_harness.ledger.commit(outcome(claim))}"
                except ClaimLost:
                    return "lost"
            taken = shared_harness.claim(candidates(f"{round_}"), attempt=f"new {round_} {number}").claimed
            return "taken" if taken else "not taken"

        results = Counter(together(race))
        committed = [result for result in results if result.startswith("committed")]
        assert (len(committed), results["taken"]) in ((1, 0), (0, 1))


def test_concurrent_threads_open_a_new_ledger(shared_url: str) -> None:
    def open_and_claim(number: int) -> int:
        ledger = Ledger.open(shared_url)
        ledger.ensure_pipeline(PIPELINE)
        seq = LedgerHarness(ledger).claim(candidates(f"{number}"), attempt=f"by {number}")
        ledger.close()
        return len(seq.claimed)

    assert together(open_and_claim) == [1] * CLAIMERS


# Processes. Each gets its work by arguments and responds through a pipe.


def claim_all(url: str, number: int, go: Barrier, sender: Connection) -> None:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    go.wait(DEADLINE_SECONDS)
    claim = LedgerHarness(ledger).claim(candidates(*NAMES), attempt=f"process {number}")
    ledger.commit(outcome(claim)) if claim.claimed else None
    sender.send(set(claim.claimed))
    ledger.close()


def test_row_65_processes_share_the_same_objects_without_overlap(shared_url: str) -> None:
    processes, barrier = 4, spawning.Barrier(4)
    pipes = [spawning.Pipe(duplex=False) for _ in range(processes)]
    children = [
        spawning.Process(target=claim_all, args=(shared_url, number, barrier, pipe[1]))
        for number, pipe in enumerate(pipes)
    ]
    for child in children:
        child.start()
    claims = [_receive_claimed(pipe[0]) for pipe in pipes]
    for child in children:
        child.join(DEADLINE_SECONDS)
    assert [child.exitcode for child in children] == [0] * processes
    assert_each_claimed_once(claims)
    assert sum(map(len, claims)) == len(NAMES)
    ledger = Ledger.open(shared_url)
    assert [batch.seq for batch in ledger.batches(PIPELINE)] == list(range(1, sum(map(bool, claims)) + 1))
    ledger.close()


def die_at(url: str, step: Step) -> None:
    def kill(reached: Step) -> None:
        if reached is step:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = Ledger.open(url, probe=kill)
    ledger.ensure_pipeline(PIPELINE)
    claim = LedgerHarness(ledger).claim(candidates("a", "b"), attempt="killed", worker="killed")
    ledger.commit(outcome(claim))


@pytest.mark.parametrize(
    ("step", "state", "attempts"),
    [
        (Step.OBJECTS_REGISTERED, ObjectState.PROCESSING, 2),
        (Step.ATTEMPT_OPENED, ObjectState.PROCESSING, 2),
        (Step.COMMITTING, ObjectState.PROCESSING, 2),
        (Step.COMMITTED, ObjectState.PROCESSED, 1),
    ],
)
def test_another_process_continues_after_one_killed_at_a_step(
    shared_url: str, step: Step, state: ObjectState, attempts: int
) -> None:
    child = spawning.Process(target=die_at, args=(shared_url, step))
    child.start()
    child.join(DEADLINE_SECONDS)
    assert child.exitcode == -signal.SIGKILL

    ledger = Ledger.open(shared_url)
    harness = LedgerHarness(ledger)
    assert harness.state("a") is state
    held = state is ObjectState.PROCESSING
    assert ledger.abandon_worker(PIPELINE, "killed") == (["killed"] if held else [])
    claim = harness.claim(candidates("a", "b"))
    if state is not ObjectState.PROCESSED:
        assert {one.attempts for one in claim.claimed.values()} == {attempts}
        ledger.commit(outcome(claim))
    (batch,) = ledger.batches(PIPELINE)
    assert (batch.seq, batch.objects) == (1, 2)
    attempt = ledger.attempt(batch.attempt_id)
    assert attempt is not None
    assert attempt.state is AttemptState.COMMITTED
    ledger.close()


def _receive_claimed(pipe: Connection) -> set[bytes]:
    assert pipe.poll(DEADLINE_SECONDS), "a process did not respond"
    claimed: set[bytes] = pipe.recv()
    return claimed
