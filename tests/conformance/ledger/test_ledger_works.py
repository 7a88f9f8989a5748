"""Works, on every database: one recorded completion per key of a handler, however often it is begun."""

from collections.abc import Callable

import pytest
from sqlalchemy import select
from tests.conformance.ledger.ledger_harness import HANDLER, LEASE_SECONDS, OVER, LedgerHarness

from penstock.ledger.records import TERMINAL, HolderOutcome, WorkBegun, WorkBusy, WorkDone, WorkEnd, WorkRow, WorkState
from penstock.ledger.rules import REASON_CHARS_MAX
from penstock.ledger.schema import works

OUTCOME = '{"pages": 3}'


def begun(harness: LedgerHarness, attempt: str, *, key: str = "k", lease_seconds: float = LEASE_SECONDS) -> WorkBegun:
    result = harness.begin(key, attempt=attempt, worker=f"worker of {attempt}", lease_seconds=lease_seconds)
    assert isinstance(result, WorkBegun)
    return result


def taken_over(harness: LedgerHarness) -> None:
    """Let ``slow`` run past its lease and ``next`` take the work over."""
    begun(harness, "slow", lease_seconds=OVER)
    begun(harness, "next")


# Beginning


def test_the_first_attempt_begins_a_key(harness: LedgerHarness) -> None:
    assert begun(harness, "first") == WorkBegun(previous=None)
    row = harness.work()
    assert (row.handler, row.key, row.state, row.attempts) == (HANDLER, "k", WorkState.OPEN, 1)
    assert (row.attempt_id, row.worker) == ("first", "worker of first")
    assert row.lease_until is not None
    lease_seconds = row.lease_until - row.started_at
    assert lease_seconds == pytest.approx(LEASE_SECONDS, abs=LEASE_SECONDS / 3)
    assert (row.outcome, row.completed_at, row.previous) == (None, None, None)


def test_while_a_key_is_open_others_are_busy_for_the_rest_of_its_lease(harness: LedgerHarness) -> None:
    begun(harness, "first")
    before = harness.everything()
    result = harness.begin(attempt="second")
    assert isinstance(result, WorkBusy)
    assert 0 < result.seconds <= LEASE_SECONDS
    assert harness.everything() == before


def test_a_completed_key_is_done_for_every_duplicate(harness: LedgerHarness) -> None:
    begun(harness, "first")
    assert harness.ledger.finish_work("first", outcome=OUTCOME)
    row = harness.work()
    assert row.completed_at is not None
    assert (row.state, row.outcome, row.lease_until) == (WorkState.DONE, OUTCOME, None)
    done = WorkDone(outcome=OUTCOME, completed_at=row.completed_at, worker="worker of first", attempt_id="first")
    before = harness.everything()
    assert [harness.begin(attempt=attempt) for attempt in ("second", "third", "first")] == [done] * 3
    assert harness.everything() == before


def test_a_completion_past_its_lease_that_was_not_taken_over_counts(harness: LedgerHarness) -> None:
    begun(harness, "slow", lease_seconds=OVER)
    assert harness.ledger.finish_work("slow", outcome=OUTCOME), "the state fences, never the time"
    assert isinstance(harness.begin(), WorkDone)


def test_an_attempt_past_its_lease_is_taken_over_and_reported(harness: LedgerHarness) -> None:
    begun(harness, "slow", lease_seconds=OVER)
    previous = begun(harness, "next").previous
    assert previous is not None
    assert (previous.attempt_id, previous.worker) == ("slow", "worker of slow")
    assert (previous.outcome, previous.reason) == (WorkEnd.EXPIRED, "its lease ran out")
    assert previous.ended_at >= previous.started_at
    assert isinstance(harness.begin(), WorkBusy)
    assert harness.work().attempts == 2


@pytest.mark.parametrize("ending", ["failed", "given_back"])
def test_an_ended_attempt_frees_the_key_and_is_reported(harness: LedgerHarness, ending: HolderOutcome) -> None:
    begun(harness, "first")
    assert harness.ledger.end_work("first", outcome=ending, reason="no such font")
    assert harness.work().state is WorkState.FREE
    previous = begun(harness, "second").previous
    assert previous == harness.work().previous
    assert previous is not None
    assert (previous.attempt_id, previous.outcome, previous.reason) == ("first", WorkEnd(ending), "no such font")


def test_the_last_ended_attempt_is_kept_and_all_are_counted(harness: LedgerHarness) -> None:
    for number in range(5):
        begun(harness, f"attempt {number}")
        harness.ledger.end_work(f"attempt {number}", outcome="failed", reason=f"reason {number}")
    previous = begun(harness, "last").previous
    assert previous is not None
    assert previous.reason == "reason 4"
    assert harness.ledger.finish_work("last", outcome=OUTCOME)
    row = harness.work()
    assert (row.attempts, row.attempt_id, row.previous) == (6, "last", previous)


def test_beginning_again_with_the_same_id_returns_the_held_work(harness: LedgerHarness) -> None:
    begun(harness, "first")
    harness.ledger.end_work("first", outcome="failed", reason="")
    before = begun(harness, "second", lease_seconds=OVER)
    everything = harness.everything()
    assert begun(harness, "second") == before, "an attempt never takes over from itself"
    assert harness.everything() == everything


def test_an_attempt_id_can_begin_only_one_work(harness: LedgerHarness) -> None:
    begun(harness, "first", key="a")
    with pytest.raises(ValueError, match="attempt first began another work"):
        harness.begin("b", attempt="first")
    assert harness.ledger.work(HANDLER, "b") is None


# Fencing


FENCED: list[tuple[str, Callable[[LedgerHarness, str], bool]]] = [
    ("finish", lambda harness, attempt: harness.ledger.finish_work(attempt, outcome="null")),
    ("extend", lambda harness, attempt: harness.ledger.extend_work(attempt, lease_seconds=LEASE_SECONDS)),
    ("fail", lambda harness, attempt: harness.ledger.end_work(attempt, outcome="failed", reason="")),
    ("release", lambda harness, attempt: harness.ledger.end_work(attempt, outcome="given_back", reason="")),
]


@pytest.mark.parametrize("act", [act for _, act in FENCED], ids=[name for name, _ in FENCED])
def test_a_zombie_changes_nothing(harness: LedgerHarness, act: Callable[[LedgerHarness, str], bool]) -> None:
    taken_over(harness)
    before = harness.everything()
    assert [act(harness, "slow"), act(harness, "never heard of")] == [False, False]
    assert harness.everything() == before
    assert harness.ledger.finish_work("next", outcome=OUTCOME)
    before = harness.everything()
    assert not act(harness, "slow")
    assert harness.everything() == before


@pytest.mark.parametrize("act", [act for name, act in FENCED[:2]], ids=[name for name, _ in FENCED[:2]])
def test_an_ended_attempt_can_neither_finish_nor_extend(
    harness: LedgerHarness, act: Callable[[LedgerHarness, str], bool]
) -> None:
    begun(harness, "first")
    harness.ledger.end_work("first", outcome="given_back", reason="")
    before = harness.everything()
    assert not act(harness, "first")
    assert harness.everything() == before


@pytest.mark.parametrize("act", [act for name, act in FENCED[1:]], ids=[name for name, _ in FENCED[1:]])
def test_a_finished_attempt_stays_finished(harness: LedgerHarness, act: Callable[[LedgerHarness, str], bool]) -> None:
    begun(harness, "first")
    harness.ledger.finish_work("first", outcome=OUTCOME)
    before = harness.everything()
    assert not act(harness, "first")
    assert harness.everything() == before


def test_finishing_again_succeeds_and_keeps_the_first_outcome(harness: LedgerHarness) -> None:
    begun(harness, "first")
    assert [harness.ledger.finish_work("first", outcome=outcome) for outcome in (OUTCOME, "null")] == [True, True]
    assert harness.work().outcome == OUTCOME


def test_ending_again_succeeds_only_with_the_same_outcome(harness: LedgerHarness) -> None:
    begun(harness, "first")
    assert [harness.ledger.end_work("first", outcome="failed", reason=reason) for reason in ("a", "b")] == [True, True]
    assert not harness.ledger.end_work("first", outcome="given_back", reason="c")
    previous = harness.work().previous
    assert previous is not None
    assert (previous.outcome, previous.reason) == (WorkEnd.FAILED, "a")


def test_an_extended_attempt_is_not_taken_over(harness: LedgerHarness) -> None:
    begun(harness, "slow", lease_seconds=OVER)
    assert harness.ledger.extend_work("slow", lease_seconds=LEASE_SECONDS), "past its lease, but not taken over"
    result = harness.begin()
    assert isinstance(result, WorkBusy)
    assert result.seconds == pytest.approx(LEASE_SECONDS, abs=LEASE_SECONDS / 3)


def test_an_extension_changes_the_row_each_time(harness: LedgerHarness) -> None:
    """A database that counts changed rows, not matched ones, would otherwise report a heartbeat within one tick of its
    clock as lost.
    """
    begun(harness, "first")

    seqs: list[int] = []
    for _ in range(3):
        assert harness.ledger.extend_work("first", lease_seconds=LEASE_SECONDS)
        with harness.ledger.database.reading() as connection:
            seqs += connection.scalars(select(works.c.heartbeat_seq)).all()
    assert seqs == [1, 2, 3]


def test_only_works_of_a_dead_worker_are_freed_at_once(harness: LedgerHarness) -> None:
    harness.begin("a", attempt="a", worker="dead")
    harness.begin("b", attempt="b", worker="dead")
    harness.begin("done", attempt="done", worker="dead")
    harness.ledger.finish_work("done", outcome=OUTCOME)
    harness.begin("c", attempt="c", worker="alive")
    assert [harness.ledger.abandon_worker_works("dead") for _ in range(2)] == [2, 0]
    assert [harness.work(key).state for key in ("a", "b", "done", "c")] == ["free", "free", "done", "open"]
    previous = begun(harness, "next", key="a").previous
    assert previous is not None
    assert (previous.outcome, previous.reason) == (WorkEnd.EXPIRED, "worker dead died")
    assert not harness.ledger.finish_work("b", outcome=OUTCOME)
    assert not harness.ledger.end_work("b", outcome="failed", reason=""), "it was ended by another"


# Identity and text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param((HANDLER, "Data"), (HANDLER, "data"), id="case"),
        pytest.param((HANDLER, "a"), (HANDLER, "a "), id="trailing space"),
        pytest.param((HANDLER, "\U0001f600"), (HANDLER, "\U0001f601"), id="emoji"),
        pytest.param((HANDLER, "a"), ("others", "a"), id="handlers"),
        pytest.param(("Make", "a"), ("make", "a"), id="handlers' case"),
        pytest.param(("a", "bc"), ("ab", "c"), id="where the key begins"),
        pytest.param((HANDLER, "x" * 9_000 + "a"), (HANDLER, "x" * 9_000 + "b"), id="long"),
        pytest.param((HANDLER, "\udcff"), (HANDLER, "\\udcff"), id="surrogate"),
        pytest.param((HANDLER, ""), (HANDLER, "\0"), id="nul"),
    ],
)
def test_keys_are_compared_exactly(harness: LedgerHarness, one: tuple[str, str], other: tuple[str, str]) -> None:
    for handler, key in (one, other):
        assert isinstance(harness.begin(key, handler=handler), WorkBegun)
    ids = {row.work_id for row in harness.ledger.works()}
    assert len(ids) == 2
    for handler, key in (one, other):
        row = harness.ledger.work(handler, key)
        assert row is not None
        assert row.handler == handler
        assert isinstance(harness.begin(key, handler=handler), WorkBusy)


def test_a_handler_with_a_nul_in_its_name_is_refused(harness: LedgerHarness) -> None:
    with pytest.raises(ValueError, match="NUL"):
        harness.begin(handler="a\0b")


def test_any_text_is_stored_escaped_and_truncated(harness: LedgerHarness) -> None:
    harness.begin("k" * 10_000 + "\0\udcff", attempt="first", worker="wo\0rker \udcff")
    harness.ledger.end_work("first", outcome="failed", reason="r" * 10_000)
    (row,) = harness.ledger.works()
    assert row.key == "k" * REASON_CHARS_MAX
    assert row.worker == "wo\\x00rker \\udcff"
    assert row.previous is not None
    assert row.previous.reason == "r" * REASON_CHARS_MAX
    harness.begin("k" * 10_000 + "\0\udcff", attempt="second", worker="wo\0rker \udcff")
    assert harness.ledger.abandon_worker_works("wo\0rker \udcff") == 1


def test_a_large_outcome_is_returned_whole(harness: LedgerHarness) -> None:
    outcome = '"' + "é" * 300_000 + '"'
    harness.begin(attempt="first")
    harness.ledger.finish_work("first", outcome=outcome)
    result = harness.begin()
    assert isinstance(result, WorkDone)
    assert result.outcome == outcome


# Queries for people


def test_works_are_filtered_and_paged(harness: LedgerHarness) -> None:
    for key in ("apple", "Apricot", "plum", "100%_ripe"):
        harness.begin(key, attempt=key)
    harness.begin("apple", handler="others", attempt="others")
    harness.ledger.finish_work("plum", outcome=OUTCOME)
    harness.ledger.end_work("Apricot", outcome="failed", reason="")

    def keys(rows: object) -> list[str]:
        assert isinstance(rows, list)
        return sorted(row.key for row in rows if isinstance(row, WorkRow))

    assert keys(harness.ledger.works(HANDLER)) == ["100%_ripe", "Apricot", "apple", "plum"]
    assert keys(harness.ledger.works("others")) == ["apple"]
    assert keys(harness.ledger.works(key_contains="AP")) == ["Apricot", "apple", "apple"]
    assert keys(harness.ledger.works(key_contains="_pple")) == [], "user input is no pattern"
    assert [keys(harness.ledger.works(HANDLER, state=state)) for state in WorkState] == [
        ["Apricot"],
        ["100%_ripe", "apple"],
        ["plum"],
    ]
    first = harness.ledger.works(limit=3)
    second = harness.ledger.works(limit=3, after=first[-1].work_id)
    ids = [row.work_id for row in (*first, *second)]
    assert (ids, len(first), len(second)) == (sorted(ids), 3, 2)
    assert harness.ledger.work("nobody", "apple") is None


# Retention


def test_old_ended_works_are_forgotten_oldest_first(harness: LedgerHarness) -> None:
    for key in ("first", "second", "freed", "open"):
        harness.begin(key, attempt=key)
    harness.ledger.finish_work("first", outcome=OUTCOME)
    harness.ledger.finish_work("second", outcome=OUTCOME)
    harness.ledger.end_work("freed", outcome="failed", reason="")
    assert harness.ledger.forget_works(older_than_seconds=3_600.0, limit=10) == 0
    now = -1.0  # matches everything that ended up to a second from now
    assert harness.ledger.forget_works(older_than_seconds=now, limit=1) == 1
    assert harness.ledger.work(HANDLER, "first") is None
    assert harness.ledger.forget_works(older_than_seconds=now, limit=10) == 2
    assert [row.key for row in harness.ledger.works()] == ["open"], "open works are never forgotten"
    assert begun(harness, "again", key="first").previous is None


def test_a_key_that_began_again_is_not_forgotten(harness: LedgerHarness) -> None:
    begun(harness, "first")
    harness.ledger.end_work("first", outcome="failed", reason="")
    begun(harness, "second")
    assert harness.ledger.forget_works(older_than_seconds=-1.0, limit=10) == 0
    assert harness.ledger.finish_work("second", outcome=OUTCOME)


def test_more_works_are_forgotten_than_fit_into_a_statement(harness: LedgerHarness) -> None:
    for number in range(1_001):
        harness.begin(f"{number}", attempt=f"{number}")
        harness.ledger.finish_work(f"{number}", outcome="null")
    assert harness.ledger.forget_works(older_than_seconds=-1.0, limit=10_000) == 1_001
    assert harness.ledger.works() == []


# Works and object claims in one ledger


def test_works_and_object_attempts_are_independent(harness: LedgerHarness) -> None:
    harness.process("a")
    harness.begin(attempt="work")
    assert harness.state("a") in TERMINAL
    assert harness.ledger.attempt("work") is None
    assert not harness.ledger.extend("work", lease_seconds=1.0)
